"""What programs keep of ``torch._dynamo.explain`` as JSON: ``break_reasons``, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from torchtriage.compile.logs.breaks import parse_break, parse_restart
from torchtriage.compile.logs.entries import Readable
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.core.errors import LogError

__all__ = ["read_explain"]

BLOCK_BYTES = 1 << 20
MAX_BYTES = 256 << 20


def read_explain(log: ProcessLog, stream: Readable, progress: Callable[[int], None] | None = None) -> ProcessLog:
    """Take in every reason of every ``break_reasons``; an entry is a reason.

    Raises LogError: it is not JSON to its end, or too large for a summary.
    """
    data = bytearray()
    while block := stream.read(BLOCK_BYTES):
        data += block
        if len(data) > MAX_BYTES:
            raise LogError(f"expected less than {MAX_BYTES >> 20} MiB of JSON", where=log.path)
        if progress is not None:
            progress(len(data))
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(
            f"expected JSON with break_reasons, found some that cannot be read: {error}",
            where=log.path,
            hint="write it again; a file that was cut is not repaired",
        ) from None
    tally = log.tally
    tally.n_bytes = len(data)
    nowhere = log.compilation("")
    for reasons in _lists(document):
        tally.kinds["explain"] += 1
        for told in reasons:
            tally.n_read += 1
            text = told.get("reason") if isinstance(told, dict) else told
            if not isinstance(text, str) or not text.strip():
                tally.skipped["graph break that cannot be read"] += 1
                continue
            graph_break = parse_break(text) or parse_restart(text)
            inner = graph_break.stack[0] if graph_break.stack else graph_break.frame
            log.saw_break(graph_break, nowhere, (inner.function, inner.file, 0) if inner else ("", "", 0))
            tally.n_used += 1
            tally.kinds["graph_breaks"] += 1
    log.finish()
    return log


def _lists(document: Any) -> Iterator[list[Any]]:
    """Yield the lists named ``break_reasons``, in the order of the document."""
    todo = [document]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            found = node.get("break_reasons")
            if isinstance(found, list):
                yield found
            todo += reversed([value for name, value in node.items() if name != "break_reasons"])
        elif isinstance(node, list):
            todo += reversed(node)
