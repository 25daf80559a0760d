"""Where the level of a benchmark's history changed.

Split generously, merge strictly, as Hunter and apache/otava do (Fleming et al. 2023): a partition of least squares
proposes changes, then the weakest is taken back until each of those that are left is significant. The test knows that
the place was chosen among many, and how long the noise's memory is. No random numbers: the same history always gives
the same answer.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.difference import student_tail

PROPOSE = 1.5
"""A proposed change must explain this many times ``log(n)`` variances: 2 is Yao's (1988)."""
REACH = 2
"""Values on either side that decide whether one between them is an outlier."""
OUTLIER = 3.0
"""Deviations from the median of its neighbours at which an outlier is cut off."""

BACK, AHEAD = 24, 12
"""Values before and after a change in which it has to be visible: those of Perfherder, whose limit on t is 7."""

RESOLUTION = 1e-9
"""Shares below this are rounding, in histories without noise."""


class ChangePoint(NamedTuple):
    """A change of level: value number ``at`` (from 0) is the first of the new one.

    ``before``, ``after`` : geometric means of the stretches on either side, outliers cut off, in the unit of the
    values. ``ratio`` : after over before. ``p_value`` : the chance of such a change somewhere in the two stretches if
    nothing changed.
    """

    at: int
    before: float
    after: float
    ratio: float
    p_value: float


def find(
    values: Floats, *, min_effect: float = 0.0, risk: float = 0.003, min_size: int = 4, least_t: float = 0.0
) -> tuple[ChangePoint, ...]:
    """Return the changes of level, first to last.

    ``values`` : float64[n], one positive value per commit, in order; NaN where there was none. ``min_effect`` : changes
    of a smaller share are of no interest. ``risk`` : the chance of a false change in a history without any, at one
    look. Looking again after every commit multiplies it; docs/statistics.md has the figures. ``min_size`` : fewest
    values between two changes, and after the last. ``least_t`` : of Student's t of up to 24 values before a change and
    12 after: what is smaller does not stand out of the noise around it, or did not last.

    Returns nothing with fewer than ``2 * min_size`` values, or where all values are alike.

    Works on logarithms. Single outliers are cut off at 3 deviations from the median of five neighbours (Hampel 1974).
    Partition: Jackson et al. (2005). Test: Student's t with the variance pooled over all stretches, and for the choice
    of place the factor of Miller and Siegmund (1982) for the maximum of the standardised differences. Noise with a
    memory is allowed for by the variance of means under a first-order autoregression where the residuals show one. A
    host that jumps between states is not noise of that kind: its jumps are found, as changes. Measure such histories
    against a reference in the same rounds.

    Raises ValueError: infinite values, or values that are not positive.
    """
    if not 0 < risk < 1 or min_size < 2 or not min_effect >= 0:
        raise ValueError(
            f"expected a risk of 0 to 1, a min_size from 2 and a min_effect from 0, found {risk},"
            f" {min_size} and {min_effect}"
        )
    values = np.asarray(values, dtype=np.float64)
    places = np.flatnonzero(~np.isnan(values))
    known = values[places]
    if np.isinf(known).any():
        raise ValueError("expected finite values, found inf")
    if len(known) and known.min() <= 0:
        raise ValueError(f"expected positive values, found {known.min():g}")
    if len(known) < max(2 * min_size, 2 * REACH + 2):
        return ()
    logs = _without_outliers(np.log(known))
    cuts = _partition(logs, min_size)
    found: list[ChangePoint] = []
    while cuts:
        found = _describe(logs, cuts, places, min_size)
        small = [abs(math.log(item.ratio)) < math.log1p(min_effect) for item in found]
        weakest = max(range(len(cuts)), key=lambda i: (small[i], found[i].p_value))
        if not small[weakest] and found[weakest].p_value <= risk:
            break
        del cuts[weakest]
    while cuts and min(seen := _stands_out(np.log(known), cuts)) < least_t:
        weakest = seen.index(min(seen))
        del cuts[weakest], found[weakest]
    return tuple(found) if cuts else ()


def _describe(logs: Floats, cuts: list[int], places: NDArray[np.int64], least: int) -> list[ChangePoint]:
    n = len(logs)
    edges = [0, *cuts, n]
    means = [float(logs[a:b].mean()) for a, b in pairwise(edges)]
    left = logs - np.repeat(means, np.diff(edges))
    df = n - len(means)
    variance = max(float((left**2).sum()) / df * _memory(left), RESOLUTION**2)
    out = []
    for i, cut in enumerate(cuts):
        n_before, n_after = cut - edges[i], edges[i + 2] - cut
        step = means[i + 1] - means[i]
        t = abs(step) / math.sqrt(variance * (1 / n_before + 1 / n_after))
        # P(max > t) of Miller and Siegmund, its normal density read as Student's tail
        nearest = least / (n_before + n_after)
        choices = (t * t - 1) * math.log(1 / nearest - 1) + 2
        chance = 2 * student_tail(t, df) * max(choices, 1.0)
        before, after = math.exp(means[i]), math.exp(means[i + 1])
        out.append(ChangePoint(int(places[cut]), before, after, math.exp(step), min(chance, 1.0)))
    return out


def _memory(left: Floats) -> float:
    """Return by how much the variance of a long mean exceeds that of independent values."""
    n, power = len(left), float((left**2).sum())
    if not power:
        return 1.0
    raw = float((left[1:] * left[:-1]).sum()) / power
    if raw < 1.6 / math.sqrt(n):  # as good as none
        return 1.0
    # biased towards zero by about (1 + 3 r) / n (Marriott and Pope 1954)
    r = min(raw + (1 + 3 * raw) / n, 0.9)
    return (1 + r) / (1 - r)


def _stands_out(logs: Floats, cuts: list[int]) -> list[float]:
    """Return Student's t of the values around each change, from the change before it on.

    What comes soon after it counts, whatever it is: a level that did not last is no level. Outliers are noise, too.
    """
    found = []
    for begin, cut in pairwise([0, *cuts]):
        before, after = logs[max(begin, cut - BACK) : cut], logs[cut : cut + AHEAD]
        squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
        variance = max(squares / (len(before) + len(after) - 2), RESOLUTION**2)
        error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
        found.append(abs(float(after.mean() - before.mean())) / error)
    return found


def _deviation(logs: Floats) -> float:
    """Return the noise as differences of neighbours show it, which a few changes do not touch.

    Their 80th percentile: one value in ten may be an outlier. The median would take noise that jumps between two states
    at random for calm with outliers.
    """
    return float(np.quantile(np.abs(np.diff(logs)), 0.8)) / 1.2816 / math.sqrt(2)


def _without_outliers(logs: Floats) -> Floats:
    around = np.lib.stride_tricks.sliding_window_view(np.pad(logs, REACH, mode="reflect"), 2 * REACH + 1)
    middle = np.median(around, axis=1)
    reach = OUTLIER * _deviation(logs)
    return np.clip(logs, middle - reach, middle + reach) if reach else logs


def _partition(logs: Floats, min_size: int) -> list[int]:
    """Return where to cut so that squares around the stretches' means plus a penalty are least."""
    n = len(logs)
    penalty = PROPOSE * math.log(n) * max(_deviation(logs), RESOLUTION) ** 2
    sums = np.concatenate([[0.0], np.cumsum(logs - logs.mean())])
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    last = np.zeros(n + 1, dtype=np.int64)
    for end in range(min_size, n + 1):
        # the sum of squares is the same for every partition: only the means' part is compared
        length = end - np.arange(end - min_size + 1)
        total = best[: len(length)] + penalty - (sums[end] - sums[: len(length)]) ** 2 / length
        last[end] = total.argmin()
        best[end] = total[last[end]]
    cuts: list[int] = []
    end = int(last[n])
    while end:
        cuts.append(end)
        end = int(last[end])
    return cuts[::-1]
