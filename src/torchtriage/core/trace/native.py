"""The native scanner: blocks of text to columns, several times faster than the Python engine.

A small shared library (``native/``, Rust without dependencies) does the work; ``docs/native.md`` says how. It takes
only chunks that are written the way profilers write them. Whatever else a file holds (damage, unusual types, the end of
the list) is read by the Python engine, chunk by chunk, so that what a text means is defined there alone. Without the
library that engine reads everything.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import POINTER, byref, c_uint64, c_void_p
from itertools import cycle, islice, pairwise
from mmap import mmap
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.column_builder import READ_COLUMNS, ColumnBuilder
from torchtriage.core.trace.columns import Detail
from torchtriage.core.trace.event_types import GROUP_OF, InstantArgs, decode_by_phase, decode_loosely
from torchtriage.core.trace.events import MAX_EVENT_BYTES, SEPARATOR, EventReader
from torchtriage.core.trace.input import Source
from torchtriage.core.trace.schema import CATEGORY_KINDS

PADDING = 64
"""Zeros behind a text, for whoever looks ahead."""
BLOCK_CHUNKS = 8
"""A block is whole chunks, so that chunks end where they would have ended."""
THREADS_WORTH_IT_BYTES = 8 << 20
"""Below this a thread's start costs about what it saves."""
MAX_IN_TURN = 256
"""How many chunks the Python engine reads at most before the scanner is asked again."""


# -- scanners ----------------------------------------------------------------------------------


class Totals(ctypes.Structure):
    """How much a scanner has found so far."""

    _fields_ = (
        *((name, c_uint64) for name in ("rows", "names", "cats", "lanes", "details", "memory", "marks", "labels")),
        *((name, c_uint64) for name in ("label_order", "chunks", "n_no_dur", "n_negative")),
        ("phases", c_uint64 * 128),
    )


def _schema() -> bytes:
    """Return what the library has to know of the columns, as ``Schema::read`` expects it."""
    keys = {item.name: item.encode_name for item in msgspec.structs.fields(InstantArgs)}
    entries = [
        *(f"c{GROUP_OF[kind]:d}{category}" for category, kind in CATEGORY_KINDS.items()),
        *(f"n{keys[name]}" for name in _NUMBERS),
        *(f"d{keys[name]}" for name in Detail._fields),
    ]
    return "\0".join(entries).encode()


_NUMBERS = (
    *("correlation", "size_bytes", "stream", "device", "python_id", "python_parent"),
    *("sequence", "fwd_thread", "memory_bytes", "addr", "allocated", "reserved"),
    *("device_type", "device_id", "external"),
)


_COLUMNS = {name: index for index, name in enumerate(READ_COLUMNS)}
_Ends = POINTER(c_uint64)
_TABLES = ("names", "cats", "lanes", "details", "labels")
_RECORDS = {"memory": 7, "marks": 3, "chunks": 3, "label_order": 1}
"""Numbers in each record, in the order of the library."""


class Found(NamedTuple):
    """What a scanner found in a block, but for its rows; and table entries new to the scanner."""

    n_used: int
    """How much of the text is done; -1 when the library is broken."""
    was: Totals
    now: Totals
    tables: list[list[bytes]]
    records: list[NDArray[np.int64]]


class Scanner:
    """Finds events in blocks of text and holds their rows; one block at a time."""

    def __init__(self, library: Any) -> None:
        self._library = library
        schema = _schema()
        self._handle = library.tt_new(schema, len(schema))
        if not self._handle:
            raise MemoryError
        self.accepted = self._now = self._totals()
        self.codes = dict.fromkeys(("name", "cat", "lane", "detail"), np.empty(0, np.int32))
        """What the codes of this scanner are in the trace."""
        self.labels: list[Any] = []
        """Its metadata events."""

    def __del__(self) -> None:
        """Give the memory back."""
        self._library.tt_free(self._handle)

    def scan(self, block: NativeBlock, step: int) -> Found:
        """Read a block; everything but rows is copied, for the next block may follow at once."""
        n_used = self._library.tt_scan(self._handle, block.room.ctypes.data, block.size + PADDING, block.offset, step)
        if n_used <= 0:
            self._library.tt_roll_back(self._handle, byref(self._now))
        was, now = self._now, self._totals()
        self._now = now
        tables = [self._texts(i, getattr(was, name), getattr(now, name)) for i, name in enumerate(_TABLES)]
        records = [
            self._records(i, width, getattr(was, name), getattr(now, name))
            for i, (name, width) in enumerate(_RECORDS.items())
        ]
        return Found(n_used, was, now, tables, records)

    def _totals(self) -> Totals:
        totals = Totals()
        self._library.tt_totals(self._handle, byref(totals))
        return totals

    def roll_back(self) -> None:
        """Forget what was found and not taken."""
        self._library.tt_roll_back(self._handle, byref(self.accepted))
        self._now = self.accepted

    def _texts(self, which: int, start: int, stop: int) -> list[bytes]:
        if start == stop:
            return []
        data, ends = c_void_p(), _Ends()
        self._library.tt_table(self._handle, which, byref(data), byref(ends))
        limits = [ends[start - 1] if start else 0, *ends[start:stop]]
        first = limits[0]
        blob = ctypes.string_at((data.value or 0) + first, limits[-1] - first)
        return [blob[low - first : high - first] for low, high in pairwise(limits)]

    def _records(self, which: int, width: int, start: int, stop: int) -> NDArray[np.int64]:
        if start == stop:
            return np.empty((0, width), np.int64)
        first = self._library.tt_records(self._handle, which) + 8 * width * start
        found = ctypes.string_at(first, 8 * width * (stop - start))
        return np.frombuffer(found, np.int64).reshape(-1, width)

    def copy(self, column: str, first: int, out: NDArray[Any]) -> None:
        """Copy rows of a column from ``first`` on, with the codes of the trace."""
        codes = self.codes.get(column)
        status = self._library.tt_copy(
            self._handle,
            _COLUMNS[column],
            first,
            len(out),
            None if codes is None else codes.ctypes.data,
            0 if codes is None else len(codes),
            out.ctypes.data,
        )
        if status:
            raise AssertionError(f"the native library refused to copy {column}")

    def drop(self, column: str) -> None:
        """Give back the memory of a column that is not copied again."""
        self._library.tt_drop(self._handle, _COLUMNS[column])


class ScannedRows(NamedTuple):
    """Rows that a scanner holds until the trace is put together."""

    scanner: Scanner
    first: int
    n_rows: int

    def copy(self, column: str, out: NDArray[Any]) -> None:
        """Write a column's values."""
        self.scanner.copy(column, self.first, out)

    def drop(self, column: str) -> None:
        """Give back the memory of a column that is not copied again."""
        self.scanner.drop(column)


def _take(builder: ColumnBuilder, scanner: Scanner, found: Found) -> None:
    was, now = found.was, found.now
    names, cats, lane_texts, details, labels = found.tables
    memory, marks, chunks, label_order = found.records
    scanner.accepted = now
    codes = scanner.codes
    new = builder.codes_of(
        names=[text.decode() for text in names],
        cats=[text.decode() for text in cats],
        lanes=map(_lane, lane_texts),
        details=[text[:-1] for text in details],
    )
    for column, more in new.items():
        if len(more):
            codes[column] = np.concatenate((codes[column], more))
    lanes = codes["lane"]
    builder.take_rows(
        ScannedRows(scanner, was.rows, now.rows - was.rows),
        memory=memory,
        marks=[
            (at_ns, row >= 0, int(lanes[lane]), row - was.rows if row >= 0 else -1)
            for at_ns, row, lane in marks.tolist()
        ],
        chunks=[(row - was.rows, offset, size) for row, offset, size in chunks.tolist()],
    )
    scanner.labels += map(_decode_label, labels)
    order = label_order[:, 0]
    if not len(order):
        return
    # the order of the first ones is the table's, what the last ones say stays
    for codes_in_order in (order, order[::-1]):
        distinct, first = np.unique(codes_in_order, return_index=True)
        by_place = distinct[np.argsort(first)]
        for code in (by_place if codes_in_order is order else by_place[::-1]).tolist():
            builder.take_label(scanner.labels[code])


def _lane(text: bytes) -> tuple[str | int, ...]:
    kind, pid, tid = text[:1], *map(_identifier, text[1:-1].decode().split("\0"))
    return ("device", pid, tid) if kind == b"d" else (pid, tid)


def _identifier(text: str) -> str | int:
    return int(text[1:]) if text.startswith("n") else text[1:]


def _decode_label(text: bytes) -> Any:
    document = b"[" + text + b"]"
    try:
        return decode_by_phase(document)[0]
    except msgspec.ValidationError:
        return decode_loosely(document)[0]


# -- blocks ------------------------------------------------------------------------------------


class NativeBlock:
    """A stretch of text with zeros behind it, and where it stands."""

    def __init__(self, n_bytes: int) -> None:
        # a mapping: the heap would keep the memory of a block that is done with
        self.room: NDArray[np.uint8] = np.frombuffer(mmap(-1, n_bytes + PADDING), np.uint8)
        self.offset = 0
        self.size = 0

    def view(self, start: int, stop: int) -> memoryview:
        """Return a part of the room."""
        return memoryview(self.room)[start:stop]  # type: ignore[arg-type]

    def text(self, start: int = 0) -> bytes:
        """Return the text from ``start`` on."""
        return self.room[start : self.size].tobytes()

    def reach(self, n_bytes: int) -> None:
        """Make room for so much text."""
        if n_bytes + PADDING > len(self.room):
            room = np.empty(max(n_bytes, 2 * self.size) + PADDING, np.uint8)
            room[: self.size] = self.room[: self.size]
            self.room = room

    def end(self, size: int) -> None:
        """Let the text end here."""
        self.size = size
        self.room[size : size + PADDING] = 0


class _Feed:
    """Cuts a source's text into blocks that end at likely event boundaries."""

    def __init__(self, reader: EventReader, source: Source) -> None:
        self._reader = reader
        self._source = source
        self._step = BLOCK_CHUNKS * reader.chunk_bytes
        self._ahead = min(_LOOK_AHEAD, reader.chunk_bytes)
        self._spare: list[NativeBlock] = []
        self._offset, self._rest = reader.hand_over()

    def next(self) -> NativeBlock | None:
        """Return the next block, None at the end."""
        block = self._spare.pop() if self._spare else NativeBlock(self._step + 2 * self._ahead)
        block.offset, rest = self._offset, self._rest
        # where the sequential reader would end a chunk, too
        boundary = ((block.offset - 1) // self._step + 1) * self._step - block.offset
        block.size = 0
        block.reach(len(rest))
        block.room[: len(rest)] = np.frombuffer(rest, np.uint8)
        block.size = len(rest)
        wanted = boundary + self._ahead
        searched = boundary
        while True:
            more = block.size >= wanted or self._fill(block, wanted)
            if block.size > searched:
                cut = SEPARATOR.search(block.view(searched, block.size))
                if cut:
                    break
            if not more or block.size - boundary > MAX_EVENT_BYTES:
                cut = None
                break
            wanted = 2 * max(block.size, self._ahead)
        size = searched + cut.start() + 1 if cut else block.size
        self._rest = bytes(block.view(size, block.size))
        self._offset = block.offset + size
        block.end(size)
        return block if size else None

    def _fill(self, block: NativeBlock, wanted: int) -> bool:
        """Read text up to about ``wanted`` bytes; False at the end of the source."""
        block.reach(wanted)
        while block.size < wanted:
            n_bytes = self._source.read_into(block.view(block.size, wanted))
            if n_bytes is None:
                text = self._source.read(min(wanted - block.size, _PIECE_BYTES))
                n_bytes = len(text)
                block.reach(block.size + n_bytes)
                block.room[block.size : block.size + n_bytes] = np.frombuffer(text, np.uint8)
            if not n_bytes:
                return False
            block.size += n_bytes
        return True

    def reuse(self, block: NativeBlock) -> None:
        self._spare.append(block)

    def give_back(self, texts: list[bytes]) -> None:
        """Let the reader go on with these texts, which end where the last block did."""
        text = b"".join((*texts, self._rest))
        self._reader.resume(self._offset + len(self._rest) - len(text), text)
        self._rest = b""

    def take_over(self) -> None:
        self._offset, self._rest = self._reader.hand_over()


_PIECE_BYTES = 64 << 10
"""What an inflater gives at once: more would be joined first."""
_LOOK_AHEAD = 32 << 10
"""How much is read behind a block's boundary: most events end within."""


# -- reading -----------------------------------------------------------------------------------


def read_native(
    reader: EventReader, source: Source, builder: ColumnBuilder, library: Any, n_threads: int
) -> Iterator[None]:
    """Read blocks into the builder until the list of events ends.

    Yields after each block. Leaves the reader where the Python engine has to go on, if at all.

    Raises MemoryError: the library's memory is bounded, and its files find no more room.
    """
    feed = _Feed(reader, source)
    n_python = 1
    # inflating keeps this thread as busy as a scanner's
    n_scanners = max(n_threads - source.packed, 1)
    with _Pool(library, n_scanners, reader.chunk_bytes, threads=n_threads > 1) as pool:
        pending: deque[tuple[NativeBlock, Future[tuple[Scanner, Found]]]] = deque()
        while not reader.ended and not pool.broken:
            while len(pending) < pool.n_pending and (block := feed.next()):
                pending.append((block, pool.submit(block)))
            if not pending:
                break
            block, future = pending.popleft()
            scanner, found = future.result()
            if library.tt_out_of_room():
                raise MemoryError
            n_used = found.n_used
            if n_used > 0:
                _take(builder, scanner, found)
            if n_used < block.size:
                # the blocks behind started at what may be no boundary: read on from here
                later = [other for other, _ in pending]
                for _, future in pending:
                    future.exception()
                pending.clear()
                pool.roll_back()
                pool.broken = n_used < 0
                feed.give_back([block.text(max(n_used, 0)), *(other.text() for other in later)])
                for other in later:
                    feed.reuse(other)
                n_python = 1 if n_used > 0 else min(2 * n_python, MAX_IN_TURN)
                for chunk in islice(reader.chunks(), n_python):
                    builder.add(chunk)
                feed.take_over()
            feed.reuse(block)
            yield
        pool.finish(builder)
    feed.give_back([])


class _Pool:
    """Scanners that take blocks in turn, each in a thread of its own or a single one in this.

    A scanner must see its blocks in the order in which they are taken: the codes of a block count on from those of the
    one before.
    """

    def __init__(self, library: Any, n_scanners: int, step: int, *, threads: bool) -> None:
        self.broken = False
        self._step = step
        self._scanners = [Scanner(library) for _ in range(n_scanners)]
        self._threads = [ThreadPoolExecutor(1) for _ in self._scanners] if threads else []
        self._turns = cycle(range(len(self._scanners)))
        self.n_pending = len(self._threads) + 1

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)

    def submit(self, block: NativeBlock) -> Future[tuple[Scanner, Found]]:
        turn = next(self._turns)
        if self._threads:
            return self._threads[turn].submit(self._run, self._scanners[turn], block)
        future: Future[tuple[Scanner, Found]] = Future()
        future.set_result(self._run(self._scanners[turn], block))
        return future

    def roll_back(self) -> None:
        for scanner in self._scanners:
            scanner.roll_back()

    def finish(self, builder: ColumnBuilder) -> None:
        for scanner in self._scanners:
            found = scanner.accepted
            builder.take_counts(
                {chr(phase): n for phase, n in enumerate(found.phases) if n},
                n_no_dur=found.n_no_dur,
                n_negative=found.n_negative,
            )

    def _run(self, scanner: Scanner, block: NativeBlock) -> tuple[Scanner, Found]:
        return scanner, scanner.scan(block, self._step)
