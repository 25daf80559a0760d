"""The host side: which threads matter, when each works, and who woke whom.

A gap without events on the main thread is work (Python that was not recorded); on any other thread
it is waiting. While another thread works through a gap of the main thread, as the autograd engine
does in ``backward()``, the main thread waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.steps import given_back, profiler_stop

STARVED_NS, STARVED_SHARE = 2_000_000, 0.03
"""A loader's ``__next__`` below this, or below this share of a step, is collating, not starving."""
_NEXT = r"_MultiProcessingDataLoaderIter\.__next__"


class HandOff(NamedTuple):
    """One thread goes on because another got somewhere; arrays of equal length.

    ``from_lane``/``from_ns`` : where the other thread was. ``to_lane``/``to_ns`` : the moment this
    one went on. ``lag_ns`` : time between, kept.
    """

    from_lane: Ints
    from_ns: Ints
    to_lane: Ints
    to_ns: Ints
    lag_ns: Ints


@dataclass(frozen=True, eq=False)
class Threads:
    """Host lanes of the model, the main one first (none: an empty array).

    ``first_ns``/``last_ns`` : where each begins and ends. ``pause_lane``/``pause_start_ns``/
    ``pause_end_ns``/``pause_own_ns`` : stretches in which a thread waits, with the work it does all
    the same. ``pause_batch`` : 1 for a wait for a loader's workers. ``hand_offs`` : what ends them.
    """

    lanes: Ints
    first_ns: Ints
    last_ns: Ints
    pause_lane: Ints
    pause_start_ns: Ints
    pause_end_ns: Ints
    pause_own_ns: Ints
    pause_batch: Mask
    hand_offs: HandOff


def host_threads(trace: Trace, blocking_row: Ints) -> Threads:
    """Return the threads that launch, wait (in the calls ``blocking_row``), or are the main one."""
    stop = profiler_stop(trace) | given_back(trace)
    launches = trace.links.launches & (trace.kind == Kind.RUNTIME)
    calls = np.flatnonzero(launches)
    used = distinct(np.concatenate([trace.lane[calls], trace.lane[blocking_row]])).tolist()
    main = trace.steps.lane
    if main < 0:
        runtime = np.flatnonzero((trace.kind == Kind.RUNTIME) & ~stop)
        if not len(runtime):
            empty = np.empty(0, np.int64)
            return Threads(*(empty,) * 7, np.empty(0, dtype=bool), HandOff(*(empty,) * 5))
        main = int(np.bincount(trace.lane[runtime]).argmax())
    # threads of operators alone count where they take turns with the main one
    engine = trace.matching("^autograd::engine::", Kind.OP)
    used = sorted({*used, *distinct(trace.lane[engine]).tolist()} - {main})
    lanes = np.array([main, *used], np.int64)

    active = _activity(trace, lanes, ~stop)
    main_work = active[0]
    batches = _batches(trace, main, calls, blocking_row)
    bursts: list[Spans] = [_bridged(spans, main_work) for spans in active[1:]]
    return _assemble(trace, lanes, main_work, bursts, batches)


def _activity(trace: Trace, lanes: Ints, wanted: Mask) -> list[Spans]:
    wanted = trace.is_kind(Kind.OP, Kind.RUNTIME) & wanted
    held = (trace.tree.members_of(lane) for lane in lanes.tolist())
    # an event below the resolution still happened
    return [trace.time_of(rows[wanted[rows]], least_ns=1) for rows in held]


def _bridged(spans: Spans, main_work: Spans) -> Spans:
    if len(spans) < 2:
        return spans
    gaps = np.stack([spans[:-1, 1], spans[1:, 0]], axis=1)
    split = intervals.covered(gaps, main_work) > 0
    heads = np.concatenate([[True], split])
    tails = np.concatenate([split, [True]])
    return np.stack([spans[heads, 0], spans[tails, 1]], axis=1)


def _batches(trace: Trace, main: int, calls: Ints, blocking_row: Ints) -> Spans:
    rows = np.flatnonzero(trace.matching(_NEXT, Kind.OP, Kind.ANNOTATION) & (trace.lane == main))
    least = max(STARVED_NS, int(STARVED_SHARE * trace.steps.wall_ns))
    rows = rows[trace.dur_ns[rows] > least]
    spans = trace.time_of(rows)
    if not len(spans):
        return spans
    # what launches or waits for the device in there is more than waiting for workers
    inside = np.concatenate([calls, blocking_row])
    inside = inside[trace.lane[inside] == main]
    held = distinct(intervals.owner(spans, trace.start_ns[inside]))
    return spans[~np.isin(np.arange(len(spans)), held)]


def _assemble(trace: Trace, lanes: Ints, main_work: Spans, bursts: list[Spans], batches: Spans) -> Threads:
    main = int(lanes[0])
    window = trace.window
    first = min(int(main_work[0, 0]), window.host_start_ns) if len(main_work) else window.host_start_ns
    last = max(int(main_work[-1, 1]), first) if len(main_work) else window.end_ns
    steps = trace.steps
    if len(steps):
        first = min(first, int(steps.host_start_ns[0]))
        last = max(last, int(steps.host_end_ns[-1]))
    lane_of = np.repeat(lanes[1:], [len(burst) for burst in bursts]).astype(np.int64)
    spans = np.concatenate(bursts) if bursts else intervals.EMPTY
    order = np.argsort(spans[:, 0], kind="stable")
    spans, lane_of = spans[order], lane_of[order]

    # the main thread waits for a stretch that begins and ends while it does nothing
    gap = _gap_of(spans, main_work, first, last)
    waits_for = (spans[:, 0] >= gap[:, 0]) & (spans[:, 1] <= gap[:, 1]) & (gap[:, 1] > gap[:, 0])
    if len(batches):
        waits_for &= intervals.covered(spans, batches) == 0
    waiting = intervals.union(spans[waits_for])

    # a stretch that begins while the main thread waits for another was woken by that other
    before_end, before = _latest_before(spans, waits_for)
    woken = intervals.covered(np.stack([spans[:, 0] - 1, spans[:, 0]], axis=1), waiting) > 0
    woken &= before >= 0
    source_ns = np.where(woken, np.minimum(before_end, spans[:, 0]), spans[:, 0])
    source_lane = np.where(woken, lane_of[before], main)
    same = woken & (source_lane == lane_of)
    source_lane[same], source_ns[same] = main, spans[same, 0]
    hand = [HandOff(source_lane, source_ns, lane_of, spans[:, 0], spans[:, 0] - source_ns)]
    # and the main thread goes on when the last of them ends
    held = np.flatnonzero(waits_for)
    until = waiting[intervals.owner(waiting, spans[held, 0]), 1] if len(held) else spans[held, 1]
    hand.append(
        HandOff(lane_of[held], spans[held, 1], np.full(len(held), main, np.int64), until, np.zeros(len(held), np.int64))
    )
    idle_lane, idle = _between(spans, lane_of)
    pause = np.concatenate([waiting, idle, batches])
    lane_first = [first, *(int(burst[0, 0]) if len(burst) else first for burst in bursts)]
    lane_last = [last, *(int(burst[-1, 1]) if len(burst) else first for burst in bursts)]
    n_waiting, n_idle, n_batches = len(waiting), len(idle), len(batches)
    return Threads(
        lanes,
        np.array(lane_first, np.int64),
        np.array(lane_last, np.int64),
        np.concatenate([np.full(n_waiting, main), idle_lane, np.full(n_batches, main)], dtype=np.int64),
        pause[:, 0],
        pause[:, 1],
        np.concatenate([np.zeros(n_waiting + n_idle, np.int64), np.full(n_batches, _collating(trace, main), np.int64)]),
        np.concatenate([np.zeros(n_waiting + n_idle, dtype=bool), np.ones(n_batches, dtype=bool)]),
        HandOff(*(np.concatenate(parts).astype(np.int64) for parts in zip(*hand, strict=True))),
    )


def _gap_of(spans: Spans, work: Spans, first: int, last: int) -> Spans:
    """Return for each span the gap of the main thread its start lies in; empty when it works."""
    edges = np.concatenate([[first], work[:, 1]]), np.concatenate([work[:, 0], [last]])
    index = np.searchsorted(work[:, 0], spans[:, 0], side="right")
    return np.stack([edges[0][index], edges[1][index]], axis=1)


def _latest_before(spans: Spans, chosen: Mask) -> tuple[Ints, Ints]:
    none = np.iinfo(np.int64).min
    ends = np.where(chosen, spans[:, 1], none)
    reach = np.maximum.accumulate(ends)
    which = np.maximum.accumulate(np.where(ends == reach, np.arange(len(spans)), 0))
    which = np.where(reach > none, which, -1)
    return (
        np.concatenate([[none], reach[:-1]]).astype(np.int64)[: len(spans)],
        np.concatenate([[-1], which[:-1]]).astype(np.int64)[: len(spans)],
    )


def _between(spans: Spans, lane_of: Ints) -> tuple[Ints, Spans]:
    order = np.lexsort((spans[:, 0], lane_of))
    spans, lane_of = spans[order], lane_of[order]
    same = lane_of[1:] == lane_of[:-1]
    gaps = np.stack([spans[:-1, 1], spans[1:, 0]], axis=1)[same]
    return lane_of[1:][same], gaps


def _collating(trace: Trace, main: int) -> int:
    """Return what ``__next__`` takes when the batch is there: the median of quick ones."""
    rows = np.flatnonzero(trace.matching(_NEXT, Kind.OP, Kind.ANNOTATION) & (trace.lane == main))
    quick = trace.dur_ns[rows[trace.dur_ns[rows] <= STARVED_NS]]
    return int(np.median(quick)) if len(quick) else 100_000
