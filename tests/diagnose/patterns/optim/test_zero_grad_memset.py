"""OPT040 zero-grad-memset."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.optim.zero_grad_memset import find

ZERO = "Optimizer.zero_grad#SGD.zero_grad"
NODE = "torch::autograd::AccumulateGrad"


def on_cpu(
    *, n: int = 20, op: str = "aten::zero_", mark: str = ZERO, passes: int = 1, between: str = "", every: int = 1
) -> TraceBuilder:
    """Steps of 10 ms: ``n`` fills of 18 us, then ``n`` additions of 28 us per backward pass."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(6):
        at = 10_000 * i
        builder.step(i, at, 10_000)
        if i % every == 0:
            if mark:
                builder.annotation(mark, at + 100, 20 * n)
            for k in range(n):
                builder.op(op, at + 101 + 20 * k, 18, dims=[[64, 64]])
                if between:
                    builder.op(between, at + 119.5 + 20 * k, 1, dims=[[64, 64]])
        for k in range(n * passes):
            builder.op(NODE, at + 4_000 + 30 * k, 29.5)
            builder.op("aten::add_", at + 4_000.5 + 30 * k, 28, dims=[[64, 64]])
    return builder


def on_device(*, late: bool, n: int = 20) -> TraceBuilder:
    """Steps of 10 ms: fills of 2 us, launched one by one or behind a long kernel."""
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).annotation(ZERO, at + 1_000, 20 * n)
        if not late:
            builder.launch(at + 10, 5, at + 100, 5_000, "forward")
        for k in range(n):
            builder.op("aten::zero_", at + 1_001 + 20 * k, 18)
            start = at + 1_012 + 20 * k if late else at + 5_100 + 100 * k
            builder.launch(at + 1_005 + 20 * k, 5, start, 2 if late else 100, "fill")
        builder.launch(at + 3_000, 5, at + 7_200, 1_000, "next")
    return builder


def test_quiet_without_fills() -> None:
    assert not on_cpu(n=0).claims(find)


def test_quiet_on_a_few() -> None:
    assert not on_cpu(n=9).claims(find)


def test_quiet_on_zeros_that_a_model_makes() -> None:
    # torch.zeros fills inside its own operator; states come with others between them
    assert not on_cpu(mark="", between="aten::select").claims(find)


def test_quiet_once_in_many_steps() -> None:
    assert not on_cpu(every=3).claims(find)


def test_quiet_on_new_tensors_filled_one_by_one() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        for k in range(20):
            builder.op("aten::zeros", 1_000 * i + 20 * k, 18)
            builder.op("aten::zero_", 1_000 * i + 20 * k + 2, 10)
    assert not builder.claims(find)


@pytest.mark.parametrize("mark", [ZERO, ""])
def test_loud_on_fills_one_by_one(mark: str) -> None:
    (claim,) = on_cpu(mark=mark).claims(find)
    assert claim.certainty == "certain"
    assert claim.evidence["n_fills_per_step"] == 20
    assert claim.evidence["n_additions_per_step"] == 20
    # the loop with the Python in it, and the additions
    loop = 0.4 if mark else 0.398
    assert claim.evidence["fill_and_add_ms_per_step"] == pytest.approx(loop + 20 * 0.028)


def test_loud_on_one_foreach_call() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000).annotation(ZERO, at + 100, 200)
        builder.op("aten::_foreach_zero_", at + 110, 180)
        for k in range(20):
            builder.op("aten::zero_", at + 112 + 8 * k, 7)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_fills_per_step"] == 1
    assert claim.evidence["fill_and_add_ms_per_step"] == pytest.approx(0.2)


def test_only_the_first_of_several_backward_passes_could_store() -> None:
    (claim,) = on_cpu(passes=3).claims(find)
    assert claim.evidence["n_additions_per_step"] == 20


def test_the_cost_on_a_cpu() -> None:
    (claim,) = on_cpu().claims(find)
    low = np.asarray(claim.gain_low)
    # the profiler adds to operators as short as these
    np.testing.assert_allclose(low, 0.5)
    assert claim.gain_high == 1.0
    loop, additions = claim.edits
    assert (loop.kind, loop.factor, loop.best) == ("threads", 0.5, 0.0)
    assert (additions.kind, len(additions.rows)) == ("drop", 6 * 20)


def test_the_cost_where_the_device_waits_for_the_loop() -> None:
    (claim,) = on_device(late=True).claims(find)
    assert claim.time_class == "idle"
    assert claim.gain_low == pytest.approx(1 / 1.5)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(0.36, abs=0.02)
    assert "while the GPU stands idle" in claim.message


def test_the_cost_where_the_device_is_busy() -> None:
    (claim,) = on_device(late=False).claims(find)
    assert claim.time_class == "compute"
    assert claim.evidence["fill_and_add_ms_per_step"] == pytest.approx(2.0)
    np.testing.assert_allclose(claim.gain_low, 1.0)
