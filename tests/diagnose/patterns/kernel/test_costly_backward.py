"""KRN072 costly-backward: slices taken one by one, bilinear layers, and what is usual; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.costly_backward import find

WHOLE = [32, 40, 256]


def steps(
    operator: str,
    node: str,
    *,
    n: int = 40,
    forward_us: float = 1,
    back_us: float = 10,
    concrete: Any = None,
    dims: Any = None,
) -> list[Claim]:
    """Four steps of 1 ms on a CPU: an operation n times forward, and n times backward."""
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        for call in range(n):
            number = step * n + call
            places = {"each": str(call), "next": str(call + 1)}
            given = [places.get(value, value) for value in concrete or []] or None
            builder.op(operator, at + call * (forward_us + 1), forward_us, seq=number, dims=dims, concrete=given)
            start = at + 400 + call * (back_us + 1)
            builder.op(f"autograd::engine::evaluate_function: {node}", start, back_us, seq=number, fwd=1)
            builder.op(node, start + 0.1, back_us - 0.2, seq=number, fwd=1)
    return builder.claims(find)


def test_a_tensor_that_is_gone_through_part_by_part() -> None:
    (claim,) = steps("aten::select", "SelectBackward0", dims=[WHOLE, [], []], concrete=["", "1", "each"])
    assert claim.evidence["n_parts"] == 40
    assert claim.evidence["backward_ms_per_step"] == pytest.approx(0.4)
    (edit,) = claim.edits
    assert edit.best == pytest.approx(1 / 40)
    assert claim.fix is not None
    assert "unbind" in claim.fix.code


def test_slices_are_parts_too() -> None:
    given = {"dims": [WHOLE, [], [], [], []], "concrete": ["", "1", "each", "next", "1"]}
    (claim,) = steps("aten::slice", "SliceBackward0", **given)
    assert claim.evidence["n_parts"] == 40


@pytest.mark.parametrize(
    ("dims", "concrete"),
    [
        ([[32, 400, 256], [], []], ["", "1", "each"]),  # one in ten of them
        ([WHOLE, [], []], ["", "1", "0"]),  # the first token, of many layers
        ([[32, 2, 256], [], []], ["", "1", "0"]),  # a pair
        (None, None),
        ([WHOLE, [], []], ["", "7", "0"]),
        ([WHOLE, [], []], ["", "axis", "0"]),
        ([WHOLE, [], []], ["", "²", "0"]),  # a digit, but no number
        ([WHOLE, [], []], ["", "9" * 5_000, "0"]),
        ([[32, -40, 256], [], []], ["", "1", "each"]),
    ],
)
def test_quiet_where_few_of_the_parts_are_used(dims: Any, concrete: Any) -> None:
    assert not steps("aten::select", "SelectBackward0", dims=dims, concrete=concrete)


def test_quiet_where_a_slice_is_most_of_the_whole() -> None:
    given = {"dims": [WHOLE, [], [], [], []], "concrete": ["", "1", "0", "-1", "1"]}
    assert not steps("aten::slice", "SliceBackward0", **given)


def test_a_bilinear_layer() -> None:
    (claim,) = steps("aten::_trilinear", "TrilinearBackward0", n=1, forward_us=5, back_us=500)
    assert claim.evidence["times_forward"] == 100
    (edit,) = claim.edits
    assert (edit.factor, edit.best) == (pytest.approx(0.55), pytest.approx(0.02))


def test_what_no_rule_knows_promises_nothing_for_sure() -> None:
    (claim,) = steps("aten::cumprod", "CumprodBackward0", n=1, forward_us=10, back_us=500)
    (edit,) = claim.edits
    assert (claim.certainty, edit.factor, edit.best) == ("hint", 1.0, pytest.approx(3 / 50))


@pytest.mark.parametrize(
    ("operator", "node", "forward_us"),
    [
        ("aten::linear", "AddmmBackward0", 200.0),
        ("aten::expand", "ExpandBackward0", 1.0),
        ("aten::embedding", "EmbeddingBackward0", 10.0),
        ("Block", "BlockBackward", 10.0),
        ("aten::zero_", "CppNode<Lookup>", 10.0),
        ("aten::zero_", "TrilinearBackward0", 10.0),  # of the same number, and without a gradient
        ("aten::index", "IndexBackward0", 10.0),  # on a CPU nothing else is faster
    ],
)
def test_quiet(operator: str, node: str, forward_us: float) -> None:
    assert not steps(operator, node, n=1, forward_us=forward_us, back_us=500)


def test_quiet_where_a_loss_fills_its_gradient() -> None:
    assert not steps("aten::nll_loss_forward", "NllLossBackward0", n=1, forward_us=10, back_us=200)
