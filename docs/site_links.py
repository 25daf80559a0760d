"""A hook of mkdocs: links to files outside of the pages become their names, as the site does not hold them."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|ci|examples|benchmarks|packages|tests|[A-Z]+\.md)[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with such links taken out."""
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)
