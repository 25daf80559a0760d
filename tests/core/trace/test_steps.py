"""Steps: where they come from, their wall boundaries, and which of them are steady."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder, row
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core import intervals
from torchtriage.core.trace import Trace
from torchtriage.core.trace.steps import first_use, profiler_stop


def wall_us(trace: Trace) -> list[float]:
    return ((trace.steps.end_ns - trace.steps.start_ns) / 1000).tolist()


# -- boundaries --------------------------------------------------------------------------------


def test_a_step_ends_when_the_device_has_done_what_was_enqueued_before() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.step(i, 100 * i, 100)
        builder.launch(100 * i + 10, 5, 100 * i + 20, 130)  # the queue fills up
    trace = builder.build()
    # work: 20-150, 120-250, 220-350; the host ends at 300, the device at 350
    assert (trace.steps.start_ns / 1000).tolist() == [0, 150, 250]
    assert (trace.steps.end_ns / 1000).tolist() == [150, 250, 350]
    assert trace.window[:2] == (0, 350_000)
    assert trace.window.basis == "3 ProfilerStep# marks"


def test_steps_are_contiguous_even_where_the_marks_are_not() -> None:
    trace = TraceBuilder().step(0, 0, 80).step(1, 100, 80).op("aten::add", 110, 5.5).build()
    assert wall_us(trace) == [100, 80]


def test_the_backlog_from_before_the_recording_is_no_step_of_ours() -> None:
    builder = TraceBuilder().step(0, 0, 100).step(1, 100, 100.5)
    builder.kernel("orphan", 5, 40, correlation=999)
    builder.launch(10, 5, 50, 20)
    trace = builder.build()
    assert (trace.steps.start_ns / 1000).tolist() == [45, 100]
    assert trace.window.start_ns == 45_000


def test_the_backlog_may_run_longer_than_the_host_is_in_the_step() -> None:
    builder = TraceBuilder().step(0, 0, 100)
    for start in (5, 60, 110, 150):  # the host is 200 us ahead
        builder.kernel("orphan", start, 40, correlation=999)
    builder.launch(10, 5, 200, 50)
    trace = builder.build()
    assert (trace.steps.start_ns / 1000).tolist() == [190]
    assert wall_us(trace) == [60]


def test_the_profilers_own_start_is_no_time_of_the_program() -> None:
    builder = TraceBuilder().frame("run.py(1): main", 0, 8000)
    builder.frame("torch/profiler/profiler.py(695): __enter__", 1, 5999)
    builder.frame("torch/autograd/profiler.py(783): __enter__", 6050, 40)  # a range of the program
    builder.op("aten::mm", 6100, 100)
    builder.launch(6110, 5, 6120, 1000)
    trace = builder.build()
    assert trace.window.start_ns == trace.window.host_start_ns == 6_000_000
    assert trace.window.basis.startswith("after 6.00 ms in which the profiler started; ")
    # what runs meanwhile is the program's
    builder.op("aten::add", 3000, 10)
    builder.launch(3001, 5, 3010, 10)
    assert builder.build().window.start_ns == 3_000_000


def test_without_steps_the_window_begins_with_the_device() -> None:
    """Loading, or a call that waits for work of before, is no part of a loop that anybody can see."""
    builder = TraceBuilder().op("aten::empty", 0, 10).op("aten::copy_", 50_000, 900)
    builder.copy(50_010, 890, 50_880, 20)
    builder.launch(51_000, 5, 51_010, 400)
    trace = builder.build()
    assert trace.window.start_ns == trace.window.host_start_ns == 50_880_000
    assert trace.window.basis.startswith("after 50.9 ms before the device's first work; ")
    # the copy is work of the window, though it was launched before
    assert trace.steps.of_work(trace.devices[0].rows).tolist() == [0, 0]
    # a file that was cut at an annotation begins with it
    assert builder.annotation("batch", 0, 52_000).build().window.start_ns == 0
    # a long wait before it says that work is missing
    waits = TraceBuilder().call("cudaDeviceSynchronize", 0, 40_000)
    waits.launch(51_000, 5, 51_010, 400)
    assert waits.build().window.start_ns == 0
    short = TraceBuilder().op("aten::mm", 0, 100)
    short.launch(5, 5, 90, 50)
    assert short.build().window.start_ns == 0


def test_no_step_loses_more_than_it_lasts_where_steps_differ() -> None:
    # with the median as the denominator this loop was idle 17 of 10 ms
    builder, at = TraceBuilder(), 0.0
    for index, dur in enumerate([1000, 1000, 1000, 2700, 2800]):
        builder.step(index, at, dur)
        builder.launch(at + dur - 20, 5, at + dur - 12, 10.5)
        at += dur
    trace = builder.build()
    steps = trace.steps
    assert steps.steady.tolist() == [False, True, True, True, True]
    idle_ns = intervals.length(intervals.intersect(trace.devices[0].idle, steps.judged))
    assert idle_ns / steps.n_steady < steps.wall_ns
    assert steps.wall_ns * steps.n_steady == pytest.approx(intervals.length(steps.judged), abs=4)


def test_marks_that_are_not_used_are_counted() -> None:
    builder = TraceBuilder().step(0, 0, 100).step(1, 100, 100).step(2, 200, 100.5)
    builder.step(0, 10, 100, tid=2).step(1, 150, 10)
    basis = builder.build().window.basis
    assert basis == "3 ProfilerStep# marks of the main loop, 2 more on other threads or overlapping"


def test_files_with_many_names_are_read_in_time_that_grows_with_the_events() -> None:
    # one pass over all rows for each name takes minutes here
    builder = TraceBuilder()
    for i in range(20_000):
        at = 40_000.0 * i
        builder.annotation(f"request {i}", at, 30_000)
        builder.call(f"cudaCall{i}", at + 1, 15_000).call(f"cudaCall{i}", at + 16_000, 100.5)
    trace = builder.build()
    assert not len(trace.steps)
    assert len(trace.first_use) == 20_000


def test_gpu_projections_of_the_marks_are_not_steps() -> None:
    builder = TraceBuilder().step(4, 0, 100).step(5, 100, 100.5)
    builder.event("ProfilerStep#4", "gpu_user_annotation", 20, 90, pid=0, tid=7)
    trace = builder.build()
    assert trace.steps.names == ("ProfilerStep#4", "ProfilerStep#5")


def test_old_recordings_mark_steps_as_operators() -> None:
    builder = TraceBuilder()
    for i in range(2):
        builder.event(f"ProfilerStep#{i}", "Operator", 100 * i, 100)
    assert len(builder.op("aten::add", 5, 5.5).build().steps) == 2


def test_marks_of_another_thread_are_left_out() -> None:
    builder = TraceBuilder().step(0, 0, 100).step(1, 100, 100).step(0, 10, 500, tid=9)
    trace = builder.op("aten::add", 5, 5.5).build()
    assert wall_us(trace) == [100, 100]
    assert trace.lanes[trace.steps.lane].tid == "1"


# -- where steps come from ---------------------------------------------------------------------


def test_a_repeated_annotation_that_covers_the_window_marks_the_loop() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.annotation("request", 100 * i, 90).op("aten::add", 100 * i + 5, 5.5)
    trace = builder.build()
    assert trace.steps.names == ("request 0", "request 1", "request 2")
    assert "annotation 'request'" in trace.window.basis
    assert (trace.window.start_ns, trace.window.end_ns) == (0, 290_000)


@pytest.mark.parametrize("name", ["iteration {}", "train_step_{}", "Batch #{}", "iter={}"])
def test_annotations_that_count_mark_the_loop(name: str) -> None:
    builder = TraceBuilder()
    for i in range(9, 13):
        builder.annotation(name.format(i), 100 * i, 90.5).op("aten::mm", 100 * i + 10, 70)
    trace = builder.build()
    assert trace.steps.names == tuple(name.format(i) for i in range(9, 13))
    assert trace.steps.start_ns.tolist() == [900_000, 1_000_000, 1_100_000, 1_200_000]
    assert f"annotations like {name.format(9)!r}" in trace.window.basis


@pytest.mark.parametrize("name", ["layer {}", "block_{}", "step {} of warm-up", "stepper{}x"])
def test_other_annotations_with_numbers_mark_no_loop(name: str) -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.annotation(name.format(i), 100 * i, 90.5).op("aten::mm", 100 * i + 10, 70)
    assert len(builder.build().steps) == 0


@pytest.mark.parametrize("name", ["nccl:all_reduce", "enumerate(DataLoader)#_X.__next__"])
def test_annotations_of_the_framework_mark_no_loop(name: str) -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.annotation(name, 100 * i, 90).op("aten::add", 100 * i + 95, 5.5)
    assert not len(builder.build().steps)


def test_an_annotation_that_covers_little_marks_no_loop() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.annotation("loss", 100 * i, 10).op("aten::add", 100 * i + 20, 70.5)
    assert not len(builder.build().steps)


def test_optimizer_calls_mark_the_loop_from_end_to_end() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.op("aten::mm", 100 * i, 50.5).annotation("Optimizer.step#SGD.step", 100 * i + 60, 20)
    trace = builder.build()
    assert wall_us(trace) == [100, 100, 100]
    assert "4 calls of Optimizer.step#SGD.step" in trace.window.basis
    assert trace.window.start_ns == 0


def test_nothing_repeated_is_one_window() -> None:
    trace = TraceBuilder().op("aten::mm", 10, 50.5).op("aten::add", 80, 20).build()
    assert len(trace.steps) == 0
    assert trace.steps.n_steady == 1
    assert trace.steps.wall_ns == 90_000
    assert trace.steps.judged.tolist() == [[10_000, 100_000]]
    rows = np.array([row(trace, "aten::mm"), row(trace, "aten::add")])
    assert trace.steps.of_host(rows).tolist() == [0, 0]
    assert trace.steps.per_step(trace.steps.of_host(rows)).tolist() == [2]


def ending(n_with_rows: int, lost: tuple[int, ...] = ()) -> TraceBuilder:
    """Return 40 launches, of which the first ones have rows, each 150 us behind its launch."""
    builder = TraceBuilder()
    for i in range(40):
        builder.op("aten::mm", 100 * i + 1, 98.5)
        if i < n_with_rows and i not in lost:
            builder.launch(100 * i + 10, 5, 100 * i + 160, 90)
        else:
            builder.call("cudaLaunchKernel", 100 * i + 10, 5)
    return builder


@pytest.mark.parametrize(
    ("n_with_rows", "lost", "end_us"),
    [
        (40, (), 4150),
        (25, (), 2650),
        (25, (3,), 2650),
        (25, (3, 9, 15), 3999.5),  # here and there: nothing is known
        (10, (), 1150),
        (9, (), 3999.5),  # hardly any were written
    ],
)
def test_the_window_ends_with_the_device_rows_where_later_launches_have_none(
    n_with_rows: int, lost: tuple[int, ...], end_us: float
) -> None:
    assert ending(n_with_rows, lost).build().window.end_ns == end_us * 1000


def test_replays_that_have_no_rows_were_never_recorded() -> None:
    builder = ending(25).call("cudaGraphLaunch", 3995, 2)
    assert builder.build().window.end_ns == 3_999_500


def test_steps_go_on_where_the_device_rows_end() -> None:
    builder = ending(25)
    for i in range(4):
        builder.step(i, 1000 * i, 1000)
    trace = builder.build()
    assert trace.steps.left_out == ("as the first", "", "", "")
    assert trace.window.end_ns == 4_000_000


@pytest.mark.parametrize(
    ("lengths", "work", "captured", "n_warm"),
    [
        ((9, 15, 15, 15, 8, 8, 8, 8), 5, 3, 3),
        ((9, 15, 15, 15, 8, 8, 8, 8), 5, 7, 0),
        ((9, 8, 8, 8, 8, 8, 8, 8), 5, 3, 0),
        ((9, 15, 15, 15, 15, 15, 8, 8), 5, 5, 0),
        ((9, 15, 15, 15, 8, 8, 8, 8), 12, 3, 0),
    ],
    ids=["slower before", "captured to the end", "as fast before", "few after", "more work before"],
)
def test_slower_steps_before_a_graph_is_captured_are_warm_up(
    lengths: tuple[int, ...], work: int, captured: int, n_warm: int
) -> None:
    builder, at = TraceBuilder(), 0
    for number, length in enumerate(lengths):
        builder.step(number, 1000 * at, 1000 * length).op("aten::mm", 1000 * at + 10, 50)
        builder.launch(1000 * at + 20, 5, 1000 * at + 30, 1000 * (work if number <= captured else 5), "gemm")
        if number == captured:
            builder.call("cudaStreamBeginCapture", 1000 * at + 100, 5)
        at += length
    left_out = builder.build().steps.left_out
    assert left_out == ("as the first", *("as the warm-up of a graph",) * n_warm, *("",) * (7 - n_warm))


def test_the_window_leaves_out_the_profilers_own_rows() -> None:
    builder = TraceBuilder().op("aten::mm", 100, 50.5)
    builder.event("PyTorch Profiler (0)", "Trace", 0, 900, pid="Spans", tid="x")
    builder.event("Buffer Flush", "overhead", 5, 10, pid=-1, tid=0)
    builder.frame("torch/profiler/profiler.py(9): stop", 100, 700)
    builder.profiler_stop(160, 500)
    trace = builder.build()
    assert (trace.window.start_ns, trace.window.end_ns) == (100_000, 150_500)


def test_what_the_profiler_calls_as_it_writes_out_is_not_the_programs() -> None:
    builder = TraceBuilder().annotation("forward", 0, 300)
    builder.launch(5, 2, 10, 100)
    builder.sync(20, 95, "cuCtxSynchronize")  # the program's own
    builder.event("CUDA profiling data flush on analysis stop", "overhead", 900, 50)
    builder.sync(905, 5, "cuCtxSynchronize").call("cuCtxSynchronize", 906, 5, tid=9)
    assert builder.build().window.end_ns == 911_000  # another thread goes on meanwhile
    builder.events.pop()
    trace = builder.build()
    assert trace.window.end_ns == 300_000
    assert np.flatnonzero(profiler_stop(trace)).tolist() == [row(trace, "cuCtxSynchronize", 1)]


def test_the_window_ends_before_the_process_gives_back_what_it_had() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 30.5)
    builder.launch(5, 2, 40, 100)
    builder.call("cudaFree", 150, 20).call("cuModuleUnload", 200, 80_000)
    trace = builder.build()
    assert trace.window.end_ns == 140_000
    assert "after it the process spends 80.0 ms freeing what it held" in trace.window.basis
    assert not len(trace.first_use)


def test_what_is_given_back_within_an_operator_or_before_more_work_is_the_programs() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 30.5).op("mine::reset", 145, 100.5)
    builder.launch(5, 2, 40, 100)
    assert builder.call("cudaFree", 150, 20).build().window.end_ns == 245_500
    builder = TraceBuilder().op("aten::mm", 0, 30.5)
    builder.launch(5, 2, 40, 100)
    builder.call("cudaFree", 150, 20)
    builder.launch(200, 2, 210, 10)
    assert builder.build().window.end_ns == 220_000


# -- steady steps ------------------------------------------------------------------------------


def steps(*walls: float) -> TraceBuilder:
    builder, start = TraceBuilder(), 0.0
    for i, wall in enumerate(walls):
        builder.step(i, start, wall).op("aten::add", start + 0.1, wall / 50)
        start += wall
    return builder


def test_the_first_of_three_is_not_steady() -> None:
    assert steps(100, 100, 100).build().steps.steady.tolist() == [False, True, True]
    assert steps(100, 100).build().steps.steady.tolist() == [True, True]


def test_outliers_are_not_steady_and_the_mean_of_the_others_is_the_denominator() -> None:
    trace = steps(100, 100, 120, 400, 100).build()
    assert trace.steps.steady.tolist() == [False, True, True, False, True]
    assert trace.steps.wall_ns == 320_000 // 3
    assert trace.steps.n_steady == 3
    assert trace.steps.judged.tolist() == [[100_000, 320_000], [720_000, 820_000]]


def test_a_step_that_compiles_is_not_steady() -> None:
    builder = steps(100, 100, 100, 100)
    builder.annotation("_compile.compile_inner (dynamo_timed)", 210, 30)
    builder.annotation("compile_file", 310, 3)  # 3 % of its step
    assert builder.build().steps.steady.tolist() == [False, True, False, True]


def test_where_most_of_the_later_steps_compile_they_are_the_loop() -> None:
    builder = steps(*[100] * 6)
    for index in (1, 3, 4, 5):
        builder.annotation("_compile.compile_inner (dynamo_timed)", 100 * index + 10, 30)
    assert builder.build().steps.steady.tolist() == [False, True, True, True, True, True]


def test_a_long_warm_up_is_not_the_loop() -> None:
    builder = steps(*[100] * 6)
    for index in (0, 1, 2, 3):
        builder.annotation("_compile.compile_inner (dynamo_timed)", 100 * index + 10, 30)
    assert builder.build().steps.steady.tolist() == [False, False, False, False, True, True]


def test_a_step_that_loads_kernels_is_not_steady() -> None:
    builder = steps(100, 100, 100)
    builder.event("Lazy Function Loading", "overhead", 110, 20, pid=-1, tid=0)
    assert builder.build().steps.steady.tolist() == [False, False, True]


def test_a_mark_after_the_last_iteration_is_not_steady() -> None:
    builder = steps(100, 100, 100).step(3, 300, 1)
    assert builder.build().steps.steady.tolist() == [False, True, True, False]
    builder.op("aten::mm", 300.1, 0.5)
    assert builder.build().steps.steady.tolist() == [False, True, True, True]


def test_when_no_step_is_steady_all_count() -> None:
    builder = steps(100, 100)
    builder.annotation("compile_file", 10, 50).annotation("compile_file", 110, 50)
    assert builder.build().steps.steady.tolist() == [True, True]


def test_a_range_around_everything_hides_no_main_thread() -> None:
    builder = TraceBuilder().annotation("model_inference", 0, 1_000)
    trace = builder.op("aten::mm", 10, 50).build()
    assert trace.lane[trace.named("aten::mm")].tolist() == [trace.steps.lane]


def test_counts_per_steady_step() -> None:
    builder = steps(100, 100, 100, 100)
    for start in (10, 110, 120, 210, 310, 320, 330):
        builder.op("aten::item", start, 1.5)
    trace = builder.build()
    of = trace.steps.of_host(np.flatnonzero(trace.named("aten::item")))
    assert of.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert trace.steps.per_step(of).tolist() == [2, 1, 3]
    assert trace.steps.median_count(of) == 2
    assert trace.steps.in_steady(of).tolist() == [False] + [True] * 6
    assert trace.steps.share_of_steps(of[of != 2]) == pytest.approx(2 / 3)
    outside = trace.steps.of_host(np.array([row(trace, "aten::add")]))
    assert outside.tolist() == [0]


def test_work_belongs_to_the_step_that_enqueued_it() -> None:
    builder = steps(100, 100, 100)
    builder.launch(190, 5, 250, 20, "late")
    trace = builder.build()
    assert trace.steps.of_work(np.array([row(trace, "late")])).tolist() == [1]


# -- first use and the profiler's stop -----------------------------------------------------------


def test_first_use_is_a_slow_call_that_does_not_wait() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    builder.call("cudaFree", 1_000, 20_000)
    builder.call("cudaDeviceSynchronize", 30_000, 20_000)
    builder.call("cudaMemcpyAsync", 60_000, 20_000)
    builder.call("cudaLaunchKernel", 90_000, 5)
    trace = builder.op("aten::add", 95_000, 10).build()
    assert [trace.name_of(one) for one in first_use(trace).tolist()] == ["cudaFree"]


def test_calls_that_load_modules_are_first_use_however_short() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    for at, name in enumerate(
        ("cuModuleGetLoadingMode", "cudaLibraryLoadData", "hipModuleLoadData", "cuLibraryGetKernel")
    ):
        builder.call(name, 100 * at, 50)
    loads = first_use(builder.build())
    assert [builder.build().name_of(load) for load in loads.tolist()] == ["cudaLibraryLoadData", "hipModuleLoadData"]


def test_a_call_that_is_always_slow_is_no_first_use() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    for i in range(9):
        builder.call("hipFree", 20_000 * i, 12_000)
    assert not len(first_use(builder.build()))


def test_a_call_that_waits_for_the_device_is_no_first_use() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    builder.launch(1, 2, 10, 20_000)
    builder.call("cudaFree", 50, 19_000)
    assert not len(first_use(builder.build()))


def test_a_call_near_its_usual_time_is_no_first_use() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    for i in range(3):
        builder.call("cudaMalloc", 20_000 * i, 9_000)
    builder.call("cudaMalloc", 60_000, 11_000)
    assert not len(first_use(builder.build()))


def test_the_profilers_stop_is_the_last_device_sync_outside_operators() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10.5)
    builder.sync(20, 5, "cudaDeviceSynchronize").sync(40, 5, "cudaDeviceSynchronize")
    trace = builder.sync(60, 5, "cudaStreamSynchronize").build()
    assert np.flatnonzero(profiler_stop(trace)).tolist() == [row(trace, "cudaDeviceSynchronize", 1)]
    inside = TraceBuilder().op("mine::barrier", 0, 50.5).sync(10, 5, "cudaDeviceSynchronize")
    assert not profiler_stop(inside.build()).any()


# -- laws ----------------------------------------------------------------------------------------

loops = st.lists(st.tuples(st.integers(20, 200), st.integers(0, 15), st.integers(1, 150)), min_size=1, max_size=8)


@given(loops, st.integers(0, 10**9))
def test_steps_tile_the_window_and_shifting_moves_nothing(rows: list[tuple[int, int, int]], shift: int) -> None:
    def build(at: int) -> Trace:
        builder, host = TraceBuilder().op("aten::op", at, 1.5), 0
        for i, (dur, launch, work) in enumerate(rows):
            builder.step(i, at + host, dur)
            builder.launch(at + host + launch, 2, at + host + launch + 4, work)
            host += dur
        return builder.build()

    here, there = build(0), build(shift)
    steps = here.steps
    assert steps.start_ns[0] == here.window.start_ns
    assert steps.end_ns[-1] == here.window.end_ns
    assert (steps.start_ns[1:] == steps.end_ns[:-1]).all()
    assert (steps.end_ns >= steps.start_ns).all()
    assert steps.steady.any()
    assert (there.steps.start_ns - shift * 1000).tolist() == steps.start_ns.tolist()
    assert there.steps.steady.tolist() == steps.steady.tolist()
    assert there.steps.wall_ns == steps.wall_ns
