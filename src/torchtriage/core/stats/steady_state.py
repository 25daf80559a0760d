"""Where warm-up ends, or that a series never becomes steady."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.trend import sen_slope

LEAST_VALUES = 10
"""Fewer say nothing about what is steady."""
TOLERANCE = 0.03
"""Stretches whose levels are this close are one."""
LEAST_SHARE = 0.25
"""Of the series that must be steady: the last 500 of 2000 in Barrett et al."""
SHARE_AFTER_WANDERING = 0.5
"""... where its level went up and down before: it may do so again."""
GROWTH = 1.03
"""Bins grow by this with their place, which is then known to so much."""
PENALTY = 15.0
"""For each further stretch, times the logarithm of the number of bins (Barrett et al. 2017)."""


class Steady(NamedTuple):
    """Where the steady state begins.

    ``begin`` : index of the first steady value; None where there is no steady state. ``level`` : median of the steady
    values, or of the last quarter without. ``reason`` : why there is none, empty otherwise.
    """

    begin: int | None
    level: float
    reason: str


def find_steady(times: NDArray[np.floating] | NDArray[np.integer]) -> Steady:
    """Return where the steady state of a series of positive values begins.

    ``times`` : float64[n] or int64[n], times of consecutive steps from the very first one, in any unit.

    After Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows Hot and Cold" (OOPSLA 2017):
    change points by penalised likelihood cut the series into stretches; stretches at its end whose levels are
    equivalent are the steady state, if they are a quarter of the series or more (half, where levels went up and down
    before). Three changes make it fit for short and for very long series: values are binned, each bin 3 % longer than
    what lies before it allows, because the end of warm-up is wanted relative to its length; levels are medians, so rare
    outliers make no stretch; and equivalent means within 3 % rather than within a fixed time. A steady state whose last
    half still drifts is none. Assumes a memory of few steps; where steps are alike over long stretches by chance, there
    is no steady state, and none is found.

    Raises ValueError: a value is not finite and positive.
    """
    values = np.asarray(times, float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("expected finite positive times")
    n = len(values)
    if n < LEAST_VALUES:
        level = float(np.median(values)) if n else float("nan")
        return Steady(None, level, f"{n} steps are too few to decide")
    logs = np.log(values)
    edges = _edges(n)
    width = np.diff(edges).astype(float)
    middle = _medians(logs, edges)
    noise = _noise(middle, width)
    cuts = _partition(middle, width, noise)
    levels = [_level(logs, edges[a], edges[b]) for a, b in pairwise(cuts)]
    first = len(levels) - 1
    final = levels[-1]
    while first and abs(levels[first - 1] - final) <= np.log1p(TOLERANCE):
        first -= 1
        final = _level(logs, edges[cuts[first]], n)
    begin = int(edges[cuts[first]])
    if first:
        begin = _along_decay(middle, width, edges, cuts, first)
    begin = _past_outliers(logs, begin, final)
    moves = np.diff([*levels[: first + 1], final])
    moves = moves[np.abs(moves) > np.log1p(TOLERANCE)]
    share = LEAST_SHARE if (moves > 0).all() or (moves < 0).all() else SHARE_AFTER_WANDERING
    if n - begin < max(share * n, LEAST_VALUES / 2):
        return Steady(None, float(np.exp(final)), "its level still changes near the end")
    if _drifts(logs[begin + (n - begin) // 2 :]):
        return Steady(None, float(np.exp(final)), "it still drifts at the end")
    return Steady(begin, float(np.median(values[begin:])), "")


def _edges(n: int) -> NDArray[np.int64]:
    """Return where bins begin, and the end: one value each at first, growing with their place."""
    edges = [0]
    while edges[-1] < n:
        edges.append(max(edges[-1] + 1, int(edges[-1] * GROWTH)))
    edges[-1] = n
    return np.array(edges)


def _medians(values: Floats, edges: NDArray[np.int64]) -> Floats:
    return np.array([np.median(values[a:b]) for a, b in pairwise(edges)], dtype=float)


def _level(logs: Floats, begin: int, end: int) -> float:
    return float(np.median(logs[begin:end]))


def _noise(middle: Floats, width: Floats) -> float:
    """Return the standard deviation of one value about its level, robust against changes of it."""
    steps = np.diff(middle) / np.sqrt(1 / width[1:] + 1 / width[:-1])
    spread = float(np.median(np.abs(steps))) / 0.6745
    # the clock ticks: values that are all equal still have an uncertain level
    return max(spread, 1e-3)


def _partition(middle: Floats, width: Floats, noise: float) -> list[int]:
    """Return where stretches of one level begin, in bins, and the end (optimal partitioning).

    Residuals are squared up to three standard deviations and linear beyond in effect: bins are clipped at that distance
    from the median of their neighbours first, so one slow step is none.
    """
    n = len(middle)
    around = np.array([np.median(middle[max(i - 2, 0) : i + 3]) for i in range(n)])
    # the first steps have no neighbours that could distinguish them from outliers: kept as they are
    reach = 3 * noise / np.sqrt(width)
    clean = np.clip(middle, around - reach, around + reach)
    clean[:3] = middle[:3]
    weight = width / noise**2
    sums = np.concatenate([[0.0], np.cumsum(weight)])
    firsts = np.concatenate([[0.0], np.cumsum(weight * clean)])
    seconds = np.concatenate([[0.0], np.cumsum(weight * clean**2)])
    best = np.zeros(n + 1)
    best[0] = -PENALTY * np.log(n)
    last = np.zeros(n + 1, int)
    for end in range(1, n + 1):
        held = sums[end] - sums[:end]
        misfit = seconds[end] - seconds[:end] - (firsts[end] - firsts[:end]) ** 2 / held
        total = best[:end] + misfit + PENALTY * np.log(n)
        last[end] = int(total.argmin())
        best[end] = total[last[end]]
    cuts = [n]
    while cuts[-1]:
        cuts.append(int(last[cuts[-1]]))
    return cuts[::-1]


def _along_decay(middle: Floats, width: Floats, edges: NDArray[np.int64], cuts: list[int], first: int) -> int:
    """Return where the steady state begins, if its approach is smooth rather than a step.

    Stretches cut an exponential approach ``c + a exp(-t / tau)`` at places of their own. Where it fits better than they
    do around the last cut, with the fewer parameters, the steady state begins where it comes within the tolerance of
    its end.
    """
    begin = int(edges[cuts[first]])
    from_ = int(np.searchsorted(edges[:-1], max(begin // 4, 2)))
    at = ((edges[1:] + edges[:-1] - 1) / 2)[from_:]
    if len(at) < 8:
        return begin
    values, weight = middle[from_:], width[from_:]
    steps = np.zeros(len(values))
    bounds = [max(cut, from_) for cut in cuts]
    for a, b in pairwise(bounds):
        if b > a:
            inside = slice(a - from_, b - from_)
            steps[inside] = np.average(values[inside], weights=weight[inside])
    best, place = float(_misfit(values - steps, weight)), begin
    for tau in begin * np.geomspace(0.05, 1.0, 25):
        shape = np.exp(-(at - at[0]) / tau)
        centre = np.average(shape, weights=weight)
        spread = float((weight * (shape - centre) ** 2).sum())
        if spread <= 0:
            continue
        height = float((weight * (shape - centre) * values).sum()) / spread
        level = float(np.average(values, weights=weight)) - height * centre
        misfit = float(_misfit(values - level - height * shape, weight))
        if misfit < best and abs(height) > np.log1p(TOLERANCE):
            best = misfit
            place = round(at[0] + tau * np.log(abs(height) / np.log1p(TOLERANCE)) + 0.5)
    return min(place, int(edges[-1]) - 1)


def _misfit(left: Floats, weight: Floats) -> float:
    # single bins that are off say nothing about the shape
    return float((weight * np.minimum(left**2, 9 * np.average(left**2, weights=weight))).sum())


def _past_outliers(logs: Floats, begin: int, level: float) -> int:
    rest = logs[begin:]
    spread = float(np.median(np.abs(rest - level))) / 0.6745
    reach = max(4 * spread, np.log1p(2 * TOLERANCE))
    off = np.abs(rest - level) > reach
    return begin + (int(off.argmin()) if not off.all() else 0)


def _drifts(logs: Floats) -> bool:
    """Whether values still go one way: a robust line through blocks, clear of level."""
    n_blocks = min(20, len(logs) // 2)
    if n_blocks < 5:
        return False
    edges = np.linspace(0, len(logs), n_blocks + 1).astype(int)
    line = sen_slope((edges[1:] + edges[:-1]) / 2.0, _medians(logs, edges), z=3.0)
    change = abs(line.slope) * len(logs)
    return bool(change > TOLERANCE / 3 and line.low * line.high > 0)
