"""How far a replay of a trace can be trusted, and when it is refused.

With its residuals the replay repeats the recording by construction, which proves nothing. Three
numbers do: the run replayed from its causes alone, the share of the critical path without a
cause, and what is left of the total when all work takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.units import format_share
from torchtriage.diagnose.replay.engine import Schedule
from torchtriage.diagnose.replay.graph import EdgeKind, Graph

MAX_STRICT, MAX_UNEXPLAINED, MAX_PINNED = 0.03, 0.05, 0.50
"""Beyond these no number is given: every miss of a study on 64 traces was beyond one of them."""


@dataclass(frozen=True)
class Quality:
    """Whether the model reconstructs the recorded run from its causes alone.

    ``strict_error`` : total time replayed without residuals and with one lag per kind of edge,
    against the recorded total; signed share. ``unexplained`` : share of the critical path that
    no cause was found for. ``pinned`` : share of the total that stays when all work takes no time.
    ``reason`` : why it is not ``accepted``, else empty.
    """

    strict_error: float
    unexplained: float
    pinned: float
    accepted: bool
    reason: str
    n_nodes: int
    n_edges: int


def judge(graph: Graph, order: Schedule) -> Quality:
    """Measure the quality of a graph."""
    recorded = graph.bounds(graph.finish_ns)
    total = int(recorded[-1] - recorded[0])
    if total <= 0:
        return Quality(0.0, 0.0, 1.0, False, "no time passes in it", graph.n_nodes, 0)
    clock = np.where(graph.edge_kind == EdgeKind.CLOCK, graph.lag_ns, 0)
    gaps = graph.strict_gap_ns
    strict_lag = graph.strict_lag_ns - gaps[graph.target]
    ways = np.stack([gaps + graph.dur_ns, np.zeros_like(gaps)], axis=1)
    done = order.run_steps(ways, np.stack([strict_lag, clock], axis=1), graph.bound_node, width=2)
    bounds = graph.bounds_of(done)
    strict, zero = (bounds[-1] - bounds[0]).tolist()
    path = critical_nodes(graph, binding(graph)[0], int(recorded[0]))
    quality = Quality(
        strict_error=strict / total - 1,
        unexplained=min(int(graph.extra_ns[path].sum()) / total, 1.0),
        pinned=zero / total,
        accepted=True,
        reason="",
        n_nodes=graph.n_nodes,
        n_edges=len(graph.source) + graph.n_nodes - graph.n_lanes,
    )
    reason = _reason(quality)
    return replace(quality, accepted=not reason, reason=reason)


def _reason(quality: Quality) -> str:
    if quality.pinned > MAX_PINNED:
        share = format_share(quality.pinned)
        return f"{share} of the time was set before the recording or has no launch in it"
    if quality.unexplained > MAX_UNEXPLAINED:
        return f"{format_share(quality.unexplained)} of the critical path has no recorded cause"
    if abs(quality.strict_error) > MAX_STRICT:
        off = format_share(abs(quality.strict_error))
        side = "longer" if quality.strict_error > 0 else "shorter"
        return f"its causes alone give a total {off} {side} than the recorded one"
    return ""


def binding(graph: Graph) -> tuple[Ints, Ints]:
    """Return what each node waited for: the node, and the edge (-1: its own lane; -2: nothing)."""
    none = np.iinfo(np.int64).min
    prior = np.full(graph.n_nodes, none, np.int64)
    prior[1:] = graph.finish_ns[:-1] + graph.gap_ns[1:]
    prior[graph.lane_first[:-1]] = none
    node = np.arange(-1, graph.n_nodes - 1, dtype=np.int64)
    edge = np.where(prior > none, -1, -2)
    arrive = graph.finish_ns[graph.source] + graph.lag_ns
    best = np.full(graph.n_nodes, none, np.int64)
    np.maximum.at(best, graph.target, arrive)
    wins = np.flatnonzero((arrive == best[graph.target]) & (arrive >= prior[graph.target]))
    edge[graph.target[wins]] = wins
    node[graph.target[wins]] = graph.source[wins]
    node[edge == -2] = -1
    return node, edge


def critical_nodes(graph: Graph, before: Ints, since_ns: int, bound: int = -1) -> Ints:
    """Return the nodes that a bound (the last) hangs on, latest first, back to a moment."""
    first = graph.bound_first
    index = len(first) - 2 if bound < 0 else bound
    nodes = graph.bound_node[: first[index + 1]]
    node = int(nodes[np.argmax(graph.finish_ns[nodes])])
    if int(graph.finish_ns[node]) <= since_ns:
        return nodes[:0]
    # along a lane a stretch at a time: it ends at the first node that waited for another lane
    follows = (before == np.arange(-1, graph.n_nodes - 1)) & (graph.finish_ns[before] > since_ns)
    follows[0] = False
    heads = np.flatnonzero(~follows)
    onward = np.where(graph.finish_ns[before[heads]] > since_ns, before[heads], -1)
    stretch = int(np.searchsorted(heads, node, side="right")) - 1
    following = (np.searchsorted(heads, onward, side="right") - 1).tolist()
    passed: dict[int, None] = {}  # in order; where causes close a circle, it ends before it comes round
    while stretch >= 0 and stretch not in passed:
        passed[stretch] = None
        stretch = following[stretch]
    stretches = list(passed)
    head = heads[stretches]
    last = np.append(node, onward[stretches[:-1]])
    length = last - head + 1
    return np.repeat(last + np.cumsum(length) - length, length) - np.arange(length.sum())
