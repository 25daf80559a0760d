"""The user's lines whose gradients backward passes spend their time on; a stack shows the call of ``backward`` alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.user_places import forward_operators, user_places
from torchtriage.diagnose.runs.result import AccountLine

_NODE = r"^autograd::engine::evaluate_function: "
N_LINES = 8


def backward_lines(trace: Trace, places: Locator | None, share: float) -> tuple[AccountLine, ...]:
    """Return the lines whose gradients take most of the backward passes, which take ``share`` of the step.

    None without stacks, and with a device: what counts there is when it computes them.
    """
    if trace.devices or not trace.has_stacks or places is None:
        return ()
    is_node = (trace.kind == Kind.OP) & trace.matching(_NODE)
    nodes = np.flatnonzero(is_node)
    nodes = nodes[trace.steps.in_steady(trace.steps.of_host(nodes)) & (trace.tree.nearest(nodes, is_node) < 0)]
    whole = int(trace.dur_ns[nodes].sum())
    found = user_places(trace, forward_operators(trace, nodes))
    keys, first, group = np.unique(found.key, axis=1, return_index=True, return_inverse=True)
    took = np.bincount(group.ravel(), trace.dur_ns[nodes], keys.shape[1])
    lines: Counter[tuple[str, int, str]] = Counter()
    for row, ns in zip(found.row[first[keys[0] >= 0]].tolist(), took[keys[0] >= 0].tolist(), strict=True):
        frame = places.stack(trace, row)[0]
        lines[frame.file, frame.line, frame.function] += round(ns)
    return tuple(
        AccountLine(file, line, function, "gradients", round(share * ns / whole, 6))
        for (file, line, function), ns in lines.most_common(N_LINES)
    )
