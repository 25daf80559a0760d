"""Sections of a page that is a module's docstring."""

from __future__ import annotations

import re


def section(page: str, title: str) -> str:
    """Return one section of a page as running text, empty when it has none."""
    match = re.search(rf"^{re.escape(title)}:(.*?)(?=^[A-Z][A-Za-z ]+:|\Z)", page, re.DOTALL | re.MULTILINE)
    return " ".join(match.group(1).split()) if match else ""
