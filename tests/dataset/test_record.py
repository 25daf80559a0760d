"""Real programs recorded: the label lies where the fault ran, and nothing else tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchtriage.dataset.items import Kept, kept
from torchtriage.dataset.plan import Item
from torchtriage.dataset.record import record
from torchtriage.dataset.script import programs
from torchtriage.errors import MissingExtraError

ITEM = Item("0000", "hourglass", "train", False, 1, 7, "", 0, "0000", True)
FAULTS = [("LCH016", 0), ("SYN004", 4), ("CFG044", 0)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kept]:
    """Return a clean recording and some faulty twins, by code."""
    pytest.importorskip("diffusers")
    folder = tmp_path_factory.mktemp("benchmark")
    items = [ITEM] + [
        replace(ITEM, id=f"{at:04d}", code=code, severity=severity)
        for at, (code, severity) in enumerate(FAULTS, 1)
    ]
    outcomes = record(items, folder)
    assert [one.failure for one in outcomes] == [""] * len(items)
    assert all(one.kept for one in record(items, folder))  # what is there is left alone
    return {one.code: one for one in kept(folder)}


@pytest.mark.torch
def test_nothing_tells_of_the_marks(recorded: dict[str, Kept]) -> None:
    for one in recorded.values():
        text = json.dumps(one.document())
        assert "tt:" not in text
        assert "torchtriage" not in text
        assert one.code == "" or one.code not in text
        events = one.document()["traceEvents"]
        for key in ("External id", "Python id"):
            numbers = {e["args"][key] for e in events if key in e.get("args", {})} - {0}
            assert numbers == set(range(1, len(numbers) + 1)), key


@pytest.mark.torch
def test_the_label_lies_where_the_fault_ran(recorded: dict[str, Kept]) -> None:
    assert not recorded[""].faulty.any()
    for code, name in (("LCH016", "Optimizer.step#AdamW.step"), ("SYN004", "aten::isfinite")):
        one = recorded[code]
        spans = np.array(one.about["intervals_ns"])
        trace = one.trace
        rows = trace.matching(name).nonzero()[0]
        assert len(rows) >= 5
        inside = [
            ((spans[:, 0] <= trace.start_ns[row]) & (trace.start_ns[row] < spans[:, 1])).any()
            for row in rows
        ]
        assert all(inside)
        assert 0 < one.faulty.sum() < len(one.faulty)


@pytest.mark.torch
def test_what_fails_or_hangs_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("diffusers")
    (outcome,) = record([ITEM], tmp_path, timeout_s=0.5)
    assert outcome.failure == "ran longer than 0.5 s"
    broken = {"hourglass": replace(programs()["hourglass"], loss="no_such_name")}
    monkeypatch.setattr("torchtriage.dataset.plan.programs", lambda: broken)
    (outcome,) = record([ITEM], tmp_path)
    assert "NameError: name 'no_such_name' is not defined" in outcome.failure
    assert not list(tmp_path.iterdir())


def test_without_torch_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtriage.dataset.record.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="needs torch, transformers, diffusers"):
        record([ITEM], tmp_path)
