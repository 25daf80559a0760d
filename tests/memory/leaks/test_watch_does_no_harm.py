"""The live watch never hurts the loop."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.memory.leaks.watching import BIG, quiet, spend

from torchtriage.memory.leaks import leak_watch, line_watch, object_growth, samples
from torchtriage.memory.leaks.leak_report import Leak


def test_a_callback_that_raises_does_not_reach_the_loop() -> None:
    def shout(leak: Leak) -> None:
        raise RuntimeError("no")

    kept = []
    with quiet(on_alarm=shout) as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert "on_alarm failed: RuntimeError" in watch.report().notes


def test_objects_that_raise_when_looked_at_do_no_harm() -> None:
    class Angry:
        __slots__ = ("a",)

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("no")

        def __len__(self) -> int:
            raise RuntimeError("no")

        def __bool__(self) -> bool:
            raise RuntimeError("no")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            return 0

    class AngryList(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise RuntimeError("no")

    angry, also = Angry(), AngryList()
    kept = []
    with quiet() as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert [leak.holder for leak in watch.report().leaks] == ["kept"]
    assert angry is not None
    assert also is not None


def test_no_reference_to_what_was_looked_at_stays() -> None:
    """The next step frees what the last one made; a look must not keep it until the next look."""

    class Made:
        alive = 0

        def __init__(self) -> None:
            Made.alive += 1

        def __del__(self) -> None:
            Made.alive -= 1

    gc.disable()
    try:
        with quiet() as watch:
            for _ in range(200):
                made = Made()
                watch.step()
                del made
                assert Made.alive == 0
    finally:
        gc.enable()


def test_what_locals_gave_stays_whole() -> None:
    """Up to Python 3.12 it is the very dict that a look would empty."""
    kept = locals()
    before = "what was there"
    for _ in range(2):
        object_growth.walk(inspect.currentframe(), 1.0)
    kept = kept if sys.version_info < (3, 13) else locals()
    assert kept["before"] == before


def test_what_functions_have_as_defaults_counts() -> None:
    kept = []
    with quiet() as watch:
        for _ in range(250):
            batch = bytes(BIG)
            kept.append(lambda batch=batch: batch)
            watch.step()
    assert [leak.holder for leak in watch.report().leaks] == ["kept"]


def test_the_tracer_is_taken_away_again() -> None:
    before = sys.gettrace()
    kept = []
    with quiet() as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert watch.report().leaks
    assert sys.gettrace() is before
    assert inspect.currentframe().f_trace is None  # type: ignore[union-attr]


def test_a_measure_that_raises_does_not_reach_the_traced_code() -> None:
    calls = []

    def measure(frame: Any) -> int:
        calls.append(frame)
        if len(calls) > 2:
            raise RuntimeError("no")
        return 0

    lines = line_watch.LineWatch([measure], inspect.currentframe())
    spend()
    spend()
    assert sys.gettrace() is None
    lines.stop()
    assert len(calls) == 3


def test_endless_steps_are_not_traced_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_watch, "MAX_EVENTS", 50)
    calls = []

    def measure(frame: Any) -> int:
        calls.append(1)
        return 0

    line_watch.LineWatch([measure], inspect.currentframe())
    for _ in range(500):
        spend()
    assert sys.gettrace() is None
    assert len(calls) <= 51


def test_another_tracer_is_left_alone() -> None:
    def tracer(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace()
    kept = []
    sys.settrace(tracer)
    try:
        with quiet() as watch:
            for _ in range(250):
                kept.append(bytes(BIG))
                watch.step()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    (leak,) = watch.report().leaks
    assert leak.holder == "kept"
    assert any("another tracer" in note for note in watch.report().notes)


def test_steps_of_other_threads_are_not_looked_at() -> None:
    kept = []
    with quiet() as watch:
        watch.step()
        other = threading.Thread(target=lambda: [watch.step() for _ in range(50)])
        other.start()
        other.join()
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert watch.report().leaks[0].holder == "kept"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_go_on_watching(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with quiet(out_dir=tmp_path) as watch:
            for _ in range(30):
                watch.step()
            pid = os.fork()
            if not pid:
                for _ in range(300):
                    watch.step()
                os._exit(0 if watch._n_looks <= 2 else 1)
            assert os.waitpid(pid, 0)[1] == 0


def test_what_is_kept_is_bounded() -> None:
    watch = quiet(credit_s=0.05)
    for _ in range(60_000):
        watch.step()
    assert len(watch._rss) <= samples.MAX_SAMPLES
    assert watch._n_looks < 200
    watch.close()
    watch.close()
    watch.step()


def test_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that cost much are made seldom: own time stays under credit and share."""
    spent = {"loop": 0.0, "looks": 0.0}
    monkeypatch.setattr(leak_watch, "thread_time", lambda: sum(spent.values()))

    def walk(frame: Any, limit_s: float) -> dict[Any, Any]:
        spent["looks"] += 0.1
        return {}

    monkeypatch.setattr(leak_watch, "walk", walk)
    watch = quiet(credit_s=leak_watch.CREDIT_S)
    for _ in range(40_000):
        spent["loop"] += 0.005
        watch.step()
    # 200 s of steps: the credit, its share of them, and the last look
    assert spent["looks"] <= leak_watch.CREDIT_S + leak_watch.SHARE * 201 + 0.1 + 1e-6
    assert watch.report().n_looks >= 5


def test_slow_counts_of_objects_take_no_looks_and_grow_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> int:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return 500_000

    monkeypatch.setattr(leak_watch.sys, "getallocatedblocks", slow)
    watch = quiet(credit_s=leak_watch.CREDIT_S)
    for _ in range(1000):
        watch.step()
    report = watch.report()
    assert report.answer == "no leak"
    assert report.n_looks >= leak_watch.MIN_LOOKS
    assert len(watch._blocks) <= 12
