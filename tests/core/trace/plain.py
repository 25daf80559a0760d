"""A plain reading of a trace document, to hold the columns against. Imports no product code."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

MEMORY = "[memory]"
NO_TIME = -(1 << 100)


class PlainRow(NamedTuple):
    start_ns: int
    dur_ns: int
    name: str
    cat: str
    pid: str
    tid: str
    args: dict[str, Any]


def parse(text: bytes) -> Any:
    return json.loads(text.decode(), parse_float=Decimal)


def read_file(path: Path) -> Any:
    data = path.read_bytes()
    return parse(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def events_of(document: Any) -> list[dict[str, Any]]:
    return document if isinstance(document, list) else document["traceEvents"]


def to_ns(microseconds: Any) -> int:
    return round(Decimal(microseconds) * 1000)


def plain_rows(document: Any) -> list[PlainRow]:
    """Complete events and instants that are no allocator record, in file order."""
    rows = []
    for event in events_of(document):
        phase = event.get("ph")
        if phase == "X":
            dur = max(to_ns(event.get("dur", 0)), 0)
        elif phase in ("i", "I") and event.get("name") != MEMORY:
            dur = 0
        else:
            continue
        rows.append(
            PlainRow(
                to_ns(event["ts"]) if "ts" in event else NO_TIME,
                dur if "ts" in event else 0,
                event.get("name", ""),
                event.get("cat", "") or ("" if phase == "X" else "instant"),
                str(event.get("pid", "")),
                str(event.get("tid", "")),
                event.get("args") or {},
            )
        )
    # an event without a time is kept, without a length, where the trace begins
    first = min((row.start_ns for row in rows if row.start_ns != NO_TIME), default=0)
    return [row._replace(start_ns=max(row.start_ns, first)) for row in rows]


def plain_phases(document: Any) -> dict[str, int]:
    return dict(Counter(event.get("ph", "") for event in events_of(document)))


def plain_meta(document: Any) -> dict[str, Any]:
    if isinstance(document, list):
        return {}
    return {key: value for key, value in document.items() if key != "traceEvents"}
