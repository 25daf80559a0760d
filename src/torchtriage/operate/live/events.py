"""What happened, in the words that the page shows."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchtriage.core.names import visible

LONGEST = 400  # characters of any text that is shown: a reason can be anything

Tone = Literal["bad", "good", "plain"]


class PageEvent(NamedTuple):
    """One thing that happened: to whom, what in a word or two, and a sentence."""

    source: Literal["alarm", "ladder", "rollout"]
    subject: str
    word: str
    text: str
    tone: Tone


def cut(text: str) -> str:
    """Return a text as it is shown."""
    display = visible(text)
    return display if len(display) <= LONGEST else f"{display[: LONGEST - 1]}…"
