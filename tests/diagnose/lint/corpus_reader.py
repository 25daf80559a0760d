"""The planted faults: ``corpus/*.txt``.

``=== name`` starts a snippet; a line that ends in ``#! CODE, CODE`` must be found under these
codes, and no other line under any. ``#? CODE`` marks what must be found as a remark. The comments
are taken off before linting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Snippet:
    name: str
    text: str
    wanted: frozenset[tuple[int, str]]
    remarks: frozenset[tuple[int, str]] = frozenset()


def snippets() -> Iterator[Snippet]:
    for file in sorted(CORPUS.glob("*.txt")):
        for part in re.split(r"^=== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            name, _, body = part.partition("\n")
            lines, wanted, remarks = [], set(), set()
            for number, line in enumerate(body.splitlines(), start=1):
                code, _, asked = line.partition("  #? ")
                code, _, marks = code.partition("  #! ")
                wanted |= {(number, mark.strip()) for mark in marks.split(",") if mark.strip()}
                remarks |= {(number, mark.strip()) for mark in asked.split(",") if mark.strip()}
                lines.append(code)
            yield Snippet(f"{file.stem}: {name}", "\n".join(lines) + "\n", frozenset(wanted), frozenset(remarks))
