"""The critical path: which lane bounds which part of a step, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.errors import UsageError
from torchtriage.replay.graph import EdgeKind, Graph, NodeKind
from torchtriage.replay.predict import Model, model
from torchtriage.replay.quality import binding, critical_nodes
from torchtriage.trace import Kind, Trace
from torchtriage.trace.comm import communicates

__all__ = ["CriticalPath", "Piece", "What", "critical_path"]

Ints = NDArray[np.int64]

What = Literal["host", "compute", "comm", "copy", "wait", "lag", "unexplained", "loader"]
MAX_ROWS = 8

WHY: dict[int, str] = {
    EdgeKind.CLOCK: "began before the recording",
    EdgeKind.LAUNCH: "waited for its launch",
    EdgeKind.STREAM_SYNC: "the host waited for the stream",
    EdgeKind.DEVICE_SYNC: "the host waited for the device",
    EdgeKind.EVENT_SYNC: "the host waited for an event",
    EdgeKind.COPY: "the host waited for a copy",
    EdgeKind.MEMORY: "an allocation, a free or a module load waited for the device",
    EdgeKind.BLOCKING_LAUNCH: "launches block until their kernel has ended",
    EdgeKind.QUEUE: "the launch queue was full",
    EdgeKind.RECORDED: "waited for an event of another stream",
    EdgeKind.TIMED: "began when work on another stream ended",
    EdgeKind.TAIL: "began when a kernel on another stream gave up room",
    EdgeKind.HAND_OFF: "waited for another thread",
    EdgeKind.BATCH: "waited for a batch from the loader's workers",
    EdgeKind.COLLECTIVE: "waited for another rank",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of the critical path on one lane.

    ``lane`` : index into ``trace.lanes``, -1 for what no lane shows (a loader's workers).
    ``rows`` : the events inside, longest first, at most 8. ``why`` : what the stretch waited for
    when it began, empty where it followed the work before it on its lane.
    """

    lane: int
    label: str
    start_ns: int
    end_ns: int
    rows: tuple[int, ...]
    what: What
    why: str


@dataclass(frozen=True)
class CriticalPath:
    """The pieces of one step's critical path, in time order; they tile ``start_ns`` to ``end_ns``.

    ``step`` : index of the step; -1 for the window of a recording without steps.
    """

    step: int
    start_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]

    def share(self, *whats: What) -> float:
        """Return the share of the path that is any of these."""
        total = sum(one.end_ns - one.start_ns for one in self.pieces if one.what in whats)
        return total / max(self.end_ns - self.start_ns, 1)


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath:
    """Return the critical path of a step: by default the steady step of median length.

    Parameters
    ----------
    trace : Trace
    step : int, optional
        Index of a step; left out for recordings without steps.

    Raises
    ------
    UsageError
        There is no such step.
    """
    steps, replayed = trace.steps, model(trace)
    graph = replayed.graph
    bounds = graph.bounds(graph.finish_ns)
    if not len(steps):
        if step is not None:
            raise UsageError(f"expected no step (the recording has none), found {step}")
        index = 0
    elif step is None:
        steady = np.flatnonzero(steps.steady)
        order = np.argsort(np.diff(bounds)[steady], kind="stable")
        index = int(steady[order[(len(order) - 1) // 2]])
    elif 0 <= step < len(steps):
        index = step
    else:
        raise UsageError(f"expected a step from 0 to {len(steps) - 1}, found {step}")
    begin, end = int(bounds[index]), int(bounds[index + 1])
    pieces = _pieces(trace, replayed, index, begin, end)
    origin = graph.origin_ns
    return CriticalPath(index if len(steps) else -1, begin + origin, end + origin, tuple(pieces))


def _pieces(trace: Trace, replayed: Model, index: int, begin: int, end: int) -> list[Piece]:
    graph = replayed.graph
    path = np.array(critical_nodes(graph, begin, index + 1)[::-1], np.int64)
    if not len(path):
        return []
    before, edge = binding(graph)
    what = _what(trace, graph)
    lane = graph.trace_lane[graph.lane_of()]
    # every node brings up to three parts: lag, residual, work; cut so that they tile
    work = graph.finish_ns[path] - graph.dur_ns[path]
    known = work - graph.extra_ns[path]
    came = np.where(before[path] >= 0, graph.finish_ns[before[path]], 0)
    starts = np.stack([came, np.maximum(known, came), work], axis=1).ravel()
    kinds = np.stack([np.full(len(path), 5), np.full(len(path), 6), what[path]], axis=1).ravel()
    node = np.repeat(path, 3)
    cut = np.clip(np.append(starts, end), begin, end)
    stop = np.minimum.accumulate(cut[::-1])[::-1]
    long = stop[1:] > stop[:-1]
    starts, ends, kinds, node = stop[:-1][long], stop[1:][long], kinds[long], node[long]
    lanes = lane[node]
    new = np.ones(len(node), dtype=bool)
    new[1:] = (lanes[1:] != lanes[:-1]) | (kinds[1:] != kinds[:-1])
    # a node woken from elsewhere begins a piece of its own
    crossed = edge[node] >= 0
    new[1:] |= crossed[1:] & (node[1:] != node[:-1])
    head = np.flatnonzero(new)
    tail = np.append(head[1:], len(node))
    origin = graph.origin_ns
    rows, ops = graph.row[node], _Ops(trace)
    pieces = []
    for a, b in zip(head.tolist(), tail.tolist(), strict=True):
        first = int(node[a])
        cause = int(edge[first])
        pieces.append(
            Piece(
                int(lanes[a]),
                _label(trace, graph, first, int(lanes[a])),
                int(starts[a]) + origin,
                int(ends[b - 1]) + origin,
                _rows(
                    trace,
                    rows[a:b],
                    ops,
                    int(lanes[a]),
                    int(starts[a]) + origin,
                    int(ends[b - 1]) + origin,
                ),
                _WHATS[int(kinds[a])],
                WHY[int(graph.edge_kind[cause])] if cause >= 0 else "",
            )
        )
    return pieces


_WHATS: tuple[What, ...] = (
    "host",
    "compute",
    "comm",
    "copy",
    "wait",
    "lag",
    "unexplained",
    "loader",
)


def _what(trace: Trace, graph: Graph) -> NDArray[np.uint8]:
    """Return for each node an index into ``_WHATS``."""
    out = np.zeros(graph.n_nodes, np.uint8)
    works = graph.kind == NodeKind.WORK
    row = graph.row[works]
    out[works] = np.where(
        communicates(trace)[row], 2, np.where(trace.kind[row] == Kind.MEMCPY, 3, 1)
    )
    out[graph.kind == NodeKind.WAIT] = 4
    out[graph.kind == NodeKind.BATCH] = 7
    return out


def _label(trace: Trace, graph: Graph, node: int, lane: int) -> str:
    if lane >= 0:
        return trace.lane_label(lane)
    return "loader workers" if graph.kind[node] == NodeKind.BATCH else ""


class _Ops:
    """Operators of host threads by time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lanes: dict[int, tuple[Ints, Ints]] = {}

    def inside(self, lane: int, start_ns: int, end_ns: int) -> Ints:
        """Return the operators of a thread that begin in an interval."""
        if lane not in self._lanes:
            members = self._trace.tree.members
            first, last = np.searchsorted(self._trace.lane[members], [lane, lane + 1])
            rows = members[first:last]
            rows = rows[self._trace.kind[rows] == Kind.OP]
            self._lanes[lane] = rows, self._trace.start_ns[rows]
        rows, starts = self._lanes[lane]
        a, b = np.searchsorted(starts, [start_ns, end_ns])
        return rows[a:b]


def _rows(
    trace: Trace, own: Ints, ops: _Ops, lane: int, start_ns: int, end_ns: int
) -> tuple[int, ...]:
    """Return the longest events of a piece: its own work, else the host's operators inside it."""
    rows = own[own >= 0]
    if not len(rows) and lane >= 0:
        rows = ops.inside(lane, start_ns, end_ns)
    if len(rows) == 1:
        return (int(rows[0]),)
    rows = np.unique(rows)
    order = np.argsort(-trace.dur_ns[rows], kind="stable")[:MAX_ROWS]
    return tuple(rows[order].tolist())
