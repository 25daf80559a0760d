"""The windows of a recording: equal pieces of its steps, each faulty or not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.diagnose.detector.features import PER_STEP, windows

__all__ = ["PER_STEP", "faulty", "windows"]

HALF = 0.5

Ints = NDArray[np.int64]


def faulty(windows_ns: Ints, intervals_ns: Ints) -> NDArray[np.bool_]:
    """Return which windows the fault is in: it fills half of them, or half of it is in them.

    ``windows_ns`` : int64[n, 2]; ``intervals_ns`` : int64[k, 2], apart and in order.
    """
    found = np.zeros(len(windows_ns), np.bool_)
    for begin_ns, end_ns in intervals_ns:
        shared = np.minimum(windows_ns[:, 1], end_ns) - np.maximum(windows_ns[:, 0], begin_ns)
        found |= shared >= HALF * max(end_ns - begin_ns, 1)
    filled = intervals.covered(windows_ns, intervals_ns)
    return found | (filled >= HALF * (windows_ns[:, 1] - windows_ns[:, 0]))
