"""Reading a large trace with worker processes; the result is the sequential reader's.

The text is cut at likely event boundaries into blocks. A block that decodes completely from a proven start proves the
start of the next one; whatever a worker cannot settle is read again here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from torchtriage.core.errors import UsageError
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import EventReader, Loss, TextBlock, UnfinishedBlock
from torchtriage.core.workers import PROCESSES_VARIABLE, WorkerLostError, Workers, can_start, n_cores

WORTH_IT_BYTES = 192 << 20
"""Below this the interpreters' start and memory outweigh what they save (measured)."""
MAX_WORKERS = 4
BLOCK_CHUNKS = 16
"""A block is whole chunks, so that chunks end where they would have ended."""


class Settled(NamedTuple):
    """What a worker made of a block."""

    builder: ColumnBuilder
    n_used: int
    ended: bool
    loss: Loss


def count_workers(text_bytes: int, wanted: int | None, *, worth_it_bytes: int = WORTH_IT_BYTES) -> int:
    """Return how many workers to read with; 1 means none.

    Threads of the native scanner are worth it sooner than processes.
    """
    if wanted is None:
        setting = os.environ.get(PROCESSES_VARIABLE, "")
        if setting:
            if not setting.isdigit():
                raise UsageError(f"expected a whole number in ${PROCESSES_VARIABLE}, found {setting!r}")
            wanted = int(setting)
        elif text_bytes < worth_it_bytes:
            return 1
        else:
            wanted = min(n_cores(), MAX_WORKERS)
    return wanted if can_start() else 1


def read_parallel(reader: EventReader, builder: ColumnBuilder, n_workers: int) -> Iterator[None]:
    """Read blocks into the builder until the list of events ends or workers do not help.

    Yields after each block. Leaves the reader where the sequential one has to go on, if at all.
    """
    with Workers(n_workers, settle) as workers:
        pending: deque[tuple[int, bytes, Future[Settled | None]]] = deque()
        more = alive = True
        while alive and not reader.ended and (more or pending):
            while more and len(pending) <= n_workers:
                offset, text = reader.offset, reader.take_block(BLOCK_CHUNKS * reader.chunk_bytes)
                more = len(text) > 0
                if more:
                    pending.append((offset, text, workers.submit(offset, text, reader.chunk_bytes)))
            if not pending:
                break
            offset, text, future = pending.popleft()
            try:
                settled = future.result()
            except WorkerLostError:
                settled, alive = None, False
            if settled is not None:
                builder.take(settled.builder)
                reader.loss.add(settled.loss)
            if settled is None or settled.ended:
                # the blocks behind started at what may be no boundary: read on from here
                n_used = 0 if settled is None else settled.n_used
                reader.give_back(b"".join((text[n_used:], *(later for _, later, _ in pending))))
                pending.clear()
                more = True
                if settled is None:
                    _read_past(reader, builder, offset + len(text))
                else:
                    reader.ended = True
            yield
        if pending:
            reader.give_back(b"".join(text for _, text, _ in pending))


def _read_past(reader: EventReader, builder: ColumnBuilder, stop: int) -> None:
    for chunk in reader.chunks():
        builder.add(chunk)
        if reader.offset >= stop:
            return


def settle(offset: int, text: bytes, chunk_bytes: int) -> Settled | None:
    """Decode one block in a worker; None when it has to be read again where all is known."""
    reader = EventReader(TextBlock(text), chunk_bytes, offset=offset, is_block=True)
    builder = ColumnBuilder()
    try:
        for chunk in reader.chunks():
            builder.add(chunk)
    except UnfinishedBlock:
        return None
    return Settled(builder, reader.offset - offset, reader.ended, reader.loss)
