"""Too many extreme values in too short a time, against how often such values came before.

How often each rung of a ladder was exceeded before is known, so how improbable so many exceedances within so few values
are follows (a scan statistic, Naus 1965, over the last few exceedances). The rate is no better known than from what was
counted, and such values come in bursts: the count's distribution is a negative binomial one. Rare large values that are
normal for a stream raise their rungs' rates and stay quiet.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

RUNGS = tuple(4 * 1.5**step for step in range(11))  # in scales of a stream whose scale stays
MEMORY = 5_000  # values over which rates are learned; then half of them are forgotten
N_LAST = 8  # last exceedances of a rung that are looked at together
PRIOR = 0.5  # exceedances assumed of a rung before any was seen
DISPERSION = 3.0  # how much more the counts of a shared machine vary than those of independent events
APART = 4  # exceedances closer than this are one event: a machine that is busy is so for a few requests


class Cluster(NamedTuple):
    """The most improbable cluster that ends here: ``n`` events beyond ``rung`` in ``span``.

    ``usual`` : such events per value, before.
    """

    evidence: float
    rung: float
    n: int
    span: int
    usual: float = 0.0


NOTHING = Cluster(0.0, 0.0, 0, 0)


class TailCounter:
    """Counts exceedances of one direction; ``chance`` : of a cluster that is an alarm."""

    def __init__(self, chance: float, rungs: tuple[float, ...] = RUNGS) -> None:
        self._log_chance = math.log(chance)
        self._rungs = rungs
        self._last: list[deque[int]] = [deque(maxlen=N_LAST) for _ in rungs]
        self._counts = [0.0] * len(rungs)
        self._n = 0.0
        self._at = 0

    def update(self, value: float, least: float = RUNGS[0]) -> Cluster:
        """Take one value; return the cluster it completes, if any. What is not beyond ``least`` is no event."""
        self._at += 1
        self._n += 1
        if self._n > MEMORY:
            self._n /= 2
            self._counts = [count / 2 for count in self._counts]
        if not value > least:
            return NOTHING
        worst = NOTHING
        for at, rung in enumerate(self._rungs):
            if value <= rung:
                break
            last = self._last[at]
            if last and self._at - last[-1] < APART:
                continue
            last.append(self._at)
            known = self._counts[at]
            self._counts[at] += 1
            for n in range(2, len(last) + 1):
                span = self._at - last[-n] + 1
                before = max(known - (n - 1), 0.0) + PRIOR  # without the cluster itself
                share = span / max(self._n - span, 1.0)
                evidence = self._evidence(n - 1, before, share)
                if evidence > 0 and evidence >= worst.evidence:
                    worst = Cluster(evidence, max(rung, least), n, span, before / max(self._n, 1.0))
        return worst

    def highest(self, share: float) -> float:
        """Return the highest rung that more than ``share`` of the values exceeded, or 0."""
        beyond = [rung for rung, n in zip(self._rungs, self._counts, strict=True) if n > share * self._n]
        return beyond[-1] if beyond else 0.0

    def _evidence(self, n: int, before: float, share: float) -> float:
        """Return how improbable ``n`` or more events are, 1 at ``chance``.

        ``before`` events came in the past, of whose length the cluster's is a ``share``. The first
        event of a cluster is given: the cluster was looked at because of it.
        """
        if before * share >= n:
            return 0.0
        shape, odds = before / DISPERSION, DISPERSION * share
        rest = 1 / (1 + odds)
        term = below = rest**shape
        for at in range(1, n):
            term *= (shape + at - 1) / at * (1 - rest)
            below += term
        chance = 1 - below
        if chance < 1e-9:  # where the difference is rounding, its first term is exact enough
            chance = term * (shape + n - 1) / n * (1 - rest)
        return math.log(max(chance, 1e-300)) / self._log_chance
