"""Results of rocprofv3 in JSON as the columns that Kineto's JSON gives.

One object for each process: agents, symbols of kernels and texts, then lists of records by what was traced. Lists are
cut into pieces between two records, and only what has a column is decoded, so that memory is little more than the
text's. A record that is not as expected costs itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import visible
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats.rocm_rows import SIZES, RocmRows, category_of_domain, keys_of
from torchtriage.core.trace.formats.sqlite_rows import MISSING, whole_numbers

_BATCH = 1 << 12
_MAX_PROCESSES = 64
_GPU = 2
_CALLS = "hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api", "marker_api"
_UNREAD = {
    "memory_allocation": "allocations of memory",
    "scratch_memory": "allocations of scratch memory",
    "counter_collection": "kernels with counters",
    "pc_sample_host_trap": "samples of the GPU's program counter",
    "pc_sample_stochastic": "samples of the GPU's program counter",
}
"""Records that no column has a place for, and what they are."""
_PIECE_BYTES, _MOST_PIECE_BYTES = 1 << 20, 16 << 20
"""A list is cut at the first end of a record behind so much text; no real record is so long that there is none."""
_LEAST_RECORD_BYTES = 40
"""Two times alone take so much."""
_LEAST_OBJECT_BYTES = 12
"""Real files have ten times as much text for each object."""
_RECORD_END = re.compile(rb"\}\s*,\s*\{")
_MOST_CUTS = 32
"""Of a damaged record: so many objects may be inside it."""
_BROKEN = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_CLOSED = b"}]}}]}"
"""Ends the last record, its list, the lists, the process, all processes and the document."""

Row = TypeVar("Row")


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = MISSING


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = 0


class _Size(msgspec.Struct, frozen=True, gc=False):
    x: int = MISSING
    y: int = MISSING
    z: int = MISSING


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    node_id: int = 0
    logical_node_type_id: int = -1
    name: str = ""
    product_name: str = ""


class _Symbol(msgspec.Struct):
    kernel_id: int
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Domain(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Domain] = []
    marker_api: list[_Text] = []


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Call(msgspec.Struct):
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    correlation_id: _Correlation = _Correlation()
    start_timestamp: int = MISSING
    end_timestamp: int = MISSING


class _Dispatch(msgspec.Struct, frozen=True):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = MISSING
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Kernel(_Call):
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle = _Handle()


class _Copy(_Call):
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    stream_id: _Handle = _Handle()
    bytes: int = -1


_LISTS = *_CALLS, "kernel_dispatch", "memory_copy", *_UNREAD
_Lists: Any = msgspec.defstruct("_Lists", [(name, msgspec.Raw, msgspec.Raw()) for name in _LISTS])


class _Parts(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw()
    agents: msgspec.Raw = msgspec.Raw()
    strings: msgspec.Raw = msgspec.Raw()
    kernel_symbols: msgspec.Raw = msgspec.Raw()
    callback_records: msgspec.Raw = msgspec.Raw()
    buffer_records: msgspec.Raw = msgspec.Raw()


class _Document(msgspec.Struct):
    processes: list[_Parts] = msgspec.field(name="rocprofiler-sdk-tool")


_PLACES = [attrgetter(f"dispatch_info.{name}_size.{axis}") for name in ("grid", "workgroup") for axis in "xyz"]
_document = msgspec.json.Decoder(_Document).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_rocprof_json(text: bytearray, name: str, builder: ColumnBuilder) -> tuple[dict[str, Any], Loss]:
    """Append the records of a document to the builder; return what else it says, and what could not be read.

    ``text`` : the whole document; one that is cut short is closed behind its last whole record.

    Raises TraceFormatError: it is no such document, or nothing of its records is left.
    """
    loss = Loss()
    rows = RocmRows(builder)
    unread: dict[str, int] = {}
    processes = _processes(text, name, loss)
    if len(processes) > _MAX_PROCESSES:
        loss.say(f"more than {_MAX_PROCESSES} processes")
    for number, parts in enumerate(processes[:_MAX_PROCESSES]):
        _Process(parts, number, rows, loss).read(unread)
    return {**rows.facts(), "unread": unread}, loss


def _processes(text: bytearray, name: str, loss: Loss) -> list[_Parts]:
    trouble = "more objects than text"
    if text.count(b"{") * _LEAST_OBJECT_BYTES <= len(text):
        try:
            return _document(text).processes
        except _BROKEN as error:
            trouble = str(error)
        found = _salvaged(text, trouble, loss)
        if found:
            return found
    raise TraceFormatError(
        f"expected rocprofv3's results, found damaged JSON ({visible(trouble)})",
        where=name,
        hint="copy the file again; rocprofv3 writes it when the program ends",
    )


def _salvaged(text: bytearray, trouble: str, loss: Loss) -> list[_Parts]:
    """Close the document behind a record near its end; return what it holds then, nothing where that does not help."""
    end = len(text)
    for _ in range(_MOST_CUTS):
        end = _last_record_end(text, end)
        if end < 0:
            break
        tail = text[end:]
        del text[end:]
        text += _CLOSED
        try:
            found = _document(text).processes
        except _BROKEN:
            found = []
        # another list may end as those of the records do
        if any(len(memoryview(parts.buffer_records)) for parts in found):
            loss.n_lost += 1
            loss.incomplete = True
            loss.say(f"the file is cut short or damaged, and read up to byte {end} ({visible(trouble)})")
            return found
        del found, text[end:]
        text += tail
    return []


def _last_record_end(text: bytearray, end: int) -> int:
    """Return where the last object before ``end`` ends that another one follows in a list, -1 if there is none."""
    size = 1 << 14
    while True:
        start = max(end - size, 0)
        found = [match.start() for match in _RECORD_END.finditer(text, start, end)]
        if found or not start:
            return found[-1] if found else -1
        size *= 8


class _Process:
    """The records of one process, read into rows."""

    def __init__(self, parts: _Parts, number: int, rows: RocmRows, loss: Loss) -> None:
        self._parts = parts
        self._number = number
        self._rows = rows
        self._loss = loss
        strings = self._part("strings", _Strings, _Strings())
        self._domains = strings.buffer_records
        self._said = {text.key: text.value for text in strings.marker_api}
        self._pid = self._part("metadata", _Metadata, _Metadata()).pid
        self._gpus = self._find_gpus()
        self._names = {
            symbol.kernel_id: symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
            for symbol in self._part("kernel_symbols", list[_Symbol], [])
        }

    def read(self, unread: dict[str, int]) -> None:
        """Take all records; add to what is counted only."""
        lists = self._part("buffer_records", _Lists, _Lists())
        for what in _CALLS:
            for calls in self._batches(what, lists, _Call):
                self._take_calls(calls)
        for kernels in self._batches("kernel_dispatch", lists, _Kernel):
            self._take_kernels(kernels)
        for copies in self._batches("memory_copy", lists, _Copy):
            self._take_copies(copies)
        counters = self._part("callback_records", _Lists, _Lists())
        for what, shown in _UNREAD.items():
            n = sum(len(records) for held in (lists, counters) for records in self._records(what, held))
            if n:
                unread[shown] = unread.get(shown, 0) + n

    # -- rows ------------------------------------------------------------------------------

    def _take_calls(self, calls: Sequence[_Call]) -> None:
        start, end, key = self._times(calls)
        operations = list(map(attrgetter("kind", "operation"), calls))
        known = {operation: self._operation(*operation) for operation in dict.fromkeys(operations)}
        texts = [known[operation][1] for operation in operations]
        domains = [known[operation][0] for operation in operations]
        if self._said:
            for at, (domain, call) in enumerate(zip(domains, calls, strict=True)):
                if domain.startswith("MARKER_CORE"):
                    texts[at] = self._said.get(call.correlation_id.internal, texts[at])
        thread = _numbers(calls, "thread_id")
        self._rows.take_calls(
            start,
            end,
            lane=self._rows.lanes(np.full(len(calls), self._pid), thread),
            texts=texts,
            cat=self._rows.each(domains, category_of_domain),
            key=key,
        )

    def _take_kernels(self, kernels: Sequence[_Kernel]) -> None:
        start, end, key = self._times(kernels)
        name = self._names.get
        self._rows.take_kernels(
            start,
            end,
            names=[name(kernel.dispatch_info.kernel_id, "") for kernel in kernels],
            lane=self._rows.streams(
                self._devices(kernels, "dispatch_info.agent_id.handle"),
                _numbers(kernels, "stream_id.handle"),
                _numbers(kernels, "dispatch_info.queue_id.handle"),
            ),
            key=key,
            sizes={size: whole_numbers(list(map(place, kernels))) for size, place in zip(SIZES, _PLACES, strict=True)},
        )

    def _take_copies(self, copies: Sequence[_Copy]) -> None:
        start, end, key = self._times(copies)
        target, source = (self._devices(copies, f"{end}_agent_id.handle") for end in ("dst", "src"))
        self._rows.take_copies(
            start,
            end,
            kinds=[self._operation(copy.kind, copy.operation)[1] for copy in copies],
            lane=self._rows.streams(
                np.where(target >= 0, target, source), _numbers(copies, "stream_id.handle"), np.zeros(len(copies), int)
            ),
            key=key,
            n_bytes=_numbers(copies, "bytes"),
        )

    def _times(self, calls: Sequence[_Call]) -> tuple[Ints, Ints, Ints]:
        """Return start, end and the key that pairs a call with its work."""
        return (
            _numbers(calls, "start_timestamp"),
            _numbers(calls, "end_timestamp"),
            keys_of(_numbers(calls, "correlation_id.internal"), self._number),
        )

    # -- words and numbers -----------------------------------------------------------------

    def _operation(self, kind: int, operation: int) -> tuple[str, str]:
        """Return what was traced, and the name of the operation."""
        if not 0 <= kind < len(self._domains):
            return "", ""
        domain = self._domains[kind]
        return domain.kind, domain.operations[operation] if 0 <= operation < len(domain.operations) else ""

    def _devices(self, rows: Sequence[Any], place: str) -> Ints:
        known = self._gpus.get
        return np.array([known(handle, -1) for handle in map(attrgetter(place), rows)], np.int64)

    def _find_gpus(self) -> dict[int, int]:
        """Return the number among the GPUs of each agent that is one."""
        agents = [agent for agent in self._part("agents", list[_Agent], []) if agent.type == _GPU]
        agents.sort(key=lambda agent: agent.node_id)
        found = {}
        for place, agent in enumerate(agents):
            number = agent.logical_node_type_id if agent.logical_node_type_id >= 0 else place
            found[agent.id.handle] = number
            self._rows.name_device(number, agent.product_name or agent.name)
        return found

    # -- text to objects -------------------------------------------------------------------

    def _part(self, key: str, kind: type[Row], otherwise: Row) -> Row:
        """Return a part of the process, ``otherwise`` where it is missing or something else."""
        text = getattr(self._parts, key)
        if not len(memoryview(text)):
            return otherwise
        try:
            return msgspec.json.decode(text, type=kind)
        except _BROKEN as error:
            broken = error
        try:
            repaired = msgspec.json.decode(bytes(text).decode("utf-8", "replace"), type=kind)
        except _BROKEN:
            return self._missed(key, broken, otherwise)
        self._loss.n_repaired += 1
        return repaired

    def _missed(self, key: str, error: Exception, otherwise: Row) -> Row:
        self._loss.n_lost += 1
        self._loss.say(f"{key} cannot be read ({visible(str(error))})")
        return otherwise

    def _records(self, what: str, lists: _Lists) -> Iterator[list[msgspec.Raw]]:
        """Yield the records of a list, some at a time."""
        text = memoryview(getattr(lists, what))
        if not len(text):
            return
        start, end = 1, len(text) - 1
        if text[0] != ord("["):
            start = end
            self._missed(what, ValueError("no list"), None)
        while start < end:
            stop = after = start
            records: list[msgspec.Raw] | None = None
            at = start + _PIECE_BYTES
            while records is None and stop < end and at - start < _MOST_PIECE_BYTES:
                found = _RECORD_END.search(text, at, end)
                stop, after = (found.start() + 1, found.end() - 1) if found else (end, end)
                # what looks like the end of a record may be inside one
                records = _cut(text[start:stop]) if stop - start <= _MOST_PIECE_BYTES else None
                at = stop
            if records is not None and len(records) * _LEAST_RECORD_BYTES <= stop - start + _LEAST_RECORD_BYTES:
                yield records
            else:
                self._missed(what, ValueError(f"{stop - start} bytes without records"), None)
            start = after

    def _batches(self, what: str, lists: _Lists, kind: type[Row]) -> Iterator[list[Row]]:
        decode = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
        n_bad = 0
        for records in self._records(what, lists):
            for first in range(0, len(records), _BATCH):
                texts = records[first : first + _BATCH]
                try:
                    batch = decode(b"[" + b",".join(texts) + b"]")
                except _BROKEN:
                    batch = [row for text in texts for row in _one(decode, text)]
                    n_bad += len(texts) - len(batch)
                if batch:
                    yield batch
        if n_bad:
            self._loss.n_lost += n_bad
            self._loss.say(f"{n_bad} records of {what} cannot be read")


def _cut(text: memoryview) -> list[msgspec.Raw] | None:
    try:
        return _items(b"".join((b"[", text, b"]")))
    except _BROKEN:
        return None


def _one(decode: Callable[[bytes], list[Row]], text: msgspec.Raw) -> list[Row]:
    try:
        return decode(b"[" + bytes(text) + b"]")
    except _BROKEN:
        return []


def _numbers(rows: Sequence[Any], place: str) -> Ints:
    return whole_numbers(list(map(attrgetter(place), rows)))
