"""Each session of a series as one number, all sessions of one length at once.

``stats.sessions.session_value`` says what the statistics are; a test holds these to it. A check of hundreds of
metrics sums up tens of thousands of sessions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats, distinct
from torchtriage.core.samples import Series
from torchtriage.core.stats.session_comparison import LOW, QUANTILES


class SessionTable:
    """The values of a series as arrays, sessions of one length together.

    ``parts`` : places of sessions, and their values as float64[n, length] in the unit of the series.
    """

    def __init__(self, series: Series) -> None:
        lengths = np.array([len(session.values) for session in series.sessions])
        self.series = series
        self.parts: list[tuple[NDArray[np.int64], Floats]] = []
        for length in distinct(lengths):
            places = np.flatnonzero(lengths == length)
            matrix = np.array([series.sessions[at].values for at in places])
            self.parts.append((places, matrix))
        self.least = min(float(matrix.min()) for _, matrix in self.parts)
        self.most = max(float(matrix.max()) for _, matrix in self.parts)

    def values(self, statistic: str) -> Floats:
        """Return the statistic of each session, in the unit of the series.

        Where more is better, ``low`` and the tails are those of the inverse: of a throughput, its best tenth. A
        ``count`` is the worst of its session.
        """
        out = np.empty(len(self.series.sessions))
        inverse = self.series.better == "higher" and self.least > 0
        for places, matrix in self.parts:
            if statistic == "count":
                fewest = self.series.better == "higher"
                out[places] = matrix.min(axis=1) if fewest else matrix.max(axis=1)
                continue
            out[places] = 1 / _summed_up(1 / matrix, statistic) if inverse else _summed_up(matrix, statistic)
        return out

    def costs(self, statistic: str) -> Floats:
        """Return the statistic of each session so that more is worse; values are above zero."""
        values = self.values(statistic)
        return values if self.series.better == "lower" else 1 / values

    def slow_share(self, factor: float) -> tuple[int, int]:
        """Return how many values are ``factor`` times their session's median, and of how many."""
        several = [matrix for _, matrix in self.parts if matrix.shape[1] > 1]
        n_slow = sum(int((matrix > factor * np.median(matrix, axis=1, keepdims=True)).sum()) for matrix in several)
        return n_slow, sum(matrix.size for matrix in several)


def _summed_up(matrix: Floats, statistic: str) -> Floats:
    if statistic in QUANTILES:
        # as in stats.quantiles.session_quantile
        return np.quantile(matrix, QUANTILES[statistic], axis=1, method="median_unbiased")
    if statistic == "low":
        n_low = max(int(LOW * matrix.shape[1]), 1)
        return np.partition(matrix, n_low - 1, axis=1)[:, :n_low].mean(axis=1)
    if statistic == "median":
        return np.asarray(np.median(matrix, axis=1))
    return matrix.mean(axis=1) if statistic == "mean" else matrix.max(axis=1)
