"""A person at a terminal is asked until the review can be taken, and may skip or stop."""

from __future__ import annotations

from collections.abc import Sequence

from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.reviewer import INTERRUPTED, NONE, Outcome, silent
from torchtriage_benchmark.training.human_reviewer import Person


def review(*answers: str, n: int = 1) -> tuple[tuple[Outcome, ...], list[str]]:
    """Answer questions in turn; after the last answer the input ends, or Ctrl-C is pressed."""
    left, shown = list(answers), list[str]()
    end: type[BaseException] = EOFError
    if left and left[-1] == "^C":
        left.pop()
        end = KeyboardInterrupt

    def ask(question: str) -> str:
        shown.append(question)
        if not left:
            raise end
        return left.pop(0)

    lines = (EvidenceLine("e1", "window", "a window"), EvidenceLine("e2", "op", "an operator"))
    evidence: Sequence[Evidence] = [Evidence((0, 1), lines, ("LCH016",), True)] * n
    return Person("anna", ask, shown.append).review_all(evidence, silent), shown


def test_a_verdict_with_its_reason() -> None:
    (one,), shown = review("lch016", "e2 is slow, as e1 says", "90 %")
    assert one.review is not None
    assert (one.review.code, one.review.confidence) == ("LCH016", 0.9)
    assert (one.review.why, one.review.remark) == (("e2", "e1"), "e2 is slow, as e1 says")
    assert shown[0] == "\nwindow 1 of 1\ne1: a window\ne2: an operator"


def test_none_and_being_sure_need_few_words() -> None:
    (one,), _ = review("None", "nothing in e1", "")
    assert one.review is not None
    assert (one.review.code, one.review.confidence) == (NONE, 1.0)


def test_what_cannot_be_taken_is_asked_again() -> None:
    (one,), shown = review(
        "what", "?", "LCH016", "no ids", "", "LCH016", "e9", "", "LCH016", "e1", "lots", "LCH016", "e1", "80"
    )
    assert one.review is not None
    assert one.review.confidence == 0.8
    text = "\n".join(shown)
    for said in ("found 'what'", "LCH016 Parameters", "at least one id", "found 'e9'", "'lots'"):
        assert said in text


def test_skipping_and_stopping() -> None:
    outcomes, _ = review("s", "none", "e1", "", "q", n=4)
    assert [outcome.reason for outcome in outcomes] == ["skipped", "", INTERRUPTED, INTERRUPTED]


def test_the_end_of_input_stops() -> None:
    outcomes, _ = review("none", "e1", "", "none", n=3)
    assert [outcome.reason for outcome in outcomes] == ["", INTERRUPTED, INTERRUPTED]


def test_ctrl_c_keeps_what_was_judged() -> None:
    for answers in (("none", "e1", "", "^C"), ("none", "e1", "", "LCH016", "^C")):
        outcomes, _ = review(*answers, n=3)
        assert [outcome.reason for outcome in outcomes] == ["", INTERRUPTED, INTERRUPTED]
        assert outcomes[0].review is not None
