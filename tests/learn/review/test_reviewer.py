"""Reviews that are offline: what the rules and the detector say, weighed, with evidence."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from torchtriage.api import traces
from torchtriage.diagnose.detector.features import windows
from torchtriage.diagnose.patterns import catalogue, lookup
from torchtriage.diagnose.verdict.verdict import diagnose
from torchtriage.learn.review import prompt
from torchtriage.learn.review.evidence import Evidence, EvidenceLine, gather
from torchtriage.learn.review.reviewer import NONE, Outcome, formed, silent
from torchtriage.learn.review.rule_reviewer import Offline

CODES = tuple(entry.pattern.code for entry in catalogue())


def evidence(
    *rules: tuple[str, float, str],
    probability: float | None = None,
    types: dict[str, float] | None = None,
    unusual: bool = False,
    confident: bool = True,
) -> Evidence:
    lines = [EvidenceLine("e1", "window", "window of 1 ms")]
    lines += [
        EvidenceLine(f"e{at}", "finding", f"rule {code}", {"code": code, "share": share, "certainty": certainty})
        for at, (code, share, certainty) in enumerate(rules, 2)
    ]
    if probability is not None:
        facts: dict[str, Any] = {"probability": probability, "types": types or {}}
        lines.append(
            EvidenceLine(
                f"e{len(lines) + 1}", "detector", "detector", {**facts, "unusual": unusual, "confident": confident}
            )
        )
    return Evidence((0, 1), tuple(lines), CODES, True)


def test_without_evidence_it_is_none() -> None:
    one = Offline().review(evidence())
    assert one.code == NONE
    assert one.confidence > 0.5
    assert one.why == ("e1",)


@pytest.mark.parametrize(
    ("share", "certainty", "found"),
    [
        (1, "certain", True),
        (1, "likely", True),
        (1, "hint", True),
        (0.5, "certain", True),
        (0.5, "hint", False),
        (0.1, "certain", False),
    ],
)
def test_a_rule_counts_by_its_cover_and_certainty(share: float, certainty: str, found: bool) -> None:
    one = Offline().review(evidence(("LCH016", share, certainty)))
    assert (one.code == "LCH016") is found
    assert (one.why[0] == "e2") is found
    assert (one.against == ("e2",)) is not found


def test_the_detector_tips_the_scales_and_never_a_certain_rule() -> None:
    hint = ("LCH016", 0.5, "hint")
    assert Offline().review(evidence(hint, probability=0.6)).code == "LCH016"
    assert Offline().review(evidence(hint, probability=0.01)).code == NONE
    assert Offline().review(evidence(("LCH016", 1, "hint"), probability=0.01)).code == NONE
    certain = evidence(("LCH016", 1, "certain"), probability=0.0)
    assert Offline().review(certain).code == "LCH016"


def test_the_detector_names_what_no_rule_has_found() -> None:
    told = evidence(probability=0.95, types={"CPY013": 0.7, "LCH017": 0.2})
    one = Offline().review(told)
    assert one.code == "CPY013"
    assert one.why[0] == "e2"
    unnamed = Offline().review(evidence(probability=0.95))
    assert (unnamed.code, unnamed.confidence < 0.5) == (NONE, True)


def test_a_rule_that_covers_little_does_not_name_what_the_detector_saw() -> None:
    hint = ("SYN001", 0.01, "hint")
    one = Offline().review(evidence(hint, probability=0.99, types={"LCH016": 0.98}))
    assert one.code == "LCH016"
    assert one.confidence > 0.9
    assert one.why[0] == "e3"
    sure = ("SYN001", 1.0, "certain")
    for types in ({"LCH016": 1.0}, {"ALC001": 1.0}, {"XYZ999": 1.0}):
        two = Offline().review(evidence(sure, probability=0.999, types=types))
        assert two.code == "SYN001"


def test_the_detectors_vote_counts_for_the_type_it_means() -> None:
    rule = ("SYN001", 0.5, "certain")
    alone = Offline().review(evidence(rule))
    other = Offline().review(evidence(rule, probability=0.9, types={"LCH016": 0.4}))
    same = Offline().review(evidence(rule, probability=0.9, types={"SYN001": 0.9}))
    assert alone.code == other.code == same.code == "SYN001"
    assert alone.confidence == other.confidence < same.confidence
    torn = evidence(probability=0.95, types={"LCH016": 0.3, "DAT018": 0.29, "SYN001": 0.28})
    assert Offline().review(torn).code == "LCH016"
    assert Offline().review(torn).confidence < 0.5


def test_a_window_unlike_all_is_left_to_the_rules() -> None:
    told = evidence(probability=0.95, types={"CPY013": 0.9}, unusual=True)
    assert Offline().review(told).code == NONE


def test_of_two_rules_the_one_that_covers_more_is_named() -> None:
    one = Offline().review(evidence(("LCH016", 0.4, "certain"), ("DAT018", 0.9, "certain")))
    assert one.code == "DAT018"
    assert one.why[0] == "e3"


def test_every_offline_review_has_the_form_of_a_models() -> None:
    trace = traces.load(traces.sample_path())
    findings = diagnose(trace).findings
    told = [gather(trace, findings, tuple(window), probability=0.5) for window in windows(trace)]
    outcomes = Offline().review_all(told, silent)
    assert {one.review.code for one in outcomes if one.review} >= {NONE, "DAT018", "LCH016"}
    for outcome in outcomes:
        assert outcome.review is not None
        reply = json.loads(json.dumps(asdict(outcome.review)))
        assert formed(reply, outcome.evidence) == outcome.review


def test_every_code_can_be_said_offline() -> None:
    for code in CODES:
        assert Offline().review(evidence((code, 1.0, "certain"))).code == code


def test_a_rule_that_found_the_fault_elsewhere_is_shown_against_it() -> None:
    told = evidence(probability=0.99, types={"DAT018": 0.99})
    elsewhere = EvidenceLine("e3", "elsewhere", "rule DAT018, not in this window", {"code": "DAT018"})
    other = replace(told, lines=(*told.lines, elsewhere))
    assert Offline().review(told).against == ()
    assert Offline().review(other).against == ("e3",)


def test_a_type_that_the_detector_is_not_sure_of_counts_half() -> None:
    told = evidence(probability=0.95, types={"DAT018": 0.9})
    unsure = evidence(probability=0.95, types={"DAT018": 0.9}, confident=False)
    sure = Offline().review(told).confidence
    assert Offline().review(unsure).code == "DAT018"
    assert 0.5 < Offline().review(unsure).confidence < 0.6 < 0.85 < sure


def test_each_outcome_is_told() -> None:
    told: list[tuple[int, Outcome]] = []
    outcomes = Offline().review_all([evidence()] * 3, lambda *one: told.append(one))
    assert told == list(enumerate(outcomes))


# -- what a model is sent --------------------------------------------------------------------------


def test_the_prompt_has_the_evidence_between_marks_that_it_cannot_hold() -> None:
    one = evidence(("LCH016", 1.0, "certain"))
    system, user = prompt.messages(one)
    assert "LCH016 optimizer-per-tensor" in system["content"]
    begin, *lines, end, _, last = user["content"].splitlines()
    assert "\n".join(lines) == one.text
    digest = begin.split()[2]
    assert end == f"=== end of evidence {digest} ==="
    assert digest not in one.text
    assert last == "Review this window."


def test_the_prompt_has_the_whole_page_of_what_may_be_there_and_titles_of_the_rest() -> None:
    system = prompt.messages(evidence(("LCH016", 1.0, "certain")))[0]["content"]
    page = lookup("LCH016").page.replace("``", "`").strip()
    assert page in system
    assert "Looks like:" not in system.replace(page, "")
    assert all(code in system for code in CODES)


def test_braces_of_a_name_are_no_part_of_the_prompt() -> None:
    lines = (EvidenceLine("e1", "op", "{codes} {digest} {evidence}"),)
    _, user = prompt.messages(Evidence((0, 1), lines, ("LCH016",), False))
    assert "e1: {codes} {digest} {evidence}" in user["content"]
