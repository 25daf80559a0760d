"""Where a tail quantile lies, when enough values are there to say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.difference import block_length, student_quantile


class QuantileInterval(NamedTuple):
    """A quantile and the ends of its interval, in the unit of the values; NaN where unknown."""

    value: float
    low: float
    high: float


def least_values(q: float) -> int:
    """Return how many values a session needs for quantile ``q``: 20 for P95, 100 for P99.

    With fewer, not even one value is expected beyond it and the estimate is the extreme.
    """
    if not 0 < q < 1:
        raise ValueError(f"expected a quantile between 0 and 1, found {q}")
    return math.ceil(round(1 / min(q, 1 - q), 6))


def check_enough(n: int, q: float) -> None:
    """Raise a ValueError if ``n`` values are too few for quantile ``q``."""
    if n < least_values(q):
        raise ValueError(f"expected at least {least_values(q)} values per session for P{100 * q:g}, found {n}")


def session_quantile(values: Floats, q: float) -> float:
    """Return the quantile that is as good as unbiased at the median, for any distribution.

    Hyndman and Fan (1996), their definition 8.
    """
    return float(np.quantile(values, q, method="median_unbiased"))


def quantile_interval(sessions: Sequence[Floats] | Floats, q: float, level: float = 0.95) -> QuantileInterval:
    """Return quantile ``q`` of one session, or of a typical one of several, and its interval.

    ``sessions`` : float64[n], or a sequence of them, the values of each session in the order they were measured,
    warm-up left out. ``q`` : 0.95 for P95. ``level`` : how often the interval holds the true quantile.

    Several sessions: Student's t on the logarithm of each session's quantile; the geometric mean over sessions, so that
    one bad process does not set it. One session: order statistics; how many values lie below the quantile is binomial
    (Conover 3.2), here with the number of independent values that the session's memory leaves (blocks as in
    ``difference.block_length``). An end beyond the extremes is NaN: nothing was seen there. P95 has an upper end from
    72 values on, P99 from 368.

    Raises ValueError: fewer than :func:`least_values` in any session, or values that are not finite or, with several
    sessions, not positive.
    """
    if isinstance(sessions, np.ndarray) and sessions.ndim == 1:
        sessions = [sessions]
    arrays = [np.asarray(session, dtype=np.float64) for session in sessions]
    if not arrays:
        raise ValueError("expected at least one session, found none")
    for array in arrays:
        check_enough(len(array), q)
        if not np.isfinite(array).all():
            raise ValueError("expected finite values")
    if len(arrays) == 1:
        return _within_session(arrays[0], q, level)
    if min(array.min() for array in arrays) <= 0:
        raise ValueError("expected positive values")
    return interval_over_sessions(np.array([session_quantile(array, q) for array in arrays]), level)


def interval_over_sessions(quantiles: Floats, level: float = 0.95) -> QuantileInterval:
    """Return what :func:`quantile_interval` says of several sessions, from each one's quantile.

    ``quantiles`` : float64[n], above zero, of two sessions or more.
    """
    logs = np.log(quantiles)
    centre, n = float(logs.mean()), len(logs)
    reach = student_quantile((1 + level) / 2, n - 1) * float(logs.std(ddof=1)) / n**0.5
    return QuantileInterval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _within_session(values: Floats, q: float, level: float) -> QuantileInterval:
    n = len(values)
    value = session_quantile(values, q)
    # what is above and what is below come in runs: as many independent values as blocks of them
    n_free = max(n // block_length((values > value).astype(np.float64)), 1)
    below = _binomial_below(n_free, q)
    # P(fewer than k values below the quantile), for k = 0 ... n_free
    before = np.concatenate([[0.0], below])
    k_low = int(np.searchsorted(before, (1 - level) / 2, side="right")) - 1
    k_high = int(np.searchsorted(before, (1 + level) / 2))
    ordered = np.sort(values)
    low, high = (k_low - 1) * n // n_free, -(-k_high * n // n_free) - 1
    return QuantileInterval(
        value, float(ordered[low]) if k_low >= 1 else math.nan, float(ordered[high]) if k_high <= n_free else math.nan
    )


def _binomial_below(n: int, chance: float) -> Floats:
    k = np.arange(n + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    ways = log_factorial[n] - log_factorial - log_factorial[::-1]
    return np.cumsum(np.exp(ways + k * math.log(chance) + (n - k) * math.log1p(-chance)))
