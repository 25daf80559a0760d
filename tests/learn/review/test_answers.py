"""A model says a code and cites lines: honest answers are taken, and no word that it writes reaches a report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchtriage.diagnose.patterns import catalogue
from torchtriage.learn.review.evidence import Evidence, EvidenceLine
from torchtriage.learn.review.llm_reviewer import _parse, _Reply
from torchtriage.learn.review.relevance import _terms, bears_on
from torchtriage.learn.review.result import collect
from torchtriage.learn.review.reviewer import MAX_LINES, NONE, Outcome, RejectedError, Review, check
from torchtriage.learn.review.window_selection import Suspect
from torchtriage.report.documents.review import document

ANSWERS = Path(__file__).parent / "answers"


def answers(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_bytes())


WINDOWS = {
    name: Evidence(
        tuple(one["window_ns"]), tuple(EvidenceLine(**line) for line in one["lines"]), tuple(one["codes"]), True
    )
    for name, one in answers("windows").items()
}
HONEST, HOSTILE = answers("honest"), answers("hostile")


def as_lines(reply: str) -> dict[str, Any]:
    """Return an answer in sentences as one that cites their lines; the sentences ride along in fields of all names."""
    told = _parse(_Reply(reply))
    why = [item for sentence in told["why"] for item in sentence["evidence"]]
    texts = " ".join(str(sentence["text"]) for sentence in (*told["why"], *told.get("advice", [])))
    return {
        **told,
        "why": list(dict.fromkeys(why))[:MAX_LINES],
        **dict.fromkeys(("remark", "text", "advice", "title", "meaning", "fix", "evidence"), texts),
    }


def report(review: Review, evidence: Evidence) -> str:
    result = collect(
        [(Suspect(evidence.window_ns, 1.0, ""), Outcome(evidence, review))],
        [],
        path="t.json",
        reviewer="llm/tiny",
        chosen_by="the rules",
        redacted=True,
        n_windows=1,
        begin_ns=0,
    )
    return repr(document(result))


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_sentences_are_no_answer(number: int) -> None:
    one = HOSTILE[number]
    with pytest.raises(RejectedError):
        check(_parse(_Reply(one["reply"])), WINDOWS[one["window"]])


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_word_of_a_model_reaches_the_report(number: int) -> None:
    one = HOSTILE[number]
    evidence = WINDOWS[one["window"]]
    try:
        told = as_lines(one["reply"])
        review = check(told, evidence)
    except (RejectedError, KeyError, TypeError):
        return
    assert review.remark == ""
    silent = check({key: told[key] for key in ("code", "confidence", "why")}, evidence)
    assert report(review, evidence) == report(silent, evidence)


def test_what_is_honest_is_taken() -> None:
    for one in HONEST:
        review = check({**one, "confidence": 0.9}, WINDOWS[one["window"]])
        assert (review.code, review.why) == (one["code"], tuple(one["why"]))


def test_each_line_stands_in_the_report_as_it_was_shown() -> None:
    one = HONEST[0]
    evidence = WINDOWS[one["window"]]
    text = report(check({**one, "confidence": 0.9}, evidence), evidence)
    lines = {line.id: line.text for line in evidence.lines}
    assert all(repr(lines[item])[1:-1] in text for item in one["why"])


def test_a_rule_that_found_it_elsewhere_speaks_against_it() -> None:
    lines = (
        EvidenceLine("e1", "op", '"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" 1 x'),
        EvidenceLine("e2", "elsewhere", "rule DAT018 x (likely), not in this window", {"code": "DAT018"}),
    )
    evidence = Evidence((0, 1), lines, ("DAT018",), True)
    told = {"code": "DAT018", "confidence": 0.9, "why": ["e1"]}
    assert check(told, evidence).against == ("e2",)
    assert check({**told, "why": ["e1", "e2"]}, evidence).against == ()


def test_a_line_bears_on_a_code() -> None:
    def line(kind: Any, text: str, **facts: Any) -> EvidenceLine:
        return EvidenceLine("e1", kind, text, facts)

    assert bears_on(line("finding", "rule LCH016", code="LCH016"), "LCH016")
    assert not bears_on(line("finding", "rule LCH016", code="LCH016"), "DAT018")
    assert not bears_on(line("elsewhere", "rule LCH016 optimizer"), "LCH016")
    assert bears_on(line("detector", "x", types={"DAT018": 0.4}), "DAT018")
    assert bears_on(line("op", '"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" 1 x'), "DAT018")
    assert not bears_on(line("op", '"aten::conv2d" 1 x, 17.1 ms'), "COM035")
    assert bears_on(line("op", '"aten::cat" 16 x, 17.1 ms'), "CPY013")
    assert not bears_on(line("op", '"aten::cat" 16 x, 17.1 ms'), "COM035")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("HST055", "the whole step, mean of 3, 1.05 s on the device: computes 6.8 %, idle, the host being late 93 %"),
        ("COM035", "the whole step, mean of 5, 133 ms on the device: computes 75 %, idle, the host being late 22 %"),
        ("HST054", "launched by 7 calls, 2.81 per ms of the window; from a launch to its start on the device 6.00 µs"),
        ("KRN024", 'on the device "volta_scudnn_128x128_stridedB_splitK_small_nn_v1" 6 x, 2.75 ms'),
        ("CPY008", "device: 7 kernels, copies and sets; idle 99 % of the window"),
        ("SYN001", '"aten::item" 1 x, 37.0 µs, 1.5 % of the window'),
        ("DAT112", '"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" 1 x'),
        ("OPT040", '"Optimizer.zero_grad#SGD.zero_grad" 1 x, 512 µs'),
        ("COM037", '"c10d::broadcast_" 12 x, 300 µs'),
    ],
)
def test_what_measures_a_fault_bears_on_it(code: str, text: str) -> None:
    assert bears_on(EvidenceLine("e1", "op", text), code)
    assert not bears_on(EvidenceLine("e1", "op", "the device runs the kernels that the host calls in a step"), code)


def test_no_code_is_left_without_words() -> None:
    titles = {entry.pattern.code: entry.pattern.title for entry in catalogue()}
    assert [code for code, text in titles.items() if not bears_on(EvidenceLine("e1", "op", text), code)] == []


def test_no_operator_bears_on_many_codes() -> None:
    text = '"aten::add" 1 x, 13.5 µs, 2.7 % of the window, the longest of shapes [4,197,768] [4,197,768]'
    codes = [entry.pattern.code for entry in catalogue()]
    assert [code for code in codes if bears_on(EvidenceLine("e1", "op", text), code)] == []
    terms = Counter(term for code in codes for one in _terms(code) for term in one)
    assert max(terms.values()) < len(codes) / 5


def test_a_code_needs_a_line_that_bears_on_it() -> None:
    evidence = WINDOWS["sample_0"]
    told = {"code": "COM035", "confidence": 1.0, "why": ["e1"]}
    if "COM035" not in evidence.codes:
        evidence = replace(evidence, codes=(*evidence.codes, "COM035"))
    with pytest.raises(RejectedError, match="no answer"):
        check(told, evidence)
    assert check({**told, "code": NONE}, evidence).code == NONE
