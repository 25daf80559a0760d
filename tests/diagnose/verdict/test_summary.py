"""The figures beside the findings: exact, whatever the tables and the picture can hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core import intervals
from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.verdict import summary
from torchtriage.diagnose.verdict.summary import summarise

N_NAMES = 3 * summary.N_KERNELS


def many_kernels() -> Trace:
    """Return 150 kernels, each launched three times: 1, 2 and 6 times (its number + 1) ns."""
    builder = TraceBuilder()
    at = 0.0
    for index, factor in itertools.product(range(N_NAMES), (1, 2, 6)):
        dur = (index + 1) * factor / 1000
        builder.launch(at, 0.5, at + 1, dur, f"kernel_{index}")
        at += 5
    return builder.build()


def test_mean_and_max_are_exact_with_more_kernels_than_fit_the_table() -> None:
    found = summarise(many_kernels())
    assert found.n_kernel_names == N_NAMES > len(found.top_kernels) == summary.N_KERNELS
    whole = sum(9 * (index + 1) for index in range(N_NAMES))
    for rank, one in enumerate(found.top_kernels):
        unit = N_NAMES - rank  # the longest first
        assert one.name == f"kernel_{unit - 1}"
        assert (one.count, one.total_ns, one.mean_ns, one.max_ns) == (3, 9 * unit, 3 * unit, 6 * unit)
        # a share of all kernel time, not of the table's
        assert one.share_of_kernel_sum == round(9 * unit / whole, 6)


def test_kernels_outside_the_window_do_not_count() -> None:
    builder = TraceBuilder().step(0, 0, 100).op("aten::mm", 1, 90)
    builder.launch(10, 5, 20, 30, "gemm")
    builder.kernel("gemm", -50, 7, correlation=999)
    (one,) = summarise(builder.build()).top_kernels
    assert (one.count, one.max_ns) == (1, 30_000)


def test_ops_count_their_outermost_call_and_the_device_time_they_launch() -> None:
    builder = TraceBuilder()
    builder.op("aten::linear", 0, 100).op("aten::linear", 10, 80).op("aten::mm", 20, 40)
    builder.launch(30, 5, 50, 25, "gemm")
    ops = {one.name: one for one in summarise(builder.build()).top_ops}
    linear, mm = ops["aten::linear"], ops["aten::mm"]
    assert (linear.count, linear.total_ns, linear.self_ns, linear.device_ns) == (1, 100_000, 60_000, 0)
    assert (mm.count, mm.total_ns, mm.self_ns, mm.device_ns) == (1, 40_000, 35_000, 25_000)


def test_steps_and_devices_split_their_wall_time_exactly() -> None:
    builder = TraceBuilder()
    for index in range(4):
        at = index * 100
        builder.step(index, at, 100).op("aten::mm", at + 1, 90)
        builder.launch(at + 5, 5, at + 20, 50, "gemm")
        builder.copy(at + 15, 5, at + 70, 10)
    found = summarise(builder.build())
    assert [one.name for one in found.steps] == [f"ProfilerStep#{index}" for index in range(4)]
    assert [one.steady for one in found.steps] == [False, True, True, True]
    (device,) = found.devices
    for one in (*(step.classes for step in found.steps), device.classes):
        assert one is not None
        parts = [value for name, value in vars(one).items() if name != "wall_ns"]
        assert sum(parts) == one.wall_ns
    assert found.steps[1].classes is not None
    assert found.steps[1].classes.compute_ns == 50_000
    assert found.steps[1].classes.copy_only_ns == 10_000
    assert (device.n_kernels, device.n_copies, device.n_orphans, device.n_streams) == (3, 3, 0, 1)
    assert device.classes is not None
    assert device.classes.wall_ns == 3 * 100_000  # what the verdict speaks of: the steady steps
    assert found.step_ms == 0.1
    assert found.n_steady_steps == 3


def test_orphans_are_counted_with_the_device_they_ran_on() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 100)
    builder.launch(5, 5, 20, 50, "gemm")
    builder.kernel("gemm", 72, 3, correlation=999)
    (device,) = summarise(builder.build()).devices
    assert (device.n_kernels, device.n_orphans) == (2, 1)


def test_a_trace_without_steps_or_device_says_so() -> None:
    found = summarise(TraceBuilder(vendor="cpu").op("a", 0, 10).build())
    assert (found.steps, found.devices, found.top_kernels) == ((), (), ())
    assert found.step_ms is None


# -- the picture -------------------------------------------------------------------------------


def busy_trace() -> Trace:
    """Return more launches, streams and threads than the picture has room for."""
    builder = TraceBuilder().step(0, 0, 60_000)
    for index in range(5_000):
        at = index * 12.0
        thread = index % 9
        builder.op("aten::mm", at, 6, tid=thread)
        builder.launch(at + 1, 1, at + 4, 3, f"k{index % 7}", stream=index % 11, tid=thread)
        if index % 3 == 0:
            builder.copy(at + 3, 1, at + 8, 1, stream=index % 11, tid=thread)
    return builder.build()


def test_alternating_classes_are_shown_as_the_one_that_takes_most_time() -> None:
    (lane,) = (one for one in summarise(alternating_trace()).timeline if one.kind == "device")
    assert len(lane.spans) <= summary.N_SPANS
    assert {what for _, _, what, _ in lane.spans} == {"compute"}


def test_the_picture_keeps_its_limits() -> None:
    trace = busy_trace()
    found = summarise(trace)
    kinds = [lane.kind for lane in found.timeline]
    assert kinds.count("device") == summary.N_LANES
    assert kinds.count("thread") == summary.N_LANES
    window = trace.window
    for lane in found.timeline:
        assert 0 < len(lane.spans) <= summary.N_SPANS
        starts = [start for start, _, _, _ in lane.spans]
        assert starts == sorted(starts)
        assert all(window.start_ns <= a < b <= window.end_ns for a, b, _, _ in lane.spans)


def test_the_picture_shows_all_work_when_it_fits() -> None:
    builder = TraceBuilder()
    for index in range(50):
        builder.launch(index * 10, 1, index * 10 + 3, 5, f"k{index}")
    trace = builder.build()
    (lane,) = (lane for lane in summarise(trace).timeline if lane.kind == "device")
    rows = np.flatnonzero(trace.kind == Kind.KERNEL)
    spans = np.array([(start, end) for start, end, _, _ in lane.spans])
    assert (spans == intervals.spans(trace.start_ns[rows], trace.end_ns[rows])).all()
    assert [name for _, _, _, name in lane.spans] == [f"k{index}" for index in range(50)]


def alternating_trace() -> Trace:
    """Return kernels and copies that take turns, far more of them than a lane may hold."""
    builder = TraceBuilder()
    for index in range(2 * summary.N_SPANS):
        builder.launch(index * 10, 1, index * 10 + 3, 4, "gemm")
        builder.copy(index * 10 + 4, 1, index * 10 + 7, 2)
    return builder.build()


@pytest.mark.parametrize("trace", [busy_trace(), alternating_trace()], ids=["busy", "alternating"])
def test_merging_hides_no_busy_time(trace: Trace) -> None:
    for lane in summarise(trace).timeline:
        if lane.kind != "device":
            continue
        number = int(lane.label.rsplit(" ", 1)[1])
        mine = [i for i, one in enumerate(trace.lanes) if one.kind == "stream" and one.stream == number]
        rows = np.flatnonzero(trace.works & np.isin(trace.lane, mine))
        shown = intervals.union(np.array([(a, b) for a, b, _, _ in lane.spans], np.int64))
        work = intervals.spans(trace.start_ns[rows], trace.end_ns[rows])
        assert (intervals.covered(work, shown) == trace.dur_ns[rows]).all()
