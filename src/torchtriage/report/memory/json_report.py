"""The versioned JSON document of a memory result, and back.

The dataclasses of ``memory/result.py`` are the document. A reader of ``torchtriage-memory/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtriage.memory.result import MEMORY_SCHEMA, MemoryResult
from torchtriage.report.json_report import Document

__all__ = ["MemoryReport", "decode", "encode", "schema"]


@dataclass(frozen=True)
class MemoryReport:
    """One run of ``torchtriage memory`` over one or more snapshots."""

    schema: str
    version: str
    results: tuple[MemoryResult, ...]


_DOCUMENT = Document(
    MemoryReport, MEMORY_SCHEMA, title="Result of torchtriage about memory snapshots",
    what="a memory result", command="torchtriage memory SNAPSHOT --json",
)  # fmt: skip
schema = _DOCUMENT.schema


def encode(results: Sequence[MemoryResult]) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline; equal runs give equal bytes."""
    version = results[0].version if results else ""
    return _DOCUMENT.encode(MemoryReport(MEMORY_SCHEMA, version, tuple(results)))


def decode(data: bytes) -> list[MemoryResult]:
    """Return the results of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    return list(_DOCUMENT.decode(data).results)
