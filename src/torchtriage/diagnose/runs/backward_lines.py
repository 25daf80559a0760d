"""The lines whose gradients backward passes spend their time on; a stack shows the call of ``backward`` alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.trace.user_places import forward_operators, user_places
from torchtriage.diagnose.runs.result import AccountLine

N_LINES = 8
N_LOOKED_UP = 8
"""Calls of one function in another may be at several lines: so many of them, long ones rather, say how they share
the time."""


def backward_lines(trace: Trace, places: Locator | None, share: float) -> tuple[AccountLine, ...]:
    """Return the lines whose gradients take most of the backward passes, which take ``share`` of the step.

    None without stacks, and with a device: what counts there is when it computes them.
    """
    if trace.devices or not trace.has_stacks or places is None:
        return ()
    is_node = (trace.kind == Kind.OP) & trace.matching(f"^{BACKWARD_NODE}")
    nodes = np.flatnonzero(is_node)
    nodes = nodes[trace.steps.in_steady(trace.steps.of_host(nodes)) & (trace.tree.nearest(nodes, is_node) < 0)]
    whole = max(int(trace.dur_ns[nodes].sum()), 1)
    found = user_places(trace, forward_operators(trace, nodes))
    keys, group = np.unique(found.key, axis=1, return_inverse=True)
    took = np.bincount(group.ravel(), trace.dur_ns[nodes], keys.shape[1])
    lines: Counter[tuple[str, int, str]] = Counter()
    some, ns = np.random.default_rng(0), trace.dur_ns[nodes] + 1
    for place in np.argsort(-took, kind="stable")[: 4 * N_LINES].tolist():
        if keys[0, place] < 0:
            continue
        calls = np.flatnonzero(group.ravel() == place)
        calls = some.choice(calls, min(len(calls), N_LOOKED_UP), replace=False, p=ns[calls] / ns[calls].sum())
        for call in calls.tolist():
            frame = places.stack(trace, int(found.row[call]))[0]
            lines[frame.file, frame.line, frame.function] += round(took[place] * ns[call] / ns[calls].sum())
    return tuple(
        AccountLine(file, line, function, "gradients", round(share * ns / whole, 6))
        for (file, line, function), ns in lines.most_common(N_LINES)
    )
