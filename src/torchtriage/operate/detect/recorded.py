"""Recorded streams, for replay: CSV with a header, or the lines of JSON that ``JsonLog`` writes."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from torchtriage.core.errors import SampleError
from torchtriage.operate.detect.latency_detector import Sample

# columns that may hold the value, with what makes seconds of it
VALUES = {
    "duration_ns": 1e-9,
    "duration_us": 1e-6,
    "duration_ms": 1e-3,
    "duration_s": 1.0,
    "latency_us": 1e-6,
    "latency_ms": 1e-3,
    "latency_s": 1.0,
    "value": 1.0,
}
TIMES = ("at_s", "t_s", "time", "timestamp", "ts")
MAX_STREAMS = 1_000


@dataclass
class RecordedStream:
    """One recorded stream. ``is_requests`` : its values are durations of single requests.

    ``labels`` : of each row, where the log has a column for it. ``stamps`` : times as they were
    written. ``n_skipped`` : lines that could not be read.
    """

    name: str
    samples: list[Sample] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    is_requests: bool = True
    n_skipped: int = 0


@dataclass(frozen=True)
class LabelledFault:
    """What is known to be wrong in rows ``[start, end)``. ``benign`` : must not alarm."""

    kind: str
    start: int
    end: int
    benign: bool = False
    detail: str = ""


@dataclass(frozen=True)
class StreamLabels:
    """What is known about one stream. ``excused`` : where alarms are neither right nor wrong."""

    faults: tuple[LabelledFault, ...] = ()
    excused: tuple[tuple[int, int], ...] = ()


def read_log(path: str | Path) -> list[RecordedStream]:
    """Return the streams of a log, one per model and version.

    Raises ``SampleError``: it is neither CSV with a column for the value nor lines of JSON with a duration.
    """
    name = str(path)
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            first = file.readline()
            file.seek(0)
            if first.lstrip().startswith("{"):
                streams = _read_lines(file, name)
            else:
                streams = [_read_csv(csv.DictReader(file), name)]
    except (OSError, csv.Error) as error:
        raise SampleError(f"cannot be read: {error}", where=name) from error
    streams = [stream for stream in streams if stream.samples]
    if not streams:
        raise SampleError("expected at least one value, found none", where=name)
    return streams


def _read_csv(rows: csv.DictReader[str], name: str) -> RecordedStream:
    columns = {(column or "").strip().lower(): column for column in rows.fieldnames or ()}
    value = next((column for column in VALUES if column in columns), None)
    if value is None:
        raise SampleError(
            f"expected a column named one of {', '.join(VALUES)}, found " + (", ".join(columns) or "no columns"),
            where=name,
            hint="give the log a header line",
        )
    stream = RecordedStream(Path(name).stem, is_requests=value != "value")
    time = next((column for column in TIMES if column in columns), None)

    def number(row: dict[str, Any], column: str) -> float | None:
        try:
            return float(row.get(columns[column]) or "nan") if column in columns else None
        except ValueError:
            return math.nan

    for at, row in enumerate(rows):
        stamp = str(row.get(columns[time]) or "") if time else ""
        read = number(row, value)
        took_s = math.nan if read is None else read * VALUES[value]
        ok = number(row, "ok") != 0 and not row.get(columns.get("error", ""))
        stream.samples.append(Sample(took_s, _time(stamp, float(at)), _size(number(row, "size")), ok))
        stream.stamps.append(stamp)
        if "label" in columns:
            stream.labels.append(number(row, "label") == 1)
    return stream


def _read_lines(lines: Iterator[str], name: str) -> list[RecordedStream]:
    streams: dict[tuple[str, str], RecordedStream] = {}
    n_skipped = 0
    for line in lines:
        try:
            row = json.loads(line)
            key = (str(row.get("model", "")), str(row.get("version", "")))
            value = next(column for column in VALUES if column in row)
            sample = Sample(
                math.nan if row.get("nan") else float(row[value]) * VALUES[value],
                float(row.get("at_s", row.get("t_s", 0.0))),
                None if row.get("size") is None else _size(float(row["size"])),
                not row.get("error"),
            )
        except (ValueError, TypeError, AttributeError, StopIteration, RecursionError):
            n_skipped += bool(line.strip())
            continue
        if key not in streams:
            if len(streams) >= MAX_STREAMS:
                n_skipped += 1
                continue
            title = " ".join(part for part in key if part) or Path(name).stem
            streams[key] = RecordedStream(title, is_requests=value != "value")
        streams[key].samples.append(sample)
        streams[key].stamps.append(str(sample.at_s))
    read = list(streams.values())
    if read:
        read[0].n_skipped = n_skipped
    return read


def read_labels(path: str | Path, stream: RecordedStream, log: str | Path) -> StreamLabels:
    """Return what a file says about a stream: faults by row, or windows by time (NAB).

    ``{"faults": [{"kind", "start", "end"}], "ambient": [[start, end]]}`` counts rows; a mapping
    from a log's name to ``[[from, to]]`` names times as the log writes them.

    Raises ``SampleError``: it is neither.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        if isinstance(content, dict) and "faults" in content:
            faults = tuple(
                LabelledFault(
                    str(fault.get("kind", "fault")),
                    int(fault["start"]),
                    int(fault["end"]),
                    bool(fault.get("benign")),
                    ", ".join(
                        f"{name} {fault[name]:g}"
                        for name in ("factor", "p", "every")
                        if isinstance(fault.get(name), int | float)
                    ),
                )
                for fault in content["faults"]
            )
            ambient = tuple((int(a), int(b)) for a, b in content.get("ambient", ()))
            return StreamLabels(faults, ambient)
        ending = "/".join(Path(log).parts[-2:])
        names = (ending, Path(log).name, Path(log).stem) if isinstance(content, dict) else ()
        windows = next((content[name] for name in names if name in content), None)
        if windows is None:
            return StreamLabels()
        return StreamLabels(tuple(_window(stream, str(a), str(b)) for a, b in windows))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SampleError(
            f"expected labels, found {type(error).__name__}: {error}",
            where=str(path),
            hint='{"faults": [{"kind": "shift", "start": 1000, "end": 1400}]}, in rows from 0',
        ) from error


def labelled_rows(stream: RecordedStream) -> StreamLabels:
    """Return the runs of rows that the log itself labels."""
    pairs = pairwise([False, *stream.labels, False])
    edges = [at for at, (before, after) in enumerate(pairs) if before != after]
    return StreamLabels(tuple(LabelledFault("label", *run) for run in zip(edges[::2], edges[1::2], strict=True)))


def _window(stream: RecordedStream, first: str, last: str) -> LabelledFault:
    rows = [at for at, stamp in enumerate(stream.stamps) if first[:19] <= stamp[:19] <= last[:19]]
    return LabelledFault("window", rows[0], rows[-1] + 1) if rows else LabelledFault("window", 0, 0)


def _size(size: float | None) -> float | None:
    return size if size is not None and math.isfinite(size) else None


def _time(stamp: str, otherwise: float) -> float:
    try:
        return float(stamp)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return otherwise
    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
