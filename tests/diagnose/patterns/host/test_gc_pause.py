"""HST021 gc-pause."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.host.gc_pause import find

COLLECT = "<built-in function collect>"


def loop(pause: float = 3_000, *, name: str = "Python GC", tid: int = 1) -> TraceBuilder:
    """Steps of 10 ms: a pause, then a kernel for the rest of the step."""
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).event(name, "python_function", at + 10, pause, tid=tid)
        builder.op("aten::mm", at + 4_000, 20.5)
        builder.launch(at + 4_005, 5, at + 4_010, 5_990)
    return builder


def test_quiet_on_short_pauses() -> None:
    assert not loop(900).claims(find)


def test_quiet_on_threads_that_launch_nothing() -> None:
    assert not loop(tid=9).claims(find)


def test_quiet_when_queued_work_hides_the_pause() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at, 20.5)
        builder.launch(at + 5, 5, at + 10, 9_989)
        builder.event("Python GC", "python_function", at + 100, 3_000)
    assert not builder.claims(find)


def test_quiet_in_the_first_step() -> None:
    builder = loop(900)
    assert not builder.event("Python GC", "python_function", 1_000, 3_000).claims(find)


def test_idle_time_inside_the_pauses_is_at_stake() -> None:
    (claim,) = loop().claims(find)
    assert claim.time_class == "idle"
    assert claim.evidence["n_pauses"] == 3
    assert claim.evidence["n_explicit_pauses"] == 0
    assert claim.evidence["pause_ms_per_step"] == claim.evidence["gpu_idle_ms_per_step"] == 3.0
    assert claim.spans.tolist()[0] == [10_010_000, 13_010_000]
    assert claim.gain_low == pytest.approx(1 / 2.0)
    assert claim.gain_high == 1.0


def test_an_explicit_collection_and_its_own_row_are_one_pause() -> None:
    builder = loop(2_900)
    for i in range(4):
        builder.event(COLLECT, "python_function", 10_000 * i + 5, 3_000)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_pauses"] == claim.evidence["n_explicit_pauses"] == 3
    assert claim.evidence["pause_ms_per_step"] == 3.0


def test_on_a_cpu_the_pauses_are_host_time() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 10_000 * i, 10_000).op("aten::mm", 10_000 * i + 5_000, 20.5)
        builder.event("Python GC", "python_function", 10_000 * i + 10, 3_000)
    (claim,) = builder.claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["pause_ms_per_step"] == 3.0
