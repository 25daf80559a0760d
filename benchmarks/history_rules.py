"""Rules that name changes in a history of measurements: torchtriage's, and those that people use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.stats import change_points
from torchtriage.core.stats.classical_tests import welch

Floats = NDArray[np.float64]

SAME = 4
"""Commits: reports nearer than this speak of one change."""


def ours(values: Floats) -> list[int]:
    """Return the change points of torchtriage."""
    return [change.at for change in change_points.find(values)]


def otava(values: Floats) -> list[int]:
    """Return the change points of apache/otava with its own settings."""
    from otava.analysis import compute_change_points

    return [change.index for change in compute_change_points(values.tolist())[0]]


def perfherder(values: Floats) -> list[int]:
    """Return where Perfherder would alert: t > 7, 12 values on either side, 2 % or more."""
    out = []
    for at in range(12, len(values) - 11):
        before, after = values[at - 12 : at], values[at : at + 12]
        t = abs(welch(before, after).t)
        if t > 7 and abs(after.mean() / before.mean() - 1) >= 0.02 and (not out or at - out[-1] > SAME):
            out.append(at)
    return out


def reports(find: Callable[[Floats], list[int]], values: Floats, every: int) -> list[tuple[int, int]]:
    """Return (place, commit at which it was first told), looking again after every few commits."""
    out: list[tuple[int, int]] = []
    for n in range(10, len(values) + 1, every):
        for at in find(values[:n]):
            if not any(abs(at - place) <= SAME for place, _ in out):
                out.append((at, n))
    return out
