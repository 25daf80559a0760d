"""Real programs recorded: the label lies where the fault ran, and nothing else tells of it."""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchtriage.core.errors import MissingExtraError
from torchtriage.learn.dataset.recordings import DatasetItem, dataset_items
from torchtriage_benchmark.recording.plan import Item
from torchtriage_benchmark.recording.program_generator import programs
from torchtriage_benchmark.recording.record import record

ITEM = Item("0000", "hourglass", "train", False, 1, 7, "", 0, "0000", True)
FAULTS = [("LCH016", 0), ("SYN004", 60), ("CFG044", 0)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetItem]:
    """Return a clean recording and some faulty twins, by code."""
    pytest.importorskip("diffusers")
    folder = tmp_path_factory.mktemp("benchmark")
    items = [ITEM] + [
        replace(ITEM, id=f"{at:04d}", code=code, severity=severity) for at, (code, severity) in enumerate(FAULTS, 1)
    ]
    outcomes = record(items, folder)
    assert [outcome.failure for outcome in outcomes] == [""] * len(items)
    assert all(one.kept for one in record(items, folder))  # what is there is left alone
    return {item.code: item for item in dataset_items(folder)}


@pytest.mark.torch
def test_nothing_tells_of_the_marks(recorded: dict[str, DatasetItem]) -> None:
    for one in recorded.values():
        text = json.dumps(one.document())
        assert "tt:" not in text
        assert "torchtriage" not in text
        assert one.code == "" or one.code not in text
        events = one.document()["traceEvents"]
        frames = [e for e in events if e.get("cat") == "python_function"]
        outermost = {e["name"] for e in frames if e["args"]["Python parent id"] is None}
        assert len(outermost) == 1, outermost
        assert outermost.pop().startswith("train.py(")
        for word in ("runpy", "server", "child.py", "waitpid"):
            assert not any(word in e["name"] for e in frames), word
        for key in ("External id", "Python id"):
            numbers = {e["args"][key] for e in events if key in e.get("args", {})} - {0}
            assert numbers == set(range(1, len(numbers) + 1)), key


@pytest.mark.torch
def test_the_label_lies_where_the_fault_ran(recorded: dict[str, DatasetItem]) -> None:
    assert not recorded[""].faulty.any()
    for code, name in (("LCH016", "Optimizer.step#AdamW.step"), ("SYN004", "aten::isfinite")):
        one = recorded[code]
        spans = np.array(one.about["intervals_ns"])
        trace = one.trace
        rows = trace.matching(name).nonzero()[0]
        assert len(rows) >= 5
        inside = [((spans[:, 0] <= trace.start_ns[row]) & (trace.start_ns[row] < spans[:, 1])).any() for row in rows]
        assert all(inside)
        assert 0 < one.faulty.sum() < len(one.faulty)


@pytest.mark.torch
def test_each_rank_has_its_own_trace_and_label(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    program = Item("r0000", "hourglass", "train", False, 1, 7, "", 0, "r0000", False, "ranks")
    late = {"code": "COM036", "variant": "COM036-work", "severity": 180}
    items = [
        replace(program, id=f"r{number:04d}", twin=f"r{rank:04d}", rank=rank, **change)
        for number, (rank, change) in enumerate([(0, {}), (1, {}), (0, late), (1, late)])
    ]
    assert [one.failure for one in record(items, tmp_path)] == [""] * 4
    waiting, slow = list(dataset_items(tmp_path))[2:]
    for one in (waiting, slow):
        assert one.trace.matching("^DistributedDataParallel.forward").sum() >= 5
        assert 0 < one.faulty.sum() < len(one.faulty)
    spans_ns = np.diff(np.array(slow.about["intervals_ns"]))
    assert len(spans_ns) == 5
    assert (spans_ns >= 180e6).all()


@pytest.mark.torch
def test_what_is_compiled_is_split_where_the_label_says(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    program = Item("c0000", "gpt2", "infer", False, 4, 7, "", 0, "c0000", False, "compiled")
    broken = replace(program, id="c0001", code="CMP030", variant="CMP030-branch")
    assert [one.failure for one in record([program, broken], tmp_path)] == ["", ""]
    clean, split = dataset_items(tmp_path)
    region = "^Torch-Compiled Region"
    assert clean.trace.matching(region).sum() == 5
    assert split.trace.matching(region).sum() == 10
    assert len(split.about["intervals_ns"]) == 5
    assert not clean.faulty.any()


@pytest.mark.torch
def test_what_fails_or_hangs_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers")
    losses = {
        "no_such_name": "NameError: name 'no_such_name' is not defined",
        "time.sleep(600)": "ran longer than 45 s",
        "sys.exit(7)": "exit code 7: nothing said",
        "os.kill(os.getpid(), 9)": "exit code -9: nothing said",
        "os.kill(os.getppid(), 9)": "starts the recordings ended with exit code -9",
        "F.mse_loss(out, inputs['maps'])": "",
    }
    held, folder = tmp_path / "held", tmp_path / "benchmark"
    whole = programs()["hourglass"]
    # a lock that all processes of the script share, its loader's worker too
    lock = f"import fcntl, os, sys\nHELD = open({str(held)!r}, 'w')\nfcntl.flock(HELD, fcntl.LOCK_SH)"
    broken = {loss: replace(whole, loss=loss, define=f"{lock}\n{whole.define}") for loss in losses}
    monkeypatch.setattr("torchtriage_benchmark.recording.plan.programs", lambda _: broken)
    monkeypatch.setattr("torchtriage_benchmark.recording.record.programs", lambda _: broken)
    # others may keep the machine busy: how long the loader takes of a step is no matter here
    monkeypatch.setattr("torchtriage_benchmark.recording.record.MOST_WAITING", 1.0)
    items = [replace(ITEM, id=f"{at:04d}", family=loss, loader=True) for at, loss in enumerate(losses)]
    # the others take a tenth of that, but for a busy machine with nothing of torch in its cache
    failures = [one.failure for one in record(items, folder, timeout_s=45)]
    for failure, said in zip(failures, losses.values(), strict=True):
        assert failure.endswith(said)
        assert bool(failure) == bool(said), failure
    assert sorted(one.name for one in folder.iterdir()) == ["0005.json", "0005.ttcol"]
    with held.open() as file:
        until = time.monotonic() + 60
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until
                time.sleep(0.05)


def test_without_torch_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtriage_benchmark.recording.record.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="needs torch, transformers, diffusers"):
        record([ITEM], tmp_path)
