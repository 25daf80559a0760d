"""Bytes that operators move at least, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from torchtriage.core.trace.memory_traffic import least_bytes
from torchtriage.core.trace.op_inputs import Inputs

HALF, FLOAT = "c10::Half", "float"


def moved(name: str, dims: list[Any], types: list[str], concrete: Any = None, strides: Any = None) -> int:
    return least_bytes(f"aten::{name}", Inputs(dims, types, concrete or [], strides or []))


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("mm", [[64, 32], [32, 16]], [HALF, HALF], 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("addmm", [[16], [64, 32], [32, 16]], [FLOAT] * 3, 4 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("bmm", [[8, 64, 32], [8, 32, 16]], [HALF, HALF], 2 * 8 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("add", [[8, 100], [100], []], [FLOAT, FLOAT, "Scalar"], 4 * (800 + 100 + 800)),
        ("mul", [[8, 1], [1, 100]], [HALF, FLOAT], 2 * 8 + 4 * 100 + 4 * 800),
        ("add_", [[800], [800], []], [HALF, FLOAT, "Scalar"], 2 * 800 + 4 * 800 + 2 * 800),
        ("gt", [[800], []], [FLOAT, "Scalar"], 5 * 800),
        ("where", [[800], [800], []], ["bool", FLOAT, FLOAT], 800 + 4 * 800 + 4 * 800),
        ("zero_", [[800]], [HALF], 1600),
        ("copy_", [[800], [800], []], [HALF, FLOAT, "Scalar"], 2 * 800 + 4 * 800),
        ("sum", [[8, 100]], [FLOAT], 3200),
        ("native_layer_norm", [[8, 100], [], [100], [100], []], [HALF, "", HALF, HALF, ""], 2 * (800 + 200 + 800)),
        ("cudnn_batch_norm_backward", [[8, 100], [8, 100]], [HALF, HALF], 2 * 3 * 800),
        ("embedding", [[5000, 64], [8, 10]], [HALF, "long int"], 80 * 8 + 80 * 64 * 2),
    ],
)
def test_inputs_once_and_outputs_once(name: str, dims: list[Any], types: list[str], expected: int) -> None:
    assert moved(name, dims, types) == expected


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("some_operator", [[800]], [FLOAT]),
        ("add", [[800], [800]], [FLOAT, "a type of tomorrow"]),
        ("add", [[7], [8]], [FLOAT, FLOAT]),
        ("add", [[], []], [FLOAT, FLOAT]),
        ("div", [[800], []], ["long int", "Scalar"]),
        ("mm", [[64, 32], [31, 16]], [HALF, HALF]),
        ("mm", [[64, 32], [32, 16]], ["", ""]),
        ("copy_", [[800], []], [FLOAT, ""]),
        ("convolution_backward", [[8, 64, 7, 7], [8, 3, 7, 7], [64, 3, 1, 1]], [HALF] * 3),
        ("cat", [[[8, 4], [8, 4]], []], ["TensorList", "Scalar"]),
    ],
)
def test_what_is_not_known_is_not_guessed(name: str, dims: list[Any], types: list[str]) -> None:
    assert moved(name, dims, types) == 0


def test_an_expanded_axis_is_read_once() -> None:
    strides = [[100, 1], [0, 1], []]
    assert moved("add", [[8, 100], [8, 100], []], [FLOAT, FLOAT, "Scalar"], strides=strides) == 4 * (800 + 100 + 800)


def test_rows_taken_by_an_index_are_written_once() -> None:
    types = [HALF, "Scalar", "long int"]
    assert moved("index_select", [[4, 500, 8], [], [30]], types, ["", "1", ""]) == 30 * 8 + 2 * 4 * 30 * 8
    assert moved("index_select", [[4, 500, 8], [], [30]], types, ["", "7", ""]) == 0


def test_gradients_of_a_pooling_read_its_indices() -> None:
    dims = [[8, 4], [8, 16], [], [], [], [], [], [8, 4]]
    types = [HALF, HALF, "", "", "", "", "", "long int"]
    assert moved("max_pool2d_with_indices_backward", dims, types) == 2 * 32 + 8 * 32 + 2 * 128


def test_a_softmax_may_change_the_type() -> None:
    assert moved("_softmax", [[8, 100], [], []], [HALF, "", ""], ["", "1", "False"]) == 2 * 800 + 2 * 800
    assert moved("_softmax", [[8, 100], [], []], [HALF, "", ""], ["", "1", "True"]) == 2 * 800 + 4 * 800
    backward = [[8, 100], [8, 100], [], []]
    types = [FLOAT, FLOAT, "", ""]
    assert moved("_softmax_backward_data", backward, types, ["", "", "1", "5"]) == 8 * 800 + 2 * 800
    assert moved("_softmax_backward_data", backward, types, ["", "", "1", ""]) == 0


def test_what_a_transposed_convolution_returns_is_not_counted() -> None:
    def convolution(transposed: str) -> int:
        concrete = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", transposed, "[0, 0]", "1"]
        return moved("convolution", [[2, 16, 8, 8], [16, 16, 2, 2]], [HALF] * 2, concrete)

    assert convolution("False") > 0
    assert convolution("True") == 0


def test_a_convolution_skips_what_its_stride_skips() -> None:
    def convolution(taps: int, stride: int) -> int:
        concrete = ["", "", "", f"[{stride}, {stride}]", "[0, 0]", "[1, 1]", "False"]
        return moved("convolution", [[2, 16, 8, 8], [32, 16, taps, taps]], [HALF] * 2, concrete)

    assert convolution(1, 1) == 2 * (2 * 16 * 64 + 32 * 16 + 2 * 32 * 64)
    assert convolution(1, 2) == 2 * (2 * 16 * 16 + 32 * 16 + 2 * 32 * 16)


@pytest.mark.parametrize(
    ("mask", "elements"),
    [
        ("[True, True, False]", 6272 + 2 * 192 + 2 * 1176),
        ("[False, True, True]", 6272 + 192 + 1176),
        ("[True, False, False]", 6272 + 192 + 1176),
        ("[False, False, True]", 0),
    ],
)
def test_gradients_of_a_convolution(mask: str, elements: int) -> None:
    dims = [[2, 64, 7, 7], [8, 3, 7, 7], [64, 3, 1, 1], *[[]] * 8]
    concrete = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
    assert moved("convolution_backward", dims, [HALF] * 3, concrete) == 2 * elements


def test_attention_reads_three_and_writes_one_and_its_gradients_double_that() -> None:
    name, qkv = "_scaled_dot_product_flash_attention", [[2, 4, 128, 64]] * 3
    assert moved(name, qkv, [HALF] * 3) == 4 * 2 * 2 * 4 * 128 * 64
    assert moved(f"{name}_backward", [qkv[0], *qkv], [HALF] * 4) == 8 * 2 * 2 * 4 * 128 * 64
