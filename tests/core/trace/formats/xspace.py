"""Writes small XPlanes, reads any one field by field, slowly, and writes it as JSON: no code of the product's."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# -- writing -------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def chunk(field: int, raw: bytes | str) -> bytes:
    raw = raw.encode() if isinstance(raw, str) else raw
    return varint(field << 3 | 2) + varint(len(raw)) + raw


class Event(NamedTuple):
    name: str
    start_ps: int
    dur_ps: int
    stats: Mapping[str, int | str | float] = {}
    referred: bool = False
    """Whether texts of statistics are references."""


class Line(NamedTuple):
    name: str
    events: Iterable[Event]
    id: int = 1
    at_ns: int = 0


def plane(
    name: str,
    *lines: Line,
    stats: Mapping[str, int | str | float] = {},
    of_names: Mapping[str, Mapping[str, int | str | float]] = {},
) -> bytes:
    """Return a plane; ``of_names`` : statistics of the names of events."""
    names: dict[str, int] = {}
    stat_names: dict[str, int] = {}

    def stat(key: str, value: int | str | float, referred: bool = False) -> bytes:
        out = number(1, stat_names.setdefault(key, len(stat_names) + 1))
        if isinstance(value, float):
            return out + varint(2 << 3 | 1) + struct.pack("<d", value)
        if isinstance(value, int):
            return out + number(4 if value < 0 else 3, value)
        return out + (number(7, stat_names.setdefault(value, len(stat_names) + 1)) if referred else chunk(5, value))

    body = chunk(2, name)
    for line in lines:
        out = number(1, line.id) + chunk(2, line.name) + number(3, line.at_ns)
        for event in line.events:
            one = number(1, names.setdefault(event.name, len(names) + 1))
            one += number(2, event.start_ps) + number(3, event.dur_ps)
            one += b"".join(chunk(4, stat(key, value, event.referred)) for key, value in event.stats.items())
            out += chunk(4, one)
        body += chunk(3, out)
    for text, index in names.items():
        own = b"".join(chunk(5, stat(key, value)) for key, value in of_names.get(text, {}).items())
        body += chunk(4, number(1, index) + chunk(2, number(1, index) + chunk(2, text) + own))
    own = b"".join(chunk(6, stat(key, value)) for key, value in stats.items())
    for text, index in stat_names.items():
        body += chunk(5, number(1, index) + chunk(2, number(1, index) + chunk(2, text)))
    return chunk(1, body + own)


# -- reading -------------------------------------------------------------------------------------

Field = tuple[int, Any]


def fields(raw: bytes) -> list[Field]:
    """Return number and value of each field of a message: a whole number, or bytes."""
    at, out = 0, []

    def whole() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(raw):
        tag = whole()
        if tag & 7 == 0:
            out.append((tag >> 3, whole()))
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or whole()
        out.append((tag >> 3, raw[at : at + size]))
        at += size
    return out


def last(found: list[Field], wanted: int, default: Any) -> Any:
    return next((value for key, value in reversed(found) if key == wanted), default)


class Read(NamedTuple):
    """An event of a file."""

    plane: str
    line: str
    name: str
    start_ns: int
    end_ns: int
    stats: dict[str, Any]
    of_name: dict[str, Any]


def read(raw: bytes) -> list[Read]:
    """Return every event of an XSpace."""
    out = []
    for key, text in fields(raw):
        if key != 1:
            continue
        parts = fields(text)
        stat_names = {last(fields(entry), 1, 0): _name(entry) for key, entry in parts if key == 5}
        entries = {last(fields(entry), 1, 0): entry for key, entry in parts if key == 4}
        names = {index: _name(entry) for index, entry in entries.items()}
        of_names = {
            index: _stats(fields(last(fields(entry), 2, b"")), 5, stat_names) for index, entry in entries.items()
        }
        for kind, line in parts:
            if kind != 3:
                continue
            given = fields(line)
            at_ns = last(given, 3, 0)
            for key, one in given:
                if key == 4:
                    event = fields(one)
                    index, begin = last(event, 1, 0), _signed(last(event, 2, 0))
                    out.append(
                        Read(
                            last(parts, 2, b"").decode(),
                            last(given, 2, b"").decode(),
                            names.get(index, ""),
                            at_ns + begin // 1000,
                            at_ns + (begin + _signed(last(event, 3, 0))) // 1000,
                            _stats(event, 4, stat_names),
                            of_names.get(index, {}),
                        )
                    )
    return out


_UNWRITTEN = {"_p", "_pt", "_c", "_ct"}


def as_json(raw: bytes) -> list[dict[str, Any]]:
    """Return the events that XLA's profiler writes of an XSpace as JSON."""
    labels, out = [], []
    for pid, parts in enumerate((fields(text) for key, text in fields(raw) if key == 1), 1):
        stat_names = {last(fields(entry), 1, 0): _name(entry) for key, entry in parts if key == 5}
        entries = {last(fields(entry), 1, 0): entry for key, entry in parts if key == 4}
        plane = last(parts, 2, b"").decode()
        if not plane.startswith(("/host:CPU", "/device:")):
            continue
        labels.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane}})
        for line in (fields(value) for key, value in parts if key == 3):
            name, tid = (last(line, 11, b"") or last(line, 2, b"")).decode(), last(line, 1, 0) & 0xFFFFFFFF
            if name == "Async XLA Ops":
                continue
            labels.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
            for event in (fields(value) for key, value in line if key == 4):
                entry = entries.get(last(event, 1, 0), b"")
                if _name(entry).startswith("Memory"):
                    continue
                of_name = _stats(fields(last(fields(entry), 2, b"")), 5, stat_names)
                stats = {**of_name, **_stats(event, 4, stat_names)}
                args = {
                    key: value
                    if isinstance(value, str)
                    else value.decode("utf-8", "replace")
                    if isinstance(value, bytes)
                    else str(value)
                    for key, value in stats.items()
                    if key not in _UNWRITTEN
                }
                start_ps = last(line, 3, 0) * 1000 + _signed(last(event, 2, 0))
                row = {"ph": "X", "pid": pid, "tid": tid, "ts": start_ps / 1e6}
                out.append(row | {"dur": max(last(event, 3, 0), 1) / 1e6, "name": _name(entry), "args": args})
    return [*labels, *out, {}]


def _name(entry: bytes) -> str:
    text: bytes = last(fields(last(fields(entry), 2, b"")), 2, b"")
    return text.decode("utf-8", "replace")


def _stats(found: list[Field], wanted: int, names: dict[int, str]) -> dict[str, Any]:
    out = {}
    for key, raw in found:
        if key == wanted:
            (_, index), *rest = fields(raw)
            for kind, value in rest:
                out[names.get(index, "")] = (
                    names.get(value) if kind == 7 else _signed(value) if kind in (3, 4) else value
                )
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
