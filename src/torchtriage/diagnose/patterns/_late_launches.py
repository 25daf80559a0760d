"""Idle time of the device before launches that came late: short gaps are dispatch, long ones something else.

A launch that follows the one before costs the host tens of microseconds, so a gap of a millisecond is no launch: the
host did something else meanwhile. What held it is the operator or call that ran for a millisecond by itself; whether
that is its way or an accident, the other rows of its name and the other steps tell. Or many operators on tensors of the
CPU held it, each for less: they launch nothing, and their own time is more than dispatch.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import LOADER_NAME
from torchtriage.diagnose.patterns._host_gaps import MIN_STRETCH_NS
from torchtriage.diagnose.patterns.base import aten

MAX_WORK = 0.5
"""Share of a long gap in operators or calls; below it the Python between them is the problem (HST020), above it what
they do (HST054, HST055)."""
RARE = 20.0
"""Medians of the own time of its name: a call this long did something else than its work. In public recordings the 99th
percentile of ordinary calls stays below 10 medians."""
MIN_PEERS = 3
"""Calls of a name before its median says anything."""
ALLOCATION = r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostRegister)|^cuMem(Map|Unmap|Create)"
DISPATCH_NS, DISPATCH_VIEWS = 15_000, 8
"""The longest own time of an operator that is dispatch alone, on a usual host and in median views on a slow one. Beyond
it are 32 % of the step in a recording of features made on the host, and at most 1.4 % in 200 recordings, launch-bound
ones with shapes and stacks among them, in which nobody computes there."""
MIN_VIEWS = 10
"""Fewer views have no median that says how fast the host is."""
_VIEWS = aten("as_strided view transpose t expand")
_COMPUTE = r"^(aten|torchvision|torchaudio)::"
_ONLY_DISPATCH = (
    r"::(_?(unsafe_)?view\w*|_?reshape\w*|t|transpose|permute|movedim|expand\w*|slice|select|narrow|\w*split\w*|chunk"
    r"|unbind|(un)?squeeze|(un)?flatten\w*|as_strided|unfold|diagonal|detach_?|alias|(new_)?empty\w*|resize\w*|set_"
    r"|lift_fresh|result_type|_sparse_\w+_tensor\w*)$"
)
"""They compute nothing, however large the tensor: a long one is an interrupted thread."""


class LongCalls(NamedTuple):
    """Operators and calls that held the host for a millisecond while the device waited; arrays of equal length.

    ``row`` ; ``idle_ns`` : what the device idled meanwhile; ``usual_ns`` : median of the short rows of its name, -1
    where there are fewer than ``MIN_PEERS``.
    """

    row: Ints
    idle_ns: Ints
    usual_ns: Ints

    def pick(self, mask: Mask) -> LongCalls:
        """Return some of them."""
        return LongCalls(self.row[mask], self.idle_ns[mask], self.usual_ns[mask])


class _Late(NamedTuple):
    """What three patterns share of one trace."""

    explained: Spans
    """Time that is not dispatch: loaders, pauses, allocation, waits, first use."""
    gaps: Spans
    """Long gaps in which operators or calls held the host."""
    slow: LongCalls
    stalls: LongCalls


_LATE: WeakKeyDictionary[Trace, _Late] = WeakKeyDictionary()


def _late(trace: Trace) -> _Late:
    if trace not in _LATE:
        explained = _explained(trace)
        gaps = _long_gaps(trace, explained)
        _LATE[trace] = _Late(explained, gaps, *_split(trace, gaps))
    return _LATE[trace]


def short_gaps(trace: Trace) -> Spans:
    """Return the host-late gaps that launching explains."""
    gaps = trace.devices[0].gaps
    late = (gaps.blame == 0) & (gaps.spans[:, 1] - gaps.spans[:, 0] < MIN_STRETCH_NS)
    return intervals.subtract(intervals.union(gaps.spans[late]), _late(trace).explained)


def late_gaps(trace: Trace) -> Spans:
    """Return the judged host-late gaps without what is explained otherwise, as a union."""
    late = intervals.intersect(intervals.union(trace.devices[0].host_late), trace.steps.judged)
    return intervals.subtract(late, _late(trace).explained)


def median_view_ns(trace: Trace) -> int:
    """Return the own time of the median operator that makes a view; 0 where there are too few."""
    views = np.flatnonzero(trace.named(*_VIEWS))
    views = views[trace.steps.in_steady(trace.steps.of_host(views))]
    return int(np.median(trace.tree.self_ns[views])) if len(views) >= MIN_VIEWS else 0


def computing_operators(trace: Trace) -> Ints:
    """Return the outermost operators that launch nothing and compute, on threads that launch."""
    alone = (trace.kind == Kind.OP) & ~trace.tree.above(trace.links.launches)
    own_ns = max(DISPATCH_NS, DISPATCH_VIEWS * median_view_ns(trace))
    rows = np.flatnonzero(alone & (trace.tree.self_ns >= own_ns) & trace.matching(_COMPUTE, Kind.OP))
    rows = rows[~trace.matching(_ONLY_DISPATCH, Kind.OP)[rows] & trace.steps.in_steady(trace.steps.of_host(rows))]
    outer = trace.tree.outermost(rows, alone)
    rows = distinct(np.where(outer >= 0, outer, rows))
    calls = trace.links.call[trace.devices[0].rows]
    return rows[np.isin(trace.lane[rows], distinct(trace.lane[calls[calls >= 0]]))]


def slow_operators(trace: Trace) -> LongCalls:
    """Return the long calls that take as long in step after step, or are never short."""
    return _late(trace).slow


def stalls(trace: Trace) -> LongCalls:
    """Return the long calls that are short elsewhere, or happen once."""
    return _late(trace).stalls


def idle_during(trace: Trace, rows: Ints, *, own: bool = False) -> Spans:
    """Return the judged idle time in which these rows ran, as a union; ``own`` : without what they called."""
    mine = trace.time_of(rows)
    if own:
        mask = trace.mask_of(rows)
        members = trace.tree.members
        above = trace.tree.parent[members]
        inside = members[(above >= 0) & mask[above] & ~mask[members]]
        mine = intervals.subtract(mine, trace.time_of(inside))
    return intervals.intersect(mine, _late(trace).gaps)


def _split(trace: Trace, gaps: Spans) -> tuple[LongCalls, LongCalls]:
    """Return slow operators and stalls in these gaps.

    An operator that launches nothing is looked at as a whole; else a row counts with its own time.
    """
    counted = trace.is_kind(Kind.OP, Kind.RUNTIME)
    counted[trace.waits.row] = counted[trace.waits.sync_row] = False
    rows = np.flatnonzero(counted)
    took = trace.time_in(rows, gaps)
    rows, took = rows[took > 0], took[took > 0]
    held = np.zeros(len(trace), np.int64)
    held[rows] = took
    alone = (trace.kind == Kind.OP) & ~trace.tree.above(trace.links.launches)
    whole = _long(trace, held, alone & ~trace.tree.under(alone), trace.dur_ns)
    whole = whole.pick(_habits(trace, whole))

    above = trace.tree.nearest(rows, counted)
    np.subtract.at(held, above[above >= 0], took[above >= 0])
    mask = trace.mask_of(whole.row)
    parts = _long(trace, held, counted & ~mask & ~trace.tree.under(mask), trace.tree.self_ns)
    habit = _habits(trace, parts)
    slow = parts.pick(habit)
    rest = parts.pick(~habit & ((parts.usual_ns < 0) | (parts.idle_ns >= RARE * parts.usual_ns)))
    return LongCalls(*(np.concatenate(pair) for pair in zip(whole, slow, strict=True))), rest


def _long(trace: Trace, idle_ns: Ints, mask: Mask, length_ns: Ints) -> LongCalls:
    """Return the rows of a mask with a millisecond of idle time in them; ``length_ns`` : int64[n], what compares."""
    row = np.flatnonzero(mask & (idle_ns >= MIN_STRETCH_NS))
    row = row[trace.steps.in_steady(trace.steps.of_host(row))]
    usual = np.full(len(row), -1, np.int64)
    others = ~trace.mask_of(row)
    for code in distinct(trace.name[row]).tolist():
        mine = trace.name[row] == code
        peers = np.flatnonzero((trace.name == code) & others)
        if len(peers) >= MIN_PEERS:
            usual[mine] = int(np.median(length_ns[peers]))
    return LongCalls(row, idle_ns[row], usual)


def _long_gaps(trace: Trace, explained: Spans) -> Spans:
    device = trace.devices[0]
    gaps = device.gaps
    length = gaps.spans[:, 1] - gaps.spans[:, 0]
    late = (gaps.blame == 0) & (length >= MIN_STRETCH_NS)
    late &= intervals.covered(gaps.spans, device.host_work) >= MAX_WORK * length
    held = intervals.intersect(intervals.union(gaps.spans[late]), trace.steps.judged)
    return intervals.subtract(held, explained)


def _explained(trace: Trace) -> Spans:
    waits = trace.waits
    elsewhere = trace.matching(LOADER_NAME, Kind.ANNOTATION, Kind.OP)
    elsewhere |= trace.matching(r"^Python GC", Kind.PYTHON)
    elsewhere |= trace.matching(ALLOCATION, Kind.RUNTIME)
    known = trace.spans_of(np.concatenate([np.flatnonzero(elsewhere), trace.first_use]))
    return intervals.union(np.concatenate([known, waits.bubble, waits.lead(waits.tells)]))


def _habits(trace: Trace, calls: LongCalls) -> Mask:
    """Return bool[k]: calls that are as long in step after step, or never short."""
    steps, rows = trace.steps, calls.row
    if steps.n_steady < 2:
        alone: Mask = (trace.kind[rows] == Kind.OP) & ~trace.tree.above(trace.links.launches)[rows]
        return alone & (calls.usual_ns < 0)
    # among short calls of its name it is the same call where it has the same place in its step
    rare = (calls.usual_ns >= 0) & (calls.idle_ns >= RARE * calls.usual_ns)
    nth = np.where(rare, _nth_of_step(trace, rows), 0)
    _, place = np.unique(np.stack([trace.name[rows], nth]), axis=1, return_inverse=True)
    step = np.cumsum(steps.steady)[steps.of_host(rows)] - 1
    took = np.zeros((steps.n_steady, int(place.max(initial=-1)) + 1))
    np.add.at(took, (step, place), calls.idle_ns)
    alike: Mask = 2 * np.percentile(took, 50, axis=0, method="lower") >= took.mean(axis=0)
    return alike[place]


def _nth_of_step(trace: Trace, rows: Ints) -> Ints:
    """Return how many calls of its name each row has before it in its step."""
    begin = trace.steps.host_start_ns[trace.steps.of_host(rows)]
    nth = np.zeros(len(rows), np.int64)
    for code in distinct(trace.name[rows]).tolist():
        mine = trace.name[rows] == code
        calls = np.sort(trace.start_ns[trace.name == code])
        nth[mine] = np.searchsorted(calls, trace.start_ns[rows[mine]]) - np.searchsorted(calls, begin[mine])
    return nth
