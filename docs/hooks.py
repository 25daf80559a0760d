"""What the site's builder (mkdocs.yml) does to a page: pages of the repository that are not in docs/ become text."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:src|benchmarks|examples|packages|ci|[A-Z]+\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Drop links that leave ``docs``: the site holds its own pages alone."""
    return OUTSIDE.sub(r"\1", markdown)


def on_files(files: Any, **_: Any) -> None:
    """Keep the page of every pattern out of the navigation: the index links them by name."""
    for file in files:
        if file.src_uri.startswith("patterns/") and not file.src_uri.endswith("index.md"):
            file.inclusion = file.inclusion.__class__.NOT_IN_NAV
