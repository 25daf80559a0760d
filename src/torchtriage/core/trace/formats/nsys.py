"""Nsight Systems exports (``nsys export --type sqlite``) as the columns that Kineto's JSON gives.

Tables and columns come and go with versions: what is read is what the file has. Correlation ids count within a
process, so that a key holds the process, too, where there are several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.columns import STREAM_PROCESS, Detail
from torchtriage.core.trace.event_numbers import NO_DUR_NS, NO_TIME_NS
from torchtriage.core.trace.formats.nvtx import split_text
from torchtriage.core.trace.formats.sqlite_rows import MISSING, Database
from torchtriage.core.trace.formats.texts import text_of

_Columns = dict[str, NDArray[Any]]

RECORDER = "Nsight Systems"
WHOLE_GRAPH = "CUDA graph"
"""The name of a graph that was recorded as a whole, with its number behind."""

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_KERNEL, _COPY, _SET, _GRAPH, _CALL, _SYNC, _OVERHEAD = (
    _CUPTI + kind for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION", "OVERHEAD")
)
_OWN, _NVTX = "PROFILER_OVERHEAD", "NVTX_EVENTS"
_PLACE = "deviceId", "contextId", "streamId", "correlationId", "globalPid"
_KERNEL_NAMES = "demangledName", "shortName", "mangledName"
_SIZES = "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"
_DEVICES = "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId"
"""How the processes, which may see only some of the devices, count them."""
_DEVICE_KEYS = {
    "id": "id",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "smCount": "numSms",
    "totalMemory": "totalGlobalMem",
}
_EXPORTS = "META_DATA_EXPORT", "EXPORT_META_DATA"
_EXPORT_KEYS = {b"EXPORT_PRODUCT_VERSION": "recorderVersion", b"EXPORT_SCHEMA_VERSION": "exportSchema"}
_MARK, _DOMAIN, _DRIVER = 34, 75, 1
_RANGES = "eventType IN (34,59,60,70,71)"
_TABLES = (_KERNEL, _COPY, _SET, _GRAPH, _CALL, _SYNC, _OVERHEAD, _OWN, _NVTX)
"""In the order of their rows in a trace."""
_UNREAD = {
    "OSRT_API": "calls of the operating system",
    "COMPOSITE_EVENTS": "samples of the CPU",
    "SCHED_EVENTS": "switches of threads",
    "GPU_METRICS": "samples of the GPU's counters",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "records of GPU memory",
    "CUDNN_EVENTS": "calls of cuDNN",
    "CUBLAS_EVENTS": "calls of cuBLAS",
    "MPI_P2P_EVENTS": "messages of MPI",
    "MPI_COLLECTIVES_EVENTS": "collectives of MPI",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "page faults of unified memory on the CPU",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "page faults of unified memory on the GPU",
}
"""Tables that no column has a place for, and what they hold."""

# CUPTI's numbers, in Kineto's words
_WAYS = (
    "Unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "HtoD",
    "DtoH",
    "DtoD",
)
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_API_VERSION = re.compile(r"(?:_pt(?:sz|ds))?(?:_v\d+)?$")
_CAST = re.compile(r"\((?:[\w:]|(?<=\w) (?=\w))+\)(?=-?\d)")
_SPELLINGS = (
    ("(bool)1", "true"),
    ("(bool)0", "false"),
    (" *", "*"),
    (" &", "&"),
    ("<unnamed>", "(anonymous namespace)"),
)
_LAMBDA = re.compile(r"\[lambda(\([^()]*\)) \(instance (\d+)\)\]")
_ID_BITS = 32
_ALL_STREAMS = 0xFFFFFFFF
_THREAD = 0xFFFFFF
"""A thread's id: machine and virtual machine, 24 bits of process, 24 of thread."""


def is_export(database: Database) -> bool:
    """Return whether the tables are those of Nsight Systems."""
    return database.has("StringIds", "id", "value") and any(
        table.startswith((_CUPTI, "TARGET_INFO_")) or table in _TABLES for table in database.tables
    )


def read_export(database: Database, builder: ColumnBuilder) -> dict[str, Any]:
    """Append all rows to the builder; return what else the file says, as Kineto's top-level keys."""
    return _Reader(database, builder).read()


def row_of(database: Database, table: int, index: int) -> dict[str, object]:
    """Return what the file holds of one row: ``index`` counts within the table's rows in a trace."""
    if not 0 <= table < len(_TABLES):
        return {}
    return database.row(_TABLES[table], index, where=_where(database, _TABLES[table]))


def _where(database: Database, table: str) -> str:
    return _RANGES if table == _NVTX and database.has(table, "eventType") else ""


class _Given:
    """Some rows of a table: numbers by column, and texts."""

    def __init__(self, numbers: dict[str, Ints], texts: tuple[Sequence[bytes], ...]) -> None:
        self._numbers = numbers
        self.texts = texts

    def __getitem__(self, column: str) -> Ints:
        return self._numbers[column]


class _Reader:
    def __init__(self, database: Database, builder: ColumnBuilder) -> None:
        self._database = database
        self._builder = builder
        self._strings = database.texts_by_id("StringIds", "id", "value")
        self._processes: dict[int, int] = {}
        self._physical: dict[tuple[int, int], int] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._domains: dict[int, bytes] = {}
        self._threads: set[int] = set()
        self._n_rows = 0
        self._last_ns = 0

    def read(self) -> dict[str, Any]:
        self._physical = {(pid, own): gpu for pid, own, gpu in self._rows(*_DEVICES) if gpu >= 0}
        self._read(_KERNEL, self._kernels, *_PLACE, *_KERNEL_NAMES, *_SIZES)
        self._read(_COPY, self._copies, *_PLACE, "bytes", "copyKind", "srcKind", "dstKind")
        self._read(_SET, self._sets, *_PLACE, "bytes", "memKind")
        self._read(_GRAPH, self._graphs, *_PLACE, "graphId")
        self._read(_CALL, self._calls, "globalTid", "correlationId", "nameId", "eventClass")
        self._read(_SYNC, self._syncs, *_PLACE, "syncType")
        for table in (_OVERHEAD, _OWN):
            self._read(table, self._overheads, "globalTid", "nameId")
        self._domains = self._find_domains()
        self._read(_NVTX, self._ranges, "globalTid", "eventType", "textId", "domainId", texts=("text",))
        self._label()
        return self._meta()

    def _read(self, table: str, rows: Callable[[_Given], _Columns], *numbers: str, texts: Sequence[str] = ()) -> None:
        """Append a table: ``rows`` makes the other columns of what is given of it."""
        first = self._n_rows
        names = ("start", "end", *numbers)
        for block in self._database.read(table, names, texts, where=_where(self._database, table)):
            given = _Given(dict(zip(names, block.numbers, strict=True)), block.texts)
            start, end = given["start"], given["end"]
            self._last_ns = max(self._last_ns, int(end.max()))
            columns = rows(given)
            if "dur_ns" not in columns:
                columns["dur_ns"] = np.where(end == MISSING, NO_DUR_NS, end - start)
            columns["dur_ns"][start == MISSING] = 0
            columns["start_ns"] = np.where(start == MISSING, NO_TIME_NS, start)
            is_first = self._n_rows == first
            self._builder.take_columns(columns, (first, _TABLES.index(table), 0) if is_first else None)
            self._n_rows += len(block)

    # -- work of devices -------------------------------------------------------------------

    def _kernels(self, given: _Given) -> _Columns:
        name = given["demangledName"]
        for other in _KERNEL_NAMES[1:]:
            name = np.where(name == MISSING, given[other], name)

        def detail(sizes: tuple[int, ...]) -> bytes:
            return b"\0".join(Detail(grid=b"[%d, %d, %d]" % sizes[:3], block=b"[%d, %d, %d]" % sizes[3:]))

        sizes = [given[size] for size in _SIZES]
        known = np.logical_and.reduce([size != MISSING for size in sizes])
        return {
            **self._work("kernel", given),
            "name": self._names(name, _kernel_name),
            "detail": np.where(known, self._coded("detail", detail, *sizes), -1),
        }

    def _copies(self, given: _Given) -> _Columns:
        def name(kinds: tuple[int, ...]) -> str:
            way, *ends = kinds
            between = " -> ".join(_word(_MEMORY, kind) for kind in ends)
            return f"Memcpy {_word(_WAYS, way)}" + f" ({between})" * any(kind != MISSING for kind in ends)

        return {
            **self._work("gpu_memcpy", given),
            "name": self._coded("name", name, given["copyKind"], given["srcKind"], given["dstKind"]),
            "value": np.maximum(given["bytes"], -1),
        }

    def _sets(self, given: _Given) -> _Columns:
        return {
            **self._work("gpu_memset", given),
            "name": self._coded("name", lambda kinds: f"Memset ({_word(_MEMORY, kinds[0])})", given["memKind"]),
            "value": np.maximum(given["bytes"], -1),
        }

    def _graphs(self, given: _Given) -> _Columns:
        """Take a graph that was recorded as a whole for one long kernel: it is what keeps the device busy."""

        def name(ids: tuple[int, ...]) -> str:
            return f"{WHOLE_GRAPH} {ids[0]}" if ids[0] >= 0 else WHOLE_GRAPH

        return {**self._work("kernel", given), "name": self._coded("name", name, given["graphId"])}

    def _work(self, category: str, given: _Given) -> _Columns:
        def lane(ids: tuple[int, ...]) -> tuple[Any, ...]:
            process, own, context, stream = ids
            # records of synchronisation name device 0, whichever it is: their context knows
            own = self._contexts.setdefault((process, context), own) if context != MISSING else own
            device = self._physical.get((_pid(process), own), own)
            stream = -1 if stream in (MISSING, _ALL_STREAMS) else stream
            owner = self._owners.setdefault((device, stream), process)
            # several processes may use a device, each with a stream of this number
            shown = stream if owner == process else f"{stream} of process {_pid(process)}"
            place = "" if device == MISSING else device
            self._builder.label(STREAM_PROCESS, str(place), str(shown), str(_pid(process)))
            return "device", place, shown

        process = given["globalPid"]
        return {
            "cat": self._categories((category,), np.zeros(len(process))),
            "lane": self._coded("lane", lane, process, *(given[column] for column in _PLACE[:3])),
            "key": self._keys(process, given["correlationId"]),
        }

    # -- calls of the host -----------------------------------------------------------------

    def _calls(self, given: _Given) -> _Columns:
        thread = given["globalTid"]
        return {
            "cat": self._categories(("cuda_runtime", "cuda_driver"), given["eventClass"] == _DRIVER),
            "name": self._names(given["nameId"], lambda text: _API_VERSION.sub("", text)),
            "lane": self._thread_lanes(thread),
            "key": self._keys(np.where(thread == MISSING, MISSING, thread & ~_THREAD), given["correlationId"]),
        }

    def _syncs(self, given: _Given) -> _Columns:
        name = self._coded("name", lambda kinds: _word(_SYNCS, kinds[0]), given["syncType"])
        return {**self._work("cuda_sync", given), "name": name}

    def _overheads(self, given: _Given) -> _Columns:
        return {
            "cat": self._categories(("overhead",), np.zeros(len(given["start"]))),
            "name": self._names(given["nameId"]),
            "lane": self._thread_lanes(given["globalTid"]),
        }

    def _find_domains(self) -> dict[int, bytes]:
        """Return the names of NVTX domains; the default one, of number 0, has none."""
        found: dict[int, bytes] = {}
        if self._database.has(_NVTX, "eventType", "domainId"):
            where = f"eventType={_DOMAIN}"
            for block in self._database.read(_NVTX, ("domainId", "textId"), ("text",), where=where):
                domains, ids = (numbers.tolist() for numbers in block.numbers)
                for domain, number, text in zip(domains, ids, block.texts[0], strict=True):
                    found[domain] = text or self._strings.get(number, b"")
        return found

    def _ranges(self, given: _Given) -> _Columns:
        texts = given.texts[0]
        if (given["textId"] != MISSING).any():
            known = self._strings.get
            texts = [text or known(number, b"") for text, number in zip(texts, given["textId"].tolist(), strict=True)]
        foreign = np.flatnonzero(given["domainId"] > 0)
        if len(foreign):
            texts = list(texts)
            for row, domain in zip(foreign.tolist(), given["domainId"][foreign].tolist(), strict=True):
                texts[row] = self._domains.get(domain, b"") + b":" + texts[row]
        entries, of = split_text(texts)
        is_op = np.array([entry.is_op for entry in entries], bool)[of]
        names = self._builder.codes_of(names=[text_of(entry.name) for entry in entries])["name"]
        dims = self._builder.codes_of(details=[b"\0".join(Detail(dims=entry.dims)) for entry in entries])["detail"]
        dims[[not entry.dims for entry in entries]] = -1
        start, end, mark = given["start"], given["end"], given["eventType"] == _MARK
        # a range that nobody closed was open to the end
        end = np.where(mark, start, np.where(end == MISSING, np.maximum(self._last_ns, start), end))
        return {
            "cat": self._categories(("user_annotation", "cpu_op", "instant"), np.where(mark, 2, is_op)),
            "name": names[of],
            "lane": self._thread_lanes(given["globalTid"]),
            "key": np.where(is_op, np.array([entry.sequence for entry in entries], np.int64)[of], -1),
            "detail": np.where(is_op, dims[of], -1),
            "dur_ns": end - start,
        }

    # -- codes -----------------------------------------------------------------------------

    def _coded(self, column: str, make: Callable[[tuple[int, ...]], Any], *ids: Ints) -> NDArray[np.int32]:
        """Return the code of each row's entry in the column's table; rows of equal ``ids`` share theirs."""
        group = np.zeros(len(ids[0]), np.int64)
        for values in ids:
            distinct, code = np.unique(values, return_inverse=True)
            group = np.unique(group * len(distinct) + code, return_inverse=True)[1]
        _, first = np.unique(group, return_index=True)
        entries = [make(tuple(int(values[row]) for values in ids)) for row in first.tolist()]
        return self._builder.codes_of(**{f"{column}s": entries})[column][group]

    def _names(self, ids: Ints, clean: Callable[[str], str] = str) -> NDArray[np.int32]:
        return self._coded("name", lambda number: clean(text_of(self._strings.get(number[0], b""))), ids)

    def _categories(self, names: Sequence[str], which: NDArray[Any]) -> NDArray[np.int32]:
        return self._coded("cat", lambda index: names[index[0]], which.astype(np.int64))

    def _thread_lanes(self, threads: Ints) -> NDArray[np.int32]:
        def lane(ids: tuple[int, ...]) -> tuple[Any, ...]:
            if ids[0] == MISSING:
                return "", ""
            self._threads.add(ids[0])
            return _pid(ids[0]), ids[0] & _THREAD

        return self._coded("lane", lane, threads)

    def _keys(self, process: Ints, correlation: Ints) -> Ints:
        """Return correlations that are unique in the file; -1 where there is none."""
        of_process, code = np.unique(process, return_inverse=True)
        numbers = np.array([self._processes.setdefault(p, len(self._processes)) for p in of_process.tolist()], np.int64)
        known = (correlation > 0) & (correlation < 1 << _ID_BITS)
        return np.where(known, correlation + (numbers[code] << _ID_BITS), -1)

    # -- what else the file says -----------------------------------------------------------

    def _label(self) -> None:
        processes = self._database.texts_by_id("PROCESSES", "globalPid", "name")
        names = dict(self._rows("ThreadNames", "globalTid", "nameId"))
        for thread in self._threads:
            pid, tid = str(_pid(thread)), str(thread & _THREAD)
            if text := processes.get(thread & ~_THREAD):
                self._builder.label("process_name", pid, "0", text_of(text))
            if text := self._strings.get(names.get(thread, MISSING)):
                self._builder.label("thread_name", pid, tid, text_of(text))

    def _rows(self, table: str, *columns: str) -> Iterator[Any]:
        for block in self._database.read(table, columns):
            yield from zip(*(values.tolist() for values in block.numbers), strict=True)

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = {}
        for table in _EXPORTS:
            for block in self._database.read(table, (), ("name", "value")):
                for name, value in zip(*block.texts, strict=True):
                    if name in _EXPORT_KEYS:
                        meta[_EXPORT_KEYS[name]] = text_of(value)
        devices = []
        for block in self._database.read("TARGET_INFO_GPU", tuple(_DEVICE_KEYS), ("name",)):
            for values, name in zip(np.stack(block.numbers, axis=1).tolist(), block.texts[0], strict=True):
                known = {key: value for key, value in zip(_DEVICE_KEYS.values(), values, strict=True) if value >= 0}
                devices.append({"name": text_of(name), **known})
        if devices:
            meta["deviceProperties"] = devices
        for (epoch,) in self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            meta["baseTimeNanoseconds"] = epoch
        unread = {what: self._database.count(table) for table, what in _UNREAD.items()}
        meta["unread"] = {what: n for what, n in unread.items() if n}
        return meta


# -- words -------------------------------------------------------------------------------------


def _word(words: Sequence[str], number: int) -> str:
    return words[number] if 0 <= number < len(words) else "Unknown"


def _pid(thread: int) -> int:
    return -1 if thread == MISSING else thread >> 24 & _THREAD


def _kernel_name(text: str) -> str:
    """Return a kernel's name as other tools demangle it: no type before a number, lambdas in braces."""
    for theirs, ours in _SPELLINGS:
        text = text.replace(theirs, ours)
    return _LAMBDA.sub(r"{lambda\1#\2}", _CAST.sub("", text))
