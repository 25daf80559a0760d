"""Score the detectors, and well-known ones beside them, on labelled series (docs/detection-measured.md).

    python benchmarks/detection.py ../shared/data/anomaly [--half held-out] [--river]

Each detector has one setting for everything and sees each value before the next. What has no notion
of a missing value gets the last one again.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from torchtriage.operate.detect.latency_detector import RequestDetector
from torchtriage.operate.detect.metric import MetricDetector
from torchtriage.operate.detect.recorded import (
    LabelledFault,
    RecordedStream,
    StreamLabels,
    labelled_rows,
    read_labels,
    read_log,
)
from torchtriage.operate.detect.score import DetectionScore, Scoring, score

SETS = ("semi", "ptlat", "msft", "nab")


def series(root: Path, name: str, half: str = "") -> list[tuple[RecordedStream, StreamLabels, Scoring]]:
    """Return one set's streams with labels and rules; ``half`` : of those chosen on, or held out, alone."""
    paths = sorted((root / name).rglob("*.csv"))
    if half:
        by_digest = sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).hexdigest())
        paths = sorted(by_digest[half == "held-out" :: 2])
    out = []
    for path in paths:
        (stream,) = read_log(path)
        n = len(stream.samples)
        rules = Scoring.of(n, is_requests=stream.is_requests)
        if name == "msft":
            labels = labelled_rows(stream)
        elif name == "nab":
            labels = read_labels(root / name / "windows.json", stream, path)
            rules = Scoring(rules.apart, 0, rules.warm_up)
        else:
            labels = read_labels(path.with_suffix(".json"), stream, path)
        if name == "ptlat":
            labels = StreamLabels(measurable(path.with_suffix(".json"), labels), labels.excused)
            rules = Scoring(rules.apart, 600, rules.warm_up)
        out.append((stream, labels, rules))
    return out


def measurable(path: Path, labels: StreamLabels) -> tuple[LabelledFault, ...]:
    """Return the faults that had a measurable effect, by the data's own rule; others excuse."""
    import json

    kept = []
    for fault, told in zip(labels.faults, json.loads(path.read_text())["faults"], strict=True):
        counts = (
            fault.benign
            or fault.kind in ("error", "stuck")
            or "median_ratio" not in told
            or abs(math.log(told["median_ratio"])) > 0.04
            or told["p99_ratio"] > 1.4
            or told["max_over_pre_p99"] > 5
        )
        kept.append(fault if counts else LabelledFault("no effect", fault.start, fault.end))
    return tuple(kept)


# -- detectors: a function of a stream that gives the rows of its alarms ---------------------


def ours(stream: RecordedStream) -> list[int]:
    """Return the default detector's alarms."""
    detector = RequestDetector() if stream.is_requests else MetricDetector()
    return [at for at, one in enumerate(stream.samples) if detector.update(one) is not None]


def filled(stream: RecordedStream) -> list[float]:
    """Return the values, missing ones replaced by the last."""
    values, last = [], 0.0
    for sample in stream.samples:
        if sample.ok and math.isfinite(sample.value):
            last = sample.value
        values.append(last)
    return values


def in_microseconds(stream: RecordedStream) -> list[float]:
    """Return the values; durations in a unit that thresholds of one and more are made for."""
    return [value * (1e6 if stream.is_requests else 1.0) for value in filled(stream)]


def three_sigma(k: float, window: int = 100) -> Callable[[RecordedStream], list[int]]:
    """Return the rule ``|x - mean| > k sd`` over the last values."""

    def run(stream: RecordedStream) -> list[int]:
        last: deque[float] = deque(maxlen=window)
        total = squares = 0.0
        rows = []
        for at, value in enumerate(filled(stream)):
            if len(last) == window:
                mean = total / window
                deviation = math.sqrt(max(squares / window - mean * mean, 0.0))
                if abs(value - mean) > k * deviation > 0:
                    rows.append(at)
                total -= last[0]
                squares -= last[0] ** 2
            last.append(value)
            total += value
            squares += value * value
        return rows

    return run


def ewma(limit: float, weight: float = 0.1, learn: int = 500) -> Callable[[RecordedStream], list[int]]:
    """Return an EWMA chart with a frozen baseline (Roberts 1959)."""

    def run(stream: RecordedStream) -> list[int]:
        values = filled(stream)
        first = sorted(values[: min(learn, len(values) // 7)])
        centre = first[len(first) // 2]
        scale = 1.4826 * sorted(abs(one - centre) for one in first)[len(first) // 2] or 1e-12
        wide = limit * scale * math.sqrt(weight / (2 - weight))
        mean, rows = centre, []
        for at, value in enumerate(values):
            mean += weight * (value - mean)
            if abs(mean - centre) > wide:
                rows.append(at)
        return rows

    return run


def river_detectors() -> dict[str, Callable[[RecordedStream], list[int]]]:
    """Return river's detectors (pip install river)."""
    from river import anomaly, drift

    def scorer(limit: float) -> Callable[[RecordedStream], list[int]]:
        def run(stream: RecordedStream) -> list[int]:
            detector = anomaly.GaussianScorer(window_size=200, grace_period=200)
            rows = []
            for at, value in enumerate(in_microseconds(stream)):
                try:
                    odd = detector.score_one(None, value) > limit
                except TypeError:  # its rolling variance went below zero: rounding
                    odd = False
                if odd:
                    rows.append(at)
                detector.learn_one(None, value)
            return rows

        return run

    def drifts(make: Callable[[], object], *, log: bool) -> Callable[[RecordedStream], list[int]]:
        def run(stream: RecordedStream) -> list[int]:
            detector = make()
            rows = []
            for at, value in enumerate(in_microseconds(stream)):
                detector.update(math.log(max(value, 1e-12)) if log else value)  # type: ignore[attr-defined]
                if detector.drift_detected:  # type: ignore[attr-defined]
                    rows.append(at)
            return rows

        return run

    return {
        "river GaussianScorer, 200, 1 - 1e-7": scorer(1 - 1e-7),
        "river PageHinkley, threshold 100": drifts(lambda: drift.PageHinkley(threshold=100), log=False),
        "river ADWIN of the logarithm": drifts(drift.ADWIN, log=True),
        "river KSWIN of the logarithm, 1e-5": drifts(lambda: drift.KSWIN(alpha=1e-5, seed=1), log=True),
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--half", choices=("chosen", "held-out"), default="", help="only that half of each set")
    parser.add_argument("--river", action="store_true", help="river's detectors too")
    parser.add_argument("--missed", action="store_true", help="list what ours missed")
    arguments = parser.parse_args()
    detectors = {
        "torchtriage": ours,
        "3 sigma, window 100": three_sigma(3),
        "40 sigma, window 100": three_sigma(40),
        "EWMA chart, limit 20": ewma(20),
    }
    if arguments.river:
        detectors |= river_detectors()
    for name in SETS:
        loaded = series(arguments.root, name, arguments.half)
        print(f"\n{name}: {len(loaded)} series, {sum(len(s.samples) for s, _, _ in loaded):,} rows")
        print("| detector | recall | false alarms / 10k | chance | delay p50, p90 | NAB | us |")
        print("|:--|--:|--:|--:|--:|--:|--:|")
        for title, detector in detectors.items():
            before = time.perf_counter()
            alarms = [detector(stream) for stream, _, _ in loaded]
            spent_us = (time.perf_counter() - before) * 1e6
            scores = [
                score(rows, labels, len(stream.samples), rules)
                for rows, (stream, labels, rules) in zip(alarms, loaded, strict=True)
            ]
            total = DetectionScore.of(
                DetectionScore(
                    tuple(fault for fault in one.faults if fault.fault.kind != "no effect"),
                    one.false_alarms,
                    one.n_clean,
                    one.benign_alarms,
                    one.nab,
                )
                for one in scores
            )
            delays = total.delays() or [0]
            each_us = spent_us / sum(len(stream.samples) for stream, _, _ in loaded)
            nab = f"{total.nab_score:.1f}" if name == "nab" else ""
            print(
                f"| {title} | {total.recall:.2f} | {total.per_10k:.2f} | {total.chance():.2f} |"
                f" {delays[len(delays) // 2]}, {delays[int(0.9 * len(delays))]} | {nab} |"
                f" {each_us:.1f} |" + (f" {len(total.benign_alarms)} benign" if total.benign_alarms else "")
            )
            if arguments.missed and detector is ours:
                by_kind: dict[str, list[str]] = {}
                for found in total.faults:
                    text = f"{found.fault.detail or '-'}:{found.delay}"
                    by_kind.setdefault(found.fault.kind, []).append(text)
                for kind, items in sorted(by_kind.items()):
                    print(f"    {kind}: {'; '.join(items)}")


if __name__ == "__main__":
    main()
