"""Write a trace again with less in it: what no rule reads is left out, on request steps, frames and shapes too.

Events are copied chunk by chunk in bounded memory, each number as it is written. What goes always: arguments that no
column holds, arrows, counters and other events that are counted and otherwise skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.trace.anonymise import Anonymiser
from torchtriage.core.trace.column_builder import MEMORY
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.event_numbers import us_text
from torchtriage.core.trace.event_types import BROKEN, LAUNCHES, args_read, text_of
from torchtriage.core.trace.events import EventReader
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.overlay import created, write
from torchtriage.core.trace.schema import CATEGORY_KINDS, Kind
from torchtriage.core.trace.serving import step_frames
from torchtriage.core.units import DEFAULT_MAX_BYTES

SHAPES = frozenset(("Input Dims", "Input type", "Input Strides", "Concrete Inputs"))
"""The arguments that take most room; without them some rules are not checked."""
_OPEN_KINDS = (Kind.PYTHON, Kind.ANNOTATION, Kind.RECORDING)
"""Rows around many others: where the kept part begins or ends inside one it is cut, as a profiler's start cuts them."""
_ROWS, _INSTANTS, _ARROWS = (b'"X"', b'"B"'), (b'"i"', b'"I"'), (b'"s"', b'"f"')
_LABELS = (b'"process_name"', b'"process_labels"', b'"process_sort_index"', b'"thread_name"', b'"thread_sort_index"')
"""What events of metadata are called; others can be anybody's."""
_NO_TEXT = msgspec.Raw(b"")


@dataclass(frozen=True)
class Less:
    """What to leave out beside what nothing reads."""

    frames: bool = False
    shapes: bool = False


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a recording that is kept: its rows, and the new ends of those that are cut."""

    start_ns: int
    end_ns: int
    rows: Mask
    cut: dict[int, tuple[int, int]]


@dataclass
class Written:
    """What went into a smaller trace: events of the original and of the copy, bytes, and what was dropped how often."""

    n_events: int = 0
    n_kept: int = 0
    size_bytes: int = 0
    text_bytes: int = 0
    from_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class _RawEvent(msgspec.Struct, gc=False):
    ph: msgspec.Raw = _NO_TEXT
    cat: msgspec.Raw = _NO_TEXT
    name: msgspec.Raw = _NO_TEXT
    pid: msgspec.Raw = _NO_TEXT
    tid: msgspec.Raw = _NO_TEXT
    id: msgspec.Raw = _NO_TEXT
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT
    args: msgspec.Raw = _NO_TEXT


_decode_events = msgspec.json.Decoder(list[_RawEvent]).decode
_decode_args = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode
_KNOWN = {_encode(cat): kind for cat, kind in CATEGORY_KINDS.items()}
_FIELDS = ("ph", "cat", "name", "pid", "tid", "id", "ts", "dur")


def find_part(trace: Trace, start_ns: int, end_ns: int) -> Part:
    """Return what belongs to a stretch of the host's time: its rows, and the work that they enqueued.

    Work that was enqueued before and still runs stays too: without it the device would seem to stand idle.
    """
    starts, ends = trace.start_ns, trace.end_ns
    is_stream = np.array([lane.kind == "stream" for lane in trace.lanes] or [False])
    on_device = is_stream[trace.lane]
    launched = np.where(on_device, trace.links.launched_ns(np.arange(len(trace))), starts)
    rows = (launched >= start_ns) & (launched < end_ns) | on_device & (launched < start_ns) & (ends > start_ns)
    around = trace.is_kind(*_OPEN_KINDS) & ~on_device & (starts < end_ns) & (ends > start_ns)
    rows |= around
    across = np.flatnonzero(rows & ~on_device & ((starts < start_ns) | (ends > end_ns)))
    rows[across[_marks_step(trace, across)]] = False  # cut, it would pass for a shorter step
    cut = across[around[across] & rows[across]]
    edges = zip(np.maximum(starts[cut], start_ns).tolist(), np.minimum(ends[cut], end_ns).tolist(), strict=True)
    return Part(start_ns, end_ns, rows, dict(zip(cut.tolist(), edges, strict=True)))


def _marks_step(trace: Trace, rows: Ints) -> Mask:
    """Return bool[k]: rows that the steps of the loop begin or end with."""
    steps = trace.steps
    begins = np.isin(trace.start_ns[rows], steps.host_start_ns)
    ends = np.isin(trace.end_ns[rows], np.append(steps.host_start_ns, steps.host_end_ns))
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP)[rows] & (trace.lane[rows] == steps.lane)
    # without an engine's ranges its frames are the steps
    return marks & (begins | ends) | step_frames(trace)[rows]


def write_slim(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    part: Part | None = None,
    less: Less | None = None,
    names: Anonymiser | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write what is kept of the trace at ``path`` to ``out``, compressed.

    Raises TraceFormatError: the input cannot be read; UsageError: ``out`` cannot be written.
    """
    target = Path(out)
    copy = _Copy(part, less or Less(), names)
    with open_source(path, max_bytes=max_bytes) as source, created(target, small=True) as stream:
        reader = EventReader(source)
        for text in copy.texts(reader):
            copy.written.text_bytes += len(text)
            write(stream, text, target)
            if progress is not None:
                progress(source.n_read, source.size_bytes)
        copy.written.from_bytes = source.size_bytes
    copy.written.size_bytes = target.stat().st_size
    return copy.written


class _Copy:
    """Turns the events of a trace into the text of the smaller one."""

    def __init__(self, part: Part | None, less: Less, names: Anonymiser | None) -> None:
        self.written = Written()
        self._part = part
        self._less = less
        self._names = names
        self._row = 0
        self._shown: dict[tuple[Kind, bytes], bytes] = {}
        self._keys: dict[Kind | None, frozenset[str]] = {}

    def texts(self, reader: EventReader) -> Iterator[bytes]:
        """Yield the text of the smaller trace."""
        reader.open()
        head = self._meta(reader.meta)
        yield b"{" + b"".join(_encode(key) + b":" + _encode(value) + b",\n" for key, value in head.items())
        yield b'"traceEvents": [\n'
        comma = b""
        for chunk in reader.chunks():
            try:
                events = _decode_events(chunk.document)
            except BROKEN:  # nested beyond reason: rows still count
                events = [_RawEvent()] * len(chunk.events)
            lines = [line for line in map(self._event, events) if line]
            if lines:
                yield comma + b",\n".join(lines)
                comma = b",\n"
        reader.close()
        if not reader.ended:
            return  # a recording that ends early must not look whole
        yield b"\n]"
        for key, value in self._meta(reader.meta).items():
            if key not in head:
                yield b",\n" + _encode(key) + b":" + _encode(value)
        yield b"\n}\n"

    def _meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        return dict(meta) if self._names is None else self._names.meta(meta)

    def _event(self, event: _RawEvent) -> bytes:
        """Return the text of an event, empty where it is left out."""
        self.written.n_events += 1
        phase = bytes(event.ph)
        instant = phase in _INSTANTS
        row = -1
        if phase in _ROWS or (instant and bytes(event.name) != _MEMORY):
            row, self._row = self._row, self._row + 1
        kind = Kind.INSTANT if instant else _KNOWN.get(bytes(event.cat), Kind.OTHER)
        why = self._why_not(event, phase, row, kind)
        if why:
            self.written.dropped[why] += 1
            return b""
        self.written.n_kept += 1
        is_row = row >= 0 or instant
        values = {name: bytes(getattr(event, name)) for name in _FIELDS}
        if row >= 0 and self._part is not None and row in self._part.cut and phase == b'"X"':
            start_ns, end_ns = self._part.cut[row]
            values["ts"], values["dur"] = us_text(start_ns), us_text(end_ns - start_ns)
        values["args"] = self._args(bytes(event.args), kind, is_row=is_row, is_instant=instant)
        if self._names is not None:
            self._rename(values, kind)
        return b"{" + b",".join(b'"%b":%b' % (name.encode(), text) for name, text in values.items() if text) + b"}"

    def _why_not(self, event: _RawEvent, phase: bytes, row: int, kind: Kind) -> str:
        part = self._part
        if row < 0 and phase not in (b'"M"', b'"E"', *_INSTANTS):
            if phase in _ARROWS and bytes(event.cat) == _LAUNCH:
                return ""
            return "arrows and counters"
        if self._less.frames and kind == Kind.PYTHON:
            return "Python frames"
        if part is None or phase == b'"M"':
            return ""
        if row >= 0:
            inside = row < len(part.rows) and bool(part.rows[row])
        else:
            at_ns = _roughly_ns(bytes(event.ts))
            # an end without its begin is ignored
            inside = part.start_ns <= at_ns and (at_ns < part.end_ns or phase == b'"E"')
        return "" if inside else "outside the part"

    def _args(self, text: bytes, kind: Kind, *, is_row: bool, is_instant: bool) -> bytes:
        if len(text) < 3:
            return b""
        try:
            found = _decode_args(text)
        except BROKEN:
            return b""
        which = kind if is_row and kind != Kind.OTHER else Kind.INSTANT if is_row else None
        keys = self._keys.get(which)
        if keys is None:
            keys = args_read(which) - (SHAPES if self._less.shapes else frozenset())
            self._keys[which] = keys
        kept = {key: bytes(value) for key, value in found.items() if key in keys}
        if self._names is not None:
            kept = {key: self._names.raw(value) for key, value in kept.items()}
        if not kept:
            return b""
        return b"{" + b",".join(_encode(key) + b":" + value for key, value in kept.items()) + b"}"

    def _rename(self, values: dict[str, bytes], kind: Kind) -> None:
        assert self._names is not None
        for name in ("pid", "tid", "id"):
            values[name] = self._names.raw(values[name])
        if values["ph"] != b'"M"' or values["name"] not in _LABELS:
            values["name"] = self._name(kind, values["name"])
        if values["cat"]:
            values["cat"] = _encode(self._names.category(_text(values["cat"])))

    def _name(self, kind: Kind, raw: bytes) -> bytes:
        known = self._shown.get((kind, raw))
        if known is None:
            assert self._names is not None
            known = _encode(self._names.name(kind, _text(raw))) if raw else raw
            if len(self._shown) < 1 << 20:
                self._shown[kind, raw] = known
        return known


_MEMORY, _LAUNCH = _encode(MEMORY), _encode(LAUNCHES)


def _text(raw: bytes) -> str:
    return text_of(msgspec.json.decode(raw))


def _roughly_ns(text: bytes) -> int:
    try:
        return round(float(text.strip(b'"')) * 1000)
    except ValueError:
        return 0
