"""Interval arithmetic against the plainest thing that can be right: one flag per nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core import intervals
from torchtriage.core.engine import READER_VARIABLE
from torchtriage.core.intervals import EMPTY, Spans

SIZE = 64

_pair = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))
raw = st.lists(_pair, max_size=12).map(
    lambda pairs: np.array(pairs, np.int64).reshape(-1, 2)  # any order, empty and reversed too
)
disjoint = raw.map(intervals.union)
times = st.lists(st.integers(-2, SIZE + 2), max_size=20).map(lambda one: np.array(one, np.int64))


def bitmap(values: Spans) -> np.ndarray:
    flags = np.zeros(SIZE, dtype=bool)
    for start, end in values.tolist():
        flags[start:end] = True
    return flags


def assert_canonical(values: Spans) -> None:
    assert values.dtype == np.int64
    assert values.shape == (len(values), 2)
    assert (values[:, 1] > values[:, 0]).all()
    assert (values[1:, 0] > values[:-1, 1]).all()


@given(raw)
def test_union_covers_the_same_time_and_merges_what_touches(values: Spans) -> None:
    found = intervals.union(values)
    assert_canonical(found)
    assert (bitmap(found) == bitmap(values)).all()
    assert intervals.length(found) == bitmap(values).sum()


@given(raw)
def test_union_changes_nothing_the_second_time(values: Spans) -> None:
    once = intervals.union(values)
    assert (intervals.union(once) == once).all()


@given(disjoint, disjoint)
def test_intersect(left: Spans, right: Spans) -> None:
    found = intervals.intersect(left, right)
    assert (found[:, 1] > found[:, 0]).all()
    assert (found[1:, 0] >= found[:-1, 1]).all()
    assert (bitmap(found) == (bitmap(left) & bitmap(right))).all()


@given(disjoint, disjoint)
def test_subtract(left: Spans, right: Spans) -> None:
    found = intervals.subtract(left, right)
    assert_canonical(found)
    assert (bitmap(found) == (bitmap(left) & ~bitmap(right))).all()


@given(disjoint, disjoint)
def test_what_is_shared_and_what_is_left_add_up(left: Spans, right: Spans) -> None:
    shared, rest = intervals.intersect(left, right), intervals.subtract(left, right)
    assert intervals.length(shared) + intervals.length(rest) == intervals.length(left)


@given(disjoint, st.integers(0, SIZE), st.integers(0, SIZE))
def test_clip(values: Spans, start: int, end: int) -> None:
    window = np.zeros(SIZE, dtype=bool)
    window[start:end] = True
    found = intervals.clip(values, start, end)
    assert_canonical(found)
    assert (bitmap(found) == (bitmap(values) & window)).all()


@given(raw, disjoint)
def test_covered_counts_each_row_by_itself(values: Spans, cover: Spans) -> None:
    flags = bitmap(cover)
    expected = [int(flags[start:end].sum()) for start, end in values.tolist()]
    assert intervals.covered(values, cover).tolist() == expected


@given(disjoint, times)
def test_owner_is_the_interval_that_holds_the_time(values: Spans, at: np.ndarray) -> None:
    expected = [next((i for i, (a, b) in enumerate(values.tolist()) if a <= one < b), -1) for one in at.tolist()]
    assert intervals.owner(values, at).tolist() == expected


def test_ends_do_not_belong_to_an_interval() -> None:
    one = np.array([[10, 20]], np.int64)
    assert intervals.owner(one, np.array([9, 10, 19, 20])).tolist() == [-1, 0, 0, -1]
    assert not len(intervals.intersect(one, np.array([[20, 30]], np.int64)))


def test_nanoseconds_of_an_epoch_stay_exact() -> None:
    epoch = 1_700_000_000_000_000_001
    values = intervals.spans(np.array([epoch, epoch + 1]), np.array([epoch + 2, epoch + 3]))
    assert intervals.union(values).tolist() == [[epoch, epoch + 3]]
    assert intervals.covered(values, intervals.union(values)).tolist() == [2, 2]


@pytest.mark.parametrize("function", [intervals.intersect, intervals.subtract])
def test_empty_sides_are_fine(function: object) -> None:
    one = np.array([[1, 2]], np.int64)
    assert callable(function)
    assert function(EMPTY, one).tolist() == []
    assert function(one, EMPTY).tolist() == ([[1, 2]] if function is intervals.subtract else [])
    assert function(EMPTY, EMPTY).tolist() == []


@given(raw, raw)
def test_the_library_gives_the_same(values: Spans, others: Spans) -> None:
    def results() -> list[list[object]]:
        left, right = intervals.union(values), intervals.union(others)
        of_two = [function(left, right) for function in (intervals.intersect, intervals.subtract)]
        return [each.tolist() for each in (left, *of_two, intervals.covered(values, right))]

    found = results()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(READER_VARIABLE, "python")
        assert results() == found
