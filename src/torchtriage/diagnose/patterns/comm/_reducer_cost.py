"""What operators of DDP's reducer cost, on the host and as copies."""

from typing import Literal, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.diagnose.patterns.base import Floats, Ints, Spans, Trace


class ReducerCost(NamedTuple):
    """Time at stake; the names are those of :class:`Claim`."""

    spans: Spans
    gain_low: Floats
    time_class: Literal["idle", "copy", "host"]
    method: str


def reducer_cost(trace: Trace, rows: Ints, moved: Ints) -> ReducerCost:
    """Return copies nothing hides and the idle time behind the operators, or their host time."""
    slower = 1 / trace.origin.inflation
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    if not trace.devices:
        spans = intervals.union(intervals.spans(start, end))
        return ReducerCost(spans, np.full(len(spans), slower), "host", "host time of these operators")
    device = trace.devices[0]
    lost = trace.waits.lost(start, end)
    copies = intervals.intersect(trace.time_of(moved), device.copy_only)
    return ReducerCost(
        np.concatenate([copies, lost]),
        np.concatenate([np.ones(len(copies)), np.full(len(lost), slower)]),
        "copy" if len(copies) else "idle",
        "copies with nothing beside them, and device idle time behind these operators",
    )


def host_ns_per_step(trace: Trace, rows: Ints) -> float:
    """Return the time of host rows in ns per steady step."""
    steady = trace.steps.in_steady(trace.steps.of_host(rows))
    return int(trace.dur_ns[rows[steady]].sum()) / trace.steps.n_steady
