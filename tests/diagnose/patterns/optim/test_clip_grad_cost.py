"""OPT041 clip-grad-cost."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.optim.clip_grad_cost import find

NORM = "aten::linalg_vector_norm"
NODE = "autograd::engine::evaluate_function: MmBackward0"
STEP = "Optimizer.step#SGD.step"


def on_cpu(*, n: int = 30, between: str = "", mark: str = "", every: int = 1) -> TraceBuilder:
    """Steps of 10 ms: a backward node, ``n`` norms of 18 us one by one, an optimizer."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op(NODE, at + 100, 800)
        if mark:
            builder.annotation(mark, at + 950, 2_000)
        for k in range(n if i % every == 0 else 0):
            builder.op(NORM, at + 1_000 + 20 * k, 18)
            if between:
                builder.op(between, at + 1_018.5 + 20 * k, 1)
        builder.op("aten::conv2d", at + 9_000, 100)
    return builder


def on_device(*, norms: int = 30, read: bool = False, grouped: bool = False) -> TraceBuilder:
    """Steps of 10 ms whose clipping begins when the device has run dry, at 1.1 ms."""
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op(NODE, at + 100, 800)
        builder.launch(at + 110, 5, at + 120, 900, "backward")
        if grouped:
            builder.op("aten::_foreach_norm", at + 1_100, 30)
            builder.launch(at + 1_110, 5, at + 1_120, 20, "multi_tensor_norm")
        for k in range(norms):
            builder.op(NORM, at + 1_100 + 20 * k, 18)
            builder.launch(at + 1_105 + 20 * k, 5, at + 1_112 + 20 * k, 2, "norm")
        end = at + 1_100 + max(20 * norms, 40)
        if read:
            builder.op("aten::is_nonzero", end, 100)
            builder.op("aten::item", end + 1, 98).op("aten::_local_scalar_dense", end + 2, 96)
            builder.copy(end + 5, 80, end + 10, 2, kind="DtoH (Device -> Pageable)", size=1)
        builder.op("aten::clamp", end + 110, 10)
        builder.annotation(STEP, end + 200, 500).op("aten::_foreach_add_", end + 210, 100)
        builder.launch(end + 220, 5, end + 230, 500, "optimizer")
    return builder


def test_quiet_on_few_norms() -> None:
    assert not on_cpu(n=19).claims(find)


def test_quiet_on_norms_among_other_work() -> None:
    # normalised weights have norms in the model
    assert not on_cpu(between="aten::mm").claims(find)


def test_quiet_on_norms_before_the_backward_pass() -> None:
    # rows of a batch made unit length one by one are the model's work, not clipping
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000)
        for k in range(30):
            builder.op(NORM, at + 100 + 20 * k, 18)
        builder.op("aten::mm", at + 1_000, 100).op(NODE, at + 2_000, 800)
        builder.annotation(STEP, at + 4_000, 500).op("aten::_foreach_add_", at + 4_010, 100)
    assert not builder.claims(find)


def test_quiet_inside_an_optimizer() -> None:
    # LAMB and LARS scale by norms, which is their algorithm
    assert not on_cpu(mark=STEP).claims(find)


def test_quiet_once_in_a_while() -> None:
    assert not on_cpu(every=4).claims(find)


def test_quiet_on_the_foreach_form_on_a_cpu() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000).op(NODE, at + 10, 80)
        builder.op("aten::_foreach_norm", at + 100, 700)
        for k in range(30):
            builder.op(NORM, at + 101 + 20 * k, 18)
    assert not builder.claims(find)


def test_quiet_on_the_foreach_form_without_a_readback() -> None:
    assert not on_device(norms=0, grouped=True).claims(find)


def test_quiet_on_readbacks_elsewhere() -> None:
    # a loss that is read is SYN001's
    assert not on_device(norms=0, read=True).claims(find)


def test_loud_on_norms_one_by_one() -> None:
    (claim,) = on_device().claims(find)
    assert claim.certainty == "likely"
    assert claim.time_class == "idle"
    assert claim.evidence["n_norms_one_by_one"] == 30
    assert claim.evidence["n_readbacks_per_step"] == 0
    assert claim.message.startswith("clipping gradients takes 30 norms one by one per step")


def test_loud_on_a_check_that_reads_the_norm() -> None:
    (claim,) = on_device(norms=0, grouped=True, read=True).claims(find)
    assert "n_norms_one_by_one" not in claim.evidence
    assert claim.evidence["n_readbacks_per_step"] == 1
    assert claim.fix is not None
    assert "norm.item()" in claim.fix.code
    assert claim.message.startswith("clipping gradients reads 1 value back per step")
    assert [edit.kind for edit in claim.edits] == ["unblock"]


def test_loud_as_a_hint_on_a_cpu() -> None:
    (claim,) = on_cpu().claims(find)
    assert claim.certainty == "hint"
    assert claim.time_class == "host"
    assert claim.evidence["host_ms_per_step"] == pytest.approx(29 * 0.02 + 0.018)
    assert (claim.gain_low, claim.gain_high) == (0.0, 0.5)


def test_the_cost_of_a_loop_is_half_its_idle_time_for_sure() -> None:
    (claim,) = on_device().claims(find)
    np.testing.assert_allclose(claim.gain_low, 0.5 / 1.5)
    # what follows it would have been launched as much earlier as the loop took
    length = (claim.spans[:, 1] - claim.spans[:, 0]).sum() / 3
    assert claim.evidence["gpu_idle_ms_per_step"] * 1e6 == pytest.approx(length, rel=0.35)
    assert [edit.kind for edit in claim.edits] == ["threads"]


def test_the_cost_of_a_readback_is_what_it_alone_starves() -> None:
    (claim,) = on_device(norms=0, grouped=True, read=True).claims(find)
    np.testing.assert_allclose(claim.gain_low, 1 / 1.5)
