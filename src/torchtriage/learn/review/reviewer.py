"""What a reviewer is, and what it may say: a code and lines of the evidence, and no words of its own.

Whoever reviews, a model, a program or a person, a verdict is a code that the recording could show, and the ids of the
lines that speak for it and against it. A report prints these lines as they were shown, and the catalogue's words on the
code. So a model cannot invent: what it can get wrong is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchtriage.core.names import visible
from torchtriage.learn.review.evidence import Evidence
from torchtriage.learn.review.relevance import bears_on

NONE = "none"
"""The verdict that nothing is wrong in the window."""
INTERRUPTED = "interrupted"
"""The reason of windows that were left when somebody stopped the review."""
NOT_STARTED = "not started: the review was stopped before"
MAX_LINES = 8
"""Who cites more does not choose."""


class RejectedError(ValueError):
    """A review that cannot be taken, and why.

    ``expected`` : in words of ours alone; what was found can be the reviewer's.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"{expected}, found {found}")
        self.expected = expected


@dataclass(frozen=True)
class Review:
    """What a reviewer says of one window.

    ``code`` : the anti-pattern, or ``none``. ``confidence`` : in that, 0 to 1. ``why`` : ids of the lines that speak
    for it, at least one. ``against`` : of those that speak against it. ``remark`` : a person's own words.
    """

    code: str
    confidence: float
    why: tuple[str, ...]
    against: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Outcome:
    """How the review of one window went.

    ``reason`` : why there is no review; empty where there is one. ``cached`` : it was taken from an
    earlier run. ``*_tokens`` : sent and received for it, as the endpoint counts, else as we do.
    """

    evidence: Evidence
    review: Review | None
    reason: str = ""
    cached: bool = False
    attempts: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0


class Reviewer(Protocol):
    """Judges windows by their evidence."""

    @property
    def name(self) -> str:
        """Who it is, for reports and for the history of labels."""

    def review_all(self, evidence: Sequence[Evidence], on_done: Callable[[int, Outcome], None]) -> tuple[Outcome, ...]:
        """Return an outcome for each window, in their order, whatever happens.

        ``on_done`` is called with the place of each that is done.
        """


def silent(_place: int, _outcome: Outcome) -> None:
    """Tell nobody of an outcome."""


def check(reply: Any, evidence: Evidence) -> Review:
    """Return a reply as a review; a rule that found the code elsewhere alone speaks against it, cited or not.

    Raises RejectedError: as :func:`formed`, or none of the lines that speak for the code bears on it.
    """
    review = formed(reply, evidence)
    lines = {line.id: line for line in evidence.lines}
    if review.code != NONE and not any(bears_on(lines[item], review.code) for item in review.why):
        raise RejectedError("no answer: expected in why a line that bears on the code", review.code)
    elsewhere = (line.id for line in evidence.of_kind("elsewhere") if line.facts["code"] == review.code)
    against = dict.fromkeys((*review.against, *elsewhere))
    return replace(review, against=tuple(item for item in against if item not in review.why))


def formed(reply: Any, evidence: Evidence) -> Review:
    """Return a reply as a review, whatever its lines say.

    Raises RejectedError: it is not of the form that is asked for, its code is none of this recording's, or it cites
    nothing, or what is not there.
    """
    if not isinstance(reply, dict):
        raise RejectedError("expected an object", _kind(reply))
    code = reply.get("code")
    if code != NONE and code not in evidence.codes:
        raise RejectedError(f'expected a known code or "{NONE}"', _shown(code))
    confidence = reply.get("confidence")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise RejectedError("expected a confidence from 0 to 1", _shown(confidence))
    why = _ids(reply.get("why"), "why", evidence)
    if not why:
        raise RejectedError("expected at least one id in why", "none")
    return Review(str(code), float(confidence), why, _ids(reply.get("against", []), "against", evidence))


def _ids(cited: Any, where: str, evidence: Evidence) -> tuple[str, ...]:
    if not isinstance(cited, list):
        raise RejectedError(f"expected a list of ids in {where}", _kind(cited))
    if len(cited) > MAX_LINES:
        raise RejectedError(f"expected at most {MAX_LINES} ids in {where}", str(len(cited)))
    unknown = [item for item in cited if not isinstance(item, str) or item not in evidence.ids]
    if unknown:
        found = ", ".join(map(_shown, unknown[:3]))
        raise RejectedError(f"expected ids from e1 to e{len(evidence.lines)} in {where}", found)
    return tuple(dict.fromkeys(cited))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    return "nothing" if value is None else visible(repr(value)[:60])
