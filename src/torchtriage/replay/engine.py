"""Run the graph: the longest path to every node, for many scenarios at once.

Nodes are put in an order in which each lane runs as far as its causes allow, so the order is a
sequence of *runs*: consecutive nodes of one lane whose sources all lie in earlier runs. A run is
one cumulative sum and one running maximum (max-plus scan) over all its nodes and all scenarios.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.replay.graph import CONFIDENCE, Graph

__all__ = ["NEVER", "Patch", "Schedule", "schedule"]

Ints = NDArray[np.int64]

NEVER = -(1 << 60)
"""A lag that never binds: the edge is not there."""


PLAIN_COST, RUN_COST = 0.25, 25.0
"""Microseconds: one node alone in plain Python, and one run in numpy (measured)."""


class Patch(NamedTuple):
    """Edges with another lag in some columns; arrays of equal length."""

    edge: Ints
    scenario: Ints
    lag_ns: Ints


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order to run a graph in.

    ``place`` : int64[nodes], where each node of the graph runs. ``first`` : int64[runs + 1].
    ``before`` : int64[runs], place of the node before the run on its lane, -1 for a lane's first.
    ``edge`` : edges of the graph by place of their target. ``edge_first`` : int64[runs + 1].
    ``source``/``target`` : places. ``groups`` : for each run, targets within the run, where the
    edges of each begin (None: one edge each), and how many targets lie at or before each node
    (None: every node is one; all None: none, or the first node alone).
    ``n_cut`` : edges left out because they closed a circle.
    """

    place: Ints
    first: list[int]
    before: list[int]
    edge: Ints
    edge_first: list[int]
    source: Ints
    target: Ints
    groups: list[tuple[Ints | None, Ints | None, Ints | None]]
    n_cut: int

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.before)

    def run(self, steps_ns: Ints, lag_ns: Ints, patch: Patch | None = None) -> Ints:
        """Replay, in place.

        Parameters
        ----------
        steps_ns : int64[nodes, variants * scenarios]
            For each node, in running order: gap + extra + duration. Overwritten by the result.
        lag_ns : int64[edges, variants]
            For each edge of the graph: its lag minus the gap of its target.
        patch : Patch, optional
            Edges of the graph with other lags in some columns.

        Returns
        -------
        int64[nodes, variants * scenarios]
            Finish times in running order, ns after the origin; the same array.
        """
        done, width = steps_ns, steps_ns.shape[1]
        if width * len(done) * PLAIN_COST < self.n_runs * RUN_COST:
            return self._run_plain(steps_ns, lag_ns, patch)
        lag = lag_ns[self.edge][:, :, None]
        shape = (-1, lag.shape[1], width // lag.shape[1])
        patches = self._patches(patch)
        first, edge_first = self.first, self.edge_first
        for index, before in enumerate(self.before):
            a, b = first[index], first[index + 1]
            part = done[a:b]
            if b - a > 1:
                np.cumsum(part, axis=0, out=part)
            ea, eb = edge_first[index], edge_first[index + 1]
            if ea == eb:
                if before >= 0:
                    part += done[before]
                continue
            arrive = done.take(self.source[ea:eb], axis=0)
            each = arrive.reshape(shape)
            each += lag[ea:eb]
            if patches is not None and index in patches:
                at, column, value = patches[index]
                arrive[at, column] = done[self.source[ea + at], column] + value
            target, heads, counts = self.groups[index]
            if heads is not None:
                arrive = np.maximum.reduceat(arrive, heads, axis=0)
            if target is None:  # one target, the first node of the run
                part += np.maximum(arrive[0], done[before] if before >= 0 else 0)
                continue
            # what each node adds before a target is not added to what arrives there
            late = np.empty((len(target) + 1, width), np.int64)
            late[0] = done[before] if before >= 0 else 0  # nothing begins before the origin
            late[1:] = arrive
            if target[0] == 0:
                late[2:] -= part[target[1:] - 1]
            else:
                late[1:] -= part[target - 1]
            np.maximum.accumulate(late, axis=0, out=late)
            if counts is None:  # every node is a target
                part += late[1:]
            else:
                part += late[counts]
        return done

    def _run_plain(self, steps_ns: Ints, lag_ns: Ints, patch: Patch | None) -> Ints:
        """Do the same one node at a time: faster for few columns and short runs."""
        width = steps_ns.shape[1]
        per_variant = width // lag_ns.shape[1]
        sources = self.source.tolist()
        edge_of = np.searchsorted(self.target, np.arange(len(steps_ns) + 1)).tolist()
        before = np.arange(-1, len(steps_ns) - 1)
        before[self.first[:-1]] = self.before
        befores = before.tolist()
        for column in range(width):
            lag = lag_ns[:, column // per_variant].copy()
            if patch is not None:
                mine = patch.scenario == column
                lag[patch.edge[mine]] = patch.lag_ns[mine]
            lags = lag[self.edge].tolist()
            done: list[int] = []
            append = done.append
            begin = 0
            for step, prior, end in zip(
                steps_ns[:, column].tolist(), befores, edge_of[1:], strict=True
            ):
                ready = done[prior] if prior >= 0 else 0
                while begin < end:
                    arrives = done[sources[begin]] + lags[begin]
                    if arrives > ready:
                        ready = arrives
                    begin += 1
                append(ready + step)
            steps_ns[:, column] = done
        return steps_ns

    def _patches(self, patch: Patch | None) -> dict[int, tuple[Ints, Ints, Ints]] | None:
        if patch is None or not len(patch.edge):
            return None
        where = np.full(int(self.edge.max(initial=-1)) + 1, -1, np.int64)
        where[self.edge] = np.arange(len(self.edge))
        at = where[patch.edge]
        order = np.argsort(at, kind="stable")
        order = order[at[order] >= 0]
        at = at[order]
        runs = np.searchsorted(self.edge_first, at, side="right") - 1
        heads = np.flatnonzero(np.concatenate([[True], runs[1:] != runs[:-1]])) if len(at) else at
        out = {}
        for a, b in zip(heads.tolist(), [*heads[1:].tolist(), len(at)], strict=True):
            run = int(runs[a])
            chosen = order[a:b]
            out[run] = (
                at[a:b] - self.edge_first[run],
                patch.scenario[chosen],
                patch.lag_ns[chosen],
            )
        return out


def schedule(graph: Graph) -> Schedule:
    """Return an order to run a graph in."""
    runs, cut = _runs(graph)
    lane = np.array([one[0] for one in runs], np.int64)
    begin = np.array([one[1] for one in runs], np.int64)
    stop = np.array([one[2] for one in runs], np.int64)
    size = stop - begin
    first = np.concatenate([[0], np.cumsum(size)])
    node = np.repeat(begin - first[:-1], size) + np.arange(graph.n_nodes)
    place = np.empty(graph.n_nodes, np.int64)
    place[node] = np.arange(graph.n_nodes)
    head = graph.lane_first[lane]
    before = np.where(begin > head, place[np.maximum(begin - 1, 0)], -1)

    edge = np.setdiff1d(np.arange(len(graph.source)), cut)
    target = place[graph.target[edge]]
    order = np.argsort(target, kind="stable")
    edge, target = edge[order], target[order]
    edge_first = np.searchsorted(target, first)
    run_of = np.searchsorted(first, target, side="right") - 1
    local = target - first[run_of]
    is_head = np.ones(len(edge), dtype=bool)
    is_head[1:] = target[1:] != target[:-1]
    groups: list[tuple[Ints | None, Ints | None, Ints | None]] = []
    for index, (ea, eb) in enumerate(
        zip(edge_first[:-1].tolist(), edge_first[1:].tolist(), strict=True)
    ):
        if ea == eb:
            groups.append((None, None, None))
            continue
        heads = np.flatnonzero(is_head[ea:eb])
        targets = local[ea:eb][heads]
        several = heads if len(heads) < eb - ea else None
        if len(targets) == 1 and targets[0] == 0:
            groups.append((None, several, None))
        elif len(targets) == size[index]:
            groups.append((targets, several, None))
        else:
            counts = np.zeros(size[index], np.int64)
            counts[targets] = 1
            groups.append((targets, several, np.cumsum(counts)))
    return Schedule(
        place,
        first.tolist(),
        before.tolist(),
        edge,
        edge_first.tolist(),
        place[graph.source[edge]],
        target,
        groups,
        len(cut),
    )


def _runs(graph: Graph) -> tuple[list[tuple[int, int, int]], Ints]:
    """Return runs (lane, first node, one past the last) in order, and edges that close circles."""
    first = graph.lane_first
    lane_of = graph.lane_of()
    needs = _needs(graph, lane_of)
    done = first[:-1].tolist()
    ends = first[1:].tolist()
    runs: list[tuple[int, int, int]] = []
    waiting: dict[int, list[tuple[int, int]]] = {}
    cut: list[Ints] = []
    ready = deque(range(graph.n_lanes))
    queued = [True] * graph.n_lanes
    while True:
        while ready:
            lane = ready.popleft()
            queued[lane] = False
            at, stop = done[lane], ends[lane]
            if at == stop:
                continue
            blocker = (-1, 0)
            for other, targets, sources in needs[lane]:
                index = int(sources.searchsorted(done[other]))
                if index < len(targets) and targets[index] < stop:
                    stop = int(targets[index])
                    blocker = (other, int(sources[index]))
            if stop > at:
                runs.append((lane, at, stop))
                done[lane] = stop
                for need, asleep in waiting.pop(lane, ()):
                    if need < stop:
                        if not queued[asleep]:
                            queued[asleep] = True
                            ready.append(asleep)
                    else:
                        waiting.setdefault(lane, []).append((need, asleep))
            if blocker[0] >= 0:
                waiting.setdefault(blocker[0], []).append((blocker[1], lane))
        stuck = [lane for lane in range(graph.n_lanes) if done[lane] < ends[lane]]
        if not stuck:
            return runs, np.unique(np.concatenate(cut)) if cut else np.empty(0, np.int64)
        # damaged clocks can make circles: the earliest node stuck goes on without its weakest cause
        nodes = np.array([done[lane] for lane in stuck])
        node = int(nodes[np.argmin(graph.finish_ns[nodes])])
        lane = int(lane_of[node])
        edges = np.arange(*np.searchsorted(graph.target, [node, node + 1]))
        blocked = edges[graph.source[edges] >= np.array(done)[lane_of[graph.source[edges]]]]
        weakest = blocked[[np.argmin(CONFIDENCE[graph.edge_kind[blocked]])]]
        cut.append(weakest)
        needs[lane] = _needs_of(graph, lane_of, lane, np.concatenate(cut))
        waiting.clear()
        ready.extend(stuck)
        for one in stuck:
            queued[one] = True


def _needs(graph: Graph, lane_of: Ints) -> list[list[tuple[int, Ints, Ints]]]:
    """Return per lane: other lane, targets, and the running maximum of what they need of it."""
    return [_needs_of(graph, lane_of, lane, np.empty(0, np.int64)) for lane in range(graph.n_lanes)]


def _needs_of(graph: Graph, lane_of: Ints, lane: int, cut: Ints) -> list[tuple[int, Ints, Ints]]:
    edges = np.arange(
        *np.searchsorted(graph.target, [graph.lane_first[lane], graph.lane_first[lane + 1]])
    )
    edges = edges[~np.isin(edges, cut)] if len(cut) else edges
    source_lane = lane_of[graph.source[edges]]
    order = np.argsort(source_lane, kind="stable")
    edges, source_lane = edges[order], source_lane[order]
    out = []
    for other in np.unique(source_lane).tolist():
        mine = edges[slice(*np.searchsorted(source_lane, [other, other + 1]))]
        out.append((other, graph.target[mine], np.maximum.accumulate(graph.source[mine])))
    return out
