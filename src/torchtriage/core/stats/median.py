"""How far a median can be trusted, whatever the distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RISK = 0.05
"""That the true median lies below the interval, and again that it lies above."""
EXACT = 1000
"""Beyond this many values the binomial is taken as normal."""


def median_interval(values: NDArray[np.integer] | NDArray[np.float64]) -> tuple[float, float, float]:
    """Return (low, median, high): the median, and order statistics around it.

    For independent values of any distribution the true median lies between them in at least 90 % of samples (W. J.
    Conover, Practical Nonparametric Statistics, 3.2). Below 5 values that cannot be had: the extremes are returned.

    Raises ValueError: there are no values.
    """
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    if not n:
        raise ValueError("expected at least one value, found none")
    if n >= EXACT:
        k = int(n / 2 - 1.6449 * np.sqrt(n) / 2)
    else:
        k, below, chance = 0, 0.0, 0.5**n
        while below + chance <= RISK:
            below += chance
            chance *= (n - k) / (k + 1)
            k += 1
    k = max(k, 1)
    return float(ordered[k - 1]), float(np.median(ordered)), float(ordered[n - k])


def medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each of two or more values the median of the others."""
    n = len(values)
    order = np.argsort(values)
    ranked = values[order]
    places = np.empty(n, int)
    places[order] = np.arange(n)
    low, high = (n - 2) // 2, (n - 1) // 2  # the middle places of the n - 1 others
    found: NDArray[np.float64] = (ranked[low + (places <= low)] + ranked[high + (places <= high)]) / 2
    return found
