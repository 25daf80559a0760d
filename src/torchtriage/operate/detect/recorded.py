"""Recorded streams, for replay: CSV with a header, or the lines of JSON that ``JsonLog`` writes."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import TypeVar

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
MOST_S = 1e11  # what is larger is no time in seconds, but in milliseconds, microseconds or nanoseconds
# as pandas, databases and loggers write it; datetime.fromisoformat reads less of it in older versions of Python
DATE = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[T _](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?)?"
    r" ?(?:Z|UTC|([+-]\d\d):?(\d\d)?)?",
    re.ASCII,
)
NOTHING = frozenset(("", "none", "null", "nan", "na", "n/a"))
WORDS = {"true": True, "t": True, "yes": True, "y": True, "false": False, "f": False, "no": False, "n": False}

T = TypeVar("T")


@dataclass
class RecordedStream:
    """One recorded stream. ``is_requests`` : its values are durations of single requests.

    ``labels`` : of each row, where the log has a column for it. ``stamps`` : times as they were
    written, empty where none could be read. ``per_s`` : what numbers among them count to a second.
    ``n_skipped`` : lines that could not be read, or not in full. ``is_sampled`` : it has all failures,
    but not all of the other requests.
    """

    name: str
    samples: list[Sample] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    per_s: float = 1.0
    is_requests: bool = True
    n_skipped: int = 0
    is_sampled: bool = False


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

    Raises ``SampleError``: it is neither CSV with a column for the value nor lines of JSON with a duration, nothing in
    a column of values, failures or labels can be read, or the newest line is the first.
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
    for stream in streams:
        if _newest_first([sample.at_s for sample in stream.samples]):
            raise SampleError("expected the oldest line first, found the newest", where=name, hint="sort it by time")
    return streams


def _newest_first(times_s: list[float]) -> bool:
    # From line to line alone half go back where many requests at once are written as they end, with their begins;
    # over a quarter of the log alone many do where a clock begins again with its process.
    def goes_back(n: int) -> bool:
        steps = [after - before for before, after in zip(times_s, times_s[n:], strict=False)]
        return sum(step < 0 for step in steps) > sum(step > 0 for step in steps)

    return goes_back(1) and goes_back(max(len(times_s) // 4, 1))


def _read_csv(rows: csv.DictReader[str], name: str) -> RecordedStream:
    columns = {column.strip().lower(): column for column in rows.fieldnames or () if column and column.strip()}
    value = next((column for column in VALUES if column in columns), None)
    if value is None:
        raise SampleError(
            f"expected a column named one of {', '.join(VALUES)}, found " + (", ".join(columns) or "no columns"),
            where=name,
            hint="give the log a header line",
        )
    stream = RecordedStream(Path(name).stem, is_requests=value != "value")
    time = next((column for column in TIMES if column in columns), "")
    table = list(rows)
    unread: set[int] = set()

    def read(column: str, parse: Callable[[str], T | None], wanted: str = "") -> list[T | None]:
        if column not in columns:
            return [None] * len(table)
        cells = [str(row.get(columns[column]) or "").strip() for row in table]
        parsed = [parse(cell) for cell in cells]
        odd = [at for at, cell in enumerate(cells) if parsed[at] is None and cell.lower() not in NOTHING]
        if odd and wanted and len(odd) == sum(cell.lower() not in NOTHING for cell in cells):
            raise SampleError(f"expected {wanted}, found {cells[odd[0]]!r}", where=f"{name}, column {columns[column]}")
        unread.update(odd)
        return parsed

    values, sizes = read(value, _number, "numbers"), read("size", _number)
    oks, labels = (read(column, _truth, "0 and 1, or true and false") for column in ("ok", "label"))
    errors = read("error", _is_error, "errors")
    for row, took in enumerate(values):
        took_s = math.nan if took is None else took * VALUES[value]
        stream.samples.append(Sample(took_s, 0.0, _size(sizes[row]), oks[row] is not False and not errors[row]))
    unread.update(_set_times(stream, [str(row.get(columns.get(time, "")) or "").strip() for row in table]))
    if "label" in columns:
        stream.labels = [label is True for label in labels]
    stream.n_skipped = len(unread)
    return stream


def _set_times(stream: RecordedStream, stamps: list[str]) -> list[int]:
    """Set the times of a stream's samples; return the rows whose time cannot be read."""
    stream.per_s = _per_s(stamps)
    times = [_time(stamp, stream.per_s) for stamp in stamps]
    at_s = next((known for known in times if known is not None), None)
    stream.stamps = [""] * len(stamps) if at_s is None else stamps
    for row, known in enumerate(times):
        # where a time is not known, the clock stands still; where none is, rows are the clock
        at_s = known if known is not None else at_s
        stream.samples[row] = stream.samples[row]._replace(at_s=float(row) if at_s is None else at_s)
    return [row for row, known in enumerate(times) if known is None and stamps[row].lower() not in NOTHING]


def _read_lines(lines: Iterator[str], name: str) -> list[RecordedStream]:
    streams: dict[tuple[str, str], RecordedStream] = {}
    n_skipped = 0
    for line in lines:
        try:
            row = json.loads(line)
            key = (str(row.get("model", "")), str(row.get("version", "")))
            value = next(column for column in VALUES if column in row)
            stamp = str(row.get("at_s", row.get("t_s", "")))
            sample = Sample(
                math.nan if row.get("nan") else float(row[value]) * VALUES[value],
                0.0,
                None if row.get("size") is None else _size(float(row["size"])),
                not _is_error(str(row.get("error") or "")),
            )
        except (ValueError, TypeError, AttributeError, StopIteration, RecursionError, OverflowError):
            n_skipped += bool(line.strip())
            continue
        if key not in streams:
            if len(streams) >= MAX_STREAMS:
                n_skipped += 1
                continue
            title = " ".join(part for part in key if part) or Path(name).stem
            streams[key] = RecordedStream(title, is_requests=value != "value")
        streams[key].samples.append(sample)
        streams[key].stamps.append(stamp)
        share = row.get("sample")
        streams[key].is_sampled |= isinstance(share, int | float) and share < 1
    read = list(streams.values())
    n_skipped += sum(len(_set_times(stream, stream.stamps)) for stream in read)
    if read:
        read[0].n_skipped = n_skipped
    return read


def read_labels(path: str | Path, stream: RecordedStream, log: str | Path) -> StreamLabels:
    """Return what a file says about a stream: faults by row, or windows by time (NAB).

    ``{"faults": [{"kind", "start", "end"}], "ambient": [[start, end]]}`` counts rows; a mapping
    from a log's name to ``[[from, to]]`` names times as the log does, in seconds or as ISO 8601.

    Raises ``SampleError``: it is neither, a time cannot be read, or it does not name the log.
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
        names = (ending, Path(log).name, Path(log).stem)
        windows = next((content[name] for name in names if name in content), None)
        if windows is None:
            raise SampleError(
                f"expected labels of {ending}, found none",
                where=str(path),
                hint=f'"{Path(log).name}": [] where nothing was wrong',
            )
        return StreamLabels(tuple(_window(stream, str(a), str(b)) for a, b in windows))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
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
    # as the log counts, or else in a unit of their own: seconds beside a log in milliseconds
    for per_s in (stream.per_s, _per_s((first, last))):
        first_s, last_s = _time(first, per_s), _time(last, per_s)
        if first_s is None or last_s is None:
            raise ValueError(f"{first} to {last}, which are not times")
        rows = [at for at, sample in enumerate(stream.samples) if first_s <= sample.at_s <= last_s]
        if rows:
            return LabelledFault("window", rows[0], rows[-1] + 1)
    return LabelledFault("window", 0, 0)


def _size(size: float | None) -> float | None:
    return size if size is not None and math.isfinite(size) else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _truth(text: str) -> bool | None:
    number = _number(text)
    return WORDS.get(text.lower()) if number is None else bool(number) if number in (0, 1) else None


def _is_error(text: str) -> bool:
    """Return whether a cell that is empty, or false, where there was no error tells of one."""
    return text.lower() not in NOTHING and _truth(text) is not False


def _time(text: str, per_s: float) -> float | None:
    """Return seconds, of a date since the epoch; None for what is no time. ``per_s`` : what a number counts."""
    number = _number(text)
    if number is not None:
        return number / per_s if math.isfinite(number) else None
    found = DATE.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone, more = found.groups("00")
    try:
        at = datetime.fromisoformat(f"{year}-{month}-{day}T{hour}:{minute}:{second}{zone:+>3}:{more}")
    except ValueError:
        return None
    return at.timestamp() + float(f"0.{fraction}")


def _per_s(stamps: Sequence[str]) -> float:
    """Return what the numbers of a column count to a second, all of them the same."""
    sizes = [abs(number) for number in map(_number, stamps) if number is not None and math.isfinite(number)]
    usual, per_s = median_low(sizes or [0.0]), 1.0
    while usual / per_s > MOST_S:
        per_s *= 1e3
    return per_s
