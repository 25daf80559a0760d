"""All arguments of one row, read again from the file when somebody asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.column_builder import is_row
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.event_numbers import NO_TIME_NS, ExactTimes
from torchtriage.core.trace.event_types import EventRow
from torchtriage.core.trace.events import Chunk, EventReader, TextBlock
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.salvage import mend

_ANY_SIZE = 1 << 62  # the limit was checked when the trace was read
_LATEST = "args"


def read_args(trace: Trace, row: int) -> dict[str, Any]:
    """Return the ``args`` of one row as the file has them; empty when it has none, or where only its columns are kept.

    Decodes the chunk of text that holds the row, and keeps the latest one.

    Raises TraceFormatError: the file is gone, or is no longer the one that was read; IndexError: there is no such row.
    """
    if not 0 <= row < len(trace):
        raise IndexError(f"expected a row from 0 to {len(trace) - 1}, found {row}")
    index = int(np.searchsorted(trace.report.chunks[:, 0], row, side="right")) - 1
    if trace.report.recorder:
        return _read_record(trace, row, index) if index >= 0 else {}
    known = trace._decoded.get(_LATEST)
    if known is None or known[0] != index:
        known = index, _read_rows(trace, index)
        trace._decoded[_LATEST] = known
    text = known[1][row - int(trace.report.chunks[index, 0])]
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        try:
            found = json.loads(mend(text))
        except (ValueError, RecursionError):
            found = {}
    return found if isinstance(found, dict) else {}


def _read_record(trace: Trace, row: int, index: int) -> dict[str, Any]:
    from torchtriage.core.trace.formats.databases import read_row

    first, table, _ = trace.report.chunks[index].tolist()
    with open_source(trace.source, max_bytes=_ANY_SIZE, name=trace.report.path, others=True) as source:
        return read_row(source, trace.source, table, row - first) if source.is_database else {}


def _read_rows(trace: Trace, index: int) -> list[bytes]:
    chunks = trace.report.chunks
    first, offset, size = chunks[index].tolist()
    stop = int(chunks[index + 1, 0]) if index + 1 < len(chunks) else len(trace)
    names = [trace.names[name] for name in trace.name[first:stop].tolist()]
    start_ns = trace.start_ns[first:stop]
    for chunk in _read_chunk(trace, offset, size, is_last=index + 1 == len(chunks)):
        stored = [i for i, event in enumerate(chunk.events) if is_row(event)]
        rows = [event for event in chunk.events if isinstance(event, EventRow) and is_row(event)]
        found_ns = ExactTimes(chunk).starts(rows)
        if [elide(row.name, LONGEST) for row in rows] == names and (
            (found_ns == start_ns) | (found_ns == NO_TIME_NS)
        ).all():
            raw = chunk.raw()
            return [bytes(raw[i].args) for i in stored]
    raise TraceFormatError(
        f"expected the text that was read, found another at byte {offset}",
        where=trace.report.path,
        hint="the file has changed since; read it again",
    )


def _read_chunk(trace: Trace, offset: int, size: int, *, is_last: bool) -> Iterator[Chunk]:
    """Yield what the chunk may have held: a damaged last one depends on what follows it."""
    wanted = _ANY_SIZE if is_last else size
    with open_source(trace.source, max_bytes=_ANY_SIZE, name=trace.report.path) as source:
        position = source.skip(offset)
        text = b""
        while len(text) < wanted and (block := source.read(max(size - len(text), 1 << 16))):
            text += block[max(offset - position, 0) :]
            position += len(block)
    yield EventReader(TextBlock(), offset=offset).decode_again(text[:size], is_tail=False)
    if is_last:
        yield EventReader(TextBlock(), offset=offset).decode_again(text, is_tail=True)
