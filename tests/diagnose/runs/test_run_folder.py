"""What a run left in its folder, and what is said where that is nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from torchtriage.api import traces
from torchtriage.core.errors import TraceFormatError
from torchtriage.diagnose.ranks.workers import AnalyzedFiles, analyze_files
from torchtriage.diagnose.runs import analyze
from torchtriage.diagnose.runs.run_folder import all_recorded, find_recordings, recorded, why_nothing
from torchtriage.diagnose.verdict.options import Options

LOOP = {"boundary": "optimizer", "name": "SGD", "file": "/a/train.py", "line": 7}
LOOP |= {"function": "main", "how": "one step of SGD"}


def process(out: Path, pid: int, *, files: tuple[str, ...] = (), **facts: Any) -> None:
    """Write what one watched process leaves."""
    folder = f"process{pid}"
    known = {"pid": pid, "rank": None, "loop": None, "folder": folder, "n_optimizer_steps": 0}
    (out / f"process-{pid}.json").write_text(json.dumps({**known, **facts}))
    if facts.get("loop"):
        (out / folder).mkdir()
        measured = {
            "steps_seen": 40,
            "queued": False,
            "before": {"step_ns": [2_000_000, 4_000_000], "settled": True},
            "after": {"step_ns": [3_000_000], "settled": True},
            "light": {"step_ns": [3_300_000] * 5 + [90_000_000]},
            "heavy": None,
            "environment": {"torch": "2.13"},
        }
        (out / folder / "recording.json").write_text(json.dumps(measured))
    for name in files:
        shutil.copy(traces.sample_path(), out / folder / name)


def test_times_have_no_outliers_and_one_denominator(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",))
    (one,) = find_recordings(tmp_path)
    facts = recorded(one, "train.py", 0)
    assert (facts.step_ms, facts.n_timed, facts.settled) == (3.0, 3, True)
    assert facts.light_ms == pytest.approx(3.3)
    assert facts.heavy_ms is None
    assert (facts.file, facts.line, facts.function) == ("/a/train.py", 7, "main")


def test_recorded_means_both_recordings_of_every_loop(tmp_path: Path) -> None:
    assert not all_recorded(tmp_path)
    process(tmp_path, 1)
    assert not all_recorded(tmp_path)
    process(tmp_path, 2, loop=LOOP, files=("light.json.gz", "heavy.json.gz"))
    assert all_recorded(tmp_path)
    process(tmp_path, 3, loop=LOOP, files=("light.json.gz",))
    assert not all_recorded(tmp_path)


def test_one_recording_alone_is_judged(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",))
    report = traces.analyze_run(tmp_path, command="train.py", exit_code=3)
    (result,) = report.results
    assert result.recorded is not None
    assert result.recorded.exit_code == 3
    text = str(report)
    assert "\n\nran       train.py (ended with exit code 3)\nloop      one step of SGD, train.py:7" in text
    assert "3.00 ms without the profiler (mean of 3 steps); 3.30 ms recorded" in text


def test_a_run_that_died_and_left_no_stacks_is_not_called_healthy(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",), sampled=True)
    (result,) = traces.analyze_run(tmp_path, exit_code=-11).results
    notes = {note.code: note.message for note in result.notes}
    assert notes["ended-by-signal"].startswith("the script ended by SIGSEGV")
    assert notes["no-stacks"].endswith("the process ended before they were written")
    assert not result.healthy
    assert "SIGSEGV" in result.verdict[2]
    (tmp_path / "samples-1.json").write_text("{")
    (result,) = traces.analyze_run(tmp_path, exit_code=-15).results
    notes = {note.code: note.message for note in result.notes}
    assert notes["no-stacks"].endswith("samples-1.json is damaged")
    assert "ended-by-signal" not in notes


def test_a_window_of_a_script_that_failed_is_not_called_healthy(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",))
    path = tmp_path / "process-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loop": None}))
    (result,) = traces.analyze_run(tmp_path, exit_code=1).results
    notes = {note.code: note.message for note in result.notes}
    assert notes["failed-early"] == "the script ended with exit code 1 before a step was recorded"
    assert not result.healthy
    (result,) = traces.analyze_run(tmp_path, exit_code=0).results
    assert "failed-early" not in {note.code for note in result.notes}


def test_a_script_that_fails_before_its_first_step_is_not_called_another_file(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP)
    trace = b'{"traceEvents": [{"ph": "i", "name": "x", "cat": "Trace", "ts": 1}]}'
    (tmp_path / "process1" / "light.json.gz").write_bytes(gzip.compress(trace))
    with pytest.raises(TraceFormatError, match="ended with exit code 1 before a step was recorded"):
        traces.analyze_run(tmp_path, exit_code=1)


def test_times_that_changed_over_the_recordings_are_both_told(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",))
    path = tmp_path / "process1" / "recording.json"
    measured = json.loads(path.read_text())
    measured["after"]["step_ns"] = [4_500_000]
    path.write_text(json.dumps(measured))
    text = " ".join(str(traces.analyze_run(tmp_path)).split())
    assert "steps): 3.00 ms before the recordings, 4.50 ms after them; 3.30 ms" in text


def test_a_job_needs_collectives_and_two_processes_alone_are_two_results(tmp_path: Path) -> None:
    for pid in (1, 2):
        process(tmp_path, pid, loop=LOOP, files=("light.json.gz", "heavy.json.gz"))
    report = traces.analyze_run(tmp_path)
    assert report.jobs == ()
    assert len(report.results) == 2


def test_a_job_is_scaled_to_the_step_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (1, 2):
        process(tmp_path, pid, loop=LOOP, files=("light.json.gz",))
    asked = []

    def watched(paths: list[str], options: Options, **given: bool) -> AnalyzedFiles:
        asked.append(options.step_ms)
        return analyze_files(paths, options, **given)

    monkeypatch.setattr(analyze, "analyze_files", watched)
    shown = [result.recorded.step_ms for result in traces.analyze_run(tmp_path).results]
    assert asked == [pytest.approx(sum(shown) / 2)]


def said(out: Path) -> str:
    return " - ".join(why_nothing(out, find_recordings(out)))


def test_no_torch(tmp_path: Path) -> None:
    assert "the script never imported torch" in said(tmp_path)
    assert "ended with exit code 2 before it imported torch" in why_nothing(tmp_path, [], 2)[0]
    with pytest.raises(TraceFormatError, match="never imported torch"):
        traces.analyze_run(tmp_path, command="train.py")


def test_no_loop(tmp_path: Path) -> None:
    process(tmp_path, 1)
    assert "no loop was found" in said(tmp_path)
    for exit_code in (1, 255):
        failed, hint = why_nothing(tmp_path, find_recordings(tmp_path), exit_code)
        assert failed.startswith(f"the script ended with exit code {exit_code} before a step was recorded: no loop was")
        assert "mark the steps yourself" in hint
    assert "no loop was found" in why_nothing(tmp_path, find_recordings(tmp_path), 130)[0]  # by Ctrl-C


def test_few_steps(tmp_path: Path) -> None:
    process(tmp_path, 1, n_optimizer_steps=2)
    assert "ended after 2 optimizer steps" in said(tmp_path)


def test_ended_before_the_recordings(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP)
    assert "the loop was over before any step was recorded" in said(tmp_path)


def test_the_folder_was_removed(tmp_path: Path) -> None:
    assert "the folder of the recordings is gone" in said(tmp_path / "out")


def test_another_profiler(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP)
    (tmp_path / "process1" / "recording.json").write_text('{"ended": "the script profiles itself"}')
    assert "nothing was recorded: the script profiles itself" in said(tmp_path)


def test_a_failing_profiler(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP)
    facts = {"ended": "complete", "failures": {"OSError: no space": 2}}
    (tmp_path / "process1" / "recording.json").write_text(json.dumps(facts))
    assert "nothing was recorded: OSError: no space" in said(tmp_path)


def test_a_full_disk_holds_no_message(tmp_path: Path) -> None:
    (tmp_path / "errors-1.txt").write_text("")
    assert "the recordings could not be written - is the disk full?" in said(tmp_path)


def test_our_own_failure(tmp_path: Path) -> None:
    (tmp_path / "errors-1.txt").write_text("Traceback\nKeyError: 'x'\n")
    assert said(tmp_path).startswith("watching failed: KeyError: 'x' - report it with ")


def test_half_written_files_are_no_failure(tmp_path: Path) -> None:
    (tmp_path / "process-1.json").write_text('{"pid": 1, "lo')
    (tmp_path / "process-2.json").write_text("[]")
    assert len(find_recordings(tmp_path)) == 2
    assert "no loop was found" in said(tmp_path)
    with pytest.raises(TraceFormatError, match="no loop was found"):
        traces.analyze_run(tmp_path)
