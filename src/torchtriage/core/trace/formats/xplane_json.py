"""The JSON that XLA's profiler writes beside an XPlane: its planes as processes, their lines as threads.

Names, times and statistics are those of the XPlane, statistics as text. Its writer leaves out what devices say of
themselves, asynchronous operations, events that only count, which call enqueued a program, and all behind a number
of events that can be set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import elide, visible
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.event_numbers import LARGEST_NS, int64_of
from torchtriage.core.trace.event_types import BROKEN, CALLS, Begin, End, Event, Label, text_of, whole
from torchtriage.core.trace.events import Chunk, EventReader, Loss
from torchtriage.core.trace.formats.xplane_rows import MAX_PLANES, Coded, Events, Line, Plane, XPlaneRows, is_read
from torchtriage.core.trace.input import Source

MOST_EVENTS = 1_000_000
"""The writer keeps so many, the earliest, unless it is told otherwise."""
_NUMBERS = "correlation_id", "step_num"
_TEXTS = "memcpy_details", "memset_details", "kernel_details"
_RUN = "run_id", "queue_id", "core_type", "device_ordinal"
"""What the run of a program on a TPU and the calls about it have in common; a program is on the device of its plane."""


class _Args(msgspec.Struct, gc=False):
    """What is read of an event's arguments, whatever their types."""

    correlation_id: Any = None
    step_num: Any = None
    memcpy_details: Any = None
    memset_details: Any = None
    kernel_details: Any = None
    hlo_category: Any = None
    long_name: Any = None
    run_id: Any = None
    queue_id: Any = None
    core_type: Any = None
    device_ordinal: Any = None


class _Arguments(msgspec.Struct, gc=False):
    args: _Args | None = None


_decode = msgspec.json.Decoder(list[_Arguments]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(_Arguments).decode
_NO_ARGS = _Args()
_run_of = attrgetter(*_RUN)


def read_xplane_json(
    source: Source, chunk_bytes: int, builder: ColumnBuilder, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, Any], Loss]:
    """Give a builder all rows; return facts on the devices as Kineto writes them, and what was lost.

    Raises TraceFormatError: the profiles of several hosts are in it.
    """
    reader = EventReader(source, chunk_bytes)
    loss, found = reader.loss, _Found(reader.loss)
    reader.open()
    for chunk in reader.chunks():
        found.take(chunk)
        if progress is not None:
            progress(source.n_read, source.size_bytes)
    reader.close()
    rows = XPlaneRows(builder)
    found.hand_over(rows, builder, source.name)
    if found.n_rows == MOST_EVENTS:
        _miss(loss, "it ends with its first million events, as by default: the .xplane.pb file beside it has all")
    if reader.meta.get("filteredByVisibility"):
        _miss(loss, "what was too short to be seen was left out: the .xplane.pb file has all")
    return {**rows.meta(), "unread": dict(found.unread)}, loss


def _miss(loss: Loss, message: str) -> None:
    loss.incomplete = True
    loss.say(message)


class _Said(NamedTuple):
    """A statistic: whose, and what it is, a number or a code of ``table``."""

    owner: Ints
    value: Ints
    table: list[Any]


class _Statistics:
    """What the events of one plane say, those from ``first`` to ``stop``."""

    def __init__(self, said: dict[str, _Said], first: int, stop: int) -> None:
        self._said, self._limits = said, (first, stop)

    def _of(self, name: str) -> _Said:
        owner, value, table = self._said[name]
        some = slice(*np.searchsorted(owner, self._limits))
        return _Said(owner[some] - self._limits[0], value[some], table)

    def numbers(self, name: str) -> tuple[Ints, Ints]:
        """Return whose and what a whole number is."""
        owner, value, _ = self._of(name)
        return owner, value

    def coded(self, name: str) -> tuple[Ints, Coded]:
        """Return whose and what a text is."""
        owner, value, table = self._of(name)
        return owner, Coded(value, table)


class _Placed(NamedTuple):
    """A plane, and the first and last of its events where those of all planes stand plane by plane."""

    plane: Plane
    first: int
    stop: int


class _Found:
    """Events of all processes, as they come."""

    def __init__(self, loss: Loss) -> None:
        self.n_rows = 0
        self.unread: Counter[str] = Counter()
        self._loss, self._lost = loss, Counter[str]()
        self._processes: dict[int | str, str] = {}
        self._twice: set[int | str] = set()
        self._threads: dict[tuple[int | str, int | None], str] = {}
        self._lines: dict[tuple[int | str, int | None], int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("line", "name", "start_us", "dur_us")}
        self._said: dict[str, tuple[list[Ints], list[Ints], dict[Any, int]]] = {
            name: ([], [], {}) for name in (*_NUMBERS, *_TEXTS, "run_id")
        }

    def take(self, chunk: Chunk) -> None:
        """Keep what a chunk of the file says."""
        rows: list[Any] = []
        args: list[_Args] = []
        for index, (event, given) in enumerate(zip(chunk.events, self._arguments(chunk.document), strict=True)):
            if type(event) in CALLS:
                rows.append(event)
                args.append(given)
            elif isinstance(event, Label):
                self._label(event)
            elif isinstance(event, Begin):
                self._lost["calls that begin and end in events of their own"] += 1
            elif type(event) not in (Event, End):
                self.unread["events that are no calls"] += 1
            elif type(event) is Event and (index + 1 < len(chunk.events) or not chunk.document.endswith(b"{}]")):
                # the writer's list ends with an empty one
                self.unread["events of unknown kinds"] += 1
        lines, names = self._lines, self._names
        line = [lines.setdefault((row.pid, _thread(row.tid)), len(lines)) for row in rows]
        name = [
            names.setdefault((text_of(given.long_name) or row.name, text_of(given.hlo_category)), len(names))
            for row, given in zip(rows, args, strict=True)
        ]
        self._columns["line"].append(np.array(line, np.int64))
        self._columns["name"].append(np.array(name, np.int64))
        self._columns["start_us"].append(_us([row.ts for row in rows]))
        self._columns["dur_us"].append(_us([row.dur for row in rows]))
        for key, (owners, values, table) in self._said.items():
            at = [index for index, given in enumerate(args) if getattr(given, key) is not None]
            if key in _NUMBERS:
                value = int64_of([getattr(args[index], key) for index in at])
            elif key in _TEXTS:
                texts = [text_of(getattr(args[index], key)) for index in at]
                value = np.array([table.setdefault(text, len(table)) for text in texts], np.int64)
            else:
                runs = [tuple(map(text_of, _run_of(args[index]))) for index in at]
                value = np.array([table.setdefault(run, len(table)) for run in runs], np.int64)
            sound = value >= 0
            owners.append(self.n_rows + np.array(at, np.int64)[sound])
            values.append(value[sound])
        self.n_rows += len(rows)

    def _arguments(self, document: bytes) -> list[_Args]:
        try:
            return [event.args or _NO_ARGS for event in _decode(document)]
        except BROKEN:
            return list(map(self._arguments_of, _decode_raw(document)))

    def _arguments_of(self, event: msgspec.Raw) -> _Args:
        try:
            return _decode_one(event).args or _NO_ARGS
        except msgspec.ValidationError:  # something else than arguments by name
            return _NO_ARGS
        except BROKEN:
            pass
        try:  # without bytes that are no UTF-8
            found = _decode_one(bytes(event).decode("utf-8", "replace").encode())
        except BROKEN:
            self.unread["arguments of events that are damaged"] += 1
            return _NO_ARGS
        self._loss.n_repaired += 1
        return found.args or _NO_ARGS

    def _label(self, label: Label) -> None:
        name = text_of(label.args.name) if label.args is not None else ""
        if label.name == "process_name":
            if self._processes.setdefault(label.pid, name) != name:
                self._twice.add(label.pid)
        elif label.name == "thread_name":
            self._threads[label.pid, _thread(label.tid)] = name

    def hand_over(self, rows: XPlaneRows, builder: ColumnBuilder, where: str) -> None:
        """Give plane after plane to the rows of a trace."""
        columns = {key: np.concatenate([np.empty(0), *parts]) for key, parts in self._columns.items()}
        line = columns["line"].astype(np.int64)
        planes = self._planes(np.bincount(line, minlength=len(self._lines)).tolist(), where)
        plane_of, place_of = np.full(len(self._lines), -1, np.int64), np.zeros(len(self._lines), np.int64)
        for index, lines in enumerate(planes.values()):
            plane_of[list(lines)], place_of[list(lines)] = index, np.arange(len(lines))
        for process in self._processes.values():
            rows.describe(process, {})
        order = np.argsort(plane_of[line], kind="stable")
        limits = np.searchsorted(plane_of[line[order]], np.arange(len(planes) + 1)).tolist()
        for message, n in self._lost.items():
            self._loss.n_lost += n
            self._loss.say(message)

        line, name = place_of[line[order]], columns["name"].astype(np.int64)[order]
        at_ns, offset_ps = _times(columns["start_us"][order])
        dur_ps = _ps(columns["dur_us"][order])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        said = {key: _joined(place, *parts) for key, parts in self._said.items()}
        names, placed = list(self._names), []
        for (process, lines), (first, stop) in zip(planes.items(), pairwise(limits), strict=True):
            used, name[first:stop] = np.unique(name[first:stop], return_inverse=True)
            texts, categories = zip(*(names[code] for code in used.tolist()), strict=True)
            placed.append(_Placed(Plane(process, list(lines.values()), texts, categories, builder), first, stop))
        said["_p"], said["_c"] = _links(placed, said["run_id"], line, at_ns + offset_ps // 1000)
        for plane, first, stop in placed:
            some, statistics = slice(first, stop), _Statistics(said, first, stop)
            rows.add(plane, Events(line[some], name[some], at_ns[some], offset_ps[some], dur_ps[some], statistics))
        rows.finish()

    def _planes(self, n_events: list[int], where: str) -> dict[str, dict[int, Line]]:
        """Return the lines of each plane that has events; of a device only lines whose names say what they are."""
        planes: dict[str, dict[int, Line]] = {}
        owner: dict[str, int | str] = {}
        for (pid, tid), index in self._lines.items():
            process, thread = self._processes.get(pid, ""), self._threads.get((pid, tid), "")
            if process and not is_read(process):
                continue
            if tid is None:
                self._lost["events of threads whose ids are no numbers"] += n_events[index]
                continue
            if not process or not (thread or process.startswith("/host:")):
                self._lost["events of processes or threads without a name"] += n_events[index]
                continue
            if process not in planes and len(planes) == MAX_PLANES:
                self._lost[f"events of more than {MAX_PLANES} planes"] += n_events[index]
                continue
            if owner.setdefault(process, pid) != pid or pid in self._twice:
                raise TraceFormatError(
                    f"expected the profile of one host, found two with a process {elide(visible(process), 40)}",
                    where=where,
                    hint="pass each host's own file",
                )
            planes.setdefault(process, {})[index] = Line(tid, thread, n_events[index])
        return planes


def _links(placed: list[_Placed], runs: _Said, line: Ints, start_ns: Ints) -> tuple[_Said, _Said]:
    """Return the calls that enqueue a program of a TPU, and the programs: the first call about a run enqueues it."""
    ids: dict[tuple[str, ...], int] = {}
    calls: dict[int, int] = {}
    programs: dict[int, int] = {}
    first = [part.first for part in placed]
    if all(part.plane.ordinal < 0 for part in placed):
        runs = _of_pairs([])
    for at, code in zip(runs.owner.tolist(), runs.value.tolist(), strict=True):
        number = bisect_right(first, at) - 1
        if number < 0:
            continue
        plane, (*run, device) = placed[number].plane, runs.table[code]
        if plane.ordinal < 0:
            call = ids.setdefault((*run, device), len(ids))
            calls[call] = min(calls.get(call, at), at, key=start_ns.__getitem__)
        elif plane.is_program[line[at]]:
            programs[at] = ids.setdefault((*run, str(plane.ordinal)), len(ids))
    begun = dict.fromkeys(programs.values(), 1 << 62)
    for at, run_id in programs.items():
        begun[run_id] = min(begun[run_id], int(start_ns[at]))
    # what tells of a run's end has its ids, too
    early = sorted((at, call) for call, at in calls.items() if start_ns[at] <= begun.get(call, -1 << 62))
    return _of_pairs(early), _of_pairs(sorted(programs.items()))


def _of_pairs(pairs: list[tuple[int, int]]) -> _Said:
    owner, value = np.array(pairs, np.int64).reshape(-1, 2).T
    return _Said(owner, value, [])


def _joined(place: Ints, owners: list[Ints], values: list[Ints], table: dict[Any, int]) -> _Said:
    owner, value = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (owners, values))
    owner = place[owner]
    order = np.argsort(owner)
    return _Said(owner[order], value[order], list(table))


def _thread(tid: int | str) -> int | None:
    """Return the id of a thread, which may be written as text."""
    number = tid if isinstance(tid, int) else whole(tid)
    return number if number >= 0 or number == tid else None


def _us(values: list[Any]) -> NDArray[np.float64]:
    """Return times, infinite where they are missing or beyond all."""
    try:
        us = np.array(values, np.float64)
    except OverflowError:  # a whole number beyond any double
        us = np.array([None if value is None or abs(value) > LARGEST_NS else value for value in values], np.float64)
    us[~(np.abs(us) < LARGEST_NS / 1000)] = np.inf  # what is no number is not below it
    return us


def _times(us: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return whole microseconds in ns, and the rest in ps."""
    us = np.minimum(us, LARGEST_NS / 1000)
    below = np.floor(us)
    return below.astype(np.int64) * 1000, _ps(us - below)


def _ps(us: NDArray[np.float64]) -> Ints:
    return np.where(np.abs(us) < LARGEST_NS / 1e6, np.rint(us * 1e6), LARGEST_NS).astype(np.int64)
