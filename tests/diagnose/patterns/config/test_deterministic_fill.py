"""CFG046 deterministic-fill."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.config.deterministic_fill import find


def steps(*, parent: str = "aten::empty", value: str = "nan", n: int = 6, every: int = 1) -> TraceBuilder:
    """Steps of 1 ms on a CPU with ``n`` new tensors, each filled in 60 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(6):
        at = 1_000 * i
        builder.step(i, at, 1_000).op("aten::mm", at + 900, 50)
        for k in range(n if i % every == 0 else 0):
            builder.op(parent, at + 10 + 70 * k, 64)
            builder.op("aten::fill_", at + 11 + 70 * k, 60, dims=[[64, 64]], concrete=["", value])
    return builder


@pytest.mark.parametrize("parent", ["aten::zeros", "aten::ones_like", "aten::full", "aten::zero_"])
def test_quiet_on_fills_that_are_wanted(parent: str) -> None:
    assert not steps(parent=parent, value="0").claims(find)


@pytest.mark.parametrize("parent", ["aten::full", "aten::new_full", "aten::masked_fill"])
def test_quiet_on_nan_that_is_asked_for(parent: str) -> None:
    assert not steps(parent=parent).claims(find)


def test_quiet_on_nan_that_the_program_writes() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        builder.op("aten::fill_", 1_000 * i + 10, 60, dims=[[64, 64]], concrete=["", "nan"])
    assert not builder.claims(find)


def test_quiet_once_in_a_while() -> None:
    assert not steps(every=3).claims(find)


def test_loud_on_new_tensors_that_are_filled() -> None:
    (claim,) = steps().claims(find)
    assert claim.certainty == "certain"
    assert claim.evidence["n_fills_per_step"] == 6
    assert claim.evidence["fill_ms_per_step"] == pytest.approx(0.36)
    assert claim.evidence["share_of_step"] == pytest.approx(0.36)


def test_loud_on_integers_too() -> None:
    # they get their largest value
    assert len(steps(value="9223372036854775807").claims(find)) == 1


def test_loud_on_memory_that_an_operator_takes_for_itself() -> None:
    assert len(steps(parent="aten::index_select").claims(find)) == 1


def test_the_cost_is_the_fills() -> None:
    (claim,) = steps().claims(find)
    np.testing.assert_allclose(claim.gain_low, 1.0)
    assert claim.gain_high == 1.0
    assert (claim.spans[:, 1] - claim.spans[:, 0] == 60_000).all()
    assert [edit.kind for edit in claim.edits] == ["drop"]


def test_on_a_device_the_kernels_of_the_fills_are_at_stake() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for k in range(6):
            builder.op("aten::empty_strided", at + 10 + 20 * k, 16)
            builder.op("aten::fill_", at + 11 + 20 * k, 14, concrete=["", "nan"])
            builder.launch(at + 13 + 20 * k, 5, at + 200 + 20 * k, 20, "FillFunctor")
        builder.launch(at + 150, 5, at + 320, 480, "gemm")
    (claim,) = builder.claims(find)
    assert claim.time_class == "compute"
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(0.2)
