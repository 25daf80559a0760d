"""How much one program is faster than another, from runs taken in turns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.stats.difference import student_quantile

LEAST_PAIRS = 3
"""Two pairs give an interval of 12.7 standard errors: no use to anyone."""
GAP = 0.05
"""Programs whose true times are closer than this are as good as each other."""
COUNTS = 0.04
"""A measured gap counts from here on: it is known to about 1 %, and a true 5 % must not be lost."""
SURELY = 0.02
"""... if at least this much is sure: on a busy machine a wide interval clears zero too easily."""
NARROW = 0.01
"""How far an interval may reach from its ratio and still be called narrow."""
ORDER_LEVEL = 0.98
"""Of an interval looked at after each round: holds the truth in 95 %."""


class Ratio(NamedTuple):
    """After over before, and the ends of its interval; NaN where there are too few pairs."""

    value: float
    low: float
    high: float


def ratio_of_pairs(before: NDArray[np.float64], after: NDArray[np.float64], *, level: float = 0.95) -> Ratio:
    """Return by what factor ``after`` differs from ``before``.

    ``before``, ``after`` : float64[n], one positive value of each program per round; the rounds follow each other in
    time, and within a round the two programs ran one right after the other. Any unit. ``level`` : how often the
    interval holds the true ratio.

    Returns the geometric mean of the rounds' ratios; its ends are NaN below ``LEAST_PAIRS`` rounds.

    Student's t on the logarithms of the rounds' ratios (Fieller's problem avoided: Kalibera and Jones 2013 discuss
    ratios of means; pairing is Georges et al. 2007 made immune to drift). What a whole round shares, such as the
    machine's clock or a busy neighbour, cancels. Assumes that the ratios are independent from round to round and not
    too skewed; one disturbed run in few rounds widens the interval rather than moving it unseen. Who adds rounds until
    the interval is narrow, whatever it says, loses about three points of coverage (Chow and Robbins 1965) and should
    ask for ``level=0.98`` to have 0.95 (both simulated in the tests).

    Raises ValueError: the series are of different lengths, empty, or hold what is not positive.
    """
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise ValueError(f"expected two series of one length, found {len(before)} and {len(after)}")
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("expected finite values")
    if min(before.min(), after.min()) <= 0:
        raise ValueError("expected positive values")
    logs = np.log(after / before)
    n = len(logs)
    centre = float(logs.mean())
    if n < LEAST_PAIRS:
        return Ratio(float(np.exp(centre)), float("nan"), float("nan"))
    reach = student_quantile((1 + level) / 2, n - 1) * float(logs.std(ddof=1)) / n**0.5
    low, high = np.exp([centre - reach, centre + reach])
    return Ratio(float(np.exp(centre)), float(low), float(high))


class Order(NamedTuple):
    """Whether two programs differ by more than ``GAP``; ``resolved`` : that they do, or do not, is known."""

    ratio: Ratio
    differs: bool
    resolved: bool


def order_of_pairs(before: NDArray[np.float64], after: NDArray[np.float64]) -> Order:
    """Return how the two compare, looked at after any round; see :func:`ratio_of_pairs`."""
    ratio = ratio_of_pairs(before, after, level=ORDER_LEVEL)
    value, low, high = ratio if ratio.value >= 1 else (1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    differs = low >= 1 + SURELY and value >= 1 + COUNTS  # never of NaN
    return Order(ratio, differs, differs or high <= 1 + GAP + NARROW)
