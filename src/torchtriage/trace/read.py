"""Events to columns: the only place that turns trace files into a :class:`Trace`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.errors import TraceFormatError
from torchtriage.trace.columns import Detail, Lane, MemoryEvents, ReadReport, Trace
from torchtriage.trace.events import NO_ARGS, Args, Chunk, Event, EventReader, LooseEvent
from torchtriage.trace.schema import ANNOTATION_NAME, CATEGORY_KINDS, Kind
from torchtriage.trace.source import DEFAULT_MAX_BYTES, open_source

__all__ = ["ColumnBuilder", "read_trace"]

# Doubles hold three decimals of a microsecond exactly (after rounding to ns) below this:
# half a unit in the last place is 0.488 ns there. Larger clocks are read from their text.
EXACT_BELOW_US = float(1 << 43)

_DEVICE_KINDS = frozenset(
    {
        Kind.KERNEL,
        Kind.MEMCPY,
        Kind.MEMSET,
        Kind.GPU_ANNOTATION,
        Kind.DEVICE_SYNC,
        Kind.DEVICE_OTHER,
    }
)
_FLOWS = frozenset("stf")


def read_trace(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a PyTorch profiler trace into columns.

    Parameters
    ----------
    path : path, ``-`` or binary stream
        Plain, gzip or zip JSON; a dict with ``traceEvents`` or a bare list of events.
    max_bytes : int
        Refuse inputs that expand beyond this many bytes.
    progress : callable, optional
        Called with (uncompressed bytes read, size on disk) about every megabyte.

    Returns
    -------
    Trace

    Raises
    ------
    TraceFormatError
        The input cannot be read, is something else, or holds no event.
    """
    with open_source(path, max_bytes=max_bytes) as source:
        reader = EventReader(source)
        builder = ColumnBuilder()
        for chunk in reader:
            builder.add(chunk)
            if progress is not None:
                progress(source.n_read, source.size_bytes)
        report = ReadReport(
            path=source.name,
            size_bytes=source.size_bytes,
            text_bytes=source.n_read,
            tier=reader.loss.tier,
            n_lost=reader.loss.n_lost,
            n_repaired=reader.loss.n_repaired,
            loss=reader.loss.summary(),
        )
    trace = builder.finish(reader.meta, report)
    if not trace.report.n_events:
        raise TraceFormatError(
            "expected profiler events, found an empty list"
            if not reader.loss.n_lost
            else "no event could be read",
            where=source.name,
            hint="call prof.step() in the loop and export inside on_trace_ready: after the last"
            " cycle of a schedule the buffer is empty",
        )
    return trace


class _Codes(dict[Any, int]):
    """Dictionary coding: an unknown key gets the next code."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class ColumnBuilder:
    """Collects chunks of events as numpy parts; ``finish`` joins them into a trace."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {
            name: [] for name in ("start", "dur", "name", "cat", "kind", "lane", "key", "value")
        }
        self._parts["detail"] = []
        self._names = _Codes()
        self._cats = _Codes()
        self._kinds: list[int] = []
        self._lanes = _Codes()
        self._details = _Codes()
        self._memory: list[tuple[int, int, int, int, int, int, int]] = []
        self._labels: dict[tuple[str, str, str], str] = {}
        self._phases: Counter[str] = Counter()
        self._chunks: list[tuple[int, int, int]] = []
        self._open: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._n_rows = 0
        self._n_events = 0
        self._n_no_dur = 0
        self._n_negative = 0

    # -- one chunk -------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """Append a chunk's events to the columns."""
        events: list[Event] = [_tight(e) for e in chunk.events] if chunk.loose else chunk.events  # type: ignore[assignment]
        self._chunks.append((self._n_rows, chunk.offset, len(chunk.text)))
        self._n_events += len(events)
        rows = [event for event in events if event.ph == "X"]
        self._phases["X"] += len(rows)
        times = _Clock(chunk, events)
        start, dur = times.complete()
        if len(rows) < len(events):
            rows, start, dur = self._add_rest(chunk, events, rows, start, dur, times)
        if rows:
            self._add_rows(rows, start, dur)

    def _add_rest(
        self,
        chunk: Chunk,
        events: list[Event],
        rows: list[Event],
        start: NDArray[np.int64],
        dur: NDArray[np.int64],
        times: _Clock,
    ) -> tuple[list[Event], NDArray[np.int64], NDArray[np.int64]]:
        """Sort out everything that is not a complete event; some of it becomes rows."""
        n_labels = self._phases["M"]
        extra: list[Event] = []
        extra_start: list[int] = []
        for index, event in enumerate(events):
            phase = event.ph
            if phase == "X":
                continue
            self._phases[phase] += 1
            if phase in _FLOWS:
                continue
            if phase in ("i", "I"):
                args = event.args or NO_ARGS
                if event.name == "[memory]":
                    self._memory.append(
                        (
                            times.start(index),
                            args.memory_bytes,
                            args.addr,
                            args.allocated,
                            args.reserved,
                            args.device_type,
                            args.device_id,
                        )
                    )
                else:
                    event.dur = 0.0
                    event.cat = event.cat or "instant"
                    extra.append(event)
                    extra_start.append(times.start(index))
            elif phase == "B":
                self._open.append((self._n_rows + len(rows) + len(extra), times.start(index)))
                event.dur = 0.0
                extra.append(event)
                extra_start.append(times.start(index))
            elif phase == "E":
                lane = self._lanes[(event.pid, event.tid)]
                self._ends.append((lane, times.start(index)))
        if self._phases["M"] > n_labels:
            self._take_labels(chunk)
        if extra:
            rows = rows + extra
            start = np.concatenate([start, np.array(extra_start, np.int64)])
            dur = np.concatenate([dur, np.zeros(len(extra), np.int64)])
        return rows, start, dur

    def _take_labels(self, chunk: Chunk) -> None:
        """Keep what metadata events say of processes and threads; their args have any shape."""
        for event in chunk.untyped():
            args = event.get("args")
            if event.get("ph") != "M" or not isinstance(args, dict):
                continue
            what = _text(event.get("name"))
            text = args.get("labels" if what == "process_labels" else "name")
            if text is not None:
                self._labels[(what, _text(event.get("pid")), _text(event.get("tid")))] = _text(text)

    def _add_rows(
        self, rows: list[Event], start: NDArray[np.int64], dur: NDArray[np.int64]
    ) -> None:
        n = len(rows)
        names, cats, lanes = self._names, self._cats, self._lanes
        name = np.array([names[event.name] for event in rows], np.int32)
        cat = np.array([cats[event.cat] for event in rows], np.int16)
        for text in list(cats)[len(self._kinds) :]:
            self._kinds.append(_kind_of(text))
        kind = np.array(self._kinds, np.uint8)[cat]
        lane = np.array([lanes[(event.pid, event.tid)] for event in rows], np.int32)
        key = np.full(n, -1, np.int64)
        value = np.full(n, -1, np.int64)
        detail = np.full(n, -1, np.int32)

        missing = dur < 0
        if missing.any():
            no_dur = np.array([event.dur == -1.0 for event in rows]) & missing
            self._n_no_dur += int(no_dur.sum())
            self._n_negative += int((missing & ~no_dur).sum())
            dur = np.maximum(dur, 0)

        for code in np.unique(kind).tolist():
            at = np.flatnonzero(kind == code)
            args = [rows[i].args or NO_ARGS for i in at.tolist()]
            if code == Kind.PYTHON:
                key[at] = [a.python_id for a in args]
                value[at] = [-1 if a.python_parent is None else a.python_parent for a in args]
            elif code in (Kind.OP, Kind.ANNOTATION):
                key[at] = [a.sequence for a in args]
                value[at] = [a.fwd_thread for a in args]
                detail[at] = [self._op_detail(a) for a in args]
            else:
                key[at] = [a.correlation for a in args]
                value[at] = [_whole(a.size_bytes) for a in args]
                if code in _DEVICE_KINDS:
                    detail[at] = [self._kernel_detail(a) for a in args]
                    lane[at] = [
                        lanes[
                            (
                                "device",
                                rows[i].pid if a.device is None else a.device,
                                rows[i].tid if a.stream is None else a.stream,
                            )
                        ]
                        for i, a in zip(at.tolist(), args, strict=True)
                    ]
        parts = self._parts
        for column, values in (
            ("start", start),
            ("dur", dur),
            ("name", name),
            ("cat", cat),
            ("kind", kind),
            ("lane", lane),
            ("key", key),
            ("value", value),
            ("detail", detail),
        ):
            parts[column].append(values)
        self._n_rows += n

    def _op_detail(self, args: Args) -> int:
        if not args.dims and not args.concrete:
            if not args.collective:
                return -1
            return self._kernel_detail(args)
        return self._details[
            (
                bytes(args.dims),
                bytes(args.types),
                bytes(args.concrete),
                bytes(args.strides),
                b"",
                b"",
                bytes(args.collective),
                bytes(args.nelems),
                bytes(args.dtype),
            )
        ]

    def _kernel_detail(self, args: Args) -> int:
        if not args.grid and not args.collective:
            return -1
        return self._details[
            (
                b"",
                b"",
                b"",
                b"",
                bytes(args.grid),
                bytes(args.block),
                bytes(args.collective),
                bytes(args.nelems),
                bytes(args.dtype),
            )
        ]

    # -- the whole -------------------------------------------------------------------------

    def finish(self, meta: dict[str, Any], report: ReadReport) -> Trace:
        """Join the parts; frees them column by column so that the peak stays near the result."""

        def join(name: str, dtype: Any) -> NDArray[Any]:
            parts = self._parts.pop(name)
            return np.concatenate(parts) if parts else np.empty(0, dtype)

        columns = {
            "start_ns": join("start", np.int64),
            "dur_ns": join("dur", np.int64),
            "name": join("name", np.int32),
            "cat": join("cat", np.int16),
            "kind": join("kind", np.uint8),
            "lane": join("lane", np.int32),
            "key": join("key", np.int64),
            "value": join("value", np.int64),
            "detail": join("detail", np.int32),
        }
        n_unpaired = self._pair(columns)
        # some versions file annotations under the op category: the name decides
        notes = np.array([ANNOTATION_NAME.match(name) is not None for name in self._names], bool)
        if notes.any():
            columns["kind"][(columns["kind"] == Kind.OP) & notes[columns["name"]]] = Kind.ANNOTATION
        memory = np.array(self._memory, np.int64).reshape(-1, 7)
        report = msgspec.structs.replace(
            report,
            n_events=self._n_events,
            phases=dict(sorted(self._phases.items())),
            n_no_dur=self._n_no_dur,
            n_negative_dur=self._n_negative,
            n_unpaired=n_unpaired,
            chunks=np.array(self._chunks, np.int64).reshape(-1, 3),
        )
        return Trace(
            names=tuple(self._names),
            cats=tuple(self._cats),
            lanes=tuple(_lane(key) for key in self._lanes),
            details=tuple(Detail(*key) for key in self._details),
            memory=MemoryEvents(*(np.ascontiguousarray(memory[:, i]) for i in range(7))),
            labels=self._labels,
            meta=meta,
            report=report,
            **columns,
        )

    def _pair(self, columns: dict[str, NDArray[Any]]) -> int:
        """Turn ``B``/``E`` pairs into durations; returns how many had no partner."""
        if not self._open and not self._ends:
            return 0
        lane = columns["lane"]
        marks = [(start, 1, int(lane[row]), row) for row, start in self._open]
        marks += [(end, 0, lane_code, -1) for lane_code, end in self._ends]
        stacks: dict[int, list[int]] = {}
        n_unpaired = 0
        for at_ns, opens, lane_code, row in sorted(marks):
            stack = stacks.setdefault(lane_code, [])
            if opens:
                stack.append(row)
            elif stack:
                begun = stack.pop()
                columns["dur_ns"][begun] = at_ns - columns["start_ns"][begun]
            else:
                n_unpaired += 1
        return n_unpaired + sum(map(len, stacks.values()))


# -- one event ---------------------------------------------------------------------------------


def _kind_of(category: str) -> Kind:
    kind = CATEGORY_KINDS.get(category)
    if kind is not None:
        return kind
    if category in ("instant", "cpu_instant_event"):
        return Kind.INSTANT
    if category.endswith(("_runtime", "_driver")):
        return Kind.RUNTIME
    return Kind.OTHER


def _lane(key: Any) -> Lane:
    if len(key) == 3:
        _, device, stream = key
        return Lane("stream", str(device), str(stream), _whole(device), _whole(stream))
    return Lane("thread", str(key[0]), str(key[1]), -1, -1)


def _whole(value: Any) -> int:
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else -1
    if isinstance(value, str | bytes):
        try:
            return _whole(int(value))
        except ValueError:
            return -1
    return int(value) if isinstance(value, float) and abs(value) < 1 << 62 else -1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _identifier(value: Any) -> int | str:
    return value if isinstance(value, int) else _text(value)


_encode = msgspec.json.encode
_ARG_FIELDS = {
    field.encode_name: (field.name, isinstance(field.default, msgspec.Raw))
    for field in msgspec.structs.fields(Args)
}


def _tight(loose: LooseEvent | Event) -> Event:
    """Return a typed event from one whose fields may have any type."""
    if isinstance(loose, Event):
        return loose
    args = Args()
    if isinstance(loose.args, dict):
        for key, value in loose.args.items():
            known = _ARG_FIELDS.get(key)
            if known is None:
                continue
            name, raw = known
            if raw:
                setattr(args, name, msgspec.Raw(_encode(value)))
            elif name in ("stream", "device"):
                setattr(args, name, _identifier(value))
            else:
                setattr(args, name, _whole(value))
    return Event(
        ph=_text(loose.ph),
        name=_text(loose.name),
        cat=_text(loose.cat),
        pid=_identifier(loose.pid),
        tid=_identifier(loose.tid),
        ts=_us(bytes(loose.ts)),
        dur=_us(bytes(loose.dur), missing=-1.0),
        args=args,
    )


def _us(text: bytes, missing: float = 0.0) -> float:
    try:
        value = float(text.strip(b'"'))
    except ValueError:
        return missing
    return value if abs(value) < 1e18 else missing


def _ns(text: bytes) -> int:
    """Return decimal microseconds as exact integer nanoseconds; 0 when it is no number."""
    try:
        value = Decimal(text.strip(b'"').decode("ascii", "replace"))
        ns = round(value * 1000)
    except (InvalidOperation, ValueError, OverflowError):
        return 0
    return ns if abs(ns) < 1 << 62 else 0


class _Clock:
    """Starts and durations of a chunk in ns, through doubles only where that is exact."""

    def __init__(self, chunk: Chunk, events: list[Event]) -> None:
        self._events = events
        us = np.array([event.ts for event in events], np.float64)
        dur = np.array([event.dur for event in events], np.float64)
        complete = np.array([event.ph == "X" for event in events], bool)
        self._complete = complete
        largest = max(
            float(np.abs(us).max(initial=0.0)), float(np.abs(dur[complete]).max(initial=0.0))
        )
        if largest < EXACT_BELOW_US:
            self._start = _us_to_ns(us)
            self._dur = _us_to_ns(dur)
        else:
            pairs = chunk.text_times()
            self._start = _ns_column([start for start, _ in pairs])
            self._dur = _ns_column([length or b"-1" for _, length in pairs])

    def complete(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and durations of the complete events."""
        if self._complete.all():
            return self._start, self._dur
        return self._start[self._complete], self._dur[self._complete]

    def start(self, index: int) -> int:
        """Return the start of any event, by its index in the chunk."""
        return int(self._start[index])


def _us_to_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole ns; exact for three decimals below ``EXACT_BELOW_US``.

    The fraction is scaled alone: scaling the whole number rounds twice, which is off by one
    around 4.4e12 us (seen in a real trace).
    """
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _ns_column(texts: list[bytes]) -> NDArray[np.int64]:
    """Return decimal microsecond texts as ns; whole numbers take a vectorised path."""
    if not b"".join(texts).translate(None, b"0123456789-"):
        try:
            return np.array(texts, dtype="S20").astype(np.int64) * 1000
        except (ValueError, OverflowError):
            pass  # empty or too long: one by one, each with its own fate
    return np.array([_ns(text) for text in texts], np.int64)
