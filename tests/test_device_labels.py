"""On recordings of accelerators that two readers labelled blind: the first finding is right, nothing loud is false."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchtriage.cli.main import cli
from torchtriage.core.toml import read_toml

LABELS: dict[str, dict[str, Any]] = read_toml(Path(__file__).parent / "expected" / "devices.toml")
FIRST_RIGHT = 0.9


def codes(label: dict[str, Any]) -> Iterator[str]:
    for key in ("first", "also", "false"):
        yield from label[key]


def test_labels_name_codes_once() -> None:
    seen = {page.stem for page in (Path(__file__).parents[1] / "docs" / "patterns").glob("*.md")}
    for name, label in LABELS.items():
        assert set(codes(label)) <= seen, name
        assert not {*label["first"], *label["also"]} & set(label["false"]), name


@pytest.mark.data
def test_the_first_finding_is_right_and_nothing_above_low_is_false(recordings: Path) -> None:
    """One test: each report takes half a second, and two tests may run in two processes."""
    folder = recordings.parent / "gpu2"
    if not folder.is_dir():
        pytest.skip("the second set of recordings is not here")
    wrong, false = {}, {}
    for name, label in LABELS.items():
        ended = CliRunner().invoke(cli, ["analyze", str(folder / name), "--json", "-q"])
        report = json.loads(ended.stdout)
        judged = [*report["jobs"], *report["results"]][0]
        findings = [finding for finding in judged["findings"] if finding["severity"] != "note"]
        first = next((finding["code"] for finding in findings), "")
        if first not in label["first"] and (first or (label["first"] and not label.get("none_ok"))):
            wrong[name] = (first, label["first"])
        loud = [finding["code"] for finding in findings if finding["severity"] in ("medium", "high")]
        if told := [code for code in loud if code in label["false"]]:
            false[name] = told
    assert 1 - len(wrong) / len(LABELS) >= FIRST_RIGHT, wrong
    assert false == {}
