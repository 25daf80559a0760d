"""Containment trees of host threads: ops with runtime calls, and Python frames.

The two trees are kept apart because they cross: a ``record_function`` block opens in one Python frame and closes in
another (pytorch#174555).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.engine import find_engine
from torchtriage.core.trace.schema import COLUMN_TYPES, HOST_KINDS, Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

Rows = NDArray[np.int32]

# on equal intervals the outer one comes first
_OUTER_FIRST = np.full(256, 3, np.uint8)
_OUTER_FIRST[Kind.ANNOTATION] = 0
_OUTER_FIRST[Kind.OP] = 1
_OUTER_FIRST[Kind.RUNTIME] = 2

_NEAR = 64
"""Ancestors to climb one by one; real stacks are less deep, and short ways are cheap."""
_MANY = 64
"""So many members for each time: bisecting them is faster than copying their starts."""
_MAX_ROUNDS = 1000
"""Beyond, one pass over all intervals is faster: nesting deeper than Python's own limit."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A forest over some rows of a trace.

    ``members`` : int64[m], rows in the tree ordered by lane, then start, outer before inner.
    ``parent`` : int32[n], the row of the innermost enclosing member on the same thread, -1 at a
    root and for rows that are not members.
    """

    trace: Trace
    members: Ints
    parent: Rows

    def _child_ns(self) -> Ints:
        """Return int64[n], ns: time of each row covered by its direct children."""
        trace = self.trace
        total = np.zeros(len(trace), np.int64)
        rows = self.members
        above = self.parent[rows]
        rows, above = rows[above >= 0], above[above >= 0]
        start, end = trace.start_ns[rows], trace.end_ns[rows]
        # children are in start order; crossing ones are counted once, up to the last end so far
        by_parent = np.argsort(above, kind="stable")
        rows, above = rows[by_parent], above[by_parent]
        start, end = start[by_parent], end[by_parent]
        reach = running_end(above, end)
        begin = np.maximum(start, reach)
        stop = np.minimum(end, trace.end_ns[above])
        np.add.at(total, above, np.maximum(stop - begin, 0))
        return total

    @cached_property
    def self_ns(self) -> Ints:
        """int64[n], ns: own time of each member (duration minus what children cover), else 0."""
        out, rows = np.zeros(len(self.trace), np.int64), self.members
        library = find_engine().library
        if library is None:
            out[rows] = np.maximum(self.trace.dur_ns[rows] - self._child_ns()[rows], 0)
            return out
        held = [np.ascontiguousarray(times, np.int64) for times in (self.trace.start_ns, self.trace.dur_ns)]
        columns = (*(times.ctypes.data for times in held), rows.ctypes.data, len(rows), self.parent.ctypes.data)
        if library.tt_own(len(out), *columns, out.ctypes.data) < 0:
            raise AssertionError("the native library refused a tree")
        return out

    @cached_property
    def levels(self) -> list[Rows]:
        """Members by depth: the roots, their children, and so on."""
        rows = self.members
        compact = np.full(len(self.parent) + 1, -1, np.int32)
        compact[rows] = np.arange(len(rows), dtype=np.int32)
        jump = compact[self.parent[rows]]
        depth = (jump >= 0).astype(np.int32)
        while (jump >= 0).any():
            # doubling: each round adds the depth of the ancestor reached so far
            depth += np.where(jump >= 0, depth[jump], 0)
            jump = np.where(jump >= 0, jump[jump], -1)
        if not len(rows):
            return []
        order = np.argsort(depth.astype(_sortable(int(depth.max()))), kind="stable")
        return np.split(rows[order].astype(np.int32), np.cumsum(np.bincount(depth))[:-1])

    @cached_property
    def _inner(self) -> Mask:
        out = np.zeros(len(self.parent) + 1, dtype=bool)
        out[self.parent[self.members]] = True  # a root's -1 writes the last entry
        return out[:-1]

    def under(self, mask: Mask) -> Mask:
        """Return bool[n]: members with a proper ancestor in ``mask``."""
        out = np.zeros(len(self.parent), dtype=bool)
        if not (mask & self._inner).any():  # as with most of what patterns look for
            return out
        library = find_engine().library
        if library is not None:
            self._spread(library.tt_under, mask, out)
            return out
        if len(self.levels) > _NEAR:
            return self._nearest(mask) >= 0
        for rows in self.levels[1:]:
            above = self.parent[rows]
            out[rows] = mask[above] | out[above]
        return out

    def above(self, mask: Mask) -> Mask:
        """Return bool[n]: members with a proper descendant in ``mask``."""
        out = np.zeros(len(self.parent), dtype=bool)
        library = find_engine().library
        if library is not None:
            self._spread(library.tt_above, mask, out)
            return out
        rows = distinct(self.parent[mask])
        while True:
            rows = rows[rows >= 0]
            rows = rows[~out[rows]]
            if not len(rows):
                return out
            out[rows] = True
            rows = distinct(self.parent[rows])

    def _spread(self, function: Callable[..., int], mask: Mask, out: Mask) -> None:
        """Have the library write which members are under a mask, or above it."""
        places = self.members.ctypes.data, len(self.members), self.parent.ctypes.data
        mask = np.ascontiguousarray(mask, np.bool_)
        if function(len(out), *places, mask.ctypes.data, out.ctypes.data) < 0:
            raise AssertionError("the native library refused a tree")

    def nearest(self, rows: NDArray[np.integer], mask: Mask) -> Ints:
        """Return for each row its innermost proper ancestor in ``mask``, -1 without one."""
        current: Ints = self.parent[rows].astype(np.int64)
        for _ in range(_NEAR):
            climb = np.flatnonzero((current >= 0) & ~mask[current])
            if not len(climb):
                return current
            current[climb] = self.parent[current[climb]]
        found: Ints = self._nearest(mask)[rows].astype(np.int64)
        return found

    def outermost(self, rows: NDArray[np.integer], mask: Mask) -> Ints:
        """Return for each row its outermost proper ancestor in ``mask``, -1 without one."""
        found = np.full(len(rows), -1, np.int64)
        current = self.parent[rows].astype(np.int64)
        for _ in range(_NEAR):
            alive = np.flatnonzero(current >= 0)
            if not len(alive):
                return found
            hit = alive[mask[current[alive]]]
            found[hit] = current[hit]
            current[alive] = self.parent[current[alive]]
        return self.nearest(rows, mask & ~self.under(mask))

    def _nearest(self, mask: Mask) -> Rows:
        """Return int32[n]: each member's innermost proper ancestor in ``mask``, -1 without one.

        By pointer doubling: rounds grow with the logarithm of the depth.
        """
        near = self.parent.copy()
        rows = self.members
        while True:
            above = near[rows]
            rows = rows[(above >= 0) & ~mask[above]]
            if not len(rows):
                return near
            near[rows] = near[near[rows]]

    def chain(self, row: int) -> list[int]:
        """Return the proper ancestors of one row, innermost first."""
        out = []
        current = int(self.parent[row])
        while current >= 0:
            out.append(current)
            current = int(self.parent[current])
        return out

    def members_of(self, lane: int) -> Ints:
        """Return the members on one lane in order."""
        return self.members[self._bounds[lane] : self._bounds[lane + 1]]

    def n_started(self, lane: int, times_ns: Ints) -> Ints:
        """Return how many members on a lane have started at each time, those that start just then included."""
        rows, start_ns = self.members_of(lane), self.trace.start_ns
        if len(rows) < _MANY * len(times_ns):
            found: Ints = np.searchsorted(start_ns[rows], times_ns, side="right")
            return found
        # few times among many members: bisected without a copy of all starts
        low, high = np.zeros(len(times_ns), np.int64), np.full(len(times_ns), len(rows), np.int64)
        for _ in range(len(rows).bit_length()):
            middle = (low + high) // 2
            started = (low < high) & (start_ns[rows[np.minimum(middle, len(rows) - 1)]] <= times_ns)
            low, high = np.where(started, middle + 1, low), np.where(started, high, middle)
        return low

    @cached_property
    def _bounds(self) -> list[int]:
        lanes = np.arange(len(self.trace.lanes) + 1)
        bounds: list[int] = np.searchsorted(self.trace.lane[self.members], lanes).tolist()
        return bounds

    def at(self, lanes: NDArray[np.integer], times_ns: Ints) -> Ints:
        """Return the innermost member open on each lane at each time, -1 where none is.

        ``lanes`` : int[k], lane codes. ``times_ns`` : int64[k], times; a member is open on ``[start, end)``.
        """
        out = np.full(len(times_ns), -1, np.int64)
        trace = self.trace
        for lane in distinct(lanes).tolist():
            rows = self.members_of(lane)
            if not len(rows):
                continue
            pick = np.flatnonzero(lanes == lane)
            index = self.n_started(lane, times_ns[pick]) - 1
            current = np.where(index >= 0, rows[np.maximum(index, 0)], -1)
            for _ in range(_NEAR):
                over = np.flatnonzero((current >= 0) & (trace.end_ns[current] <= times_ns[pick]))
                if not len(over):
                    break
                current[over] = self.parent[current[over]]
            else:
                current = self._open(rows, times_ns[pick])
            out[pick] = current
        return out

    def _open(self, rows: Ints, times_ns: Ints) -> Ints:
        """Return the innermost of one lane's members open at each time, however deep."""
        trace, count = self.trace, len(rows)
        start_ns = np.concatenate([trace.start_ns[rows], times_ns])
        end_ns = np.concatenate([trace.end_ns[rows], times_ns])
        order = np.argsort(start_ns, kind="stable")
        found = contain(np.zeros(len(order), np.int64), start_ns[order], end_ns[order], tolerance_ns=0)
        out = np.full(len(order), -1, np.int64)
        # a moment contains nothing: what is found is a member
        out[order] = np.where(found >= 0, order[found], -1)
        return np.where(out >= 0, rows[np.minimum(out, count - 1)], -1)[count:]


def host_tree(trace: Trace) -> Tree:
    """Return the tree of ops, annotations and runtime calls."""
    tree = _native_tree(trace, HOST_KINDS, by_id=False)
    if tree is not None:
        return tree
    members = _ordered(trace, np.flatnonzero(trace.hosts))
    return Tree(trace, members, _parents(trace, members))


def frame_tree(trace: Trace) -> Tree:
    """Return the tree of Python frames, by the ids the profiler wrote, else by containment."""
    tree = _native_tree(trace, (Kind.PYTHON,), by_id=True)
    if tree is not None:
        return tree
    members = _ordered(trace, np.flatnonzero(trace.kind == Kind.PYTHON))
    ids = trace.key[members]
    # ids are almost sorted: this costs a hundredth of what np.unique does by hashing
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    if (ids < 0).any() or (sorted_ids[1:] == sorted_ids[:-1]).any():
        return Tree(trace, members, _parents(trace, members))
    parent = np.full(len(trace), -1, np.int32)
    if len(members):
        wanted = trace.value[members]
        index = np.minimum(np.searchsorted(sorted_ids, wanted), len(ids) - 1)
        above = order[index]
        # a parent opens on the same thread, before its child: damaged ids must not make a cycle
        hit = (
            (sorted_ids[index] == wanted)
            & (above < np.arange(len(members)))
            & (trace.lane[members[above]] == trace.lane[members])
        )
        parent[members] = np.where(hit, members[above], -1)
    return Tree(trace, members, parent)


_GIVEN = ("lane", "start_ns", "dur_ns", "kind", "key", "value")


class _Columns(ctypes.Structure):
    """What the library is given of a trace."""

    _fields_ = (("n", ctypes.c_size_t), *((name, ctypes.c_void_p) for name in _GIVEN))


def _native_tree(trace: Trace, kinds: tuple[Kind, ...], *, by_id: bool) -> Tree | None:
    """Return what the functions below give, in one pass; None without the library."""
    library = find_engine().library
    if library is None:
        return None
    n = len(trace)
    # the library reads plain memory: columns of the width it knows, without gaps
    held = [np.ascontiguousarray(getattr(trace, name), COLUMN_TYPES[name]) for name in _GIVEN]
    ranks = np.zeros(256, np.uint8)
    ranks[list(kinds)] = _OUTER_FIRST[list(kinds)] + 1
    members, parent = np.empty(n, np.int64), np.empty(n, np.int32)
    n_members = library.tt_tree(
        ctypes.byref(_Columns(n, *(column.ctypes.data for column in held))),
        ranks.ctypes.data,
        len(trace.lanes),
        # a child's rounded end may pass its parent's by one unit
        trace.resolution_ns,
        by_id,
        members.ctypes.data,
        parent.ctypes.data,
    )
    members.resize(max(n_members, 0), refcheck=False)
    return Tree(trace, members, parent) if n_members >= 0 else None


def _ordered(trace: Trace, rows: Ints) -> Ints:
    """Return rows sorted by lane, start, longest first, outer kinds first, file order."""
    start = trace.start_ns[rows]
    # files are almost sorted: a stable sort on one key uses the runs, lexsort on five does not
    rows = rows[np.argsort(start, kind="stable")]
    lane = trace.lane[rows].astype(_sortable(len(trace.lanes)))
    rows = rows[np.argsort(lane, kind="stable")]
    start, lane = trace.start_ns[rows], trace.lane[rows]
    same = (start[1:] == start[:-1]) & (lane[1:] == lane[:-1])
    if same.any():
        tied = np.zeros(len(rows), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        group = np.cumsum(np.concatenate([[True], ~same]))[at]
        sub = rows[at]
        keys = (sub, _OUTER_FIRST[trace.kind[sub]], -trace.dur_ns[sub], group)
        rows[at] = sub[np.lexsort(keys)]
    return rows


def _sortable(largest: int) -> type[np.signedinteger[Any]]:
    """Return the integer type that numpy sorts fastest: 16 bits go by radix."""
    return np.int16 if largest < 1 << 15 else np.int32


def _parents(trace: Trace, members: Ints) -> Rows:
    parent = np.full(len(trace), -1, np.int32)
    if len(members):
        index = contain(
            trace.lane[members],
            trace.start_ns[members],
            trace.end_ns[members],
            # a child's rounded end may pass its parent's by one unit
            tolerance_ns=trace.resolution_ns,
        )
        parent[members] = np.where(index >= 0, members[np.maximum(index, 0)], -1)
    return parent


def contain(lane: NDArray[np.integer], start_ns: Ints, end_ns: Ints, *, tolerance_ns: int) -> Ints:
    """Return the innermost container of each interval, as an index, -1 without one.

    ``lane`` : int[m], sorted. ``start_ns`` : int64[m], sorted within each lane, outer before inner on ties.
    ``end_ns`` : int64[m]. ``tolerance_ns`` : how far a child may end after its parent (clock resolution).

    Interval j contains i when it starts no later, ends no earlier (up to the tolerance) and i starts before j ends.
    Candidates move up by pointer jumping: whatever lies between a rejected candidate and that candidate's own container
    was rejected by the candidate, and thus also fails for i. Exact for crossing intervals: a partial overlap is no
    container.
    """
    count = len(start_ns)
    candidate = np.arange(-1, count - 1, dtype=np.int64)
    first = np.ones(count, dtype=bool)
    first[1:] = lane[1:] != lane[:-1]
    candidate[first] = -1
    active = np.flatnonzero(candidate >= 0)
    for _ in range(_MAX_ROUNDS):
        if not len(active):
            return candidate
        above = candidate[active]
        fails = (end_ns[above] + tolerance_ns < end_ns[active]) | (start_ns[active] >= end_ns[above])
        active = active[fails]
        candidate[active] = candidate[above[fails]]
        active = active[candidate[active] >= 0]
    return _contain_in_turn(first, start_ns, end_ns, tolerance_ns)


def _contain_in_turn(first: Mask, start_ns: Ints, end_ns: Ints, tolerance_ns: int) -> Ints:
    """Return what :func:`contain` does, one interval after the other: linear at any depth."""
    ends = end_ns.tolist()
    out: list[int] = []
    for i, (alone, start, end) in enumerate(zip(first.tolist(), start_ns.tolist(), ends, strict=True)):
        above = -1 if alone else i - 1
        while above >= 0 and (ends[above] + tolerance_ns < end or start >= ends[above]):
            above = out[above]
        out.append(above)
    return np.array(out, np.int64)


def running_end(group: NDArray[np.integer], end_ns: Ints) -> Ints:
    """Return the largest end before each element in its group; int64's least for the first."""
    if not len(end_ns):
        return end_ns
    none = np.iinfo(np.int64).min
    # groups are made disjoint on the number line, so one running maximum serves all
    base = end_ns.min() - 1
    width = int(end_ns.max() - base) + 1
    code = np.cumsum(np.concatenate([[0], (group[1:] != group[:-1]).astype(np.int64)]))
    if (int(code[-1]) + 1) * width < 1 << 62:
        shifted = np.maximum.accumulate(end_ns - base + code * width)
        before = np.concatenate([[0], shifted[:-1]]) - code * width
        seen: Ints = np.where(before > 0, before + base, none)
        return seen
    out = np.empty_like(end_ns)
    for part in np.split(np.arange(len(group)), np.flatnonzero(np.diff(group)) + 1):
        out[part] = np.concatenate([[none], np.maximum.accumulate(end_ns[part])[:-1]])
    return out
