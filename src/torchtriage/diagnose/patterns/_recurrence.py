"""Whether something recurs from step to step, and the lines of the user's code it comes from."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.frames import is_user_frame
from torchtriage.diagnose.patterns.base import Ints, Mask, Trace

MOST_STEPS = 0.5  # share of the steady steps; what happens in fewer is an interval of logging, saving or testing
MIN_TIMES = 3  # where there are no two steps to compare: so often, or it may be the one intended use


def recurs(trace: Trace, rows: NDArray[np.integer]) -> bool:
    """Return whether host rows occur in most steady steps; without steps, several times."""
    step_of = trace.steps.of_host(rows)
    if trace.steps.n_steady >= 2:
        return trace.steps.share_of_steps(step_of) >= MOST_STEPS
    return int(trace.steps.per_step(step_of).sum()) >= MIN_TIMES


def frame_around(trace: Trace, rows: NDArray[np.integer], mask: Mask, *, outermost: bool = False) -> Ints:
    """Return for each host row the innermost (or outermost) Python frame of ``mask`` around it, -1 without one."""
    if not trace.has_stacks or not len(rows):
        return np.full(len(rows), -1, np.int64)
    inner = trace.frames.at(trace.lane[rows], trace.start_ns[rows])
    found = np.full(len(rows), -1, np.int64)
    inside = np.flatnonzero(inner >= 0)
    search = trace.frames.outermost if outermost else trace.frames.nearest
    found[inside] = search(inner[inside], mask)
    own = (inner >= 0) & mask[inner]
    return np.where(own & ((found < 0) | (not outermost)), inner, found)


def call_sites(trace: Trace, rows: NDArray[np.integer]) -> list[str]:
    """Return the user's frames host rows were called from, the most frequent first."""
    frames = frame_around(trace, rows, trace.where_name(is_user_frame))
    counts = Counter(trace.name[frames[frames >= 0]].tolist())
    return [trace.names[code] for code, _ in counts.most_common(3)]
