"""Well-known detectors behind one small interface, for streams whose owner knows what to look for.

``update(value, at_s)`` takes one value and returns the evidence so far in units of the limit: an
alarm from 1 on. Values that are not finite change nothing. None has a clock, and none grows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Cusum", "Detector", "PageHinkley", "QuantileDrift", "RobustZ"]


class Detector(Protocol):
    """What looks at a stream, value by value."""

    def update(self, value: float, at_s: float) -> float:
        """Take one value; return the evidence in units of the limit."""


class _Scaled:
    """Location and scale of the stream, learned from values cut at three scales."""

    def __init__(self, memory: float, warm_up: int) -> None:
        self._memory = memory
        self._warm_up = warm_up
        self._first: list[float] = []
        self._centre = 0.0
        self._scale = 0.0

    def score(self, value: float, *, learn: bool = True) -> float | None:
        """Return the value in scales from the centre; None while too little is known."""
        if len(self._first) < self._warm_up:
            self._first.append(value)
            if len(self._first) == self._warm_up:
                self._centre = _median(self._first)
                self._scale = 1.4826 * _median([abs(one - self._centre) for one in self._first])
            return None
        scale = max(self._scale, abs(self._centre) * 1e-6, 1e-12)
        off = value - self._centre
        if learn:
            cut = min(max(off, -3 * scale), 3 * scale)
            self._centre += cut / self._memory
            self._scale += (1.2533 * abs(cut) - self._scale) / self._memory
        return off / scale


class RobustZ:
    """The last values' exponentially weighted mean, in robust scales (EWMA chart, Roberts 1959)."""

    def __init__(
        self,
        limit: float = 6.0,
        *,
        weight: float = 0.2,
        memory: float = 1000,
        warm_up: int = 100,
    ) -> None:
        self._limit = limit * math.sqrt(weight / (2 - weight))
        self._weight = weight
        self._mean = 0.0
        self._scaled = _Scaled(memory, warm_up)

    def update(self, value: float, at_s: float) -> float:
        """Take one value; return the evidence in units of the limit."""
        if math.isfinite(value):
            score = self._scaled.score(value, learn=abs(self._mean) < self._limit / 2)
            if score is not None:
                self._mean += self._weight * (min(max(score, -10.0), 10.0) - self._mean)
        return abs(self._mean) / self._limit


class Cusum:
    """Sums of what exceeds ``slack`` scales, up and down (Page 1954); starts anew at an alarm."""

    def __init__(
        self,
        limit: float = 12.0,
        *,
        slack: float = 0.75,
        memory: float = 1000,
        warm_up: int = 100,
    ) -> None:
        self._limit = limit
        self._slack = slack
        self._up = self._down = 0.0
        self._scaled = _Scaled(memory, warm_up)

    def update(self, value: float, at_s: float) -> float:
        """Take one value; return the evidence in units of the limit."""
        if max(self._up, self._down) >= self._limit:
            self._up = self._down = 0.0
        if math.isfinite(value):
            quiet = max(self._up, self._down) < self._limit / 2
            score = self._scaled.score(value, learn=quiet)
            if score is not None:
                score = min(max(score, -6.0), 6.0)
                self._up = max(self._up + score - self._slack, 0.0)
                self._down = max(self._down - score - self._slack, 0.0)
        return max(self._up, self._down) / self._limit


class PageHinkley:
    """How far the sum of deviations from the running mean is above its least (Hinkley 1971).

    In the values' own unit: ``slack`` is the change that does not matter, ``limit`` the sum that
    does. Upwards alone; give ``-value`` for the other direction.
    """

    def __init__(self, limit: float, *, slack: float, warm_up: int = 30) -> None:
        self._limit = limit
        self._slack = slack
        self._warm_up = warm_up
        self._begin()

    def _begin(self) -> None:
        self._n = 0
        self._mean = self._sum = self._least = 0.0

    def update(self, value: float, at_s: float) -> float:
        """Take one value; return the evidence in units of the limit."""
        if self._sum - self._least >= self._limit:
            self._begin()
        if math.isfinite(value):
            self._n += 1
            self._mean += (value - self._mean) / self._n
            if self._n > self._warm_up:
                self._sum += value - self._mean - self._slack
                self._least = min(self._least, self._sum)
        return (self._sum - self._least) / self._limit


class QuantileDrift:
    """Quantiles of the newest window against those of a reference window before it.

    The difference is taken in units of what a quantile of so many independent values varies by:
    sqrt(q (1 - q) / n) of the probability, looked up in the reference (a distribution-free bound).
    """

    def __init__(
        self,
        quantiles: Sequence[float] = (0.5, 0.9, 0.99),
        *,
        window: int = 200,
        reference: int = 1000,
        limit: float = 5.0,
        every: int = 20,
    ) -> None:
        self._quantiles = tuple(quantiles)
        self._new: deque[float] = deque(maxlen=window)
        self._old: deque[float] = deque(maxlen=reference)
        self._limit = limit
        self._every = every
        self._n = 0
        self._evidence = 0.0

    def update(self, value: float, at_s: float) -> float:
        """Take one value; return the evidence in units of the limit."""
        if not math.isfinite(value):
            return self._evidence
        if len(self._new) == self._new.maxlen and self._evidence < 1:
            self._old.append(self._new[0])
        self._new.append(value)
        self._n += 1
        if self._n % self._every == 0 and len(self._old) == self._old.maxlen:
            self._evidence = self._compare()
        return self._evidence

    def _compare(self) -> float:
        old, n = sorted(self._old), len(self._new)
        worst = 0.0
        for q in self._quantiles:
            # the share of new values above the old quantile, against what it should be; values
            # equal to it may count on either side
            edge = old[int(q * (len(old) - 1))]
            above = sum(value > edge for value in self._new) / n - (1 - q)
            below = sum(value < edge for value in self._new) / n - q
            varies = math.sqrt(q * (1 - q) * (1 / n + 1 / len(old)))
            worst = max(worst, above / varies, below / varies)
        return worst / self._limit


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
