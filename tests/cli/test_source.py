"""``torchtriage analyze`` with the source of what was recorded at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from torchtriage.api import traces

Run = Callable[..., Result]

DATA = traces.sample_path().parent
LINE = "            optimizer.step()"


@pytest.fixture(scope="module")
def sample() -> str:
    return str(traces.sample_path())


def test_a_finding_ends_at_its_line_and_shows_it(run: Run, sample: str) -> None:
    text = run("analyze", sample, "-v", "--source", str(DATA)).stdout
    number = DATA.joinpath("record_sample.py").read_text().split("\n").index(LINE) + 1
    assert f"record_sample.py:{number} in train\n" in text
    assert f"{number} | {LINE.strip()}\n" in text
    assert "blocks.0.attention" in text


def test_without_sources_lines_are_as_recorded(run: Run, sample: str) -> None:
    text = run("analyze", sample, "--source", str(DATA), "--no-source").stdout
    assert text == run("analyze", sample).stdout
    text = run("analyze", sample, "-v").stdout
    assert " in train (the function's line, not the call's)" in " ".join(text.split())
    assert LINE.strip() not in text


def test_what_is_passed_on_holds_no_source_text(run: Run, sample: str) -> None:
    given = ("analyze", sample, "--source", str(DATA))
    for form in ("--json", "--sarif", "--markdown"):
        assert LINE.strip() not in run(*given, form).stdout
    frames = [
        finding["place"]["frame"] for finding in json.loads(run(*given, "--json").stdout)["results"][0]["findings"]
    ]
    exact = [frame for frame in frames if frame and frame["exact"]]
    assert exact
    assert all(one["lines"] == [one["line"]] and one["called"] for one in exact)


def test_a_page_shows_the_line(run: Run, sample: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("analyze", sample, "--source", str(DATA), "--html", str(page))
    assert LINE.strip() in page.read_text()
    run("analyze", sample, "--html", str(page), "--no-source")
    assert LINE.strip() not in page.read_text()
