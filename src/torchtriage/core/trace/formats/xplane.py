"""XPlane, the profile of JAX, TensorFlow and PyTorch/XLA: planes of lines of events to the columns of a trace.

A plane is a device or the host, a line a stream or a thread. Names and categories are those that Kineto writes for the
same thing, so that patterns know them. Times are ns: a line's start and an event's offset in ps, both ends rounded
down, so that what touches in the file touches here.
"""

from __future__ import annotations

import re
from array import array
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.event_numbers import LARGEST_NS, NO_TIME_NS
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats.protobuf import BYTES, VARINT, WireError, fields_of, padded, scan, split
from torchtriage.core.trace.formats.texts import text_of
from torchtriage.core.trace.formats.xplane_tables import Stats, Table, read_stats, read_table
from torchtriage.core.trace.recorders import PROGRAMS_LINE, STEPS_LINE

_BLOCK = 1 << 16
"""Events decoded at a time: their fields stay near the caches."""
_MAX_DEVICES = 4096
_MAX_PLANES = 1000
"""Real files have a few for each device."""
_HOST = "host"
_DEVICE = re.compile(r"^/device:(\w+):(\d+)(.*)$", re.DOTALL)
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


class _Line(NamedTuple):
    """A stream or thread, and where its events are."""

    id: int
    name: str
    at_ns: int
    first: int
    stop: int


class _Plane(NamedTuple):
    """The parts of a plane; ``places`` : int64 arrays of where each event starts and stops, line after line."""

    name: str
    lines: list[_Line]
    places: tuple[Ints, Ints]
    events: list[tuple[int, int]]
    stat_names: list[tuple[int, int]]
    stats: list[tuple[int, int]]


def read_xplane(text: bytes, builder: ColumnBuilder) -> tuple[dict[str, Any], Loss]:
    """Give a builder all rows of an XSpace; return facts on its devices as Kineto writes them, and what was lost."""
    reader, n_planes = _Reader(text, builder), 0
    try:
        for number, wire, start, stop in scan(text, 0, len(text), cut=True):
            if stop > len(text):
                reader.miss("the file ends early: the rest is missing")
                reader.is_cut, stop = True, len(text)
            if (number, wire) == (1, BYTES):
                n_planes += 1
                if n_planes > _MAX_PLANES:
                    reader.miss(f"more than {_MAX_PLANES} planes")
                    break
                reader.read_plane(start, stop)
    except WireError as error:
        reader.miss(f"the rest of the file cannot be read: {error}")
    reader.finish()
    return reader.meta(), reader.loss


class _Reader:
    def __init__(self, text: bytes, builder: ColumnBuilder) -> None:
        self.loss = Loss()
        self.is_cut = False
        self._text, self._octets = text, padded(text)
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

    def miss(self, message: str, stop: int = -1) -> None:
        """Say that a part cannot be read, unless it is the one that the file ends in: that is said."""
        if not (self.is_cut and stop == len(self._text)):
            self.loss.incomplete = True
            self.loss.say(message)

    # -- one plane -------------------------------------------------------------------------

    def read_plane(self, start: int, stop: int) -> None:
        """Take the rows of a plane, if it is one of a device or the host."""
        plane = self._sort_out(start, stop)
        device = _DEVICE.match(plane.name)
        is_host = plane.name.startswith("/host:")
        stat_names = read_table(self._text, self._octets, plane.stat_names)
        if device is not None and not device[3]:
            self._describe(device[1], int(device[2]), plane, stat_names)
        if not len(plane.places[0]) or not (is_host or device):
            return
        ordinal = -1 if device is None else min(int(device[2]), _MAX_DEVICES)
        table = read_table(self._text, self._octets, plane.events)
        roles = np.array(_roles(plane, device), np.int64)
        lanes = self._lanes(plane, roles, ordinal)
        line = np.repeat(np.arange(len(plane.lines)), [item.stop - item.first for item in plane.lines])
        names = _Names(table, stat_names, self._builder, is_host=is_host)
        for first in range(0, len(line), _BLOCK):
            some = slice(first, first + _BLOCK)
            places = plane.places[0][some], plane.places[1][some]
            self._read_events(plane, line[some], places, roles, lanes, names, ordinal)

    def _sort_out(self, start: int, stop: int) -> _Plane:
        text, lines = self._text, []
        places = array("q"), array("q")
        name, tables = "", {4: [], 5: [], 6: []}  # type: tuple[str, dict[int, list[tuple[int, int]]]]
        try:
            for number, wire, value, end in scan(text, start, stop, cut=True):
                if end > stop:
                    self.miss(f"a part of a plane ends beyond it, at byte {end} of {stop}", stop)
                    end = stop
                if wire != BYTES:
                    continue
                if number == 2:
                    name = text_of(text[value:end])
                elif number == 3:
                    lines.append(self._read_line(value, end, places))
                elif number in tables:
                    tables[number].append((value, end))
        except WireError as error:
            self.miss(str(error), stop)
        starts, stops = (np.frombuffer(part, np.int64) if part else np.empty(0, np.int64) for part in places)
        return _Plane(name, lines, (starts, stops), tables[4], tables[5], tables[6])

    def _read_line(self, start: int, stop: int, places: tuple[array[int], array[int]]) -> _Line:
        first = len(places[0])
        others: list[tuple[int, int, int, int]] = []
        try:
            split(self._text, start, stop, 4, places, others)
        except WireError as error:
            self.miss(str(error), stop)
        found = {number: self._text[value:end] if wire == BYTES else value for number, wire, value, end in others}
        name = found.get(11) or found.get(2)
        numbers = (value if isinstance(value, int) else 0 for value in (found.get(1, 0), found.get(3, 0)))
        line_id, at_ns = map(_signed, numbers)
        return _Line(line_id, text_of(name) if isinstance(name, bytes) else "", at_ns, first, len(places[0]))

    def _lanes(self, plane: _Plane, roles: Ints, ordinal: int) -> Ints:
        keys: list[tuple[Any, ...]] = []
        for line, role in zip(plane.lines, roles.tolist(), strict=True):
            if role == HOST:
                keys.append((_HOST, line.id))
                if line.name:
                    self._builder.label("thread_name", _HOST, str(line.id), line.name)
            else:
                keys.append(("device", ordinal, line.name if role == NOTE or line.name in _DERIVED else line.id))
        return self._builder.codes_of(lanes=keys)["lane"].astype(np.int64)

    def _describe(self, kind: str, ordinal: int, plane: _Plane, stat_names: Table) -> None:
        """Keep what a device says of itself."""
        if ordinal >= _MAX_DEVICES:
            return
        stats = read_stats(self._text, self._octets, plane.stats)
        facts: dict[str, Any] = {"id": ordinal, "name": kind if kind not in ("GPU", "TPU") else ""}
        for key, name in _FACTS.items():
            values = stats.texts(self._text, name, stat_names) or stats.numbers(name, stat_names)[1].tolist()
            if values:
                facts[key] = values[-1]
        vendor = str(facts.pop("vendor", "")).lower()
        self._makers.add(
            "tpu" if kind == "TPU" else "rocm" if "amd" in vendor else "cuda" if kind == "GPU" else "other"
        )
        self._devices[ordinal] = facts

    # -- events ----------------------------------------------------------------------------

    def _read_events(
        self,
        plane: _Plane,
        line: Ints,
        places: tuple[Ints, Ints],
        roles: Ints,
        lanes: Ints,
        names: _Names,
        ordinal: int,
    ) -> None:
        n = len(line)
        fields, damaged = fields_of(self._text, self._octets, *places)
        if damaged.any():
            self.loss.n_lost += int(damaged.sum())
            self.loss.say("events that are no messages")
        number = {key: np.zeros(n, np.int64) for key in (1, 2, 3, 5)}
        for key, values in number.items():
            found = fields.where(key, VARINT)
            values[found.message] = found.value.astype(np.int64)
        # what only counts occurrences has no place in time
        keep = np.flatnonzero(~damaged & (number[5] == 0))
        position = np.full(n, -1, np.int64)
        position[keep] = np.arange(len(keep))
        code, offset_ps, dur_ps, line = names.table.find(number[1][keep]), number[2][keep], number[3][keep], line[keep]
        held = fields.where(4, BYTES)
        owner = position[held.message]
        owned = owner >= 0
        stats = read_stats(
            self._text, self._octets, (held.value[owned].astype(np.int64), held.stop[owned]), owner[owned]
        )
        at_ns = np.array([item.at_ns for item in plane.lines], np.int64)[line]
        sound = np.ones(len(keep), bool)
        for values in (at_ns, offset_ps, dur_ps):
            sound &= (values > -LARGEST_NS) & (values < LARGEST_NS)
        at_ns, offset_ps, dur_ps = (np.where(sound, values, 0) for values in (at_ns, offset_ps, dur_ps))
        begin_ns, end_ns = offset_ps // 1000, (offset_ps + dur_ps) // 1000
        columns = {
            "start_ns": np.where(sound, at_ns + begin_ns, NO_TIME_NS),
            "dur_ns": end_ns - begin_ns,
            "name": names.codes_of(code),
            "lane": lanes[line],
            "key": np.full(len(keep), -1, np.int64),
            "value": np.full(len(keep), -1, np.int64),
            "detail": np.full(len(keep), -1, np.int64),
        }
        role = roles[line]
        if ordinal < 0:
            what = self._host_rows(columns, names, code, stats)
        else:
            what = self._device_rows(columns, names, code, stats, role)
            self._keep_programs(plane, columns, names, stats, line, ordinal, what)
        columns["cat"] = what
        for name, parts in self._columns.items():
            parts.append(columns[name])
        self._n_rows += len(keep)

    def _host_rows(self, columns: dict[str, Any], names: _Names, code: Ints, stats: Stats) -> Ints:
        what = names.kinds[code]
        owner, ids = stats.numbers("correlation_id", names.stats)
        what[owner], columns["key"][owner] = CALL, ids
        self._sizes(columns, names, stats)
        owner, ids = stats.numbers("_p", names.stats)
        self._enqueued.append((self._n_rows + owner, ids))
        owner, steps = stats.numbers("step_num", names.stats)
        what[owner] = MARK
        marks = [f"ProfilerStep#{step}" for step in steps.tolist()]
        columns["name"][owner] = self._builder.codes_of(names=marks)["name"]
        return what

    def _device_rows(self, columns: dict[str, Any], names: _Names, code: Ints, stats: Stats, role: Ints) -> Ints:
        what = np.where(role == NOTE, DEVICE_NOTE, names.kinds[code])
        works = role == WORK
        owner, ids = stats.numbers("correlation_id", names.stats)
        columns["key"][owner] = ids
        columns["detail"][works] = names.details[code[works]]
        owner, kernels = stats.coded(self._text, "kernel_details", names.stats)
        codes = self._builder.codes_of(details=map(_grid_detail, kernels.table))["detail"]
        columns["detail"][owner] = codes[kernels.codes]
        what[owner[works[owner]]] = KERNEL
        owner, copies = self._sizes(columns, names, stats)
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

    def _sizes(self, columns: dict[str, Any], names: _Names, stats: Stats) -> tuple[Ints, Any]:
        owner, copies = stats.coded(self._text, "memcpy_details", names.stats)
        sizes = np.array([_size_of(text) for text in copies.table] or [-1], np.int64)
        columns["value"][owner] = sizes[copies.codes]
        set_owner, sets = stats.coded(self._text, "memset_details", names.stats)
        sizes = np.array([_size_of(text) for text in sets.table] or [-1], np.int64)
        columns["value"][set_owner] = sizes[sets.codes]
        return owner, copies

    def _keep_programs(
        self, plane: _Plane, columns: dict[str, Any], names: _Names, stats: Stats, line: Ints, ordinal: int, what: Ints
    ) -> None:
        """Remember which call enqueued each program of a TPU, and the rows that may be part of one."""
        owner, ids = stats.numbers("_c", names.stats)
        programs = np.array([item.name == PROGRAMS_LINE for item in plane.lines], bool)[line[owner]]
        owner, ids = owner[programs], ids[programs]
        if len(owner):
            start = columns["start_ns"][owner]
            device = np.full(len(owner), ordinal)
            self._programs.append(np.stack([device, start, start + columns["dur_ns"][owner], ids]))
        ops = np.flatnonzero((columns["key"] < 0) & (what != DEVICE_NOTE))
        if len(ops):
            self._ops.append((ordinal, self._n_rows + ops))

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


_COLUMNS = ("start_ns", "dur_ns", "name", "cat", "lane", "key", "value", "detail")
_FACTS = {
    "name": "device_type_string",
    "vendor": "device_vendor",
    "computeMajor": "compute_cap_major",
    "computeMinor": "compute_cap_minor",
    "numSms": "core_count",
    "totalGlobalMem": "memory_size",
}


class _Names:
    """What the names of a plane's events say, by their place in its table; the last place is for unknown ones."""

    def __init__(self, table: Table, stats: Table, builder: ColumnBuilder, *, is_host: bool) -> None:
        self.table, self.stats, self._builder = table, stats, builder
        category = table.texts_of("hlo_category", stats)
        self.shown = [elide(_host_name(name) if is_host else _device_name(name), LONGEST) for name in table.names]
        self.shown.append("")
        kinds = map(_host_kind, table.names) if is_host else map(_device_kind, self.shown[:-1], category)
        self.kinds = np.array([*kinds, MARK if is_host else KERNEL], np.int64)
        self.is_control = np.array([*(text in _CONTROL for text in category), False], bool)
        collective = [_collective_detail(text) for text in category]
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


def _roles(plane: _Plane, device: re.Match[str] | None) -> list[int]:
    """Say of each line whether it is the host's, holds work of a device, or names stretches of it."""
    if device is None:
        return [HOST] * len(plane.lines)
    filled = [line for line in plane.lines if line.stop > line.first]
    streams = {line.id for line in filled if line.name not in _DERIVED and line.id & 0xFFFFFFFF not in _DERIVED_IDS}
    if device[3]:  # a part of a device that works beside it
        return [NOTE] * len(plane.lines)
    if streams and device[1] != "TPU":
        return [WORK if line.id in streams else NOTE for line in plane.lines]
    names = {line.name for line in filled}
    work = next((name for name in ("XLA Ops", PROGRAMS_LINE) if name in names), None)
    return [WORK if line.name == work else NOTE for line in plane.lines]


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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
