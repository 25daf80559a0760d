"""Containment trees: parents, own time, ancestors, whatever crosses."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder, row
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core.engine import READER_VARIABLE, find_engine
from torchtriage.core.trace import Trace
from torchtriage.core.trace.nesting import _contain_in_turn, contain


def parent_name(trace: Trace, name: str) -> str:
    above = int(trace.tree.parent[row(trace, name)])
    return trace.name_of(above) if above >= 0 else ""


# -- contain against the definition ------------------------------------------------------------

intervals_of = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def brute(rows: list[tuple[int, int, int]], tolerance: int) -> list[int]:
    """The last row before i, on its lane, that is open when i starts and ends no earlier."""
    out = []
    for i, (lane, start, dur) in enumerate(rows):
        found = -1
        for j in range(i):
            other, begin, length = rows[j]
            open_then = begin <= start < begin + length
            if other == lane and open_then and begin + length + tolerance >= start + dur:
                found = j
        out.append(found)
    return out


@given(intervals_of, st.integers(0, 3))
def test_contain_is_the_innermost_container_even_when_intervals_cross(
    rows: list[tuple[int, int, int]], tolerance: int
) -> None:
    rows = sorted(rows, key=lambda one: (one[0], one[1], -one[2]))
    lane, start, dur = (np.array([one[i] for one in rows], np.int64) for i in range(3))
    found = contain(lane, start, start + dur, tolerance_ns=tolerance)
    assert found.tolist() == brute(rows, tolerance)


@given(intervals_of)
def test_own_time_is_the_time_no_child_covers(rows: list[tuple[int, int, int]]) -> None:
    builder = TraceBuilder().op("anchor", 1000, 1.5)
    for lane, start, dur in rows:
        builder.op("op", start, dur, tid=lane)
    trace = builder.build()
    for member in trace.tree.members.tolist():
        inside = np.flatnonzero(trace.tree.parent == member)
        covered = {
            time
            for start, end in zip(trace.start_ns[inside], trace.end_ns[inside], strict=True)
            for time in range(int(start), int(end), 500)
        }
        assert trace.tree.self_ns[member] == trace.dur_ns[member] - 500 * len(covered)


@given(intervals_of, st.integers(0, 3))
def test_containment_in_turn_is_the_same(rows: list[tuple[int, int, int]], tolerance: int) -> None:
    rows = sorted(rows, key=lambda one: (one[0], one[1], -one[2]))
    lane, start, dur = (np.array([one[i] for one in rows], np.int64) for i in range(3))
    first = np.append(True, lane[1:] != lane[:-1])[: len(rows)]
    found = _contain_in_turn(first, start, start + dur, tolerance)
    assert found.tolist() == brute(rows, tolerance)


DEEP = 30_000


def deep_trace() -> Trace:
    """One op inside the other, and a flat row of ops once they are all over."""
    builder = TraceBuilder().op("outer", 0, 200)
    for i in range(DEEP):
        builder.op("deep", 1 + i * 0.001, 100 - i * 0.002)
    for i in range(DEEP):
        builder.op("flat", 110 + i * 0.002, 0.001)
    return builder.build()


def test_deep_nesting_is_read_in_time_that_grows_with_the_events() -> None:
    # climbing ancestor by ancestor takes minutes here
    trace = deep_trace()
    tree = trace.tree
    deep, flat = np.flatnonzero(trace.named("deep")), np.flatnonzero(trace.named("flat"))
    outer, innermost = row(trace, "outer"), int(deep[-1])
    assert tree.parent[deep].tolist() == [outer, *deep[:-1].tolist()]
    assert (tree.parent[flat] == outer).all()
    assert (tree.nearest(trace.tree.members, trace.named("outer"))[1:] == outer).all()
    assert (tree.outermost(deep[1:], trace.named("deep")) == deep[0]).all()
    assert tree.under(trace.named("deep")).sum() == DEEP - 1
    times = np.append(trace.start_ns[flat], trace.start_ns[innermost]) + 1
    assert tree.at(np.zeros(len(times), np.int64), times - 1).tolist() == [*flat, innermost]
    between = trace.end_ns[flat]
    assert (tree.at(np.zeros(len(flat), np.int64), between) == outer).all()


# -- trees -------------------------------------------------------------------------------------


def test_children_are_inside_and_on_the_same_thread() -> None:
    trace = (
        TraceBuilder()
        .op("outer", 0, 100)
        .op("inner", 10, 20)
        .call("cudaLaunchKernel", 12, 5)
        .op("other thread", 15, 5, tid=2)
        .op("after", 100, 10)
        .build()
    )
    assert parent_name(trace, "inner") == "outer"
    assert parent_name(trace, "cudaLaunchKernel") == "inner"
    assert parent_name(trace, "other thread") == ""
    assert parent_name(trace, "after") == ""


def test_on_equal_intervals_annotations_hold_ops_and_ops_hold_calls() -> None:
    trace = TraceBuilder().call("cudaLaunchKernel", 0, 10).op("aten::add", 0, 10).annotation("forward", 0, 10).build()
    assert parent_name(trace, "cudaLaunchKernel") == "aten::add"
    assert parent_name(trace, "aten::add") == "forward"


def test_a_rounded_end_may_pass_its_parents_by_one_unit() -> None:
    builder = TraceBuilder().op("outer", 0, 10).op("inner", 4, 7).op("crossing", 5, 8)
    for i in range(8):  # whole microseconds need a handful of rows to be believed
        builder.op("filler", 100 + 2 * i, 1)
    trace = builder.build()
    assert trace.resolution_ns == 1000
    assert parent_name(trace, "inner") == "outer"
    assert parent_name(trace, "crossing") != "outer"


def test_own_time_counts_crossing_children_once() -> None:
    trace = (
        TraceBuilder()
        .op("outer", 0, 100.5)
        .op("first", 10, 30)
        .op("second", 30, 30)  # crosses the end of the first
        .op("grandchild", 45, 5)
        .build()
    )
    own = trace.tree.self_ns
    assert own[row(trace, "outer")] == 100_500 - 50_000
    assert own[row(trace, "first")] == 30_000
    assert own[row(trace, "second")] == 25_000


def test_ancestors_and_descendants() -> None:
    trace = (
        TraceBuilder()
        .annotation("step", 0, 100)
        .op("a", 0.5, 50)
        .op("b", 5, 30)
        .op("a", 10, 10)
        .op("leaf", 12, 2)
        .op("alone", 60, 5)
        .build()
    )
    tree, a = trace.tree, trace.named("a")
    leaf, alone = row(trace, "leaf"), row(trace, "alone")
    outer, inner = np.flatnonzero(a).tolist()
    assert tree.under(a)[[leaf, inner]].all()
    assert not tree.under(a)[[outer, alone, row(trace, "step")]].any()
    assert tree.above(trace.named("leaf"))[[inner, row(trace, "b"), outer, row(trace, "step")]].all()
    assert not tree.above(trace.named("leaf"))[[leaf, alone]].any()
    assert tree.nearest(np.array([leaf, alone]), a).tolist() == [inner, -1]
    assert tree.outermost(np.array([leaf, alone]), a).tolist() == [outer, -1]
    assert tree.chain(leaf) == [inner, row(trace, "b"), outer, row(trace, "step")]


@given(intervals_of)
def test_at_is_the_innermost_open_row(rows: list[tuple[int, int, int]]) -> None:
    builder = TraceBuilder().op("anchor", 1000, 1.5)
    for lane, start, dur in rows:
        builder.op("op", start, dur, tid=lane)
    trace = builder.build()
    lanes = {lane.tid: code for code, lane in enumerate(trace.lanes) if lane.kind == "thread"}
    for tid, code in lanes.items():
        times = np.arange(0, 45_000, 500)
        found = trace.tree.at(np.full(len(times), code), times)
        for time, inner in zip(times.tolist(), found.tolist(), strict=True):
            chain = [inner, *trace.tree.chain(inner)] if inner >= 0 else []
            assert all(trace.start_ns[one] <= time for one in chain[:1])
            assert inner < 0 or trace.end_ns[inner] > time
            open_now = np.flatnonzero((trace.lane == code) & (trace.start_ns <= time) & (trace.end_ns > time))
            assert (inner >= 0) >= (len(open_now) == 1), (tid, time)
            if len(open_now) == 1:
                assert inner == open_now[0]


def test_how_many_have_started_is_the_same_for_few_times_and_many() -> None:
    builder = TraceBuilder().op("other", 0, 5, tid=2)
    for index in range(300):
        builder.op("op", 10 * (index // 2), 4)
    trace = builder.build()
    lane = int(trace.lane[row(trace, "op")])
    times = np.array([-1, 0, 9_999, 10_000, 745_000, 9_000_000])
    expected = [0, 2, 2, 4, 150, 300]
    # bisected, and looked up among copied starts
    assert trace.tree.n_started(lane, times[:4]).tolist() == expected[:4]
    assert trace.tree.n_started(lane, np.tile(times, 50)).tolist() == expected * 50
    assert trace.tree.n_started(lane, times[:0]).tolist() == []
    assert trace.frames.n_started(lane, times).tolist() == [0] * 6


def test_frames_follow_the_ids_the_profiler_wrote() -> None:
    trace = (
        TraceBuilder()
        .frame("train.py(1): main", 0, 100)
        .frame("train.py(9): step", 10, 50)
        .frame("<built-in method item of Tensor object at 0x1>", 20, 5)
        .build()
    )
    leaf = row(trace, "<built-in method item of Tensor object at 0x1>")
    names = [trace.name_of(one) for one in trace.frames.chain(leaf)]
    assert names == ["train.py(9): step", "train.py(1): main"]
    assert trace.frames.self_ns[row(trace, "train.py(1): main")] == 50_000


def test_frames_without_usable_ids_follow_containment() -> None:
    builder = TraceBuilder()
    for name, start, dur in (("a.py(1): f", 0, 50), ("a.py(2): g", 10, 10.5)):
        builder.event(name, "python_function", start, dur, **{"Python id": 7})
    trace = builder.build()
    assert trace.frames.parent[row(trace, "a.py(2): g")] == row(trace, "a.py(1): f")


def test_the_two_trees_do_not_mix() -> None:
    trace = TraceBuilder().frame("a.py(1): f", 0, 50).op("aten::add", 10, 5.5).build()
    assert parent_name(trace, "aten::add") == ""
    assert (trace.frames.parent == -1).all()


@pytest.mark.skipif(find_engine().library is None, reason="the native library is not built")
@pytest.mark.parametrize("seed", range(8))
def test_both_engines_tell_own_time_and_who_is_under_whom(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    for index in range(200):
        # crossing, nested, equal and empty ones
        start, dur = random.integers(0, 120), random.choice([0, 1, 5, 40, 300])
        builder.op(f"op {index % 7}", int(start), int(dur), tid=int(random.integers(1, 4)))
    found = []
    for name in ("native", "python"):
        monkeypatch.setenv(READER_VARIABLE, name)
        trace = builder.build()
        masks = [trace.named(f"op {code}") for code in range(7)]
        found.append((trace.tree.self_ns.tolist(), [trace.tree.under(mask).tolist() for mask in masks]))
    assert found[0] == found[1]
    assert any(map(any, found[0][1]))
