"""What an optimizer's step itself does.

``optimizer.step(closure)`` calls back into the program: forward, backward and the rest of the step lie inside the
optimizer's annotation then (LBFGS, and every program on Lightning).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import BACKWARD_NODE

_OPTIMIZER = r"^Optimizer\."
_STEP = r"^Optimizer\.step#"


class Closures(NamedTuple):
    """``rows`` : bool[n], host rows that a closure calls. ``spans`` : from the begin of a step to its last gradient."""

    rows: Mask
    spans: Spans


def optimizer_marks(trace: Trace) -> Mask:
    """Return bool[n]: the annotations of optimizers."""
    return trace.matching(_OPTIMIZER, Kind.ANNOTATION, Kind.OP)


def closures(trace: Trace) -> Closures:
    """Return what runs inside an optimizer's step until the backward passes in it are through, on whatever thread."""
    steps = trace.matching(_STEP, Kind.ANNOTATION, Kind.OP)
    rows = np.flatnonzero(steps & ~trace.tree.under(steps))
    gradients = np.flatnonzero(trace.matching(f"^{BACKWARD_NODE}", Kind.OP))
    gradients = gradients[np.argsort(trace.start_ns[gradients], kind="stable")]
    begins, latest = trace.start_ns[gradients], np.maximum.accumulate(trace.end_ns[gradients])
    first = np.searchsorted(begins, trace.start_ns[rows])
    after = np.searchsorted(begins, trace.end_ns[rows])
    called = after > first
    ends = np.minimum(latest[after[called] - 1], trace.end_ns[rows[called]])
    spans = intervals.spans(trace.start_ns[rows[called]], ends)
    inside = np.zeros(len(trace.kind), bool)
    if len(spans):
        held = np.zeros(len(trace.kind), bool)
        held[rows[called]] = True
        below = np.flatnonzero(trace.tree.under(held))
        at = np.searchsorted(rows[called], trace.tree.outermost(below, held))
        inside[below] = trace.start_ns[below] < ends[at]
    return Closures(inside, intervals.union(spans))


def updates(trace: Trace) -> Mask:
    """Return bool[n]: host rows that an optimizer's step itself does."""
    return trace.tree.under(optimizer_marks(trace)) & ~closures(trace).rows
