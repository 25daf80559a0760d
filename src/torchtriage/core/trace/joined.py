"""Several traces as one for Perfetto: their processes apart, their times on one clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.core.trace.column_builder import MEMORY
from torchtriage.core.trace.event_numbers import NO_TIME_NS, exact_ns, us_text
from torchtriage.core.trace.events import EventReader
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.overlay import created, write
from torchtriage.core.units import DEFAULT_MAX_BYTES

PROCESSES = 1_000_000
"""Process numbers of each track: those of track n begin at n + 1 of these."""
_IDS = 1 << 32
_FLOWS = 1 << 50
"""Above the numbers of arrows that any trace has."""


@dataclass(frozen=True)
class Track:
    """One trace: ``title`` goes in front of its processes' names, ``shift_ns`` onto its times.

    ``flows`` : row to the number of an arrow, and whether it begins (``s``), goes through (``t``) or ends (``f``) here.
    ``extra`` : events of its own, already on the common clock.
    """

    path: str
    title: str
    shift_ns: int
    flows: dict[int, tuple[int, str]]
    extra: Sequence[dict[str, Any]]


def write_joined(tracks: Sequence[Track], out: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Write the traces into one file, one after the other and chunk by chunk; compressed when it ends in ``.gz``.

    Raises TraceFormatError: an input cannot be read; UsageError: ``out`` cannot be written.
    """
    target = Path(out)
    with created(target) as stream:
        write(stream, b'{"traceEvents": [\n', target)
        comma = b""
        for number, track in enumerate(tracks):
            with open_source(track.path, max_bytes=max_bytes) as source:
                for lines in _Joining(track, number).lines(EventReader(source)):
                    if lines:
                        write(stream, comma + b",\n".join(lines), target)
                        comma = b",\n"
        write(stream, b"\n]}\n", target)


class _Joining:
    def __init__(self, track: Track, number: int) -> None:
        self._track = track
        self._first = (number + 1) * PROCESSES
        self._id = (number + 1) * _IDS
        self._pids: dict[str, int] = {}
        self._named: set[int] = set()
        self._row = 0

    def lines(self, reader: EventReader) -> Iterator[list[bytes]]:
        """Yield the events of the track, in pieces."""
        for chunk in reader:
            yield [line for event in _decode(chunk.document) for line in self._event(event)]
        yield [self._label("process_name", pid, {"name": self._track.title}) for pid in sorted(self._silent())]
        # behind each other as in the job
        yield [self._label("process_sort_index", pid, {"sort_index": pid}) for pid in sorted(self._pids.values())]
        yield [msgspec.json.encode(event) for event in self._track.extra]

    def _silent(self) -> set[int]:
        return set(self._pids.values()) - self._named

    @staticmethod
    def _label(what: str, pid: int, args: dict[str, Any]) -> bytes:
        return msgspec.json.encode({"ph": "M", "name": what, "pid": pid, "tid": 0, "args": args})

    def _event(self, event: dict[str, Any]) -> Iterator[bytes]:
        phase, name = event.get("ph"), event.get("name")
        if name == "process_sort_index":
            return
        pid = str(_value(event.get("pid", msgspec.Raw(b'""'))))
        event["pid"] = self._pids.setdefault(pid, self._first + len(self._pids))
        if name == "process_name" and phase == "M":
            event["args"] = self._titled(event)
        start_ns = exact_ns(bytes(event["ts"]), NO_TIME_NS) if "ts" in event else NO_TIME_NS
        if start_ns != NO_TIME_NS:
            event["ts"] = msgspec.Raw(us_text(start_ns + self._track.shift_ns))
        if "id" in event and (number := _value(event["id"])) is not None:
            event["id"] = number + self._id if isinstance(number, int) else f"{self._first} {number}"
        yield msgspec.json.encode(event)
        if phase in ("X", "B") or (phase in ("i", "I") and name != MEMORY):
            flow = self._track.flows.get(self._row)
            self._row += 1
            if flow is not None and phase == "X":
                yield self._arrow(event, *flow)

    def _titled(self, event: dict[str, Any]) -> dict[str, Any]:
        self._named.add(event["pid"])
        args = _value(event.get("args", msgspec.Raw(b"{}")))
        own = str(args.get("name") or "") if isinstance(args, dict) else ""
        return {"name": f"{self._track.title}: {own}" if own else self._track.title}

    @staticmethod
    def _arrow(event: dict[str, Any], number: int, phase: str) -> bytes:
        arrow = {"ph": phase, "cat": "collective", "name": "collective", "id": _FLOWS + number}
        at = {key: event[key] for key in ("pid", "tid", "ts") if key in event}
        return msgspec.json.encode({**arrow, **at, **({"bp": "e"} if phase == "f" else {})})


def _decode(document: bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = _decode_raw(document)
    for event in events:
        for key in ("ph", "name"):
            if key in event:
                event[key] = _value(event[key])
    return events


_decode_raw = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def _value(text: Any) -> Any:
    return msgspec.json.decode(text) if isinstance(text, msgspec.Raw) else text
