"""The versioned JSON document of a benchmark, and back.

The dataclasses of ``bench/result.py`` are the document. A reader of ``torchtriage-bench/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from torchtriage.bench.result import BENCH_SCHEMA, BenchResult
from torchtriage.report.json_report import Document

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    BenchResult, BENCH_SCHEMA, title="A benchmark by torchtriage", what="a benchmark",
    command="torchtriage bench TARGET --json",
)  # fmt: skip
decode, encode, schema = _DOCUMENT.decode, _DOCUMENT.encode, _DOCUMENT.schema
