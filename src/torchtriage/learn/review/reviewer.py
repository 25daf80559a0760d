"""What a reviewer is, what it says, and what it may not say.

Whoever reviews, a model, a program or a person, a review is taken only when it can be checked:
a code that the recording could show, and sentences that each cite lines of the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchtriage.core.names import visible
from torchtriage.learn.review.evidence import Evidence
from torchtriage.learn.review.support import bears_on, unsupported

__all__ = [
    "INTERRUPTED",
    "MAX_SENTENCES",
    "NONE",
    "NOT_STARTED",
    "Outcome",
    "RejectedError",
    "Review",
    "Reviewer",
    "Sentence",
    "check",
    "formed",
    "silent",
]

NONE = "none"
"""The verdict that nothing is wrong in the window."""
INTERRUPTED = "interrupted"
"""The reason of windows that were left when somebody stopped the review."""
NOT_STARTED = "not begun: the review was stopped before"
MAX_SENTENCES = 8
MAX_SENTENCE = 600
"""Characters; who writes more does not sum up."""


class RejectedError(ValueError):
    """A review that cannot be taken, and why.

    ``expected`` : in words of ours alone; what was found can be the reviewer's.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"{expected}, found {found}")
        self.expected = expected


@dataclass(frozen=True)
class Sentence:
    """A statement, and the ids of the lines of evidence it rests on."""

    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Review:
    """What a reviewer says of one window.

    ``code`` : the anti-pattern, or ``none``. ``confidence`` : in that, 0 to 1. ``why`` : at least
    one sentence. ``advice`` : what to change, may be empty. ``dropped`` : sentences that were left out, because the
    lines they cite do not say so.
    """

    code: str
    confidence: float
    why: tuple[Sentence, ...]
    advice: tuple[Sentence, ...] = ()
    dropped: int = 0


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
    """Return what has support in a reply, as a review; see :mod:`torchtriage.learn.review.support`.

    Raises RejectedError: as :func:`formed`, or no sentence with support cites a line that bears on the code.
    """
    review = formed(reply, evidence)
    lines = {line.id: line for line in evidence.lines}

    def kept(sentences: tuple[Sentence, ...], advice_on: str = "") -> tuple[Sentence, ...]:
        return tuple(
            item for item in sentences if not unsupported(item.text, [lines[one] for one in item.evidence], advice_on)
        )

    def bears(item: Sentence) -> bool:
        return review.code == NONE or any(bears_on(lines[one], review.code) for one in item.evidence)

    why = kept(review.why)
    advice = tuple(filter(bears, kept(review.advice, review.code))) if review.code != NONE else ()
    if not why:
        reason = unsupported(review.why[0].text, [lines[one] for one in review.why[0].evidence])
        raise RejectedError("no answer: expected sentences whose numbers and names are in the lines they cite", reason)
    if not any(map(bears, why)):
        raise RejectedError("no answer: expected a line that bears on the code", review.code)
    dropped = len(review.why) + len(review.advice) - len(why) - len(advice)
    if dropped >= len(why) + len(advice):  # the rest of what was made up is no verdict either
        raise RejectedError("no answer: expected more sentences with support than without", f"{dropped} without")
    return replace(review, why=why, advice=advice, dropped=dropped)


def formed(reply: Any, evidence: Evidence) -> Review:
    """Return a reply as a review, whatever its sentences say.

    Raises RejectedError: it is not of the form that is asked for, its code is none of this
    recording's, a sentence cites nothing, or something that is not there.
    """
    if not isinstance(reply, dict):
        raise RejectedError("expected an object", _kind(reply))
    code = reply.get("code")
    if code != NONE and code not in evidence.codes:
        raise RejectedError(f'expected a known code or "{NONE}"', _shown(code))
    confidence = reply.get("confidence")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise RejectedError("expected a confidence from 0 to 1", _shown(confidence))
    why = _sentences(reply.get("why"), "why", evidence)
    if not why:
        raise RejectedError("expected at least one sentence in why", "none")
    advice = _sentences(reply.get("advice", []), "advice", evidence)
    return Review(str(code), float(confidence), why, advice)


def _sentences(rows: Any, where: str, evidence: Evidence) -> tuple[Sentence, ...]:
    if not isinstance(rows, list):
        raise RejectedError(f"expected a list of sentences in {where}", _kind(rows))
    if len(rows) > MAX_SENTENCES:
        raise RejectedError(f"expected at most {MAX_SENTENCES} sentences in {where}", str(len(rows)))
    return tuple(_sentence(row, f"{where}[{at}]", evidence) for at, row in enumerate(rows))


def _sentence(row: Any, where: str, evidence: Evidence) -> Sentence:
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise RejectedError(f"expected a text in {where}", _shown(text))
    if len(text) > MAX_SENTENCE:
        raise RejectedError(f"expected at most {MAX_SENTENCE} characters in {where}", f"{len(text):,}")
    cited = row.get("evidence")
    if not isinstance(cited, list) or not cited:
        raise RejectedError(f"expected the ids of evidence in {where}", _shown(cited))
    unknown = [item for item in cited if not isinstance(item, str) or item not in evidence.ids]
    if unknown:
        raise RejectedError(
            f"expected ids from e1 to e{len(evidence.lines)} in {where}", ", ".join(map(_shown, unknown[:3]))
        )
    # what a model writes reaches a terminal
    return Sentence(visible(re.sub(r"\s+", " ", text).strip()), tuple(dict.fromkeys(cited)))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    return "nothing" if value is None else visible(repr(value)[:60])
