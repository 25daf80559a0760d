"""Charts of exponentially weighted means whose limits are learned, one per direction.

The mean of the last values is compared with how far such means strayed while all was well. A limit that is learned
this way needs no assumption of independence: a stream that wanders slowly has wide limits for long spans by itself
(Roberts 1959 for the chart; the learned limit stands in for his sqrt(span / (2 - span)), which is kept as the least
it can be). What is learned is some hundred values old: a change cannot teach that it is usual before it was seen.
"""

from __future__ import annotations

import math
from collections import deque

MEMORY = 2_000  # values over which limits are learned
LEARN_EVERY = 4  # means of neighbours are nearly equal: every fourth teaches as much as all, at a quarter of the time
QUARANTINE = 200  # values for which a lesson waits; what is to be found lasts as long, or is large
# spans a chart must have seen before its learned limit is believed to be smaller than half the
# next shorter one's variance
FULL_AVERAGING = 8.0
PRIOR = 10  # lessons that the assumed variance of 1 counts for
PART = 0.6  # of the limit, at which rises are counted
RARE = 1e-5  # rises per value beyond the limit that are aimed at
BRIEF = 200  # values that a swing lasts at most; what lasts longer is a change
SWING_PRIOR = 100  # values added to those seen, so that one early rise is no rate
SWING_MEMORY = 5_000
FIRST_EXCESS, EXCESS_PRIOR = 0.15, 4  # mean excess of a normal stream's rises, and the rises that it counts for
LARGE_EXCESS, EXCESS_MEMORY = 4.0, 200
TINY = 1e-9


class Charts:
    """Charts of several spans over one stream of bounded values.

    ``weights`` : weight of the newest value in each chart, falling: 1/20 looks back at about 40 values.
    ``limit`` : standard deviations a mean may stray.
    ``matters`` : for each chart, what its mean must reach in any case, up and down.
    ``young`` : how much wider limits are while little was seen: by ``young / sqrt(spans seen)``.
    """

    def __init__(
        self,
        weights: tuple[float, ...],
        limit: float,
        *,
        matters: tuple[tuple[float, float], ...] | None = None,
        young: float = 1.0,
    ) -> None:
        self._weights = weights
        matters = matters or ((0.0, 0.0),) * len(weights)
        self._spans = tuple((weight, *pair) for weight, pair in zip(weights, matters, strict=True))
        self._limit = limit
        self._young = young
        self._means = [0.0] * len(weights)
        self._waiting: deque[tuple[float, tuple[float, ...]]] = deque()
        self._above = [0.0] * len(weights)  # mean squares of the means above zero, doubled
        self._below = [0.0] * len(weights)
        self._limits = [(math.inf, math.inf)] * len(weights)
        self._variance = 1.0
        self._centre = 0.0
        self._n = 0
        self._turn = 0

    def update(
        self, value: float, *, learn: bool, unit: float = 1.0, wider: tuple[float, float] = (1.0, 1.0)
    ) -> tuple[float, float, float]:
        """Take one value; return the most telling chart's evidence and mean, and the evidence by limits not widened.

        Evidence is signed, and 1 at the limit. ``learn`` from the value unless it may be part of what is to be found.
        ``unit`` : what one of ``matters`` is, in the values' own unit. ``wider`` : factors of the limits, up and down.
        """
        value -= self._centre
        best, mean_then, narrow, narrow_mean = 0.0, 0.0, 0.0, 0.0
        wider_up, wider_down = wider
        means, limits = self._means, self._limits
        for at, (weight, up, down) in enumerate(self._spans):
            mean = means[at]
            means[at] = mean = mean + weight * (value - mean)
            if mean < 0:
                size, limit, least = -mean, limits[at][1], unit * down
                evidence = size / limit
                wide = evidence / wider_down
            else:
                size, limit, least = mean, limits[at][0], unit * up
                evidence = size / limit
                wide = evidence / wider_up
            if size < least:
                matters = size / least
                evidence = (evidence if evidence < 1.0 else 1.0) * matters
                wide = (wide if wide < 1.0 else 1.0) * matters
            if evidence > narrow:
                narrow, narrow_mean = evidence, mean
            if wide > best:
                best, mean_then = wide, mean
        if learn:
            self._n += 1
            self._turn += 1
            if self._turn == LEARN_EVERY:
                self._turn = 0
                self._waiting.append((value, tuple(means)))
                # the first are taken at once: limits are needed to begin with
                if len(self._waiting) * LEARN_EVERY > QUARANTINE or self._n <= QUARANTINE:
                    self._learn(*self._waiting.popleft())
        return -best if mean_then < 0 else best, mean_then, -narrow if narrow_mean < 0 else narrow

    def forget_means(self) -> None:
        """Start the means anew: what they were compared with has changed."""
        self._means = [0.0] * len(self._weights)
        self._waiting.clear()

    def _learn(self, value: float, means: tuple[float, ...]) -> None:
        n = self._n / LEARN_EVERY
        slowest = LEARN_EVERY / MEMORY
        rate = max(1 / (n + PRIOR), slowest)
        self._centre += rate * value
        self._variance += rate * (value * value - self._variance)
        above, below = self._above, self._below
        shorter_above = shorter_below = 0.0
        for at, weight in enumerate(self._weights):
            mean = means[at]
            independent = 0.7 * weight / (2 - weight) * self._variance
            spans = max(self._n * weight / 2, 1)
            slowly = max(1 / n, min(slowest, weight / 10 * LEARN_EVERY))
            up = above[at] if above[at] > independent else independent
            down = below[at] if below[at] > independent else independent
            if spans < FULL_AVERAGING and at:
                up, down = max(up, shorter_above / 2), max(down, shorter_below / 2)
            square = mean * mean
            above[at] += slowly * ((0.0 if mean < 0 else 2 * min(square, 9 * up)) - above[at])
            below[at] += slowly * ((2 * min(square, 9 * down) if mean < 0 else 0.0) - below[at])
            wide = self._limit * (1 + self._young / math.sqrt(spans))
            self._limits[at] = (wide * math.sqrt(up + TINY), wide * math.sqrt(down + TINY))
            shorter_above, shorter_below = up, down


class Swings:
    """How much wider limits must be, by how often means rise to a part of them and how far they go then.

    What rises beyond a threshold exceeds it by an amount that falls off exponentially (Pickands 1975), so that the
    rate of rises to ``PART`` of the limit and their mean excess say at what multiple of it alarms would be rare. A
    stream that lies still keeps the limit; one that scatters widely, or whose values come in runs, gets a wider one.
    """

    def __init__(self, row: int) -> None:
        self._row = row  # of the last update
        self._n = 0.0
        self._rises = 0.0
        self._peak = 0.0  # of the rise that is on
        self._start = 0
        self._excess = FIRST_EXCESS
        self.rising = False
        self.wider = 1.0

    def update(self, narrow: float, row: int) -> None:
        """Take the evidence by the limits as they are learned, if it is above ``PART`` or a rise is on."""
        self._n += row - self._row
        self._row = row
        if self.rising:
            self._peak = max(self._peak, narrow)
            if narrow <= PART / 2:  # it rises once until it has come back to half of that
                if row - self._start < BRIEF:
                    # one rise may have been an event, and teaches no more than a large one of the usual kind
                    excess = min(self._peak - PART, LARGE_EXCESS * self._excess)
                    self._excess += (excess - self._excess) / min(self._rises + EXCESS_PRIOR, EXCESS_MEMORY)
                self.rising = False
                self._widen()
        elif narrow >= PART:
            while self._n >= SWING_MEMORY:
                self._n, self._rises = self._n / 2, self._rises / 2
            self._rises += 1
            self.rising, self._start, self._peak = True, row, narrow
            self._widen()

    def _widen(self) -> None:
        rarer = math.log(max(self._rises / (self._n + SWING_PRIOR) / RARE, 1.0))
        self.wider = max(PART + self._excess * rarer, 1.0)
