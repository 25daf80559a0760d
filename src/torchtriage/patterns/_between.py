"""The time between operators on a machine without a device, which only Python frames explain."""

from __future__ import annotations

import numpy as np

from torchtriage import intervals
from torchtriage.intervals import Spans
from torchtriage.trace import Kind, Trace

__all__ = ["MIN_SHARE", "MIN_STRETCH_NS", "between_ops", "is_explained", "loaders_and_first_use"]

MIN_STRETCH_NS = 1_000_000
"""Python between the ops of one forward pass: up to 0.5 ms (BERT, ViT with stacks); real host
work: 4-269 ms (TimeSformer, SAM, FLUX)."""
MIN_SHARE = 0.05
"""Share of the step (catalogue 20)."""
_LOADER = r"^enumerate\(DataLoader\)#"


def between_ops(trace: Trace) -> Spans:
    """Return the longer stretches of the judged steps in which no thread was inside an operator."""
    rows = np.flatnonzero(trace.kind == Kind.OP)
    work = intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))
    free = intervals.subtract(trace.steps.judged, work)
    return free[free[:, 1] - free[:, 0] >= MIN_STRETCH_NS]


def loaders_and_first_use(trace: Trace) -> Spans:
    """Return the time of loaders and of what happens once, which other patterns judge."""
    loaders = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(_LOADER)
    rows = np.concatenate([np.flatnonzero(loaders), trace.steps.first_use])
    return intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))


def is_explained(trace: Trace) -> bool:
    """Return whether frames would add nothing: there are some, or hardly any time to explain."""
    if trace.devices or trace.has_stacks or not trace.is_host_only:
        return True
    left = intervals.subtract(between_ops(trace), loaders_and_first_use(trace))
    return intervals.length(left) < MIN_SHARE * intervals.length(trace.steps.judged)
