"""CPY008 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.h2d_not_overlapped import find


def loop(
    *,
    copy_us: float = 500,
    stream: int = 7,
    kind: str = "HtoD (Pinned -> Device)",
    steps: int = 4,
    blocks: bool = False,
) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        if stream == 7:
            begin = start + 20
            trace.copy(start + 10, 5, begin, copy_us, size=10_000_000, kind=kind)
            if blocks:
                trace.sync(start + 20, copy_us + 5)
            launch = start + (copy_us + 60 if blocks else 17)
            trace.launch(launch, 2, max(begin + copy_us + 1, launch + 10), 9_000)
        else:
            trace.launch(start + 10, 5, start + 20, 9_000)
            trace.copy(start + 20, 5, start + 100, copy_us, size=10_000_000, kind=kind, stream=stream)
    return trace.profiler_stop(steps * 10_000 + 1, 5)


def test_quiet_when_kernels_run_beside_it() -> None:
    assert not loop(stream=9).claims(find)


def test_quiet_on_a_prefetch_while_the_host_is_late_with_the_kernels() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        trace.copy(start + 10, 5, start + 20, 4_000, size=80_000_000, kind="HtoD (Pinned -> Device)", stream=9)
        trace.launch(start + 1_000, 5, start + 1_010, 8_000)  # needs what came the step before
    assert not trace.profiler_stop(40_001, 5).claims(find)


def test_a_prefetch_that_the_kernels_waited_for() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        trace.copy(start + 10, 5, start + 20, 4_000, size=80_000_000, kind="HtoD (Pinned -> Device)", stream=9)
        trace.launch(start + 100, 5, start + 4_025, 5_000)
    (claim,) = find(trace.profiler_stop(40_001, 5).build())
    assert claim.evidence["exposed_copy_ms_per_step"] == pytest.approx(4.0)
    assert " per step are copied to the GPU at 20 GB/s, for 4.00 ms with no kernel running" in claim.message


def test_quiet_on_a_prefetch_before_the_host_launches_anything() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        trace.copy(start + 10, 5, start + 20, 4_000, size=80_000_000, kind="HtoD (Pinned -> Device)", stream=9)
        trace.launch(start + 4_500, 5, start + 4_510, 5_000)
    assert not trace.profiler_stop(40_001, 5).claims(find)


def test_quiet_below_two_percent_of_the_step() -> None:
    assert not loop(copy_us=150).claims(find)


def test_quiet_on_pageable_memory_which_cannot_overlap() -> None:
    assert not loop(kind="HtoD (Pageable -> Device)").claims(find)


def test_quiet_on_one_request() -> None:
    assert not loop(steps=1).claims(find)


def test_a_pinned_batch_on_the_compute_stream() -> None:
    (claim,) = find(loop().build())
    assert claim.certainty == "likely"
    assert claim.evidence["exposed_copy_ms_per_step"] == pytest.approx(0.5)
    assert claim.evidence["streams"] == [7]
    assert claim.evidence["n_blocking_copies_per_step"] == 0
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_low).sum() == 4 * 500_000
    assert (lengths * claim.gain_high).sum() == 4 * 500_000


def test_uploads_that_take_longer_than_all_the_rest_cannot_hide_behind_it() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        for part in range(4):
            at = start + 2_500 * part
            trace.copy(at + 10, 5, at + 20, 2_200, size=50_000_000, kind="HtoD (Pinned -> Device)")
            trace.launch(at + 17, 2, at + 2_221, 250)
    (claim,) = find(trace.profiler_stop(40_001, 5).build())
    exposed_ns = int((claim.spans[:, 1] - claim.spans[:, 0]).sum())
    assert exposed_ns == 4 * 4 * 2_200_000
    # of four steps of 10 ms, whatever is not an upload
    assert claim.gain_low * exposed_ns == pytest.approx(4 * 1_200_000, rel=0.01)
    assert claim.gain_high == 1.0
    assert not claim.edits
    assert "Copy less" in claim.fix.text
    assert "88 % of the time" in claim.message
    assert " with no kernel running: " in claim.message  # copies back may run


def test_a_blocking_copy_also_costs_the_gap_behind_it() -> None:
    (claim,) = find(loop(blocks=True).build())
    assert claim.evidence["n_blocking_copies_per_step"] == 1
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_low).sum() == 4 * 500_000
    # 10-20 before the copy (the device is dry from the step before), 520-570 behind it; the
    # window begins with the first call, so the first step has its 10 us too
    assert (lengths * claim.gain_high).sum() == 4 * (500_000 + 60_000)
