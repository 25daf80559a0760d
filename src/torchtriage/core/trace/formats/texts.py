"""Texts as the files of other profilers hold them."""

from __future__ import annotations


def text_of(raw: bytes) -> str:
    """Return bytes as a text without NULs, whether or not they are UTF-8."""
    return raw.replace(b"\0", b"").decode("utf-8", "replace")
