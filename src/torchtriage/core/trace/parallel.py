"""Reading a large trace with worker processes; the result is the sequential reader's.

The text is cut at likely event boundaries into blocks. A block that decodes completely from a
proven start proves the start of the next one; whatever a worker cannot settle is read again here.
Workers are fresh interpreters, not ``multiprocessing``: that would run a user's script again
where it lacks a ``__main__`` guard.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.core.trace.column_builder import ColumnBuilder, Part
from torchtriage.core.trace.events import EventReader, Loss, TextBlock, UnfinishedBlock

if TYPE_CHECKING:
    import subprocess

__all__ = ["PROCESSES_VARIABLE", "count_workers", "read_parallel", "work"]

PROCESSES_VARIABLE = "TORCHTRIAGE_PROCESSES"
WORTH_IT_BYTES = 192 << 20
"""Below this the interpreters' start and memory outweigh what they save (measured)."""
MAX_WORKERS = 4
BLOCK_CHUNKS = 16
"""A block is whole chunks, so that chunks end where they would have ended."""
_TASK = struct.Struct("<QQQ")  # text offset, size, chunk size
_REPLY = struct.Struct("<Q")


class Settled(msgspec.Struct):
    """What a worker made of a block."""

    part: Part
    n_used: int
    ended: bool
    n_lost: int
    n_repaired: int
    messages: list[str]
    more: int


_decode_settled = msgspec.msgpack.Decoder(Settled).decode


def count_workers(text_bytes: int, wanted: int | None, *, worth_it_bytes: int = WORTH_IT_BYTES) -> int:
    """Return how many workers to read with; 1 means none.

    Threads of the native scanner are worth it sooner than processes.
    """
    if wanted is None:
        said = os.environ.get(PROCESSES_VARIABLE, "")
        if said:
            if not said.isdigit():
                raise UsageError(f"expected a whole number in ${PROCESSES_VARIABLE}, found {said!r}")
            wanted = int(said)
        elif text_bytes < worth_it_bytes:
            return 1
        else:
            wanted = min(_n_cores(), MAX_WORKERS)
    # an embedding program's own executable is no interpreter
    return wanted if Path(sys.executable or "").stem.startswith("python") else 1


def read_parallel(reader: EventReader, builder: ColumnBuilder, n_workers: int) -> Iterator[None]:
    """Read blocks into the builder until the list of events ends or workers do not help.

    Yields after each block. Leaves the reader where the sequential one has to go on, if at all.
    """
    with _Pool(n_workers, reader.chunk_bytes) as pool:
        pending: deque[tuple[int, bytes, Future[Settled | None]]] = deque()
        more = True
        while pool.alive and not reader.ended and (more or pending):
            while more and len(pending) <= n_workers:
                offset, text = reader.offset, reader.take_block(BLOCK_CHUNKS * reader.chunk_bytes)
                more = len(text) > 0
                if more:
                    pending.append((offset, text, pool.submit(offset, text)))
            if not pending:
                break
            offset, text, future = pending.popleft()
            settled = future.result()
            if settled is not None:
                builder.take(settled.part)
                reader.loss.add(Loss(settled.n_lost, settled.n_repaired, settled.messages, settled.more))
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


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool:
    """Worker processes, each served by a thread; ``alive`` until one of them fails."""

    def __init__(self, n_workers: int, chunk_bytes: int) -> None:
        import subprocess  # few traces need processes

        self.alive = True
        self._chunk_bytes = chunk_bytes
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(n_workers)
        # the same import path as here, and never the current folder's modules by accident
        code = "import sys; sys.path[:] = sys.argv[1:]\nfrom torchtriage.core.trace.parallel import work; work()"
        try:
            for _ in range(n_workers):
                process = subprocess.Popen(
                    [sys.executable, "-c", code, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                self._processes.append(process)
                self._idle.put(process)
        except OSError:  # no more processes or memory: without them, then
            self.alive = False

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def submit(self, offset: int, text: bytes) -> Future[Settled | None]:
        return self._threads.submit(self._run, offset, text)

    def _run(self, offset: int, text: bytes) -> Settled | None:
        """Have one block decoded; None when it has to be read again in this process."""
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(_TASK.pack(offset, len(text), self._chunk_bytes))
            process.stdin.write(text)
            process.stdin.flush()
            (size,) = _REPLY.unpack(process.stdout.read(_REPLY.size))
            reply = process.stdout.read(size)
            return _decode_settled(reply) if size else None
        except (OSError, ValueError, struct.error, msgspec.DecodeError):
            self.alive = False  # killed, out of memory, or not our interpreter
            return None
        finally:
            self._idle.put(process)


# -- in the worker -----------------------------------------------------------------------------


def work() -> None:
    """Serve blocks from standard input until it closes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    tasks, replies = sys.stdin.buffer, sys.stdout.buffer
    while len(head := tasks.read(_TASK.size)) == _TASK.size:
        offset, size, chunk_bytes = _TASK.unpack(head)
        settled = _settle(offset, tasks.read(size), chunk_bytes)
        reply = msgspec.msgpack.encode(settled) if settled else b""
        replies.write(_REPLY.pack(len(reply)))
        replies.write(reply)
        replies.flush()


def _settle(offset: int, text: bytes, chunk_bytes: int) -> Settled | None:
    reader = EventReader(TextBlock(text), chunk_bytes, offset=offset, is_block=True)
    builder = ColumnBuilder()
    try:
        for chunk in reader.chunks():
            builder.add(chunk)
    except UnfinishedBlock:
        return None
    loss = reader.loss
    return Settled(
        part=builder.part(),
        n_used=reader.offset - offset,
        ended=reader.ended,
        n_lost=loss.n_lost,
        n_repaired=loss.n_repaired,
        messages=loss.messages,
        more=loss.more,
    )
