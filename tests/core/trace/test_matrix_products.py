"""Operations are counted from shapes, and only where the shapes say enough."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace.matrix_products import Product, product_of, products


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[4, 8], [8, 16]], (1, 4, 16, 8)),
        ("aten::addmm", [[16], [4, 8], [8, 16], [], []], (1, 4, 16, 8)),
        ("aten::bmm", [[3, 4, 8], [3, 8, 16]], (3, 4, 16, 8)),
        ("aten::baddbmm", [[3, 4, 16], [3, 4, 8], [3, 8, 16], [], []], (3, 4, 16, 8)),
        ("aten::linear", [[2, 5, 8], [16, 8], [16]], (1, 10, 16, 8)),
    ],
)
def test_products(name, dims, expected):
    assert product_of(name, dims) == expected


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", None),
        ("aten::mm", []),
        ("aten::mm", [[4, 8]]),
        ("aten::mm", [[4, 8], [9, 16]]),
        ("aten::mm", [[4, 0], [0, 16]]),
        ("aten::mm", [[4, 8], [[8, 16]]]),
        ("aten::mm", [[10**30, 2], [2, 10**30]]),
        ("aten::mm", [[1 << 62, 2], [2, 8]]),
        ("aten::mm", [[4, -8], [-8, 16]]),
        ("aten::bmm", [[4, 8], [8, 16]]),
        ("aten::linear", [[], [16, 8]]),
        ("aten::relu", [[4, 8], [8, 16]]),
    ],
)
def test_shapes_that_make_no_product(name, dims):
    assert product_of(name, dims) is None


IMAGE, WEIGHT = [2, 3, 8, 8], [16, 3, 3, 3]


@pytest.mark.parametrize(
    ("name", "concrete"),
    [
        ("aten::cudnn_convolution", ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]),
        ("aten::convolution", ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]),
        ("aten::miopen_convolution", ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]),
    ],
)
def test_convolutions_are_implicit_products(name, concrete):
    # 8x8 with padding 1, stride 2, 3x3 taps: 4x4 outputs
    found = product_of(name, [IMAGE, WEIGHT, [], [], [], []], concrete)
    assert found == Product(1, 2 * 4 * 4, 16, 3 * 3 * 3)
    assert found.flop == 2 * 32 * 16 * 27


def test_a_convolution_without_its_stride_is_unknown():
    assert product_of("aten::cudnn_convolution", [IMAGE, WEIGHT], ["", "", "", "", ""]) is None
    assert product_of("aten::cudnn_convolution", [IMAGE, WEIGHT]) is None


TRANSPOSED = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("name", "concrete"), [("aten::convolution", TRANSPOSED), ("aten::cudnn_convolution_transpose", None)]
)
def test_a_transposed_convolution_meets_every_tap_at_every_element(name, concrete):
    weight = [3, 5, 4, 4]
    assert product_of(name, [IMAGE, weight], concrete) == (1, 2 * 8 * 8, 5 * 4 * 4, 3)
    assert product_of(name, [IMAGE, [7, 5, 4, 4]], concrete) is None


def test_the_gradients_of_a_transposed_convolution():
    concrete = ["", "", "", "", *TRANSPOSED[3:], "[True, True, True]"]
    dims = [[2, 5, 17, 17], IMAGE, [3, 5, 4, 4], *[[]] * 8]
    assert product_of("aten::convolution_backward", dims, concrete) == (2, 2 * 8 * 8, 5 * 4 * 4, 3)


def test_the_backward_convolution_holds_two_products():
    dims = [[2, 16, 4, 4], IMAGE, WEIGHT, [], [], [], [], [], [], [], []]
    assert product_of("aten::convolution_backward", dims) == (2, 32, 16, 27)


def test_columns_of_many_rows():
    builder = TraceBuilder(vendor="cpu")
    half = ["c10::Half", "c10::Half"]
    builder.op("aten::mm", 0, 1, dims=[[4, 8], [8, 16]], types=half)
    builder.op("aten::mm", 2, 1, dims=[[4, 8], [8, 16]], types=["float", "float"])
    builder.op("aten::relu", 4, 1, dims=[[4, 8]], types=["float"])
    builder.op("aten::mm", 6, 1)
    work = products(builder.build(), np.array([0, 1, 2, 3, -1]))
    assert work.known.tolist() == [True, True, False, False, False]
    assert work.dtype.tolist() == ["half", "float", "", "", ""]
    assert work.flop.tolist() == [1024, 1024, 0, 0, 0]
    assert work.n_elements.tolist() == [4 * 8 + 8 * 16 + 4 * 16] * 2 + [0] * 3
    assert work.least_side.tolist()[:2] == [4, 4]


def test_convolutions_with_impossible_arguments_make_no_product():
    far = f"[{10**25}, {10**25}]"
    concrete = ["", "", "", "[1, 1]", far, "[1, 1]", "False", "[0, 0]", "1"]
    dims = [[8, 3, 32, 32], [16, 3, 3, 3], [], [], [], [], [], [], []]
    assert product_of("aten::convolution", dims, concrete) is None
