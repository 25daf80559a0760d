"""What is compared: typical values, tails, and how often an event happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.core.stats.sequential_ab import BLOCK, LARGEST, Difference, EventRatio, Moments
from torchtriage.operate.experiment.result import ExperimentRow, Verdict

Role = Literal["metric", "guardrail"]

FIRST = 200  # values of both arms that the first threshold of a tail is taken from, or two beyond it
EVERY = 8  # blocks after which it is asked again how long requests of a tail resemble each other
UNKNOWN = 8  # times the least block that is possible, while it is not known how long they do
STEP = 0.1  # how far the threshold follows, in standard deviations per value beyond it


class Typical(msgspec.Struct, frozen=True, tag="typical"):
    """The typical value of a metric above zero, such as latency or memory: its geometric mean.

    ``worse_than`` : the ratio that is still allowed; of ``better="higher"``, 1.05 allows a
    candidate 1.05 times lower. ``covariate`` : a value known before the request, such as its size,
    that explains a part of it; it is recorded under its own name.
    """

    metric: str
    worse_than: float = 1.0
    better: Literal["lower", "higher"] = "lower"
    covariate: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        _check(self.metric, self.worse_than)
        if self.better not in ("lower", "higher"):
            raise UsageError(f"expected better as lower or higher, found {self.better!r}")


class Tail(msgspec.Struct, frozen=True, tag="tail"):
    """How often values of the candidate pass ``worse_than`` times the quantile ``p``."""

    metric: str
    p: float = 0.99
    worse_than: float = 1.1

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        _check(self.metric, self.worse_than)
        if not 0.5 <= self.p <= 0.9999:
            raise UsageError(f"expected a quantile of 0.5 to 0.9999, found {self.p}")


class Rate(msgspec.Struct, frozen=True, tag="rate"):
    """How often an event happens, such as an error or an answer with NaN; fewer is better."""

    metric: str
    worse_than: float = 1.5

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        _check(self.metric, self.worse_than)


Metric = Typical | Tail | Rate


def check_metrics(metric: Typical, guardrails: Sequence[Metric], where: str) -> None:
    """Refuse what cannot be compared together: ``UsageError``."""
    if not isinstance(metric, Typical):
        raise UsageError(
            f"expected a Typical as the metric, found {type(metric).__name__}",
            where=where,
            hint="tails and rates can only get worse: they are guardrails",
        )
    for guardrail in guardrails:
        if not isinstance(guardrail, Typical | Tail | Rate):
            raise UsageError(f"expected a Typical, Tail or Rate as a guardrail, found {guardrail!r}", where=where)
    if len({metric, *guardrails}) < 1 + len(guardrails):
        raise UsageError("expected each metric and guardrail once, found one twice", where=where)


def _check(metric: str, worse_than: float) -> None:
    if not metric:
        raise UsageError("expected the name of a metric, found none")
    if not 1 <= worse_than < math.inf:
        raise UsageError(f"expected worse_than as a ratio of 1 or more, found {worse_than}", where=metric)


@dataclass(kw_only=True)
class SequentialTest:
    """One metric while the experiment runs: constant memory, no clock, all of it plain data.

    ``alpha`` : chance of a wrong verdict at all looks together; two-sided for the metric that
    decides, one-sided for a guardrail.
    """

    role: Role
    alpha: float
    n: list[int] = field(default_factory=lambda: [0, 0])
    n_missing: list[int] = field(default_factory=lambda: [0, 0])
    verdict: Verdict = "undecided"
    decided_at: int | None = None
    spec: Metric

    def add(self, treated: bool, values: dict[str, Any]) -> None:
        """Take in what one request says of this metric; NaN, None and the like are missing."""
        if not self._take(treated, values):
            self.n_missing[treated] += 1
            return
        self.n[treated] += 1
        if self.decided_at is None and (verdict := self._judged()) != "undecided":
            self.verdict, self.decided_at = verdict, sum(self.n)

    def join(self, other: SequentialTest) -> None:
        """Take in what another process recorded of the same metric, and judge all of it together."""
        self.n = [a + b for a, b in zip(self.n, other.n, strict=True)]
        self.n_missing = [a + b for a, b in zip(self.n_missing, other.n_missing, strict=True)]
        self._join(other)
        self.verdict = self._judged()
        self.decided_at = None if self.verdict == "undecided" else sum(self.n)

    def _join(self, other: Any) -> None:
        raise NotImplementedError

    def _take(self, treated: bool, values: dict[str, Any]) -> bool:
        raise NotImplementedError

    def _judged(self) -> Verdict:
        raise NotImplementedError

    def row(self) -> ExperimentRow:
        """Return what is known now."""
        raise NotImplementedError

    def _row(self, **fields: Any) -> ExperimentRow:
        return ExperimentRow(
            metric=self.spec.metric,
            role=self.role,
            verdict=self.verdict if all(self.n) else "no data",
            worse_than=self.spec.worse_than,
            alpha=self.alpha,
            n=(self.n[0], self.n[1]),
            n_missing=(self.n_missing[0], self.n_missing[1]),
            decided_at=self.decided_at,
            **fields,
        )


@dataclass(kw_only=True)
class _TypicalTest(SequentialTest):
    spec: Typical
    difference: Difference = field(default_factory=Difference)
    looks: bool = False

    def _take(self, treated: bool, values: dict[str, Any]) -> bool:
        log = _log(values.get(self.spec.metric))
        beside = finite(values.get(self.spec.covariate)) if self.spec.covariate else 0.0
        if log is None or beside is None or abs(beside) > LARGEST:
            return False
        self.looks = self.difference.add(treated, log, beside)
        return True

    def _join(self, other: Any) -> None:
        self.difference.join(other.difference)
        self.looks = True

    def _judged(self) -> Verdict:
        if not self.looks:
            return "undecided"  # nothing closed since the last look
        _, low, high, *_ = self.difference.estimate(self._level)
        if self.spec.better == "higher":
            low, high = -high, -low
        if low > math.log(self.spec.worse_than):
            return "worse"
        return "better" if high < 0 else "undecided"

    @property
    def _level(self) -> float:
        # an interval misses at either end; a guardrail has one that matters
        return self.alpha if self.role == "metric" else min(2 * self.alpha, 0.5)

    def row(self) -> ExperimentRow:
        centre, low, high, _, _, block = self.difference.estimate(self._level)
        return self._row(
            name=self.spec.metric,
            kind="typical",
            better=self.spec.better,
            ratio=_exp(centre),
            low=_exp(low),
            high=_exp(high),
            block=block,
            explained=self.difference.explained if self.spec.covariate else None,
        )


@dataclass(kw_only=True)
class _EventTest(SequentialTest):
    """Events are bets against the candidate: the sum of all, at any moment, is the evidence."""

    events: EventRatio

    def _join(self, other: Any) -> None:
        self.events.join(other.events)

    def _judged(self) -> Verdict:
        wanted = -math.log(self.alpha)
        # a mean is no more than its largest part, which costs a tenth to look at
        sure = max(self.events.logs) >= wanted and self.events.log_evidence >= wanted
        return "worse" if sure else "undecided"

    def _rates(self, **fields: Any) -> ExperimentRow:
        low, high = self.events.interval(2 * self.alpha)
        counted, n = self.events.n_counted, self.events.n
        ratio = counted[1] * n[0] / (counted[0] * n[1]) if counted[0] and n[1] else None
        return self._row(
            better="lower",
            ratio=ratio,
            low=low,
            high=high if math.isfinite(high) else None,
            n_events=(self.events.n_events[0], self.events.n_events[1]),
            **fields,
        )


@dataclass(kw_only=True)
class _TailTest(_EventTest):
    spec: Tail
    threshold: float | None = None
    first: list[float] = field(default_factory=list)
    spread: Moments = field(default_factory=Moments)
    difference: Difference = field(default_factory=Difference)
    pause: int = 0

    def _join(self, other: Any) -> None:
        super()._join(other)
        self.threshold = other.threshold if self.threshold is None else self.threshold
        self.pause = max(self.pause, other.pause)

    def _take(self, treated: bool, values: dict[str, Any]) -> bool:
        log = _log(values.get(self.spec.metric))
        if log is None:
            return False
        if self.difference.add(treated, log) and self.difference.levels[0].n % EVERY == 0:
            # values that resemble their neighbours pass a threshold in bursts: one counts
            estimate = self.difference.estimate()
            if math.isinf(estimate.high):
                self.pause = UNKNOWN * estimate.block
            else:
                self.pause = 0 if estimate.block == BLOCK else estimate.block
        # both arms on one scale, on which the candidate may be as bad as the control
        scaled = log - math.log(self.spec.worse_than) if treated else log
        self.spread.add(scaled)
        if self.threshold is None:
            self.first.append(scaled)
            if len(self.first) >= max(FIRST, round(2 / (1 - self.spec.p))):
                self.threshold = sorted(self.first)[int(self.spec.p * len(self.first))]
                self.first = []
            return True
        passes = scaled > self.threshold
        self.events.add(treated, passes, self.pause)
        # Robbins and Monro (1951); any threshold is fair that knows earlier requests alone
        self.threshold += STEP * math.sqrt(self.spread.variance) * (passes - (1 - self.spec.p))
        return True

    def row(self) -> ExperimentRow:
        name = f"{self.spec.metric} p{100 * self.spec.p:g}"
        row = self._rates(name=name, kind="tail", block=self.pause or 1)
        # without a threshold nothing has been compared
        return row if self.threshold is not None else replace(row, low=None)


@dataclass(kw_only=True)
class _RateTest(_EventTest):
    spec: Rate

    def _take(self, treated: bool, values: dict[str, Any]) -> bool:
        value = finite(values.get(self.spec.metric))
        if value is None:
            return False
        self.events.add(treated, value != 0)
        return True

    def row(self) -> ExperimentRow:
        return self._rates(name=self.spec.metric, kind="rate")


def begin(metric: Metric, role: Role, alpha: float, share: float) -> SequentialTest:
    """Return a comparison that has seen nothing yet; ``share`` : of the candidate."""
    if isinstance(metric, Typical):
        return _TypicalTest(role=role, alpha=alpha, spec=metric)
    if isinstance(metric, Tail):
        # the ratio that is allowed is in the scale: what is left to compare is one to one
        return _TailTest(role=role, alpha=alpha, spec=metric, events=EventRatio(1.0, share))
    return _RateTest(role=role, alpha=alpha, spec=metric, events=EventRatio(metric.worse_than, share))


def finite(value: Any) -> float | None:
    """Return a number, None for what is none: NaN, infinity, text, several, nothing."""
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None  # RuntimeError: a tensor of several numbers, or of another device
    return number if math.isfinite(number) else None


def _log(value: Any) -> float | None:
    number = finite(value)
    return math.log(number) if number is not None and number > 0 else None


def _exp(log: float) -> float | None:
    return math.exp(log) if math.isfinite(log) and abs(log) < 700 else None
