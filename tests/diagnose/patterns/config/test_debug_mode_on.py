"""CFG044: anomaly detection and blocking launches."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.config.debug_mode_on import find

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def backward(builder, *, checked, nodes=6):
    """Add nodes of 100 us; the first ``checked`` of them end in a 30 us check."""
    for index in range(nodes):
        at = 200 * index
        builder.op(NODE, at, 100).op("AddmmBackward0", at + 1, 50)
        if index < checked:
            builder.op("aten::isnan", at + 60, 10).op("aten::any", at + 70, 10)
            builder.op("aten::item", at + 80, 10)
    return builder


def test_quiet_without_checks():
    assert not backward(TraceBuilder(vendor="cpu"), checked=0).claims(find)


def test_quiet_on_a_users_own_check():
    builder = backward(TraceBuilder(vendor="cpu"), checked=0)
    builder.op("aten::isnan", 5000, 10).op("aten::any", 5010, 10)
    assert not backward(builder, checked=1).claims(find)


def test_quiet_on_a_hook_in_few_nodes():
    assert not backward(TraceBuilder(vendor="cpu"), checked=2).claims(find)


def test_anomaly_detection_costs_its_checks():
    builder = backward(TraceBuilder(vendor="cpu"), checked=6)
    # gradients that are only accumulated are not checked
    builder.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1300, 50)
    trace = builder.build()
    (claim,) = find(trace)
    assert claim.certainty == "certain"
    assert claim.always
    assert claim.time_class == "host"
    assert claim.evidence["n_backward_nodes"] == 6
    assert claim.evidence["n_checked_nodes"] == 6
    assert (claim.spans[:, 1] - claim.spans[:, 0]).sum() == 6 * 30_000
    assert claim.gain_low == pytest.approx(1 / 1.5)


def test_stack_traces_of_the_forward_pass_count_where_frames_show_them():
    builder = TraceBuilder(vendor="cpu")
    for index in range(6):
        builder.frame("torch/fx/traceback.py(497): format_stack", 5000 + 200 * index, 100)
        builder.frame("traceback.py(217): format_stack", 5010 + 200 * index, 80)
    (claim,) = find(backward(builder, checked=6).build())
    assert (claim.spans[:, 1] - claim.spans[:, 0]).sum() == 6 * 30_000 + 6 * 100_000
    assert np.allclose(claim.gain_low, 1 / 2.0)
    assert np.allclose(claim.gain_high, 1.0)
    assert "not counted" not in claim.message


def test_stack_traces_that_no_frame_shows_widen_the_high_end_alone():
    builder = TraceBuilder(vendor="cpu")
    for index in range(6):
        builder.op("aten::linear", 5000 + 1000 * index, 900, seq=index)
        builder.op("aten::addmm", 5010 + 1000 * index, 500, seq=index)
        builder.op("aten::argmax", 5910 + 1000 * index, 50)
    (claim,) = find(backward(builder, checked=6).build())
    length = claim.spans[:, 1] - claim.spans[:, 0]
    assert (length * claim.gain_low).sum() == pytest.approx(6 * 30_000 / 1.5)
    assert (length * claim.gain_high).sum() == pytest.approx(6 * 30_000 + 6 * 300_000)
    assert "stack traces not counted" in claim.message


def launches(builder, *, blocking, count=40, gap=30.0):
    """Add kernels of 20 us; a blocking launch returns 2 us after its kernel has ended."""
    for index in range(count):
        at = index * (24 + gap)
        builder.launch(at, 24 if blocking else 3, at + 2, 20)
    return builder


def test_quiet_on_ordinary_launches():
    assert not launches(TraceBuilder(), blocking=False).claims(find)


def test_quiet_on_too_few_kernels():
    assert not launches(TraceBuilder(), blocking=True, count=19).claims(find)


def test_quiet_on_a_graph_launch():
    builder = TraceBuilder()
    builder.call("cudaGraphLaunch", 0, 5000, correlation=9)
    for index in range(40):
        builder.kernel("kernel", 10 + 30 * index, 20, correlation=9)
    assert not builder.claims(find)


def test_blocking_launches_cost_what_could_overlap():
    trace = launches(TraceBuilder(), blocking=True).build()
    (claim,) = find(trace)
    assert claim.certainty == "certain"
    assert claim.time_class == "idle"
    assert "CUDA_LAUNCH_BLOCKING" in claim.fix.code
    assert claim.evidence["finished_at_return_share_of_kernels"] == 1.0
    # 34 us of idle follow 20 us of work: at most the work can run beside the host
    wall = trace.steps.judged
    idle = np.minimum(claim.spans[:, 1], wall[0, 1]) - np.maximum(claim.spans[:, 0], wall[0, 0])
    busy_ns = 40 * 20_000
    assert claim.gain_high * idle.sum() == pytest.approx(busy_ns)
    assert claim.gain_low * idle.sum() == pytest.approx(min(busy_ns, idle.sum() / 1.5))


def test_quiet_where_the_device_s_clock_is_ahead():
    builder = TraceBuilder()
    for index in range(40):
        # it runs for 20 us from its launch on, and a clock that is 30 us ahead says that it had ended before
        builder.launch(100 * index + 100, 8, 100 * index + 76, 20)
    assert not builder.claims(find)


def test_blocking_launches_on_rocm():
    (claim,) = find(launches(TraceBuilder(vendor="rocm"), blocking=True).build())
    assert "AMD_SERIALIZE_KERNEL" in claim.fix.code
