"""Detectors over recorded streams: what would have alarmed, and how right that is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.errors import SampleError
from torchtriage.operate.detect.latency_detector import Alarm, RequestDetector
from torchtriage.operate.detect.metric import MetricDetector
from torchtriage.operate.detect.recorded import RecordedStream, StreamLabels, labelled_rows, read_labels, read_log
from torchtriage.operate.detect.score import DetectionScore, Scoring, score

SCHEMA = "torchtriage-monitor-replay/1"


@dataclass(frozen=True)
class StreamReplay:
    """One stream, its alarms, and their score where labels are known."""

    log: str
    stream: RecordedStream
    alarms: tuple[Alarm, ...]
    score: DetectionScore | None
    on: tuple[tuple[int, int], ...] = ()
    """Rows ``[start, end)`` during which something alarmed."""
    n_judged: int = 0
    """Values after those that only teach."""


def _run(stream: RecordedStream) -> tuple[tuple[Alarm, ...], tuple[tuple[int, int], ...], int]:
    detector = RequestDetector() if stream.is_requests else MetricDetector()
    raised: list[Alarm] = []
    on: list[tuple[int, int]] = []
    n_judged = 0
    for row, sample in enumerate(stream.samples):
        alarm = detector.update(sample)
        n_judged += detector.settled
        if alarm is not None:
            raised.append(alarm)
        if alarm is not None or (on and on[-1][1] == row and detector.alarmed):
            start = on.pop()[0] if on and on[-1][1] == row else row
            on.append((start, row + 1))
    return tuple(raised), tuple(on), n_judged


def replay(path: str | Path, labels: str | Path | None = None) -> list[StreamReplay]:
    """Return what the streams of a log would have alarmed.

    ``labels`` : a file, or a folder with ``<log's stem>.json`` or ``windows.json``. Without it, a
    log's own column ``label`` is taken where there is one.
    Raises ``SampleError``: the log or the labels cannot be read.
    """
    out = []
    ends: list[int] = []
    for stream in read_log(path):
        known = _labels(stream, path, labels)
        raised, on, n_judged = _run(stream)
        result = None
        if known is not None:
            n = len(stream.samples)
            rules = Scoring.of(n, is_requests=stream.is_requests)
            result = score([alarm.row for alarm in raised], known, n, rules)
            ends += [fault.end for fault in known.faults]
        out.append(StreamReplay(str(path), stream, raised, result, on, n_judged))
    if ends and not any(ends):
        raise SampleError(
            f"expected faults within {path}, found none of {len(ends)} there",
            where=str(labels),
            hint="give times on the log's own clock",
        )
    return out


def _labels(stream: RecordedStream, log: str | Path, labels: str | Path | None) -> StreamLabels | None:
    places = [] if labels is None else [Path(labels)]
    if labels is not None and Path(labels).is_dir():
        places = [Path(labels) / name for name in (f"{Path(log).stem}.json", "windows.json")]
        places = [place for place in places if place.is_file()]
    if places:
        return read_labels(places[0], stream, log)
    return labelled_rows(stream) if stream.labels else None


def document(streams: list[StreamReplay]) -> dict[str, Any]:
    """Return everything as JSON's types."""
    scores = [replayed.score for replayed in streams if replayed.score is not None]
    return {
        "schema": SCHEMA,
        "streams": [
            {
                "log": replayed.log,
                "stream": replayed.stream.name,
                "kind": "requests" if replayed.stream.is_requests else "metric",
                "n_values": len(replayed.stream.samples),
                "n_judged": replayed.n_judged,
                "n_skipped": replayed.stream.n_skipped,
                "is_sampled": replayed.stream.is_sampled,
                "alarms": [alarm._asdict() for alarm in replayed.alarms],
                "score": None if replayed.score is None else _score(replayed.score),
            }
            for replayed in streams
        ],
        "total": _score(DetectionScore.of(scores)) if scores else None,
    }


def _score(score: DetectionScore) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if value == value else None  # NaN is not JSON

    return {
        "recall": number(score.recall),
        "false_alarms_per_10k": number(score.per_10k),
        "chance_recall": number(score.chance()),
        "nab_score": number(score.nab_score),
        "n_clean": score.n_clean,
        "false_alarms": list(score.false_alarms),
        "benign_alarms": list(score.benign_alarms),
        "faults": [asdict(fault) for fault in score.faults],
    }
