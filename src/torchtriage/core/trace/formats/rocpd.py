"""ROCm's databases as the columns that Kineto's JSON gives: rocmProfileData (``.rpd``) and rocprofv3 (``rocpd``).

Both have ``rocpd_string`` and name everything else differently. In the older one a table pairs calls and work; in
rocprofv3's both have an event, and the events of a call and its work have the same ``stack_id``. Its tables end in the
id of a process, and a file may hold several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.event_numbers import NO_DUR_NS, NO_TIME_NS
from torchtriage.core.trace.formats.nvtx import split_text
from torchtriage.core.trace.formats.sqlite_rows import MISSING, Database
from torchtriage.core.trace.formats.texts import text_of
from torchtriage.core.trace.recorders import ROCPD

__all__ = ["RECORDER", "is_rocpd", "read_rocpd", "row_of"]

RECORDER = ROCPD
_OLD = "rocpd_op", "rocpd_api"
_NEW = "rocpd_kernel_dispatch", "rocpd_region", "rocpd_memory_copy"
_SUFFIX = re.compile(rf"(?:{'|'.join(_NEW)})((?:_[0-9A-Fa-f]+)*)")
_MAX_PROCESSES = 64
_PROCESS_BITS = 40
"""Of a key, below the number of the process that it counts in."""
_GRID = "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ"
_NEW_GRID = tuple(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_COPY = re.compile(r"(Host|Device|Peer|Array)_?to_?(Host|Device|Peer|Array)", re.IGNORECASE)
_SET = re.compile(r"^fill|memset", re.IGNORECASE)
_MARKER, _NO_WORK = "UserMarker", re.compile(r"marker|barrier", re.IGNORECASE)
_CALL = re.compile(r"^(?:hip|hsa|nccl|rccl|roc)\w*$")
_PROFILERS_OWN = re.compile(r"Table::writeRows$|_activity_callback$|^rpdflush$")
_MESSAGE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, eq=False)
class _Table:
    """All rows of a table: whole numbers by column, and texts."""

    numbers: Mapping[str, Ints]
    texts: Sequence[bytes]

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))

    def __getitem__(self, column: str) -> Ints:
        return self.numbers[column]

    def find(self, ids: Ints, key: str = "id") -> Ints:
        """Return the row with each id in ``key``, -1 where there is none; the first one of each counts."""
        known = self.numbers[key]
        if not len(known):
            return np.full(len(ids), -1, np.int64)
        order = np.argsort(known, kind="stable")
        place = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
        return np.where((known[order][place] == ids) & (ids != MISSING), order[place], -1)

    def of(self, rows: Ints, column: str, missing: int = -1) -> Ints:
        """Return a column at rows from ``find``."""
        if not len(self):
            return np.full(len(rows), missing, np.int64)
        values = np.where(rows >= 0, self.numbers[column][rows], missing)
        return np.where(values == MISSING, missing, values)


def is_rocpd(database: Database) -> bool:
    """Return whether the tables are those of ROCm's profilers."""
    return (
        database.has("rocpd_op", "start", "end")
        or database.has("rocpd_api", "start", "end")
        or any(_SUFFIX.fullmatch(table) for table in database.tables)
    )


def row_of(database: Database, table: int, index: int) -> dict[str, object]:
    """Return what the file holds of one row; only the columns are kept of these."""
    return {}


def read_rocpd(database: Database, builder: ColumnBuilder) -> dict[str, Any]:
    """Append all rows to the builder; return what else the file says, as Kineto's top-level keys."""
    reader = _Reader(database, builder)
    if any(database.has(table, "start", "end") for table in _OLD):
        reader.read_old()
    suffixes = sorted({found[1] for table in database.tables if (found := _SUFFIX.fullmatch(table))})
    for index, suffix in enumerate(suffixes[:_MAX_PROCESSES]):
        reader.read_new(suffix, index)
    if len(suffixes) > _MAX_PROCESSES:
        database.loss.say(f"more than {_MAX_PROCESSES} processes")
    facts: dict[str, Any] = {"vendor": "rocm"}
    if reader.devices:
        known = range(max(reader.devices) + 1)
        facts["deviceProperties"] = [{"id": index, "name": reader.devices.get(index, "")} for index in known]
    return facts


class _Reader:
    def __init__(self, database: Database, builder: ColumnBuilder) -> None:
        self._database, self._builder = database, builder
        self.devices: dict[int, str] = {}

    def _table(self, table: str, *numbers: str, text: str = "", where: str = "") -> _Table:
        blocks = list(self._database.read(table, numbers, (text,) if text else (), where=where))
        columns = (
            np.concatenate([block.numbers[index] for block in blocks] or [np.empty(0, np.int64)])
            for index in range(len(numbers))
        )
        texts = [value for block in blocks for value in block.texts[0]] if text else []
        return _Table(dict(zip(numbers, columns, strict=True)), texts)

    def _take(self, rows: _Table, **columns: Any) -> None:
        """Append rows: ``columns`` beside their times, texts of categories included."""
        start, end = rows["start"], rows["end"]
        cats, which = np.unique(columns.pop("cat"), return_inverse=True)
        self._builder.take_columns(
            {
                "start_ns": np.where(start == MISSING, NO_TIME_NS, start),
                "dur_ns": np.where(start == MISSING, 0, np.where(end == MISSING, NO_DUR_NS, end - start)),
                "cat": self._builder.codes_of(cats=cats.tolist())["cat"][which],
                **columns,
            }
        )

    # -- rocmProfileData -------------------------------------------------------------------

    def read_old(self) -> None:
        """Read the tables of rocmProfileData."""
        strings = self._table("rocpd_string", "id", text="string")
        pairs = self._table("rocpd_api_ops", "api_id", "op_id")
        ops = self._table("rocpd_op", "id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
        call = pairs.of(pairs.find(ops["id"], "op_id"), "api_id")
        self._old_calls(strings)
        kind, shown = (_texts(strings, ops[column]) for column in ("opType_id", "description_id"))
        cat = self._each(kind, _category_of_op)
        # what a host marks is among the operations of some tracers
        cat[ops["gpuId"] < 0] = "user_annotation"
        copies = self._table("rocpd_copyapi", "api_ptr_id", "size")
        named = [name or _copy_name(what) for name, what in zip(shown, kind, strict=True)]
        works = ops["gpuId"] >= 0
        size = copies.of(copies.find(call, "api_ptr_id"), "size")
        self._take(
            ops,
            cat=cat,
            name=self._named(named),
            lane=self._lanes(
                ops["gpuId"], ops["queueId"], lambda ids: ("device", *ids) if ids[0] >= 0 else ("", "marks")
            ),
            key=np.where(works, call, -1),
            value=np.where(cat == "gpu_memcpy", size, -1),
            detail=np.where(cat == "kernel", self._grids(self._old_grids(call), _GRID), -1),
        )

    def _old_grids(self, call: Ints) -> dict[str, Ints]:
        launches = self._table("rocpd_kernelapi", "api_ptr_id", *_GRID)
        rows = launches.find(call, "api_ptr_id")
        return {column: launches.of(rows, column) for column in _GRID}

    def _old_calls(self, strings: _Table) -> None:
        calls = self._table("rocpd_api", "id", "pid", "tid", "start", "end", "apiName_id", "args_id")
        ranges = self._table("ext_autogradapi", "api_ptr_id", "seq", "autogradName_id", text="sizes")
        names, given = (_texts(strings, calls[column]) for column in ("apiName_id", "args_id"))
        own = ranges.find(calls["id"], "api_ptr_id")
        autograd = _texts(strings, ranges.of(own, "autogradName_id", MISSING))
        marks = [text if name == _MARKER else "" for name, text in zip(names, given, strict=True)]
        texts = [
            op or mark or (name if name != _MARKER else "")
            for name, mark, op in zip(names, marks, autograd, strict=True)
        ]
        cat = self._each([name if name != _MARKER else "" for name in names], _category_of_call)
        detail = self._details([ranges.texts[row] if row >= 0 else b"" for row in own.tolist()])
        self._take_calls(calls, texts, cat, own >= 0, ranges.of(own, "seq"), detail, calls["id"])

    # -- rocprofv3 -------------------------------------------------------------------------

    def read_new(self, suffix: str, index: int) -> None:
        """Read the tables of one process as rocprofv3 writes them."""
        base = index << _PROCESS_BITS
        strings = self._table(f"rocpd_string{suffix}", "id", text="string")
        events = self._table(f"rocpd_event{suffix}", "id", "stack_id", "category_id")
        agents = self._agents(suffix)

        def keys(rows: _Table) -> Ints:
            found = events.of(events.find(rows["event_id"]), "stack_id")
            return np.where((found > 0) & (found < 1 << _PROCESS_BITS), found + base, -1)

        self._regions(suffix, strings, events, keys)
        symbols = self._table(f"rocpd_info_kernel_symbol{suffix}", "id", text="display_name")
        mangled = self._table(f"rocpd_info_kernel_symbol{suffix}", "id", text="kernel_name")
        place = "queue_id", "stream_id", "event_id"
        columns = "start", "end", "agent_id", "kernel_id", *place, *_NEW_GRID
        kernels = self._table(f"rocpd_kernel_dispatch{suffix}", *columns)
        rows = symbols.find(kernels["kernel_id"])
        names = [text_of(symbols.texts[row] or mangled.texts[row]) if row >= 0 else "" for row in rows.tolist()]
        self._take(
            kernels,
            cat=np.full(len(kernels), "kernel"),
            name=self._named(names),
            lane=self._streams(agents.of(agents.find(kernels["agent_id"]), "index"), kernels),
            key=keys(kernels),
            # work items, not groups of them
            detail=self._grids(_in_groups(kernels), _NEW_GRID),
        )
        ends = "dst_agent_id", "src_agent_id"
        copies = self._table(f"rocpd_memory_copy{suffix}", "start", "end", "name_id", *ends, "size", *place)
        target, source = (agents.of(agents.find(copies[end]), "index") for end in ends)
        self._take(
            copies,
            cat=np.full(len(copies), "gpu_memcpy"),
            name=self._named(self._each(_texts(strings, copies["name_id"]), _copy_name)),
            lane=self._streams(np.where(target >= 0, target, source), copies),
            key=keys(copies),
            value=np.maximum(copies["size"], -1),
        )

    def _agents(self, suffix: str) -> _Table:
        """Return ids of agents and the number of each among the GPUs; -1 for CPUs."""
        table = f"rocpd_info_agent{suffix}"
        order = "type_index", "logical_index", "absolute_index"
        gpus = self._table(table, "id", *order, text="product_name", where="type='GPU'")
        index = gpus["type_index"]
        for other in order[1:]:
            index = np.where(index == MISSING, gpus[other], index)
        for number, name in zip(index.tolist(), gpus.texts, strict=True):
            if 0 <= number < 4096:
                self.devices[number] = text_of(name)
        return _Table({"id": gpus["id"], "index": index}, ())

    def _streams(self, device: Ints, rows: _Table) -> NDArray[np.int32]:
        stream = np.where(rows["stream_id"] == MISSING, rows["queue_id"], rows["stream_id"])
        return self._lanes(device, np.where(stream == MISSING, 0, stream), lambda ids: ("device", *ids))

    def _regions(self, suffix: str, strings: _Table, events: _Table, keys: Callable[[_Table], Ints]) -> None:
        regions = self._table(f"rocpd_region{suffix}", "pid", "tid", "start", "end", "name_id", "event_id")
        threads = self._table(f"rocpd_info_thread{suffix}", "id", "tid")
        processes = self._table(f"rocpd_info_process{suffix}", "id", "pid")
        for column, known in (("pid", processes), ("tid", threads)):
            rows = known.find(regions[column])
            regions = _Table(
                {**regions.numbers, column: np.where(rows >= 0, known.of(rows, column), regions[column])}, ()
            )
        category = _texts(strings, events.of(events.find(regions["event_id"]), "category_id", MISSING))
        names = _texts(strings, regions["name_id"])
        marks = [at for at, text in enumerate(category) if text.startswith("MARKER")]
        if marks:
            said = self._messages(suffix, strings)
            for at in marks:
                names[at] = said.get(int(regions["event_id"][at]), names[at])
        cat = self._each(category, _category_of_region)
        nothing = np.full(len(regions), -1, np.int64)
        self._take_calls(regions, names, cat, np.zeros(len(regions), bool), nothing, nothing, keys(regions))

    def _messages(self, suffix: str, strings: _Table) -> dict[int, str]:
        """Return the texts of ranges by event: they are kept as JSON beside it."""
        wanted = [
            number
            for number, text in zip(strings["id"].tolist(), strings.texts, strict=True)
            if text.startswith(b"MARKER")
        ]
        where = f"category_id IN ({','.join(map(str, wanted[:16]))})"
        events = self._table(f"rocpd_event{suffix}", "id", text="extdata", where=where)
        out = {}
        for number, text in zip(events["id"].tolist(), events.texts, strict=True):
            try:
                message = _MESSAGE.decode(text).get("message")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(message, str):
                out[number] = message
        return out

    # -- rows of the host ------------------------------------------------------------------

    def _take_calls(
        self,
        calls: _Table,
        texts: Sequence[str],
        cat: NDArray[Any],
        is_op: NDArray[np.bool_],
        sequence: Ints,
        detail: NDArray[Any],
        key: Ints,
    ) -> None:
        """Append calls and ranges; what autograd says of an operator may be in the text of its range."""
        marked = np.flatnonzero(cat == "user_annotation")
        entries, which = split_text([texts[at].encode() for at in marked.tolist()])
        of = np.array(which, np.int64)
        said = np.array([entry.is_op for entry in entries], bool)[of] if len(of) else np.zeros(0, bool)
        names = np.array(list(texts), object)
        names[marked] = [text_of(entries[at].name) for at in which]
        op = is_op.copy()
        op[marked] |= said
        cat = np.where(op & (cat == "user_annotation"), "cpu_op", cat)
        number = np.array(sequence)
        number[marked] = np.where(number[marked] >= 0, number[marked], [entries[at].sequence for at in which.tolist()])
        dims = self._details([entries[at].dims for at in which])
        detail = np.array(detail, np.int64)
        detail[marked] = np.where(detail[marked] >= 0, detail[marked], dims)
        called = cat == "cuda_runtime"
        self._take(
            calls,
            cat=cat,
            name=self._named(names.tolist()),
            lane=self._lanes(calls["pid"], calls["tid"], lambda ids: ids),
            key=np.where(called, key, np.where(op, number, -1)),
            detail=np.where(op, detail, -1),
        )

    # -- codes -----------------------------------------------------------------------------

    def _named(self, names: Iterable[str]) -> NDArray[np.int32]:
        return self._builder.codes_of(names=names)["name"]

    def _details(self, dims: Sequence[bytes]) -> NDArray[np.int64]:
        """Return codes of details that hold sizes of inputs alone, -1 where there are none."""
        known = [index for index, text in enumerate(dims) if text.startswith(b"[") and b"\0" not in text]
        out = np.full(len(dims), -1, np.int64)
        out[known] = self._builder.codes_of(details=[b"\0".join(Detail(dims=dims[index])) for index in known])["detail"]
        return out

    def _each(self, texts: Sequence[str], make: Callable[[str], str]) -> NDArray[Any]:
        """Return what ``make`` makes of each text; equal ones are asked about once."""
        known = {text: make(text) for text in dict.fromkeys(texts)}
        return np.array([known[text] for text in texts], object)

    def _lanes(
        self, first: Ints, second: Ints, make: Callable[[tuple[Any, Any]], tuple[Any, ...]]
    ) -> NDArray[np.int32]:
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        return self._builder.codes_of(lanes=[make(pair) for pair in pairs])["lane"]

    def _grids(self, sizes: Mapping[str, Ints], columns: Sequence[str]) -> NDArray[np.int64]:
        """Return codes of details with grid and block, -1 where they are not known."""
        table = np.stack([sizes[column] for column in columns], axis=1) if len(sizes[columns[0]]) else np.empty((0, 6))
        known = np.flatnonzero((table > 0).all(axis=1))
        out = np.full(len(table), -1, np.int64)
        distinct, which = np.unique(table[known].astype(np.int64), axis=0, return_inverse=True)
        details = [
            b"\0".join(Detail(grid=b"[%d, %d, %d]" % tuple(row[:3]), block=b"[%d, %d, %d]" % tuple(row[3:])))
            for row in distinct.tolist()
        ]
        out[known] = self._builder.codes_of(details=details)["detail"][which.ravel()]
        return out


# -- words ---------------------------------------------------------------------------------------


def _texts(strings: _Table, ids: Ints) -> list[str]:
    """Return the texts of ids, empty where there is none; each distinct one is decoded once."""
    wanted, which = np.unique(ids, return_inverse=True)
    found = [text_of(strings.texts[row]) if row >= 0 else "" for row in strings.find(wanted).tolist()]
    return [found[at] for at in which.tolist()]


def _in_groups(kernels: _Table) -> dict[str, Ints]:
    """Return the sizes with grids counted in groups, as HIP and Kineto do; the file counts work items."""
    sizes = {column: kernels[column] for column in _NEW_GRID}
    for axis in "xyz":
        grid, group = sizes[f"grid_size_{axis}"], sizes[f"workgroup_size_{axis}"]
        sizes[f"grid_size_{axis}"] = np.where((grid > 0) & (group > 0), -(-grid // np.maximum(group, 1)), -1)
    return sizes


def _category_of_op(kind: str) -> str:
    if _COPY.search(kind):
        return "gpu_memcpy"
    if _SET.search(kind):
        return "gpu_memset"
    return "gpu_user_annotation" if _NO_WORK.search(kind) else "kernel"


def _copy_name(kind: str) -> str:
    """Write copies as Kineto does: ``Memcpy HtoD``."""
    way = _COPY.search(kind)
    if way is not None:
        return f"Memcpy {way[1][0].upper()}to{way[2][0].upper()}"
    return "Memset (Device)" if _SET.search(kind) else kind


def _category_of_call(name: str) -> str:
    if _CALL.match(name):
        return "cuda_runtime"
    return "overhead" if _PROFILERS_OWN.search(name) else "user_annotation"


def _category_of_region(category: str) -> str:
    return "cuda_runtime" if category.startswith(("HIP", "HSA", "RCCL")) else "user_annotation"
