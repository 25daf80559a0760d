"""A language model asked anything whose answer can be checked, with the cap, cache and timeouts of reviews."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torchtriage.learn.review.llm_reviewer import Llm
from torchtriage.learn.review.reviewer import INTERRUPTED, RejectedError, silent


class Asked(Protocol):
    """``form`` : the JSON Schema of an answer. ``redacted`` : only public names are in it."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """What is sent."""

    @property
    def form(self) -> dict[str, Any]:
        """The JSON Schema of an answer."""

    @property
    def redacted(self) -> bool:
        """Whether only public names are in it."""

    def problem(self, answer: Any) -> str:
        """Return why an answer cannot be taken, in words that may be sent back; empty where it can."""


class AskingLlm(Llm):
    """Asks a model each question."""

    noun = "finding"
    _sent = "the source around"

    def ask(self, questions: Sequence[Asked]) -> list[tuple[Any, str]]:
        """Return for each question the answer, or None and why there is none.

        Raises KeyboardInterrupt: whoever waited had enough.
        """
        outcomes = self.review_all(questions, silent)
        if any(outcome.reason == INTERRUPTED for outcome in outcomes):
            raise KeyboardInterrupt
        return [(outcome.review, outcome.reason) for outcome in outcomes]

    def _messages(self, evidence: Asked) -> list[dict[str, str]]:
        return evidence.messages

    def _schema(self, evidence: Asked) -> dict[str, Any]:
        return evidence.form

    def _check(self, answer: Any, evidence: Asked) -> Any:
        problem = evidence.problem(answer)
        if problem:
            raise RejectedError(problem, type(answer).__name__)
        return answer
