"""The versioned JSON document of a comparison, and back.

The dataclasses of ``finding.py`` are the document. A reader of ``torchtriage-comparison/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.finding import COMPARISON_SCHEMA, Comparison
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["decode", "encode", "schema"]


def encode(result: Comparison) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline; equal runs give equal bytes."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> Comparison:
    """Return the comparison of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    command = "torchtriage compare BEFORE AFTER --json"
    return parse(data, Comparison, COMPARISON_SCHEMA, "a comparison", command)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    title = f"Comparison of two runs by torchtriage, {COMPARISON_SCHEMA}"
    return schema_of(Comparison, COMPARISON_SCHEMA, title)
