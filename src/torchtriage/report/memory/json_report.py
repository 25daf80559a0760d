"""The versioned JSON document of a memory result, and back.

The dataclasses of ``memory/result.py`` are the document. A reader of ``torchtriage-memory/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from torchtriage.memory.result import MEMORY_SCHEMA, MemoryResult
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["MemoryReport", "decode", "encode", "schema"]


@dataclass(frozen=True)
class MemoryReport:
    """One run of ``torchtriage memory`` over one or more snapshots."""

    schema: str
    version: str
    results: tuple[MemoryResult, ...]


def encode(results: Sequence[MemoryResult]) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline; equal runs give equal bytes."""
    version = results[0].version if results else ""
    return msgspec.json.encode(plain(MemoryReport(MEMORY_SCHEMA, version, tuple(results)))) + b"\n"


def decode(data: bytes) -> list[MemoryResult]:
    """Return the results of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    command = "torchtriage memory SNAPSHOT --json"
    report = parse(data, MemoryReport, MEMORY_SCHEMA, "a memory result", command)
    return list(report.results)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    title = f"Result of torchtriage about memory snapshots, {MEMORY_SCHEMA}"
    return schema_of(MemoryReport, MEMORY_SCHEMA, title)
