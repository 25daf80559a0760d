"""How far a difference between two series of step times can be trusted.

Steps follow each other: a slow one is often followed by a slow one (clocks, caches, neighbours on the machine), so they
must not be shuffled one by one. Blocks of consecutive steps are resampled instead, as long as the series' own memory,
and the interval is widened for the few blocks that a recording holds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats

N_RESAMPLES = 2000
"""Ends of a 95 % interval move by about 2 % of its width from seed to seed."""
MIN_STEPS = 2
"""One value says nothing about how much values vary."""


class Interval(NamedTuple):
    """Ends of an interval, float64[k]; NaN where there are too few values to tell."""

    low: Floats
    high: Floats


def difference_of_means(before: Floats, after: Floats, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return where the difference of the means, after minus before, lies.

    ``before``, ``after`` : float64[n, k] and float64[m, k], consecutive values (rows) of ``k`` quantities that share
    their moments, such as the parts of a step. Any unit. ``level`` : how often the interval holds the true difference.
    ``seed`` : equal input and seed give equal output; swapped series give the mirrored interval.

    The result is in the unit of the input; NaN with fewer than 2 values on a side.

    Assumes that each series is stationary with a memory much shorter than itself, and that the two are independent. The
    standard error is that of a circular block bootstrap (Politis and Romano 1992) with Carlstein's block length (1986);
    the interval is Student's with the degrees of freedom of Welch (1947), counting blocks in place of values, because
    resamples of a few steps have too short tails (Hesterberg 2015). Where the assumption fails, a drift within a series
    widens the interval, but a change between two recordings of one program (another machine state) cannot be seen from
    inside them: callers add an allowance for that.
    """
    k = before.shape[1]
    if min(len(before), len(after)) < MIN_STEPS:
        return Interval(np.full(k, np.nan), np.full(k, np.nan))
    # one orientation for both orders of the arguments, so that swapping mirrors exactly
    if (len(after), after.tobytes()) < (len(before), before.tobytes()):
        low, high = difference_of_means(after, before, level=level, seed=seed)
        return Interval(-high, -low)
    rng = np.random.default_rng(seed)
    (from_, var_b, df_b), (to, var_a, df_a) = (_spread(values, rng) for values in (before, after))
    total = var_b + var_a
    # Welch and Satterthwaite: the side that varies more has the say
    weight = var_b**2 / df_b + var_a**2 / df_a
    df = np.divide(total**2, weight, out=np.full(k, df_b + df_a), where=weight > 0)
    known: dict[float, float] = {}
    reach = np.sqrt(total) * [
        known.setdefault(item, student_quantile((1 + level) / 2, item)) for item in np.round(df, 1).tolist()
    ]
    return Interval(to - from_ - reach, to - from_ + reach)


def block_length(values: Floats) -> int:
    """Return how many consecutive values to keep together, 1 for values without memory.

    Carlstein (1986): ``(2 r / (1 - r^2))^(2/3) n^(1/3)`` is optimal for the mean of a first-order autoregression with
    lag-one correlation ``r``. At most a third of the series.
    """
    n = len(values)
    centred = values - values.mean() if n else values
    power = float((centred * centred).sum())
    if n < 6 or power <= 0:
        return 1
    # the estimate is biased towards zero by about (1 + 3 r) / n (Marriott and Pope 1954)
    raw = float((centred[1:] * centred[:-1]).sum()) / power
    r = min(max(raw + (1 + 3 * raw) / n, 0.0), 0.95)
    # nothing to remember: 1.6 standard errors of a correlation that is none
    if raw < 1.6 / np.sqrt(n):
        r = max(raw, 0.0)
    length = (2 * r / (1 - r * r)) ** (2 / 3) * n ** (1 / 3)
    return int(np.clip(round(length), 1, max(n // 3, 1)))


@lru_cache(maxsize=1024)
def student_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t, for ``df`` from 1 to 200 (more are as good as normal).

    With ``x = sqrt(df) tan(a)`` the density is ``cos(a)^(df - 1)``; integrated by the trapezoid rule, which is right to
    four digits for probabilities from 0.001 to 0.999.
    """
    df = min(max(df, 1.0), 200.0)
    angle = np.linspace(0.0, np.pi / 2, 4001)
    density = np.cos(angle) ** (df - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    found = np.interp(2 * abs(probability - 0.5), area / area[-1], angle)
    return float(np.copysign(np.sqrt(df) * np.tan(found), probability - 0.5))


def student_tail(t: float, df: float) -> float:
    """Return the chance of Student's t to be above ``t``, for any ``df`` from 1 on.

    The same integral, from ``t`` on and to where nothing is left: four digits down to 1e-12.
    """
    if t < 0:
        return 1 - student_tail(-t, df)

    def area(start: float) -> float:
        angle = np.linspace(start, min(np.pi / 2, start + 40 / np.sqrt(df)), 4001)
        density = np.cos(angle) ** (df - 1)
        return float((density[1:] + density[:-1]).sum() / 2 * (angle[1] - angle[0]))

    return area(float(np.arctan(t / np.sqrt(df)))) / area(0.0) / 2


def _means(values: Floats, picks: NDArray[np.int64]) -> Floats:
    # how often each value was drawn, as one matrix product: quantities share their draws
    n_draws, n = len(picks), len(values)
    flat = (picks + np.arange(n_draws)[:, None] * n).ravel()
    counts = np.bincount(flat, minlength=n_draws * n).reshape(n_draws, n)
    return counts @ values / picks.shape[1]


def _spread(values: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Return the mean, its variance over resamples, and the degrees of freedom of that."""
    n = len(values)
    # parts of a step share its blocks
    length = block_length(values.sum(axis=1))
    n_blocks = n / length
    starts = rng.integers(0, n, (N_RESAMPLES, -(-n // length)))
    picks = ((starts[:, :, None] + np.arange(length)) % n).reshape(N_RESAMPLES, -1)[:, :n]
    # resamples of m blocks vary by (m - 1) / m too little
    variance = _means(values, picks).var(axis=0) * n_blocks / (n_blocks - 1)
    return _means(values, np.arange(n)[None, :])[0], variance, n_blocks - 1
