"""The versioned JSON document of a comparison, and back.

The dataclasses of ``finding.py`` are the document. A reader of ``torchtriage-comparison/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from torchtriage.errors import TraceFormatError
from torchtriage.finding import COMPARISON_SCHEMA, Comparison
from torchtriage.report.json_report import SCHEMA_ID, plain

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
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"expected a comparison, found no JSON: {error}") from None
    found = head.get("schema") if isinstance(head, dict) else None
    if found != COMPARISON_SCHEMA:
        raise TraceFormatError(
            f'expected a comparison with schema "{COMPARISON_SCHEMA}", found {found!r:.80}',
            where="$.schema",
            hint="write one with: torchtriage compare BEFORE AFTER --json",
        )
    try:
        return msgspec.convert(head, Comparison)
    except msgspec.ValidationError as error:
        raise TraceFormatError(
            f"the file does not follow {COMPARISON_SCHEMA}: {error}",
            hint="write it again with: torchtriage compare BEFORE AFTER --json",
        ) from None


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    generated = plain(msgspec.json.schema(Comparison))
    definitions = generated["$defs"]
    for definition in definitions.values():
        definition["description"] = inspect.cleandoc(definition["description"])
    definitions["Comparison"]["properties"]["schema"] = {"const": COMPARISON_SCHEMA}
    return {
        "$schema": SCHEMA_ID,
        "title": f"Comparison of two runs by torchtriage, {COMPARISON_SCHEMA}",
        "$ref": generated["$ref"],
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }
