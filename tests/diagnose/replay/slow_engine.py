"""A second way to run a graph, node by node in the order Kahn's algorithm finds: slow and plain."""

from __future__ import annotations

from collections import defaultdict

from torchtriage.diagnose.replay.graph import Graph


def finish_times(graph: Graph, *, dur_ns: list[int] | None = None, lag_ns: list[int | None] | None = None) -> list[int]:
    """Return the finish of every node; a lag of None means that the edge is not there."""
    n = graph.n_nodes
    dur = graph.dur_ns.tolist() if dur_ns is None else dur_ns
    gap = graph.gap_ns.tolist()
    extra = graph.extra_ns.tolist()
    lag = graph.lag_ns.tolist() if lag_ns is None else lag_ns
    causes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    effects: dict[int, list[int]] = defaultdict(list)
    heads = set(graph.lane_first.tolist()[:-1])
    for node in range(n):
        if node not in heads:
            causes[node].append((node - 1, gap[node]))
            effects[node - 1].append(node)
    for source, target, one in zip(graph.source.tolist(), graph.target.tolist(), lag, strict=True):
        if one is not None:
            causes[target].append((source, one))
        effects[source].append(target)
    missing = [0] * n
    for targets in effects.values():
        for target in targets:
            missing[target] += 1
    ready = [node for node in range(n) if not missing[node]]
    finish: dict[int, int] = {}
    while ready:
        node = ready.pop()
        known = [finish[source] + one for source, one in causes[node]]
        if node in heads:
            known.append(0)  # nothing begins before the origin
        finish[node] = max(known) + extra[node] + dur[node]
        for target in effects[node]:
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    assert len(finish) == n, "the graph has a circle"
    return [finish[node] for node in range(n)]
