"""The recorded run as a graph: nodes are work on a lane, edges say what had to come first.

A node finishes at ``max(finish before it on its lane + gap, finish of sources + lag) + extra +
duration``. Host threads are cut into segments at *anchors* only (launches, waits, hand-offs, step
bounds), so there are far fewer nodes than events. What the causes leave of a recorded start is the
node's ``extra``; how much of it there is says how good the graph is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, among, distinct, quantile
from torchtriage.core.trace import Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.device import BACK_TO_BACK_NS, EARLY_NS, STAGED
from torchtriage.core.trace.steps import enqueued_before
from torchtriage.diagnose.replay.blocking import Blocking, EdgeKind, find_blocking
from torchtriage.diagnose.replay.cross import CrossEdges, paired, timed
from torchtriage.diagnose.replay.streams import Streams, device_streams
from torchtriage.diagnose.replay.threads import Threads, host_threads

__all__ = ["CONFIDENCE", "LAUNCH_NS", "EdgeKind", "Graph", "NodeKind", "build"]


class NodeKind(IntEnum):
    """What a node is."""

    ROOT = 0
    HOST = 1
    """Work of a thread between two anchors."""
    WAIT = 2
    """A call that waits for the device; its duration is its own cost."""
    PAUSE = 3
    """A thread waits for another, or for a batch."""
    ENTER = 4
    """Device work begins: where launches that need room, and other ranks, hang on."""
    WORK = 5
    """Device work."""
    BATCH = 6
    """A loader's workers make the next batch."""


CONFIDENCE = np.array([1.0, 1.0, 0.9, 1.0, 0.9, 1.0, 0.8, 1.0, 0.8, 0.9, 0.5, 0.4, 0.8, 0.7, 0.9, 0.5], np.float64)
"""Per kind of edge: 1 is written in the trace, below 0.6 is a guess from coinciding times."""

ENOUGH = 10
"""Samples before a kind of launch has lags of its own."""
LAUNCH_NS, GAP_NS = 8_000, 1_000
"""Without samples: medians of 6-20 us for launches and 1-2 us between kernels on NVIDIA."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes sorted by lane, in lane order, and edges between lanes sorted by target.

    ``lane_first`` : int64[lanes + 1], where each lane's nodes begin; lane 0 is the root, the
    moment ``origin_ns``. ``trace_lane`` : lane of the trace for each, -1 for none. Per node:
    ``kind``, ``row`` (-1: none), ``begin_ns`` and ``finish_ns`` as recorded, after the origin;
    ``dur_ns``, ``gap_ns`` (lag to the node before), ``extra_ns``, ``strict_gap_ns``. Per edge:
    ``source``, ``target``, ``edge_kind``, ``lag_ns``, ``strict_lag_ns``. The bound of step k is the
    latest finish of ``bound_node[bound_first[k]:bound_first[k + 1]]``.
    """

    origin_ns: int
    lane_first: Ints
    trace_lane: Ints
    kind: NDArray[np.uint8]
    row: Ints
    begin_ns: Ints
    finish_ns: Ints
    dur_ns: Ints
    gap_ns: Ints
    strict_gap_ns: Ints
    extra_ns: Ints
    source: Ints
    target: Ints
    edge_kind: NDArray[np.uint8]
    lag_ns: Ints
    strict_lag_ns: Ints
    bound_node: Ints
    bound_first: Ints
    n_contradicted: int

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.dur_ns)

    @property
    def n_lanes(self) -> int:
        """Number of lanes, the root's included."""
        return len(self.lane_first) - 1

    def lane_of(self) -> Ints:
        """Return int64[nodes]: the lane of each node."""
        return np.repeat(np.arange(self.n_lanes), np.diff(self.lane_first))

    def residuals(self, keep: Mask | None = None) -> Ints:
        """Return int64[nodes]: what the causes leave of each start, with these edges (bool[edges]) only."""
        pick = slice(None) if keep is None else keep
        source, target, lag = self.source[pick], self.target[pick], self.lag_ns[pick]
        ready = np.full(self.n_nodes, np.iinfo(np.int64).min, np.int64)
        ready[1:] = self.finish_ns[:-1] + self.gap_ns[1:]
        ready[self.lane_first[:-1]] = np.iinfo(np.int64).min
        np.maximum.at(ready, target, self.finish_ns[source] + lag)
        left = self.finish_ns - self.dur_ns - ready
        # nothing before it: it hangs on the moment it happened
        left[ready == np.iinfo(np.int64).min] = 0
        return np.maximum(left, 0)

    def bounds(self, finish_ns: Ints) -> Ints:
        """Return the step bounds for finish times ``int64[nodes, ...]``; first axis: bounds."""
        return self.bounds_of(finish_ns[self.bound_node])

    def bounds_of(self, bound_ns: Ints) -> Ints:
        """Return the step bounds for finish times of ``bound_node``; first axis: bounds."""
        latest: Ints = np.maximum.reduceat(bound_ns, self.bound_first[:-1], axis=0)
        return np.maximum.accumulate(latest, axis=0)


class _Edges:
    def __init__(self) -> None:
        self.parts: list[tuple[Ints, Ints, Ints, Ints, NDArray[np.uint8]]] = []

    def add(
        self,
        source: Ints,
        target: Ints,
        lag_ns: Ints,
        kind: EdgeKind | NDArray[np.uint8],
        strict_lag_ns: Ints | None = None,
    ) -> None:
        kinds = np.broadcast_to(np.asarray(kind, np.uint8), source.shape)
        self.parts.append((source, target, lag_ns, lag_ns if strict_lag_ns is None else strict_lag_ns, kinds))

    def joined(self) -> tuple[Ints, ...]:
        return tuple(np.concatenate(column) for column in zip(*self.parts, strict=True))


class _Host(NamedTuple):
    """Host nodes, before they get their place in the graph (indices count from 0)."""

    lane: Ints
    begin_ns: Ints
    finish_ns: Ints
    dur_ns: Ints
    kind: NDArray[np.uint8]
    row: Ints


def build(trace: Trace) -> Graph:
    """Return the graph of a trace."""
    streams = device_streams(trace)
    blocking = find_blocking(trace, streams)
    threads = host_threads(trace, blocking.row)
    anchors = _Anchors(trace, threads, blocking)
    calls, position = _launch_edges(streams)
    anchors.ask(trace.lane[calls].astype(np.int64), trace.start_ns[calls])
    bound_ns = _bound_times(trace, threads)
    main = np.full(len(bound_ns), threads.lanes[0] if len(threads.lanes) else -1, np.int64)
    if len(threads.lanes):
        anchors.ask(main, bound_ns)
    hand = threads.hand_offs
    anchors.ask(hand.from_lane, hand.from_ns)
    backlog = _backlog(trace, streams)
    unseen = _unseen_launches(streams, threads, backlog)
    unseen_ns, unseen_lane = streams.start_ns[unseen] - LAUNCH_NS, np.repeat(main[:1], len(unseen))
    anchors.ask(unseen_lane, unseen_ns)
    host = anchors.nodes()
    n_host, n_batch = len(host.lane), int(threads.pause_batch.sum())

    # device nodes: some work has a node of its own for its start
    enters = communicates(trace)[streams.row]
    enters[blocking.edges.position[blocking.edges.from_start]] = True
    first_device = 1 + n_host + n_batch
    body = first_device + np.arange(len(streams)) + np.cumsum(enters)
    entry = body - enters
    n_nodes = first_device + len(streams) + int(enters.sum())

    starts = [0 if not len(streams) else int(streams.start_ns.min())]
    starts += [int(threads.first_ns.min())] if len(threads.lanes) else []
    origin = min(starts if len(streams) else starts[1:] or [0])

    kind = np.full(n_nodes, NodeKind.WORK, np.uint8)
    row = np.full(n_nodes, -1, np.int64)
    begin, finish = np.zeros(n_nodes, np.int64), np.zeros(n_nodes, np.int64)
    dur = np.zeros(n_nodes, np.int64)
    gap, strict_gap = np.zeros(n_nodes, np.int64), np.zeros(n_nodes, np.int64)
    kind[0] = NodeKind.ROOT
    at = slice(1, 1 + n_host)
    kind[at], row[at], dur[at] = host.kind, host.row, host.dur_ns
    begin[at], finish[at] = host.begin_ns - origin, host.finish_ns - origin
    kind[entry], row[entry] = NodeKind.ENTER, streams.row
    begin[entry] = finish[entry] = streams.start_ns - origin
    kind[body], row[body] = NodeKind.WORK, streams.row
    begin[body], finish[body] = streams.start_ns - origin, streams.end_ns - origin
    dur[body] = streams.end_ns - streams.start_ns

    edges = _Edges()
    # launches
    call_node, shift = anchors.find(trace.lane[calls].astype(np.int64), trace.start_ns[calls])
    recorded, n_contradicted = paired(trace, streams)
    lag, strict = _launch_lags(trace, streams, calls, position, recorded)
    edges.add(call_node + 1, entry[position], lag + shift, EdgeKind.LAUNCH, strict + shift)
    ready = np.full(len(streams), np.iinfo(np.int64).min >> 1, np.int64)
    ready[position] = trace.start_ns[calls] + lag
    launcher, shift = anchors.find(unseen_lane, unseen_ns)
    free = shift == 0  # a thread that waits launches nothing
    launcher, unseen = launcher[free], unseen[free]
    edges.add(launcher + 1, entry[unseen], np.full(len(unseen), LAUNCH_NS), EdgeKind.UNSEEN_LAUNCH)
    # stream order
    floor, usual = _stream_gaps(trace, streams, ready)
    chained = streams.previous >= 0
    gap[entry] = np.where(chained, np.minimum(streams.gap_ns, floor), 0)
    strict_gap[entry] = np.where(chained, usual, 0)
    before = streams.end_ns[streams.previous] + gap[entry] if len(streams) else ready
    ready = np.where(chained, np.maximum(ready, before), ready)
    # the backlog from before the recording: on the clock
    edges.add(np.zeros(len(backlog), np.int64), entry[backlog], streams.start_ns[backlog] - origin, EdgeKind.CLOCK)
    ready[backlog] = streams.start_ns[backlog]
    # between streams
    if streams.n_streams > 1:
        _add_cross(edges, recorded, body, entry, EdgeKind.RECORDED)
        np.maximum.at(ready, recorded.target, streams.end_ns[recorded.source] + recorded.lag_ns)
        found = timed(trace, streams, ready)
        _add_cross(edges, found, body, entry, EdgeKind.TIMED)
    # device to host
    waits = blocking.edges
    wait_row = blocking.row[waits.wait]
    target, _ = anchors.find(trace.lane[wait_row].astype(np.int64), trace.end_ns[wait_row])
    source = np.where(waits.from_start, entry[waits.position], body[waits.position])
    edges.add(source, target + 1, waits.lag_ns, blocking.what[waits.wait])
    # thread to thread
    first_nodes = anchors.first_nodes()
    if len(hand.to_lane):
        source, shift = anchors.find(hand.from_lane, hand.from_ns)
        target, _ = anchors.find(hand.to_lane, hand.to_ns)
        known = hand.from_ns >= anchors.first_ns(hand.from_lane)
        edges.add(source[known] + 1, target[known] + 1, (hand.lag_ns + shift)[known], EdgeKind.HAND_OFF)
        woken = among(first_nodes, target[known])
        first_nodes = first_nodes[~woken]
    first_nodes = first_nodes + 1
    edges.add(np.zeros(len(first_nodes), np.int64), first_nodes, finish[first_nodes], EdgeKind.CLOCK)
    # batches
    lanes = [0, 1, *(anchors.lane_ends() + 1).tolist()]
    trace_lane = [-1, *threads.lanes.tolist()]
    if n_batch:
        _add_batches(edges, threads, anchors, 1 + n_host, kind, begin, finish, dur, origin)
        lanes.append(first_device)
        trace_lane.append(-1)
    if len(streams):
        lanes += np.append(entry[streams.first[1:-1]], n_nodes).tolist()
        trace_lane += streams.lane.tolist()

    source, target, lag, strict, edge_kind = edges.joined()
    order = np.argsort(target, kind="stable")
    source, target, lag, strict = source[order], target[order], lag[order], strict[order]
    # no cause explains more than was recorded
    lag = np.minimum(lag, finish[target] - dur[target] - finish[source])
    # where the window begins with a device's work, so does the first bound
    begins = entry[backlog[streams.start_ns[backlog] == trace.window.start_ns]]
    bound_node, bound_first = _bounds(trace, streams, threads, anchors, bound_ns, body, begins, lanes)
    graph = Graph(
        origin,
        np.array(lanes, np.int64),
        np.array(trace_lane, np.int64),
        kind,
        row,
        begin,
        finish,
        dur,
        gap,
        strict_gap,
        np.zeros(n_nodes, np.int64),
        source,
        target,
        edge_kind[order].astype(np.uint8),
        lag,
        strict,
        bound_node,
        bound_first,
        n_contradicted,
    )
    graph.extra_ns[:] = graph.residuals()
    return graph


# -- host ----------------------------------------------------------------------------------------


class _Anchors:
    def __init__(self, trace: Trace, threads: Threads, blocking: Blocking) -> None:
        self._threads = threads
        self._index = np.full(len(trace.lanes) + 1, -1, np.int64)
        self._index[threads.lanes] = np.arange(len(threads.lanes))
        self._base = int(trace.start_ns.min()) - 1 if len(trace) else 0
        self._span = int(trace.end_ns.max()) - self._base + 3 if len(trace) else 1
        rows = blocking.row
        lane = np.concatenate([trace.lane[rows].astype(np.int64), threads.pause_lane])
        start = np.concatenate([trace.start_ns[rows], threads.pause_start_ns])
        end = np.concatenate([trace.end_ns[rows], threads.pause_end_ns])
        own = np.concatenate([blocking.own_ns, threads.pause_own_ns])
        kind = np.full(len(lane), NodeKind.PAUSE, np.uint8)
        kind[: len(rows)] = NodeKind.WAIT
        row = np.concatenate([rows, np.full(len(threads.pause_lane), -1, np.int64)])
        order = np.argsort(self._key(lane, start), kind="stable")
        self._pause_start = self._key(lane, start)[order]
        self._pause_end = self._key(lane, end)[order]
        self._own, self._kind, self._row = own[order], kind[order], row[order]
        self._wanted = [
            self._pause_start,
            self._pause_end,
            self._key(threads.lanes, threads.first_ns),
            self._key(threads.lanes, threads.last_ns),
        ]
        self._keys = np.empty(0, np.int64)

    def _key(self, lane: Ints, times_ns: Ints) -> Ints:
        return self._index[lane] * self._span + (times_ns - self._base)

    def ask(self, lane: Ints, times_ns: Ints) -> None:
        self._wanted.append(self._snapped(self._key(lane, times_ns)))

    def _snapped(self, keys: Ints) -> Ints:
        if not len(self._pause_start) or not len(keys):
            return keys
        index = np.searchsorted(self._pause_start, keys, side="left") - 1
        at = np.maximum(index, 0)
        inside = (index >= 0) & (keys < self._pause_end[at])
        return np.where(inside, self._pause_start[at], keys)

    def nodes(self) -> _Host:
        """Return the host nodes: one per anchor, the stretch that ends there."""
        self._keys = keys = distinct(np.concatenate(self._wanted))
        lane = keys // self._span
        at = keys % self._span + self._base
        begin = at.copy()
        same = lane[1:] == lane[:-1]
        begin[1:][same] = at[:-1][same]
        dur = at - begin
        kind = np.full(len(keys), NodeKind.HOST, np.uint8)
        row = np.full(len(keys), -1, np.int64)
        # a pause is one node, as no anchor lies inside
        long = self._pause_end > self._pause_start
        index = np.searchsorted(keys, self._pause_end[long])
        dur[index] = np.minimum(self._own[long], dur[index])
        kind[index], row[index] = self._kind[long], self._row[long]
        return _Host(lane, begin, at, dur, kind, row)

    def find(self, lane: Ints, times_ns: Ints) -> tuple[Ints, Ints]:
        """Return the node that ends at each moment, and how much earlier that anchor is."""
        keys = self._key(lane, times_ns)
        snapped = self._snapped(keys)
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        node = np.minimum(np.searchsorted(self._keys, snapped), len(self._keys) - 1)
        return node, keys - snapped

    def first_ns(self, lane: Ints) -> Ints:
        return self._threads.first_ns[self._index[lane]]

    def first_nodes(self) -> Ints:
        keys = self._key(self._threads.lanes, np.full(len(self._threads.lanes), self._base))
        return np.searchsorted(self._keys, keys)

    def lane_ends(self) -> Ints:
        """Return, for each lane, one past its last node."""
        return np.append(self.first_nodes()[1:], len(self._keys))[: len(self._threads.lanes)]


def _bound_times(trace: Trace, threads: Threads) -> Ints:
    steps = trace.steps
    if len(steps):
        return np.append(steps.host_start_ns, steps.host_end_ns[-1])
    if not len(threads.lanes):
        return np.array([trace.window.start_ns], np.int64)
    return np.array([max(trace.window.host_start_ns, int(threads.first_ns[0]))], np.int64)


def _bounds(
    trace: Trace,
    streams: Streams,
    threads: Threads,
    anchors: _Anchors,
    bound_ns: Ints,
    body: Ints,
    begins: Ints,
    lanes: list[int],
) -> tuple[Ints, Ints]:
    parts = [begins]
    index = [np.zeros(len(begins), np.int64)]
    count = np.arange(len(bound_ns))
    if len(threads.lanes):
        main = np.full(len(bound_ns), threads.lanes[0], np.int64)
        parts.append(anchors.find(main, bound_ns)[0] + 1)
    else:
        parts.append(np.zeros(len(bound_ns), np.int64))
    index.append(count)
    if len(trace.steps):
        launch = trace.links.launched_ns(streams.row).copy()
        until_ns = int(trace.steps.host_end_ns[0])
        backlog = enqueued_before(trace, streams.row, until_ns) | ((streams.call < 0) & (streams.start_ns < until_ns))
        launch[backlog] = np.minimum(launch[backlog], trace.steps.host_start_ns[0] - 1)
        for a, b in zip(streams.first[:-1].tolist(), streams.first[1:].tolist(), strict=True):
            # a stream works in order: what has no launch was enqueued before the next that has one
            linked = np.where(streams.call[a:b] >= 0, launch[a:b], np.iinfo(np.int64).max)
            following = np.minimum.accumulate(linked[::-1])[::-1]
            known = np.maximum.accumulate(np.minimum(launch[a:b], following))
            last = np.searchsorted(known, bound_ns, side="left") - 1
            parts.append(body[a + last[last >= 0]])
            index.append(count[last >= 0])
    else:
        # one window: it ends when everything has
        lasts = np.array(lanes[1:], np.int64) - 1
        parts.append(lasts[lasts > 0])
        index.append(np.ones(int((lasts > 0).sum()), np.int64))
        if not (lasts > 0).any():
            parts.append(np.zeros(1, np.int64))
            index.append(np.ones(1, np.int64))
    node, bound = np.concatenate(parts), np.concatenate(index)
    order = np.argsort(bound, kind="stable")
    first = np.searchsorted(bound[order], np.arange(int(bound.max()) + 2))
    return node[order], first


# -- device --------------------------------------------------------------------------------------


def _launch_edges(streams: Streams) -> tuple[Ints, Ints]:
    """Return launch calls and the first work of each on each stream; the rest follows by order."""
    linked = np.flatnonzero(streams.call >= 0)
    if not len(linked):
        return linked, linked
    key = streams.call[linked] * streams.n_streams + streams.stream[linked]
    _, first = np.unique(key, return_index=True)
    position = np.sort(linked[first])
    return streams.call[position], position


def _unseen_launches(streams: Streams, threads: Threads, backlog: Ints) -> Ints:
    """Return work without a recorded launch that ends a gap: the thread of the steps may have launched it just then.

    Not where that thread had launched by then what follows on the stream.
    """
    unlaunched = (streams.call < 0) & (streams.gap_ns > BACK_TO_BACK_NS)
    unlaunched[backlog] = False
    found = np.flatnonzero(unlaunched)
    if not len(threads.lanes):
        return found[:0]
    linked = np.flatnonzero(streams.call >= 0)
    following = np.append(linked, -1)[np.searchsorted(linked, found)]
    same = streams.stream[following] == streams.stream[found]
    until = np.where((following >= 0) & same, streams.launch_ns[following], threads.last_ns[0])
    at = streams.start_ns[found] - LAUNCH_NS
    return found[(at > threads.first_ns[0]) & (at < np.minimum(until, threads.last_ns[0]))]


def _launch_lags(
    trace: Trace, streams: Streams, calls: Ints, position: Ints, recorded: CrossEdges
) -> tuple[Ints, Ints]:
    if not len(calls):
        return calls, calls
    observed = streams.start_ns[position] - trace.start_ns[calls]
    previous = streams.previous[position]
    idle = (previous < 0) | (streams.end_ns[previous] <= trace.start_ns[calls])
    idle &= observed >= 0
    # a launch that another stream still held up says nothing about launching
    ready = np.full(len(streams), np.iinfo(np.int64).min >> 1, np.int64)
    np.maximum.at(ready, recorded.target, streams.end_ns[recorded.source])
    idle &= ready[position] <= trace.start_ns[calls]
    # an upload is staged by the host first, and that takes as long as its bytes
    staged = trace.matches(streams.row[position], STAGED) & idle
    idle &= observed <= EARLY_NS
    # one kind per call; the launch of a graph is a kind whatever its name, and few are enough
    graph = trace.links.n_enqueued[calls] > 1
    kinds = np.where(graph, -1, trace.name[calls])
    common = observed[idle & ~graph & ~staged]
    least = np.full(len(calls), _quantile(common, 0.10, LAUNCH_NS), np.int64)
    usual = np.full(len(calls), _quantile(common, 0.50, LAUNCH_NS), np.int64)
    for kind in distinct(kinds).tolist():
        mine = kinds == kind
        sample = observed[mine & idle & ~staged]
        if len(sample) >= (1 if kind < 0 else ENOUGH):
            least[mine] = _quantile(sample, 0.10, LAUNCH_NS)
            usual[mine] = _quantile(sample, 0.50, LAUNCH_NS)
    usual = np.where(staged, observed, usual)
    return np.where(staged, observed, np.minimum(observed, least)), usual


def _stream_gaps(trace: Trace, streams: Streams, ready: Ints) -> tuple[Ints, Ints]:
    """Return the least and the usual gap to the work before, if that was launched in time.

    ``ready`` : earliest start by the launch of each position.
    """
    previous = streams.previous
    least, usual = np.zeros(len(streams), np.int64), np.zeros(len(streams), np.int64)
    queued = (previous >= 0) & (ready <= np.append(streams.end_ns, 0)[previous])
    # the device paces the kernels of one graph by itself
    graph = (previous >= 0) & (streams.call >= 0) & (streams.call[previous] == streams.call)
    default = 0 if trace.origin.vendor == "rocm" else GAP_NS
    for mine in (~graph, graph):
        gaps = streams.gap_ns[queued & mine]
        known = len(gaps) >= ENOUGH
        least[mine] = _quantile(gaps, 0.10, default) if known else default
        usual[mine] = _quantile(gaps, 0.50, default) if known else default
    return least, usual


def _backlog(trace: Trace, streams: Streams) -> Ints:
    """Return work that only the time before the recording explains.

    Work before the first known launch of its stream; and the work that ends a device's :class:`Backlog`.
    """
    orphan = streams.call < 0
    known = np.cumsum(~orphan)
    base = np.append(0, known)[streams.first[:-1]]
    found = orphan & (known == base[streams.stream])
    ends = [device.backlog.row for device in trace.devices if device.backlog]
    return np.flatnonzero(found | among(streams.row, np.array(ends)))


def _add_cross(edges: _Edges, found: CrossEdges, body: Ints, entry: Ints, kind: EdgeKind) -> None:
    kinds = np.where(found.tail, np.uint8(EdgeKind.TAIL), np.uint8(kind))
    edges.add(body[found.source], entry[found.target], found.lag_ns, kinds)


def _add_batches(
    edges: _Edges,
    threads: Threads,
    anchors: _Anchors,
    first: int,
    kind: NDArray[np.uint8],
    begin: Ints,
    finish: Ints,
    dur: Ints,
    origin: int,
) -> None:
    """Add the loader's workers as a lane: a batch is ready one period after the one before."""
    starved = threads.pause_batch
    lane = threads.pause_lane[starved]
    start, end = threads.pause_start_ns[starved], threads.pause_end_ns[starved]
    own = np.minimum(threads.pause_own_ns[starved], end - start)
    nodes = first + np.arange(len(end))
    ready = end - own - origin
    begin[nodes] = np.append(start[0] - origin, ready[:-1])
    finish[nodes] = ready
    dur[nodes] = ready - begin[nodes]
    kind[nodes] = NodeKind.BATCH
    source, shift = anchors.find(lane[:1], start[:1])
    edges.add(source + 1, nodes[:1], shift, EdgeKind.HAND_OFF)
    target, _ = anchors.find(lane, end)
    edges.add(nodes, target + 1, np.zeros(len(nodes), np.int64), EdgeKind.BATCH)


def _quantile(values: Ints, share: float, default: int) -> int:
    return int(quantile(values, share)) if len(values) else default
