"""Events to columns: decoded chunks become numpy arrays and string tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.engine import find_engine
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.accelerators import LaunchArrows, read_accelerators
from torchtriage.core.trace.columns import Detail, Lane, MemoryEvents, ReadReport, Trace
from torchtriage.core.trace.event_numbers import NO_DUR_NS, NO_TIME_NS, ExactTimes, int64_of
from torchtriage.core.trace.event_types import (
    ARROWS,
    CALLS,
    CATEGORIES,
    GROUP_OF,
    NO_ARGS,
    PHASES,
    Arrow,
    Begin,
    Complete,
    DeviceArgs,
    End,
    Event,
    EventRow,
    Group,
    Instant,
    KnownInstant,
    Label,
    LaunchArrow,
    OldInstant,
    OpArgs,
    text_of,
    whole,
)
from torchtriage.core.trace.events import Chunk
from torchtriage.core.trace.schema import ANNOTATION_NAME, CATEGORY_KINDS, COLUMN_TYPES, Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.native import ScannedRows

T = TypeVar("T")

READ_COLUMNS = {name: dtype for name, dtype in COLUMN_TYPES.items() if name != "kind"}
"""The columns that chunks are read into; the kind follows from category and name."""

MEMORY = "[memory]"
_NO_INPUTS = b"\0" * 3
"""The first four fields of a detail, an operator's inputs, where there is no operator."""
_NO_MORE = b"\0" * 10
"""The eleven fields behind an operator's inputs, where there is nothing more."""
_INSTANTS = (Instant, KnownInstant)
_CATEGORY_OF = {kind: category for category, kind in CATEGORIES.items()}
_PHASE_OF: dict[type[Event], str] = {
    **{kind: phase for phase, kind in PHASES.items()},
    **dict.fromkeys(CALLS, "X"),
    KnownInstant: "i",
}
_ROWLESS = frozenset(PHASES.values()) - {Complete, Begin, Instant, OldInstant, End, Label} | (ARROWS - {LaunchArrow})
_MAX_LOOSE = 256
"""How many small arrays are kept apart, of a block or chunk each."""
EXTERNAL, MAX_EXTERNAL = -(1 << 62), 1 << 40
"""External ids wait in the key as so many below this, where no correlation is; larger ones are damage. The native
scanner does the same."""
MAX_CATEGORIES = 1 << 15
"""What the column's type holds; whatever comes behind them counts as the last one."""


class _Codes(dict[Any, int]):
    """Dictionary coding: an unknown key gets the next code."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self._limit = limit

    def __missing__(self, key: Any) -> int:
        if self._limit is not None and len(self) == self._limit:
            return self._limit - 1
        code = self[key] = len(self)
        return code

    def add(self, keys: Iterable[Any]) -> NDArray[np.int32]:
        if self._limit is not None:
            return np.array([self[key] for key in keys], np.int32)
        # no call of ours for each new key
        code_of = self.setdefault
        return np.array([code_of(key, len(self)) for key in keys], np.int32)


class _ClassCodes(dict[type[Event], int]):
    """Category codes by class of event, given in the order in which the classes appear."""

    def __init__(self, cats: _Codes) -> None:
        super().__init__()
        self._cats = cats

    def __missing__(self, kind: type[Event]) -> int:
        code = self[kind] = self._cats[_CATEGORY_OF[kind]]
        return code


class ColumnBuilder:
    """Collects chunks of events as numpy parts; ``finish`` joins them into a trace."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[Any] | ScannedRows]] = {name: [] for name in READ_COLUMNS}
        self._names = _Codes()
        self._cats = _Codes(MAX_CATEGORIES)
        self._lanes = _Codes()
        # the fields of a Detail with a NUL between each two: JSON text holds none
        self._details = _Codes()
        self._kinds = np.empty(0, np.uint8)  # of each category
        self._memory: list[NDArray[np.int64]] = []
        self._n_joined = 0  # of these arrays, at the front
        # (ns, opens, lane, row) of B and E events, in file order
        self._marks: list[tuple[int, bool, int, int]] = []
        self._arrows: list[tuple[str, bool, int, int]] = []
        self._labels: dict[tuple[str, str, str], str] = {}
        self._phases: Counter[str] = Counter()
        self._chunks: list[tuple[int, int, int]] = []
        self._n_rows = 0
        self._n_no_dur = 0
        self._n_negative = 0

    # -- one chunk -------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """Append a chunk's events to the columns."""
        events = chunk.events
        times = ExactTimes(chunk)
        kinds = Counter(map(type, events))
        for kind, n in kinds.items():
            if kind not in ARROWS:
                self._phases[_PHASE_OF.get(kind, "")] += n
        if not kinds.keys().isdisjoint(ARROWS):
            self._phases.update(event.ph for event in events if isinstance(event, Arrow))
        rows: list[Any]
        if kinds.keys() <= CALLS:
            rows = events
        elif kinds.keys() <= CALLS | _ROWLESS:
            rows = [event for event in events if type(event) in CALLS]
        else:
            rows = self._sort_out(events, times)
        self._chunks.append((self._n_rows, chunk.offset, chunk.size))
        if rows:
            self._add_rows(rows, times, by_category=chunk.by_category)

    def _sort_out(self, events: list[Event], times: ExactTimes) -> list[Any]:
        """Return the events that become rows; take what the others say."""
        rows: list[Any] = []
        memory: list[Instant | KnownInstant] = []
        marks: list[Begin | End] = []
        mark_rows: list[int] = []
        arrows: list[LaunchArrow] = []
        for event in events:
            kind = type(event)
            if kind in CALLS:
                rows.append(event)
            elif kind is Label:
                self.take_label(event)
            elif isinstance(event, _INSTANTS):
                if event.name == MEMORY:
                    memory.append(event)
                    continue
                if isinstance(event, Instant):
                    event.cat = event.cat or "instant"
                event.dur = 0
                rows.append(event)
            elif isinstance(event, Begin):
                event.dur = 0
                marks.append(event)
                mark_rows.append(self._n_rows + len(rows))
                rows.append(event)
            elif isinstance(event, End):
                marks.append(event)
                mark_rows.append(-1)
            elif isinstance(event, LaunchArrow):
                arrows.append(event)
        if memory:
            args = [event.args or NO_ARGS for event in memory]
            fields = ("memory_bytes", "addr", "allocated", "reserved", "device_type", "device_id")
            numbers = [int64_of(list(map(attrgetter(field), args))) for field in fields]
            self._keep_memory(np.stack([times.starts(memory), *numbers], axis=1))
        for mark, row, at_ns in zip(marks, mark_rows, times.starts(marks).tolist(), strict=True):
            self._marks.append((at_ns, row >= 0, self._lanes[mark.pid, mark.tid], row))
        for arrow, at_ns in zip(arrows, times.starts(arrows).tolist(), strict=True):
            self._arrows.append((arrow.id, arrow.ph == "s", at_ns, self._lanes[arrow.pid, arrow.tid]))
        return rows

    def take_label(self, event: Any) -> None:
        """Keep what a metadata event says of a process or thread."""
        if event.args is None:
            return
        text = event.args.labels if event.name == "process_labels" else event.args.name
        if text is not None:
            self.label(event.name, str(event.pid), str(event.tid), text_of(text))

    def label(self, what: str, pid: str, tid: str, text: str) -> None:
        """Keep what a process or thread is called."""
        self._labels[what, pid, tid] = elide(text, LONGEST)

    def _add_rows(self, rows: list[Any], times: ExactTimes, *, by_category: bool) -> None:
        n = len(rows)
        names, cats, lanes = self._names, self._cats, self._lanes
        start, dur = times.starts(rows), times.durations(rows)
        name = np.fromiter([names[row.name] for row in rows], np.int32, n)
        if by_category:
            codes = _ClassCodes(cats)
            cat = np.fromiter([codes[kind] for kind in map(type, rows)], np.int16, n)
        else:
            cat = np.fromiter([cats[row.cat] for row in rows], np.int16, n)
        lane = self._thread_lanes([row.pid for row in rows], [row.tid for row in rows])
        if len(cats) > len(self._kinds):
            self._kinds = np.array([_kind_of(text) for text in cats], np.uint8)
        kind = self._kinds[cat]
        key = np.full(n, -1, np.int64)
        value = np.full(n, -1, np.int64)
        detail = np.full(n, -1, np.int32)

        negative = dur < 0
        if negative.any():
            n_no_dur = int((dur == NO_DUR_NS).sum())
            self._n_no_dur += n_no_dur
            self._n_negative += int(negative.sum()) - n_no_dur
            dur[negative] = 0

        groups = _GROUPS[kind]
        for group in np.flatnonzero(np.bincount(groups)).tolist():
            at = np.flatnonzero(groups == group)
            chosen = rows if len(at) == n else [rows[i] for i in at.tolist()]
            args: list[Any] = [row.args or NO_ARGS for row in chosen]
            if group == Group.FRAMES:
                key[at] = int64_of([a.python_id for a in args])
                value[at] = int64_of([a.python_parent for a in args])
            elif group == Group.OPS:
                key[at] = int64_of([a.sequence for a in args])
                value[at] = int64_of([a.fwd_thread for a in args])
                detail[at] = [self._op_detail(a) for a in args]
            else:
                key[at] = _launch_ids(args)
                value[at] = int64_of([a.size_bytes for a in args])
                if group == Group.DEVICES:
                    detail[at] = [self._kernel_detail(a) for a in args]
                    lane[at] = [
                        lanes[
                            "device",
                            row.pid if a.device is None else a.device,
                            row.tid if a.stream is None else a.stream,
                        ]
                        for row, a in zip(chosen, args, strict=True)
                    ]
        parts: tuple[NDArray[Any], ...] = (start, dur, name, cat, lane, key, value, detail)
        for column, values in zip(READ_COLUMNS, parts, strict=True):
            self._columns[column].append(values)
        self._n_rows += n

    def _thread_lanes(self, pids: list[int | str], tids: list[int | str]) -> NDArray[np.int32]:
        pid, tid, n = pids[0], tids[0], len(pids)
        # mostly a long stretch of one thread
        if pids.count(pid) == n and tids.count(tid) == n:
            return np.full(n, self._lanes[pid, tid], np.int32)
        # map hands zip its tuple back: cheaper than a comprehension
        return np.fromiter(map(self._lanes.__getitem__, zip(pids, tids, strict=True)), np.int32, n)

    def _op_detail(self, args: OpArgs) -> int:
        if not args.dims and not args.concrete:
            return self._kernel_detail(args) if args.collective else -1
        rest = _NO_MORE
        if args.collective or args.nelems or args.dtype:
            rest = b"\0".join((b"", b"", *_collective(args)))
        return self._details[b"\0".join((args.dims, args.types, args.concrete, args.strides, rest))]

    def _kernel_detail(self, args: OpArgs | DeviceArgs) -> int:
        if not args.grid and not args.collective:
            return -1
        return self._details[b"\0".join((_NO_INPUTS, args.grid, args.block, *_collective(args)))]

    # -- parts -----------------------------------------------------------------------------

    def take(self, other: ColumnBuilder) -> None:
        """Append what another builder has collected."""
        recoded = self.codes_of(names=other._names, cats=other._cats, lanes=other._lanes, details=other._details)
        # the last entry is what -1 reads
        recoded["detail"] = np.append(recoded["detail"], np.int32(-1))
        for column, dtype in READ_COLUMNS.items():
            values = _join(column, other._columns[column], np.empty(other._n_rows, dtype))
            if column in recoded:
                values = recoded[column][values].astype(dtype)
            self._columns[column].append(values)
        lanes = recoded["lane"].tolist()
        self._labels.update(other._labels)
        self._arrows += [(name, starts, at_ns, lanes[lane]) for name, starts, at_ns, lane in other._arrows]
        self._take_rest(
            other._n_rows,
            memory=other._all_memory(),
            marks=[(at_ns, opens, lanes[lane], row) for at_ns, opens, lane, row in other._marks],
            chunks=other._chunks,
        )
        self.take_counts(other._phases, other._n_no_dur, other._n_negative)

    def codes_of(
        self,
        *,
        names: Iterable[str] = (),
        cats: Iterable[str] = (),
        lanes: Iterable[tuple[Any, ...]] = (),
        details: Iterable[bytes] = (),
    ) -> dict[str, NDArray[np.int32]]:
        """Return the codes of table entries, new ones where they have none, by column."""
        return {
            "name": self._names.add(names),
            "cat": self._cats.add(cats),
            "lane": self._lanes.add(lanes),
            "detail": self._details.add(details),
        }

    def take_rows(self, rows: ScannedRows, **rest: Any) -> None:
        """Append rows that are held elsewhere, and what else their text says.

        Rows in ``marks`` and ``chunks`` count from the first of these.
        """
        for parts in self._columns.values():
            parts.append(rows)
        self._take_rest(rows.n_rows, **rest)

    def take_columns(self, columns: dict[str, NDArray[Any]], chunk: tuple[int, int, int] | None = None) -> None:
        """Append rows of another format: ``columns`` of their own but for codes, which are from :meth:`codes_of`.

        What is left out is -1. ``chunk`` : as in a report's, where the rows begin.
        """
        n = len(columns["start_ns"])
        dur = columns["dur_ns"]
        missing, negative = dur == NO_DUR_NS, dur < 0
        self._n_no_dur += int(missing.sum())
        self._n_negative += int((negative & ~missing).sum())
        columns = {**columns, "dur_ns": np.where(negative, 0, dur)}
        for column, dtype in READ_COLUMNS.items():
            values = columns.get(column)
            self._columns[column].append(np.full(n, -1, dtype) if values is None else values.astype(dtype, copy=False))
        if chunk is not None:
            self._chunks.append(chunk)
        self._phases["X"] += n
        self._n_rows += n

    def take_counts(self, phases: dict[str, int], n_no_dur: int, n_negative: int) -> None:
        """Add to what is only counted."""
        self._phases.update(phases)
        self._n_no_dur += n_no_dur
        self._n_negative += n_negative

    def _take_rest(
        self,
        n_rows: int,
        *,
        memory: NDArray[np.int64],
        marks: Iterable[tuple[int, bool, int, int]],
        chunks: Iterable[tuple[int, int, int]],
    ) -> None:
        first = self._n_rows
        self._marks += [(at_ns, opens, lane, row + first if opens else -1) for at_ns, opens, lane, row in marks]
        self._chunks += [(row + first, offset, size) for row, offset, size in chunks]
        self._keep_memory(memory)
        self._n_rows += n_rows

    def _keep_memory(self, records: NDArray[np.int64]) -> None:
        """Keep allocator records in few large arrays: a bound on memory leaves out small ones."""
        self._memory.append(records)
        loose = self._memory[self._n_joined :]
        if len(loose) >= _MAX_LOOSE:
            self._memory[self._n_joined :] = [np.concatenate(loose)]
            self._n_joined += 1

    def _all_memory(self) -> NDArray[np.int64]:
        return np.concatenate(self._memory) if self._memory else np.empty((0, 7), np.int64)

    # -- the whole -------------------------------------------------------------------------

    def finish(self, meta: dict[str, Any], report: ReadReport, source: Any = None) -> Trace:
        """Join the parts; frees them column by column so that the peak stays near the result.

        ``source`` is what arguments are read from again, when asked for.
        """
        columns: dict[str, Any] = {
            name: _join(name, self._columns.pop(name), np.empty(self._n_rows, dtype))
            for name, dtype in READ_COLUMNS.items()
        }
        n_unpaired = self._pair(columns)
        timeless = columns["start_ns"] == NO_TIME_NS
        kinds = np.array([_kind_of(text) for text in self._cats], np.uint8)
        kind = kinds[columns["cat"]] if len(kinds) else np.empty(0, np.uint8)
        # some versions file annotations under the op category: the name decides
        notes = np.array([ANNOTATION_NAME.match(name) is not None for name in self._names], bool)
        if notes.any():
            kind[(kind == Kind.OP) & notes[columns["name"]]] = Kind.ANNOTATION
        _settle_launch_ids(columns["key"], kind)
        if timeless.any():
            # kept, so that rows and arguments stay in step, but out of every figure
            columns["start_ns"][timeless] = min(columns["start_ns"][~timeless], default=0)
            columns["dur_ns"][timeless] = 0
            kind[timeless] = Kind.INSTANT
        # ids are numbers in some events of a file and text in others
        table = [_lane(key) for key in self._lanes]
        names, cats = list(self._names), list(self._cats)
        read_accelerators(columns, kind, names, cats, table, self._labels, self._launch_arrows())
        columns["lane"], lanes = _renumber(columns["lane"], table)
        columns["detail"], details = _renumber(columns["detail"], list(self._details))
        memory = self._all_memory()
        report = msgspec.structs.replace(
            report,
            n_events=self._phases.total(),
            phases=dict(sorted(self._phases.items())),
            n_no_dur=self._n_no_dur,
            n_negative_dur=self._n_negative,
            n_unpaired=n_unpaired,
            n_no_time=int(timeless.sum()),
            chunks=np.array(self._chunks, np.int64).reshape(-1, 3),
        )
        return Trace(
            kind=kind,
            names=tuple(_bounded(self._names)),
            cats=tuple(_bounded(self._cats)),
            lanes=lanes,
            details=tuple(Detail._make(text.split(b"\0")) for text in details),
            memory=MemoryEvents(*(np.ascontiguousarray(memory[:, i]) for i in range(7))),
            labels=self._labels,
            meta=_bounded_values(meta),
            report=report,
            source=source,
            **columns,
        )

    def _launch_arrows(self) -> LaunchArrows:
        codes: dict[str, int] = {}
        rows = [(codes.setdefault(name, len(codes)), starts, at, lane) for name, starts, at, lane in self._arrows]
        ids, starts, at_ns, lane = np.array(rows, np.int64).reshape(-1, 4).T
        return LaunchArrows(ids, starts == 1, at_ns, lane)

    def _pair(self, columns: dict[str, NDArray[Any]]) -> int:
        """Turn ``B``/``E`` pairs into durations; returns how many had no partner."""
        stacks: dict[int, list[int]] = {}
        n_unpaired = 0
        for at_ns, opens, lane, row in sorted(self._marks, key=lambda mark: mark[0]):
            if at_ns == NO_TIME_NS:
                n_unpaired += 1
                continue
            stack = stacks.setdefault(lane, [])
            if opens:
                stack.append(row)
            elif stack:
                begun = stack.pop()
                columns["dur_ns"][begun] = at_ns - columns["start_ns"][begun]
            else:
                n_unpaired += 1
        return n_unpaired + sum(map(len, stacks.values()))


# -- tables ------------------------------------------------------------------------------------


def _join(column: str, parts: list[NDArray[Any] | ScannedRows], out: NDArray[Any]) -> NDArray[Any]:
    first = 0
    for part in parts:
        if isinstance(part, np.ndarray):
            out[first : first + len(part)] = part
            first += len(part)
        else:
            part.copy(column, out[first : first + part.n_rows])
            first += part.n_rows
    for part in parts:
        if not isinstance(part, np.ndarray):
            part.drop(column)
    return out


def is_row(event: Event) -> bool:
    """Return whether the event becomes a row: a call or an instant, but no allocator record."""
    if isinstance(event, _INSTANTS):
        return event.name != MEMORY
    return isinstance(event, EventRow)


def _renumber(codes: NDArray[np.int32], table: Sequence[T]) -> tuple[NDArray[np.int32], tuple[T, ...]]:
    """Return codes and table in the order of first use, equal entries as one, unused ones gone.

    Code -1 (none) stays as it is.
    """
    unique: dict[T, int] = {}
    merged = np.array([unique.setdefault(entry, len(unique)) for entry in table], np.int32)
    entries = list(unique)
    library = find_engine().library
    if library is not None:
        codes = np.ascontiguousarray(codes)
        found = np.empty(len(merged), np.int32)
        n_used = library.tt_renumber(codes.ctypes.data, len(codes), merged.ctypes.data, len(merged), found.ctypes.data)
        if n_used < 0:
            raise AssertionError("the native library refused codes")
        return codes, tuple(entries[code] for code in found[:n_used].tolist())
    codes = np.append(merged, np.int32(-1))[codes]
    first = np.full(len(unique) + 1, -1, np.int64)
    # the last assignment stays: the first use, from behind
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first[:-1] >= 0)
    order = used[np.argsort(first[used])]
    position = np.full(len(unique) + 1, -1, np.int32)
    position[order] = np.arange(len(order))
    return position[codes], tuple(entries[code] for code in order.tolist())


def _launch_ids(args: list[Any]) -> NDArray[np.int64]:
    """Return correlations; where there is none, the External id below ``EXTERNAL``."""
    ids = int64_of([a.correlation for a in args])
    if (ids == -1).any():
        external = int64_of([a.external for a in args])
        ids = np.where((ids == -1) & (external > 0) & (external < MAX_EXTERNAL), EXTERNAL - external, ids)
    return ids


def _settle_launch_ids(key: NDArray[np.int64], kind: NDArray[np.uint8]) -> None:
    """Take External ids for correlations where a file has only those, and forget them elsewhere.

    Some ROCm profilers number each call and its work that way. In other files the id is the operator's, which several
    calls share: it says nothing of launches.
    """
    external = np.flatnonzero((key < EXTERNAL) & (key > EXTERNAL - MAX_EXTERNAL))
    if not len(external):
        return
    calls = key[kind == Kind.RUNTIME]
    own = calls[calls < EXTERNAL]
    alone = len(own) > 0 and not (calls > 0).any() and len(np.unique(own)) == len(own)
    key[external] = EXTERNAL - key[external] if alone else -1


def _bounded(texts: Iterable[str]) -> Iterable[str]:
    if max(map(len, texts), default=0) <= LONGEST:
        return texts
    return (elide(text, LONGEST) for text in texts)


def _bounded_values(value: Any) -> Any:
    if isinstance(value, str):
        return elide(value, LONGEST)
    if isinstance(value, dict):
        return {key: _bounded_values(item) for key, item in value.items()}
    return [_bounded_values(item) for item in value] if isinstance(value, list) else value


def _kind_of(category: str) -> Kind:
    kind = CATEGORY_KINDS.get(category)
    if kind is not None:
        return kind
    if category in ("instant", "cpu_instant_event"):
        return Kind.INSTANT
    if category.endswith(("_runtime", "_driver")):
        return Kind.RUNTIME
    return Kind.OTHER


_GROUPS = np.full(256, Group.CALLS, np.uint8)
_GROUPS[list(GROUP_OF)] = list(GROUP_OF.values())


def _lane(key: tuple[Any, ...]) -> Lane:
    if len(key) == 3:
        return Lane("stream", str(key[1]), str(key[2]), whole(key[1]), whole(key[2]))
    return Lane("thread", str(key[0]), str(key[1]), -1, -1)


_NO_GROUP = (b"",) * 6


def _collective(args: OpArgs | DeviceArgs) -> tuple[bytes, ...]:
    if not args.collective:
        return bytes(args.collective), bytes(args.nelems), bytes(args.dtype), *_NO_GROUP
    group = args.group, args.ranks, args.seq, args.group_size, args.src, args.dst
    return tuple(map(bytes, (args.collective, args.nelems, args.dtype, *group)))
