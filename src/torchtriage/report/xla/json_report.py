"""The versioned JSON document of an XLA result, and back.

The dataclasses of ``xla/result.py`` are the document. A reader of ``torchtriage-xla/1`` must ignore
fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from torchtriage.report.json_report import Document
from torchtriage.xla.result import XLA_SCHEMA, XlaResult

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    XlaResult, XLA_SCHEMA, title="Models on PyTorch/XLA by torchtriage", what="an XLA result",
    command="torchtriage xla TARGET --json",
)  # fmt: skip
decode, encode, schema = _DOCUMENT.decode, _DOCUMENT.encode, _DOCUMENT.schema
