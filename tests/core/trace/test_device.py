"""Devices: classes of time, gaps and whom they are blamed on."""

from __future__ import annotations

import numpy as np
from builder import TraceBuilder
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core import intervals
from torchtriage.core.trace import Trace
from torchtriage.core.trace.device import HOST_LATE, QUEUED, UNKNOWN, find_devices


def late_us(trace: Trace) -> list[list[float]]:
    return (trace.devices[0].host_late / 1000).tolist()


def gaps(trace: Trace) -> list[tuple[float, float, int]]:
    found = trace.devices[0].gaps
    return [
        (start / 1000, end / 1000, blame)
        for (start, end), blame in zip(found.spans.tolist(), found.blame.tolist(), strict=True)
    ]


# -- classes -----------------------------------------------------------------------------------


def test_compute_hides_communication_which_hides_copies() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(1, 1, 10, 40, "gemm")  # 10-50
    builder.launch(3, 1, 40, 60, "ncclDevKernel_AllReduce", stream=20)  # 40-100
    builder.copy(5, 1, 80, 50, kind="HtoD (Pinned -> Device)", stream=21)  # 80-130
    device = builder.build().devices[0]
    (one,) = device.classes(np.array([[0, 200_000]]))
    assert one.wall_ns == 200_000
    assert one.compute_ns == 40_000
    assert one.comm_only_ns == 50_000
    assert one.copy_only_ns == 30_000
    assert intervals.length(device.busy) == 120_000
    assert device.streams.tolist() == [7, 20, 21]


def test_sets_are_compute_and_gpu_annotations_are_no_work() -> None:
    builder = TraceBuilder().step(0, 0, 100).op("aten::zero_", 0, 1.5)
    builder.event("Memset (Device)", "gpu_memset", 10, 5, pid=0, tid=7, device=0, stream=7, correlation=900)
    builder.event("forward", "gpu_user_annotation", 0, 90, pid=0, tid=7)
    device = builder.build().devices[0]
    assert intervals.length(device.compute) == 5_000
    assert intervals.length(device.busy) == 5_000


def test_streams_are_united_never_summed() -> None:
    builder = TraceBuilder().step(0, 0, 100).op("aten::op", 0, 1.5)
    builder.launch(1, 1, 10, 50)
    builder.launch(2, 1, 10, 50, stream=8)
    assert intervals.length(builder.build().devices[0].busy) == 50_000


def test_the_busiest_device_comes_first() -> None:
    builder = TraceBuilder().op("aten::op", 0, 1.5)
    builder.launch(1, 1, 10, 5, device=0)
    builder.launch(2, 1, 10, 50, device=1)
    assert [device.index for device in builder.build().devices] == [1, 0]


def test_no_work_is_no_device() -> None:
    assert find_devices(TraceBuilder().op("aten::op", 0, 1.5).build()) == ()


# -- gaps --------------------------------------------------------------------------------------


def test_a_launch_after_the_device_ran_dry_is_late() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(0, 5, 10, 20)
    builder.launch(70, 8, 85, 10)
    assert gaps(builder.build()) == [(0, 10, HOST_LATE), (30, 85, HOST_LATE)]


def test_a_launch_in_time_is_queued() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(0, 5, 10, 20)
    builder.launch(6, 8, 85, 10)
    assert gaps(builder.build())[1] == (30, 85, QUEUED)


def test_back_to_back_is_the_devices_own() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(0, 5, 10, 20)
    builder.launch(27, 4.5, 32, 10)
    builder.launch(41, 2.5, 44.5, 10)
    assert gaps(builder.build())[1:] == [(30, 32, QUEUED), (42, 44.5, HOST_LATE)]


def test_an_orphan_ends_an_unknown_gap() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(0, 5, 10, 20)
    builder.launch(190, 5, 198, 1)
    builder.kernel("orphan", 250, 10, correlation=999)
    builder.step(1, 200, 200)
    assert (198 + 1, 250, UNKNOWN) in gaps(builder.build())


def test_graph_kernels_follow_each_other_without_the_host() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("replay", 0, 100.5)
    builder.call("cudaGraphLaunch", 5, 90, correlation=50)
    builder.kernel("a", 20, 10, correlation=50).kernel("b", 60, 10, correlation=50)
    trace = builder.build()
    assert gaps(trace) == [(0, 20, HOST_LATE), (30, 60, QUEUED)]
    # ... so shortening the first one brings the second forward
    assert trace.devices[0].followed_in_time.tolist() == [True, True]


def test_a_gap_is_the_hosts_until_its_launch_call_returns() -> None:
    # the work starts long after a launch takes: the stream was busy with what was not recorded
    builder = TraceBuilder().step(0, 0, 1000).op("aten::op", 0, 1.5)
    builder.launch(100, 10, 800, 20)
    assert gaps(builder.build()) == [(0, 110, HOST_LATE), (110, 800, QUEUED)]


def test_gaps_end_with_the_window() -> None:
    builder = TraceBuilder().step(0, 0, 100).op("aten::op", 0, 1.5)
    builder.launch(1, 2, 10, 10)
    builder.launch(150, 2, 160, 10)  # after the last step
    trace = builder.build()
    assert trace.window.end_ns == 100_000
    assert gaps(trace)[-1] == (20, 100, HOST_LATE)


def test_a_row_is_followed_when_the_next_launch_came_before_its_end() -> None:
    builder = TraceBuilder().step(0, 0, 200).op("aten::op", 0, 1.5)
    builder.launch(0, 5, 10, 20)
    builder.launch(6, 5, 31, 10)  # launched at 11, in time
    builder.launch(60, 5, 70, 10)  # late
    assert builder.build().devices[0].followed_in_time.tolist() == [True, False, True]


# -- which thread, and what it did ---------------------------------------------------------------


def test_host_work_is_the_part_of_a_late_gap_inside_ops_or_calls() -> None:
    builder = TraceBuilder().step(0, 0, 300).annotation("forward", 0, 300)
    builder.op("aten::op", 0, 6.5)
    builder.launch(0, 5, 10, 20)
    builder.op("aten::mm", 100, 20.5)
    builder.launch(105, 5, 115, 30)
    device = builder.build().devices[0]
    assert (device.host_work / 1000).tolist() == [[0, 6.5], [100, 115]]


def test_ops_of_other_threads_do_not_count() -> None:
    builder = TraceBuilder().step(0, 0, 300).op("aten::op", 0, 6.5)
    builder.launch(0, 5, 10, 20)
    builder.op("aten::collate", 30, 60, tid=9)  # a background thread
    builder.launch(105, 5, 115, 30)
    device = builder.build().devices[0]
    assert (device.host_work / 1000).tolist() == [[0, 6.5], [105, 110]]


def test_the_main_thread_and_the_autograd_engine_are_one() -> None:
    builder = TraceBuilder().step(0, 0, 300).op("aten::loss", 0, 50.5)
    builder.launch(1, 5, 10, 20)
    builder.op("autograd::engine::evaluate_function: MulBackward0", 60, 30, tid=2)
    builder.launch(70, 5, 90, 10, tid=2)
    device = builder.build().devices[0]
    assert (device.host_work / 1000).tolist() == [[0, 10], [30, 50.5], [60, 90]]
    assert np.unique(device.gap_lane).tolist() == [device.trace.steps.lane]


def test_a_gap_waits_for_the_thread_that_launches_next() -> None:
    builder = TraceBuilder().step(0, 0, 300).op("aten::op", 0, 6.5)
    builder.launch(0, 5, 10, 20)
    builder.op("aten::side", 90, 30, tid=5)
    builder.launch(100, 5, 115, 30, tid=5)
    trace = builder.build()
    lanes = [trace.lanes[code].tid for code in trace.devices[0].gap_lane.tolist()]
    assert lanes == ["1", "5"]


# -- laws ----------------------------------------------------------------------------------------

work = st.lists(
    st.tuples(
        st.integers(0, 40),  # host time before the launch
        st.integers(0, 60),  # from launch to start
        st.integers(1, 50),
        st.sampled_from(["gemm", "ncclDevKernel_X"]),
        st.integers(7, 9),
    ),
    min_size=1,
    max_size=15,
)


@given(work, st.integers(0, 10**9))
def test_classes_add_up_and_shifting_changes_none(rows: list[tuple[int, int, int, str, int]], shift: int) -> None:
    def build(at: int) -> Trace:
        builder, host = TraceBuilder().step(0, at, 500).step(1, at + 500, 500.5), 0
        for before, delay, dur, name, stream in rows:
            host += before + 2
            builder.launch(at + host, 2, at + host + 2 + delay, dur, name, stream=stream)
        return builder.build()

    here, there = build(0), build(shift)
    pieces = np.stack([here.steps.start_ns, here.steps.end_ns], axis=1)
    device = here.devices[0]
    for one, wall in zip(device.classes(pieces), pieces[:, 1] - pieces[:, 0], strict=True):
        parts = (
            one.compute_ns,
            one.comm_only_ns,
            one.copy_only_ns,
            one.idle_host_late_ns,
            one.idle_queued_ns,
            one.idle_unknown_ns,
        )
        assert sum(parts) == wall
        assert min(parts) >= 0
    assert there.devices[0].classes(pieces + shift * 1000) == device.classes(pieces)
    found = device.gaps.spans
    assert (found[1:, 0] >= found[:-1, 1]).all()
    assert not len(intervals.intersect(found, device.busy))
    assert intervals.length(intervals.subtract(device.host_work, device.host_late)) == 0
