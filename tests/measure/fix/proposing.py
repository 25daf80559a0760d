"""What edits propose for one place of a source text, as new texts."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.diagnose.lint.walk import walk
from torchtriage.measure.fix.candidates import changed, known_edits
from torchtriage.measure.fix.proposal import Proposal, Site

__all__ = ["finding", "proposals", "proposed"]


def proposed(text: str, line: int | str, code: str, edit: str = "") -> list[str]:
    """Return the texts that the edits for a code make of a text, those without effect left out.

    ``line`` : of the finding, or a part of its text. ``edit`` : the name of the one edit to ask.
    """
    text = dedent(text).lstrip("\n")
    made = [changed(text, [proposal.edits]) for proposal in proposals(text, line, code, edit)]
    return [new for new in made if new != text]


def proposals(text: str, line: int | str, code: str, edit: str = "") -> list[Proposal]:
    """Return what the edits for a code propose at a line of a text."""
    text = dedent(text).lstrip("\n")
    if isinstance(line, str):
        line = next(number for number, row in enumerate(text.splitlines(), start=1) if line in row)
    site = Site(walk(ast.parse(text), text, "train.py"), line, finding(code, line))
    return [
        proposal
        for known in known_edits()
        if code in known.codes and edit in ("", known.name)
        for proposal in known.propose(site)
    ]


def finding(code: str, line: int, file: str | Path = "train.py") -> Finding:
    """Return a finding with a code at a line."""
    frame = Frame(str(file), line, "main", exact=True, lines=(line,))
    place = Place(frame=frame, stack=(frame,))
    return Finding(code, "", "", "", "high", "certain", "", place, None, {}, Fix(""))
