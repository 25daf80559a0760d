"""Run the graph: the longest path to every node, for many scenarios at once.

Nodes are put in an order in which each lane runs as far as its causes allow, so the order is a
sequence of *runs*: consecutive nodes of one lane whose sources all lie in earlier runs. A run is
one cumulative sum and one running maximum (max-plus scan) over all its nodes and all scenarios.
Runs are worked through in chunks, and of a chunk only what later ones refer to is kept, so memory
grows with the scenarios and not with the trace. Where the native library is built it goes through
the nodes of a chunk one by one instead; the sums are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, distinct, joined
from torchtriage.core.engine import find_engine
from torchtriage.diagnose.replay.graph import CONFIDENCE, Graph
from torchtriage.diagnose.replay.native import find_runs, run_nodes

NEVER = -(1 << 60)
"""A lag that never binds: the edge is not there."""
CHUNK = 4_096
"""Nodes worked through at once."""
PLAIN_COST, RUN_COST = 0.25, 12.0
"""Microseconds: one node alone in plain Python, and one run in numpy (measured)."""


class Patch(NamedTuple):
    """Edges with another lag in some columns; arrays of equal length."""

    edge: NDArray[np.integer]
    column: NDArray[np.integer]
    lag_ns: Ints


class _Run(NamedTuple):
    """Consecutive nodes of one lane; rows and edges count from the beginning of the chunk's table.

    ``before`` : row of the node before on the lane, -1 for a lane's first. ``kind`` : which nodes
    have edges, one of the constants below. ``heads`` : where the edges of each begin, None for one
    edge each. ``target`` : nodes with edges, counted within the run, and ``counts`` : how many of
    them lie at or before each node, both for ``SOME`` only.
    """

    first: int
    stop: int
    before: int
    edge: int
    edge_stop: int
    kind: int
    heads: Ints | None
    target: Ints
    counts: Ints


NONE, FIRST, EVERY, SOME = range(4)
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Places ``first`` to ``stop``; its table begins with ``n_imports`` rows of earlier chunks.

    ``imports`` : for each earlier chunk, which of its exports go to which rows. ``exports`` : rows
    of the table that later chunks need. ``source`` : row of the table per edge. ``before`` : row of
    the node before each on its lane, -1 for a lane's first.
    """

    first: int
    stop: int
    n_imports: int
    imports: list[tuple[int, Ints, Ints]]
    exports: Ints
    edge: int
    edge_stop: int
    source: Ints
    before: Ints
    make_runs: Callable[[], Iterator[_Run]]

    @cached_property
    def runs(self) -> list[_Run]:
        """What numpy works through; the native library goes node by node."""
        return list(self.make_runs())


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order to run a graph in.

    ``place`` : int64[nodes], where each node runs. ``first`` : int64[runs + 1], places.
    ``before`` : int64[runs], place of the node before the run on its lane, -1 for a lane's first.
    ``edge`` : edges of the graph by place of their target; ``source``/``target`` : places of each.
    ``n_cut`` : edges left out because they closed a circle.
    """

    place: Ints
    first: Ints
    before: Ints
    edge: Ints
    source: Ints
    target: Ints
    n_cut: int

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.before)

    def run(
        self, fill: Callable[[int, Ints], None], width: int, lag_ns: Ints, wanted: Ints, patch: Patch | None = None
    ) -> Ints:
        """Return int64[k, variants * scenarios]: when the wanted nodes finish, ns after the origin.

        ``fill`` : given a place and int64[nodes, width], writes there gap + extra + duration of the nodes from that
        place on; ``width`` : variants * scenarios. ``lag_ns`` : int64[edges, variants], the lag of each edge
        of the graph minus the gap of its target. ``patch`` : edges of the graph with other lags in some columns.
        """
        where = self.place[wanted]
        out = np.zeros((len(where), width), np.int64)
        library = find_engine().library
        few = width * len(self.place) * PLAIN_COST < self.n_runs * RUN_COST
        if few and library is None:
            table = np.empty((len(self.place), width), np.int64)
            fill(0, table)
            out[:] = self._run_plain(table, lag_ns, patch)[where]
            return out
        order = np.argsort(where, kind="stable")
        sorted_where = where[order]
        held: list[Ints | None] = []
        patch = self._sorted(patch)
        for index, chunk in enumerate(self._chunks):
            table = np.empty((chunk.n_imports + chunk.stop - chunk.first, width), np.int64)
            for other, exported, rows in chunk.imports:
                finish = held[other]
                assert finish is not None
                table[rows] = finish[exported]
                if self._last_use[other] == index:
                    held[other] = None
            fill(chunk.first, table[chunk.n_imports :])
            lag = self._lags(chunk, lag_ns, width, patch)
            if library is None:
                _run_chunk(chunk, table, lag)
            else:
                ends = self.edge_first[chunk.first : chunk.stop + 1] - chunk.edge
                lag = lag.reshape(len(lag), lag.shape[1] * lag.shape[2])
                run_nodes(library, table, chunk.before, ends, chunk.source, lag)
            held.append(table[chunk.exports] if self._last_use[index] > index else None)
            a, b = np.searchsorted(sorted_where, [chunk.first, chunk.stop])
            out[order[a:b]] = table[sorted_where[a:b] - chunk.first + chunk.n_imports]
        return out

    def run_steps(
        self, steps_ns: Ints, lag_ns: Ints, wanted: Ints, patch: Patch | None = None, *, width: int = 1
    ) -> Ints:
        """Do what :meth:`run` does; ``steps_ns`` : int64[nodes, width or 1], what each node of the graph takes."""
        ordered = np.empty_like(steps_ns)
        ordered[self.place] = steps_ns

        def fill(first: int, out: Ints) -> None:
            out[:] = ordered[first : first + len(out)]

        return self.run(fill, width, lag_ns, wanted, patch)

    def _sorted(self, patch: Patch | None) -> Patch | None:
        if patch is None or not len(patch.edge):
            return None
        at = self._edge_place[patch.edge].astype(np.int32)
        order = np.argsort(at, kind="stable")
        return Patch(at[order], patch.column[order], patch.lag_ns[order])

    def _lags(self, chunk: _Chunk, lag_ns: Ints, width: int, patch: Patch | None) -> Ints:
        """Return what is added to the finish of each source of a chunk.

        int64[edges of the chunk, variants, scenarios], or with 1 for the scenarios where they are
        all alike.
        """
        lag = lag_ns[self.edge[chunk.edge : chunk.edge_stop]]
        if patch is not None:
            a, b = np.searchsorted(patch.edge, [chunk.edge, chunk.edge_stop])
            if a < b:
                lag = np.repeat(lag, width // lag_ns.shape[1], axis=1)
                lag[patch.edge[a:b] - chunk.edge, patch.column[a:b]] = patch.lag_ns[a:b]
        return lag.reshape(len(lag), lag_ns.shape[1], lag.shape[1] // lag_ns.shape[1])

    @cached_property
    def _edge_place(self) -> Ints:
        """int64[edges of the graph]: where each is in ``edge``, -1 for those cut."""
        out = np.full(int(self.edge.max(initial=-1)) + 1 + self.n_cut, -1, np.int64)
        out[self.edge] = np.arange(len(self.edge))
        return out

    @cached_property
    def edge_first(self) -> Ints:
        """int64[nodes + 1]: where the edges of each place begin."""
        return np.searchsorted(self.target, np.arange(len(self.place) + 1))

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        return list(_chunks(self))

    @cached_property
    def _last_use(self) -> list[int]:
        """The last chunk that needs something of each chunk; itself when none does."""
        last = list(range(len(self._chunks)))
        for index, chunk in enumerate(self._chunks):
            for other, _, _ in chunk.imports:
                last[other] = index
        return last

    def _run_plain(self, steps_ns: Ints, lag_ns: Ints, patch: Patch | None) -> Ints:
        """Do the same one node at a time: faster for few columns and short runs."""
        width = steps_ns.shape[1]
        per_variant = width // lag_ns.shape[1]
        sources = self.source.tolist()
        ends = self.edge_first[1:].tolist()
        before = np.arange(-1, len(steps_ns) - 1)
        before[self.first[:-1]] = self.before
        befores = before.tolist()
        for column in range(width):
            lag = lag_ns[:, column // per_variant].copy()
            if patch is not None:
                mine = patch.column == column
                lag[patch.edge[mine]] = patch.lag_ns[mine]
            lags = lag[self.edge].tolist()
            done: list[int] = []
            append = done.append
            begin = 0
            for step, prior, end in zip(steps_ns[:, column].tolist(), befores, ends, strict=True):
                ready = done[prior] if prior >= 0 else 0
                while begin < end:
                    arrives = done[sources[begin]] + lags[begin]
                    if arrives > ready:
                        ready = arrives
                    begin += 1
                append(ready + step)
            steps_ns[:, column] = done
        return steps_ns


def _run_chunk(chunk: _Chunk, table: Ints, lag: Ints) -> None:
    source = chunk.source
    shape = (-1, lag.shape[1], table.shape[1] // lag.shape[1])
    for first, stop, before, edge, edge_stop, kind, heads, target, counts in chunk.runs:
        part = table[first:stop]
        if stop - first > 1:
            np.add.accumulate(part, axis=0, out=part)
        if kind == NONE:
            if before >= 0:
                part += table[before]
            continue
        arrive = table.take(source[edge:edge_stop], axis=0)
        arrive.reshape(shape)[...] += lag[edge:edge_stop]
        if heads is not None:
            arrive = np.maximum.reduceat(arrive, heads, axis=0)
        # nothing begins before the origin
        prior = table[before] if before >= 0 else 0
        if kind == FIRST:
            np.maximum(arrive[0], prior, out=arrive[0])
            part += arrive[0]
        elif kind == EVERY:
            # what a run adds before a target is not added to what arrives there
            arrive[1:] -= part[:-1]
            np.maximum(arrive[0], prior, out=arrive[0])
            np.maximum.accumulate(arrive, axis=0, out=arrive)
            part += arrive
        else:
            late = np.empty((len(target) + 1, table.shape[1]), np.int64)
            late[0] = prior
            late[1:] = arrive
            if target[0] == 0:
                late[2:] -= part[target[1:] - 1]
            else:
                late[1:] -= part[target - 1]
            np.maximum.accumulate(late, axis=0, out=late)
            part += late[counts]


def schedule(graph: Graph) -> Schedule:
    """Return an order to run a graph in."""
    runs, cut, library = None, np.empty(0, np.int64), find_engine().library
    if library is not None:
        edge_first = np.searchsorted(graph.target, np.arange(graph.n_nodes + 1))
        runs = find_runs(library, graph.lane_first, edge_first, graph.source)
    if runs is None:  # or edges close a circle
        listed, cut = _runs(graph)
        runs = np.array(listed, np.int64).reshape(-1, 3)
    lane, begin, stop = runs.T
    first = np.concatenate([[0], np.cumsum(stop - begin)])
    node = np.repeat(begin - first[:-1], stop - begin) + np.arange(graph.n_nodes)
    place = np.empty(graph.n_nodes, np.int64)
    place[node] = np.arange(graph.n_nodes)
    head = graph.lane_first[lane]
    before = np.where(begin > head, place[np.maximum(begin - 1, 0)], -1)
    stays = np.ones(len(graph.source), np.bool_)
    stays[cut] = False
    edge = np.flatnonzero(stays)
    target = place[graph.target[edge]]
    order = np.argsort(target, kind="stable")
    edge = edge[order]
    return Schedule(place, first, before, edge, place[graph.source[edge]], target[order], len(cut))


def _chunks(order: Schedule) -> Iterator[_Chunk]:
    """Yield the chunks; runs are cut where a chunk ends."""
    n = len(order.place)
    edges = np.arange(0, n + CHUNK, CHUNK)
    bounds = np.minimum(edges, n)
    first = distinct(np.concatenate([order.first, bounds]))
    run = np.searchsorted(order.first, first[:-1], side="right") - 1
    # the rest of a cut run follows the node before it
    before = np.where(first[:-1] == order.first[run], order.before[run], first[:-1] - 1)
    edge_first = order.edge_first
    node_before = np.arange(-1, n - 1)
    node_before[order.first[:-1]] = order.before
    needed: list[Ints] = []
    starts = bounds[:-1][np.diff(bounds) > 0]
    stops = bounds[1:][np.diff(bounds) > 0]
    plans = []
    for a, b in zip(starts.tolist(), stops.tolist(), strict=True):
        ea, eb = int(edge_first[a]), int(edge_first[b])
        ra, rb = np.searchsorted(first, [a, b])
        used = np.concatenate([order.source[ea:eb], before[ra:rb]])
        imports = distinct(used[(used >= 0) & (used < a)])
        needed.append(imports)
        plans.append((a, b, ea, eb, int(ra), int(rb), imports))
    every = distinct(joined(needed))
    for a, b, ea, eb, ra, rb, imports in plans:
        exports = every[slice(*np.searchsorted(every, [a, b]))]
        groups = []
        for other in distinct(imports // CHUNK).tolist():
            theirs = every[slice(*np.searchsorted(every, [other * CHUNK, (other + 1) * CHUNK]))]
            rows = np.flatnonzero(imports // CHUNK == other)
            groups.append((other, np.searchsorted(theirs, imports[rows]), rows))
        shift = len(imports) - a
        yield _Chunk(
            a,
            b,
            len(imports),
            groups,
            exports + shift,
            ea,
            eb,
            _rows(order.source[ea:eb], imports, a),
            _rows(node_before[a:b], imports, a),
            partial(_chunk_runs, order, first[ra : rb + 1], _rows(before[ra:rb], imports, a), shift, ea),
        )


def _rows(places: Ints, imports: Ints, first: int) -> Ints:
    """Return rows of a chunk's table for places; -1 stays."""
    own = places - first + len(imports)
    out = np.where(places >= first, own, np.searchsorted(imports, places))
    return np.where(places < 0, -1, out)


def _chunk_runs(order: Schedule, first: Ints, before: Ints, shift: int, edge_shift: int) -> Iterator[_Run]:
    edge_first = order.edge_first[first]
    ea, eb = int(edge_first[0]), int(edge_first[-1])
    target = order.target[ea:eb]
    is_head = np.ones(len(target), dtype=bool)
    is_head[1:] = target[1:] != target[:-1]
    n_before = np.concatenate([[0], np.cumsum(is_head)])
    edges = edge_first - ea
    n_edges, n_targets = np.diff(edges), np.diff(n_before[edges])
    at_first = np.append(target, -1)[edges[:-1]] == first[:-1]
    kind = np.full(len(before), SOME)
    kind[(n_targets == 1) & at_first] = FIRST
    kind[n_targets == np.diff(first)] = EVERY
    kind[n_targets == 0] = NONE
    plain = (n_edges == n_targets).tolist()
    bounds = (edges + (ea - edge_shift)).tolist()
    places = (first + shift).tolist()
    for index, (row, what) in enumerate(zip(before.tolist(), kind.tolist(), strict=True)):
        heads: Ints | None = None
        found = counts = _EMPTY
        if what == SOME or not plain[index]:
            mine = slice(edges[index], edges[index + 1])
            heads = np.flatnonzero(is_head[mine])
            if what == SOME:
                found = target[mine][heads] - first[index]
                marks = np.zeros(first[index + 1] - first[index], np.int64)
                marks[found] = 1
                counts = np.cumsum(marks)
            if plain[index]:
                heads = None
        yield _Run(places[index], places[index + 1], row, bounds[index], bounds[index + 1], what, heads, found, counts)


def _runs(graph: Graph) -> tuple[list[tuple[int, int, int]], Ints]:
    """Return runs (lane, first node, one past the last) in order, and edges that close circles."""
    first = graph.lane_first
    lane_of = graph.lane_of()
    needs = [_needs_of(graph, lane_of, lane, np.empty(0, np.int64)) for lane in range(graph.n_lanes)]
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
            return runs, distinct(joined(cut))
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
        for item in stuck:
            queued[item] = True


def _needs_of(graph: Graph, lane_of: Ints, lane: int, cut: Ints) -> list[tuple[int, Ints, Ints]]:
    """Return for each other lane: targets, and the running maximum of what they need of it."""
    edges = np.arange(*np.searchsorted(graph.target, [graph.lane_first[lane], graph.lane_first[lane + 1]]))
    edges = edges[~np.isin(edges, cut)] if len(cut) else edges
    source_lane = lane_of[graph.source[edges]]
    order = np.argsort(source_lane, kind="stable")
    edges, source_lane = edges[order], source_lane[order]
    out = []
    for other in distinct(source_lane).tolist():
        mine = edges[slice(*np.searchsorted(source_lane, [other, other + 1]))]
        out.append((other, graph.target[mine], np.maximum.accumulate(graph.source[mine])))
    return out
