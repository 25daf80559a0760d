"""What both loader patterns need: the fetches of a kind of loader and the time they cost."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from torchtriage.core import intervals
from torchtriage.diagnose.patterns.base import Ints, Kind, Spans, Trace

MIN_SHARE = 0.05  # share of the step a loader has to take (kineto's TensorBoard advisor draws the line here)


@dataclass(frozen=True, eq=False)
class Fetches:
    """Calls of ``DataLoader.__next__`` in steady steps.

    ``rows`` : the annotations. ``step_of`` : the step of each. ``at_stake`` : the part of them
    that holds the device up, or all of them without a device. ``per_step_ns`` and
    ``lost_per_step_ns`` : means over the steady steps, of the fetches and of what is at stake.
    """

    rows: Ints
    step_of: Ints
    at_stake: Spans
    per_step_ns: float
    lost_per_step_ns: float
    time_class: Literal["idle", "host"]


def find_fetches(trace: Trace, loader: str) -> Fetches | None:
    """Return the fetches of this kind of loader, None where there are none."""
    mask = trace.matching(rf"^enumerate\(DataLoader\)#_{loader}DataLoaderIter\.__next__$", Kind.ANNOTATION, Kind.OP)
    # pre-releases of torch 1.8 wrote every operator twice, one inside the other
    rows = np.flatnonzero(mask & ~trace.tree.under(mask))
    step_of = trace.steps.of_host(rows)
    steady = trace.steps.in_steady(step_of)
    rows, step_of = rows[steady], step_of[steady]
    if not len(rows):
        return None
    held = trace.time_of(rows)
    at_stake = intervals.intersect(held, idle(trace)) if trace.devices else held
    n_steps = trace.steps.n_steady
    return Fetches(
        rows,
        step_of,
        at_stake,
        intervals.length(held) / n_steps,
        intervals.length(at_stake) / n_steps,
        "idle" if trace.devices else "host",
    )


def idle(trace: Trace) -> Spans:
    """Return when the device waits for the host, also after its last work: the last fetch has none behind it."""
    device = trace.devices[0]
    last = np.array([[trace.end_ns[device.rows].max(), np.iinfo(np.int64).max]])
    return intervals.union(np.concatenate([device.host_late, last]))
