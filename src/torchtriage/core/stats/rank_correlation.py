"""Do two things rise together, whatever the shape of the curve: Spearman's rank correlation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.rank_tests import mean_ranks

MIN_PAIRS = 10
"""The interval of Bonett and Wright holds what it promises from about here on."""
Z = 1.959964


class RankCorrelation(NamedTuple):
    """Spearman's rho and its 95 % interval."""

    rho: float
    low: float
    high: float


def rank_correlation(first: Floats, second: Floats) -> RankCorrelation:
    """Return Spearman's rho of pairs, ties at their mean rank, with a 95 % interval.

    ``first``, ``second`` : float64[n], pairs, which must be independent: one for each model, not one for each step.

    Raises ValueError: fewer than ``MIN_PAIRS`` pairs, values that are not finite, or a side that is constant.

    Fisher's transform with the variance ``(1 + rho^2 / 2) / (n - 3)`` of Bonett and Wright (2000), Psychometrika 65,
    23-28. Coverage falls short where ``|rho|`` exceeds 0.9; ties, as counts of graphs have many, make it somewhat less
    precise.
    """
    if len(first) != len(second) or len(first) < MIN_PAIRS:
        raise ValueError(f"expected {MIN_PAIRS} or more pairs, found {min(len(first), len(second))}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("expected finite values")
    ranks = [mean_ranks(first), mean_ranks(second)]
    if any(np.ptp(each) == 0 for each in ranks):
        raise ValueError("all values of one side are equal")
    rho = float(np.clip(np.corrcoef(ranks[0], ranks[1])[0, 1], -1.0, 1.0))
    if abs(rho) > 1 - 1e-12:
        return RankCorrelation(rho, rho, rho)
    error = Z * math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
    middle = math.atanh(rho)
    return RankCorrelation(rho, math.tanh(middle - error), math.tanh(middle + error))
