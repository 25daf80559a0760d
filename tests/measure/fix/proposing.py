"""Source text in, what edits propose for one of its lines out."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.diagnose.lint.walk import walk
from torchtriage.measure.fix.candidates import changed, known_edits
from torchtriage.measure.fix.proposal import Proposal, Site


def proposals(
    text: str, line: int | str, code: str, edit: str = "", evidence: dict[str, Any] | None = None
) -> list[Proposal]:
    """Return what edits that know a code, or the named one, propose for a line, given by number or a part of it."""
    text = source(text)
    number = line if isinstance(line, int) else _number(text, line)
    finding = Finding(
        code,
        "a-finding",
        "host",
        "A finding",
        "medium",
        "likely",
        "A finding.",
        Place(frame=Frame("program.py", number, "", lines=(number,))),
        None,
        evidence or {},
        Fix("Mend it."),
    )
    site = Site(walk(ast.parse(text), text, "program.py", whole=True), number, finding)
    return [
        proposal
        for known in known_edits()
        if code in known.codes and edit in ("", known.name)
        for proposal in known.propose(site)
        if proposal.edits
    ]


def proposed(
    text: str, line: int | str, code: str, edit: str = "", evidence: dict[str, Any] | None = None
) -> list[str]:
    """Return the texts after each proposal; ``text`` may be indented as the test is."""
    text = source(text)
    new = [changed(text, [proposal.edits]) for proposal in proposals(text, line, code, edit, evidence)]
    return [item for item in dict.fromkeys(new) if item != text]


def source(text: str) -> str:
    """Return a text written indented in a test as a file holds it."""
    return textwrap.dedent(text).lstrip("\n")


def change(text: str) -> tuple[str, str]:
    """Return the files before and after, of which a test writes one: ``-`` marks what goes, ``+`` what comes."""
    return sides(source(text))


def sides(text: str) -> tuple[str, str]:
    """Return the same of a text of which each row begins with its mark, or two blanks."""
    rows = text.splitlines(keepends=True)
    before, after = ("".join(row[2:] or "\n" for row in rows if row[0] != sign) for sign in "+-")
    return before, after


def _number(text: str, part: str) -> int:
    return next(number for number, row in enumerate(text.splitlines(), start=1) if part in row)
