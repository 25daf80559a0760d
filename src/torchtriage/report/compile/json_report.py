"""The versioned JSON document of a compile result, and back.

The dataclasses of ``compile/result.py`` are the document. A reader of ``torchtriage-compile/1``
must ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.compile.result import COMPILE_SCHEMA, CompileResult
from torchtriage.report.json_report import Document

__all__ = ["CompileReport", "decode", "encode", "schema"]


@dataclass(frozen=True)
class CompileReport:
    """One run of ``torchtriage compile`` over the logs of one program."""

    schema: str
    version: str
    result: CompileResult


_DOCUMENT = Document(
    CompileReport, COMPILE_SCHEMA, title="Result of torchtriage about compile logs",
    what="a compile result", command="torchtriage compile LOG --json",
)  # fmt: skip
schema = _DOCUMENT.schema


def encode(result: CompileResult) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline; equal runs give equal bytes."""
    return _DOCUMENT.encode(CompileReport(COMPILE_SCHEMA, result.version, result))


def decode(data: bytes) -> CompileResult:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    return _DOCUMENT.decode(data).result
