"""The detector of a metric that is sampled at a fixed pace: rates, counts, utilisation.

Each reading is compared with what one of four simple forecasts said: the level of the last half
day, the last reading, the same hour of the day, the same hour of the week; the one that was nearest
lately speaks. What it was off by, in units of its usual error, is an alarm where such an error came
less than once in two days: a person can take an alarm in so many days, not in so many readings.

Beside it, the last readings together are compared with all such stretches of the last week: the distance to the nearest
is a left discord of the matrix profile (Yeh et al. 2016; online: Lu et al. 2022). It needs no forecast, and finds
what no reading alone shows, as a wave that goes flat.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchtriage.operate.detect.failure_rate import FailureRate
from torchtriage.operate.detect.latency_detector import Alarm, Sample, Stuck
from torchtriage.operate.detect.tails import TailCounter

DAY_S = 86_400.0
HOUR_S = 3_600.0
FIRST = 30  # readings from which the pace and the unit are learned
WARM_UP = 100
RARE_DAYS = 2.0  # an error is unusual that came less than once in so many days
LEAST = 6.0  # usual errors a reading must be off by in any case
BEYOND = 1.95  # factor above the highest rung that is usual: a rung's width (1.5), and 30 %
SMALLEST = 0.28  # share of what was expected, and of the level, by which a reading must be off
SEEN = 2  # times that an hour of the day or week was seen before it is a forecast: once may be an event
# usual errors of the level by which a reading that is compared with the last one must leave it too:
# coming back is no alarm
FAR = 2.0
LAST = 1
CLUSTER_CHANCE = 1e-4
STRETCH = 8  # readings that are compared together
WEEK_S = 7 * DAY_S
FEWEST, MOST = 500, 2_100  # readings that are kept: a week's, but no fewer; a week of 5 minutes is 2,016
USUAL = 0.99  # share of the stretches whose distance from the nearest is usual
UNLIKE = 1.75  # usual distances by which a stretch is unlike all others
LOOK_EVERY = 25  # readings after which that is worked out again
CLEAR = 10  # readings in order after which the next alarm may be reported
MAX_REPEATS = 0.05  # a metric that repeats itself more often is not stuck when it does
NEW_FORECAST = 1.05  # what another forecast's error must be less by than the level's


class _Forecast:
    # how far a forecast was off lately
    def __init__(self, memory: float) -> None:
        self.error = 0.0
        self.n = 0
        self._memory = memory

    def learn(self, off: float, least: float) -> None:
        self.n += 1
        off = abs(off)
        if self.n > 10:
            off = min(off, 5 * max(self.error, least))
        self.error += (off - self.error) * max(1 / self.n, 1 / self._memory)

    def scale(self) -> float:
        return 1.2533 * self.error


class _Profile:
    # the mean reading of each hour of a period, forgetting after ``periods`` of them
    def __init__(self, n_hours: int, per_hour: float, periods: float) -> None:
        self._n_hours = n_hours
        self._per_hour = per_hour
        self._memory = max(periods * per_hour, periods)
        self._hours: dict[int, list[float]] = {}  # hour -> [mean, readings, mean deviation]

    def forecast(self, at_s: float) -> tuple[float, float] | None:
        # the reading that is expected, and by how much this hour varies
        known = self._hours.get(self._hour(at_s))
        return (known[0], 1.2533 * known[2]) if known and known[1] >= SEEN * self._per_hour else None

    def learn(self, at_s: float, value: float, cut: float) -> None:
        known = self._hours.setdefault(self._hour(at_s), [value, 0, 0.0])
        known[1] += 1
        off = value - known[0]
        if known[1] > self._per_hour:
            off = min(max(off, -cut), cut)
        rate = max(1 / known[1], 1 / self._memory)
        known[0] += off * rate
        known[2] += (abs(off) - known[2]) * rate

    def _hour(self, at_s: float) -> int:
        return int(at_s // HOUR_S) % self._n_hours if math.isfinite(at_s) else 0


class _Stretches:
    # how unlike the last readings are all earlier ones
    def __init__(self, n: int, rounding: float) -> None:
        self._values = np.zeros(2 * n)  # the last n end at _end; when they reach the end they move to the start
        self._end = 0
        self._n = n
        self._distances: deque[float] = deque(maxlen=n)
        self._rounding = rounding
        self._usual = math.inf
        self._look = FEWEST

    def update(self, value: float) -> float:
        """Return the distance from the nearest stretch, in those that were usual; 0 while little is known."""
        values = self._values
        if self._end == len(values):
            values[: self._n] = values[self._n :]
            self._end = self._n
        values[self._end] = value
        self._end += 1
        known = values[max(self._end - self._n, 0) : self._end]
        if len(known) < 3 * STRETCH:
            return 0.0
        with np.errstate(over="ignore"):
            off = sliding_window_view(known[:-STRETCH], len(known) - 2 * STRETCH + 1) - known[-STRETCH:, None]
            distance = math.sqrt(np.einsum("ij,ij->j", off, off).min() / STRETCH)
        self._look -= 1
        if self._look <= 0:
            self._look = LOOK_EVERY
            distances = sorted(self._distances)
            self._usual = max(distances[int(USUAL * len(distances))], 2 * self._rounding)
        self._distances.append(distance)
        return distance / self._usual


class MetricDetector:
    """Finds readings, up or down, that no simple forecast explains, and clusters of odd ones."""

    def __init__(self) -> None:
        self._row = -1
        self._n = 0
        self._last = math.nan
        self._first: list[Sample] = []
        self._quiet_until = -1
        self._last_cluster = -math.inf
        self._repeats = 0.0
        self._missing = FailureRate()
        self._stuck = Stuck()

    @property
    def settled(self) -> bool:
        """Whether it has seen enough to alarm."""
        return self._n >= WARM_UP

    @property
    def alarmed(self) -> bool:
        """Whether what it alarmed of goes on, or has ended a few readings ago."""
        return self.settled and self._row <= self._quiet_until

    def update(self, sample: Sample) -> Alarm | None:
        """Take one reading; return the alarm it raises, if any."""
        self._row += 1
        absent = not sample.ok or not math.isfinite(sample.value)
        if self._missing.update(absent):
            return self._alarm(sample, "missing", 2.0, "readings are missing")
        if absent:
            return None
        self._n += 1
        length = self._stuck.update(sample.value)
        self._repeats += ((sample.value == self._last) - self._repeats) * max(1 / self._n, 1 / 2000)
        if self._n <= FIRST:
            self._last = sample.value
            self._first.append(sample)
            if self._n == FIRST:
                self._begin(self._first)
                self._first = []
            return None
        alarm = self._judge(sample)
        if length and alarm is None and self._repeats < MAX_REPEATS:
            return self._alarm(sample, "stuck", 2.0, f"the same value {length} times in a row")
        return alarm

    def _begin(self, first: list[Sample]) -> None:
        values = [sample.value for sample in first]
        pairs = list(pairwise(first))
        paces_s = sorted(since_s for a, b in pairs if math.isfinite(since_s := b.at_s - a.at_s))
        pace_s = max(paces_s[len(paces_s) // 2], 1.0) if paces_s else 1.0
        steps = sorted(abs(a.value - b.value) for a, b in pairs if a.value != b.value)
        # half the least step between readings is what rounding hides
        self._rounding = max(1e-12, steps[0] / 2 if steps else 0.0, 0.01 * abs(sorted(values)[FIRST // 2]))
        self._day = max(24.0, min(DAY_S / pace_s, 2000.0))
        self._rare = 1 / max(20.0, RARE_DAYS * DAY_S / pace_s)
        memory = 2 * self._day
        self._forecasts = [_Forecast(memory) for _ in range(4)]
        self._profiles = (_Profile(24, HOUR_S / pace_s, 5), _Profile(168, HOUR_S / pace_s, 2))
        self._level = self._last = values[0]
        n = int(max(WEEK_S / pace_s, FEWEST))
        # at a faster pace a week does not fit, and what comes once a day would be news every day
        self._stretches = _Stretches(n, self._rounding) if n <= MOST else None
        self._tails = (TailCounter(CLUSTER_CHANCE), TailCounter(CLUSTER_CHANCE))
        self._odd = 0.0  # mean error of the readings that are off at all
        self._n_odd = 0
        self._n = 0
        for sample in first:
            self._n += 1
            self._judge(sample)

    def _judge(self, sample: Sample) -> Alarm | None:
        value = sample.value
        unlike = self._stretches.update(value) if self._stretches else 0.0
        hours = [profile.forecast(sample.at_s) for profile in self._profiles]
        predictions = (self._level, self._last, *(hour and hour[0] for hour in hours))
        forecasts = self._forecasts
        best, expected = 0, self._level
        for at, prediction in enumerate(predictions):
            enough = at == 0 or forecasts[at].n >= min(24, self._day)
            if prediction is None or not enough:
                continue
            if forecasts[at].error * NEW_FORECAST < forecasts[best].error:
                best, expected = at, prediction
        off = value - expected
        smallest = SMALLEST * max(abs(expected), abs(self._level))
        # a metric that rests at one value most of the time has errors of nothing: what counts
        # then is how far it usually goes when it moves
        hour = hours[best - 2] if best > LAST else None
        scale = max(forecasts[best].scale(), self._rounding, self._odd / 2, hour[1] if hour else 0.0)
        if abs(off) > self._rounding or value != self._last:
            self._n_odd += 1
            odd = abs(off) if self._n_odd <= 6 else min(abs(off), 20 * self._odd)
            self._odd += (odd - self._odd) * max(1 / self._n_odd, 1 / (2 * self._day))
        level_scale = max(forecasts[0].scale(), self._rounding)
        from_level = value - self._level
        for at, prediction in enumerate(predictions):
            if prediction is not None:
                forecasts[at].learn(value - prediction, self._rounding)
        level_cut = 3 * max(forecasts[0].scale(), self._rounding)
        rate = max(1 / (self._n + 1), 2 / self._day)
        self._level += rate * min(max(from_level, -level_cut), level_cut)
        for profile in self._profiles:
            profile.learn(sample.at_s, value, 6 * scale)
        self._last = value
        score = off / scale
        for sign, tail in zip((1, -1), self._tails, strict=True):
            usual = tail.highest(self._rare)
            cluster = tail.update(sign * score)
            if best == LAST and sign * from_level <= FAR * level_scale:
                continue
            limit = max(LEAST, BEYOND * usual, smallest / scale)
            if sign * score > limit:
                word = "above" if sign > 0 else "below"
                text = f"{value:.6g}, {abs(off):.3g} {word} the expected value"
                return self._alarm(sample, "point", sign * score / limit, text)
            if cluster.evidence >= 1 and self._row - self._last_cluster > self._day / 4:
                self._last_cluster = self._row
                text = f"{cluster.n} of {cluster.span} readings are far off"
                return self._alarm(sample, "tail", cluster.evidence, text)
        if unlike > UNLIKE:
            text = f"the last {STRETCH} readings are unlike any before"
            return self._alarm(sample, "pattern", unlike / UNLIKE, text)
        return None

    def _alarm(self, sample: Sample, kind: str, evidence: float, message: str) -> Alarm | None:
        quiet_until, self._quiet_until = self._quiet_until, self._row + CLEAR
        if self._row <= quiet_until or not self.settled:
            return None
        return Alarm(kind, self._row, sample.at_s, evidence, message)
