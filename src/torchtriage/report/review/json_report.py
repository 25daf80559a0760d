"""The versioned JSON document of a review, and back.

The dataclasses of ``review/result.py`` are the document. A reader of ``torchtriage-review/1`` must
ignore fields it does not know; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from torchtriage.report.json_report import Document
from torchtriage.review.result import REVIEW_SCHEMA, ReviewResult

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    ReviewResult, REVIEW_SCHEMA, title="Review of suspicious windows of a trace",
    what="a review", command="torchtriage review TRACE --json",
)  # fmt: skip
schema = _DOCUMENT.schema
encode = _DOCUMENT.encode
decode = _DOCUMENT.decode
