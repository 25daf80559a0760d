"""Details of rows, whatever a file writes in their place."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder


@pytest.mark.parametrize("value", [None, 5, 1.5, True, "[1, 2]", {"a": [1]}])
def test_details_that_are_no_list_were_not_recorded(value: Any) -> None:
    builder = TraceBuilder().op("aten::mm", 0, 5.5, dims=[[2, 3], [3, 4]])
    builder.event("aten::mm", "cpu_op", 10, 5.5, **{"Input Dims": value, "Concrete Inputs": value})
    trace = builder.build()
    assert trace.details_of("dims", [0, 1]) == [[[2, 3], [3, 4]], None]
    assert trace.details_of("concrete", [1]) == [None]
    asked: list[Any] = []
    assert trace.where_detail("dims", lambda dims: bool(asked.append(dims) or True)).tolist() == [
        True,
        False,
    ]
    assert asked == [[[2, 3], [3, 4]]]


def test_names_of_collectives_are_text() -> None:
    builder = TraceBuilder()
    group = {"Process Group Name": "3", "Process Group Ranks": "[0, 4]", "Seq": 17}
    builder.launch(0, 5, 10, 5, **{"Collective name": "allreduce", "In msg nelems": 16, **group})
    trace = builder.build()
    assert trace.details_of("collective", [1]) == ["allreduce"]
    assert trace.details_of("nelems", [1]) == [16]
    assert trace.details_of("group", [1]) == ["3"]
    assert trace.details_of("ranks", [1]) == ["[0, 4]"]  # the profiler writes a list as text
    assert trace.details_of("seq", [1]) == [17]
