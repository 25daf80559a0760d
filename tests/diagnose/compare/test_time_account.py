from __future__ import annotations

import numpy as np
import pytest
from tests.builder import TraceBuilder
from tests.diagnose.compare.runs import Script

from torchtriage.core.trace import Trace
from torchtriage.diagnose.compare.time_account import Account, account, plain_name


def amounts(run: Account) -> dict[tuple[str, str, str], int]:
    """Return ns over all steps by class, region and operator, zeros left out."""
    sums = run.time_ns.sum(axis=1).tolist()
    return {(key.time_class, key.region, key.what): ns for key, ns in zip(run.keys, sums, strict=True) if ns}


def check(trace: Trace) -> Account:
    """Every step is accounted for to the nanosecond, in the classes the device itself has."""
    run = account(trace)
    np.testing.assert_array_equal(run.time_ns.sum(axis=0), run.step_ns)
    assert (run.time_ns >= 0).all()
    if trace.devices:
        pieces = trace.devices[0].classes(trace.steps.judged)
        for name in {key.time_class for key in run.keys}:
            mine = [i for i, key in enumerate(run.keys) if key.time_class == name]
            whole = sum(getattr(piece, f"{name}_ns") for piece in pieces)
            assert int(run.time_ns[mine].sum()) == whole, name
    return run


def test_a_step_is_split_by_what_it_waits_for():
    run = check(Script().build())
    mean = {key: ns / run.n_steps / 1000 for key, ns in amounts(run).items()}
    assert mean["compute", "", "aten::linear"] == pytest.approx(1200, abs=1)
    assert mean["compute", "backward", "AddmmBackward0"] == 100
    assert mean["compute", "Optimizer.step#SGD.step", ""] == 80
    assert mean["idle_host_late", "DataLoader", ""] == pytest.approx(200, abs=12)
    assert run.n_steps == 7  # without the first


def test_kernels_are_counted_and_named_inside_their_operator():
    run = check(Script().build())
    at = [key.what for key in run.keys].index("aten::linear")
    assert run.count[at] == 4 * 7
    assert run.parts[at] == {"sgemm": (int(run.time_ns[at].sum()), 28)}


def test_idle_time_after_a_readback_is_the_readbacks():
    with_read = amounts(check(Script(reads_loss=True).build()))
    assert with_read["idle_host_late", "wait", "aten::item"] > 0
    assert ("idle_host_late", "wait", "aten::item") not in amounts(check(Script().build()))


def test_overlapping_work_counts_once_and_copies_only_where_nothing_computes():
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.op("aten::mm", 0, 10)
    trace.launch(1, 2, 100, 300, "gemm")
    trace.op("aten::relu", 20, 10)
    trace.launch(21, 2, 200, 300, "relu", stream=8)
    trace.op("aten::copy_", 40, 10)
    trace.copy(41, 2, 400, 200, kind="HtoD (Pinned -> Device)", stream=9)
    found = amounts(check(trace.build()))
    assert found["compute", "", "aten::mm"] == 300_000
    assert found["compute", "", "aten::relu"] == 100_000
    assert found["copy_only", "", "aten::copy_"] == 100_000


def test_exposed_communication_is_its_own_class():
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.op("aten::mm", 0, 10)
    trace.launch(1, 2, 100, 300, "gemm")
    trace.op("c10d::allreduce_", 20, 10)
    trace.launch(21, 2, 300, 300, "ncclDevKernel_AllReduce_Sum_f32", stream=20)
    found = amounts(check(trace.build()))
    assert found["comm_only", "", "c10d::allreduce_"] == 200_000


def test_on_a_cpu_it_is_the_main_threads_time():
    trace = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = i * 1000
        trace.step(i, at, 1000)
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 300)
        trace.op("aten::stack", at + 100, 100)
        trace.op("aten::linear", at + 400, 200)
        trace.op("aten::addmm", at + 450, 100)
        trace.annotation("Optimizer.step#Adam.step", at + 700, 200)
        trace.op("aten::add_", at + 750, 50)
    run = check(trace.build())
    per_step = {key: ns // run.n_steps // 1000 for key, ns in amounts(run).items()}
    assert per_step == {
        ("host", "DataLoader", ""): 300,
        ("host", "", "aten::linear"): 200,
        ("host", "Optimizer.step#Adam.step", ""): 200,
        ("host", "Python", ""): 300,
    }


def test_python_is_named_by_the_users_function_where_stacks_were_recorded():
    trace = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = i * 1000
        trace.step(i, at, 1000)
        trace.frame("train.py(10): step", at, 1000)
        trace.frame("train.py(40): log", at + 500, 400)
        trace.frame("logging/__init__.py(1500): info", at + 600, 200)
        trace.op("aten::linear", at, 400)
    found = amounts(check(trace.build()))
    assert found["host", "Python", "train.py: step"] == 3 * 200_000
    assert found["host", "Python", "train.py: log"] == 3 * 400_000


def test_the_backward_engine_and_the_main_thread_take_turns():
    trace = TraceBuilder(vendor="cpu")
    name = "autograd::engine::evaluate_function: MulBackward0"
    for i in range(4):
        at = i * 1000
        trace.step(i, at, 1000)
        trace.op("aten::mul", at, 300)
        trace.op(name, at + 400, 500, tid=2)
    found = amounts(check(trace.build()))
    assert found["host", "backward", "MulBackward0"] == 3 * 500_000
    assert found["host", "Python", ""] == 3 * 200_000


def test_without_steps_the_window_is_the_one_step():
    trace = TraceBuilder()
    trace.op("aten::mm", 0, 10)
    trace.launch(1, 2, 100, 300, "gemm")
    run = check(trace.build())
    assert (run.per, run.n_steps) == ("window", 1)


def test_graph_replays_stand_for_themselves():
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.call("cudaGraphLaunch", 10, 20, correlation=900)
    for i in range(3):
        trace.kernel(f"k{i}", 100 + 100 * i, 100, correlation=900)
    found = amounts(check(trace.build()))
    assert found["compute", "", "cudaGraphLaunch"] == 300_000


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("train.py(31): step", "train.py: step"),
        ("ProfilerStep#12", "ProfilerStep"),
        ("Torch-Compiled Region: 3/0", "Torch-Compiled Region"),
        (
            "## Call CompiledFxGraph fq4jcr5dkmnrvkzrzdlyvlwflbrkxq3kdcvxwzzzyvqu2b2b2b2b ##",
            "## Call CompiledFxGraph  ##",
        ),
        ("aten::conv2d", "aten::conv2d"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
    ],
)
def test_names_lose_what_differs_from_run_to_run(name, plain):
    assert plain_name(name) == plain
