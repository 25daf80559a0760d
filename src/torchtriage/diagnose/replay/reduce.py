"""A graph reduced to its collectives: what each, and each bound of a step, had to wait for, and how long after.

Between its collectives a rank depends on nobody. So all that others need to know of it are the longest paths from the
ends of its collectives to the beginnings of later ones: a few numbers for each collective instead of a graph.

The longest paths from many sources at once need no column for each: a source begins so late (``APART``) that the latest
one that reaches a node outweighs all earlier ones of its column, and tells its name by its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, distinct
from torchtriage.diagnose.replay.engine import NEVER, Patch, schedule
from torchtriage.diagnose.replay.graph import EdgeKind, Graph, NodeKind
from torchtriage.diagnose.replay.scenarios import Scenario

APART = 1 << 37
"""Nanoseconds (137 s) between sources; paths are shorter than half of it."""
MOST = 1 << 12
"""Sources at most."""
SHUT = MOST * APART
"""Taken off at the end of a collective, so that only what begins there comes out of it; 2^11 of them in a row fit."""
NEAR, HUBS = 40, 6
"""A target's sources are looked for among so many collectives before it, and so many that the host waited for."""
KEPT = 6
"""Sources kept for a target: those it was latest after, as recorded or in one of the scenarios."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """Targets are the collectives in the order of their start, then the bounds of steps.

    ``source`` : int32[targets, KEPT], a collective counted from 1; 0: the beginning of the recording, -1: none. For
    each scenario ``lag_ns`` : float32[targets, KEPT], from the end of the source to the start of the target, and
    ``keep`` : float32[collectives], what remains of each transfer.
    """

    source: NDArray[np.int32]
    lag_ns: tuple[NDArray[np.float32], ...]
    keep: tuple[NDArray[np.float32], ...]


def collective_nodes(graph: Graph, rows: Ints) -> tuple[Ints, Ints]:
    """Return the nodes of the work of these rows in the order of its start, and the rows again in that order."""
    known = np.zeros(int(max(rows.max(initial=-1), graph.row.max(initial=-1))) + 1, np.bool_)
    known[rows] = True
    body = np.flatnonzero((graph.kind == NodeKind.WORK) & (graph.row >= 0))
    body = body[known[graph.row[body]]]
    # only what has a node of its own for its start can wait there
    body = body[(graph.kind[body - 1] == NodeKind.ENTER) & (graph.row[body - 1] == graph.row[body])]
    body = body[np.argsort(graph.begin_ns[body], kind="stable")]
    return body, graph.row[body]


def reduce_graph(graph: Graph, body: Ints, scenarios: Sequence[Scenario | None]) -> Reduced:
    """Return what remains of the graph in each scenario (None: as recorded).

    ``body`` : the nodes of the collectives, as :func:`collective_nodes` gives them.
    """
    n = len(body)
    if n > MOST:
        raise ValueError(f"expected at most {MOST} collectives, found {n}")
    opened, edge_place, own = _opened(graph, body)
    order = schedule(opened)
    hubs = _hubs(graph, body)
    near = np.arange(n) % NEAR
    edge = np.concatenate([own, own[hubs]])
    column = np.concatenate([near, NEAR + np.arange(len(hubs)) % HUBS])
    name = np.concatenate([np.arange(n), hubs])
    width = NEAR + HUBS + 1  # the last is the beginning's
    starts = (name + 1) * APART + SHUT
    targets = np.concatenate([body - 1, graph.bound_node])
    lag = (opened.lag_ns - opened.gap_ns[opened.target])[:, None]
    found, keeps = [], []
    for scenario in scenarios:
        step = opened.dur_ns + opened.gap_ns + opened.extra_ns
        keep = np.ones(n)
        patches = [(edge, column, starts - opened.gap_ns[body[name]])]
        if scenario is not None:
            node = scenario.node
            step[node] = scenario.takes(opened.dur_ns[node], opened.gap_ns[node] + opened.extra_ns[node])
            left = np.ones(graph.n_nodes)
            left[node] = np.nan_to_num(scenario.left)
            keep = left[body]
            changed = edge_place[scenario.edge]
            patches.append(
                (np.tile(changed, width), np.repeat(np.arange(width), len(changed)), np.tile(scenario.lag_ns, width))
            )
        step[body] -= SHUT
        patch = Patch(*(np.concatenate(part).astype(np.int64) for part in zip(*patches, strict=True)))
        done = order.run_steps(step[:, None], lag, targets, patch, width=width)
        done = np.concatenate([done[:n], np.maximum.reduceat(done[n:], graph.bound_first[:-1], axis=0)])
        found.append(_named(body, done, step + SHUT - graph.gap_ns))
        keeps.append(keep.astype(np.float32))
    end = np.append(0, graph.finish_ns[body])
    source = found[0][0]
    # in each column the same source, or none
    lags = [np.where(name == source, lag, NEVER) for name, lag in found]
    arrives = [np.where(source >= 0, end[source] + lag, NEVER) for lag in lags]
    column = _nearest(source, arrives)
    kept = np.take_along_axis(source, column, axis=1)
    twice = (kept[:, :, None] == kept[:, None, :]) & np.tri(column.shape[1], k=-1, dtype=np.bool_)
    kept[twice.any(axis=2)] = -1
    chosen = [np.take_along_axis(lag, column, axis=1) for lag in lags]
    return Reduced(
        kept.astype(np.int32),
        tuple(np.where((kept >= 0) & (lag > NEVER // 2), lag, -np.inf).astype(np.float32) for lag in chosen),
        tuple(keeps),
    )


def _opened(graph: Graph, body: Ints) -> tuple[Graph, Ints, Ints]:
    """Return the graph with collectives that take no time and an edge to each from the root.

    And where each edge of the graph is in it, and each of those added.
    """
    n = len(body)
    dur = graph.dur_ns.copy()
    dur[body] = 0
    source, target = np.append(graph.source, np.zeros(n, np.int64)), np.append(graph.target, body)
    lag, kind = np.append(graph.lag_ns, np.zeros(n, np.int64)), np.append(graph.edge_kind, np.full(n, EdgeKind.CLOCK))
    order = np.argsort(target, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    opened = replace(
        graph,
        dur_ns=dur,
        source=source[order],
        target=target[order],
        lag_ns=lag[order],
        strict_lag_ns=lag[order],
        edge_kind=kind[order].astype(np.uint8),
    )
    n_edges = len(graph.source)
    return opened, place[:n_edges], place[n_edges:]


def _hubs(graph: Graph, body: Ints) -> Ints:
    """Return collectives that much comes after: the last of each step, and those that a thread waits for."""
    bounds = graph.bounds(graph.finish_ns)
    last = np.searchsorted(graph.begin_ns[body], bounds) - 1
    place = np.full(graph.n_nodes, -1, np.int64)
    place[body] = np.arange(len(body))
    host = np.isin(graph.kind[graph.target], (NodeKind.HOST, NodeKind.WAIT, NodeKind.PAUSE))
    waited = place[graph.source[host]]
    return distinct(np.concatenate([last[last >= 0], waited[waited >= 0]]))


def _named(body: Ints, done: Ints, began_ns: Ints) -> tuple[Ints, Ints]:
    """Return the source that tells each column of each target, counted from 1, and how long after its end that is.

    The last column is the beginning's, 0; -1: none. ``began_ns`` : of each node, what it adds to when it is let in.
    """
    name = np.maximum(done + APART // 2, 0) // APART
    name[:, -1] = 0
    lag = done - name * APART
    some = name > 0
    lag[some] -= began_ns[body][name[some] - 1]
    name[:, :-1][~some[:, :-1]] = -1
    return name, lag


def _nearest(source: Ints, arrives: Sequence[Ints]) -> Ints:
    """Return int64[targets, KEPT]: the columns of the sources that each target was latest after in some scenario."""
    n_columns = source.shape[1]
    best = np.full(source.shape, n_columns, np.int64)
    for arrive in arrives:
        order = np.argsort(-arrive, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.broadcast_to(np.arange(n_columns), order.shape), axis=1)
        best = np.minimum(best, rank)
    return np.argsort(best, axis=1, kind="stable")[:, :KEPT]
