"""The versioned JSON document of a compile result, and back.

The dataclasses of ``compile/result.py`` are the document. A reader of ``torchtriage-compile/1``
must ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from torchtriage.compile.result import COMPILE_SCHEMA, CompileResult
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["CompileReport", "decode", "encode", "schema"]


@dataclass(frozen=True)
class CompileReport:
    """One run of ``torchtriage compile`` over the logs of one program."""

    schema: str
    version: str
    result: CompileResult


def encode(result: CompileResult) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline; equal runs give equal bytes."""
    report = CompileReport(COMPILE_SCHEMA, result.version, result)
    return msgspec.json.encode(plain(report)) + b"\n"


def decode(data: bytes) -> CompileResult:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    command = "torchtriage compile LOG --json"
    return parse(data, CompileReport, COMPILE_SCHEMA, "a compile result", command).result


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    title = f"Result of torchtriage about compile logs, {COMPILE_SCHEMA}"
    return schema_of(CompileReport, COMPILE_SCHEMA, title)
