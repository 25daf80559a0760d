"""KRN071 product-order: einsums from left to right, and layers after a sparse product; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim
from torchtriage.diagnose.patterns.kernel.product_order import find

QUERY, KEY, VALUE = [16, 640, 32], [16, 32, 640], [16, 640, 32]
SCORES = [16, 640, 640]


def attention(
    first: list[list[int]],
    second: list[list[int]],
    *,
    around: str = "aten::einsum",
    op_us: float = 200,
    back_us: float = 100,
) -> list[Claim]:
    """Four steps of 1 ms on a CPU: two products, and one of the backward pass."""
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.op(around, at + 10, 2 * op_us + 20)
        builder.op("aten::bmm", at + 15, op_us, dims=first)
        builder.op("aten::bmm", at + 20 + op_us, op_us, dims=second)
        builder.op("autograd::engine::evaluate_function: BmmBackward0", at + 700, 110)
        builder.op("aten::bmm", at + 705, back_us, dims=[[16, 640, 640], VALUE])
        builder.op("aten::bmm", at + 850, 50, dims=[[16, 640, 640], VALUE])  # no backward pass, no einsum
        builder.op("aten::einsum", at + 910, 70)  # of two operands
        builder.op("aten::bmm", at + 915, 50, dims=[SCORES, VALUE])
    return builder.claims(find)


def test_an_einsum_that_builds_the_product_of_two_long_axes() -> None:
    (claim,) = attention([QUERY, KEY], [SCORES, VALUE])
    assert claim.evidence["products_ms_per_step"] == 0.5  # two products forward, one backward
    assert (claim.evidence["batch"], claim.evidence["rows"], claim.evidence["columns"]) == (16, 640, 640)
    gain = 1 - 2 * 640 * 32 * 32 / (2 * 640 * 640 * 32)
    (edit,) = claim.edits
    assert edit.best == pytest.approx(1 - gain)
    assert edit.factor == pytest.approx(1 - 0.6 * gain)


def test_the_product_as_the_right_side() -> None:
    assert attention([QUERY, KEY], [[16, 32, 640], SCORES])


def test_quiet_in_the_better_order() -> None:
    assert not attention([[16, 32, 640], VALUE], [QUERY, [16, 32, 32]])


def test_quiet_where_it_is_no_einsum() -> None:
    # a softmax may stand between them
    assert not attention([QUERY, KEY], [SCORES, VALUE], around="aten::matmul")


def test_quiet_where_shapes_do_not_fit_or_are_missing() -> None:
    assert not attention([QUERY, KEY], [[8, 640, 640], [8, 640, 32]])
    assert not attention([], [])


def test_quiet_below_five_percent() -> None:
    assert not attention([QUERY, KEY], [SCORES, VALUE], op_us=10, back_us=20)


def graph(width: int, weight: list[int], *, between: str = "", op_us: float = 300) -> list[Claim]:
    """Four steps of 1 ms on a CPU: a sparse product, a linear layer, and a sparse product of the backward pass."""
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.op("aten::_sparse_mm", at + 10, op_us, dims=[[8000, 8000], [8000, width]])
        if between:
            builder.op(between, at + 15 + op_us, 2, dims=[[8000, width]])
        builder.op("aten::linear", at + 20 + op_us, 20, dims=[[8000, width], weight, []])
        builder.op("aten::_sparse_mm", at + 600, op_us, dims=[[8000, 8000], [8000, width]])
    return builder.claims(find)


def test_a_layer_that_could_make_the_features_narrow_first() -> None:
    (claim,) = graph(192, [32, 192])
    assert claim.evidence["products_ms_per_step"] == 0.6
    assert claim.evidence["columns"] == 192
    (edit,) = claim.edits
    assert edit.best == pytest.approx(32 / 192)


@pytest.mark.parametrize("weight", [[192, 192], [256, 192], []])
def test_quiet_where_the_layer_does_not_make_them_narrower(weight: list[int]) -> None:
    assert not graph(192, weight)


def test_quiet_with_an_operator_between() -> None:
    assert not graph(192, [32, 192], between="aten::relu")


def neighbours(
    width: int,
    weight: list[int],
    *,
    between: tuple[str, list[int]] = ("aten::div", [2000, 1]),
    message: tuple[str, list[int]] = ("aten::mul", [9000, 1]),
    n_rows: int = 2000,
    layers: int = 1,
) -> list[Claim]:
    """Four steps of 10 ms on a CPU: rows gathered and added up, their mean, a layer; the same rows back.

    ``layers`` : of which the last one narrows.
    """
    builder = TraceBuilder(vendor="cpu")
    for step in range(4):
        builder.step(step, 10_000 * step, 10_000)
        for layer in range(layers):
            at = 10_000 * step + 2_000 * layer
            builder.op("aten::index_select", at + 10, 500, dims=[[2000, width], [], [9000]])
            builder.op(message[0], at + 510, 5, dims=[[9000, width], message[1]])
            builder.op("aten::new_zeros", at + 516, 2, dims=[[2000, width]])
            builder.op("aten::index_add", at + 520, 500, dims=[[n_rows, width], [], [9000], [9000, width]])
            builder.op(between[0], at + 1030, 5, dims=[[2000, width], between[1]])
            last = weight if layer == layers - 1 else [width, width]
            builder.op("aten::linear", at + 1040, 20, dims=[[n_rows, width], last, []])
            builder.op("autograd::engine::evaluate_function: IndexSelectBackward0", at + 1090, 120)
            builder.op("aten::index_add_", at + 1100, 100, dims=[[2000, width], [], [9000], [9000, width]])
    return builder.claims(find)


def test_rows_that_a_layer_could_make_narrow_before_they_are_added_up() -> None:
    (claim,) = neighbours(256, [32, 256])
    assert claim.evidence["columns"] == 256
    assert claim.edits[0].best == pytest.approx(32 / 256)


def test_layers_of_one_width_of_which_one_narrows() -> None:
    (claim,) = neighbours(64, [6, 64], layers=3)
    assert claim.edits[0].best == pytest.approx(1 - (1 - 6 / 64) / 3)


@pytest.mark.parametrize(
    "given",
    [
        {"weight": [256, 256]},
        {"weight": []},
        {"between": ("aten::relu", [])},
        {"between": ("aten::clamp", [])},
        {"message": ("aten::relu", [])},
        {"message": ("aten::linear", [256, 256])},
        {"message": ("aten::mul", [9000, 256])},  # a filter for each edge
        {"n_rows": 32},  # a sum over graphs
    ],
)
def test_quiet_where_the_layer_cannot_come_first(given: dict[str, Any]) -> None:
    assert not neighbours(256, **{"weight": [32, 256], **given})
