"""The detector of a stream of requests: one setting for every service.

A request's duration is compared with what its size took before (:mod:`.baseline`); what is left, in units of its own
scale, goes to charts of its mean (shifts and ramps, up and down), charts of its spread, and a count of extreme values
(:mod:`.tails`). Missing answers and repeated values are watched beside. What is learned is 200 requests old, and
nothing is while something looks wrong; a change that stays becomes the new normal.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from torchtriage.operate.detect.baseline import DurationLevel, SizeShares
from torchtriage.operate.detect.ewma_charts import QUARANTINE, Charts
from torchtriage.operate.detect.tails import TailCounter

__all__ = ["KINDS", "Alarm", "Missing", "RequestDetector", "Sample", "Stuck"]

KINDS = ("input-mix", "missing", "shift", "spread", "stuck", "surge", "tail")  # of alarms


class Sample(NamedTuple):
    """One value: a request's duration, or a metric's reading.

    ``at_s`` : when, on any clock. ``ok`` : False for a request that failed.
    """

    value: float
    at_s: float
    size: float | None = None
    ok: bool = True


class Alarm(NamedTuple):
    """Something changed. ``kind`` says what, ``message`` how much, ``evidence`` how sure it is.

    ``evidence`` is in units of the alarm's limit; ``row`` counts the stream's values from 0.
    ``better`` : requests got quicker, which is news and no trouble.
    """

    kind: str
    row: int
    at_s: float
    evidence: float
    message: str
    cause: str = ""
    better: bool = False


WARM_UP = 500  # requests without alarms at the start: caches fill, kernels are chosen, clocks rise
MEMORY = 1_000  # requests over which the level follows
WARM_MEMORY = 60  # while warming up it follows a start-up's decay
CUT = 4.0  # scales at which a request's deviation is cut for the charts
CUT_LOG = 0.45  # for the mean charts, at this logarithm if that is wider: of half as long, at once
WEIGHTS = (1 / 8, 1 / 20, 1 / 80)
# Logarithm that each chart's mean must reach in any case, slower and faster: a machine that is
# shared strays by so much for so long, and what is faster is no trouble.
MATTERS = ((0.28, 0.35), (0.18, 0.28), (0.11, 0.20))
YOUNG_MATTERS = 1_000  # requests before which more is asked for, in proportion
LIMIT = 2.5  # of the mean charts, in their learned standard deviations
YOUNG = 1.5  # while little was seen limits are wider, by this over the root of the spans seen
SPREAD_WEIGHTS = (1 / 40,)
SPREAD_LIMIT = 12.0
CLUSTER_CHANCE = 1e-4
SURGE = math.log(50)  # one request alone is an alarm at 50 times what it should take, if none came near before
SURGE_S = 0.1  # and if it takes that long: Python's own garbage collection stops a process for half of it
UNUSUAL = 0.6  # share of the limit from which nothing is learned
NEW_NORMAL = 250  # requests of an alarm that stays, after which it is the new normal
RELEARN = 50  # requests that teach the new normal before anything is compared with it
ONE_EVENT = ("shift", "spread", "tail")
OTHER_KIND = 1.5  # evidence at which one of these may follow another: they are often the same event
CLEAR = 60  # requests without evidence after which the same kind may alarm again
MISSING_SPAN = 20  # two missing answers within so many are an alarm where they are rare
STUCK_CHANCE = 1e-9
MEMORY_OF_RATES = 5_000


class RequestDetector:
    """Finds shifts, ramps, spread, tails, surges, missing and stuck answers in a request stream."""

    def __init__(
        self,
        *,
        limit: float = LIMIT,
        matters: tuple[tuple[float, float], ...] = MATTERS,
        spread_limit: float = SPREAD_LIMIT,
        chance: float = CLUSTER_CHANCE,
    ) -> None:
        self._row = -1
        self._n = 0
        self._level = DurationLevel(WARM_MEMORY)
        self._sizes = SizeShares()
        self._mean = Charts(WEIGHTS, limit, matters=matters, young=YOUNG)
        self._spread = Charts(SPREAD_WEIGHTS, spread_limit)
        self._tail = TailCounter(chance)
        self._waiting: deque[tuple[float, float | None]] = deque()
        self._unusual = 0
        self._relearning = 0
        self._largest = 0.0
        self._quiet: dict[str, int] = {}
        self._missing = Missing()
        self._stuck = Stuck()
        self._outside = 0.0

    @property
    def settled(self) -> bool:
        """Whether it has seen enough to alarm."""
        return self._n > WARM_UP

    @property
    def alarmed(self) -> bool:
        """Whether what it alarmed of goes on, or has ended a few requests ago."""
        return self.settled and any(self._row <= until for until in self._quiet.values())

    def expected_s(self, size: float | None) -> float | None:
        """Return what a request of this size should take; None while little was seen."""
        if self._n < RELEARN:
            return None
        share = 0.0 if size is None else self._sizes.share(size)[0]
        return math.exp(min(self._level.at + share, 50.0))

    def update(self, sample: Sample) -> Alarm | None:
        """Take one request; return the alarm it raises, if any."""
        self._row += 1
        value = sample.value
        if not sample.ok or not math.isfinite(value):
            too_many = self._missing.failed(self._row)
            return self._alarm("missing", sample, 2.0, "requests fail or answer NaN", "errors") if too_many else None
        self._missing.answered()
        self._n += 1
        length = self._stuck.update(value)
        if length:
            return self._alarm("stuck", sample, 2.0, f"the same value {length} times in a row", "stale metric")
        if self._stuck.doubted:
            return None
        return self._judge(sample, math.log(max(value, 1e-12)))

    def _judge(self, sample: Sample, logarithm: float) -> Alarm | None:
        level, size = self._level, sample.size
        share, settled = (0.0, True) if size is None else self._sizes.share(size)
        off = logarithm - share - level.at
        scale = level.scale
        score = off / scale
        cut = min(max(score, -CUT), CUT)
        warm = self._n > WARM_UP
        calm = self._unusual == 0 or self._relearning > 0
        level.memory = MEMORY if warm else WARM_MEMORY
        outside = False
        if size is not None:
            far = size > 1.9 * self._sizes.high or size < self._sizes.low / 1.9
            self._outside += 0.2 * (far - self._outside)
            outside = self._outside > 0.7
        if not warm or self._relearning:
            self._learn(logarithm, size)
        elif calm:
            if size is not None and not settled:
                self._sizes.learn(size, cut * scale)
            self._waiting.append((logarithm, size))
            if len(self._waiting) > QUARANTINE:
                self._learn(*self._waiting.popleft())
        if self._n <= WARM_UP / 2:
            return None
        if self._relearning:
            self._relearning -= 1
            return None
        wide = max(CUT, CUT_LOG / scale)
        deviation = min(max(score, -wide), wide)
        if not settled:  # mostly the guess of its size's share
            cut *= 0.3
            deviation *= 0.3
        unit = max(1.0, YOUNG_MATTERS / self._n) / scale
        mean = self._mean.update(deviation, learn=calm, unit=unit)
        evidence = abs(mean.evidence)
        spread = self._spread.update(min(abs(cut), 3.0) - 0.8, learn=calm)
        cluster = self._tail.update(score if settled else min(score, 4.0))
        surge = sample.value > SURGE_S and off > SURGE + (0.0 if settled else 2.0) and score > 1.25 * self._largest
        self._largest = max(self._largest * 0.9997, score if settled else 0.0)
        alarm = None
        if warm:
            if evidence >= 1:
                alarm = self._shifted(sample, mean.mean * scale, evidence)
            if alarm is None and spread.evidence >= 1:
                if evidence > 0.5:  # all of them far off to one side: no scatter
                    alarm = self._shifted(sample, mean.mean * scale, spread.evidence)
                else:
                    text, better = "durations scatter more", mean.mean < -1  # scales
                    alarm = self._alarm("spread", sample, spread.evidence, text, better=better)
            if alarm is None and cluster.evidence >= 1:
                times = math.exp(min(cluster.rung * scale, 50.0))
                text = f"{cluster.n} of {cluster.span} requests took more than {times:.1f} x"
                alarm = self._alarm("tail", sample, cluster.evidence, text)
            if alarm is None and surge:
                times = math.exp(min(off, 60.0))
                alarm = self._alarm("surge", sample, off / SURGE, f"one took {times:.0f} x")
            if alarm is None and outside:
                alarm = self._alarm("input-mix", sample, 2.0, f"sizes as never before: {size:g}", "input mix")
        self._wait(evidence, spread.evidence)
        return alarm

    def _learn(self, logarithm: float, size: float | None) -> None:
        level = self._level
        share = 0.0 if size is None else self._sizes.share(size)[0]
        level.learn(logarithm - share)
        if size is not None:
            cut = CUT * level.scale
            self._sizes.learn(size, min(max(logarithm - share - level.at, -cut), cut))

    def _wait(self, evidence: float, spread: float) -> None:
        """Learn nothing while something looks wrong, but not for ever."""
        if evidence >= UNUSUAL or spread >= 0.8:
            self._unusual += 1
        else:
            self._unusual = max(self._unusual - 3, 0)
        if self._unusual > NEW_NORMAL:
            self._unusual = 0
            self._relearning = RELEARN
            self._waiting.clear()
            self._level.hurry()
            self._mean.forget_means()
            self._spread.forget_means()
            self._quiet.pop("shift", None)
            self._quiet.pop("spread", None)

    def _shifted(self, sample: Sample, shift: float, evidence: float) -> Alarm | None:
        percent = (math.exp(min(abs(shift), 50.0)) - 1) * 100
        word = "slower" if shift > 0 else "faster"
        cause = "input mix" if self._outside > 0.05 else ""
        text = f"requests are {percent:.0f} % {word}, or more"
        return self._alarm("shift", sample, evidence, text, cause, better=shift < 0)

    def _alarm(
        self, kind: str, sample: Sample, evidence: float, message: str, cause: str = "", better: bool = False
    ) -> Alarm | None:
        """Return the alarm, unless one of its kind is on, or one of the same event."""
        quiet_until = self._quiet.get(kind, -1)
        if kind in ONE_EVENT and self._row > quiet_until and evidence < OTHER_KIND:
            others = (self._quiet.get(other, -1) for other in ONE_EVENT if other != kind)
            if any(self._row <= until for until in others):
                return None
        self._quiet[kind] = self._row + CLEAR
        if self._row <= quiet_until or self._n <= WARM_UP:
            return None
        return Alarm(kind, self._row, sample.at_s, evidence, message, cause, better)


class Missing:
    """Failed requests and NaN: two close together, where they were rare."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._n = 1
        self._last: int | None = None

    def failed(self, index: int) -> bool:
        """Take a failure; return whether it is one too many."""
        usual = self._rate  # without this one
        self._rate += (1 - self._rate) / self._n
        close = self._last is not None and index - self._last <= MISSING_SPAN
        self._last = index
        return close and usual * MISSING_SPAN < 0.2

    def answered(self) -> None:
        """Take a success."""
        self._n = min(self._n + 1, MEMORY_OF_RATES)
        self._rate *= 1 - 1 / self._n


class Stuck:
    """A value that repeats longer than chance and custom have it."""

    def __init__(self) -> None:
        self._last = math.nan
        self._run = 1
        self._longest = 1
        self._share = 0.0
        self._n = 0

    @property
    def doubted(self) -> bool:
        """Whether values repeat now so that they teach nothing."""
        return self._run >= 5 and self._run > 1.5 * self._longest and self._n > 100

    def update(self, value: float) -> int:
        """Take one value; return how often it came in a row if that is too often, else 0."""
        self._n += 1
        same = value == self._last
        self._last = value
        if not same:
            if self._run < 50:
                self._longest = max(self._longest, self._run)
            self._run = 1
        else:
            self._run += 1
        if self._run < 6:
            self._share += max(1 / self._n, 1 / MEMORY_OF_RATES) * (same - self._share)
        if not self.doubted:
            return 0
        usual = max(self._share, 1 / (self._n + 2))
        return self._run if self._run * math.log(usual) < math.log(STUCK_CHANCE) else 0
