"""Details of rows, whatever a file writes in their place."""

from __future__ import annotations

import io
from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Kind, read_trace


@pytest.mark.parametrize("value", [None, 5, 1.5, True, "[1, 2]", {"a": [1]}])
def test_details_that_are_no_list_were_not_recorded(value: Any) -> None:
    builder = TraceBuilder().op("aten::mm", 0, 5.5, dims=[[2, 3], [3, 4]])
    builder.event("aten::mm", "cpu_op", 10, 5.5, **{"Input Dims": value, "Concrete Inputs": value})
    trace = builder.build()
    assert trace.details_of("dims", [0, 1]) == [[[2, 3], [3, 4]], None]
    assert trace.details_of("concrete", [1]) == [None]
    asked: list[Any] = []

    def passes(dims: Any) -> bool:
        asked.append(dims)
        return True

    assert trace.where_detail("dims", passes, trace.named("aten::mm")).tolist() == [True, False]
    assert asked == [[[2, 3], [3, 4]]]
    assert not trace.where_detail("dims", passes, trace.named("aten::add")).any()
    assert len(asked) == 1


@pytest.mark.parametrize("n_names", [1, 3, 40])
@pytest.mark.parametrize("share", [0.01, 0.9])
def test_rows_by_name(n_names: int, share: float) -> None:
    builder = TraceBuilder()
    for i in range(200):
        builder.op(f"common {i % n_names}" if (i * 7) % 100 < share * 100 else "other", i * 10, 5)
    trace = builder.build()
    want = [name.startswith("common") for name in map(trace.name_of, range(200))]
    assert trace.matching("^common").tolist() == want
    assert trace.where_name(lambda name: True).all()
    assert not trace.matching("^nothing").any()
    assert trace.named("common 0").sum() == sum(trace.name_of(row) == "common 0" for row in range(200))


def test_rows_by_name_and_kind() -> None:
    builder = TraceBuilder()
    builder.op("copy", 0, 9)
    builder.op("other", 10, 5)
    builder.annotation("copy", 20, 5)
    trace = builder.build()
    by_kind = {kind: trace.matching("^copy", kind).tolist() for kind in (Kind.OP, Kind.ANNOTATION, Kind.KERNEL)}
    # every order of the questions: what is known of a name must not widen what is asked of a kind
    assert trace.matching("^copy").tolist() == trace.matching("^copy", Kind.ANNOTATION, Kind.OP).tolist()
    for kind, found in by_kind.items():
        assert found == (trace.matching("^copy") & (trace.kind == kind)).tolist()
    assert sum(by_kind[Kind.OP]) == sum(by_kind[Kind.ANNOTATION]) == 1
    assert not any(by_kind[Kind.KERNEL])


def test_names_of_collectives_are_text() -> None:
    builder = TraceBuilder()
    group = {"Process Group Name": "3", "Process Group Ranks": "[0, 4]", "Seq": 17, "Group size": 2}
    ends = {"Src Rank": 4, "Dst Rank": 0}
    builder.launch(0, 5, 10, 5, **{"Collective name": "allreduce", "In msg nelems": 16, **group, **ends})
    trace = builder.build()
    assert trace.details_of("collective", [1]) == ["allreduce"]
    assert trace.details_of("nelems", [1]) == [16]
    assert trace.details_of("group", [1]) == ["3"]
    assert trace.details_of("ranks", [1]) == ["[0, 4]"]  # the profiler writes a list as text
    assert trace.details_of("seq", [1]) == [17]
    assert trace.details_of("group_size", [1]) == [2]
    assert [trace.details_of(end, [1]) for end in ("src", "dst")] == [[4], [0]]


@pytest.mark.parametrize("number", ["6e53135406", "-6e53135406", "6e-53135406", "1e999999999999"])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_no_calendar_holds_is_none(key: str, number: str) -> None:
    times = {"ts": "8796093022209.5", "dur": "2.5"} | {key: number}
    text = f'[{{"ph":"X","name":"a","ts":{times["ts"]},"dur":{times["dur"]}}},'
    text += '{"ph":"X","name":"b","ts":8796093022209.5,"dur":1.5}]'
    trace = read_trace(io.BytesIO(text.encode()))
    assert trace.names == ("a", "b")
    assert trace.dur_ns[1] == 1500
    is_tiny = number == "6e-53135406"
    assert trace.report.n_no_time == (key == "ts" and not is_tiny)
    assert trace.report.n_no_dur + trace.report.n_negative_dur == (key == "dur" and not is_tiny)
