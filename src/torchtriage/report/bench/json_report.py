"""The versioned JSON document of a benchmark, and back.

The dataclasses of ``bench/result.py`` are the document. A reader of ``torchtriage-bench/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.bench.result import BENCH_SCHEMA, BenchResult
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["decode", "encode", "schema"]


def encode(result: BenchResult) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> BenchResult:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    return parse(data, BenchResult, BENCH_SCHEMA, "a benchmark", "torchtriage bench TARGET --json")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    return schema_of(BenchResult, BENCH_SCHEMA, f"A benchmark by torchtriage, {BENCH_SCHEMA}")
