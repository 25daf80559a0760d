"""CPY009 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.copy_ping_pong import find

READBACK = "DtoH (Device -> Pageable)"
MB = 1 << 20


def loop(
    *, size: int = 1 << 20, back: int | None = None, steps: int = 4, tid: int = 1, late: float = 0
) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 2000.0
        trace.step(step, start, 2000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 330).op("aten::copy_", start + 22, 326)
        trace.copy(start + 24, 320, start + 310, 20, kind=READBACK, size=size)
        at = start + 800 + late
        trace.op("aten::to", at, 60, tid=tid).op("aten::copy_", at + 2, 56, tid=tid)
        trace.copy(at + 4, 40, at + 20, 20, size=size if back is None else back, tid=tid)
        trace.sync(at + 48, 6, tid=tid)
        trace.launch(start + 1000 + late, 5, start + 1010 + late, 300)
    return trace.profiler_stop(steps * 2000 + 1 + late, 5)


def test_quiet_on_other_sizes() -> None:
    assert not list(find(loop(back=(1 << 20) - 4).build()))


def test_quiet_on_sizes_that_say_nothing() -> None:
    assert not list(find(loop(size=4095).build()))


def test_quiet_across_threads() -> None:
    assert not list(find(loop(tid=2).build()))


def test_quiet_on_one_pair() -> None:
    assert not list(find(loop(steps=1).build()))


def test_quiet_on_offloading_that_does_not_block() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 2000.0
        trace.step(step, start, 2000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 20).op("aten::copy_", start + 22, 16)
        trace.copy(start + 24, 8, start + 310, 20, kind="DtoH (Device -> Pinned)", size=MB, stream=9)
        trace.op("aten::to", start + 800, 20).op("aten::copy_", start + 802, 16)
        trace.copy(start + 804, 8, start + 820, 20, kind="HtoD (Pinned -> Device)", size=MB, stream=9)
        trace.launch(start + 1000, 5, start + 1010, 300)
    assert not list(find(trace.profiler_stop(8001, 5).build()))


def test_a_round_trip_in_every_step() -> None:
    built = loop().build()
    (claim,) = find(built)
    assert claim.certainty == "likely"
    assert claim.evidence["n_round_trips_per_step"] == 1
    assert claim.evidence["median_tensor_bytes"] == MB
    assert claim.evidence["round_trip_ms_per_step"] == pytest.approx(0.83)


def test_small_round_trips_are_a_hint() -> None:
    (claim,) = find(loop(size=8192).build())
    assert claim.certainty == "hint"


def test_it_costs_the_idle_time_of_the_round_trip() -> None:
    built = loop().build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # dry 330-820 and 840-1010: 660 us, of the 830 us the host spent; and two copies of 20 us
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * (660_000 + 40_000))
    # surely lost: the first call's 320 us up to the upload, and the second's own 50 us
    low = 4 * (370_000 / built.origin.inflation + 40_000)
    assert (lengths * claim.gain_low).sum() == pytest.approx(low)


def test_quiet_on_what_comes_back_in_another_step() -> None:
    # the upload belongs to the next step's input
    assert not list(find(loop(late=1300).build()))


def test_quiet_on_what_comes_back_much_later() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 200_000.0
        trace.step(step, start, 200_000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 330).op("aten::copy_", start + 22, 326)
        trace.copy(start + 24, 320, start + 310, 20, kind=READBACK, size=MB)
        trace.copy(start + 150_000, 40, start + 150_020, 20, size=MB)
        trace.launch(start + 151_000, 5, start + 151_010, 300)
    assert not list(find(trace.profiler_stop(800_001, 5).build()))
