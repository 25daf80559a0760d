"""How good alarms are against labels: recall at a number of false alarms, and how late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchtriage.operate.detect.recorded import LabelledFault, StreamLabels

LONG = 200  # rows after which an alarm that goes on counts again
SPIKE_ROWS = 5
NAB_FALSE = 0.11  # weight of a false alarm in the standard profile of the Numenta Anomaly Benchmark


@dataclass(frozen=True)
class Scoring:
    """The rules: rows between two episodes, rows excused after a fault, rows to learn in."""

    apart: int
    after: int
    warm_up: int

    @classmethod
    def of(cls, n_rows: int, *, is_requests: bool) -> Scoring:
        """Return the rules for a stream of requests, or for a metric of ``n_rows``."""
        if is_requests:
            return cls(apart=50, after=500, warm_up=600)
        return cls(apart=10, after=3, warm_up=min(int(0.15 * n_rows), 750))


@dataclass(frozen=True)
class FaultDelay:
    """One fault, and how many rows after its start the first alarm came; None: not found."""

    fault: LabelledFault
    delay: int | None


@dataclass(frozen=True)
class DetectionScore:
    """One stream's score; add them with :meth:`of`."""

    faults: tuple[FaultDelay, ...]
    false_alarms: tuple[int, ...]
    """Rows of the episodes that nothing explains."""
    n_clean: int
    benign_alarms: tuple[int, ...] = ()
    nab: float = 0.0
    """Points in NAB's standard profile."""

    @property
    def recall(self) -> float:
        """Share of the faults that were found; NaN of none."""
        hits = sum(fault.delay is not None for fault in self.faults)
        return hits / len(self.faults) if self.faults else math.nan

    @property
    def per_10k(self) -> float:
        """False alarms per 10,000 clean rows; NaN of none."""
        return len(self.false_alarms) / self.n_clean * 1e4 if self.n_clean else math.nan

    @property
    def nab_score(self) -> float:
        """NAB's score: 100 finds every window at its start, 0 does nothing."""
        n = len(self.faults)
        return 100 * (self.nab + n) / (2 * n) if n else math.nan

    def chance(self) -> float:
        """Return the recall that random alarms of this rate would have."""
        lengths = sorted(entry.fault.end - entry.fault.start for entry in self.faults)
        if not lengths or not self.n_clean:
            return math.nan
        return 1 - math.exp(-self.per_10k / 1e4 * lengths[len(lengths) // 2])

    def delays(self) -> list[int]:
        """Return the delays of the faults found, sorted."""
        return sorted(entry.delay for entry in self.faults if entry.delay is not None)

    @classmethod
    def of(cls, scores: Iterable[DetectionScore]) -> DetectionScore:
        """Return the score of several streams together."""
        every = list(scores)
        return cls(
            tuple(fault for score in every for fault in score.faults),
            tuple(row for score in every for row in score.false_alarms),
            sum(score.n_clean for score in every),
            tuple(row for score in every for row in score.benign_alarms),
            sum(score.nab for score in every),
        )


def episodes(rows: Iterable[int], apart: int) -> list[int]:
    """Return the rows at which episodes of alarms start."""
    starts: list[int] = []
    last = -math.inf
    for row in sorted(rows):
        if row - last >= apart or row - starts[-1] >= LONG:
            starts.append(row)
        last = row
    return starts


def score(rows: Sequence[int], labels: StreamLabels, n_rows: int, rules: Scoring) -> DetectionScore:
    """Return the score of alarms at ``rows`` of a stream of ``n_rows``."""
    starts = episodes(rows, rules.apart)
    clean = bytearray(b"\1") * n_rows
    clean[: rules.warm_up] = bytes(min(rules.warm_up, n_rows))
    faults = [fault for fault in labels.faults if not fault.benign]
    stretches = [(fault.start, fault.end + rules.after) for fault in faults]
    for start, end in (*stretches, *labels.excused):
        start, end = max(start, 0), min(end, n_rows)
        clean[start:end] = bytes(max(end - start, 0))
    judged = [fault for fault in faults if fault.start >= rules.warm_up]
    delays = []
    for fault in judged:
        end = fault.start + SPIKE_ROWS if fault.kind == "spike" else fault.end
        hits = [row - fault.start for row in starts if fault.start <= row < end]
        delays.append(FaultDelay(fault, hits[0] if hits else None))
    benign = [
        row for fault in labels.faults if fault.benign for row in starts if fault.start <= row < fault.end + rules.apart
    ]
    return DetectionScore(
        tuple(delays),
        tuple(row for row in starts if clean[row]),
        sum(clean),
        tuple(benign),
        nab_points(starts, judged, rules.warm_up),
    )


def nab_points(starts: Sequence[int], faults: Sequence[LabelledFault], warm_up: int) -> float:
    """Return the points of the Numenta Anomaly Benchmark's standard profile (Lavin, Ahmad 2015)."""
    best: dict[LabelledFault, float] = {}
    points = 0.0
    for row in starts:
        if row < warm_up:
            continue
        fault = next((fault for fault in faults if fault.start <= row < fault.end), None)
        if fault is not None:
            into = -(fault.end - row) / max(fault.end - fault.start, 1)
            best[fault] = max(best.get(fault, -1.0), _sigmoid(into) / _sigmoid(-1.0))
            continue
        before = [fault for fault in faults if fault.end <= row]
        if before:
            last = max(before, key=lambda fault: fault.end)
            points += NAB_FALSE * _sigmoid((row - last.end + 1) / max(last.end - last.start - 1, 1))
        else:
            points -= NAB_FALSE
    return points + sum(best.values()) - (len(faults) - len(best))


def _sigmoid(position: float) -> float:
    return -1.0 if position > 3 else 2 / (1 + math.exp(5 * position)) - 1
