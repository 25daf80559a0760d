"""Profiles of XLA as the columns of a trace: what planes, their lines and the names of events mean, in whatever format.

A plane is a device or the host, a line a stream or a thread. Names and categories are those that Kineto writes for the
same thing, so that patterns know them. Times are ns: a line's start and an event's offset in ps, both ends rounded
down, so that what touches in the file touches here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.event_numbers import LARGEST_NS, NO_TIME_NS
from torchtriage.core.trace.recorders import PROGRAMS_LINE, STEPS_LINE

MAX_DEVICES = 4096
MAX_PLANES = 1000
"""Real files have a few for each device."""
_HOST = "host"
_DEVICE = re.compile(r"^/device:(\w+):(\d{1,9})(.*)$", re.DOTALL)
# lines that the profiler derives from others, or that name a stretch of the work on them
_DERIVED = frozenset(
    f"{STEPS_LINE}|{PROGRAMS_LINE}|XLA Ops|Async XLA Ops|XLA TraceMe|TensorFlow Ops|TensorFlow Name Scope|Framework Ops"
    "|Framework Name Scope|Source code|Overlay|Launch Stats".split("|")
)
_DERIVED_IDS = range(0xDEADBEEF, 0xDEADBEEF + 64)
_CONTROL = frozenset({"while", "conditional", "call"})
_HLO_COPIES = frozenset({"copy-start", "copy-done"})
"""What a TPU's core does of an asynchronous copy: it starts it, and waits until it is there."""
_HLO = re.compile(r"^%?([\w.\-]+) = ")
_HLO_COLLECTIVE = re.compile(r"all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast")
_FRAME = re.compile(r"^\$(.+?):(\d+) (.+)$", re.DOTALL)
_COPY = re.compile(r"^mem(?:ory )?cpy ?([HDP])(?:to|2)([HDP])", re.IGNORECASE)
_DETAIL = re.compile(r"(?<!\w)(\w+):(\S+)")
_MEMORY_EVENTS = frozenset({"MemoryAllocation", "MemoryDeallocation"})

HOST, WORK, NOTE = 0, 1, 2
OP, MARK, FRAME, CALL, TPU_CALL, INSTANT, KERNEL, COPY, SET, DEVICE_NOTE = range(10)
_CATEGORIES = (
    *("cpu_op", "user_annotation", "python_function", "cuda_runtime", "tpu_runtime", "cpu_instant_event"),
    *("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"),
)
"""What Kineto calls these."""
_COLUMNS = ("start_ns", "dur_ns", "name", "cat", "lane", "key", "value", "detail")


class Coded(NamedTuple):
    """Texts as codes of a table of distinct ones."""

    codes: Ints
    table: list[str]


class Statistics(Protocol):
    """What a format says of events beside their names and times, by what XLA calls it."""

    def numbers(self, name: str) -> tuple[Ints, Ints]:
        """Return whose and what a whole number is."""

    def coded(self, name: str) -> tuple[Ints, Coded]:
        """Return whose and what a text is."""


class Events(NamedTuple):
    """Events of one plane, arrays of equal length: their lines and names by place in the plane's tables, their times.

    The statistics' owners are events by their place here.
    """

    line: Ints
    name: Ints
    at_ns: Ints
    offset_ps: Ints
    dur_ps: Ints
    stats: Statistics


class Line(NamedTuple):
    """A stream or thread, and how many events it has."""

    id: int
    name: str
    n_events: int


class Plane:
    """A device or the host: what its lines and the names of its events mean."""

    def __init__(
        self, name: str, lines: Sequence[Line], names: Sequence[str], categories: Sequence[str], builder: ColumnBuilder
    ) -> None:
        device = _DEVICE.match(name)
        self.ordinal = -1 if device is None else min(int(device[2]), MAX_DEVICES)
        self.roles = np.array(_roles(lines, device), np.int64)
        self.names = _Names(names, categories, builder, is_host=device is None)
        self.is_program = np.array([line.name == PROGRAMS_LINE for line in lines], bool)
        keys: list[tuple[Any, ...]] = []
        for line, role in zip(lines, self.roles.tolist(), strict=True):
            if role == HOST:
                keys.append((_HOST, line.id))
                if line.name:
                    builder.label("thread_name", _HOST, str(line.id), line.name)
            else:
                keys.append(("device", self.ordinal, line.name if role == NOTE or line.name in _DERIVED else line.id))
        self.lanes = builder.codes_of(lanes=keys)["lane"].astype(np.int64)


class XPlaneRows:
    """The rows of all planes on their way to a builder, and facts on their devices."""

    def __init__(self, builder: ColumnBuilder) -> None:
        self._builder = builder
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._n_rows = 0
        self._devices: dict[int, dict[str, Any]] = {}
        self._makers: set[str] = set()
        # (row, id) of calls that enqueue a program on a TPU, and (device, start, end, id) of programs there
        self._enqueued: list[tuple[Ints, Ints]] = []
        self._programs: list[NDArray[np.int64]] = []
        self._ops: list[tuple[int, Ints]] = []
        self._control: list[Ints] = []

    def describe(self, plane: str, facts: dict[str, Any]) -> None:
        """Keep what is known of a device by the name of its plane; ``vendor`` is one of the facts."""
        device = _DEVICE.match(plane)
        if device is None or device[3] or int(device[2]) >= MAX_DEVICES:
            return
        kind, ordinal = device[1], int(device[2])
        vendor = str(facts.pop("vendor", "")).lower()
        if vendor or kind != "GPU":  # its calls say whose it is
            self._makers.add(
                "tpu" if kind == "TPU" else "rocm" if "amd" in vendor else "cuda" if kind == "GPU" else "other"
            )
        self._devices[ordinal] = {"id": ordinal, "name": kind if kind not in ("GPU", "TPU") else "", **facts}

    def add(self, plane: Plane, events: Events) -> None:
        """Take events of a plane."""
        at_ns, offset_ps, dur_ps = events.at_ns, events.offset_ps, events.dur_ps
        sound = np.ones(len(at_ns), bool)
        for values in (at_ns, offset_ps, dur_ps):
            sound &= (values > -LARGEST_NS) & (values < LARGEST_NS)
        at_ns, offset_ps, dur_ps = (np.where(sound, values, 0) for values in (at_ns, offset_ps, dur_ps))
        begin_ns, end_ns = offset_ps // 1000, (offset_ps + dur_ps) // 1000
        columns = {
            "start_ns": np.where(sound, at_ns + begin_ns, NO_TIME_NS),
            "dur_ns": end_ns - begin_ns,
            "name": plane.names.codes_of(events.name),
            "lane": plane.lanes[events.line],
            **{name: np.full(len(at_ns), -1, np.int64) for name in ("key", "value", "detail")},
        }
        if plane.ordinal < 0:
            what = self._host_rows(columns, plane.names, events)
        else:
            what = self._device_rows(columns, plane, events)
            self._keep_programs(plane, columns, events, what)
        columns["cat"] = what
        for name, parts in self._columns.items():
            parts.append(columns[name])
        self._n_rows += len(at_ns)

    def _host_rows(self, columns: dict[str, Any], names: _Names, events: Events) -> Ints:
        what, stats = names.kinds[events.name], events.stats
        owner, ids = stats.numbers("correlation_id")
        what[owner], columns["key"][owner] = CALL, ids
        _sizes(columns, stats)
        owner, ids = stats.numbers("_p")
        self._enqueued.append((self._n_rows + owner, ids))
        owner, steps = stats.numbers("step_num")
        what[owner] = MARK
        marks = [f"ProfilerStep#{step}" for step in steps.tolist()]
        columns["name"][owner] = self._builder.codes_of(names=marks)["name"]
        return what

    def _device_rows(self, columns: dict[str, Any], plane: Plane, events: Events) -> Ints:
        names, code, stats = plane.names, events.name, events.stats
        role = plane.roles[events.line]
        what = np.where(role == NOTE, DEVICE_NOTE, names.kinds[code])
        works = role == WORK
        owner, ids = stats.numbers("correlation_id")
        columns["key"][owner] = ids
        columns["detail"][works] = names.details[code[works]]
        owner, kernels = stats.coded("kernel_details")
        codes = self._builder.codes_of(details=map(_grid_detail, kernels.table))["detail"]
        columns["detail"][owner] = codes[kernels.codes]
        what[owner[works[owner]]] = KERNEL
        owner, copies = _sizes(columns, stats)
        base = code[owner]
        pairs, which = np.unique(base * max(len(copies.table), 1) + copies.codes, return_inverse=True)
        texts = [
            _copy_name(names.shown[pair // len(copies.table)], copies.table[pair % len(copies.table)])
            for pair in pairs.tolist()
        ]
        columns["name"][owner] = self._builder.codes_of(names=texts)["name"][which]
        what[owner[works[owner]]] = COPY
        self._control.append(self._n_rows + np.flatnonzero(works & names.is_control[code]))
        return what

    def _keep_programs(self, plane: Plane, columns: dict[str, Any], events: Events, what: Ints) -> None:
        """Remember which call enqueued each program of a TPU, and the rows that may be part of one."""
        owner, ids = events.stats.numbers("_c")
        programs = plane.is_program[events.line[owner]]
        owner, ids = owner[programs], ids[programs]
        if len(owner):
            start = columns["start_ns"][owner]
            device = np.full(len(owner), plane.ordinal)
            self._programs.append(np.stack([device, start, start + columns["dur_ns"][owner], ids]))
        ops = np.flatnonzero((columns["key"] < 0) & (what != DEVICE_NOTE))
        if len(ops):
            self._ops.append((plane.ordinal, self._n_rows + ops))

    # -- the whole -------------------------------------------------------------------------

    def finish(self) -> None:
        """Link programs to their calls, and hand over the rows."""
        columns: dict[str, Any] = {
            name: np.concatenate(parts or [np.empty(0, np.int64)]) for name, parts in self._columns.items()
        }
        self._link(columns)
        self._open_control(columns)
        used, what = np.unique(columns["cat"], return_inverse=True)
        texts = [_CATEGORIES[code] for code in used.tolist()]
        columns["cat"] = self._builder.codes_of(cats=texts)["cat"][what]
        self._builder.take_columns(columns)

    def _link(self, columns: dict[str, Any]) -> None:
        if not self._programs or not self._enqueued:
            return
        rows, calls = (np.concatenate(part) for part in zip(*self._enqueued, strict=True))
        order = np.argsort(calls, kind="stable")
        rows, calls = rows[order], calls[order]
        programs = np.concatenate(self._programs, axis=1)
        place = np.minimum(np.searchsorted(calls, programs[3]), max(len(calls) - 1, 0))
        programs = programs[:, calls[place] == programs[3]] if len(calls) else programs[:, :0]
        if not programs.shape[1]:
            return
        call = rows[np.searchsorted(calls, programs[3])]
        columns["key"][call] = call + 1
        columns["cat"][call] = TPU_CALL
        for ordinal, ops in self._ops:
            mine = np.flatnonzero(programs[0] == ordinal)
            mine = mine[np.argsort(programs[1, mine], kind="stable")]
            if not len(mine):
                continue
            start = columns["start_ns"][ops]
            place = np.searchsorted(programs[1, mine], start, side="right") - 1
            inside = (place >= 0) & (start < programs[2, mine[np.maximum(place, 0)]])
            columns["key"][ops[inside]] = call[mine[place[inside]]] + 1

    def _open_control(self, columns: dict[str, Any]) -> None:
        """Make control flow whose body has rows of its own, on the same line, no work: its body is."""
        control = np.concatenate(self._control or [np.empty(0, np.int64)])
        works = np.isin(columns["cat"], (KERNEL, COPY, SET))
        start, end = columns["start_ns"], columns["start_ns"] + columns["dur_ns"]
        for lane in np.unique(columns["lane"][control]).tolist():
            mine = np.flatnonzero(works & (columns["lane"] == lane))
            mine = mine[np.lexsort((-end[mine], start[mine]))]
            outer = mine[:-1][start[mine[1:]] < end[mine[:-1]]]
            columns["cat"][outer[np.isin(outer, control)]] = DEVICE_NOTE

    def meta(self) -> dict[str, Any]:
        """Return what is known of the devices."""
        facts: dict[str, Any] = {}
        if self._devices:
            known = max(self._devices) + 1
            facts["deviceProperties"] = [self._devices.get(index, {"id": index, "name": ""}) for index in range(known)]
        if len(self._makers) == 1:
            facts["vendor"] = next(iter(self._makers))
        return facts


def is_read(plane: str) -> bool:
    """Return whether a plane of this name holds rows."""
    return plane.startswith("/host:") or _DEVICE.match(plane) is not None


class _Names:
    """What the names of a plane's events say, by their place in its table; the last place is for unknown ones."""

    def __init__(
        self, names: Sequence[str], categories: Sequence[str], builder: ColumnBuilder, *, is_host: bool
    ) -> None:
        self._builder = builder
        self.shown = [elide(_host_name(name) if is_host else _device_name(name), LONGEST) for name in names]
        self.shown.append("")
        kinds = map(_host_kind, names) if is_host else map(_device_kind, self.shown[:-1], categories)
        self.kinds = np.array([*kinds, MARK if is_host else KERNEL], np.int64)
        self.is_control = np.array([*(text in _CONTROL for text in categories), False], bool)
        collective = [_collective_detail(text) for text in categories]
        codes = builder.codes_of(details=filter(None, collective))["detail"].tolist()
        self.details = np.array([*(codes.pop(0) if text else -1 for text in collective), -1], np.int64)
        self._codes = np.full(len(self.shown), -1, np.int64)

    def codes_of(self, places: Ints) -> Ints:
        """Return the builder's codes of names, which only those that are used have."""
        used = np.unique(places)
        used = used[self._codes[used] < 0]
        names = [self.shown[index] for index in used.tolist()]
        self._codes[used] = self._builder.codes_of(names=names)["name"]
        return self._codes[places]


def _roles(lines: Sequence[Line], device: re.Match[str] | None) -> list[int]:
    """Say of each line whether it is the host's, holds work of a device, or names stretches of it."""
    if device is None:
        return [HOST] * len(lines)
    filled = [line for line in lines if line.n_events]
    streams = {line.id for line in filled if line.name not in _DERIVED and line.id & 0xFFFFFFFF not in _DERIVED_IDS}
    if device[3]:  # a part of a device that works beside it
        return [NOTE] * len(lines)
    if streams and device[1] != "TPU":
        return [WORK if line.id in streams else NOTE for line in lines]
    names = {line.name for line in filled}
    work = next((name for name in ("XLA Ops", PROGRAMS_LINE) if name in names), None)
    return [WORK if line.name == work else NOTE for line in lines]


# -- names ---------------------------------------------------------------------------------------


def _host_kind(name: str) -> int:
    if name.startswith("$"):
        return FRAME
    if name in _MEMORY_EVENTS:
        return INSTANT
    # what XLA and its clients do is no operator of PyTorch, which patterns reason about
    return OP if name.startswith("aten::") else MARK


def _host_name(name: str) -> str:
    """Write frames as Kineto does: ``train.py(12): step``."""
    frame = _FRAME.match(name)
    return f"{frame[1]}({frame[2]}): {frame[3]}" if frame else name.removeprefix("$")


def _device_name(name: str) -> str:
    """Name an instruction of HLO by what it assigns to, not by its whole text."""
    assigned = _HLO.match(name)
    return assigned[1] if assigned else name


def _device_kind(name: str, hlo_category: str) -> int:
    if _COPY.match(name) or hlo_category in _HLO_COPIES:
        return COPY
    return SET if name.lower().startswith("memset") else KERNEL


def _copy_name(name: str, details: str) -> str:
    """Write copies as Kineto does: ``Memcpy HtoD (Pinned -> Device)``."""
    way = _COPY.match(name)
    if way is None:
        return name
    found = dict(_DETAIL.findall(details))
    source, target = (found.get(key, "").capitalize() for key in ("kind_src", "kind_dst"))
    kinds = f" ({source} -> {target})" if source and target else ""
    return f"Memcpy {way[1].upper()}to{way[2].upper()}{kinds}"


def _sizes(columns: dict[str, Any], stats: Statistics) -> tuple[Ints, Coded]:
    """Fill in what copies and sets moved; return the copies and their details."""
    found = {name: stats.coded(name) for name in ("memcpy_details", "memset_details")}
    for owner, details in found.values():
        sizes = np.array([_size_of(text) for text in details.table] or [-1], np.int64)
        columns["value"][owner] = sizes[details.codes]
    return found["memcpy_details"]


def _size_of(details: str) -> int:
    size = dict(_DETAIL.findall(details)).get("size", "")
    return int(size) if size.isdecimal() and len(size) < 19 else -1


def _grid_detail(details: str) -> bytes:
    found = dict(_DETAIL.findall(details))
    grid, block = (f"[{found.get(key, '')}]".encode() for key in ("grid", "block"))
    return b"\0".join(Detail(grid=grid, block=block))


def _collective_detail(category: str) -> bytes:
    found = _HLO_COLLECTIVE.search(category)
    return b"\0".join(Detail(collective=msgspec.json.encode(found[0]))) if found else b""
