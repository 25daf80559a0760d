"""ROCm's databases as the columns that Kineto's JSON gives: rocmProfileData (``.rpd``) and rocprofv3 (``rocpd``).

Both have ``rocpd_string`` and name everything else differently. In the older one a table pairs calls and work; in
rocprofv3's both have an event, and the events of a call and its work have the same ``stack_id``. Its tables end in the
id of a process, and a file may hold several. From version 4 on, where something ran is in a table of tracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.formats.rocm_rows import COPY, SET, SIZES, RocmRows, category_of_domain, copy_name, keys_of
from torchtriage.core.trace.formats.sqlite_rows import MISSING, Database
from torchtriage.core.trace.formats.texts import text_of
from torchtriage.core.trace.recorders import ROCPD

RECORDER = ROCPD
_OLD = "rocpd_op", "rocpd_api"
_NEW = "rocpd_kernel_dispatch", "rocpd_region", "rocpd_memory_copy"
_SUFFIX = re.compile(rf"(?:{'|'.join(_NEW)})((?:_[0-9A-Fa-f]+)*)")
_MAX_PROCESSES = 64
_GRID = "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ"
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
    return reader.rows.facts()


class _Reader:
    def __init__(self, database: Database, builder: ColumnBuilder) -> None:
        self._database = database
        self.rows = RocmRows(builder)

    def _table(self, table: str, *numbers: str, text: str = "", where: str = "") -> _Table:
        blocks = list(self._database.read(table, numbers, (text,) if text else (), where=where))
        columns = (
            np.concatenate([block.numbers[index] for block in blocks] or [np.empty(0, np.int64)])
            for index in range(len(numbers))
        )
        texts = [value for block in blocks for value in block.texts[0]] if text else []
        return _Table(dict(zip(numbers, columns, strict=True)), texts)

    # -- rocmProfileData -------------------------------------------------------------------

    def read_old(self) -> None:
        """Read the tables of rocmProfileData."""
        strings = self._table("rocpd_string", "id", text="string")
        pairs = self._table("rocpd_api_ops", "api_id", "op_id")
        ops = self._table("rocpd_op", "id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
        call = pairs.of(pairs.find(ops["id"], "op_id"), "api_id")
        self._old_calls(strings)
        kind, shown = (_texts(strings, ops[column]) for column in ("opType_id", "description_id"))
        cat = self.rows.each(kind, _category_of_op)
        # what a host marks is among the operations of some tracers
        cat[ops["gpuId"] < 0] = "user_annotation"
        copies = self._table("rocpd_copyapi", "api_ptr_id", "size")
        named = [name or copy_name(what) for name, what in zip(shown, kind, strict=True)]
        works = ops["gpuId"] >= 0
        size = copies.of(copies.find(call, "api_ptr_id"), "size")
        self.rows.take(
            ops["start"],
            ops["end"],
            cat,
            name=self.rows.named(named),
            lane=self.rows.lanes(
                ops["gpuId"], ops["queueId"], lambda ids: ("device", *ids) if ids[0] >= 0 else ("", "marks")
            ),
            key=np.where(works, call, -1),
            value=np.where(cat == "gpu_memcpy", size, -1),
            detail=np.where(cat == "kernel", self.rows.grids(self._old_grids(call), in_items=False), -1),
        )

    def _old_grids(self, call: Ints) -> list[Ints]:
        launches = self._table("rocpd_kernelapi", "api_ptr_id", *_GRID)
        rows = launches.find(call, "api_ptr_id")
        return [launches.of(rows, column) for column in _GRID]

    def _old_calls(self, strings: _Table) -> None:
        calls = self._table("rocpd_api", "id", "pid", "tid", "start", "end", "apiName_id", "args_id")
        ranges = self._table("ext_autogradapi", "api_ptr_id", "seq", "autogradName_id", text="sizes")
        names, given = (_texts(strings, calls[column]) for column in ("apiName_id", "args_id"))
        own = ranges.find(calls["id"], "api_ptr_id")
        autograd = _texts(strings, ranges.of(own, "autogradName_id", MISSING))
        marks = [text if name == _MARKER else "" for name, text in zip(names, given, strict=True)]
        self.rows.take_calls(
            calls["start"],
            calls["end"],
            lane=self.rows.lanes(calls["pid"], calls["tid"]),
            texts=[
                op or mark or (name if name != _MARKER else "")
                for name, mark, op in zip(names, marks, autograd, strict=True)
            ],
            cat=self.rows.each([name if name != _MARKER else "" for name in names], _category_of_call),
            key=calls["id"],
            is_op=own >= 0,
            sequence=ranges.of(own, "seq"),
            dims=[ranges.texts[row] if row >= 0 else b"" for row in own.tolist()],
        )

    # -- rocprofv3 -------------------------------------------------------------------------

    def read_new(self, suffix: str, index: int) -> None:
        """Read the tables of one process as rocprofv3 writes them."""
        strings = self._table(f"rocpd_string{suffix}", "id", text="string")
        events = self._table(f"rocpd_event{suffix}", "id", "stack_id", "category_id")
        agents = self._agents(suffix)

        def keys(rows: _Table) -> Ints:
            return keys_of(events.of(events.find(rows["event_id"]), "stack_id"), index)

        self._regions(suffix, strings, events, keys)
        symbols = self._table(f"rocpd_info_kernel_symbol{suffix}", "id", text="display_name")
        mangled = self._table(f"rocpd_info_kernel_symbol{suffix}", "id", text="kernel_name")
        columns = "agent_id", "queue_id", "stream_id"
        kernels = self._placed("rocpd_kernel_dispatch", suffix, columns, "kernel_id", "event_id", *SIZES)
        rows = symbols.find(kernels["kernel_id"])
        self.rows.take_kernels(
            kernels["start"],
            kernels["end"],
            names=[text_of(symbols.texts[row] or mangled.texts[row]) if row >= 0 else "" for row in rows.tolist()],
            lane=self._streams(agents.of(agents.find(kernels["agent_id"]), "index"), kernels),
            key=keys(kernels),
            sizes=kernels.numbers,
        )
        ends = "dst_agent_id", "src_agent_id"
        copies = self._placed("rocpd_memory_copy", suffix, columns[1:], "name_id", *ends, "size", "event_id")
        target, source = (agents.of(agents.find(copies[end]), "index") for end in ends)
        self.rows.take_copies(
            copies["start"],
            copies["end"],
            kinds=_texts(strings, copies["name_id"]),
            lane=self._streams(np.where(target >= 0, target, source), copies),
            key=keys(copies),
            n_bytes=copies["size"],
        )

    def _placed(self, name: str, suffix: str, place: Sequence[str], *columns: str) -> _Table:
        """Return rows of a table with their times and where they ran: in it, or from version 4 on in their track."""
        table = name + suffix
        if not self._database.has(table, "track_id"):
            return self._table(table, "start", "end", *place, *columns)
        dated = self._database.has(table, "start", "end")
        rows = self._table(table, *(("start", "end") if dated else ("start_id", "end_id")), "track_id", *columns)
        tracks = self._table(f"rocpd_track{suffix}", "id", *place)
        numbers = dict(rows.numbers)
        of = tracks.find(rows["track_id"])
        numbers.update({column: tracks.of(of, column, MISSING) for column in place})
        if not dated:
            # drafts of version 4 keep times in a table of their own
            times = self._table(f"rocpd_timestamp{suffix}", "id", "value")
            for end in ("start", "end"):
                numbers[end] = times.of(times.find(rows[f"{end}_id"]), "value", MISSING)
        return _Table(numbers, ())

    def _agents(self, suffix: str) -> _Table:
        """Return ids of agents and the number of each among the GPUs; -1 for CPUs."""
        table = f"rocpd_info_agent{suffix}"
        order = "type_index", "logical_index", "absolute_index"
        gpus = self._table(table, "id", *order, text="product_name", where="type='GPU'")
        index = gpus["type_index"]
        for other in order[1:]:
            index = np.where(index == MISSING, gpus[other], index)
        for number, name in zip(index.tolist(), gpus.texts, strict=True):
            self.rows.name_device(number, text_of(name))
        return _Table({"id": gpus["id"], "index": index}, ())

    def _streams(self, device: Ints, work: _Table) -> NDArray[np.int32]:
        return self.rows.streams(device, work["stream_id"], work["queue_id"])

    def _regions(self, suffix: str, strings: _Table, events: _Table, keys: Callable[[_Table], Ints]) -> None:
        regions = self._placed("rocpd_region", suffix, ("pid", "tid"), "name_id", "event_id")
        threads = self._table(f"rocpd_info_thread{suffix}", "id", "tid")
        processes = self._table(f"rocpd_info_process{suffix}", "id", "pid")
        place = {}
        for column, known in (("pid", processes), ("tid", threads)):
            rows = known.find(regions[column])
            place[column] = np.where(rows >= 0, known.of(rows, column), regions[column])
        category_ids = events.of(events.find(regions["event_id"]), "category_id", MISSING)
        categories = self._categories(suffix, strings)
        category = _texts(categories, category_ids)
        names = _texts(strings, regions["name_id"])
        marks = [at for at, text in enumerate(category) if text.startswith("MARKER")]
        if marks:
            said = self._messages(suffix, categories)
            for at in marks:
                names[at] = said.get(int(regions["event_id"][at]), names[at])
        self.rows.take_calls(
            regions["start"],
            regions["end"],
            lane=self.rows.lanes(place["pid"], place["tid"]),
            texts=names,
            cat=self.rows.each(category, category_of_domain),
            key=keys(regions),
        )

    def _categories(self, suffix: str, strings: _Table) -> _Table:
        """Return the names of categories: a table of their own from version 4 on."""
        table = f"rocpd_info_category{suffix}"
        return self._table(table, "id", text="name") if self._database.has(table, "id", "name") else strings

    def _messages(self, suffix: str, categories: _Table) -> dict[int, str]:
        """Return the texts of ranges by event: they are kept as JSON beside it."""
        wanted = [
            number
            for number, text in zip(categories["id"].tolist(), categories.texts, strict=True)
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


# -- words ---------------------------------------------------------------------------------------


def _texts(strings: _Table, ids: Ints) -> list[str]:
    """Return the texts of ids, empty where there is none; each distinct one is decoded once."""
    wanted, which = np.unique(ids, return_inverse=True)
    found = [text_of(strings.texts[row]) if row >= 0 else "" for row in strings.find(wanted).tolist()]
    return [found[at] for at in which.tolist()]


def _category_of_op(kind: str) -> str:
    if COPY.search(kind):
        return "gpu_memcpy"
    if SET.search(kind):
        return "gpu_memset"
    return "gpu_user_annotation" if _NO_WORK.search(kind) else "kernel"


def _category_of_call(name: str) -> str:
    if _CALL.match(name):
        return "cuda_runtime"
    return "overhead" if _PROFILERS_OWN.search(name) else "user_annotation"
