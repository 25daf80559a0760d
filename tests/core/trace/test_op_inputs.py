"""The recorded inputs of operators, whatever a file holds in their place."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace.op_inputs import Inputs, inputs_of


def test_each_distinct_set_of_inputs_is_decoded_once() -> None:
    builder = TraceBuilder(vendor="cpu")
    for at, dims in enumerate([[[2, 3]], [[4]], [[2, 3]]]):
        builder.op("aten::mul", 10 * at, 5, dims=dims, types=["float"], concrete=["7"])
    trace = builder.build()
    rows = np.flatnonzero(trace.named("aten::mul"))
    inputs, which = inputs_of(trace, rows)
    assert [inputs[code].shape(0) for code in which.tolist()] == [[2, 3], [4], [2, 3]]
    assert len(inputs) == 2
    assert (inputs[0].numel(0), inputs[0].type(0), inputs[0].value(0)) == (6, "float", "7")


def test_nothing_recorded_is_no_shape() -> None:
    trace = TraceBuilder(vendor="cpu").op("aten::mul", 0, 5).build()
    (inputs,), which = inputs_of(trace, np.flatnonzero(trace.named("aten::mul")))
    assert which.tolist() == [0]
    assert (inputs.shape(0), inputs.numel(3), inputs.type(0), inputs.value(9)) == ([], 1, "", "")
    assert inputs_of(trace, np.empty(0, np.int64))[0] == []


@pytest.mark.parametrize("dims", [[[[2, 3], [4]]], [[-1]], [["x"]], [None], [{"a": 1}], [7]])
def test_what_is_no_shape_is_none(dims: list[object]) -> None:
    assert Inputs(dims, [], [], []).shape(0) == []


@pytest.mark.parametrize(
    ("text", "axis"), [("0", 0), ("-1", 2), ("2", 2), ("3", -1), ("-4", -1), ("--1", -1), ("", -1), ("1.5", -1)]
)
def test_axes_count_from_either_end(text: str, axis: int) -> None:
    assert Inputs([], [], ["", text], []).axis(1, 3) == axis


def test_a_number_without_dimensions_has_no_axis() -> None:
    assert Inputs([], [], ["", "0"], []).axis(1, 0) == -1
