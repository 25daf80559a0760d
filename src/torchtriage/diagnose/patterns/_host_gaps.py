"""The time between operators on a machine without a device, which only Python frames explain."""

from __future__ import annotations

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import LOADER_NAME

MIN_STRETCH_NS = 1_000_000
"""Python between the ops of one forward pass: up to 0.5 ms (BERT, ViT with stacks); real host work: 4-269 ms
(TimeSformer, SAM, FLUX)."""
MIN_SHARE = 0.05  # share of the step (catalogue 20)
MAX_STEPS = 8  # steps that are compared; more would say the same


def between_ops(trace: Trace) -> Spans:
    """Return the longer stretches of the judged steps in which no thread was inside an operator."""
    rows = np.flatnonzero(trace.kind == Kind.OP)
    work = trace.time_of(rows)
    free = intervals.subtract(trace.steps.judged, work)
    return free[free[:, 1] - free[:, 0] >= MIN_STRETCH_NS]


def loaders_and_first_use(trace: Trace) -> Spans:
    """Return the time of loaders and of what happens once, which other patterns judge."""
    loaders = trace.matching(LOADER_NAME, Kind.ANNOTATION, Kind.OP)
    rows = np.concatenate([np.flatnonzero(loaders), trace.first_use])
    return trace.time_of(rows)


def has_its_place(trace: Trace, spans: Spans) -> bool:
    """Return whether most of this time is spent between the same operators in step after step.

    A thread that loses its core to another process stands still anywhere.
    """
    steps = trace.steps
    walls = intervals.spans(steps.start_ns, steps.end_ns)[steps.steady][:MAX_STEPS]
    if len(walls) < 2:
        return True
    rows = np.flatnonzero((trace.kind == Kind.OP) & (trace.lane == steps.lane))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    names = np.concatenate([[-1], trace.name[rows], [-1]]).astype(np.int64)
    after = np.searchsorted(trace.start_ns[rows], spans[:, 1])
    pair = names[after] * (len(trace.names) + 1) + names[after + 1]
    _, place = np.unique(pair, return_inverse=True)
    # by its end: work at the top of a loop begins right behind the last operator of the step before
    step = np.searchsorted(walls[:, 0], spans[:, 1], side="left") - 1
    inside = (step >= 0) & (spans[:, 1] <= walls[step, 1])
    took = np.zeros((len(walls), int(place.max(initial=0)) + 1))
    np.add.at(took, (step[inside], place[inside]), (spans[:, 1] - spans[:, 0])[inside])
    usual = np.percentile(took, 50, axis=0, method="lower").sum()
    return bool(2 * usual >= took.sum() / len(walls))


def is_explained(trace: Trace) -> bool:
    """Return whether frames would add nothing: they are there, or there is no recurring gap."""
    if trace.devices or trace.has_stacks or not trace.is_host_only:
        return True
    left = intervals.subtract(between_ops(trace), loaders_and_first_use(trace))
    few = intervals.length(left) < MIN_SHARE * intervals.length(trace.steps.judged)
    return few or not has_its_place(trace, left)
