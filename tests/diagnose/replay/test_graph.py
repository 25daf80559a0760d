"""Each way of waiting is found, and what it does to a step is what happens on a real machine."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.replay import programs
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.replay import Edit, ReplayModel, model, parse_what_if
from torchtriage.diagnose.replay.engine import schedule
from torchtriage.diagnose.replay.graph import EdgeKind, NodeKind, build

US = 1_000


def count(trace: Trace, kind: EdgeKind) -> int:
    return int((model(trace).graph.edge_kind == kind).sum())


def saved_us(trace: Trace, *edits: Edit) -> float:
    return model(trace).predict(edits).saving_ns / US


def asked_us(trace: Trace, question: str) -> float:
    return saved_us(trace, *parse_what_if(question).edits(trace))


@pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
def test_every_program_is_told_again_from_its_causes(program) -> None:
    trace = program()
    quality = model(trace).quality
    assert quality.accepted, quality.reason
    assert abs(quality.strict_error) <= 0.003
    assert quality.unexplained <= 0.003
    assert quality.pinned <= 0.001
    assert model(trace).step_ns == pytest.approx(trace.steps.wall_ns, rel=1e-3)


@pytest.mark.parametrize(
    ("program", "kind", "n"),
    [
        (programs.host_bound, EdgeKind.LAUNCH, 40),
        (programs.reads_back, EdgeKind.STREAM_SYNC, 4),
        (programs.device_sync_per_step, EdgeKind.DEVICE_SYNC, 8),
        (programs.uploads_pageable, EdgeKind.COPY, 4),
        (programs.frees, EdgeKind.MEMORY, 4),
        (programs.blocking_launches, EdgeKind.BLOCKING_LAUNCH, 32),
        (programs.queue_limited, EdgeKind.QUEUE, 1_400),
        (programs.two_streams, EdgeKind.RECORDED, 8),
        # to the engine and back, in every step
        (programs.backward_on_engine, EdgeKind.HAND_OFF, 8),
        (programs.loads_with_workers, EdgeKind.BATCH, 6),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_each_kind_of_wait_is_found(program, kind: EdgeKind, n: int) -> None:
    assert count(program(), kind) == n


def test_one_launch_edge_for_all_kernels_of_a_graph() -> None:
    assert count(programs.graph_launches(), EdgeKind.LAUNCH) == 4


# -- what a change does ---------------------------------------------------------------------------


def test_where_the_host_is_late_a_faster_device_gives_nothing() -> None:
    trace = programs.host_bound()
    assert asked_us(trace, "gpu*0.5") == pytest.approx(0, abs=1)
    assert asked_us(trace, "cpu*0.5") == pytest.approx(600, rel=0.02)


def test_where_the_device_is_late_a_faster_host_gives_nothing() -> None:
    trace = programs.device_bound()
    assert asked_us(trace, "cpu*0.5") == pytest.approx(0, abs=1)
    assert asked_us(trace, "gpu*0.5") == pytest.approx(500, rel=0.02)


def test_without_the_read_the_host_runs_ahead_of_the_device() -> None:
    trace = programs.reads_back()
    # 747 us become the 607 us that the device needs
    assert asked_us(trace, "no-sync") == pytest.approx(140, abs=5)


def test_a_full_queue_passes_the_device_s_speed_on_to_the_host() -> None:
    trace = programs.queue_limited()
    wall = model(trace).step_ns / US
    assert asked_us(trace, "gpu*0.5") == pytest.approx(wall / 2, rel=0.03)
    graph = model(trace).graph
    # the launches follow: a queue that only delays would leave them where they were
    last = np.flatnonzero(graph.kind == NodeKind.WAIT)[-1]
    assert graph.finish_ns[last] > 0.5 * graph.finish_ns.max()


def test_a_free_waits_for_the_device_and_keeps_its_own_cost() -> None:
    trace = programs.frees()
    free = programs.rows(trace, "cudaFree")
    assert saved_us(trace, Edit("unblock", free)) <= 460
    assert saved_us(trace, Edit("drop", free)) == pytest.approx(290, abs=15)
    assert asked_us(trace, "gpu*0.5") == pytest.approx(250, abs=5)


def test_a_first_use_that_returns_as_the_device_becomes_idle_waited_for_it() -> None:
    assert asked_us(programs.loads_code(), "gpu*0.5") == pytest.approx(7_500, abs=20)
    assert asked_us(programs.loads_code(returns=400), "gpu*0.5") == pytest.approx(0, abs=20)
    assert asked_us(programs.loads_code(usual=1_000), "gpu*0.5") == pytest.approx(0, abs=20)


def test_backward_on_the_engine_s_thread_is_host_work_of_the_step() -> None:
    trace = programs.backward_on_engine()
    engine = np.flatnonzero(trace.matching("^autograd::engine"))
    # the last step of the recording ends before its fourth tenth
    assert saved_us(trace, Edit("shrink", engine, 0.5)) == pytest.approx(3 * 95 / 2, abs=10)
    assert asked_us(trace, "cpu*0.5") / (model(trace).step_ns / US) == pytest.approx(0.5, abs=0.01)


def test_a_loader_that_starves_the_step_hides_all_other_savings() -> None:
    trace = programs.loads_with_workers()
    fetches = np.flatnonzero(trace.matching("__next__"))
    assert asked_us(trace, "cpu*0.5") == pytest.approx(0, abs=60)
    assert asked_us(trace, "gpu*0.5") == pytest.approx(0, abs=60)
    assert saved_us(trace, Edit("drop", fetches)) == pytest.approx(16_000, abs=250)
    assert saved_us(trace, Edit("shrink", fetches, 0.5)) > 7_000


def test_a_quick_next_is_collating_and_no_producer() -> None:
    trace = programs.loads_with_workers(period=5_000)
    assert count(trace, EdgeKind.BATCH) == 0


def test_an_upload_from_pinned_memory_holds_nobody_up() -> None:
    trace = programs.uploads_pageable()
    copies = np.flatnonzero(trace.kind == Kind.MEMCPY)
    calls = trace.links.call[copies].astype(np.int64)
    both = (Edit("overlap", copies), Edit("unblock", calls))
    # 400 us of waiting in call and sync go, 3 us each stay
    assert saved_us(trace, *both) == pytest.approx(400, abs=15)


def test_launches_that_block_stop_blocking() -> None:
    trace = programs.blocking_launches()
    launches = programs.rows(trace, "cudaLaunchKernel")
    # what is left is bound by the device: 8 kernels of 80 us
    assert saved_us(trace, Edit("unblock", launches)) == pytest.approx(350, abs=40)


def test_no_stream_wait_is_violated_by_any_question() -> None:
    """A faster host must not let work overlap that one stream made another wait for."""
    trace = programs.two_streams()
    one = model(trace)
    floor = (30 + 50 + 40) * US
    for question in ("cpu*0", "launch=0", "no-sync"):
        assert one.after_ns(parse_what_if(question).edits(trace)) >= floor


def test_a_wait_that_the_times_contradict_is_dropped() -> None:
    b = TraceBuilder()
    b.op("aten::mm", 1_000, 900)
    b.launch(1_010, 5, 1_020, 500, "gemm", stream=7)
    b.call("cudaEventRecord", 1_100, 2)
    b.call("cudaStreamWaitEvent", 1_104, 2)
    b.launch(1_110, 5, 1_120, 50, "gemm", stream=20)  # begins while the other still runs
    trace = b.build()
    assert count(trace, EdgeKind.RECORDED) == 0
    assert model(trace).graph.n_contradicted == 1


def test_waits_between_streams_without_calls_are_inferred_from_time() -> None:
    b = TraceBuilder()
    b.op("aten::mm", 1_000, 40)
    b.launch(1_010, 5, 1_020, 500, "gemm", stream=7)
    b.launch(1_030, 5, 1_523, 50, "gemm", stream=20)
    trace = b.build()
    assert count(trace, EdgeKind.TIMED) == 1
    kernels = np.flatnonzero(trace.works)
    found = model(trace).predict([Edit("shrink", kernels[:1], 0.5)])
    assert found.saving_ns == pytest.approx(250 * US, rel=0.02)
    # without that edge the saving is not there, and the interval says so
    assert found.low_ns < 0.2 * found.saving_ns
    assert found.inferred_share > 0.8


def test_room_that_a_big_kernel_gives_up_is_inferred() -> None:
    b = TraceBuilder()
    b.op("aten::mm", 1_000, 900)
    b.launch(1_010, 5, 1_020, 500, "gemm", stream=7)
    b.launch(1_030, 5, 1_480, 100, "gemm", stream=20)
    assert count(b.build(), EdgeKind.TAIL) == 1


def test_the_backlog_is_on_the_clock_and_counts_as_pinned() -> None:
    b = TraceBuilder()
    for i in range(5):
        b.kernel("gemm", 1_000 + i * 100, 99, correlation=9_000 + i)  # no launch in the recording
    b.op("aten::mm", 1_000, 1_000)
    b.launch(1_010, 5, 1_500, 99)
    trace = b.build()
    one = model(trace)
    assert count(trace, EdgeKind.CLOCK) >= 5
    assert one.quality.pinned > 0.3


def test_work_without_a_launch_may_wait_for_the_host_that_it_follows() -> None:
    b = TraceBuilder()
    for index in range(4):
        at = 1_000 * index
        b.step(index, at, 1_000).op("aten::mm", at + 5, 20).op("engine", at + 30, 760)
        b.launch(at + 10, 5, at + 20, 400, "gemm")
        b.kernel("engine", at + 800, 185, correlation=9_000 + index)  # no launch in the recording
        b.sync(at + 796, 194)
    trace = b.build()
    found = model(trace).predict([Edit("shrink", programs.rows(trace, "gemm"), 0.0)])
    # launched by the thread of the steps it comes no earlier; by something else it may
    assert found.saving_ns == pytest.approx(0, abs=US)
    assert found.low_ns <= 0 < found.high_ns


@pytest.mark.parametrize("wait", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaFree"])
def test_no_wait_is_for_work_without_a_launch_that_begins_after_it(wait: str) -> None:
    trace = after_a_wait(wait)
    graph = build(trace)
    source = graph.source[np.isin(graph.target, np.flatnonzero(graph.kind == NodeKind.WAIT))]
    assert graph.row[source].tolist() == programs.rows(trace, "gemm").tolist()
    assert count(trace, EdgeKind.UNSEEN_LAUNCH) == 1
    assert schedule(graph).n_cut == 0


def after_a_wait(wait: str) -> Trace:
    """Return 200 ms of work, a wait for it on a stream with a name, and work without a launch 0.4 ms later."""
    b = TraceBuilder().op("aten::mm", 0, 20)
    b.launch(5, 6, 20, 200_000, "gemm")
    correlation = b._next()
    b.call(wait, 100, 199_950, correlation=correlation)
    if wait == "cudaStreamSynchronize":
        b.event("Stream Sync", "cuda_sync", 100, 199_950, pid=0, tid=7, device=0, stream=7, correlation=correlation)
    b.op("aten::mul", 200_060, 1_000).kernel("engine", 200_450, 50, correlation=9_000)
    b.op("aten::mm", 202_000, 20).launch(202_005, 6, 202_020, 500)
    return b.profiler_stop(203_000, 10).build()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_waits_and_launches_close_no_circle_whatever_was_not_recorded(seed: int) -> None:
    trace = with_gaps(np.random.default_rng(seed))
    assert schedule(build(trace)).n_cut == 0
    assert model(trace).quality.n_nodes


def with_gaps(random: np.random.Generator) -> Trace:
    """Return two threads that launch and wait on two streams; some launches are not recorded, waits end anywhere."""
    waits = ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaFree", "cudaEventRecord"]
    b = TraceBuilder().op("aten::mm", 0, 20, tid=1).op("aten::mm", 0, 20, tid=2)
    now, free = [30, 30], [0, 0]
    for kind, thread, stream, long in random.integers([0, 0, 0, 1], [10, 2, 2, 300], (25, 4)).tolist():
        at, tid = now[thread], 1 + thread
        now[thread] = at + 10
        if kind < len(waits):
            correlation, now[thread] = b._next(), at + long + 5
            b.call(waits[kind], at, long, tid=tid, correlation=correlation)
            if long % 2:
                b.event(
                    "Sync", "cuda_sync", at, long, pid=0, tid=stream, device=0, stream=stream, correlation=correlation
                )
            continue
        begin = max(at + 6, free[stream] + 1 + long % 40)
        free[stream] = begin + long
        if kind < 8:
            b.op("aten::mm", at - 1, 8, tid=tid).launch(at, 5, begin, long, tid=tid, stream=stream)
        else:
            b.kernel("engine", begin, long, correlation=9_000 + at, stream=stream)
    return b.build()


def test_a_recording_without_its_launches_is_refused() -> None:
    b = TraceBuilder()
    for i in range(50):
        b.kernel("gemm", 1_000 + i * 100, 50, correlation=9_000 + i)
    quality = model(b.build()).quality
    assert not quality.accepted
    assert quality.reason


def test_a_thread_that_wakes_late_hangs_on_progress_not_on_the_clock() -> None:
    trace = programs.backward_on_engine(steps=8)
    graph = model(trace).graph
    assert model(trace).quality.pinned == 0
    clock = graph.target[graph.edge_kind == EdgeKind.CLOCK]
    assert (graph.finish_ns[clock] <= US).all()


def test_the_profiler_s_own_stop_is_not_waited_for() -> None:
    trace = programs.device_sync_per_step()
    rows = model(trace).graph.row
    stop = programs.rows(trace, "cudaDeviceSynchronize")[-1]
    assert stop not in rows.tolist()


@pytest.mark.parametrize("early_us", [0, 100])
def test_a_wait_for_the_whole_device_holds_where_the_clocks_are_apart(early_us: int) -> None:
    builder = TraceBuilder().op("aten::mm", 0, 100)
    for index in range(10):
        builder.launch(10 * index, 5, 200 + 4_000 * index, 4_000)
    # it returns with the last kernel, by the host's clock
    builder.sync(110, 40_200 - early_us - 110, "cudaDeviceSynchronize")
    builder.op("aten::add", 40_210 - early_us, 20).sync(40_240 - early_us, 2, "cudaDeviceSynchronize")
    assert asked_us(builder.build(), "gpu*0.5") == pytest.approx(20_000, rel=0.02)


def test_circles_in_damaged_times_are_cut_and_counted() -> None:
    """A sync that returns before the launch it is said to wait for, both ways round."""
    b = TraceBuilder()
    b.op("aten::mm", 1_000, 100, tid=1)
    b.op("aten::mm", 1_000, 100, tid=2)
    one = b._next()
    two = b._next()
    b.call("cudaMemcpyAsync", 1_000, 50, tid=1, correlation=one)
    b.call("cudaMemcpyAsync", 1_000, 50, tid=2, correlation=two)
    for correlation, stream in ((one, 7), (two, 20)):
        b.event(
            "Memcpy DtoH (Device -> Pageable)",
            "gpu_memcpy",
            1_010,
            20,
            pid=0,
            tid=stream,
            device=0,
            stream=stream,
            correlation=correlation,
            bytes=4,
        )
    trace = b.build()
    built = ReplayModel(trace)
    assert built.step_ns > 0


def test_the_same_trace_has_one_model() -> None:
    trace = programs.host_bound()
    assert model(trace) is model(trace)
