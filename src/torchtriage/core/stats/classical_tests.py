"""The tests people ask for. They are reported beside the verdict and never make it.

All assume independent values, which iterations of one process are not: of equal programs in two processes on a busy
machine they call about half different (docs/statistics.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.difference import student_tail


class Welch(NamedTuple):
    """Welch's t of after minus before, its degrees of freedom and its two-sided p-value."""

    t: float
    df: float
    p_value: float


class MannWhitney(NamedTuple):
    """How many pairs have the larger value after, ties half, and the two-sided p-value."""

    u: float
    p_value: float


def welch(before: Floats, after: Floats) -> Welch:
    """Return Welch's t-test (1947) for unequal variances; NaN where neither side varies.

    Raises ValueError: fewer than 2 values on a side, or values that are not finite.
    """
    _check(before, after)
    errors = [float(item.var(ddof=1)) / len(item) for item in (before, after)]
    total = sum(errors)
    if total == 0:
        return Welch(math.nan, math.nan, math.nan)
    t = float(after.mean() - before.mean()) / math.sqrt(total)
    df = total**2 / (errors[0] ** 2 / (len(before) - 1) + errors[1] ** 2 / (len(after) - 1))
    return Welch(t, df, min(1.0, 2 * student_tail(abs(t), df)))


def cohen_d(before: Floats, after: Floats) -> float:
    """Return Cohen's d (1988), after minus before in pooled deviations; NaN where neither varies.

    Raises ValueError: fewer than 2 values on a side, or values that are not finite.
    """
    _check(before, after)
    n, m = len(before), len(after)
    pooled = ((n - 1) * before.var(ddof=1) + (m - 1) * after.var(ddof=1)) / (n + m - 2)
    if pooled == 0:
        return math.nan
    return float((after.mean() - before.mean()) / math.sqrt(pooled))


def mann_whitney(before: Floats, after: Floats) -> MannWhitney:
    """Return the rank-sum test of Mann and Whitney (1947), with ties, normally approximated.

    Raises ValueError: fewer than 2 values on a side, or values that are not finite.
    """
    _check(before, after)
    n, m = len(before), len(after)
    values, inverse, counts = np.unique(np.concatenate([before, after]), return_inverse=True, return_counts=True)
    if len(values) == 1:
        return MannWhitney(n * m / 2, math.nan)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse.ravel()]
    u = float(ranks[n:].sum()) - m * (m + 1) / 2
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    z = max(abs(u - n * m / 2) - 0.5, 0.0) / math.sqrt(variance)
    return MannWhitney(u, math.erfc(z / math.sqrt(2)))


def _check(before: Floats, after: Floats) -> None:
    if min(len(before), len(after)) < 2:
        raise ValueError(f"expected at least 2 values on each side, found {len(before)} and {len(after)}")
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("expected finite values")
