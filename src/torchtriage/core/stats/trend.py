"""The slope of a series, whatever its distribution, and from where on it rises."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats

__all__ = ["Hinge", "Slope", "block_minima", "hinge", "sen_slope"]

MAX_POINTS = 400
"""All pairs are looked at; longer series are thinned first."""


class Slope(NamedTuple):
    """A slope and the ends of its interval, in units of ``y`` per unit of ``x``."""

    low: float
    slope: float
    high: float


class Hinge(NamedTuple):
    """A level up to ``at``, then a straight line of ``slope``; ``left`` is the misfit, mean |.|."""

    at: float
    level: float
    slope: float
    left: float


def sen_slope(x: Floats, y: Floats, *, z: float = 1.96) -> Slope:
    """Return the median of the slopes between all pairs, and where the true slope lies.

    ``x``, ``y`` : float64[n], increasing places, and values. At most 400 points are used, evenly picked.
    ``z`` : standard normal quantile of the interval; 1.96 gives 95 %.

    Returns NaN with fewer than 3 points.

    P. K. Sen (1968): order statistics of the pairwise slopes, ``z sqrt(n (n-1) (2n+5) / 18)`` pairs apart. Assumes
    independent errors of one distribution; up to 29 % of the points may be wild. Where errors are alike over stretches,
    the interval is too narrow: take block minima first.
    """
    if len(x) > MAX_POINTS:
        pick = np.linspace(0, len(x) - 1, MAX_POINTS).astype(np.int64)
        x, y = x[pick], y[pick]
    n = len(x)
    if n < 3:
        return Slope(float("nan"), float("nan"), float("nan"))
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    apart = z * np.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    low = int(max((len(slopes) - apart) / 2, 0))
    high = min(len(slopes) - 1, len(slopes) - 1 - low)
    return Slope(float(slopes[low]), float(np.median(slopes)), float(slopes[max(high, low)]))


def block_minima(x: Floats, y: Floats, n_blocks: int) -> tuple[Floats, Floats]:
    """Return where each block of equal length in ``x`` is lowest: its middle, and that value.

    ``x``, ``y`` : float64[n], increasing places, and values without NaN. ``n_blocks`` : how many blocks the span of
    ``x`` is cut into; those without a point are left out.

    Returns ``middle``, ``lowest`` : float64[k], k <= n_blocks.
    """
    if not len(x):
        return np.empty(0), np.empty(0)
    edges = np.linspace(x[0], x[-1], n_blocks + 1)
    first = np.searchsorted(x, edges[:-1], side="left")
    last = np.append(first[1:], len(x))
    some = last > first
    lowest = np.minimum.reduceat(y, first[some])
    return ((edges[:-1] + edges[1:]) / 2)[some], lowest


def hinge(x: Floats, y: Floats) -> Hinge:
    """Return the level-then-line that fits best in the mean absolute sense.

    ``x``, ``y`` : float64[n], increasing places, and values; n >= 4.

    Every place is tried as the corner; level and slope are medians, so a few wild points do not move the corner.
    """
    best = Hinge(float(x[0]), float(y[0]), 0.0, float("inf"))
    for corner in range(len(x) - 2):
        level = float(np.median(y[: corner + 1]))
        run = x[corner + 1 :] - x[corner]
        slope = float(np.median((y[corner + 1 :] - level) / run))
        off = np.append(y[: corner + 1] - level, y[corner + 1 :] - level - slope * run)
        left = float(np.abs(off).mean())
        if left < best.left:
            best = Hinge(float(x[corner]), level, slope, left)
    return best
