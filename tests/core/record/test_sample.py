"""The sampler: rare, within its means, and never in the way."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.core.record import profiler_capture
from torchtriage.core.record.sample import JITTER, Sampler

pytestmark = pytest.mark.torch


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Any:
    made: list[Sampler] = []

    def sampler(**changed: Any) -> Sampler:
        settings = {
            "every_s": 600.0,
            "max_bytes": 10**9,
            "max_overhead": 0.5,
            "steps": 2,
            "heavy": False,
            "clock": clock,
            "seed": 1,
        }
        out = changed.pop("out", tmp_path / "traces")
        made.append(Sampler(out, **{**settings, **changed}))
        return made[-1]

    yield sampler
    for one in made:
        one.close()


def work() -> None:
    import torch

    torch.ones(8) + 1


def finish(sampler: Sampler) -> tt.record.sample.SampleStats:  # type: ignore[name-defined]
    """Close, which waits for the exports."""
    sampler.close()
    return sampler.stats


def names(path: Path) -> set[str]:
    trace = tt.load(path)
    return {trace.strings[one] for one in set(trace.name.tolist())}


def test_nothing_is_captured_before_its_time(make: Any, clock: Clock) -> None:
    sampler = make()
    clock.now = 600 * (1 - JITTER) - 1
    with sampler.request():
        work()
    sampler.step()
    assert finish(sampler).captures == 0
    assert sampler.files == []


def test_requests_are_captured_on_time(make: Any, clock: Clock) -> None:
    sampler = make()
    for _ in range(3):
        clock.now += 600 * (1 + JITTER)
        with sampler.request():
            work()
        with sampler.request():
            work()
    stats = finish(sampler)
    assert stats.captures == 3
    assert stats.failures == {}
    assert len(sampler.files) == 3
    report = tt.analyze(sampler.files[0])
    assert report.trace.n_events > 0
    assert len(tt.load(sampler.files[0]).steps.names) == 1


def test_replicas_drift_apart(make: Any) -> None:
    due = {make(seed=seed)._due_s for seed in range(20)}
    assert len(due) == 20
    assert all(600 * (1 - JITTER) <= one <= 600 * (1 + JITTER) for one in due)


def test_the_scripts_random_numbers_stay(make: Any, clock: Clock) -> None:
    import random

    random.seed(5)
    first = random.random()
    random.seed(5)
    sampler = make()
    clock.now = 1000
    with sampler.request():
        assert random.random() == first


def test_steps_of_a_loop_are_captured_on_demand(make: Any) -> None:
    sampler = make(every_s=None)
    for n in range(12):
        if n == 3:
            sampler.trigger()
        work()
        sampler.step()
    stats = finish(sampler)
    assert stats.captures == 1
    assert len(tt.load(sampler.files[0]).steps.names) == 2


def test_a_request_that_raises_is_captured_and_raises(make: Any, clock: Clock) -> None:
    sampler = make()
    clock.now = 1000
    with pytest.raises(AttributeError, match="nothing"), sampler.request():
        getattr(sampler, "nothing")  # noqa: B009
    assert finish(sampler).captures == 1
    assert not profiler_capture.profiler_running()


def test_captures_over_the_cap_are_left_out_and_counted(make: Any, clock: Clock) -> None:
    sampler = make(max_overhead=1e-9)
    for _ in range(4):
        clock.now += 700
        with sampler.request():
            work()
    stats = finish(sampler)
    assert stats.captures == 1  # what it costs is not known before
    assert stats.skipped_overhead == 3
    assert stats.own_s > 0
    assert stats.overhead == pytest.approx(stats.own_s / 2800)


def test_a_triggered_capture_obeys_the_cap(make: Any, clock: Clock) -> None:
    sampler = make(max_overhead=1e-9, every_s=None)
    clock.now = 1
    for _ in range(3):
        sampler.trigger()
        with sampler.request():
            work()
    stats = finish(sampler)
    assert (stats.captures, stats.skipped_overhead) == (1, 2)


def test_the_oldest_make_room(make: Any, clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "sample-20000101T000000.000-1-0.json.gz").write_bytes(b"x" * 5000)
    (folder / "a file of others").write_bytes(b"x" * 50000)
    sampler = make(max_bytes=5000)
    clock.now = 1000
    with sampler.request():
        work()
    stats = finish(sampler)
    assert stats.removed == 1
    assert stats.disk_bytes <= 5000
    assert [one.name.startswith("sample-2000") for one in sampler.files] == [False]
    assert (folder / "a file of others").exists()


def test_a_dead_disk_is_counted(make: Any, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sampler = make(out=tmp_path / "file" / "folder")
    clock.now = 1000
    with sampler.request():
        work()
    stats = finish(sampler)
    assert stats.captures == 0
    assert sum(stats.failures.values()) == 1
    assert sampler.files == []


def test_a_profiler_that_cannot_start_is_counted(make: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise RuntimeError("CUPTI is not there")

    sampler = make()
    monkeypatch.setattr(profiler_capture.Capture, "start", broken)
    for use in (sampler.request, lambda: _stepped(sampler)):
        clock.now += 1000
        with use():
            work()
    assert finish(sampler).failures == {"RuntimeError: CUPTI is not there": 2}


def _stepped(sampler: Sampler) -> Any:
    from contextlib import nullcontext

    sampler.step()
    return nullcontext()


def test_a_profiler_of_the_service_comes_first(make: Any, clock: Clock) -> None:
    import torch

    sampler = make()
    clock.now = 1000
    with torch.profiler.profile(), sampler.request():
        work()
    clock.now = 2000
    with sampler.request(), torch.profiler.profile() as theirs:
        work()
    assert len(theirs.events()) > 0
    clock.now = 3000
    with sampler.request():
        work()
    stats = finish(sampler)
    assert (stats.skipped_busy, stats.captures, stats.failures) == (2, 1, {})


def test_many_threads_are_captured_one_at_a_time(tmp_path: Path) -> None:
    sampler = tt.sample(tmp_path, every_s=0.05, max_overhead=1.0)
    until = time.monotonic() + 1.5

    def serve() -> None:
        while time.monotonic() < until:
            with sampler.request():
                work()
            time.sleep(0.001)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    stats = finish(sampler)
    assert stats.failures == {}
    assert stats.captures == len(sampler.files) > 1
    assert not profiler_capture.profiler_running()


def test_a_thread_that_ends_inside_a_capture_frees_the_sampler(make: Any, clock: Clock) -> None:
    sampler = make(every_s=None)

    def some() -> None:
        sampler.trigger()
        for _ in range(2):
            work()
            sampler.step()

    thread = threading.Thread(target=some)
    thread.start()
    thread.join()
    clock.now = 1000
    sampler.trigger()
    for _ in range(8):
        work()
        sampler.step()
    stats = finish(sampler)
    assert stats.failures == {"RuntimeError: the thread that stepped has ended": 1}
    assert stats.captures == 1


def test_a_request_that_ends_in_another_thread_frees_the_sampler(make: Any, clock: Clock) -> None:
    sampler = make(every_s=None)
    sampler.trigger()
    left = sampler.request()
    left.__enter__()
    thread = threading.Thread(target=left.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert profiler_capture.profiler_running()
    with sampler.request():  # not captured, but of the thread that began
        assert not profiler_capture.profiler_running()
    clock.now = 1000
    sampler.trigger()
    with sampler.request():
        work()
    stats = finish(sampler)
    assert (stats.captures, stats.skipped_busy, sum(stats.failures.values())) == (1, 0, 1)


def test_a_forked_child_samples_for_itself(tmp_path: Path) -> None:
    code = """
import os, sys, torch, torchtriage as tt
torch.set_num_threads(1)
sampler = tt.sample(sys.argv[1], every_s=None)
def serve():
    sampler.trigger()
    with sampler.request():
        torch.ones(3) + 1
serve()
pid = os.fork()
if pid == 0:
    serve(); sampler.close(); os._exit(0 if sampler.stats.captures == 1 else 9)
assert os.waitpid(pid, 0)[1] == 0
# the end of the program finishes the export
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    pids = {one.name.split("-")[2] for one in tmp_path.glob("*.json.gz")}
    assert len(pids) == 2


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    wrongs = ({"every_s": 0}, {"every_s": "60"}, {"max_mb": -1}, {"max_overhead": 0}, {"steps": 0}, {"steps": 2.5})
    for wrong in wrongs:
        with pytest.raises(tt.UsageError, match=next(iter(wrong)).rstrip("s")):
            tt.sample(tmp_path, **wrong)  # type: ignore[arg-type]


def test_a_request_costs_little_when_it_is_not_captured(make: Any) -> None:
    sampler = make()

    def request() -> None:
        with sampler.request():
            pass

    # ten times what it takes on an idle machine
    assert _best_ns(request) < 10_000
    assert _best_ns(sampler.step) < 5_000


def _best_ns(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=2000, repeat=7)) / 2000 * 1e9


def test_no_file_is_half_written(make: Any, clock: Clock) -> None:
    sampler = make()
    clock.now = 1000
    with sampler.request():
        work()
    finish(sampler)
    assert all(one.name.startswith("sample-") for one in sampler.out.iterdir())
