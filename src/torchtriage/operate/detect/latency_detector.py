"""The detector of a stream of requests: one setting for every service.

A request's duration is compared with what its size took before (:mod:`.baseline`); what is left, in units of its own
scale, goes to charts of its mean (shifts and ramps, up and down), charts of its spread, and a count of extreme values
(:mod:`.tails`). Failures and NaN (:mod:`.failure_rate`) and repeated values are watched beside. What is learned is 200
requests old, and nothing is while something looks wrong. Of a change that stays the alarm stays on, while what else
happens is compared with the new level; it ends where requests are as before, or are accepted as they are.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from torchtriage.core.units import format_count, format_span_s
from torchtriage.operate.detect.baseline import DurationLevel, SizeShares
from torchtriage.operate.detect.ewma_charts import PART, QUARANTINE, Charts, Swings
from torchtriage.operate.detect.failure_rate import FailureRate
from torchtriage.operate.detect.tails import Cluster, TailCounter

KINDS = ("faster", "input-mix", "missing", "nan", "shift", "spread", "stuck", "surge", "tail")  # of alarms


class Sample(NamedTuple):
    """One value: a request's duration, or a metric's reading.

    ``at_s`` : when, on any clock. ``ok`` : False for a request that failed; a value of NaN is one that answered NaN.
    """

    value: float
    at_s: float
    size: float | None = None
    ok: bool = True


class Alarm(NamedTuple):
    """Something changed. ``kind`` says what, ``message`` how much, ``evidence`` how sure it is.

    ``evidence`` is in units of the alarm's limit; ``row`` counts the stream's values from 0. ``size`` : how many
    times as long requests take (of ``faster``, as short; or how many times as large they are), or the share that fails;
    1 where it has none.
    """

    kind: str
    row: int
    at_s: float
    evidence: float
    message: str
    cause: str = ""
    size: float = 1.0
    lasts: bool = False  # it has held for so long that it may be the normal now; it is not over

    @property
    def better(self) -> bool:
        """Whether requests got quicker, which is news and no trouble."""
        return self.kind == "faster"


@dataclass
class _Episode:
    # an alarm that is on: the row until which it is not told again and the one until which it is not over, at least,
    # and the size that was told and the largest one
    start: int
    until: int
    holds: int
    told: float
    largest: float
    last: int  # row that it was seen in
    seconds: float = 0.0  # that it has lasted, without jumps of the clock
    said: bool = False  # that it lasts
    # the level and scale before, of one with which all is compared by now; and looks that found it back there
    before: tuple[float, float] | None = None
    back: int = 0


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
CLUSTER_CHANCE = 1.6e-4
TAIL = 4.0  # scales beyond which a request is one of a tail
# In logarithms, 1.1 to 320 times: counted in scales, what came often would be rare as soon as the scale has grown.
TAIL_RUNGS = tuple(0.1 * 1.5**step for step in range(11))
SURGE = math.log(50)  # one request alone is an alarm at 50 times what it should take, if no two came near before
NEAR, HUGE_MEMORY = 1.25, 10_000  # times its logarithm; requests that these are remembered for
SURGE_S = 0.1  # and if it takes that long: Python's own garbage collection stops a process for half of it
UNUSUAL = 0.6  # share of the limit from which nothing is learned
NEW_NORMAL = 250  # requests of an alarm that stays, after which others are compared with what is now
LASTING_S, LASTING_N = 3_600.0, 10_000  # both of which an alarm must hold to be told as lasting
LONGEST_GAP_S = 60.0  # between two requests, of what counts for that
BACK = 3  # looks, each at the newest requests, that must find it where it was before it is over
RELEARN = 50  # requests that teach the new normal before anything is compared with it
ONE_EVENT = ("faster", "shift", "spread", "tail")
OTHER_KIND = 1.5  # evidence at which one of these may follow another: they are often the same event
CLEAR = 60  # requests without evidence after which the same kind may alarm again
LARGER = 1.5  # times what was told from which an alarm that goes on is told again
N_TOLD = 12  # newest requests whose median says how much longer they take
STUCK_CHANCE = 1e-9
STRETCH, N_STRETCHES = 100, 40  # requests whose largest is remembered, and how many of these
RARE_LARGEST = 2e-6  # chance of a request that is larger than all tails explain
# Times the largest known that are rare however little is known: of a tail of finite variance less than 1/400 as many.
BEYOND = math.log(20)
MOST_HELD = 2_000  # requests of which a tail that goes on must have some
N_STEPS = 100  # changes of value whose least is what they are rounded to
MEMORY_OF_RATES = 5_000


class RequestDetector:
    """Finds shifts, ramps, spread, tails, surges, missing and stuck answers in a request stream."""

    def __init__(self) -> None:
        self._row = -1
        self._n = 0
        self._level = DurationLevel(WARM_MEMORY)
        self._sizes = SizeShares()
        self._mean = Charts(WEIGHTS, LIMIT, matters=MATTERS, young=YOUNG)
        self._spread = Charts(SPREAD_WEIGHTS, SPREAD_LIMIT)
        self._swings = (Swings(WARM_UP // 2), Swings(WARM_UP // 2))  # up and down
        self._tail = TailCounter(CLUSTER_CHANCE, TAIL_RUNGS)
        self._waiting: deque[tuple[float, float | None]] = deque()
        self._unusual = 0
        self._relearning = 0
        self._huge: deque[tuple[int, float]] = deque(maxlen=8)
        self._maxima = Maxima()
        self._step = Step()
        self._newest: deque[float] = deque(maxlen=N_TOLD)
        self._on: dict[str, _Episode] = {}
        self._lasting: dict[str, _Episode] = {}  # of these, what others are no longer compared without
        self._tail_on: _Crowd | None = None
        self._at_s = math.nan
        self._ended: list[Alarm] = []
        self._failures = FailureRate()
        self._nan = FailureRate()
        self._stuck = Stuck()
        self._outside = 0.0

    @property
    def settled(self) -> bool:
        """Whether it has seen enough to alarm."""
        return self._n > WARM_UP

    @property
    def alarmed(self) -> frozenset[str]:
        """The kinds of alarms that go on, or have ended a few requests ago."""
        return frozenset((*self._on, *self._lasting))

    def forget_alarms(self) -> None:
        """Begin without an alarm that is on: another stream goes on from what this one learned."""
        self._on, self._lasting, self._ended, self._tail_on = {}, {}, [], None

    def accept(self) -> None:
        """Take what requests are now as the normal: nothing is on any more."""
        if self._lasting or any(kind in self._on for kind in ("shift", "spread", "faster")):
            self._relearn()
        for rate in (self._failures, self._nan):
            rate.accept()
        self.forget_alarms()

    def take_ended(self) -> list[Alarm]:
        """Return what is over since it was asked last, with the largest size it had, and what has come to last."""
        ended, self._ended = self._ended, []
        return ended

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
        if self._on or self._lasting:
            self._follow(sample)
        self._at_s = sample.at_s
        if self._failures.update(not sample.ok):
            return self._too_many("missing", "fail", self._failures, sample, "errors")
        if not sample.ok:
            return None
        nan = not math.isfinite(value)
        if self._nan.update(nan):
            return self._too_many("nan", "return NaN", self._nan, sample, "NaN")
        if nan:
            return None
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
        scale = max(level.scale, self._step.half(sample.value) * math.exp(min(off - logarithm, 50.0)))
        score = off / scale
        # conditions, not min and max: this is the hot path
        cut = CUT if score > CUT else -CUT if score < -CUT else score
        warm = self._n > WARM_UP
        calm = self._unusual == 0 or self._relearning > 0
        level.memory = MEMORY if warm else WARM_MEMORY
        outside = False
        if size is not None:
            self._outside += 0.2 * ((size > 1.9 * self._sizes.high) - self._outside)
            outside = self._outside > 0.7
        if not warm or self._relearning:
            self._learn(logarithm, size)
        elif calm:
            if size is not None and not settled:
                self._sizes.learn(size, cut * scale, news=True)
            self._waiting.append((logarithm, size))
            if len(self._waiting) > QUARANTINE:
                self._learn(*self._waiting.popleft())
        if self._n <= WARM_UP / 2:
            return None
        if self._relearning:
            self._relearning -= 1
            return None
        wide = CUT_LOG / scale
        if wide < CUT:
            wide = CUT
        deviation = wide if score > wide else -wide if score < -wide else score
        if not settled:  # mostly the guess of its size's share
            cut *= 0.3
            deviation *= 0.3
        unit = (1.0 if self._n > YOUNG_MATTERS else YOUNG_MATTERS / self._n) / scale
        up, down = self._swings
        signed, mean, narrow = self._mean.update(deviation, learn=calm, unit=unit, wider=(up.wider, down.wider))
        evidence = abs(signed)
        if narrow >= PART or up.rising:
            up.update(narrow, self._n)
        if narrow <= -PART or down.rising:
            down.update(-narrow, self._n)
        self._newest.append(off)
        spread, *_ = self._spread.update(min(abs(cut), 3.0) - 0.8, learn=calm)
        cluster = self._tail.update(off if settled else 0.0, TAIL * scale)
        surge = off > SURGE / NEAR and self._surges(sample.value, off, settled)
        if settled:
            self._maxima.update(off)
        alarm = None
        if warm:
            if evidence >= UNUSUAL:
                self._goes_on("shift" if signed > 0 else "faster", again=False)
            if spread >= UNUSUAL:
                self._goes_on("spread")
            if self._tail_on is not None:
                self._tail_goes_on(self._tail_on, off)
            if evidence >= 1:
                alarm = self._shifted(sample, mean * scale, evidence)
            if alarm is None and spread >= 1:
                if evidence > 0.5:  # all of them far off to one side: no scatter
                    alarm = self._shifted(sample, mean * scale, spread)
                else:
                    quicker = mean < -1  # scales
                    kind, text = ("faster", "are shorter, and vary more") if quicker else ("spread", "vary more")
                    alarm = self._alarm(kind, sample, spread, f"durations {text}")
            if alarm is None and cluster.evidence >= 1:
                times = math.exp(min(cluster.rung, 50.0))
                text = f"{cluster.n} of {cluster.span} requests took more than {times:.1f} x the expected time"
                alarm = self._alarm("tail", sample, cluster.evidence, text, size=times)
                if alarm is not None:
                    self._tail_on = _Crowd.of(cluster)
            if alarm is None and surge:
                times = math.exp(min(off, 60.0))
                text = f"one request took {times:.0f} x the expected time"
                alarm = self._alarm("surge", sample, off / SURGE, text, size=times)
            if alarm is None and outside and size is not None:
                text = f"larger sizes than ever before: {size:g}, the largest was {self._sizes.high:g}"
                times = size / (self._sizes.high or size)  # of empty ones nothing is a multiple
                alarm = self._alarm("input-mix", sample, 2.0, text, "input mix", size=times)
        self._wait(sample, evidence, spread)
        return alarm

    def _surges(self, value: float, off: float, settled: bool) -> bool:
        near = sum(self._n - at < HUGE_MEMORY and off <= NEAR * known for at, known in self._huge)
        if settled:
            self._huge.append((self._n, off))
        huge = value > SURGE_S and off > SURGE + (0.0 if settled else 2.0)
        # one that came near may have been an event
        return huge and near < 2 and off > self._maxima.rare

    def _learn(self, logarithm: float, size: float | None) -> None:
        level = self._level
        share = 0.0 if size is None else self._sizes.share(size)[0]
        level.learn(logarithm - share)
        if size is not None:
            cut = CUT * level.scale
            self._sizes.learn(size, min(max(logarithm - share - level.at, -cut), cut), news=False)

    def _wait(self, sample: Sample, evidence: float, spread: float) -> None:
        """Learn nothing while something looks wrong, but not for ever."""
        if evidence >= UNUSUAL or spread >= 0.8:
            self._unusual += 1
        else:
            self._unusual = max(self._unusual - 3, 0)
        if self._unusual > NEW_NORMAL:
            before = (self._level.at, self._level.scale)
            self._relearn()
            # the means stray on for a while after what has passed
            typical = abs(sorted(self._newest)[len(self._newest) // 2])
            stays = typical > UNUSUAL * math.log(max((on.told for on in self._on.values()), default=1.0))
            self._end("faster", sample, "usual now" if stays else "over")
            for kind in ("shift", "spread"):
                if not stays:
                    self._end(kind, sample, "over")
                elif (on := self._on.pop(kind, None)) is not None:
                    known = self._lasting.setdefault(kind, on)
                    known.largest = max(known.largest, on.largest)
                    known.before = known.before or before

    def _relearn(self) -> None:
        self._unusual = 0
        self._relearning = RELEARN
        self._waiting.clear()
        self._level.hurry()
        self._mean.forget_means()
        self._spread.forget_means()

    def _look_back(self, sample: Sample) -> None:
        """End what others were compared without, once requests are as they were before it."""
        for kind, on in list(self._lasting.items()):
            at, scale = on.before or (0.0, 0.0)
            is_back = self._is_back(on) if kind == "shift" else self._level.scale < 1.5 * scale
            on.back = on.back + 1 if is_back else 0
            if on.back >= BACK:
                del self._lasting[kind]
                self._on[kind] = on  # to end it
                self._end(kind, sample, "over")
                if kind == "shift":
                    self._level.at = at
                    self._relearn()

    def _is_back(self, on: _Episode) -> bool:
        newest = sorted(self._newest)[len(self._newest) // 2] + self._level.at
        return on.before is not None and newest - on.before[0] < 0.5 * math.log(max(on.told, 1.0))

    def _shifted(self, sample: Sample, shift: float, evidence: float) -> Alarm | None:
        # the charts' means are of values that were cut
        kind, word, sign = ("shift", "slower", 1) if shift > 0 else ("faster", "faster", -1)
        if kind == "faster" and "shift" in self._lasting and self._is_back(self._lasting["shift"]):
            return None  # it is what it was before
        newest = sorted(sign * off for off in self._newest)
        times = math.exp(min(max(abs(shift), newest[len(newest) // 2]), 50.0))
        surely = math.exp(min(max(newest[len(newest) // 4], 0.0), 50.0))
        cause = "input mix" if self._outside > 0.05 else ""
        share = times - 1 if shift > 0 else 1 - 1 / times
        text = f"requests are {share * 100:.0f} % {word}"
        return self._alarm(kind, sample, evidence, text, cause, size=times, surely=surely)

    def _too_many(self, kind: str, verb: str, rate: FailureRate, sample: Sample, cause: str) -> Alarm | None:
        text = f"{rate.lately:.0%} of the newest requests {verb}, usually {rate.usual:.2%}"
        return self._alarm(kind, sample, 2.0, text, cause, size=rate.lately)

    def _alarm(
        self,
        kind: str,
        sample: Sample,
        evidence: float,
        message: str,
        cause: str = "",
        size: float = 1.0,
        surely: float | None = None,
    ) -> Alarm | None:
        """Return the alarm, unless one of its kind is on and was as large, or one of the same event is.

        ``surely`` : the size that it has grown to at least, where ``size`` scatters.
        """
        on = self._on.get(kind)
        if on is None:
            recent = {other: on for other, on in self._on.items() if self._row <= on.until}
            if kind in ONE_EVENT and evidence < OTHER_KIND and any(other in recent for other in ONE_EVENT):
                return None
            if kind == "tail" and "shift" in recent and size < LARGER * recent["shift"].told:
                return None
            if kind not in ("missing", "nan") and not self.settled:
                return None
            clear = self._row + CLEAR
            self._on[kind] = _Episode(self._row, clear, clear, size, size, self._row)
            return Alarm(kind, self._row, sample.at_s, evidence, message, cause, size)
        again, on.last = self._row > on.until, self._row
        on.until = self._row + CLEAR
        on.holds = max(on.holds, on.until)
        grown = size if surely is None else surely
        on.largest = max(on.largest, grown)
        if grown < LARGER * on.told and not again:
            return None
        on.told = size
        return Alarm(kind, self._row, sample.at_s, evidence, message, cause, size)

    def _goes_on(self, kind: str, rows: int = CLEAR, *, again: bool = True) -> None:
        """Keep an alarm on; ``again`` : evidence may tell it again meanwhile."""
        on = self._on.get(kind)
        if on is not None:
            on.holds, on.last = max(on.holds, self._row + rows), self._row
            if not again:
                on.until = self._row + CLEAR

    def _tail_goes_on(self, crowd: _Crowd, off: float) -> None:
        """Keep a tail's alarm on while such values are not as rare as before: that they are known by now is no end."""
        if off <= crowd.rung:
            return
        crowd.rows.append(self._row)
        if "tail" not in self._on:
            self._tail_on = None
        elif len(crowd.rows) == crowd.rows.maxlen and self._row - crowd.rows[0] < crowd.span:
            self._goes_on("tail", crowd.span // 2)

    def _follow(self, sample: Sample) -> None:
        """End what is over, and say what has come to last."""
        since_s = sample.at_s - self._at_s
        since_s = min(since_s, LONGEST_GAP_S) if since_s > 0 else 0.0
        for kind, on in (*self._on.items(), *self._lasting.items()):
            on.seconds += since_s
            if not on.said and on.seconds >= LASTING_S and self._row - on.start >= LASTING_N:
                on.said = True
                text = f"{kind} lasting for {format_span_s(on.seconds)}{_most(kind, on)}: is it the new normal?"
                self._ended.append(Alarm(kind, self._row, sample.at_s, 0.0, text, "", on.largest, True))
        for kind, rate in (("missing", self._failures), ("nan", self._nan)):
            if rate.on:
                self._goes_on(kind, QUARANTINE)
        for kind in [kind for kind, on in self._on.items() if self._row > on.holds]:
            self._end(kind, sample, "over")
        if self._lasting and self._row % N_TOLD == 0:
            self._look_back(sample)

    def _end(self, kind: str, sample: Sample, how: str) -> None:
        on = self._on.pop(kind, None)
        if on is None or kind in self._lasting:
            return  # a part of what lasts
        last = on.last if on.before is None else self._row
        n = last - on.start + 1
        text = f"{kind} {how} after {format_count(n, 'request')}{_most(kind, on)}"
        self._ended.append(Alarm(kind, self._row, sample.at_s, 0.0, text, "", on.largest))


@dataclass
class _Crowd:
    # values beyond a rung, so many in a span, of a tail's alarm that is on
    rung: float
    span: int
    rows: deque[int]

    @classmethod
    def of(cls, cluster: Cluster) -> _Crowd:
        # half way, on a logarithmic scale, between how often they came and how often they usually do
        often = math.sqrt(cluster.n / cluster.span * cluster.usual)
        return cls(cluster.rung, min(round(cluster.n / often), MOST_HELD), deque(maxlen=cluster.n))


def _most(kind: str, on: _Episode) -> str:
    if kind in ("missing", "nan"):
        return f", peak {on.largest:.0%} of requests"
    return f", peak {on.largest:.3g} x" if on.largest != 1 else ""


class Maxima:
    """How large the largest of many values are, and from where on one is rare.

    The largest values of stretches follow Gumbel's distribution where a stream's tail falls off exponentially (Gumbel
    1958), which a power's does in logarithms; lighter tails fall off faster.
    """

    def __init__(self) -> None:
        self._n = 0
        self._most = -math.inf
        self._maxima: deque[float] = deque(maxlen=N_STRETCHES)
        self.rare = 0.0

    def update(self, off: float) -> None:
        """Take one value."""
        self._n += 1
        if off > self._most:
            self._most = off
        if self._n % STRETCH:
            return
        self._maxima.append(self._most)
        self._most = -math.inf
        known = sorted(self._maxima)
        quarter = len(known) // 4
        # by quartiles: single events are in neither
        beta = (known[-1 - quarter] - known[quarter]) / 1.573
        unsure = 1 + 2 / math.sqrt(len(known))
        rare = known[len(known) // 2] + beta * unsure * (-math.log(STRETCH * RARE_LARGEST) - 0.367)
        self.rare = min(rare, known[-1] + BEYOND)


class Step:
    """The least step between values: clocks and logs that round."""

    def __init__(self) -> None:
        self._last = math.nan
        self._steps: deque[float] = deque(maxlen=N_STEPS)
        self._half = 0.0

    def half(self, value: float) -> float:
        """Take one value; return half of the step, which is what rounding hides."""
        if value != self._last and len(self._steps) < N_STEPS:
            if self._last == self._last:
                self._steps.append(abs(value - self._last))
                if len(self._steps) == N_STEPS:
                    self._half = min(self._steps) / 2
            self._last = value
        return self._half


class Stuck:
    """A value that repeats longer than chance and custom have it."""

    def __init__(self) -> None:
        self._last = math.nan
        self._run = 1
        self._longest = 1
        self._share = 0.0
        self._n = 0
        # of runs of three and more: how often they might have ended, and went on; one value may be far more usual
        self._n_might = self._n_on = 0.0

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
                if self._run >= 3:
                    self._n_might += self._run - 2
                    self._n_on += self._run - 3
                    if self._n_might > MEMORY_OF_RATES:
                        self._n_might, self._n_on = self._n_might / 2, self._n_on / 2
            self._run = 1
        else:
            self._run += 1
        if self._run < 6:
            self._share += max(1 / self._n, 1 / MEMORY_OF_RATES) * (same - self._share)
        if not self.doubted:
            return 0
        usual = max(self._share, self._n_on / (self._n_might + 1), 1 / (self._n + 2))
        return self._run if self._run * math.log(usual) < math.log(STUCK_CHANCE) else 0
