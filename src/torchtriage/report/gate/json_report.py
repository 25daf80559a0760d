"""The documents ``torchtriage-gate/1`` and ``torchtriage-gate-history/1``, and back."""

from __future__ import annotations

from torchtriage.gate.result import GATE_SCHEMA, HISTORY_SCHEMA, GateResult, HistoryResult
from torchtriage.report.json_report import Document, decode_as

__all__ = ["decode", "decode_any", "decode_history", "encode", "history_schema", "schema"]

_CHECK = Document(
    GateResult, GATE_SCHEMA, title="A check of torchtriage gate", what="a check",
    command="torchtriage gate check --json",
)  # fmt: skip
_HISTORY = Document(
    HistoryResult, HISTORY_SCHEMA, title="A history of torchtriage gate", what="a history",
    command="torchtriage gate history --json",
)  # fmt: skip
decode, decode_history = _CHECK.decode, _HISTORY.decode
schema, history_schema = _CHECK.schema, _HISTORY.schema


def encode(result: GateResult | HistoryResult) -> bytes:
    """Return the document as UTF-8, one line; equal results give equal bytes."""
    return _CHECK.encode(result) if isinstance(result, GateResult) else _HISTORY.encode(result)


def decode_any(data: bytes) -> GateResult | HistoryResult:
    """Return the check or the history of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is neither.
    """
    result: GateResult | HistoryResult = decode_as(data, _CHECK, _HISTORY)
    return result
