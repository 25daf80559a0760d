"""Too many failures, against how many there usually are: a cumulative sum of likelihood ratios (Page 1954).

The usual rate may be anything from none to most, and is another one after a failure where failures come in runs. Beside
it stand three suppositions: that of what usually succeeds a part now fails as well. Each request moves their evidence,
and what speaks against them is forgotten at once.
"""

from __future__ import annotations

import math
from collections import deque

PARTS = (0.03, 0.1, 0.5)  # of what usually succeeds
LIMIT = 9.0  # natural logarithm of the likelihood ratio
FIRST_RATE, FIRST_N = 0.005, 50  # the usual rate before anything was seen, and the requests that it counts for
FIRST_RUNS = 10  # failures for which what follows a failure counts as what follows any request
MEMORY = 5_000  # requests over which the usual rate follows
WARM_UP = 50  # requests at the start that only teach
YOUNG = 1_000
N_LATELY = 40  # requests that the share which is told is of


class FailureRate:
    """Whether failures have become too many: ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.usual = FIRST_RATE
        self._n = 0
        self._after = 0.0  # failures that followed a failure directly
        self._failures = 0.0
        self._sums = [0.0] * len(PARTS)
        self._lately: deque[bool] = deque(maxlen=N_LATELY)
        self._last = False

    @property
    def lately(self) -> float:
        """The share of the newest requests that failed."""
        return sum(self._lately) / max(len(self._lately), 1)

    def accept(self) -> None:
        """Take what fails now as usual."""
        if self.on:
            self.usual, self.on = self.lately, False
            self._sums = [0.0] * len(PARTS)

    def update(self, failed: bool) -> bool:
        """Take a request; return whether it is one failure too many, while failures are."""
        self._lately.append(failed)
        self._n += 1
        usual, after_failure, self._last = self.usual, self._last, failed
        if not self.on:  # what is too much does not become usual by lasting
            self.usual += (failed - usual) / min(self._n + FIRST_N, MEMORY)
        if after_failure:
            usual = max(usual, (self._after + FIRST_RUNS * usual) / (self._failures + FIRST_RUNS))
            self._after += failed
            self._failures += 1
            if self._failures > MEMORY / 10:
                self._after, self._failures = self._after / 2, self._failures / 2
        if self._n <= WARM_UP or not (failed or any(self._sums)):
            return False
        if self._n < YOUNG:
            usual = min(usual, 0.5)  # a service that fails from its first request on is no usual one
        # no rate is known to be nothing or everything
        usual = min(max(usual, 1 / MEMORY), 1 - 1 / MEMORY)
        for at, part in enumerate(PARTS):
            rate = usual + part * (1 - usual)
            ratio = rate / usual if failed else (1 - rate) / (1 - usual)
            self._sums[at] = min(max(self._sums[at] + math.log(ratio), 0.0), 1.1 * LIMIT)
        most = max(self._sums)
        self.on = most >= (LIMIT / 2 if self.on else LIMIT)
        return failed and most >= LIMIT
