"""LCH014 launch-bound."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core import intervals
from torchtriage.core.trace.frames import user_stack
from torchtriage.diagnose.patterns.launch.launch_bound import find


def loop(
    *,
    n_steps: int = 5,
    op: float = 50,
    kernel: float = 5,
    n_ops: int = 20,
    vendor: str = "cuda",
    name: str = "kernel_{k}",
) -> TraceBuilder:
    """Steps of ``n_ops`` operators back to back, each launching one kernel at its end."""
    builder = TraceBuilder(vendor=vendor)
    for i in range(n_steps):
        at = i * op * n_ops
        builder.step(i, at, op * n_ops)
        for k in range(n_ops):
            start = at + k * op
            builder.op("aten::add", start, op)
            builder.launch(start + op - 8, 5, start + op - 2, kernel, name.format(k=k, i=i))
    return builder.op("aten::tail", n_steps * op * n_ops + 100, 1.5)


def test_quiet_when_the_device_is_busy() -> None:
    assert not loop(kernel=48).claims(find)


def test_quiet_below_a_fifth_of_the_step() -> None:
    assert not loop(kernel=42).claims(find)


def test_quiet_when_launches_are_captured() -> None:
    builder = loop()
    for i in range(150):
        builder.call("cudaLaunchKernel", 5_200 + i, 0.5)
    assert not builder.claims(find)
    builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep")]
    assert builder.claims(find)  # one window ends with the device rows


def test_quiet_when_python_fills_the_gaps() -> None:
    builder = TraceBuilder()
    for i in range(5):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::add", at + 5_000, 50.5)
        builder.launch(at + 5_010, 5, at + 5_020, 4_980)
    assert not builder.claims(find)


def test_quiet_when_what_is_left_beside_python_is_little() -> None:
    builder = TraceBuilder()
    for i in range(5):
        at = 10_000 * i
        builder.step(i, at, 10_000)  # 3 ms of Python, 1.8 ms of dispatch, then one long kernel
        for k in range(12):
            builder.op("aten::add", at + 3_000 + 150 * k, 150)
            builder.launch(at + 3_140 + 150 * k, 5, at + 3_148 + 150 * k, 5)
        builder.op("aten::mm", at + 4_800, 30)
        builder.launch(at + 4_810, 5, at + 4_820, 5_180)
    assert not builder.claims(find)


def test_quiet_when_hardly_any_of_it_is_dispatch() -> None:
    builder = TraceBuilder()
    for i in range(5):
        builder.step(i, 9_000 * i, 9_000)
        for k in range(10):
            at = 9_000 * i + 900 * k
            builder.op("aten::add", at, 20.5)
            builder.launch(at + 10, 5, at + 18, 5)
    assert not builder.claims(find)


def test_a_hint_where_no_operators_say_what_the_host_did() -> None:
    builder = TraceBuilder()
    for i in range(5):
        builder.step(i, 1_000 * i, 1_000)
        for k in range(20):
            builder.launch(1_000 * i + 50 * k + 42, 5, 1_000 * i + 50 * k + 48, 5)
    (claim,) = builder.claims(find)
    assert (claim.certainty, claim.gain_low) == ("hint", 0)
    assert loop().claims(find)[0].certainty == "likely"


def test_quiet_when_the_loader_fills_the_gaps() -> None:
    builder = loop()
    for i in range(5):
        builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000 * i, 990)
    assert not builder.claims(find)


def test_quiet_when_allocation_fills_the_gaps() -> None:
    builder = loop()
    for i in range(100):
        builder.call("cudaFree", 50 * i + 1, 40)
    assert not builder.claims(find)


def test_quiet_when_waits_cause_the_gaps() -> None:
    builder = TraceBuilder()
    for i in range(5):
        at = 1_000 * i
        builder.step(i, at, 1_000).op("aten::item", at + 20, 500)
        builder.launch(at, 5, at + 8, 100)
        builder.sync(at + 30, 470)
        builder.op("aten::add", at + 505, 12)
        builder.launch(at + 510, 5, at + 530, 460)
    assert not builder.claims(find)


def test_quiet_when_first_use_fills_the_gaps() -> None:
    builder = TraceBuilder().op("aten::empty", 0, 40_000.5).call("cudaStreamCreateWithFlags", 10, 39_900)
    builder.op("aten::add", 40_002, 20)
    builder.launch(40_005, 5, 40_015, 2_000)
    assert not builder.claims(find)


def test_quiet_when_the_stream_was_busy_with_unrecorded_work() -> None:
    builder = TraceBuilder().op("aten::add", 0, 100.5)
    builder.launch(90, 5, 8_000, 2_000)
    assert not builder.claims(find)


def test_quiet_inside_one_graph_launch() -> None:
    builder = TraceBuilder().op("replay", 0, 5_000.5)
    builder.call("cudaGraphLaunch", 1, 4_990, correlation=70)
    for k in range(20):
        builder.kernel("k", 10 + 200 * k, 50, correlation=70)
    assert not builder.claims(find)


def test_late_idle_time_is_at_stake() -> None:
    trace = loop().build()
    (claim,) = find(trace)
    # every 50 us: a kernel from 48 to 53, then idle; the device waits 45 of 50 us
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(0.9, abs=0.001)
    assert claim.evidence["share_of_step"] == pytest.approx(0.9, abs=0.001)
    assert claim.evidence["n_gpu_events_per_step"] == 20
    assert claim.evidence["kind"] == "tiny kernels"
    assert claim.evidence["median_kernel_us"] == 5.0
    assert claim.evidence["top_ops_gpu_idle_ms_per_step"] == {"aten::add": 0.9}
    assert claim.time_class == "idle"
    assert claim.gain_low == pytest.approx(0.5 / 1.5)
    assert claim.gain_high == 1.0
    inside = intervals.intersect(intervals.union(claim.spans), trace.devices[0].idle)
    assert intervals.length(inside) == intervals.length(intervals.union(claim.spans))
    assert trace.name_of(claim.anchor) == "aten::add"


def test_slow_views_are_a_slow_host_and_promise_less() -> None:
    builder = loop()
    for i in range(100):
        builder.op("aten::view", 50 * i + 5, 20)
    (claim,) = builder.claims(find)
    assert claim.gain_low == pytest.approx(0.5 / 1.5 * 5 / 20)
    assert "a view takes the host 20.0 µs" in claim.message


def test_idle_time_that_the_profiler_makes_is_no_finding() -> None:
    # 35 of 50 us busy: without the profiler the host needs 33 us for each operator, and the device never waits
    assert not loop(kernel=35).claims(find)


def test_what_the_host_waits_for_does_not_become_shorter_without_the_profiler() -> None:
    builder = loop(kernel=25)
    (alone,) = builder.claims(find)
    for i in range(5):
        builder.sync(1_000 * i + 1, 40)
    (waiting,) = builder.claims(find)
    name = "idle_share_of_step_unprofiled"
    assert waiting.evidence[name] > alone.evidence[name] > 0


def test_the_place_is_where_most_late_launches_are_made() -> None:
    builder = loop()
    for i in range(5):
        at = 1_000 * i
        builder.frame("train.py(10): step", at + 0.2, 995)
        builder.frame("train.py(40): scan", at + 99.5, 800)
    trace = builder.build()
    (claim,) = find(trace)
    assert user_stack(trace, claim.anchor)[0].function == "scan"
    assert "80 % of it where the place below makes 16 of them" in claim.message
    assert claim.fix is not None
    assert "one call" in claim.fix.text


def test_few_gaps_are_no_rate_of_launching() -> None:
    assert not loop(n_steps=2, op=500, n_ops=4).claims(find)


def test_rocm_is_judged_alike() -> None:
    (cuda,), (rocm,) = loop().claims(find), loop(vendor="rocm").claims(find)
    assert cuda.evidence == rocm.evidence
    assert (cuda.gain_low, cuda.gain_high) == (rocm.gain_low, rocm.gain_high)


def test_large_kernels_with_slow_dispatch() -> None:
    (claim,) = loop(op=100, kernel=30).claims(find)
    assert claim.evidence["kind"] == "slow dispatch"


def test_the_same_kernels_in_every_step_can_become_a_graph() -> None:
    assert loop().claims(find)[0].evidence["same_kernels_every_step"] is True


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaMalloc"])
def test_a_step_that_waits_or_allocates_is_no_graph(call: str) -> None:
    builder = loop()
    for i in range(5):
        builder.call(call, 1000 * i + 30, 1)
    assert builder.claims(find)[0].evidence["same_kernels_every_step"] is False


def test_kernels_that_change_are_no_graph() -> None:
    (claim,) = loop(name="kernel_{k}_{i}").claims(find)
    assert claim.evidence["same_kernels_every_step"] is False
    assert claim.fix is not None
    assert "CUDA graphs do not work yet" in claim.fix.text


def test_graphs_are_not_proposed_again() -> None:
    builder = loop()
    for i in range(5):
        builder.call("cudaGraphLaunch", 1_000 * i + 2, 3, correlation=9_000 + i)
        builder.kernel("a", 1_000 * i + 6, 4, correlation=9_000 + i)
        builder.kernel("b", 1_000 * i + 10, 4, correlation=9_000 + i)
    assert builder.claims(find)[0].evidence["same_kernels_every_step"] is False


def test_two_steady_steps_are_too_few_for_a_graph() -> None:
    assert loop(n_steps=3).claims(find)[0].evidence["same_kernels_every_step"] is False


@pytest.mark.parametrize("looped", [True, False])
def test_a_loop_is_suspected_where_calls_repeat(looped: bool) -> None:
    builder = loop()
    for i in range(5):
        at = 1_000 * i
        builder.frame("train.py(10): step", at + 0.2, 995)
        builder.frame("train.py(40): scan", at + 99.5, 800)
        if not looped:
            builder.frame("torch/nn/modules/module.py(1): _call_impl", at + 99.6, 799)
    (claim,) = builder.claims(find)
    assert "80 % of it where the place below makes 16 of them" in claim.message
    assert claim.fix is not None
    assert ("iterations of a loop" in claim.fix.text) == looped


def test_no_loop_is_suspected_where_everything_is() -> None:
    builder = loop()
    for i in range(5):
        builder.frame("train.py(10): step", 1_000 * i + 0.2, 999)
    (claim,) = builder.claims(find)
    assert claim.fix is not None
    assert "iterations of a loop" not in claim.fix.text


def test_without_such_a_place_it_is_the_operator_that_is_waited_for_longest_in_all() -> None:
    builder = loop()
    builder.op("aten::once", 5_110, 150)
    builder.launch(5_252, 5, 5_258, 5)
    builder.step(5, 5_000, 300)
    trace = builder.build()
    (claim,) = find(trace)
    assert trace.name_of(claim.anchor) == "aten::add"
