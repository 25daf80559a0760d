"""The document ``torchtriage-verification/1``, and back."""

from __future__ import annotations

from torchtriage.finding import VERIFICATION_SCHEMA, Verification
from torchtriage.report.json_report import Document

__all__ = ["decode", "encode", "schema"]

_DOCUMENT = Document(
    Verification, VERIFICATION_SCHEMA, title="A fix on trial by torchtriage", what="a verification",
    command="torchtriage verify BEFORE.py AFTER.py --json",
)  # fmt: skip
decode, encode, schema = _DOCUMENT.decode, _DOCUMENT.encode, _DOCUMENT.schema
