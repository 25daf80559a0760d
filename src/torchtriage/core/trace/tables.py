"""A trace as tables: kernels, operators, copies, steps, ranks, collectives and memory, for data frames and SQL.

Names of columns are promised: those that measure end in their unit. ``docs/tables.md`` is generated from here. What is
not known is null. A table computes a column when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.arrow import Values
from torchtriage.core.errors import UsageError
from torchtriage.core.table import Column, Table, coded, known_where, made_of_columns
from torchtriage.core.trace.collective_time import find_collectives
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.kernel_categories import CATEGORIES, categories
from torchtriage.core.trace.schema import HOST_KINDS, Kind


class TableKind(NamedTuple):
    """What a table holds. ``rows`` : finds the rows of a trace, and their number is its ``len``."""

    meaning: str
    rows: Callable[[Trace], Any]
    columns: tuple[Column, ...]


def make_table(trace: Trace, name: str) -> Table:
    """Return one table of a trace.

    Raises UsageError: there is no such table.
    """
    known = find_table(name)
    return made_of_columns(known.columns, known.rows(trace))


def find_table(name: str) -> TableKind:
    """Return what a table holds.

    Raises UsageError: there is no such table.
    """
    if name not in TABLES:
        raise UsageError(f"expected one of the tables {', '.join(TABLES)}, found {name!r}")
    return TABLES[name]


# -- rows ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Rows:
    """Rows of a trace, of its devices or of its host threads, in the trace's own order."""

    trace: Trace
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rank(self) -> int | None:
        return self.trace.origin.rank

    def at(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[self.rows]

    @cached_property
    def step(self) -> NDArray[Any]:
        trace, rows = self.trace, self.rows
        if not len(trace.steps):
            return known_where(np.zeros(len(rows), np.int64), np.zeros(len(rows), bool))
        step = trace.steps.of_host(rows)
        work = np.flatnonzero(trace.works[rows])
        step[work] = trace.steps.of_work(rows[work])
        return known_where(step, step >= 0)

    @property
    def name(self) -> Values:
        return self.named(self.rows)

    def named(self, rows: Ints) -> Values:
        """Return the names of some rows, null for -1; the table holds those in use alone."""
        codes = (
            np.where(rows >= 0, self.trace.name[rows], -1) if len(rows) and rows.min() < 0 else self.trace.name[rows]
        )
        return _used(codes, self.trace.names)

    @cached_property
    def op(self) -> Values:
        return self.named(self.at(self.trace.links.op).astype(np.int64))

    @property
    def launch_ns(self) -> NDArray[Any]:
        call = self.at(self.trace.links.call)
        return known_where(self.trace.start_ns[call], call >= 0)

    def lanes(self, of: Callable[[int], Any]) -> NDArray[Any]:
        """Return something of each row's lane."""
        table = np.array([of(lane) for lane in range(len(self.trace.lanes))] or [0])
        return table[self.at(self.trace.lane)]

    @property
    def device(self) -> NDArray[Any]:
        return self.lanes(lambda lane: self.trace.lanes[lane].device)

    @property
    def stream(self) -> NDArray[Any]:
        return self.lanes(lambda lane: self.trace.lanes[lane].stream)

    @property
    def thread(self) -> Values:
        labels = tuple(self.trace.lane_label(lane) for lane in range(len(self.trace.lanes)))
        return _used(self.at(self.trace.lane), labels)

    @property
    def key(self) -> NDArray[Any]:
        key = self.at(self.trace.key)
        return known_where(key, key >= 0)

    @property
    def size_bytes(self) -> NDArray[Any]:
        value = self.at(self.trace.value)
        return known_where(value, value >= 0)

    @property
    def category(self) -> Values:
        table = np.full(len(self.trace), -1, np.int32)
        for device in self.trace.devices:
            table[device.rows] = categories(device)
        return coded(self.at(table), CATEGORIES)

    @property
    def parent(self) -> NDArray[Any]:
        parent = self.at(self.trace.tree.parent)
        return known_where(self.trace.rows_in_file(parent), parent >= 0)

    @property
    def device_ns(self) -> Ints:
        trace, links = self.trace, self.trace.links
        work = np.flatnonzero(trace.works)
        # calls and operators are different rows; what has none goes to the last entry
        owners = np.concatenate([links.op[work], links.call[work]]) % (len(trace) + 1)
        # sums of whole numbers below 2^53 are exact
        total = np.bincount(owners, np.tile(trace.dur_ns[work], 2), len(trace) + 1)
        return total[self.rows].astype(np.int64)

    def detail(self, what: str) -> Values:
        """Return one of the arguments as JSON text, null where it was not recorded."""
        index = type(self.trace.details[0])._fields.index(what) if self.trace.details else 0
        texts = [detail[index].decode("utf-8", "replace") for detail in self.trace.details]
        distinct: dict[str, int] = {}
        table = np.array([distinct.setdefault(text, len(distinct)) if text else -1 for text in texts] + [-1], np.int32)
        return _used(table[self.at(self.trace.detail)], tuple(distinct))


def _used(codes: NDArray[Any], texts: tuple[str, ...]) -> Values:
    """Return texts by code with a table of those in use alone."""
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    used = np.flatnonzero(counts)
    recoded = np.full(len(texts) + 1, -1, np.int32)
    recoded[used] = np.arange(len(used), dtype=np.int32)
    return coded(recoded[codes], tuple(texts[code] for code in used.tolist()))


def _of(*kinds: Kind) -> Callable[[Trace], _Rows]:
    return lambda trace: _Rows(trace, np.flatnonzero(selected(trace, trace.is_kind(*kinds))))


def selected(trace: Trace, mask: Mask) -> Mask:
    """Return those rows of a mask that belong to the selected part of a trace."""
    if not trace.is_part:
        return mask
    rows = np.flatnonzero(mask)
    step = _Rows(trace, rows).step
    mask = mask.copy()
    mask[rows] = trace.steps.in_steady(np.ma.filled(step, -1))
    return mask


_KIND_NAMES = {
    Kind.OP: "op",
    Kind.ANNOTATION: "annotation",
    Kind.RUNTIME: "call",
    Kind.MEMCPY: "copy",
    Kind.MEMSET: "set",
}


def _kind(rows: _Rows) -> Values:
    table = np.full(256, -1, np.int32)
    table[list(_KIND_NAMES)] = np.arange(len(_KIND_NAMES), dtype=np.int32)
    return _used(table[rows.at(rows.trace.kind)], tuple(_KIND_NAMES.values()))


RANK = Column("rank", "int64", "rank of the process in its job; null where the recording names none", lambda r: r.rank)
_START = Column("start_ns", "int64", "start on the trace's own clock", lambda r: r.at(r.trace.start_ns))
_DUR = Column("dur_ns", "int64", "duration; 0 is below the recording's resolution", lambda r: r.at(r.trace.dur_ns))
_ROW = Column(
    "row",
    "int64",
    "row of the file's trace, as `load(path).args(row)` takes it; counts on over merged ranks",
    lambda r: r.trace.rows_in_file(r.rows),
)
_NAME = Column("name", "text", "name as recorded", lambda r: r.name)
_ON_DEVICE = (
    _ROW,
    RANK,
    Column("device", "int64", "number of the device, -1 where it has none", lambda r: r.device),
    Column("stream", "int64", "number of the stream, -1 where it has none", lambda r: r.stream),
)
_LAUNCHED = (
    Column("op", "text", "innermost operator that launched it; null where none is recorded", lambda r: r.op),
    Column("step", "int64", "step in which it was launched, from 0, as in `steps`; null outside", lambda r: r.step),
    _START,
    _DUR,
    Column("launch_ns", "int64", "start of the call that launched it; null without one", lambda r: r.launch_ns),
    Column("correlation", "int64", "id that its call has, too; null without one", lambda r: r.key),
)

# -- steps and ranks -----------------------------------------------------------------------------

_CLASSES = (
    ("compute_ns", "computation on the main device"),
    ("comm_only_ns", "communication without computation"),
    ("copy_only_ns", "copies with neither running"),
    ("idle_host_late_ns", "idle: the host launched too late"),
    ("idle_queued_ns", "idle although work was queued"),
    ("idle_unknown_ns", "idle: the launch is not recorded, or nothing follows"),
)


_REFUSED = "as the recording cannot be analysed"


@dataclass(eq=False)
class _StepRows:
    trace: Trace
    spans: NDArray[np.int64]
    which: Ints
    refused: bool = False
    """Nothing can be said of the recording."""
    lacks_rows: bool = False
    """Rows of the devices are missing: how busy they were is not known."""

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def rank(self) -> int | None:
        return self.trace.origin.rank

    @cached_property
    def classes(self) -> dict[str, Ints] | None:
        """Time of the main device by class, in each span; None where it is not known."""
        if not self.trace.devices or self.refused or self.lacks_rows:
            return None
        found = self.trace.devices[0].classes(self.spans)
        return {name: np.array([getattr(classes, name) for classes in found], np.int64) for name, _ in _CLASSES}


def _step_rows(trace: Trace) -> _StepRows:
    steps = trace.steps
    which = np.flatnonzero(steps.steady) if trace.is_part else np.arange(len(steps))
    return _StepRows(trace, intervals.spans(steps.start_ns, steps.end_ns)[which], which)


@dataclass(eq=False)
class _RankRow(_StepRows):
    """The judged time of a trace as one row."""

    def __len__(self) -> int:
        return 1


def _class_columns(of: str, total: Callable[[Ints], Any]) -> tuple[Column, ...]:
    def column(name: str, meaning: str) -> Column:
        def find(rows: _StepRows) -> Any:
            return None if rows.classes is None else total(rows.classes[name])

        return Column(name, "int64", f"{of}{meaning}; null without a device, or where rows of it are missing", find)

    return tuple(column(*each) for each in _CLASSES)


# -- collectives and memory ------------------------------------------------------------------------


@dataclass(eq=False)
class _CollectiveRows(_Rows):
    which: Ints

    @cached_property
    def found(self) -> Any:
        return find_collectives(self.trace)

    @property
    def label(self) -> list[str]:
        return [] if self.found is None else np.array(self.found.labels, object)[self.which].tolist()

    @property
    def message_bytes(self) -> NDArray[Any]:
        size = np.empty(0, np.int64) if self.found is None else self.found.size_bytes[self.which]
        return known_where(size, size >= 0)

    @property
    def exposed_ns(self) -> NDArray[Any]:
        if self.found is None:
            return np.empty(0, np.int64)
        spans = self.found.exposed
        total = np.bincount(self.found.source, weights=spans[:, 1] - spans[:, 0], minlength=len(self.found.rows))
        return total.astype(np.int64)[self.which]

    @property
    def seq(self) -> list[int | None]:
        return [number if isinstance(number, int) else None for number in self.trace.details_of("seq", self.rows)]


def _collective_rows(trace: Trace) -> _CollectiveRows:
    found = find_collectives(trace)
    if found is None:
        none = np.empty(0, np.int64)
        return _CollectiveRows(trace, none, none)
    order = np.argsort(trace.start_ns[found.rows], kind="stable")
    keep = order[trace.steps.in_steady(found.step[order])] if trace.is_part else order
    return _CollectiveRows(trace, found.rows[keep], keep)


@dataclass(eq=False)
class _MemoryRows:
    trace: Trace
    which: Ints

    def __len__(self) -> int:
        return len(self.which)

    @property
    def rank(self) -> int | None:
        return self.trace.origin.rank

    def at(self, column: str) -> NDArray[Any]:
        return getattr(self.trace.memory, column)[self.which]

    @property
    def step(self) -> NDArray[Any]:
        steps, at_ns = self.trace.steps, self.at("at_ns")
        step = steps.of_time(at_ns) if len(steps) else np.full(len(at_ns), -1)
        return known_where(step, step >= 0)


def _memory_rows(trace: Trace) -> _MemoryRows:
    which = np.arange(len(trace.memory.at_ns))
    if trace.is_part:
        which = which[trace.steps.in_steady(trace.steps.of_time(trace.memory.at_ns))]
    return _MemoryRows(trace, which)


def _memory(name: str, column: str, meaning: str, *, least: int | None = None) -> Column:
    def find(rows: _MemoryRows) -> Any:
        values = rows.at(column)
        return values if least is None else known_where(values, values >= least)

    return Column(name, "int64", meaning, find)


TABLES: dict[str, TableKind] = {
    "kernels": TableKind(
        "Kernels that ran on a device.",
        _of(Kind.KERNEL),
        (
            *_ON_DEVICE,
            _NAME,
            Column("category", "text", "what it is for, as `analyze` says it", lambda r: r.category),
            *_LAUNCHED,
            Column("grid", "text", "blocks, as JSON; null where not recorded", lambda r: r.detail("grid")),
            Column("block", "text", "threads of a block, as JSON; null likewise", lambda r: r.detail("block")),
        ),
    ),
    "ops": TableKind(
        "Operators, annotations and runtime calls of the host's threads; Python frames are left out.",
        _of(*HOST_KINDS),
        (
            _ROW,
            RANK,
            Column("kind", "text", "`op`, `annotation` or `call`", _kind),
            Column("thread", "text", "name of the thread", lambda r: r.thread),
            _NAME,
            Column("step", "int64", "step in which it starts, from 0, as in `steps`; null outside", lambda r: r.step),
            _START,
            _DUR,
            Column("self_ns", "int64", "duration without what it calls", lambda r: r.at(r.trace.tree.self_ns)),
            Column("parent", "int64", "`row` of what encloses it; null at the top", lambda r: r.parent),
            Column(
                "device_ns",
                "int64",
                "summed duration of the work it launched itself: an operator's as the innermost one, a call's own",
                lambda r: r.device_ns,
            ),
            Column(
                "input_dims",
                "text",
                "sizes of its inputs, as JSON; null where not recorded",
                lambda r: r.detail("dims"),
            ),
        ),
    ),
    "copies": TableKind(
        "Copies and sets of memory that ran on a device.",
        _of(Kind.MEMCPY, Kind.MEMSET),
        (
            *_ON_DEVICE,
            Column("kind", "text", "`copy` or `set`", _kind),
            _NAME,
            Column("bytes", "int64", "size; null where not recorded", lambda r: r.size_bytes),
            *_LAUNCHED,
        ),
    ),
    "steps": TableKind(
        "Steps of the loop; none where the recording shows none.",
        _step_rows,
        (
            RANK,
            Column("step", "int64", "number from 0", lambda r: r.which),
            Column("name", "text", "what the report calls it", lambda r: [r.trace.steps.names[i] for i in r.which]),
            Column(
                "start_ns",
                "int64",
                "when the host begins it and the device is done with what was before",
                lambda r: r.spans[:, 0],
            ),
            Column("dur_ns", "int64", "wall time", lambda r: r.spans[:, 1] - r.spans[:, 0]),
            Column("host_start_ns", "int64", "when the host begins it", lambda r: r.trace.steps.host_start_ns[r.which]),
            Column(
                "host_dur_ns",
                "int64",
                "how long the host is in it",
                lambda r: (r.trace.steps.host_end_ns - r.trace.steps.host_start_ns)[r.which],
            ),
            Column(
                "judged",
                "bool",
                "whether costs are taken from it",
                lambda r: r.trace.steps.steady[r.which] & (not r.refused),
            ),
            Column(
                "left_out",
                "text",
                "why not; null for judged ones",
                lambda r: [_REFUSED if r.refused else r.trace.steps.left_out[i] or None for i in r.which],
            ),
            *_class_columns("", lambda times: times),
        ),
    ),
    "ranks": TableKind(
        "One row for each rank: a folder has many, a file one, or those that were merged into it.",
        lambda trace: _RankRow(trace, trace.steps.judged, np.empty(0, np.int64)),
        (
            RANK,
            Column(
                "world_size", "int64", "ranks of the job; null where not recorded", lambda r: r.trace.origin.world_size
            ),
            Column("path", "text", "file", lambda r: r.trace.report.path),
            Column("vendor", "text", "`cuda`, `rocm`, `cpu`, …", lambda r: r.trace.origin.vendor),
            Column(
                "device_name",
                "text",
                "main device; null without one",
                lambda r: r.trace.devices[0].name if r.trace.devices else None,
            ),
            Column("n_rows", "int64", "rows of the trace", lambda r: len(r.trace)),
            Column("n_steps", "int64", "steps", lambda r: len(r.trace.steps)),
            Column(
                "n_judged",
                "int64",
                "steps that costs are taken from; 0 where the recording cannot be analysed",
                lambda r: 0 if r.refused else int(r.trace.steps.steady.sum()),
            ),
            Column(
                "step_ns",
                "int64",
                "mean wall time of a judged step, or the window's; null where it cannot",
                lambda r: None if r.refused else r.trace.steps.wall_ns,
            ),
            Column(
                "wall_ns",
                "int64",
                "judged time in all; null likewise",
                lambda r: None if r.refused else intervals.length(r.spans),
            ),
            *_class_columns("of the judged time, ", lambda times: int(times.sum())),
        ),
    ),
    "collectives": TableKind(
        "Collectives of the main device, or of host threads where there is none.",
        _collective_rows,
        (
            _ROW,
            RANK,
            Column("collective", "text", "`all_reduce`, or the kernel's name", lambda r: r.label),
            _NAME,
            Column("group", "text", "process group, as JSON; null where not recorded", lambda r: r.detail("group")),
            Column(
                "seq", "int64", "number in its group, the same on every rank; null where not recorded", lambda r: r.seq
            ),
            Column(
                "dtype", "text", "type of its elements, as JSON; null where not recorded", lambda r: r.detail("dtype")
            ),
            Column("bytes", "int64", "size of the message; null where not recorded", lambda r: r.message_bytes),
            Column("step", "int64", "step it belongs to, from 0; null outside", lambda r: r.step),
            _START,
            _DUR,
            Column("exposed_ns", "int64", "part in which nothing is computed", lambda r: r.exposed_ns),
        ),
    ),
    "memory": TableKind(
        "Records of the allocator, with `profile_memory=True`.",
        _memory_rows,
        (
            RANK,
            _memory("at_ns", "at_ns", "when, on the trace's own clock"),
            _memory("bytes", "size_bytes", "size, negative for a free"),
            _memory("address", "addr", "address"),
            _memory("allocated_bytes", "allocated_bytes", "allocated after it; null where not recorded", least=0),
            _memory("reserved_bytes", "reserved_bytes", "reserved after it; null where not recorded", least=0),
            _memory("device_type", "device_type", "0 is the CPU, 1 CUDA, 6 HIP"),
            _memory("device", "device", "number of the device; null for the CPU", least=0),
            Column("step", "int64", "step in which it is, from 0; null outside", lambda r: r.step),
        ),
    ),
}
"""Every table by name; what judges a trace adds ``findings``, and what the others cannot know."""
