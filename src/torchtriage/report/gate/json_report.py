"""The documents ``torchtriage-gate/1`` and ``torchtriage-gate-history/1``, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtriage.gate.result import GATE_SCHEMA, HISTORY_SCHEMA, GateResult, HistoryResult
from torchtriage.report.json_report import parse, plain, schema_of

__all__ = ["decode", "decode_any", "decode_history", "encode", "history_schema", "schema"]


def encode(result: GateResult | HistoryResult) -> bytes:
    """Return the document as UTF-8, one line; equal results give equal bytes."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> GateResult:
    """Return the check of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document.
    """
    return parse(data, GateResult, GATE_SCHEMA, "a check", "torchtriage gate check --json")


def decode_history(data: bytes) -> HistoryResult:
    """Return the history of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document.
    """
    command = "torchtriage gate history --json"
    return parse(data, HistoryResult, HISTORY_SCHEMA, "a history", command)


def decode_any(data: bytes) -> GateResult | HistoryResult:
    """Return the check or the history of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is neither.
    """
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode(data)  # which says what is wrong
    is_history = isinstance(head, dict) and head.get("schema") == HISTORY_SCHEMA
    return decode_history(data) if is_history else decode(data)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a check."""
    return schema_of(GateResult, GATE_SCHEMA, f"A check of torchtriage gate, {GATE_SCHEMA}")


def history_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a history."""
    title = f"A history of torchtriage gate, {HISTORY_SCHEMA}"
    return schema_of(HistoryResult, HISTORY_SCHEMA, title)
