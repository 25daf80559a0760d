"""The trace: arrays, string tables, and the structure computed from them when first asked.

The one circle of this package: ``Trace`` imports the modules of its eight structures (``tree``, ``frames``, ``links``,
``steps``, ``devices``, ``waits``, ``origin``, ``serving``) on first use, and they name ``Trace`` in annotations only.
So each is computed once, and reading a trace imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.engine import find_engine
from torchtriage.core.intervals import Spans
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.timing import part
from torchtriage.core.trace.schema import HOST_KINDS, WORK_KINDS, Kind

if TYPE_CHECKING:
    from torchtriage.core.selection import Selection
    from torchtriage.core.table import Table
    from torchtriage.core.trace.device import Device
    from torchtriage.core.trace.host_syncs import Waits
    from torchtriage.core.trace.launch_links import Links
    from torchtriage.core.trace.nesting import Tree
    from torchtriage.core.trace.peak_rates import Peak
    from torchtriage.core.trace.producer import Origin
    from torchtriage.core.trace.serving import Serving
    from torchtriage.core.trace.steps import Steps, Window

STREAM_PROCESS = "stream_process"
"""The label of a device's stream that names the process whose it is, where a format says."""

_PIECE = 1 << 15
_FEW, _FEW_NAMES = 4, 1000
"""From a quarter of all rows, or so many names, on a look-up per row is faster."""


class Lane(NamedTuple):
    """A host thread (``pid``, ``tid``) or a device stream (``device``, ``stream``)."""

    kind: str
    pid: str
    tid: str
    device: int
    stream: int


class Detail(NamedTuple):
    """The dictionary-coded arguments of a row, as raw JSON text (empty when not recorded)."""

    dims: bytes = b""
    types: bytes = b""
    concrete: bytes = b""
    strides: bytes = b""
    grid: bytes = b""
    block: bytes = b""
    collective: bytes = b""
    nelems: bytes = b""
    dtype: bytes = b""
    group: bytes = b""
    ranks: bytes = b""
    seq: bytes = b""
    group_size: bytes = b""
    src: bytes = b""
    dst: bytes = b""


class MemoryEvents(NamedTuple):
    """Allocator records (``[memory]`` instants), one per array element, in file order."""

    at_ns: Ints
    size_bytes: Ints
    """Negative for a free."""
    addr: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    device_type: Ints
    """0 is the CPU, 1 CUDA, 6 HIP."""
    device: Ints


class ReadReport(msgspec.Struct, frozen=True):
    """How the file was read and what it cost."""

    path: str
    size_bytes: int
    text_bytes: int
    tier: str
    n_lost: int
    n_repaired: int
    loss: tuple[str, ...]
    n_events: int = 0
    phases: dict[str, int] = {}
    n_no_dur: int = 0
    n_no_time: int = 0
    n_negative_dur: int = 0
    n_unpaired: int = 0
    chunks: Any = None
    """int64[k, 3]: first row, text offset and text length of each chunk (for lazy arguments); of a database, first
    row, number of the table and 0."""
    recorder: str = ""
    """Which profiler wrote the file; empty for PyTorch's and those that write like it."""
    inputs: str = ""
    """How many operators have their inputs from an execution trace, and which; empty without one."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One recording as columns of equal length (``core/trace/schema.py`` says what each means)."""

    start_ns: Ints
    dur_ns: Ints
    name: NDArray[np.int32]
    cat: NDArray[np.int16]
    kind: NDArray[np.uint8]
    lane: NDArray[np.int32]
    key: Ints
    value: Ints
    detail: NDArray[np.int32]
    names: tuple[str, ...]
    cats: tuple[str, ...]
    lanes: tuple[Lane, ...]
    details: tuple[Detail, ...]
    memory: MemoryEvents
    labels: dict[tuple[str, str, str], str]
    """(what, pid, tid) -> text of process_name, thread_name and process_labels events."""
    meta: dict[str, Any]
    report: ReadReport
    source: Any = field(default=None, repr=False)
    """Path or stream from which arguments are read again."""
    stated_peak: Peak | None = None
    """The peak rates of its devices, where the user states them."""
    selection: Selection | None = None
    """The part of it that is judged, where the user chose one."""
    _decoded: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start_ns)

    def release(self) -> None:
        """Let go of what was derived: it refers to the trace, and both would wait for the garbage collector."""
        for name in vars(self).keys() - self.__dataclass_fields__.keys():
            del vars(self)[name]

    # -- columns and masks -----------------------------------------------------------------

    @cached_property
    def end_ns(self) -> Ints:
        """int64[n], ns: start plus duration."""
        return self.start_ns + self.dur_ns

    def spans_of(self, rows: NDArray[np.integer]) -> Spans:
        """Return int64[k, 2]: when each row starts and ends; not sorted, may overlap."""
        return intervals.spans(self.start_ns[rows], self.end_ns[rows])

    def time_of(self, rows: NDArray[np.integer], least_ns: int = 0) -> Spans:
        """Return the time in which any of these rows runs, sorted and disjoint; each for so long at least."""
        # piece by piece: all spans at once take several times the memory of the rows
        parts = []
        for first in range(0, len(rows), _PIECE):
            spans = self.spans_of(rows[first : first + _PIECE])
            if least_ns:
                spans[:, 1] = np.maximum(spans[:, 1], spans[:, 0] + least_ns)
            parts.append(intervals.union(spans))
        return parts[0] if len(parts) == 1 else intervals.union(np.concatenate([intervals.EMPTY, *parts]))

    def time_in(self, rows: NDArray[np.integer], cover: Spans) -> Ints:
        """Return int64[k], ns: how much of each row ``cover``, sorted and disjoint, covers."""
        out = np.empty(len(rows), np.int64)
        for first in range(0, len(rows), _PIECE):
            some = slice(first, first + _PIECE)
            out[some] = intervals.covered(self.spans_of(rows[some]), cover)
        return out

    def sum_by_name(self, rows: NDArray[np.integer], values_ns: Ints) -> NDArray[np.float64]:
        """Return float64[names], ns: the sum of int64[n] ``values_ns`` over the rows of each name."""
        out = np.zeros(len(self.names))
        for first in range(0, len(rows), _PIECE):
            some = rows[first : first + _PIECE]
            out += np.bincount(self.name[some], weights=values_ns[some], minlength=len(out))
        return out

    def longest(self, rows: NDArray[np.integer]) -> int:
        """Return the row that takes longest, the first of equal ones."""
        return int(rows[np.argmax(self.dur_ns[rows])])

    def mask_of(self, rows: NDArray[np.integer]) -> Mask:
        """Return bool[n]: true for these rows alone."""
        mask = np.zeros(len(self), dtype=bool)
        mask[rows] = True
        return mask

    def is_kind(self, *kinds: Kind) -> Mask:
        """Return bool[n]: rows of any of these kinds."""
        # a comparison at a time: a look-up per row takes ten times as long
        any_of: Mask = self.kind == kinds[0]
        for kind in kinds[1:]:
            any_of |= self.kind == kind
        return any_of

    @cached_property
    def works(self) -> Mask:
        """bool[n]: kernels, copies and sets; the rows that keep a device busy."""
        return self.is_kind(*WORK_KINDS)

    @cached_property
    def hosts(self) -> Mask:
        """bool[n]: ops, annotations and runtime calls; the rows of the op tree."""
        return self.is_kind(*HOST_KINDS)

    def named(self, *names: str) -> Mask:
        """Return bool[n]: rows with one of these exact names."""
        table = np.zeros(len(self.names), dtype=bool)
        table[[self._code_of[name] for name in names if name in self._code_of]] = True
        return self._rows_named(table)

    def matching(self, pattern: str | re.Pattern[str], *kinds: Kind) -> Mask:
        """Return bool[n]: rows, of these kinds where any are given, whose name the expression finds a match in.

        The names of other kinds are not looked at: those of kernels are few and long, those of Python frames many.
        """
        table = self._matched.get((pattern, kinds))
        if table is None:
            codes = np.concatenate([self._names_of(kind) for kind in kinds]) if kinds else np.arange(len(self.names))
            table = np.zeros(len(self.names), dtype=bool)
            # compiling takes as long as searching, and most recordings have no Python frames
            if len(codes):
                table = self._tested(re.compile(pattern).search, codes)
            self._matched[pattern, kinds] = table
        mask = self._rows_named(table)
        return mask & self.is_kind(*kinds) if kinds and table.any() else mask

    def matches(self, rows: NDArray[np.integer], pattern: str) -> Mask:
        """Return bool[k]: which of these rows have a name that the regular expression finds a match in.

        The names of other rows are not looked at, and each name once, whoever asks.
        """
        known = self._known.setdefault(pattern, {})

        def test(name: str) -> bool:
            if name not in known:
                known[name] = re.search(pattern, name) is not None
            return known[name]

        return self.rows_where(rows, test)

    def rows_where(self, rows: NDArray[np.integer], test: Callable[[str], object]) -> Mask:
        """Return bool[k]: which of these rows have a name that passes; each of their names is tested once."""
        codes = self.name[rows]
        mask: Mask = self._tested(test, np.flatnonzero(np.bincount(codes)))[codes]
        return mask

    def where_name(self, test: Callable[[str], object]) -> Mask:
        """Return bool[n]: rows whose name passes; each distinct name is tested once."""
        return self._rows_named(self._names_where(test))

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    @cached_property
    def _matched(self) -> dict[tuple[str | re.Pattern[str], tuple[Kind, ...]], Mask]:
        """The names that an expression matches, of some kinds: patterns ask for the same ones again."""
        return {}

    @cached_property
    def _known(self) -> dict[str, dict[str, bool]]:
        """Whether an expression matches a name, of those that :meth:`matches` has looked at."""
        return {}

    def _names_where(self, test: Callable[[str], object]) -> Mask:
        return np.fromiter(map(test, self.names), dtype=bool, count=len(self.names))

    def _tested(self, test: Callable[[str], object], codes: Ints) -> Mask:
        """Return bool[names]: those of these names that pass; no other is tested."""
        table = np.zeros(len(self.names), dtype=bool)
        table[codes] = np.fromiter(map(test, map(self.names.__getitem__, codes.tolist())), bool, len(codes))
        return table

    def _names_of(self, kind: Kind) -> Ints:
        """Return the codes of the names that rows of a kind have."""
        codes = self._kind_names.get(kind)
        if codes is None:
            used = np.zeros(len(self.names), dtype=bool)
            used[self.name[self.kind == kind]] = True
            codes = self._kind_names[kind] = np.flatnonzero(used)
        return codes

    @cached_property
    def _kind_names(self) -> dict[Kind, Ints]:
        """What :meth:`_names_of` has found out."""
        return {}

    def _rows_named(self, table: Mask) -> Mask:
        hits = np.flatnonzero(table)
        order, bounds = self._by_name
        n_rows = int((bounds[hits + 1] - bounds[hits]).sum())
        out: Mask
        if n_rows > len(self) // _FEW or len(hits) > _FEW_NAMES:
            out = table[self.name]
        else:  # most questions are about few rows, and there are a hundred of them
            out = np.zeros(len(self), dtype=bool)
            for code in hits.tolist():
                out[order[bounds[code] : bounds[code + 1]]] = True
        return out

    @cached_property
    def _by_name(self) -> tuple[NDArray[np.int32], Ints]:
        """The rows by code of their name, and int64[len(names) + 1]: where each code begins."""
        library = find_engine().library
        if library is not None:
            codes = np.ascontiguousarray(self.name, np.int32)
            rows, first = np.empty(len(self), np.int32), np.empty(len(self.names) + 1, np.int64)
            places = codes.ctypes.data, len(codes), len(self.names)
            if library.tt_group(*places, rows.ctypes.data, first.ctypes.data) == 0:
                return rows, first
        small = len(self.names) <= 1 << 16
        codes = self.name.astype(np.uint16) if small else self.name  # sorts by radix
        order = np.argsort(codes, kind="stable").astype(np.int32)
        counts = np.bincount(self.name, minlength=len(self.names))
        return order, np.concatenate(([0], np.cumsum(counts)))

    def name_of(self, row: int) -> str:
        """Return the name of one row."""
        return self.names[int(self.name[row])]

    def lane_label(self, lane: int) -> str:
        """Return what people call a lane: ``GPU 0 stream 7``, or the thread's own name."""
        kind, pid, tid, device, _ = self.lanes[lane]
        if kind == "stream":
            return f"{self.origin.accelerator or 'GPU'} {device if device >= 0 else pid} stream {tid}"
        return self.labels.get(("thread_name", pid, tid)) or f"thread {tid}"

    # -- arguments -------------------------------------------------------------------------

    def details_of(self, what: str, rows: Sequence[int] | Ints) -> list[Any]:
        """Return one decoded detail per row, None where it was not recorded (or is no list).

        ``what`` is a field of :class:`Detail`: ``dims``, ``types``, ``concrete``, ``strides``, ``grid``, ``block``,
        ``collective``, ``nelems``, ``dtype``, ``group``, ``ranks``, ``seq``,
        ``group_size``, ``src``, ``dst``.
        """
        codes = self.detail[np.asarray(rows, np.int64)].tolist()
        found = self._decode_all(what, set(codes))
        return [found[code] for code in codes]

    def _decode_all(self, what: str, codes: Iterable[int]) -> dict[int, Any]:
        """Return one field of some details; many have a text in common, and each is decoded once."""
        at, known = Detail._fields.index(what), self._decoded.setdefault(what, {})
        found: dict[int, Any] = {}
        for code in codes:
            text = self.details[code][at] if code >= 0 else b""
            if text not in known:
                known[text] = _decode(what, text)
            found[code] = known[text]
        return found

    def where_detail(self, what: str, test: Callable[[Any], bool], among: Mask) -> Mask:
        """Return bool[n]: rows of ``among`` whose decoded detail passes.

        Each distinct one is tested once; a detail that was not recorded never passes.
        """
        rows = np.flatnonzero(among & (self.detail >= 0))
        codes, which = np.unique(self.detail[rows], return_inverse=True)
        values = self._decode_all(what, codes.tolist()).values()
        table = np.fromiter((value is not None and bool(test(value)) for value in values), bool, len(codes))
        out = np.zeros(len(self), dtype=bool)
        out[rows] = table[which]
        return out

    def args(self, row: int) -> dict[str, Any]:
        """Return all arguments of one row as written, read again from the file."""
        from torchtriage.core.trace.arguments import read_args

        return read_args(self, row)

    @cached_property
    def has_shapes(self) -> bool:
        """Whether ops were recorded with their input shapes (``record_shapes=True``)."""
        return any(entry.dims for entry in self.details)

    @cached_property
    def has_stacks(self) -> bool:
        """Whether Python frames were recorded (``with_stack=True``)."""
        return bool((self.kind == Kind.PYTHON).any())

    @cached_property
    def has_operators(self) -> bool:
        """Whether operators were recorded."""
        return bool((self.kind == Kind.OP).any())

    @cached_property
    def has_calls_alone(self) -> bool:
        """Whether calls are all that was recorded of the host: no operator, no range, no frame."""
        others = self.is_kind(Kind.OP, Kind.ANNOTATION, Kind.GPU_ANNOTATION, Kind.PYTHON)
        return bool((self.kind == Kind.RUNTIME).any()) and not others.any()

    @cached_property
    def is_host_only(self) -> bool:
        """Whether only the CPU was at work: no device row, no runtime call, no device listed."""
        device = self.is_kind(*WORK_KINDS, Kind.RUNTIME, Kind.DEVICE_OTHER)
        listed = self.meta.get("deviceProperties")
        return self.origin.vendor == "cpu" and not device.any() and not listed

    # -- tables ----------------------------------------------------------------------------

    @property
    def file_start_ns(self) -> int:
        """When the first row of the whole file starts."""
        return int(self.start_ns.min()) if len(self) else 0

    def rows_in_file(self, rows: Ints) -> Ints:
        """Return the rows of the whole file's trace that these are; the same ones unless this is one rank of it."""
        return rows

    def table(self, name: str) -> Table:
        """Return a table for data frames and SQL: ``kernels``, ``ops``, ``copies``, ``steps``, ``ranks``, ...

        pandas, polars, pyarrow and DuckDB read it as it is; docs/tables.md lists tables and columns.

        Raises UsageError: there is no such table.
        """
        from torchtriage.core.trace.tables import make_table

        return make_table(self, name)

    # -- structure, each computed once -----------------------------------------------------

    @cached_property
    def tree(self) -> Tree:
        """The op tree: ops, annotations and runtime calls of every host thread."""
        from torchtriage.core.trace.nesting import host_tree

        with part("operator tree"):
            return host_tree(self)

    @cached_property
    def frames(self) -> Tree:
        """The Python tree: frames of every thread."""
        from torchtriage.core.trace.nesting import frame_tree

        with part("Python tree"):
            return frame_tree(self)

    @cached_property
    def links(self) -> Links:
        """Launch links: device rows to the runtime calls and ops that enqueued them."""
        from torchtriage.core.trace.launch_links import link

        with part("launch links"):
            return link(self)

    @cached_property
    def steps(self) -> Steps:
        """The steps of the loop, with wall boundaries, and which of them are steady."""
        from torchtriage.core.trace.steps import find_steps

        with part("steps"):
            if self.selection is not None:
                from torchtriage.core.trace.select import selected_steps

                return selected_steps(self, self.selection)
            return find_steps(self)

    @property
    def is_part(self) -> bool:
        """Whether a part of its time was selected: its steady steps are then all that belongs to it."""
        return self.selection is not None and self.selection.in_time

    @cached_property
    def first_use(self) -> Ints:
        """Host rows that compile, load modules or create contexts; see :mod:`~torchtriage.core.trace.steps`."""
        from torchtriage.core.trace.steps import first_use

        return first_use(self)

    @property
    def window(self) -> Window:
        """The part of the recording that is judged, and why that part."""
        return self.steps.window

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every accelerator with its work, idle gaps and their classes; busiest first."""
        from torchtriage.core.trace.device import find_devices

        with part("devices"):
            return find_devices(self)

    @cached_property
    def waits(self) -> Waits:
        """Host calls that wait for the device, and the device idle time each one causes."""
        from torchtriage.core.trace.host_syncs import find_waits

        with part("waits"):
            return find_waits(self)

    @cached_property
    def origin(self) -> Origin:
        """Who recorded this: vendor, devices, versions, flags, rank."""
        from torchtriage.core.trace.producer import find_origin

        with part("origin"):
            return find_origin(self)

    @cached_property
    def serving(self) -> Serving | None:
        """The steps of an inference engine; None where the recording shows none."""
        from torchtriage.core.trace.serving import find_serving

        return find_serving(self)

    @cached_property
    def resolution_ns(self) -> int:
        """1000 when every time is a whole microsecond (torch before 2024-04), else 1."""
        timed = self.kind != Kind.INSTANT
        # a handful of rows can be whole by chance
        if np.count_nonzero(timed) < 8:
            return 1
        # piece by piece: the first one says it of most traces
        for first in range(0, len(self), 1 << 16):
            piece = slice(first, first + (1 << 16))
            for times_ns in (self.start_ns[piece], self.dur_ns[piece]):
                if (times_ns[timed[piece]] % 1000).any():
                    return 1
        return 1000


_LISTS = frozenset({"dims", "types", "concrete", "strides", "grid", "block"})


def _decode(what: str, raw: bytes) -> Any:
    if not raw:
        return None
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    # patterns index into these: what is no list was not recorded
    if what in _LISTS and not isinstance(value, list):
        return None
    return elide(value, LONGEST) if isinstance(value, str) else value
