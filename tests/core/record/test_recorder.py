"""The recorder: what it leaves on disk, and that a loop never notices it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchtriage.core import machine
from torchtriage.core.record import environment, profiler_capture, recorder, timing
from torchtriage.core.record.profiler_capture import Capture
from torchtriage.core.record.recorder import Recorder, RecordPlan

QUICK = RecordPlan(warmup=2, timing_steps=4, min_timing_s=0.0, max_timing_steps=20, light=3, heavy=2)


# -- step times, without torch -----------------------------------------------------------------


def test_times_with_a_trend_have_not_settled() -> None:
    assert not timing.settled([35, 50, 72, 96, 96, 96])  # a queue that fills
    assert timing.settled([96, 35, 96, 97, 96, 96])
    assert not timing.settled([96, 96])


def test_mean_step_leaves_out_an_evaluation_but_no_wait_for_the_device() -> None:
    times = [10, 10, 10, 10, 100]
    assert timing.step_wall_ns(times, all_steps=False) == 10
    assert timing.step_wall_ns(times, all_steps=True) == 28
    assert timing.step_wall_ns([], all_steps=True) is None


# -- with torch --------------------------------------------------------------------------------


@pytest.fixture
def work() -> Callable[[], float]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def run(one: Recorder, work: Callable[[], object], most: int = 200) -> int:
    for n in range(most):
        if one.done:
            return n
        work()
        one.step()
    return most


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recording.json").read_text(encoding="utf-8"))


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def steps(path: Path) -> list[str]:
    names = (one.get("name", "") for one in events(path) if one.get("ph") == "X")
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


@pytest.mark.torch
def test_a_recording_that_grows_ends_with_its_step(tmp_path: Path, work: Callable[[], float]) -> None:
    one = Recorder(tmp_path, replace(QUICK, light=50, heavy=0))
    for _ in range(100):
        work()
        one.step()
        if one.state == "light" and one.capturing:
            one.cut_short()
    facts = read(tmp_path)
    assert facts["ended"] == "complete"
    assert facts["light"]["steps"] == 1
    assert facts["light"]["whole"]


@pytest.mark.torch
def test_a_loop_is_timed_and_recorded_twice(work: Callable[[], float], tmp_path: Path) -> None:
    done = []
    one = Recorder(tmp_path, QUICK, boundary="a mark", on_done=lambda: done.append(1))
    states = {one.state}

    def watched() -> None:
        states.add(one.state)
        work()

    run(one, watched)
    assert done == [1]
    assert states == {"warm-up", "timing", "light", "heavy", "timing again"}
    assert one.state == "off"
    facts = read(tmp_path)
    assert facts["schema"] == recorder.SCHEMA
    assert facts["ended"] == "complete"
    assert facts["boundary"] == "a mark"
    assert facts["failures"] == {}
    assert facts["light"]["steps"] == len(facts["light"]["step_ns"]) == 3
    assert facts["heavy"]["steps"] == len(facts["heavy"]["step_ns"]) == 2
    assert facts["before"]["step_ns"]
    assert facts["after"]["step_ns"]
    assert facts["unprofiled_ns"] > 0
    assert len(steps(tmp_path / "light.json.gz")) == 3
    assert len(steps(tmp_path / "heavy.json.gz")) == 2
    # nothing half written is left
    assert sorted(one.name for one in tmp_path.iterdir()) == ["heavy.json.gz", "light.json.gz", "recording.json"]


@pytest.mark.torch
def test_who_looks_is_told_when_stacks_are_recorded(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    one = Recorder(tmp_path / "well", QUICK, on_stacks=lambda on: told.append((on, one.state)))
    run(one, work)
    heavy = told.index((True, "heavy"))
    assert [on for on, _ in told].count(True) == 1
    assert (False, "heavy") in told[heavy:]

    def failing(self: object) -> None:
        raise RuntimeError("it cannot start")

    monkeypatch.setattr(profiler_capture.Capture, "start", failing)
    states: list[bool] = []
    run(Recorder(tmp_path / "ill", QUICK, on_stacks=states.append), work)
    assert states[-1] is False


@pytest.mark.torch
def test_no_recording_begins_where_another_has_just_ended(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a range that is open there would end in the memory of the one that is gone
    at: list[tuple[str, int]] = []
    start, stop = Capture.start, Capture.stop
    one = Recorder(tmp_path, replace(QUICK, early_light=1, early_heavy=1))
    monkeypatch.setattr(Capture, "start", lambda self: (at.append(("start", one.steps_seen)), start(self)))
    monkeypatch.setattr(Capture, "stop", lambda self, **how: (at.append(("stop", one.steps_seen)), stop(self, **how)))
    run(one, work)
    assert [what for what, _ in at] == ["start", "stop"] * 4
    assert all(begun > ended for (_, ended), (_, begun) in zip(at[1::2], at[2::2], strict=False))


@pytest.mark.torch
def test_steps_of_the_trace_are_those_of_the_loop(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, RecordPlan(warmup=2, timing_steps=0, light=2, heavy=1))
    run(one, work)
    # warm-up ends with the third call; the step after it warms the profiler up
    assert steps(tmp_path / "light.json.gz") == ["ProfilerStep#4", "ProfilerStep#5"]
    assert steps(tmp_path / "heavy.json.gz") == ["ProfilerStep#8"]  # not where the light one ends


@pytest.mark.torch
def test_heavy_has_shapes_and_stacks_and_light_has_not(work: Callable[[], float], tmp_path: Path) -> None:
    run(Recorder(tmp_path, QUICK), work)
    light, heavy = (events(tmp_path / f"{name}.json.gz") for name in ("light", "heavy"))
    assert any("Input Dims" in one.get("args", {}) for one in heavy)
    assert any(one.get("cat") == "python_function" for one in heavy)
    assert not any("Input Dims" in one.get("args", {}) for one in light)
    assert not any(one.get("cat") == "python_function" for one in light)


@pytest.mark.torch
def test_results_are_the_same_with_and_without(tmp_path: Path) -> None:
    code = """
import random, sys, torch
torch.set_num_threads(1); torch.manual_seed(1); random.seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
if sys.argv[1:]:
    from torchtriage.core.record.recorder import RecordPlan, Recorder
    one = Recorder(sys.argv[1], RecordPlan(warmup=2, timing_steps=4, min_timing_s=0, max_timing_steps=20))
for n in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8) * random.random()).square().mean()
    loss.backward(); optimizer.step()
    if sys.argv[1:]:
        one.step()
import os
print(loss.item().hex(), random.random(), [name for name in os.environ if "KINETO" in name])
"""
    told = [
        subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True)
        for args in ([], [str(tmp_path)])
    ]
    assert told[0].stdout == told[1].stdout
    assert told[1].stderr == b""  # Kineto's lines are not the script's
    assert (tmp_path / "heavy.json.gz").exists()


@pytest.mark.torch
def test_what_ends_early_keeps_its_whole_steps(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, RecordPlan(warmup=0, timing_steps=0, light=5))
    for _ in range(4):  # 1 begins, 1 warms up, 2 whole ones
        work()
        one.step()
    work()
    one.close("it raised")
    facts = read(tmp_path)
    assert facts["ended"] == "it raised"
    assert facts["light"]["steps"] == 2
    assert not facts["light"]["whole"]
    names = [str(one.get("name")) for one in events(tmp_path / "light.json.gz")]
    assert len([name for name in names if name.startswith("ProfilerStep#")]) == 2
    assert profiler_capture.LEFTOVER in names
    one.close("again")
    assert read(tmp_path) == facts


@pytest.mark.torch
@pytest.mark.parametrize("n_steps", [0, 1, 2])
def test_too_few_steps_leave_no_recording_but_say_why(n_steps: int, work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, RecordPlan(warmup=0, timing_steps=0))
    for _ in range(n_steps):
        work()
        one.step()
    one.close("exit")
    facts = read(tmp_path)
    assert facts["ended"] == "exit"
    assert facts["steps_seen"] == n_steps
    assert facts["light"] is None
    assert not profiler_capture.profiler_running()


@pytest.mark.torch
def test_a_block_is_recorded_without_steps(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path)
    one.record_block()
    work()
    one.step()
    one.close("the end")
    assert read(tmp_path)["heavy"]["bytes"] > 0
    assert steps(tmp_path / "heavy.json.gz") == []


# -- failures reach nobody ---------------------------------------------------------------------


@pytest.mark.torch
def test_a_failing_export_is_counted(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, path: Path) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(profiler_capture.Capture, "export", full)
    one = Recorder(tmp_path, QUICK)
    run(one, work)
    facts = read(tmp_path)
    assert facts["failures"] == {"OSError: No space left on device": 2}
    assert facts["light"] is None
    assert facts["ended"] == "complete"
    assert not profiler_capture.profiler_running()


@pytest.mark.torch
def test_an_export_that_fails_half_way_leaves_nothing(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def half(self: object, path: str) -> None:
        Path(path + ".tmp").write_text("{")  # as Kineto does where the disk is full

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", half)
    run(Recorder(tmp_path, QUICK), work)
    assert [one.name for one in tmp_path.iterdir()] == ["recording.json"]


@pytest.mark.torch
def test_a_folder_that_cannot_be_written_is_no_error(work: Callable[[], float], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Recorder(tmp_path / "file" / "folder", QUICK)
    run(one, work)
    assert one.done
    assert one.facts()["failures"]


@pytest.mark.torch
def test_a_profiler_that_cannot_start_is_no_error(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr(profiler_capture.Capture, "start", broken)
    one = Recorder(tmp_path, QUICK)
    run(one, work)
    assert one.done
    assert read(tmp_path)["failures"] == {"RuntimeError: CUPTI is not there": 2}


# -- the script's own profiler -----------------------------------------------------------------


@pytest.mark.torch
def test_a_profiler_of_the_script_is_left_alone(work: Callable[[], float], tmp_path: Path) -> None:
    import torch

    one = Recorder(tmp_path, QUICK)
    with torch.profiler.profile() as theirs:
        run(one, work)
    assert one.done
    assert len(theirs.events()) > 0
    assert read(tmp_path)["ended"] == "the script profiles itself"


@pytest.mark.torch
def test_a_profile_function_of_the_script_stays_on(work: Callable[[], float], tmp_path: Path) -> None:
    def listens(*_event: object) -> None:
        pass

    one = Recorder(tmp_path, QUICK)
    sys.setprofile(listens)
    try:
        run(one, work)
        assert sys.getprofile() is listens
    finally:
        sys.setprofile(None)
    facts = read(tmp_path)
    assert facts["ended"] == "complete"
    assert facts["light"]["whole"]
    assert facts["heavy"] is None
    assert [text for text in facts["failures"] if text.startswith(recorder.NO_STACKS)]


@pytest.mark.torch
@pytest.mark.parametrize("state", ["light", "heavy"])
def test_a_profiler_that_the_script_starts_later_takes_over(
    state: str, work: Callable[[], float], tmp_path: Path
) -> None:
    import torch

    one = Recorder(tmp_path, QUICK)
    while one.state != state:
        work()
        one.step()
    for _ in range(2):
        work()
        one.step()
    with torch.profiler.profile() as theirs:
        work()
        one.step()
    assert len(theirs.events()) > 0
    assert one.ended == "the script profiles itself"
    assert (tmp_path / "light.json.gz").exists() == (state == "heavy")
    profiler = torch.autograd.profiler
    assert profiler._enable_profiler is torch.autograd._enable_profiler


@pytest.mark.torch
def test_a_profiler_of_another_thread_waits_for_the_step_to_end(work: Callable[[], float], tmp_path: Path) -> None:
    import torch

    one = Recorder(tmp_path, RecordPlan(warmup=0, timing_steps=0, light=5))
    for _ in range(3):
        work()
        one.step()
    seen: list[int] = []

    def profile() -> None:
        with torch.profiler.profile() as theirs:
            torch.ones(3) + 1
        seen.append(len(theirs.events()))

    other = threading.Thread(target=profile)
    other.start()
    deadline = time.monotonic() + 60
    while not one.done and time.monotonic() < deadline:
        time.sleep(0.01)
        one._capture and one.step()
    other.join()
    assert seen[0] > 0
    assert one.ended in ("the script profiles itself", "complete")


# -- threads, forks, compiled code -------------------------------------------------------------


@pytest.mark.torch
def test_a_loop_in_another_thread_than_the_maker(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, QUICK)
    thread = threading.Thread(target=run, args=(one, work))
    thread.start()
    thread.join()
    assert read(tmp_path)["ended"] == "complete"
    assert any(one.get("name") == "aten::addmm" for one in events(tmp_path / "light.json.gz"))


@pytest.mark.torch
def test_a_few_steps_of_other_threads_are_ignored(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, QUICK)
    one.step()

    def and_another() -> None:
        work()
        stray = threading.Thread(target=one.step)
        stray.start()
        stray.join()

    seen = run(one, and_another)
    facts = read(tmp_path)
    assert facts["ended"] == "complete"
    assert facts["steps_seen"] == 1 + seen
    assert facts["ignored_steps"] == seen
    assert facts["light"]["steps"] == 3


@pytest.mark.torch
def test_a_loop_that_moves_to_another_thread_is_followed(work: Callable[[], float], tmp_path: Path) -> None:
    one = Recorder(tmp_path, QUICK)
    for _ in range(2):
        one.step()
    thread = threading.Thread(target=run, args=(one, work))
    thread.start()
    thread.join()
    facts = read(tmp_path)
    assert facts["ended"] == "complete"
    assert facts["ignored_steps"] == recorder.TAKE_OVER


@pytest.mark.torch
def test_no_thread_takes_over_while_the_profiler_starts(
    work: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, starting = [], threading.Event()
    start = profiler_capture.Capture.start

    def slowly(self: profiler_capture.Capture) -> None:
        starts.append(threading.get_ident())
        starting.set()
        time.sleep(0.2)  # seconds, the first time
        start(self)
        starting.clear()

    monkeypatch.setattr(profiler_capture.Capture, "start", slowly)
    one = Recorder(tmp_path, QUICK)
    one.step()  # this thread's loop

    def other() -> None:
        # only then: at any other time a slow machine lets five of its steps pass without one of the loop's
        while not one.done:
            if starting.is_set():
                one.step()
            time.sleep(0.001)

    thread = threading.Thread(target=other)

    def both() -> None:
        if one.state == "timing" and not thread.is_alive():
            thread.start()
        work()

    run(one, both)
    thread.join()
    assert starts == [threading.get_ident()] * 2
    assert read(tmp_path)["ended"] == "complete"


SCRIPT = """
import os, sys, threading, torch
torch.set_num_threads(1)
from torchtriage.core.record.recorder import RecordPlan, Recorder
one = Recorder(sys.argv[1], RecordPlan(warmup=0, timing_steps=0, light=4))
def work():
    torch.ones(3) + 1
    one.step()
"""


@pytest.mark.torch
def test_a_forked_child_records_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    code = """
for _ in range(3): work()
pid = os.fork()
if pid == 0:
    for _ in range(20): work()
    one.close("child")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for _ in range(20): work()
assert one.done
"""
    subprocess.run([sys.executable, "-c", SCRIPT + code, str(tmp_path)], check=True, capture_output=True)
    facts = read(tmp_path)
    assert facts["ended"] == "complete"
    assert facts["light"]["steps"] == 4


@pytest.mark.torch
@pytest.mark.parametrize("n_steps", [3, 20])  # in the middle of a recording, and after it
def test_a_forked_child_ends_as_it_wants(n_steps: int, tmp_path: Path) -> None:
    code = f"""
for _ in range({n_steps}): work()
pid = os.fork()
if pid == 0:
    work()
    print("child", end="")
    sys.exit(5)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", SCRIPT + code, str(tmp_path)], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, b"child")


@pytest.mark.torch
def test_a_thread_that_ends_inside_a_capture_crashes_nobody(tmp_path: Path) -> None:
    code = """
def some():
    for _ in range(3): work()
thread = threading.Thread(target=some); thread.start(); thread.join()
one.close("exit")
torch.ones(3) + 1
"""
    subprocess.run([sys.executable, "-c", SCRIPT + code, str(tmp_path)], check=True, capture_output=True)
    facts = read(tmp_path)
    assert facts["light"] is None
    assert facts["ended"] == "the thread that stepped has ended"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_steps_are_not_compiled_again(tmp_path: Path) -> None:
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    one = Recorder(tmp_path, QUICK)

    @torch.compile(backend=counter)
    def work(x: Any) -> Any:
        y = x.sin()
        one.step()  # not traced: the graph ends here
        return y.cos()

    x = torch.ones(4)
    for _ in range(60):
        work(x)
    assert one.done
    assert counter.frame_count == 2
    assert read(tmp_path)["ended"] == "complete"
    assert read(tmp_path)["environment"]["compile"] == {} or counter.frame_count == 2


# -- facts -------------------------------------------------------------------------------------


@pytest.mark.torch
def test_environment_is_facts_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=3, num_workers=2)
    facts = environment.gather()
    text = json.dumps(facts)
    assert "secret" not in text
    assert facts["variables"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    mine = [one for one in facts["loaders"] if one["batch_size"] == 3]
    assert mine[0]["num_workers"] == loader.num_workers == 2
    assert facts["distributed"] == {}
    assert not any(re.search("TOKEN$|KEY|SECRET|PASS", one) for one in machine.VARIABLES)


@pytest.mark.torch
def test_ranks_record_the_same_steps_however_fast_they_are(tmp_path: Path) -> None:
    code = """
import os, sys, time, torch
import torch.distributed as dist
from torchtriage.core.record.recorder import RecordPlan, Recorder
torch.set_num_threads(1)
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=rank, world_size=2)
one = Recorder(f"{sys.argv[1]}/{rank}")
while not one.done:
    time.sleep(0.003 * rank)
    torch.ones(3) + 1
    one.step()
"""
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank)]) for rank in range(2)]
    for one in ranks:
        assert one.wait(timeout=120) == 0
    facts = [read(tmp_path / str(rank)) for rank in range(2)]
    assert [one["rank"] for one in facts] == [0, 1]
    assert facts[0]["environment"]["distributed"]["world_size"] == 2
    assert steps(tmp_path / "0" / "light.json.gz") == steps(tmp_path / "1" / "light.json.gz")


# -- what it costs -----------------------------------------------------------------------------


@pytest.mark.torch
def test_a_step_costs_little_when_nothing_is_recorded(tmp_path: Path) -> None:
    """Ten times the cost on an idle machine, for a busy one: a wrong order of growth is seen."""
    one = Recorder(tmp_path, RecordPlan(timing_steps=10**6, max_timing_steps=10**7, max_timing_s=1e6))
    for _ in range(20):
        one.step()
    assert one.state == "timing"
    assert _best_ns(one.step) < 10_000
    one.close()
    assert _best_ns(one.step) < 2_000


def _best_ns(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=2000, repeat=7)) / 2000 * 1e9


def test_no_file_of_a_recording_has_the_name_of_another() -> None:
    names = {recorder.LIGHT_FILE, recorder.HEAVY_FILE, recorder.RECORDING_FILE}
    assert len(names) == 3
    assert os.sep not in "".join(names)


@pytest.mark.torch
def test_a_recording_does_not_load_the_compiler(tmp_path: Path) -> None:
    code = """
for _ in range(20): work()
assert one.done
assert "torch._inductor" not in sys.modules and "sympy" not in sys.modules
torch._inductor  # the script's own look at it loads it, as without us
assert "torch._inductor" in sys.modules
"""
    subprocess.run([sys.executable, "-c", SCRIPT + code, str(tmp_path)], check=True, capture_output=True)
    assert read(tmp_path)["light"]["steps"] == 4
