"""Make a large trace out of a small real one, to measure how reading scales.

The recording is repeated end to end, as if the same steps had gone on: time stamps move on by the
recording's length, and step numbers, correlations, flow ids, op ids and Python frame ids move past
those already used. Everything else, the white space included, is the recording's own text. One
repetition at a time is in memory, so the result may be larger than memory.

    python benchmarks/make_large_trace.py --gigabytes 1 --out large.json
    python benchmarks/make_large_trace.py --events 500000 --out large.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

DATA = Path(os.environ.get("TORCHTRIAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
# An H100 recording of one step with Python stacks, shapes and memory events.
BASE = DATA / "traces" / "cv" / "timesformer_h100_infer.json.gz"

# Numbers that must differ between repetitions. Keys of one series share their values (a flow
# arrow's id is the correlation of the launch it belongs to), so they move by one stride.
SERIES = {
    "ts": "time",
    "id": "link",
    "correlation": "link",
    "External id": "link",
    "external id": "link",
    "wait_on_cuda_event_record_corr_id": "link",
    "Python id": "frame",
    "Python parent id": "frame",
    "Ev Idx": "index",
    "Record function id": "record",
    "Sequence number": "sequence",
}
# Zero means "none" in these series and stays zero.
ZERO_IS_NONE = {"link", "frame", "record"}
# Quotes inside JSON strings are escaped, so an unescaped `"key": ` can only be a key. Only the
# whole microseconds of a time stamp are matched: its decimals are kept as they are.
NUMBER = re.compile(rf'"({"|".join(SERIES)})":\s*"?(\d+)|"name":\s*"ProfilerStep#(\d+)')


@dataclass(frozen=True)
class Recording:
    """A trace cut into the text before its events, the events, and the text after them.

    Attributes
    ----------
    head, tail : the text before the first and after the last event.
    separator : what stands between two events.
    n_events : events that are repeated.
    pieces : their text, cut at every number that moves.
    moving : per series, the positions in `pieces` and the values there.
    strides : per series, what one repetition adds.
    closing : metadata and the profiler's own spans, which a trace holds once.
    """

    head: str
    tail: str
    separator: str
    n_events: int
    pieces: list[str]
    moving: dict[str, list[tuple[int, int]]]
    strides: dict[str, int]
    closing: list[str]

    def repetition(self, number: int) -> str:
        """Return the text of all repeated events, moved on `number` times."""
        pieces = self.pieces.copy()
        for series, places in self.moving.items():
            shift = number * self.strides[series]
            for position, value in places:
                pieces[position] = str(value + shift)
        return "".join(pieces)

    def ending(self, n_repetitions: int) -> str:
        """Return the closing events, stretched over all repetitions, and the text after them."""
        shift = (n_repetitions - 1) * self.strides["time"]

        def later(match: re.Match[str]) -> str:
            return match.group(1) + str(int(match.group(2)) + shift)

        rows = [re.sub(r'("dur":\s*)(\d+)', later, row) for row in self.closing]
        rows = [re.sub(r'("ts":\s*)(\d+)', later, row) if "Record Window End" in row else row for row in rows]
        return self.separator.join(rows) + self.tail


def read_recording(path: Path) -> Recording:
    """Cut the Kineto trace at `path` (.json or .json.gz) into a `Recording`."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8", "surrogateescape")
    start = re.search(r'"traceEvents":\s*\[\s*', text)
    if start is None:
        raise SystemExit(f'{path}: expected a Kineto trace, found no "traceEvents"')
    rows, end = events_of(text, start.end())
    separator = text[rows[0][1] : rows[1][0]]

    repeated = [text[first:last] for first, last, event in rows if not belongs_once(event)]
    closing = [text[first:last] for first, last, event in rows if belongs_once(event)]
    work = [event for *_, event in rows if event["ph"] == "X" and not belongs_once(event)]
    length_us = max(float(e["ts"]) + float(e["dur"]) for e in work) - min(float(e["ts"]) for e in work)

    body = separator.join(repeated) + separator
    pieces: list[str] = []
    moving: dict[str, list[tuple[int, int]]] = defaultdict(list)
    done = 0
    for match in NUMBER.finditer(body):
        group = match.lastindex or 0  # 2: the value of a key, 3: the number of a step
        series = SERIES.get(match.group(1), "step")
        number = int(match.group(group))
        if number == 0 and series in ZERO_IS_NONE:
            continue
        pieces.append(body[done : match.start(group)])
        moving[series].append((len(pieces), number))
        pieces.append("")
        done = match.end(group)
    pieces.append(body[done:])

    strides = {
        series: max(value for _, value in places) - min(value for _, value in places) + 1
        for series, places in moving.items()
    }
    strides["time"] = math.ceil(length_us) + 1
    return Recording(
        head=text[: start.end()],
        tail=text[end:],
        separator=separator,
        n_events=len(repeated),
        pieces=pieces,
        moving=dict(moving),
        strides=strides,
        closing=closing,
    )


def events_of(text: str, position: int) -> tuple[list[tuple[int, int, dict[str, Any]]], int]:
    """Return (first, last, event) of each event from `position` on, and where the last one ends."""
    decode = json.JSONDecoder(strict=False).raw_decode
    next_event = re.compile(r"\s*,\s*")
    rows = []
    while True:
        event, last = decode(text, position)
        rows.append((position, last, event))
        comma = next_event.match(text, last)
        if comma is None:
            return rows, last
        position = comma.end()


def belongs_once(event: dict[str, Any]) -> bool:
    """Return whether a trace holds this event once: metadata, the profiler's span and marks."""
    return event["ph"] == "M" or event.get("cat") == "Trace" or event.get("s") == "g"


@contextmanager
def open_for_writing(path: Path) -> Iterator[BinaryIO]:
    """Open `path`, compressing when its name ends in .gz (same input, same bytes)."""
    with path.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


def make(out: Path, *, base: Path = BASE, n_events: int | None = None, n_bytes: int | None = None) -> int:
    """Write repetitions of `base` to `out`; return how many events of `base` they hold.

    The size is the nearest number of whole repetitions to `n_events`, or the first one at or above
    `n_bytes` of JSON text. Metadata and the profiler's own marks come on top, once.
    """
    recording = read_recording(base)
    wanted = max(1, round((n_events or 0) / recording.n_events))
    n_repetitions = n_written = 0
    with open_for_writing(out) as file:
        n_written += file.write(recording.head.encode("utf-8", "surrogateescape"))
        while n_written < n_bytes if n_bytes else n_repetitions < wanted:
            repetition = recording.repetition(n_repetitions)
            n_written += file.write(repetition.encode("utf-8", "surrogateescape"))
            n_repetitions += 1
        ending = recording.ending(n_repetitions)
        n_written += file.write(ending.encode("utf-8", "surrogateescape"))
    return n_repetitions * recording.n_events


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--events", type=int, metavar="N", help="about this many events")
    size.add_argument("--gigabytes", type=float, metavar="GB", help="1e9 bytes of JSON text each")
    parser.add_argument("--out", type=Path, required=True, help="a name ending in .gz compresses")
    parser.add_argument("--base", type=Path, default=BASE, help="the trace to repeat (%(default)s)")
    args = parser.parse_args()
    n_bytes = int(args.gigabytes * 1e9) if args.gigabytes else None
    n_events = make(args.out, base=args.base, n_events=args.events, n_bytes=n_bytes)
    print(f"{args.out}: {n_events:,} events, {args.out.stat().st_size / 1e6:,.1f} MB")


if __name__ == "__main__":
    main()
