"""Loops that keep a pace: each step waits for a tick of its own, however long its work took.

A controller that sleeps until its next tick, or a loop fed at a constant rate: less work makes the wait longer and the
step no shorter. What counts is slack, the least that a step waits, and jitter, how evenly steps begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import quantile
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.schema import LOADER_NAME, Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

MIN_STEPS = 5
MIN_WAIT_NS = 1_000_000
STEADIER = 0.5
"""Spread of the periods over that of the work in them: a wait of any other kind adds to the spread."""
ABSORBS = -0.8
"""Correlation of work and wait."""


class Pace(NamedTuple):
    """A loop's pace, in ns: a step begins every ``period_ns`` (median), give or take ``jitter_ns`` (95th percentile).

    ``waits`` : int64[k, 2], the wait of each steady step. ``wait_ns`` : their median; ``slack_ns`` : the shortest.
    """

    period_ns: int
    jitter_ns: int
    wait_ns: int
    slack_ns: int
    waits: Spans


def find_pace(trace: Trace) -> Pace | None:
    """Return the pace that the main thread keeps, None where its steps are as long as their work.

    The wait is the longest stretch of each step in which the thread is in no operator, call or loader. It is one for a
    tick where it takes up what the work varies by: periods vary half as much as the work, or less.
    """
    steps = trace.steps
    at = np.flatnonzero(steps.steady[:-1])
    if len(at) < MIN_STEPS:
        return None
    step = intervals.spans(steps.host_start_ns[at], steps.host_start_ns[at + 1])
    busy = trace.is_kind(Kind.OP, Kind.RUNTIME) | trace.matching(LOADER_NAME, Kind.ANNOTATION)
    rows = np.flatnonzero(busy & (trace.lane == steps.lane))
    free = intervals.subtract(step, trace.time_of(rows))
    of = intervals.owner(step, free[:, 0])
    # the longest of each step is the last of its own in this order
    order = np.lexsort((free[:, 1] - free[:, 0], of))
    longest = order[np.append(of[order][1:] != of[order][:-1], True)] if len(order) else order
    if len(longest) < len(step):
        return None
    waits = free[longest]
    period, wait = step[:, 1] - step[:, 0], waits[:, 1] - waits[:, 0]
    work = period - wait
    if np.median(wait) < MIN_WAIT_NS or period.std() > STEADIER * work.std() or work.std() <= trace.resolution_ns:
        return None
    if np.corrcoef(work, wait)[0, 1] > ABSORBS:
        return None
    usual = np.median(period)
    jitter = quantile(np.abs(period - usual), 0.95)
    return Pace(int(usual), int(jitter), int(np.median(wait)), int(wait.min()), waits)
