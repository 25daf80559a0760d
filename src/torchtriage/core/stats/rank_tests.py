"""How likely a sum of ranks is when nothing differs: exact, whatever the distribution."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from torchtriage.core.arrays import Floats

__all__ = ["Floats", "centre_and_interval", "mean_ranks", "rank_sum_below", "signed_rank_below", "two_sided_p"]

EXACT_PAIRS = 300
EXACT_PRODUCT = 3000
"""Beyond these the normal approximation is right to three digits at a chance of one in 10 000."""


@lru_cache(maxsize=256)
def signed_rank_below(n: int) -> Floats:
    """Return P(T <= t) for t = 0 ... n (n + 1) / 2, where T sums the ranks with a positive sign.

    Every sign is a fair coin (Wilcoxon 1945). The coins may be as unlike in size as they wish.
    """
    size = n * (n + 1) // 2 + 1
    if n > EXACT_PAIRS:
        return _normal_below(size, n * (n + 1) * (2 * n + 1) / 24)
    chance = np.zeros(size)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        moved = np.zeros(size)
        moved[rank:] = chance[:-rank]
        chance = (chance + moved) / 2
    return np.cumsum(chance)


@lru_cache(maxsize=256)
def rank_sum_below(n: int, m: int) -> Floats:
    """Return P(U <= u) for u = 0 ... n m, where U counts the pairs with the second value larger.

    Every order of the ``n + m`` values is as likely (Mann and Whitney 1947).
    """
    size = n * m + 1
    if n * m > EXACT_PRODUCT:
        return _normal_below(size, n * m * (n + m + 1) / 12)
    # chance[i, u]: of the values so far i belong to the first group and u pairs are in order
    chance = np.zeros((n + 1, size))
    chance[0, 0] = 1.0
    for seen in range(n + m):
        left = n + m - seen
        after = np.zeros_like(chance)
        for i in range(min(seen, n) + 1):
            if seen - i > m:
                continue
            first = (n - i) / left
            if i < n:
                after[i + 1] += chance[i] * first
            if seen - i < m:
                after[i, i:] += chance[i, : size - i] * (1 - first)
        chance = after
    return np.cumsum(chance[n])


def centre_and_interval(shifts: Floats, below: Floats, level: float) -> tuple[float, float, float]:
    """Return (centre, low, high): the median of ``shifts`` and the interval that a test inverts to.

    ``shifts`` : float64[k], Walsh averages, or all differences between two groups (Hodges and Lehmann 1963).
    ``below`` : float64[k + 1], the null distribution of how many of them are above zero. ``level`` : the chance of the
    interval to hold the truth is at least this; its ends are NaN where so few values cannot give that.
    """
    ordered = np.sort(shifts)
    k = int(np.searchsorted(below, (1 - level) / 2 * (1 + 1e-9), side="right"))
    middle = len(ordered) // 2
    centre = float(ordered[middle] + ordered[-1 - middle]) / 2
    if not k:
        return centre, math.nan, math.nan
    return centre, float(ordered[k - 1]), float(ordered[len(ordered) - k])


def two_sided_p(shifts: Floats, below: Floats) -> float:
    """Return the chance of so many ``shifts`` on one side of zero; ties count for neither side."""
    fewer = min(int((shifts >= 0).sum()), int((shifts <= 0).sum()))
    return min(1.0, 2 * float(below[fewer]))


def _normal_below(size: int, variance: float) -> Floats:
    z = (np.arange(size) + 0.5 - (size - 1) / 2) / math.sqrt(variance)
    return np.array([math.erfc(-item / math.sqrt(2)) / 2 for item in z.tolist()])


def mean_ranks(values: Floats) -> Floats:
    """Return ranks from 1, equal values at the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse.ravel()]
