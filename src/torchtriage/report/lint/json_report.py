"""The document ``torchtriage-lint/1``, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.lint.result import SCHEMA, LintResult
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["decode", "encode", "schema"]


def encode(result: LintResult) -> bytes:
    """Return the document as UTF-8, one line; equal results give equal bytes."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> LintResult:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document.
    """
    return parse(data, LintResult, SCHEMA, "a lint result", "torchtriage lint PATH --json")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document."""
    return schema_of(LintResult, SCHEMA, f"Result of torchtriage lint, {SCHEMA}")
