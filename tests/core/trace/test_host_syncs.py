"""Where a wait hides, and what it costs: exact numbers from built traces, in microseconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.core.trace.host_syncs import LEAD_LOW

READBACK = "DtoH (Device -> Pageable)"
PINNED = "DtoH (Device -> Pinned)"


def in_us(values: np.ndarray) -> list[float]:
    return (values / 1000).tolist()


def idle_us(trace: Trace) -> list[float]:
    return in_us(trace.waits.bubble_ns)


def after(trace: TraceBuilder, start: float = 1030, kernel_start: float = 1040) -> TraceBuilder:
    """Add the next launch, into an empty queue, and the end of the recording."""
    trace.launch(start, 5, kernel_start, 100)
    return trace.profiler_stop(kernel_start + 110, 5)


def deep(**kwargs: str) -> TraceBuilder:
    """Return a builder in which 1000 us of work are queued within 10 us."""
    trace = TraceBuilder(**kwargs)
    trace.launch(0, 10, 10, 990)
    return trace


# -- what costs nothing --------------------------------------------------------------------


def test_work_queued_behind_the_wait_leaves_no_bubble() -> None:
    trace = deep()
    trace.launch(12, 5, 1000, 500)
    trace.sync(20, 980, "cudaEventSynchronize")
    trace.launch(1030, 5, 1500, 100)
    trace.profiler_stop(1610, 5)
    assert idle_us(trace.build()) == [0, 0]


def test_the_last_readback_of_a_request_has_nothing_behind_it() -> None:
    trace = deep()
    trace.copy(20, 990, 1000, 2, kind=READBACK)
    trace.profiler_stop(1020, 5)
    assert idle_us(trace.build()) == [0, 0]


def test_idle_time_behind_a_dependency_is_not_the_waits() -> None:
    trace = deep()
    trace.copy(20, 990, 1000, 2, kind=READBACK)
    # launched in time, starts 200 us later: waits for another stream or rank
    trace.launch(1012, 2, 1214, 100)
    built = trace.profiler_stop(1400, 5).build()
    assert idle_us(built)[0] == pytest.approx(1014 - 1002)


def test_idle_time_before_work_launched_earlier_is_not_the_waits() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.launch(90, 5, 140, 60)
    trace.sync(100, 102, "cudaEventSynchronize")
    built = after(trace, 210, 216).build()
    # 100-140 is the launch's own latency; 200-216 lies behind the sync
    assert idle_us(built) == [16, 0]


def test_the_profilers_own_stop_costs_nothing() -> None:
    trace = deep()
    trace.profiler_stop(20, 980)
    trace.launch(1030, 5, 1040, 100)
    waits = trace.build().waits
    assert waits.profiler.tolist() == [True]
    assert in_us(waits.bubble_ns) == [0]


def test_a_short_sync_does_not_claim_the_hosts_own_218_ms() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.sync(100, 14, "cudaDeviceSynchronize")
    after(trace, 218_000, 218_010)
    assert idle_us(trace.build()) == [14, 0]


def test_a_wait_for_unrecorded_work_is_blind() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.sync(100, 114_000, "cudaDeviceSynchronize")
    waits = after(trace, 114_200, 114_210).build().waits
    assert waits.blind.tolist() == [True, False]
    assert in_us(waits.bubble_ns) == [0, 0]


def test_a_wait_beyond_the_end_of_the_device_rows_is_not_blind() -> None:
    builder = TraceBuilder()
    for i in range(20):
        builder.launch(10 * i, 5, 1000 + 100 * i, 99)
        builder.call("cudaLaunchKernel", 200 + 10 * i, 5)
    waits = builder.sync(500, 20_000).sync(30_000, 20_000).build().waits
    assert waits.blind.tolist() == [False, False]


@pytest.mark.parametrize("kind", ["HtoD (Pinned -> Device)", "DtoD (Device -> Device)"])
def test_an_asynchronous_copy_that_was_quick_is_no_wait(kind: str) -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.copy(30, 66, 40, 1, kind=kind)
    waits = after(trace).build().waits
    assert waits.profiler.tolist() == [True]


def test_without_a_device_nothing_is_idle() -> None:
    waits = TraceBuilder().sync(0, 50).sync(100, 20, "cudaDeviceSynchronize").build().waits
    assert len(waits) == 2
    assert in_us(waits.bubble_ns) == [0, 0]
    assert not len(waits.idle(np.array([0, 1])))


def test_a_trace_without_waits() -> None:
    waits = TraceBuilder(vendor="cpu").op("aten::mm", 0, 10).build().waits
    assert len(waits) == 0
    assert not len(waits.bubble)


# -- where it hides ------------------------------------------------------------------------


def blocks_in_the_copy() -> TraceBuilder:
    trace = deep()
    trace.copy(20, 985, 1000, 2, kind=READBACK)
    return trace.sync(1006, 4)


def blocks_in_the_sync() -> TraceBuilder:
    trace = deep()
    trace.copy(20, 8, 1000, 2, kind=PINNED)
    return trace.sync(30, 980)


def blocks_in_hip() -> TraceBuilder:
    trace = deep(vendor="rocm")
    trace.copy(20, 990, 1000, 2, kind="DtoD (Device -> Device)", size=1)
    return trace


@pytest.mark.parametrize("make", [blocks_in_the_copy, blocks_in_the_sync, blocks_in_hip])
def test_wherever_the_host_stands_it_is_one_wait(make: Callable[[], TraceBuilder]) -> None:
    waits = after(make()).build().waits
    assert in_us(waits.start_ns)[0] == 20
    assert in_us(waits.end_ns)[0] == 1010
    assert waits.profiler.tolist() == [False, True]
    assert waits.to_host.tolist() == [True, False]
    # the device is dry from 1002 until the next launch's work at 1040
    assert in_us(waits.bubble_ns) == [38, 0]
    assert in_us(waits.idle(~waits.profiler)) == [[1002, 1040]]


def test_a_sync_of_somebody_else_is_not_the_copys() -> None:
    trace = deep()
    trace.op("aten::copy_", 18, 12)
    trace.copy(20, 8, 1000, 2, kind="HtoD (Pinned -> Device)", size=1 << 20)
    trace.sync(32, 978)
    waits = after(trace).build().waits
    assert waits.copy.tolist() == [-1, -1]
    assert in_us(waits.start_ns)[0] == 32


def test_a_device_sync_after_a_copy_stays_explicit() -> None:
    trace = deep()
    trace.copy(20, 8, 1000, 2, kind="HtoD (Pinned -> Device)")
    trace.sync(30, 980, "cudaDeviceSynchronize")
    waits = after(trace).build().waits
    assert waits.copy.tolist() == [-1, -1]


# -- what it costs -------------------------------------------------------------------------


def test_an_empty_queue_costs_no_more_than_the_call() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.copy(500, 16, 508, 1, kind=READBACK)
    built = after(trace, 600, 606).build()
    assert idle_us(built) == [16, 0]
    # inside the call before the copy, and just behind it
    assert in_us(built.waits.idle(np.array([0]))) == [[500, 508], [509, 517]]


def test_a_second_read_is_within_the_gap_the_first_one_opened() -> None:
    trace = deep()
    trace.copy(20, 990, 1000, 2, kind=READBACK)
    trace.copy(1020, 16, 1028, 2, kind=READBACK)
    waits = after(trace, 1050, 1060).build().waits
    # the first lost 990 us and thus all of 1002-1060, less the second copy's 2 us
    assert in_us(waits.bubble_ns) == [56, 16, 0]
    assert in_us(waits.idle(~waits.profiler)) == [[1002, 1028], [1030, 1060]]


def test_a_pageable_upload_starves_the_device_while_the_host_stages_it() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.copy(100, 40_000, 36_500, 3_500, size=19_267_584)
    built = after(trace, 40_200, 40_210).build()
    assert not built.waits.blind.any()
    # host-late before the copy from 100 on, and behind it up to what the call took
    assert idle_us(built)[0] == pytest.approx(36_400 + 210)


def test_host_code_around_a_wait_counts_at_the_high_end_only() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    trace.op("aten::item", 490, 40)
    trace.copy(500, 16, 508, 1, kind=READBACK)
    built = after(trace, 600, 606).build()
    waits = built.waits
    start, end = waits.start_ns.copy(), waits.end_ns.copy()
    start[0], end[0] = 490_000, 530_000
    spans, low, high = waits.stake(np.array([0]), start, end)
    lengths = in_us(spans[:, 1] - spans[:, 0])
    assert sum(lengths) == 40
    assert sum(np.array(lengths)[low > 0]) == 16
    assert set(low.tolist()) == {0.0, 1 / built.origin.inflation}
    assert set(high.tolist()) == {1.0}


def test_stretches_of_host_time_lose_what_the_device_idles_behind_them() -> None:
    trace = TraceBuilder()
    trace.launch(0, 5, 10, 10)
    built = after(trace, 100, 106).build()
    lost = built.waits.lost(np.array([30_000]), np.array([60_000]))
    assert in_us(lost) == [[30, 60]]


def catching_up(*, second: bool = False) -> Trace:
    """Return a host that waits while 990 us are worked off, and then launches 5 x 20 us each 100.

    ``second`` : it waits again after the third launch, for nothing much.
    """
    trace = deep()
    trace.sync(20, 985)
    for number in range(5):
        start = 1010.0 + 100 * number
        trace.launch(start, 5, start + 10, 20)
        if second and number == 2:
            trace.sync(start + 20, 15)
    return trace.profiler_stop(1600, 5).build()


def test_a_host_that_lost_its_lead_starves_the_device_for_a_while() -> None:
    trace = catching_up()
    waits = trace.waits
    # a bubble from 1000 to 1020 right behind the wait; then 4 gaps of 80
    (span,) = waits.lead(waits.tells)
    assert in_us(span - trace.window.start_ns) == [1020, 1420]
    assert waits.bubble_ns[0] == 20_000
    spans, low, high = waits.stake(np.array([0]), waits.start_ns, waits.end_ns)
    assert ((spans[:, 1] - spans[:, 0]) * high).sum() == 20_000 + 4 * 80_000
    surely = (20_000 + LEAD_LOW * 4 * 80_000) / trace.origin.inflation
    assert ((spans[:, 1] - spans[:, 0]) * low).sum() == pytest.approx(surely)


def test_a_lead_lasts_until_the_next_wait_unless_that_goes_too() -> None:
    trace = catching_up(second=True)
    waits = trace.waits
    alone = waits.lead(np.array([0]))
    both = waits.lead(np.array([0, 1]))
    assert in_us(alone[0] - trace.window.start_ns) == [1020, 1220]
    assert in_us(both[1] - trace.window.start_ns) == [1320, 1420]


def test_what_the_bubble_gives_back_is_no_lead_any_more() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 500)
    trace.launch(10, 5, 20, 100)
    trace.sync(20, 105)
    for number in range(5):
        trace.launch(190 + 50 * number, 5, 200 + 50 * number, 5)
    built = trace.profiler_stop(600, 5).build()
    # the host would come 105 earlier: that wins 80 right behind the wait, and 25 of the gap from 205 on
    assert built.waits.bubble_ns[0] == 80_000
    assert in_us(built.waits.lead(np.array([0]))[0] - built.window.start_ns) == [200, 230]


def test_no_lead_is_lost_in_front_of_an_idle_device() -> None:
    trace = TraceBuilder()
    for number in range(5):
        start = 100.0 * number
        trace.launch(start, 5, start + 10, 5)
        trace.sync(start + 8, 10)
    built = trace.profiler_stop(600, 5).build()
    spans = built.waits.lead(built.waits.tells)
    assert (spans[:, 0] == spans[:, 1]).all()
