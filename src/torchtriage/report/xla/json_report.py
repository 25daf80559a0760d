"""The versioned JSON document of an XLA result, and back.

The dataclasses of ``xla/result.py`` are the document. A reader of ``torchtriage-xla/1`` must ignore
fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.report.json_report import parse, plain, schema_of
from torchtriage.xla.result import XLA_SCHEMA, XlaResult

__all__ = ["decode", "encode", "schema"]


def encode(result: XlaResult) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> XlaResult:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    return parse(data, XlaResult, XLA_SCHEMA, "an XLA result", "torchtriage xla TARGET --json")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    return schema_of(XlaResult, XLA_SCHEMA, f"Models on PyTorch/XLA by torchtriage, {XLA_SCHEMA}")
