"""``tt.profile``: a block is recorded, and its report is there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import torchtriage as tt
from torchtriage.core.record.profiler_capture import profiler_running


@pytest.fixture
def work() -> Callable[[], None]:
    import torch

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(32, 32) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()

    return step


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(tt.TriageError, match=r"torchtriage\[torch\]"), tt.profile():
        pass
    with pytest.raises(tt.TriageError, match=r"torchtriage\[torch\]"):
        tt.sample("anywhere")


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"steps": "6"}, {"steps": 2.5}, {"steps": True}, {"warmup": -1}, {"warmup": None}]
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(tt.UsageError, match="expected"):
        tt.profile(**wrong)  # type: ignore[arg-type]


def test_a_report_before_the_block_is_refused() -> None:
    with pytest.raises(tt.UsageError, match="not entered"):
        _ = tt.profile().report


@pytest.mark.torch
def test_a_loop_is_recorded_and_judged(work: Callable[[], None], tmp_path: Path) -> None:
    with tt.profile(tmp_path, steps=5) as p:
        while not p.done:
            work()
            p.step()
    assert p.recording["light"]["steps"] == 5
    assert p.recording["ended"] == "complete"
    report = p.report
    assert isinstance(report, tt.Report)
    assert report is p.report
    assert report.recorded.file == __file__
    assert report.recorded.step_ms > 0
    found = {one.code: one for one in report.findings}
    assert found["LCH016"].place.frame.file.endswith("test_profile.py")
    assert "torchtriage report" in p._repr_html_()


@pytest.mark.torch
def test_an_earlier_recording_in_the_folder_is_replaced(work: Callable[[], None], tmp_path: Path) -> None:
    for _ in range(2):
        with tt.profile(tmp_path, steps=1, warmup=0) as p:
            while not p.done:
                work()
                p.step()
    assert p.report.recorded.n_steps == p.recording["steps_seen"]
    assert len(list(tmp_path.glob("process-*.json"))) == 1
    written = json.loads((tmp_path / "rank0" / "recording.json").read_text(encoding="utf-8"))
    assert written["before"] == p.recording["before"]


@pytest.mark.torch
def test_a_block_without_steps_is_one_window(work: Callable[[], None]) -> None:
    with tt.profile(steps=None) as p:
        work()
    assert "one window" in str(p.report)
    out = p.out
    assert out.exists()
    del p
    assert not out.exists()  # nobody asked for the recordings to be kept


@pytest.mark.torch
def test_a_block_that_another_thread_stops_is_kept(work: Callable[[], None]) -> None:
    p = tt.profile(steps=None)
    p.start()
    work()
    thread = threading.Thread(target=p.stop)
    thread.start()
    thread.join()
    assert "one window" in str(p.report)
    assert not profiler_running()


@pytest.mark.torch
def test_recordings_outlive_a_forked_child() -> None:
    code = """
import os, sys, torch, torchtriage as tt
p = tt.profile()
if os.fork() == 0:
    sys.exit()
os.wait()
assert p.out.exists()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.torch
def test_what_was_not_recorded_is_said(work: Callable[[], None]) -> None:
    with tt.profile() as p:
        work()
    with pytest.raises(tt.UsageError, match="no step was marked"):
        _ = p.report
    assert "no step was marked" in p._repr_html_()
    with tt.profile() as p:
        for _ in range(3):
            work()
            p.step()
        with pytest.raises(tt.UsageError, match="after it"):
            _ = p.report
    with pytest.raises(tt.UsageError, match="after 3 steps"):
        _ = p.report
    with pytest.raises(tt.UsageError, match="has recorded"):
        p.start()


@pytest.mark.torch
def test_what_the_block_raises_goes_on_and_the_recording_stays(work: Callable[[], None], tmp_path: Path) -> None:
    def training(p: tt.Profile) -> None:
        while p.recorder.state != "heavy":
            work()
            p.step()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), tt.profile(tmp_path, warmup=0) as p:
        training(p)
    assert p.recording["ended"] == "the block raised ZeroDivisionError"
    assert p.recording["light"]["steps"] == 6
    assert p.report.summary is not None


@pytest.mark.torch
def test_a_rank_that_cannot_be_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "x")
    with tt.profile(tmp_path, steps=None):
        pass
    assert (tmp_path / "rank0" / "recording.json").exists()


@pytest.mark.torch
def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tt.UsageError, match="cannot be written"), tt.profile(tmp_path / "file"):
        pass
