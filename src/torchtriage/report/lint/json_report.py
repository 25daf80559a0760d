"""The document ``torchtriage-lint/1``, and back."""

from __future__ import annotations

from torchtriage.lint.result import SCHEMA, LintResult
from torchtriage.report.json_report import Document

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    LintResult, SCHEMA, title="Result of torchtriage lint", what="a lint result",
    command="torchtriage lint PATH --json",
)  # fmt: skip
decode, encode, schema = _DOCUMENT.decode, _DOCUMENT.encode, _DOCUMENT.schema
