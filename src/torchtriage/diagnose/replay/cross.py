"""Waits between streams: from events where they were recorded, else from structure, else from time.

In runs bound by the host, waits between streams leave no trace in the times; without them a faster
host would overlap what must not overlap. PyTorch records an event on one stream, makes another wait
for it and launches there, so calls in that order are a dependency.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.replay.streams import CallTimeline, Streams

WAIT_LAG_NS = 1_500
"""From the end of the awaited work to the start on the waiting stream."""
NEAR_NS = 40_000
"""Work that starts this soon after another stream's end, with no other reason, waited for it."""
LATE_NS = 5_000
"""Starts later than this after everything known are unexplained."""
TAIL_SHARE = 0.2
"""Work that starts in this last part of a kernel elsewhere got the room the kernel gave up."""
_RECORD = r"^(cuda|hip|cu)EventRecord"
_WAIT = r"^(cuda|hip|cu)StreamWaitEvent"


class CrossEdges(NamedTuple):
    """Edges between streams, as positions; arrays of equal length. ``tail``: room given up."""

    source: Ints
    target: Ints
    lag_ns: Ints
    tail: Mask


def paired(trace: Trace, streams: Streams) -> tuple[CrossEdges, int]:
    """Return the waits found from record, wait, launch; and how many the times contradicted."""
    calls, position = streams.first_of_call
    waits = np.flatnonzero(trace.matching(_WAIT, Kind.RUNTIME))
    if not len(waits) or not len(calls):
        return _no_edges(), 0
    records = np.flatnonzero(trace.matching(_RECORD, Kind.RUNTIME))
    if not len(records):
        records = waits  # not every recorder writes them; torch records right before it waits
    launch = CallTimeline(trace, calls)
    position = position[launch.order]
    stream = streams.stream[position]
    found = launch.after(trace.lane[waits], trace.start_ns[waits])
    waits, found = waits[found >= 0], found[found >= 0]
    record = CallTimeline(trace, records)
    which = record.before(trace.lane[waits], trace.start_ns[waits] + 1)
    as_of = np.where(which >= 0, record.start_ns[np.maximum(which, 0)], trace.start_ns[waits])
    # what the thread launched last, before the event was recorded, on another stream
    before = launch.before(trace.lane[waits], as_of)
    change = np.ones(len(calls), dtype=bool)
    change[1:] = stream[1:] != stream[:-1]
    head = np.maximum.accumulate(np.where(change, np.arange(len(calls)), 0))
    same = (before >= 0) & (stream[np.maximum(before, 0)] == stream[found])
    # the last launch before this run of launches on one stream
    before = np.where(same, head[np.maximum(before, 0)] - 1, before)
    known = (before >= 0) & (launch.lane[np.maximum(before, 0)] == trace.lane[waits])
    more = _several(launch, stream, trace.start_ns[waits], before, found, known)
    before = np.concatenate([before[known], more[0]])
    found = np.concatenate([found[known], more[1]])
    source = _last_of_call(streams, calls[launch.order[before]], stream[before])
    target = position[found]
    keep = (source >= 0) & (streams.stream[source] != streams.stream[target])
    keep &= streams.device[streams.stream[source]] == streams.device[streams.stream[target]]
    source, target = source[keep], target[keep]
    possible = streams.end_ns[source] <= streams.start_ns[target] + 2 * trace.resolution_ns
    edges = np.unique(np.stack([source[possible], target[possible]], axis=1), axis=0)
    count = len(edges)
    return (
        CrossEdges(edges[:, 0], edges[:, 1], np.full(count, WAIT_LAG_NS, np.int64), np.zeros(count, dtype=bool)),
        int((~possible).sum()),
    )


def _several(
    launch: CallTimeline, stream: Ints, wait_ns: Ints, before: Ints, found: Ints, known: Mask
) -> tuple[Ints, Ints]:
    """Return more (source, target) launches where several waits come before one launch.

    No recorder says which streams a wait is between. Of k waits without a launch between them, the
    later streams of a fork, and what a chain hands on, show by who launches next; the streams of a
    join by who launched last.
    """
    order = np.lexsort((wait_ns, found))
    group = found[order]
    tail = np.searchsorted(group, group, side="right") - 1
    rank = (tail - np.arange(len(group)))[np.argsort(order, kind="stable")]
    earlier = np.flatnonzero(known & (rank > 0))
    if not len(earlier):
        return earlier, earlier
    count, index = len(stream), np.arange(len(stream))
    lasts, nexts = [], []
    for number in distinct(stream).tolist():
        mine = stream == number
        lasts.append(np.maximum.accumulate(np.where(mine, index, -1)))
        nexts.append(np.minimum.accumulate(np.where(mine, index, count)[::-1])[::-1])
    source, target, depth = before[earlier], found[earlier], rank[earlier]
    every = np.arange(len(earlier))
    # who launched last, the source itself first, the stream that waits left out
    last = np.stack([last[source] for last in lasts], axis=1)
    last[stream[np.maximum(last, 0)] == stream[target][:, None]] = -1
    last = -np.sort(-last, axis=1)
    joins = last[every, np.minimum(depth, last.shape[1] - 1)]
    join = (depth < last.shape[1]) & (joins >= 0)
    join &= launch.lane[np.maximum(joins, 0)] == launch.lane[target]
    # who launches next without a wait of its own
    following = np.sort(np.stack([item[target] for item in nexts], axis=1), axis=1)
    forks = following[every, np.minimum(depth, following.shape[1] - 1)]
    fork = (depth < following.shape[1]) & (forks < count)
    at = np.minimum(forks, count - 1)
    fork &= (launch.lane[at] == launch.lane[target]) & (stream[at] != stream[source])
    marks = np.sort(wait_ns)
    between = np.searchsorted(marks, launch.start_ns[at]) - np.searchsorted(marks, launch.start_ns[target])
    fork &= between == 0
    return (np.concatenate([joins[join], source[fork]]), np.concatenate([target[join], forks[fork]]))


def timed(trace: Trace, streams: Streams, ready_ns: Ints) -> CrossEdges:
    """Return edges for work that starts later than everything known explains.

    ``ready_ns`` : for each position, the earliest start that the known edges allow.
    """
    late = np.flatnonzero(streams.start_ns - ready_ns > LATE_NS)
    sources: list[Ints] = []
    targets: list[Ints] = []
    tails: list[Mask] = []
    for device in distinct(streams.device[streams.stream[late]]).tolist():
        mine = np.flatnonzero(streams.device[streams.stream] == device)
        want = late[streams.device[streams.stream[late]] == device]
        by_end = mine[np.argsort(streams.end_ns[mine], kind="stable")]
        ends = streams.end_ns[by_end]
        start = streams.start_ns[want]
        # the latest end before the start, on another stream: look back over a few candidates
        index = np.searchsorted(ends, start + 2 * trace.resolution_ns, side="right") - 1
        source = np.full(len(want), -1, np.int64)
        for back in range(4):
            at = index - back
            candidate = by_end[np.maximum(at, 0)]
            good = (
                (source < 0)
                & (at >= 0)
                & (streams.stream[candidate] != streams.stream[want])
                & (start - streams.end_ns[candidate] <= NEAR_NS)
                & (streams.end_ns[candidate] > ready_ns[want])
                & (streams.start_ns[candidate] < start)
            )
            source[good] = candidate[good]
        tail = np.zeros(len(want), dtype=bool)
        for ahead in range(1, 5):
            at = index + ahead
            candidate = by_end[np.minimum(at, len(by_end) - 1)]
            length = streams.end_ns[candidate] - streams.start_ns[candidate]
            good = (
                (source < 0)
                & (at < len(by_end))
                & (streams.stream[candidate] != streams.stream[want])
                & (streams.end_ns[candidate] - start <= TAIL_SHARE * length)
                & (streams.start_ns[candidate] <= ready_ns[want])
            )
            source[good] = candidate[good]
            tail |= good
        hit = source >= 0
        sources.append(source[hit])
        targets.append(want[hit])
        tails.append(tail[hit])
    if not sources:
        return _no_edges()
    source, target = np.concatenate(sources), np.concatenate(targets)
    tail = np.concatenate(tails)
    lag = np.minimum(WAIT_LAG_NS, streams.start_ns[target] - streams.end_ns[source])
    return CrossEdges(source, target, lag, tail)


def _last_of_call(streams: Streams, calls: Ints, stream: Ints) -> Ints:
    """Return the last work on a stream that each call enqueued (a graph launch enqueues many)."""
    linked = np.flatnonzero(streams.call >= 0)
    order = linked[np.lexsort((streams.end_ns[linked], streams.stream[linked], streams.call[linked]))]
    key = streams.call[order] * streams.n_streams + streams.stream[order]
    wanted = calls * streams.n_streams + stream
    index = np.searchsorted(key, wanted, side="right") - 1
    hit = (index >= 0) & (key[np.maximum(index, 0)] == wanted)
    return np.where(hit, order[np.maximum(index, 0)], -1)


def _no_edges() -> CrossEdges:
    empty = np.empty(0, np.int64)
    return CrossEdges(empty, empty, empty, np.empty(0, dtype=bool))
