"""Calls in which the host waits for the device: what each waits for, and its own cost.

The waiting is an edge, never a duration: once the device is faster, or the call comes later, the
wait shrinks by itself. Where waits hide differs by vendor and kind of memory (catalogue 1.5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, distinct, joined
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.host_syncs import BLOCKING_COPY, NEVER_BLOCKS, SYNC_CALL
from torchtriage.core.trace.nesting import running_end
from torchtriage.core.trace.steps import profiler_stop, slow_calls
from torchtriage.diagnose.replay.streams import CallTimeline, Streams

SYNC_COST_NS = 3_000
"""What a synchronise call takes when there is nothing to wait for: about 3 us."""
RETURN_NS = 8_000
"""From the end of the work to the return of the call that waits for it: 5-10 us."""
EXPLAINS_NS = 30_000
"""A wait that returns this soon after a stream's work ended waited for that stream."""
APART_SHARE, APART_NS = 0.01, 1_000_000
"""How far the clocks of host and device may be apart over a wait for the whole device, and at most: 100 us seen."""
LONG_NS = 20_000
"""A synchronise call this long waited for something."""
QUEUE_LIMIT = 1_000
"""Launches pending before a launch call blocks: 1,021 measured on NVIDIA, no limit seen on ROCm."""
QUEUE_RATIO = 3.0
BLOCKING_SHARE, BLOCKING_COUNT = 0.9, 10
"""Launches that return after their kernel ended: with this share of them, launching blocks."""

LOADED_NS = 100_000
"""A first use loads code, and loading waits for the device, where the call returns this soon after the device's last
work ended (56 us after 43 ms of work in a public recording)."""

_DEVICE_SYNC = re.compile(r"(Device|Ctx)Synchronize")
_EVENT_SYNC = re.compile(r"EventSynchronize")
_COPY = r"^(cuda|hip|cu|mtia|xpu)?Memcpy"
_PAGEABLE_UP = r"^Memcpy HtoD \((Pageable|Host)"
_MEMORY = (
    r"^(cuda|hip)(Malloc(Host|Managed|Pitch)?|Free(Host)?|Host(Alloc|Free|Malloc|Register|Unregister))$"
    r"|^cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess)|ModuleLoad|ModuleUnload|LibraryLoad"
    r"|^(cuda|hip)IpcOpen"
)
_LAUNCH = r"(?i)launch(?!HostFunc)(?!.*graph)"
_RECORD = r"^(cuda|hip|cu)EventRecord"


class EdgeKind(IntEnum):
    """Why a node had to wait for another; program order and stream order are the lanes."""

    CLOCK = 0
    LAUNCH = 1
    STREAM_SYNC = 2
    DEVICE_SYNC = 3
    EVENT_SYNC = 4
    COPY = 5
    MEMORY = 6
    BLOCKING_LAUNCH = 7
    QUEUE = 8
    RECORDED = 9
    TIMED = 10
    TAIL = 11
    HAND_OFF = 12
    BATCH = 13
    COLLECTIVE = 14
    UNSEEN_LAUNCH = 15


class WaitEdges(NamedTuple):
    """Edges from device work to the end of waiting calls, arrays of equal length.

    ``wait`` : index into :class:`Blocking`. ``position`` : work in stream order. ``lag_ns`` : from
    its end (its start where ``from_start``) to the moment the call's own cost begins.
    """

    wait: Ints
    position: Ints
    lag_ns: Ints
    from_start: Mask


@dataclass(frozen=True, eq=False)
class Blocking:
    """Waiting calls sorted by lane, then start; disjoint on their lane.

    ``row`` : the call. ``own_ns`` : what it costs without any waiting. ``what`` : kinds of
    edge.
    """

    row: Ints
    own_ns: Ints
    what: NDArray[np.uint8]
    edges: WaitEdges


def find_blocking(trace: Trace, streams: Streams) -> Blocking:
    """Find the waiting calls and what they wait for."""
    runtime = (trace.kind == Kind.RUNTIME) & (trace.dur_ns > 0)
    found = [
        _syncs(trace, streams, runtime),
        _copies(trace, streams, runtime),
        _memory(trace, streams, runtime),
        _launches(trace, streams, runtime),
    ]
    row = np.concatenate([item.row for item in found])
    own = np.concatenate([item.own_ns for item in found])
    what = np.concatenate([item.what for item in found])
    offset = np.cumsum([0, *(len(item.row) for item in found)])
    wait = np.concatenate([item.edges.wait + at for item, at in zip(found, offset, strict=False)])
    position, lag, from_start = (np.concatenate([item.edges[column] for item in found]) for column in (1, 2, 3))
    # the outermost wait of a thread stands for those inside it
    order = np.lexsort((-trace.end_ns[row], trace.start_ns[row], trace.lane[row]))
    start, end, lane = trace.start_ns[row][order], trace.end_ns[row][order], trace.lane[row][order]
    keep = start >= running_end(lane, end)
    index = np.full(len(row), -1, np.int64)
    index[order[keep]] = np.arange(int(keep.sum()))
    present = index[wait] >= 0
    chosen = order[keep]
    return Blocking(
        row[chosen],
        np.minimum(own[chosen], trace.dur_ns[row[chosen]]),
        what[chosen],
        WaitEdges(index[wait[present]], position[present], lag[present], from_start[present]),
    )


def _syncs(trace: Trace, streams: Streams, runtime: Mask) -> Blocking:
    row = np.flatnonzero(runtime & trace.matching(SYNC_CALL, Kind.RUNTIME) & ~profiler_stop(trace))
    names = [trace.names[code] for code in trace.name[row].tolist()]
    what = np.full(len(row), EdgeKind.STREAM_SYNC, np.uint8)
    what[[_DEVICE_SYNC.search(name) is not None for name in names]] = EdgeKind.DEVICE_SYNC
    what[[_EVENT_SYNC.search(name) is not None for name in names]] = EdgeKind.EVENT_SYNC
    start, end = trace.start_ns[row], trace.end_ns[row]
    tolerance = 2 * trace.resolution_ns
    # it waits for all that was launched: where that seems to end a little later, the clocks are apart
    apart = np.where(what == EdgeKind.DEVICE_SYNC, np.minimum(APART_SHARE * (end - start), APART_NS), 0).astype(
        np.int64
    )

    # an event sync waits for what had been launched when the event was recorded
    as_of = start.copy()
    events = np.flatnonzero(what == EdgeKind.EVENT_SYNC)
    as_of[events] = _last_record(trace, row[events])
    current = _current_stream(trace, streams, row, as_of)
    named = _named_streams(trace, streams, row)
    count = len(row)
    best, best_end = np.full(count, -1, np.int64), np.full(count, -(1 << 62), np.int64)
    own_stream = np.full(count, -1, np.int64)
    given = np.full(count, -1, np.int64)
    wait: list[Ints] = []
    position: list[Ints] = []
    for stream in range(streams.n_streams):
        last = streams.last_before(stream, as_of, end)
        ends = np.where(last >= 0, streams.end_ns[last], -(1 << 62))
        possible = (last >= 0) & (ends <= end + np.maximum(tolerance, apart))
        better = possible & (ends > best_end)
        best[better], best_end[better] = last[better], ends[better]
        mine = possible & (current == stream)
        own_stream[mine] = last[mine]
        # an event recorded earlier, a step ago say: what ended right before the call returned
        a, b = streams.first[stream], streams.first[stream + 1]
        done = np.searchsorted(np.maximum.accumulate(streams.end_ns[a:b]), end + tolerance, "right")
        earlier = np.minimum(done - 1 + a, last)
        over = (what == EdgeKind.EVENT_SYNC) & (last >= 0) & (earlier >= a) & ~possible
        earlier_end = np.where(over, streams.end_ns[np.maximum(earlier, 0)], -(1 << 62))
        over &= (end - earlier_end <= EXPLAINS_NS) & (earlier_end > best_end)
        best[over], best_end[over] = earlier[over], earlier_end[over]
        matches = (named == stream) & (last >= 0) & (streams.start_ns[last] < end)
        given[matches] = last[matches]
        whole = np.flatnonzero(possible & (what == EdgeKind.DEVICE_SYNC))
        wait.append(whole)
        position.append(last[whole])
    single = what != EdgeKind.DEVICE_SYNC
    own_end = np.where(own_stream >= 0, streams.end_ns[own_stream] if len(streams) else 0, 0)
    explains = (own_stream >= 0) & (end - own_end <= EXPLAINS_NS)
    long = end - start > LONG_NS
    pending = best_end > start
    chosen = np.where(long & ~explains & pending, best, own_stream)
    chosen = np.where(given >= 0, given, chosen)
    picked = np.flatnonzero(single & (chosen >= 0))
    wait.append(picked)
    position.append(chosen[picked])
    waits, positions = joined(wait), joined(position)

    late = np.zeros(count, np.int64)  # when the last of the work was done
    if len(waits):
        np.maximum.at(late, waits, streams.end_ns[positions])
    waited = late > start
    typical_return = _typical(np.maximum(end - late, 0)[waited], RETURN_NS)
    idle = ~waited
    own = np.where(idle, end - start, SYNC_COST_NS)
    typical_own = _typical((end - start)[idle & (end - start < LONG_NS)], SYNC_COST_NS)
    own[waited] = np.minimum(typical_own, np.maximum(end - late, 0)[waited])
    lag = np.minimum(typical_return, end[waits] - streams.end_ns[positions])
    lag = np.where(waited[waits], lag, 0) - own[waits]
    edges = WaitEdges(waits, positions, lag, np.zeros(len(waits), dtype=bool))
    return Blocking(row, own, what, edges)


def _copies(trace: Trace, streams: Streams, runtime: Mask) -> Blocking:
    copies = np.flatnonzero((trace.kind[streams.row] == Kind.MEMCPY) & (streams.call >= 0))
    call = streams.call[copies]
    usable = runtime[call] & trace.matches(call, _COPY)
    copies, call = copies[usable], call[usable]
    # one call, one copy: the last to end is what it waited for
    order = np.lexsort((streams.end_ns[copies], call))
    copies, call = copies[order], call[order]
    last = np.ones(len(call), dtype=bool)
    last[:-1] = call[1:] != call[:-1]
    copies, call = copies[last], call[last]
    over = trace.end_ns[call] >= streams.end_ns[copies]
    always = trace.matches(call, BLOCKING_COPY)
    never = trace.matches(streams.row[copies], NEVER_BLOCKS) & ~always
    # an upload from pageable memory goes through a buffer that the call fills as it drains: the
    # call ends a little before the transfer does
    inside = trace.end_ns[call] - streams.start_ns[copies]
    staged = trace.matches(streams.row[copies], _PAGEABLE_UP)
    staged &= 2 * inside > streams.end_ns[copies] - streams.start_ns[copies]
    typical = _typical(trace.dur_ns[call[~over & ~staged]], 10_000)
    staged &= trace.dur_ns[call] > 2 * typical
    blocks = (over | staged) & ~never
    copies, call = copies[blocks], call[blocks]
    after = trace.end_ns[call] - streams.end_ns[copies]
    typical_return = _typical(after[after >= 0], RETURN_NS)
    own = np.minimum(typical, trace.dur_ns[call])
    lag = np.minimum(after, typical_return) - own
    edges = WaitEdges(np.arange(len(call)), copies, lag, np.zeros(len(call), dtype=bool))
    return Blocking(call, own, np.full(len(call), EdgeKind.COPY, np.uint8), edges)


def _memory(trace: Trace, streams: Streams, runtime: Mask) -> Blocking:
    """Find calls that wait for an idle device: by their names, or that load code and return as it becomes idle."""
    named = trace.matching(_MEMORY, Kind.RUNTIME)
    row = np.flatnonzero(runtime & (named | trace.mask_of(slow_calls(trace))))
    start, end = trace.start_ns[row], trace.end_ns[row]
    pending = np.zeros(len(row), dtype=bool)
    outlasts = np.ones(len(row), dtype=bool)
    late = start.copy()
    lasts: list[Ints] = []
    for stream in range(streams.n_streams):
        last = streams.last_before(stream, start, end)
        ends = np.where(last >= 0, streams.end_ns[last], -(1 << 62))
        pending |= ends > start
        outlasts &= ends <= end
        late = np.maximum(late, ends)
        lasts.append(last)
    waits = pending & outlasts
    # what waited once waits always: an idle device only hides it
    always = np.isin(trace.name[row], trace.name[row[waits & named[row]]])
    waits = np.where(named[row], outlasts & always, waits & (end - late <= LOADED_NS))
    index = np.cumsum(waits) - 1
    wait: list[Ints] = []
    position: list[Ints] = []
    for last in lasts:
        mine = np.flatnonzero(waits & (last >= 0))
        wait.append(index[mine])
        position.append(last[mine])
    waits_, positions = joined(wait), joined(position)
    edges = WaitEdges(waits_, positions, np.zeros(len(waits_), np.int64), np.zeros(len(waits_), dtype=bool))
    what = np.full(int(waits.sum()), EdgeKind.MEMORY, np.uint8)
    return Blocking(row[waits], (end - late)[waits], what, edges)


def _launches(trace: Trace, streams: Streams, runtime: Mask) -> Blocking:
    """Find launches that wait: for their kernel (blocking launches), or for room in the queue."""
    empty = np.empty(0, np.int64)
    no_edges = WaitEdges(empty, empty, empty, np.empty(0, dtype=bool))
    none = Blocking(empty, empty, np.empty(0, np.uint8), no_edges)
    calls, position = streams.first_of_call
    single = (runtime & trace.matching(_LAUNCH, Kind.RUNTIME))[calls]
    single &= trace.links.n_enqueued[calls] == 1
    calls, position = calls[single], position[single]
    if not len(calls):
        return none
    over = trace.end_ns[calls] >= streams.end_ns[position]
    typical = _typical(trace.dur_ns[calls[~over]], 6_000)
    if len(calls) >= BLOCKING_COUNT and over.mean() >= BLOCKING_SHARE:
        calls, position = calls[over], position[over]
        own = np.minimum(typical, trace.dur_ns[calls])
        lag = np.maximum(trace.end_ns[calls] - streams.end_ns[position], 0) - own
        edges = WaitEdges(np.arange(len(calls)), position, lag, np.zeros(len(calls), dtype=bool))
        return Blocking(calls, own, np.full(len(calls), EdgeKind.BLOCKING_LAUNCH, np.uint8), edges)

    # pending work of the stream when the call begins
    started = np.zeros(len(calls), np.int64)
    for stream in distinct(streams.stream[position]).tolist():
        mine = streams.stream[position] == stream
        a, b = streams.first[stream], streams.first[stream + 1]
        starts = np.maximum.accumulate(streams.start_ns[a:b])
        started[mine] = np.searchsorted(starts, trace.start_ns[calls[mine]], side="right") + a
    pending = position - started
    # once the queue is full, most calls are long: the usual one is that of a short queue
    typical = _typical(trace.dur_ns[calls[2 * pending < QUEUE_LIMIT]], typical)
    full = (pending >= QUEUE_LIMIT) & (trace.dur_ns[calls] > QUEUE_RATIO * typical)
    if not full.any():
        return none
    limit = int(np.median(pending[full]))
    # once the queue has been seen full, every launch may meet it: in a faster host, others do
    freed = position - limit
    deep = freed >= streams.first[streams.stream[position]]
    calls, position, freed, full = calls[deep], position[deep], freed[deep], full[deep]
    own = np.where(full, np.minimum(typical, trace.dur_ns[calls]), trace.dur_ns[calls])
    lag = np.minimum(trace.end_ns[calls] - streams.start_ns[freed], 2_000) - own
    edges = WaitEdges(np.arange(len(calls)), freed, lag, np.ones(len(calls), dtype=bool))
    return Blocking(calls, own, np.full(len(calls), EdgeKind.QUEUE, np.uint8), edges)


def _current_stream(trace: Trace, streams: Streams, row: Ints, as_of: Ints) -> Ints:
    """Return the stream that each call's thread launched on last, -1 when it never had."""
    calls, position = streams.first_of_call
    if not len(calls):
        return np.full(len(row), -1, np.int64)
    launches = CallTimeline(trace, calls)
    before = launches.before(trace.lane[row], as_of)
    return np.where(before >= 0, streams.stream[position[launches.order[before]]], -1)


def _last_record(trace: Trace, row: Ints) -> Ints:
    """Return when each call's thread last recorded an event; the call's own start without one."""
    records = np.flatnonzero(trace.matching(_RECORD, Kind.RUNTIME))
    start = trace.start_ns[row]
    if not len(records):
        return start
    recorded = CallTimeline(trace, records)
    before = recorded.before(trace.lane[row], start)
    return np.where(before >= 0, recorded.start_ns[before], start)


def _named_streams(trace: Trace, streams: Streams, row: Ints) -> Ints:
    """Return the stream that a sync event names for each call (by correlation), -1 without."""
    out = np.full(len(row), -1, np.int64)
    events = np.flatnonzero((trace.kind == Kind.DEVICE_SYNC) & (trace.key > 0))
    if not len(events) or not len(row):
        return out
    events = events[np.argsort(trace.key[events], kind="stable")]
    index = np.minimum(np.searchsorted(trace.key[events], trace.key[row]), len(events) - 1)
    hit = trace.key[events[index]] == trace.key[row]
    of_lane = np.full(len(trace.lanes), -1, np.int64)
    of_lane[streams.lane] = np.arange(streams.n_streams)
    return np.where(hit, of_lane[trace.lane[events[index]]], -1)


def _typical(values: Ints, default: int) -> int:
    return int(np.median(values)) if len(values) else default
