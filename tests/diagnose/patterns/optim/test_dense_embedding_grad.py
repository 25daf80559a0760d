"""OPT047 dense-embedding-grad."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.optim.dense_embedding_grad import find

STEP = "Optimizer.step#SGD.step"


def claims(builder: TraceBuilder) -> list[Claim]:
    return list(find(builder.build()))


def steps(*, rows: int = 20_000, backward: float = 300, wall: float = 1_000) -> TraceBuilder:
    """Steps on a CPU: the gradient of a table for 512 indices, and an update of 200 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall)
        builder.op(
            "aten::embedding_dense_backward",
            at + 100,
            backward,
            dims=[[16, 32, 64], [16, 32], [], [], []],
            concrete=["", "", str(rows), "-1", "False"],
        )
        builder.op("aten::zeros", at + 101, backward - 10, dims=[[]])
        builder.annotation(STEP, at + 600, 300)
        builder.op("aten::add_", at + 610, 200, dims=[[rows, 64], [rows, 64], []])
        builder.op("aten::add_", at + 820, 50, dims=[[64, 64], [64, 64], []])
    return builder


def test_quiet_where_a_step_touches_a_tenth_of_the_rows() -> None:
    assert not claims(steps(rows=5_119))


def test_quiet_below_five_percent() -> None:
    assert not claims(steps(wall=12_000))


def test_quiet_without_the_number_of_rows() -> None:
    builder = steps()
    for event in builder.events:
        event.get("args", {}).pop("Concrete Inputs", None)
    assert not claims(builder)


def test_quiet_once_in_a_while() -> None:
    builder = steps()
    dense = [one for one in builder.events if "embedding" in one["name"]]
    for event in dense[1:]:
        builder.events.remove(event)
    assert not claims(builder)


def test_loud_on_few_indices_into_a_large_table() -> None:
    (claim,) = claims(steps())
    assert claim.certainty == "hint"
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.5)
    assert claim.evidence["share_of_step"] == pytest.approx(0.5)
    assert claim.evidence["table_shape"] == [20_000, 64]
    assert claim.evidence["n_indices"] == 512
    assert claim.message.startswith("a gradient of 20,000 x 64 is filled for 512 indices")


def test_the_cost_is_the_share_of_rows_that_were_not_touched() -> None:
    (claim,) = claims(steps())
    untouched = 1 - 512 / 20_000
    np.testing.assert_allclose(claim.gain_high, untouched)
    np.testing.assert_allclose(claim.gain_low, untouched / 2)
    (edit,) = claim.edits
    assert edit.kind == "shrink"
    np.testing.assert_allclose(edit.best, 1 - untouched)


def test_of_a_fused_update_the_part_of_the_table_counts() -> None:
    builder = steps()
    for event in builder.events:
        if event["name"] == "aten::add_" and event["dur"] == 200:
            event["name"] = "aten::_fused_adam_"
            # as many elements in the other tensor: half of the update is the table's
            event["args"]["Input Dims"] = [[[20_000, 64], [1_280_000]], [[20_000, 64]]]
    (claim,) = claims(builder)
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.3 + 0.2 / 2)
    untouched = 1 - 512 / 20_000
    high = np.asarray(claim.gain_high)
    assert sorted(set(high.round(6))) == pytest.approx([untouched / 2, untouched])


def test_fills_are_counted_and_many_of_them_named() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for k in range(10):
            builder.op(
                "aten::embedding_dense_backward",
                at + 50 * k,
                40,
                dims=[[1, 64], [1], [], [], []],
                concrete=["", "", "20000", "-1", "False"],
            )
    (claim,) = claims(builder)
    assert claim.evidence["n_fills_per_step"] == 10
    assert "is filled 10 times per step for 1 index" in claim.message
