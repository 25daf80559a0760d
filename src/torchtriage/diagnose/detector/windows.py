"""The windows that are judged: equal pieces of a recording's steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.columns import Trace

__all__ = ["PER_STEP", "windows"]

PER_STEP = 16

Ints = NDArray[np.int64]


def windows(trace: Trace) -> Ints:
    """Return int64[n, 2]: beginning and end in ns, ``PER_STEP`` for each step of the host.

    A recording without steps is one step.
    """
    steps = trace.steps
    begin_ns, end_ns = steps.host_start_ns, steps.host_end_ns
    if not len(steps):
        begin_ns, end_ns = (np.array([one], np.int64) for one in steps.window[:2])
    at = np.linspace(0, 1, PER_STEP + 1)
    edges = np.rint(begin_ns[:, None] + (end_ns - begin_ns)[:, None] * at).astype(np.int64)
    return np.stack([edges[:, :-1].ravel(), edges[:, 1:].ravel()], axis=1)
