"""What edits reach in a graph: the nodes of device work, the stretches of threads, the edges into waits.

Scenarios ask for the same rows again: alone, without the profiler's cost, and with the edits of other findings. What is
found out about an array of rows is kept with it.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.trace import Trace
from torchtriage.diagnose.replay.graph import EdgeKind, Graph, NodeKind


class Stretch(NamedTuple):
    """Time on a thread of the host: the nodes it touches, as places in the graph, and how much of each (0-1)."""

    spans: intervals.Spans
    node: Ints
    share: Floats


class Rows(NamedTuple):
    """Rows of the trace in the graph; ``at_work`` and ``at_host`` are indices into ``rows``.

    ``node`` : of the device work in them that has one. ``host`` : the rows of the host.
    """

    rows: Ints
    at_work: Ints
    node: Ints
    at_host: Ints
    host: Ints


class Reach:
    """Where the rows of a trace are in its graph."""

    def __init__(self, trace: Trace, graph: Graph) -> None:
        """Look nothing up before it is asked for."""
        self._trace, self._graph = trace, graph
        # by the identity of an array, which is kept so that it stays one
        self._rows: dict[int, tuple[Ints, Rows]] = {}
        self._stretches: dict[int, tuple[Ints, dict[int, Stretch]]] = {}
        self._waits: dict[int, tuple[Ints, Ints]] = {}

    def of(self, rows: Ints) -> Rows:
        """Return the places of rows that do not change later."""
        if id(rows) not in self._rows:
            every = np.asarray(rows, np.int64)
            works = self._trace.works[every]
            at_work, at_host = np.flatnonzero(works), np.flatnonzero(~works)
            node = self.nodes_of(NodeKind.WORK, every[at_work])
            known = node >= 0
            self._rows[id(rows)] = rows, Rows(every, at_work[known], node[known], at_host, every[at_host])
        return self._rows[id(rows)][1]

    def stretches(self, rows: Ints) -> dict[int, Stretch]:
        """Return the time of host rows that do not change later, by lane."""
        if id(rows) not in self._stretches:
            self._stretches[id(rows)] = rows, self.stretches_once(rows)
        return self._stretches[id(rows)][1]

    def stretches_once(self, rows: Ints) -> dict[int, Stretch]:
        """Return the time of host rows, by lane."""
        trace, origin = self._trace, self._graph.origin_ns
        lanes = trace.lane[rows]
        return {
            lane: self.stretch(lane, intervals.union(trace.spans_of(rows[lanes == lane]) - origin))
            for lane in np.flatnonzero(np.bincount(lanes)).tolist()
            if lane in self.host_lanes
        }

    def stretch(self, lane: int, spans: intervals.Spans) -> Stretch:
        """Return what time, disjoint and after the origin, is on a thread."""
        at, covered = self.covered(lane, spans)
        hit = np.flatnonzero(covered)
        node = hit + (self.host_lanes[lane][0] + at.start)
        return Stretch(spans, node, covered[hit] / self.length_ns[node])

    def covered(self, lane: int, spans: intervals.Spans) -> tuple[slice, Ints]:
        """Return which nodes of a lane the spans touch, counted from its first, and how many ns of each they cover."""
        a, b = self.host_lanes[lane]
        finish, begin = self._graph.finish_ns[a:b], self._graph.begin_ns[a:b]
        nothing = slice(0, 0), np.empty(0, np.int64)
        if not len(spans):
            return nothing
        first = np.searchsorted(finish, spans[:, 0], side="right")
        last = np.searchsorted(finish, spans[:, 1], side="left")
        inside = (first < len(finish)) & (spans[:, 1] > begin[0])
        first, last, spans = first[inside], np.minimum(last[inside], len(finish) - 1), spans[inside]
        if not len(spans):
            return nothing
        low, high = int(first[0]), int(last[-1]) + 1
        out = np.zeros(high - low, np.int64)
        same = first == last
        head = first - low
        start = np.maximum(spans[:, 0], begin[first])
        end = np.minimum(spans[:, 1], finish[last])
        np.add.at(out, head, np.where(same, end - start, finish[first] - start))
        np.add.at(out, last - low, np.where(same, 0, end - begin[last]))
        change = np.zeros(high - low + 1, np.int64)
        np.add.at(change, (head + 1)[~same], 1)
        np.add.at(change, (last - low)[~same], -1)
        whole = np.cumsum(change)[:-1] > 0
        out[whole] += (finish - begin)[low:high][whole]
        return slice(low, high), out

    def edges_into_waits(self, rows: Ints) -> Ints:
        """Return the edges into calls that wait; a copy and the sync behind it stand for each other."""
        if id(rows) not in self._waits:
            waits = self._trace.waits
            asked = np.zeros(len(self._trace), dtype=bool)
            asked[rows] = True
            pair = asked[waits.row] | asked[waits.sync_row]
            every = np.concatenate([rows, waits.row[pair], waits.sync_row[pair]])
            nodes = self.nodes_of(NodeKind.WAIT, every)
            self._waits[id(rows)] = rows, self.edges_into(nodes[nodes >= 0])
        return self._waits[id(rows)][1]

    def edges_into(self, nodes: Ints, kind: EdgeKind | None = None) -> Ints:
        """Return the edges into some nodes, of any kind or of one."""
        wanted = np.zeros(self._graph.n_nodes, dtype=bool)
        wanted[nodes] = True
        hit = wanted[self._graph.target]
        if kind is not None:
            hit &= self._graph.edge_kind == kind
        return np.flatnonzero(hit)

    def nodes_of(self, kind: NodeKind, rows: Ints) -> Ints:
        """Return the node of each row's device work, or of the call that waits; -1 for other rows."""
        known, nodes = self._by_row[kind]
        # the last of several
        at = np.searchsorted(known[:-1], rows, side="right") - 1
        return np.where(known[at] == rows, nodes[at], -1)

    @cached_property
    def hosts(self) -> Mask:
        """bool[nodes]: work and waits of the host."""
        return (self._graph.kind == NodeKind.HOST) | (self._graph.kind == NodeKind.WAIT)

    @cached_property
    def length_ns(self) -> Ints:
        """int64[nodes], ns: how long each was on, 1 at least."""
        return np.maximum(self._graph.finish_ns - self._graph.begin_ns, 1)

    @cached_property
    def batches(self) -> Ints:
        """The edges by which threads wait for a loader's batch."""
        return np.flatnonzero(self._graph.edge_kind == EdgeKind.BATCH)

    @cached_property
    def host_lanes(self) -> dict[int, tuple[int, int]]:
        """The first node of each of the trace's threads, and one past its last."""
        graph = self._graph
        out = {}
        for index, lane in enumerate(graph.trace_lane.tolist()):
            if lane >= 0 and self._trace.lanes[lane].kind == "thread":
                out[lane] = (int(graph.lane_first[index]), int(graph.lane_first[index + 1]))
        return out

    @cached_property
    def _by_row(self) -> dict[NodeKind, tuple[Ints, Ints]]:
        """Nodes of device work and of waiting calls, each by row: the rows in order, and the nodes; -1 behind all."""
        out = {}
        for kind in (NodeKind.WORK, NodeKind.WAIT):
            nodes = np.flatnonzero((self._graph.kind == kind) & (self._graph.row >= 0))
            nodes = nodes[np.argsort(self._graph.row[nodes], kind="stable")]
            out[kind] = np.append(self._graph.row[nodes], -1), np.append(nodes, -1)
        return out
