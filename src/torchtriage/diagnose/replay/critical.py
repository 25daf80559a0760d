"""The critical path: which lane bounds which part of a step, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.device import EARLY_NS, LAUNCH_SLACK_NS
from torchtriage.diagnose.replay.cross import LATE_NS
from torchtriage.diagnose.replay.graph import EdgeKind, Graph, NodeKind
from torchtriage.diagnose.replay.predict import model
from torchtriage.diagnose.replay.quality import binding, critical_nodes

What = Literal["host", "compute", "comm", "copy", "wait", "lag", "unexplained", "loader"]
MAX_ROWS = 8
NEIGHBOURS = 4
"""So many ends of work before and after a start are looked at."""
NEAR_SHARE = 0.01
"""Of a wait: how far its end may be from the end of the work. A kernel that writes a count has 22-64 us left to run."""

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
    EdgeKind.UNSEEN_LAUNCH: "waited for the host, if its thread launched it: no launch was recorded",
    (HELD := max(EdgeKind) + 1): "launched in time: waited for the busy device",
    (POLLED := max(EdgeKind) + 2): "the host waited, without a call that says so, for its last launch",
}


@dataclass(frozen=True)
class CriticalPiece:
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


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The pieces of one step's critical path, in time order; they tile ``start_ns`` to ``end_ns``.

    ``step`` : index of the step; -1 for the window of a recording without steps. Arrays have one
    element per piece: ``lane`` (index into ``trace.lanes``, -1 for none), ``kind`` (index into
    ``WHATS``), ``begin_ns``, ``finish_ns``, ``cause`` (a key of ``WHY``, -1 for the work before on
    the lane). ``node`` and ``first`` : nodes of the graph, and where those of each piece begin.
    """

    trace: Trace
    step: int
    start_ns: int
    end_ns: int
    lane: Ints
    kind: NDArray[np.uint8]
    begin_ns: Ints
    finish_ns: Ints
    cause: Ints
    node: Ints
    first: Ints

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.lane)

    @cached_property
    def pieces(self) -> tuple[CriticalPiece, ...]:
        """Every piece, with its events."""
        return tuple(self.piece(index) for index in range(len(self)))

    def piece(self, index: int) -> CriticalPiece:
        """Return one piece, with its events."""
        lane, kind = int(self.lane[index]), WHATS[int(self.kind[index])]
        start, end = int(self.begin_ns[index]), int(self.finish_ns[index])
        nodes = self.node[self.first[index] : self.first[index + 1]]
        rows = model(self.trace).graph.row[nodes]
        rows = rows[rows >= 0]
        if not len(rows) and lane >= 0:
            rows = self._ops(lane, start, end)
        rows = distinct(rows)
        longest = np.argsort(-self.trace.dur_ns[rows], kind="stable")[:MAX_ROWS]
        cause = int(self.cause[index])
        return CriticalPiece(
            lane, self.label(lane), start, end, tuple(rows[longest].tolist()), kind, WHY[cause] if cause >= 0 else ""
        )

    def label(self, lane: int) -> str:
        """Return what people call a lane of the path."""
        return self.trace.lane_label(lane) if lane >= 0 else "loader workers"

    def share(self, *whats: What) -> float:
        """Return the share of the path that is any of these."""
        mine = np.isin(self.kind, [WHATS.index(what) for what in whats])
        total = int((self.finish_ns - self.begin_ns)[mine].sum())
        return total / max(self.end_ns - self.start_ns, 1)

    @cached_property
    def _threads(self) -> dict[int, tuple[Ints, Ints]]:
        return {}

    def _ops(self, lane: int, start_ns: int, end_ns: int) -> Ints:
        trace = self.trace
        if lane not in self._threads:
            members = trace.tree.members
            rows = members[slice(*np.searchsorted(trace.lane[members], [lane, lane + 1]))]
            rows = rows[trace.kind[rows] == Kind.OP]
            self._threads[lane] = rows, trace.start_ns[rows]
        rows, starts = self._threads[lane]
        return rows[slice(*np.searchsorted(starts, [start_ns, end_ns]))]


WHATS: tuple[What, ...] = get_args(What)
_NEVER = np.iinfo(np.int64).max
_LAG, _UNEXPLAINED = WHATS.index("lag"), WHATS.index("unexplained")


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath:
    """Return the critical path of a step (an index): by default the steady step of median length.

    Raises UsageError: there is no such step.
    """
    graph = model(trace).graph
    bounds = graph.bounds(graph.finish_ns)
    index = _index(trace, np.diff(bounds), step)
    begin, end = int(bounds[index]), int(bounds[index + 1])
    before, edge = _causes(trace, graph)
    path = critical_nodes(graph, before, begin, index + 1)[::-1]
    # every node brings up to three parts: lag, residual, work; cut so that they tile
    work = graph.finish_ns[path] - graph.dur_ns[path]
    ready = np.where(before[path] >= 0, graph.finish_ns[before[path]], 0)
    # until then it waited: the node's own work is what is left
    work = np.where(edge[path] == len(graph.edge_kind) + 1, ready, work)
    known = np.maximum(work - graph.extra_ns[path], ready)
    starts = np.stack([ready, known, work], axis=1).ravel()
    whats = np.stack(
        [np.full(len(path), _LAG), np.full(len(path), _UNEXPLAINED), _what(trace, graph)[path]], axis=1
    ).ravel()
    cut = np.clip(np.append(starts, end), begin, end)
    cut = np.minimum.accumulate(cut[::-1])[::-1]
    long = cut[1:] > cut[:-1]
    node, whats = np.repeat(path, 3)[long], whats[long]
    starts, ends = cut[:-1][long], cut[1:][long]
    lane = graph.trace_lane[graph.lane_of()][node]
    new = np.ones(len(node), dtype=bool)
    new[1:] = (lane[1:] != lane[:-1]) | (whats[1:] != whats[:-1])
    # a node woken from elsewhere begins a piece of its own
    new[1:] |= (edge[node] >= 0)[1:] & (node[1:] != node[:-1])
    head = np.flatnonzero(new)
    first = np.append(head, len(node))
    cause = edge[node[head]]
    kinds = np.append(graph.edge_kind, [HELD, POLLED]).astype(np.int64)
    return CriticalPath(
        trace,
        index if len(trace.steps) else -1,
        begin + graph.origin_ns,
        end + graph.origin_ns,
        lane[head],
        whats[head].astype(np.uint8),
        starts[head] + graph.origin_ns,
        ends[first[1:] - 1] + graph.origin_ns,
        np.where(cause >= 0, kinds[cause], -1),
        node,
        first,
    )


def _causes(trace: Trace, graph: Graph) -> tuple[Ints, Ints]:
    """Return what each node waited for, as :func:`binding` does, its edges and two more: ``HELD`` and ``POLLED``."""
    before, edge = binding(graph)
    works = np.flatnonzero(graph.kind == NodeKind.WORK)
    _held(trace, graph, works, before, edge)
    _polled(trace, graph, works, before, edge)
    return before, edge


def _held(trace: Trace, graph: Graph, works: Ints, before: Ints, edge: Ints) -> None:
    """Enter what work was held by that was launched in time: a launch that came early holds nothing up.

    Work that starts later than its launch explains, on a busy device, got the room of the work that ended nearest to
    its start.
    """
    kinds = np.append(graph.edge_kind, [EdgeKind.CLOCK] * 2)  # of no edge: -1 and -2
    late = (edge >= 0) & (kinds[edge] == EdgeKind.LAUNCH) & (graph.extra_ns > LATE_NS)
    _continued(trace, graph, works[(edge[works] >= 0) & (kinds[edge[works]] == EdgeKind.CLOCK)], before, edge)
    of_lane = np.array([lane.device for lane in trace.lanes], np.int64)
    device_of = of_lane[trace.lane[graph.row]]
    for device in trace.devices:
        nodes = np.flatnonzero(late & (device_of == device.index))
        starts = graph.finish_ns[nodes] - graph.dur_ns[nodes]
        spans = np.stack([starts - graph.extra_ns[nodes], starts], axis=1)
        busy = intervals.covered(spans + graph.origin_ns, device.busy)
        nodes, starts = nodes[2 * busy > graph.extra_ns[nodes]], starts[2 * busy > graph.extra_ns[nodes]]
        mine = works[device_of[works] == device.index]
        mine = mine[np.argsort(graph.finish_ns[mine], kind="stable")]
        place = np.searchsorted(graph.finish_ns[mine], starts)
        nearest = np.full(len(nodes), np.iinfo(np.int64).max)
        for step in range(-NEIGHBOURS, NEIGHBOURS):
            work = mine[np.clip(place + step, 0, len(mine) - 1)]
            distance = np.abs(graph.finish_ns[work] - starts)
            better = (graph.begin_ns[work] < starts) & (distance < nearest)
            nearest[better] = distance[better]
            before[nodes[better]] = work[better]
            edge[nodes[better]] = len(graph.edge_kind)


def _continued(trace: Trace, graph: Graph, clocked: Ints, before: Ints, edge: Ints) -> None:
    """Enter, for work that was launched before the recording, the work before it on its stream, if that ends then."""
    lane, finish = trace.lane[graph.row], graph.finish_ns
    works = np.flatnonzero(graph.kind == NodeKind.WORK)
    works = works[np.lexsort((finish[works], lane[works]))]
    place = np.empty(graph.n_nodes, np.int64)
    place[works] = np.arange(len(works))
    previous = works[np.maximum(place[clocked] - 1, 0)]
    gap = finish[clocked] - graph.dur_ns[clocked] - finish[previous]
    goes_on = (place[clocked] > 0) & (lane[previous] == lane[clocked]) & (gap >= 0) & (gap <= LATE_NS)
    before[clocked[goes_on]] = previous[goes_on]
    edge[clocked[goes_on]] = -1


def _polled(trace: Trace, graph: Graph, works: Ints, before: Ints, edge: Ints) -> None:
    """Enter where a thread waited for its last launch without a call that says so: it read memory that the work writes.

    Nothing is recorded on it for a millisecond after that launch, and it goes on when the work ends.
    """
    links = trace.links
    call = np.flatnonzero(links.launches)
    resumed_ns = _resumed(trace, call)
    waited_ns = np.where(resumed_ns < _NEVER, resumed_ns - trace.end_ns[call], 0)
    near_ns = np.maximum(LAUNCH_SLACK_NS, NEAR_SHARE * waited_ns)
    waits = (waited_ns > EARLY_NS) & (np.abs(resumed_ns - links.device_end_ns(call)) <= near_ns)
    call = np.array([row for row in call[waits].tolist() if not _is_followed_at_once(trace, row)], np.int64)
    last = np.full(len(trace) + 1, -1, np.int64)
    by_end = works[np.argsort(graph.finish_ns[works], kind="stable")]
    last[links.call[graph.row[by_end]]] = by_end
    hosts = np.flatnonzero(graph.kind == NodeKind.HOST)
    lane = graph.trace_lane[graph.lane_of()]
    hosts = hosts[np.lexsort((graph.begin_ns[hosts], lane[hosts]))]
    span = int(graph.finish_ns.max()) + 1
    asked = trace.lane[call].astype(np.int64) * span + trace.start_ns[call] - graph.origin_ns
    place = np.searchsorted(lane[hosts] * span + graph.begin_ns[hosts], asked, side="right")
    node = hosts[np.maximum(place - 1, 0)]
    same = (lane[node] == trace.lane[call]) & (graph.begin_ns[node] + graph.origin_ns == trace.start_ns[call])
    same &= graph.finish_ns[last[call]] <= graph.finish_ns[node]
    before[node[same]] = last[call[same]]
    edge[node[same]] = len(graph.edge_kind) + 1


def _resumed(trace: Trace, call: Ints) -> Ints:
    """Return when the next row on the thread of each call begins; ``_NEVER`` without one."""
    resumed_ns = np.full(len(call), _NEVER)
    for lane in distinct(trace.lane[call]).tolist():
        mine = np.flatnonzero(trace.lane[call] == lane)
        start_ns = trace.start_ns[call[mine]]
        for tree in (trace.tree, trace.frames):
            rows = tree.members_of(lane)
            at = tree.n_started(lane, start_ns)
            more = at < len(rows)
            later_ns = trace.start_ns[rows[at[more]]]
            resumed_ns[mine[more]] = np.minimum(resumed_ns[mine[more]], later_ns)
    return resumed_ns


def _is_followed_at_once(trace: Trace, row: int) -> bool:
    """Return whether a later row of the file starts on the same thread in the same moment."""
    lane, start_ns = int(trace.lane[row]), int(trace.start_ns[row])
    for tree in (trace.tree, trace.frames):
        first, last = tree.n_started(lane, np.array([start_ns - 1, start_ns])).tolist()
        if (tree.members_of(lane)[first:last] > row).any():
            return True
    return False


def _index(trace: Trace, walls: Ints, step: int | None) -> int:
    steps = trace.steps
    if not len(steps):
        if step is not None:
            raise UsageError(f"expected no step (the recording has none), found {step}")
        return 0
    if step is None:
        steady = np.flatnonzero(steps.steady)
        order = np.argsort(walls[steady], kind="stable")
        return int(steady[order[(len(order) - 1) // 2]])
    if not 0 <= step < len(steps):
        raise UsageError(f"expected a step from 0 to {len(steps) - 1}, found {step}")
    return step


def _what(trace: Trace, graph: Graph) -> NDArray[np.int64]:
    """Return for each node an index into ``WHATS``."""
    out = np.zeros(graph.n_nodes, np.int64)
    works = graph.kind == NodeKind.WORK
    row = graph.row[works]
    copies = trace.kind[row] == Kind.MEMCPY
    out[works] = np.where(communicates(trace)[row], 2, np.where(copies, 3, 1))
    out[graph.kind == NodeKind.WAIT] = WHATS.index("wait")
    out[graph.kind == NodeKind.BATCH] = WHATS.index("loader")
    return out
