"""``run --memory``: a leak is found beside the recordings, and nothing else changes."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core.record.test_loop_finder import MODEL, recorded, run
from diagnose.runs.test_merge import cost, finding
from diagnose.runs.test_run_folder import LOOP, process
from memory.leaks.test_leak_watch import FakeCuda
from tests.report import forms

from torchtriage.api import traces
from torchtriage.core.finding import NotChecked
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.runs import analyze
from torchtriage.diagnose.runs.merge import with_leaks
from torchtriage.diagnose.runs.result import WatchedMemory
from torchtriage.diagnose.runs.run_folder import find_recordings, watched
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict_text import GROWTH_CERTAINTY
from torchtriage.memory.leaks import run_watch
from torchtriage.memory.leaks.leak_report import REPORT, SCHEMA, SNAPSHOT, findings
from torchtriage.memory.leaks.run_watch import LeakWatch
from torchtriage.report import json_report
from torchtriage.report import recorded as recorded_rows
from torchtriage.report.pages import trace as html_page

LEAK = {
    "kind": "growing list",
    "holder": "history",
    "root": "main() of train.py",
    "file": "/a/train.py",
    "line": 9,
    "function": "main",
    "unit": "items",
    "per_step": 1.0,
    "bytes_per_step": 4096.0,
    "since_step": 80,
    "found_step": 240,
}
SENTENCE = (
    "growing list `history` in main() of train.py grows by 1 item per step, 4.00 KiB per step"
    " since step 80; line 9 of train.py adds to it"
)
USED = "resident 300 MiB at first, 310 MiB at last, 320 MiB at most"


def left(
    out: Path, answer: str, *leaks: dict[str, object], pid: int = 1, rank: int | None = None, **more: object
) -> None:
    """Write what a watched process with a loop leaves."""
    process(out, pid, loop=LOOP, files=("light.json.gz",), rank=rank)
    report = {
        "schema": SCHEMA,
        "answer": answer,
        "n_steps": 400,
        "n_looks": 14,
        "leaks": leaks,
        "rss_first_bytes": 300 << 20,
        "rss_last_bytes": 310 << 20,
        "rss_why": "",
        "own_s": 0.1,
        "own_share": 0.002,
        "notes": [],
        "rss_peak_bytes": 320 << 20,
    }
    (out / f"process{pid}" / REPORT).write_text(json.dumps({**report, **more}))


# -- the report --------------------------------------------------------------------------------


def test_a_leak_is_a_finding_with_its_line_and_a_row_in_every_form(tmp_path: Path) -> None:
    left(tmp_path, "leak", LEAK)
    report = traces.analyze_run(tmp_path, command="train.py", exit_code=0)
    (result,) = report.results
    (leak,) = [one for one in result.findings if one.code == "MEM029"]
    assert leak.place.frame is not None
    assert (leak.place.frame.line, leak.place.frame.exact) == (9, True)
    assert (leak.message, leak.severity, leak.certainty) == (SENTENCE, "high", "certain")
    assert not result.healthy
    assert "MEM029" in result.checked
    assert "MEM029" not in {one.code for one in result.not_checked}
    memory = result.recorded and result.recorded.memory
    assert memory is not None
    assert memory.leaks == (SENTENCE,)
    assert json.loads(report.to_json())["results"][0]["recorded"]["memory"]["answer"] == "leak"
    assert json_report.decode(report.to_json())[0].recorded == result.recorded
    plain = " ".join(str(report).split())
    assert f"memory leak: {SENTENCE}; {USED}" in plain
    assert "growing list" in forms.traces_in_markdown(report.results)
    assert USED in html_page.render(report.results)


def test_no_leak_is_checked_and_too_early_is_not(tmp_path: Path) -> None:
    left(tmp_path, "no leak")
    (clean,) = traces.analyze_run(tmp_path).results
    assert "MEM029" in clean.checked
    assert clean.recorded is not None
    assert ("memory", f"no leak in 400 steps; {USED}") in recorded_rows.run(clean.recorded)
    (tmp_path / "early").mkdir()
    left(tmp_path / "early", "too early", n_steps=60, n_looks=1)
    (early,) = traces.analyze_run(tmp_path / "early").results
    assert "MEM029" not in early.checked
    assert "MEM029" in {one.code for one in early.not_checked}
    assert "too early to tell whether it leaks: 60 steps and 1 look" in str(early)


def test_the_device_its_snapshot_and_what_was_not_looked_at_are_named(tmp_path: Path) -> None:
    peaks = {"allocated_peak_bytes": 2 << 30, "reserved_peak_bytes": 3 << 30}
    left(tmp_path, "no leak", notes=["not all names could be walked in time"], **peaks)
    (tmp_path / "process1" / SNAPSHOT).write_bytes(b"snapshot")
    (one,) = find_recordings(tmp_path)
    memory = watched(one)
    assert memory is not None
    (result,) = traces.analyze_run(tmp_path).results
    assert result.recorded is not None
    rows = dict(recorded_rows.run(result.recorded))
    assert rows["memory"].endswith("; on the device 2.00 GiB allocated at most, 3.00 GiB reserved")
    assert rows["note"] == "not all names could be walked in time"
    assert rows["snapshot"] == f"torchtriage memory {tmp_path / 'process1' / SNAPSHOT}"


def test_why_memory_was_not_watched_is_said(tmp_path: Path) -> None:
    problem = "No module named 'numpy' in the script's interpreter"
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",), memory_problem=problem)
    (result,) = traces.analyze_run(tmp_path).results
    assert result.recorded is not None
    assert dict(recorded_rows.run(result.recorded))["memory"] == f"not watched: {problem}"
    assert "MEM029" in {one.code for one in result.not_checked}


@pytest.mark.parametrize(
    ("answers", "found", "checked"),
    [(("no leak", "leak"), ((1,),), True), (("no leak", "too early"), (), False), (("no leak", "no leak"), (), True)],
)
def test_a_leak_of_one_rank_is_the_jobs(
    answers: tuple[str, str], found: tuple[object, ...], checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, answer in enumerate(answers):
        left(tmp_path, answer, *([LEAK] * (answer == "leak")), pid=rank + 1, rank=rank)
    missing = NotChecked("MEM029", "memory-growth", ("memory",), "record it")
    nothing: dict[str, Any] = {one.name: () for one in fields(JobResult)}
    job = JobResult(**{**nothing, "not_checked": (missing,), "healthy": True, "verdict": ("", "Nothing found.", "")})
    monkeypatch.setattr(analyze, "_jobs", lambda *_: (job,))
    (told,) = traces.analyze_run(tmp_path).jobs
    assert tuple(one.ranks.ranks for one in told.findings if one.ranks) == found
    assert ("MEM029" in told.checked) is checked
    assert bool(told.not_checked) is not checked
    assert told.healthy is not bool(found)
    assert told.verdict[1].startswith(f"Memory grows from step to step (MEM029): {SENTENCE}" if found else "Nothing")


@pytest.mark.parametrize("growth", ["alone", "with its cause"])
def test_memory_that_surely_grows_in_a_rank_is_the_jobs_without_a_watch(
    growth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = finding("MEM029", cost(1, 2), certainty="certain")
    if growth == "with its cause":
        taken = {"evidence": {GROWTH_CERTAINTY: "certain"}, "also_explains": ("MEM029",)}
        grows = replace(finding("CFG043", None), **taken)
    for rank in (0, 1):
        process(tmp_path, rank + 1, loop=LOOP, files=("light.json.gz",), rank=rank)
    missing = NotChecked("MEM029", "memory-growth", ("memory",), "record it")
    nothing: dict[str, Any] = {one.name: () for one in fields(JobResult)}
    job = JobResult(**{**nothing, "not_checked": (missing,), "healthy": True, "verdict": ("", "Nothing found.", "")})
    monkeypatch.setattr(analyze, "_jobs", lambda *_: (job,))
    monkeypatch.setattr(
        analyze, "with_samples", lambda result, _, facts, *__: (replace(result, findings=(grows,)), facts)
    )
    (told,) = traces.analyze_run(tmp_path).jobs
    assert [(found.code, found.message, found.cost) for found in told.findings] == [(grows.code, "what was seen", None)]
    assert told.verdict[1] == f"Memory grows from step to step ({grows.code}): what was seen."
    assert not told.healthy


def test_a_report_that_was_cut_is_none(tmp_path: Path) -> None:
    left(tmp_path, "leak", LEAK)
    file = tmp_path / "process1" / REPORT
    file.write_bytes(file.read_bytes()[:200])
    (result,) = traces.analyze_run(tmp_path).results
    assert result.recorded is not None
    assert result.recorded.memory is None


def test_a_leak_takes_the_place_of_what_a_few_steps_showed(tmp_path: Path) -> None:
    left(tmp_path, "leak", LEAK)
    (one,) = find_recordings(tmp_path)
    assert one.memory is not None
    found = findings(one.memory)
    before = replace(traces.analyze_run(tmp_path).results[0], findings=(), checked=())
    missing = NotChecked("MEM029", "memory-growth", ("memory",), "record it")
    unlike: Result = replace(before, not_checked=(missing,))
    assert [one.code for one in with_leaks(unlike, one.memory, found).findings] == ["MEM029"]
    # skipped by the user: neither checked nor not checked
    skipped = replace(before, not_checked=())
    assert with_leaks(skipped, one.memory, found) == skipped
    assert with_leaks(unlike, None, ()) == unlike


def test_a_result_without_a_watch_says_nothing_of_memory(tmp_path: Path) -> None:
    process(tmp_path, 1, loop=LOOP, files=("light.json.gz",))
    (result,) = traces.analyze_run(tmp_path).results
    assert result.recorded is not None
    assert result.recorded.memory is None
    assert "memory" not in dict(recorded_rows.run(result.recorded))


# -- in the script's process -------------------------------------------------------------------


def test_nothing_is_looked_at_while_times_are_taken(tmp_path: Path) -> None:
    watch = LeakWatch(tmp_path)
    for _ in range(100):
        watch.step(recorded=False)
    watch.close()
    told = json.loads((tmp_path / REPORT).read_text())
    assert (told["n_steps"], told["n_looks"], told["answer"]) == (100, 0, "too early")
    assert told["rss_peak_bytes"] >= told["rss_last_bytes"] > 0


def test_the_report_is_there_from_the_first_step_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(run_watch, "perf_counter", lambda: now[0])
    watch = LeakWatch(tmp_path)
    seen = []
    for _ in range(10):
        watch.step(recorded=True)
        seen.append(json.loads((tmp_path / REPORT).read_text())["n_steps"])
        now[0] += 1.0
    watch.close()
    assert seen == [1, 1, 1, 4, 4, 4, 7, 7, 7, 10]


@pytest.mark.parametrize("own", [False, True])
def test_a_snapshot_is_left_unless_the_program_records_its_own(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(0)
    cuda.recording = own
    torch = SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_isHistoryEnabled=lambda: cuda.recording))
    monkeypatch.setitem(sys.modules, "torch", torch)
    watch = LeakWatch(tmp_path)
    for _ in range(20):
        watch.step(recorded=False)
    assert cuda.recording is own
    watch.step(recorded=True)
    assert cuda.recording
    for _ in range(60):
        watch.step(recorded=True)
    watch.close()
    assert (tmp_path / SNAPSHOT).exists() is not own
    assert cuda.recording is own
    notes = json.loads((tmp_path / REPORT).read_text())["notes"]
    assert ("no snapshot: the program records the allocator's history itself" in notes) is own


def test_a_snapshot_is_left_where_the_script_ends_before_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    watch = LeakWatch(tmp_path)
    watch.step(recorded=True)
    watch.close()
    assert (tmp_path / SNAPSHOT).exists()
    assert not cuda.recording


# -- whole scripts -----------------------------------------------------------------------------

LEAKING = MODEL.replace("return loss.item()", "kept.append(loss); return loss.item()")
LEAKING = "kept = []\n" + LEAKING
LEAK_LINE = LEAKING[: LEAKING.index("kept.append")].count("\n") + 1
# many more than recordings and patience take: a busy machine records for longer, and looks more seldom
N_STEPS = 1500
MANY = f"losses = [step() for _ in range({N_STEPS})]\nprint(losses)\n"


def memory_of(folder: Path) -> WatchedMemory:
    (one,) = find_recordings(folder / "out")
    seen = watched(one)
    assert seen is not None
    return seen


@pytest.mark.torch
def test_a_leaking_script_is_found_with_its_line_and_ends_as_it_would(tmp_path: Path) -> None:
    source = LEAKING + MANY + "raise ValueError('wrong')\n"
    plain = run(tmp_path, source, watched=False, code=1)
    out = run(tmp_path, source, "--memory", "--json", "-o", "report.json", code=1)
    assert out.stdout == plain.stdout
    assert out.stderr == plain.stderr + f"wrote {tmp_path / 'report.json'}\n"
    report = json.loads((tmp_path / "report.json").read_text())
    facts = recorded(report)
    assert facts["memory"]["answer"] == "leak"
    assert facts["memory"]["n_steps"] > N_STEPS - 20
    assert facts["light_ms"] > 0
    assert facts["heavy_ms"] > 0
    (leak,) = [one for one in report["results"][0]["findings"] if one["code"] == "MEM029"]
    frame = leak["place"]["frame"]
    assert (Path(frame["file"]).name, frame["line"]) == ("train.py", LEAK_LINE)
    assert "`kept`" in leak["message"]
    assert "per step" in leak["message"]


@pytest.mark.torch
def test_a_healthy_script_has_no_leak(tmp_path: Path) -> None:
    # looks may take a share of the time: steps that wait leave enough for them on a busy machine, too
    waiting = f"import time\nfor n in range({N_STEPS}):\n    step()\n    time.sleep(0.003)\n"
    run(tmp_path, MODEL + waiting, "--memory", "-o", "report.txt")
    seen = memory_of(tmp_path)
    assert (seen.answer, seen.leaks) == ("no leak", ())
    assert seen.rss_peak_bytes >= seen.rss_last_bytes > 1 << 20
    assert "memory    no leak in 1,4" in (tmp_path / "report.txt").read_text()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "code"),
    [("raise KeyboardInterrupt", -signal.SIGINT), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_what_was_known_survives_the_end(how: str, code: int, tmp_path: Path) -> None:
    ending = f"import os, signal\nfor n in range({N_STEPS}):\n    step()\n{how}\n"
    run(tmp_path, LEAKING + ending, "--memory", "-o", "report.txt", code=code)
    assert memory_of(tmp_path).answer == "leak"


@pytest.mark.torch
def test_ending_after_the_recordings_is_too_early_for_a_leak(tmp_path: Path) -> None:
    slow = MANY.replace("step()", "(step(), time.sleep(0.1))")
    run(tmp_path, LEAKING + "import time\n" + slow, "--memory", "--exit-after", "-o", "report.txt")
    seen = memory_of(tmp_path)
    assert seen.answer == "too early"
    assert seen.n_steps < N_STEPS - 10


@pytest.mark.torch
def test_an_inference_loop_is_watched_too(tmp_path: Path) -> None:
    source = MODEL.replace("optimizer =", "unused = lambda:") + (
        "import time\nouts = []\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n        time.sleep(0.01); return model(x)\n"
        "net = Net()\n"
        "for n in range(700):\n    outs.append(net(torch.randn(16, 32)))\n"
    )
    run(tmp_path, source, "--memory", "-o", "report.txt")
    seen = memory_of(tmp_path)
    assert seen.answer == "leak"
    assert "`outs`" in seen.leaks[0]


@pytest.mark.torch
def test_children_go_on_unwatched(tmp_path: Path) -> None:
    source = LEAKING + (
        "import os, sys, threading\nfor n in range(200):\n    step()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    [step() for n in range(200)]\n"
        "    print(threading.active_count(), sys.gettrace(), flush=True); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "for n in range(60):\n    step()\n"
    )
    plain = run(tmp_path, source, watched=False)
    out = run(tmp_path, source, "--memory", "-o", "report.txt")
    assert out.stdout == plain.stdout == "1 None\n7\n"
    assert memory_of(tmp_path).n_steps == 259
    assert len(list((tmp_path / "out").glob(f"*/{REPORT}"))) == 1
