"""The emulated device does what it says: what predictions are held against must be right itself."""

import numpy as np
import pytest
from emulator import (
    COMM,
    COMPUTE,
    Backward,
    Copy,
    Fetch,
    Graph,
    Host,
    Instruction,
    Join,
    Launch,
    Machine,
    Program,
    Run,
    Sync,
    ThreadClock,
    VirtualClock,
)
from invariants import check_trace
from random_programs import deep_program, fixes, mixed_program, questions, random_program

from torchtriage.core.trace import Trace

STILL = Machine(jitter=0.0)


def record(*step: Instruction, n_steps: int = 4, n_warm: int = 0, machine: Machine = STILL) -> Trace:
    program = Program(step, n_steps=n_steps, n_warm=n_warm, machine=machine)
    trace = Run(program, VirtualClock()).trace()
    check_trace(trace)
    return trace


def test_the_reader_understands_the_recording():
    trace = record(Host("prepare", 10_000), Launch("mm", 20_000), Copy("item", 2_000, "host", True))
    assert trace.origin.vendor == "cuda"
    assert trace.steps.names == tuple(f"ProfilerStep#{index}" for index in range(4))
    assert not trace.links.orphans.any()
    assert trace.waits.to_host.sum() == 4
    assert trace.waits.profiler.sum() == 1


def test_a_host_bound_step_lasts_as_long_as_its_host_work():
    trace = record(Host("prepare", 100_000), Launch("mm", 20_000))
    host_ns = 100_000 + STILL.op_ns + STILL.launch_ns
    assert trace.steps.host_end_ns[1] - trace.steps.host_start_ns[1] == host_ns
    assert trace.steps.wall_ns == host_ns


def test_a_device_bound_step_lasts_as_long_as_its_kernels():
    trace = record(Launch("mm", 80_000), Launch("relu", 40_000))
    assert trace.steps.wall_ns == 80_000 + 40_000 + 2 * STILL.fifo_ns


def test_a_kernel_starts_a_launch_later_or_when_the_stream_is_free():
    trace = record(Launch("first", 50_000), Launch("second", 10_000), n_steps=1)
    first, second = (np.flatnonzero(trace.named(f"{name}_kernel"))[0] for name in ("first", "second"))
    assert trace.start_ns[first] - trace.links.launched_ns(first) == STILL.latency_ns
    assert trace.start_ns[second] - trace.end_ns[first] == STILL.fifo_ns


@pytest.mark.parametrize("kind", ["stream", "device", "event", "free"])
def test_a_sync_returns_after_the_device(kind):
    trace = record(Launch("mm", 200_000), Sync("wait", kind), n_steps=1)
    (wait,) = np.flatnonzero(trace.named("wait"))
    (kernel,) = np.flatnonzero(trace.works)
    assert trace.end_ns[wait] == trace.end_ns[kernel] + STILL.return_ns


def test_a_wait_for_the_step_before_lets_the_host_run_one_step_ahead():
    trace = record(Launch("mm", 200_000), Sync("wait", "last"), n_steps=5)
    kernels, waits = np.flatnonzero(trace.works), np.flatnonzero(trace.named("wait"))
    assert trace.dur_ns[waits[0]] < 20_000
    assert trace.end_ns[waits[3]] == trace.end_ns[kernels[2]] + STILL.return_ns


def test_a_graph_launches_its_kernels_with_one_call():
    trace = record(Graph("graph", (10_000, 20_000, 30_000)), n_steps=1)
    (call,) = np.flatnonzero(trace.named("cudaGraphLaunch"))
    assert trace.links.n_enqueued[call] == 3
    assert trace.dur_ns[trace.works].tolist() == [10_000, 20_000, 30_000]


def test_a_stream_sync_waits_for_its_own_stream_only():
    trace = record(Launch("slow", 500_000, COMM), Launch("mm", 10_000), Sync("wait", "stream"))
    assert trace.dur_ns[trace.named("cudaStreamSynchronize")].max() < 50_000


def test_a_pageable_upload_waits_in_the_sync_and_a_readback_in_the_copy():
    trace = record(Copy("upload", 100_000, "device", True), Copy("item", 100_000, "host", True), n_steps=1)
    copies = np.flatnonzero(trace.named("cudaMemcpyAsync"))
    assert trace.dur_ns[copies[0]] == STILL.launch_ns
    assert trace.dur_ns[copies[1]] > 100_000


def test_joined_streams_run_in_order_and_others_side_by_side():
    ordered = record(Launch("mm", 50_000), Join(COMPUTE, COMM), Launch("nccl", 50_000, COMM), n_steps=1)
    mm, nccl = (np.flatnonzero(ordered.named(name) & ordered.works)[0] for name in ("mm_kernel", "nccl"))
    assert ordered.start_ns[nccl] == ordered.end_ns[mm] + STILL.cross_ns
    free = record(Launch("mm", 50_000), Launch("nccl", 50_000, COMM), n_steps=1)
    mm, nccl = (np.flatnonzero(free.named(name) & free.works)[0] for name in ("mm_kernel", "nccl"))
    assert free.start_ns[nccl] < free.end_ns[mm]


def test_the_launch_queue_holds_so_many_and_no_more():
    step = [Launch("mm", 30_000)] * 20
    trace = record(*step, machine=Machine(jitter=0.0, queue_limit=10))
    start, launch = trace.start_ns[trace.works], trace.links.launched_ns(np.flatnonzero(trace.works))
    calls = np.flatnonzero(trace.named("cudaLaunchKernel"))
    assert trace.dur_ns[calls].max() > 20_000
    # by the time a call returns, no more than ten that were launched have not begun
    pending = [(launch <= at).sum() - (start <= at).sum() for at in trace.end_ns[calls].tolist()]
    assert max(pending) <= 10


def test_backward_runs_on_its_own_thread_while_the_main_one_waits():
    trace = record(Backward((Launch("grad", 10_000),)), Launch("step", 5_000), n_steps=1)
    launch, grad = np.flatnonzero(trace.named("step"))[0], np.flatnonzero(trace.named("grad"))[0]
    assert trace.lane[launch] != trace.lane[grad]
    assert trace.start_ns[launch] >= trace.end_ns[grad] + STILL.hand_off_ns
    assert trace.matching("^autograd::engine::evaluate_function").sum() == 1


def test_workers_load_ahead_until_they_cannot_keep_up():
    train = Host("train", 1_000_000)
    assert record(Fetch(3_000_000), train).steps.wall_ns == 4_000_000
    ahead = record(Fetch(3_000_000, workers=8), train)
    assert ahead.steps.wall_ns == 1_000_000 + STILL.batch_ns
    starved = record(Fetch(3_000_000, workers=2), train, n_steps=20)
    assert starved.steps.wall_ns == pytest.approx(1_500_000, rel=0.05)


def test_a_recording_that_starts_late_holds_work_without_a_launch():
    trace = record(*[Launch("mm", 100_000)] * 5, n_warm=2)
    assert trace.links.orphans.sum() > 0
    assert trace.steps.names[0] == "ProfilerStep#2"


def test_the_same_seed_gives_the_same_recording():
    program = random_program(3)
    once, again = (Run(program, VirtualClock(), seed=5).json() for _ in range(2))
    assert once == again
    assert once != Run(program, VirtualClock(), seed=6).json()


def test_processes_that_wait_for_each_other_are_an_error():
    def stuck():
        yield lambda: False

    with pytest.raises(RuntimeError, match="wait for each other"):
        VirtualClock().run([stuck(), stuck()])


@pytest.mark.parametrize("make", [random_program, mixed_program])
@pytest.mark.parametrize("seed", range(3))
def test_every_fix_changes_the_program_and_names_rows(make, seed):
    program = make(seed)
    trace = Run(program, VirtualClock(), seed=seed).trace()
    for fix in fixes(program, seed):
        assert fix.program != program, fix.name
        assert all(len(edit.rows) for edit in fix.edits(trace)), fix.name
    for question in questions(program):
        assert question.program != program, question.name
        assert question.edits(trace), question.name


def test_a_deep_program_fills_the_queue():
    trace = Run(deep_program(0), VirtualClock()).trace()
    calls = trace.dur_ns[trace.named("cudaLaunchKernel")]
    assert (calls > 3 * STILL.launch_ns).mean() > 0.2


def test_threads_record_what_virtual_time_does_only_less_exactly():
    step = (
        Fetch(50_000, workers=1),
        *[Launch(f"mm_{index}", 60_000) for index in range(4)],
        Copy("item", 2_000, "host", True),
        Backward((Launch("grad", 80_000), Join(COMPUTE, COMM), Launch("nccl", 50_000, COMM))),
        Sync("wait", "device"),
    )
    program = Program(step, n_steps=3, machine=STILL)
    exact = Run(program, VirtualClock()).trace()
    real = Run(program, ThreadClock(stretch=100)).trace()
    check_trace(real)
    assert sorted(map(real.name_of, range(len(real)))) == sorted(map(exact.name_of, range(len(exact))))
    # sleeps never end early, and how late they end is up to the machine
    assert real.steps.wall_ns >= 0.95 * exact.steps.wall_ns
    (grads, items) = (np.flatnonzero(real.named(name) & real.works) for name in ("grad_kernel", "nccl"))
    assert (real.start_ns[items] >= real.end_ns[grads]).all()
