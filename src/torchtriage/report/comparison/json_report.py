"""The versioned JSON document of a comparison, and back.

The dataclasses of ``finding.py`` are the document. A reader of ``torchtriage-comparison/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from torchtriage.finding import COMPARISON_SCHEMA, Comparison
from torchtriage.report.json_report import Document

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    Comparison, COMPARISON_SCHEMA, title="Comparison of two runs by torchtriage",
    what="a comparison", command="torchtriage compare BEFORE AFTER --json",
)  # fmt: skip
decode, encode, schema = _DOCUMENT.decode, _DOCUMENT.encode, _DOCUMENT.schema
