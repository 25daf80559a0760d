"""A person as the reviewer: shown a window's evidence, asked for a verdict and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchtriage.core.names import visible
from torchtriage.diagnose.patterns import lookup
from torchtriage.learn.review.evidence import Evidence
from torchtriage.learn.review.reviewer import INTERRUPTED, NONE, Outcome, RejectedError, Review, formed

_PERSON = "person/"
"""What a person's name begins with in the history of labels."""

HELP = "a code, none, ? for the codes, s to skip, q to stop"


def is_person(who: str) -> bool:
    """Return whether a name in the history of labels is a person's."""
    return who.startswith(_PERSON)


class Person:
    """Asks at a terminal.

    ``who`` : the person's name, for the history of labels. ``ask`` : shows a question and returns
    the line that is answered; EOFError and Ctrl-C end the review. ``show`` : shows text.
    """

    def __init__(self, who: str, ask: Callable[[str], str], show: Callable[[str], None]) -> None:
        self.name = f"{_PERSON}{who}"
        self._ask, self._show = ask, show

    def review_all(self, evidence: Sequence[Evidence], on_done: Callable[[int, Outcome], None]) -> tuple[Outcome, ...]:
        """Return an outcome for each window; those after a stop say so."""
        outcomes: list[Outcome] = []
        stopped = False
        for place, item in enumerate(evidence):
            try:
                outcome = Outcome(item, None, INTERRUPTED) if stopped else self._review(place, evidence)
            except (EOFError, KeyboardInterrupt):  # what was judged before is kept
                outcome = Outcome(item, None, INTERRUPTED)
            stopped = stopped or outcome.reason == INTERRUPTED
            outcomes.append(outcome)
            on_done(place, outcome)
        return tuple(outcomes)

    def _review(self, place: int, evidence: Sequence[Evidence]) -> Outcome:
        window = evidence[place]
        self._show(f"\nwindow {place + 1} of {len(evidence)}\n{window.text}")
        while True:
            answer = self._ask(f"verdict ({HELP})").strip()
            if answer.lower() in ("s", "q"):
                return Outcome(window, None, "skipped" if answer.lower() == "s" else INTERRUPTED)
            if answer == "?":
                self._show("\n".join(f"{code} {lookup(code).pattern.title}" for code in window.codes))
                continue
            code = NONE if answer.lower() == NONE else answer.upper()
            if code != NONE and code not in window.codes:
                self._show(f"expected {HELP}, found {answer!r}")
                continue
            try:
                return Outcome(window, self._reasoned(window, code))
            except RejectedError as problem:
                self._show(str(problem))

    def _reasoned(self, evidence: Evidence, code: str) -> Review:
        why = self._ask("why, with the ids of lines, such as e2").strip()
        sure = self._ask("how sure, in percent [100]").strip().rstrip("% ") or "100"
        try:
            confidence = float(sure) / 100
        except ValueError:
            raise RejectedError("expected a percentage", repr(sure)) from None
        ids = list(dict.fromkeys(re.findall(r"\be\d+\b", why)))
        return replace(formed({"code": code, "confidence": confidence, "why": ids}, evidence), remark=visible(why))
