"""What lint and a trace both see is certain; what only one sees says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchtriage.core.finding import Cost, Finding, Fix, Frame, Place
from torchtriage.diagnose.lint import lint_text
from torchtriage.diagnose.lint.result import LintResult
from torchtriage.diagnose.lint.trace_match import AGREES, ELSEWHERE, FREE, UNCHECKED, UNPLACED, join
from torchtriage.diagnose.verdict.result import Result, TraceFacts

TEXT = """import torch
def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch.cuda(non_blocking=True)).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
        seen += int(loss)
"""

COST = Cost(1.0, 2.0, "step", 10.0, 0.1, 0.2, 3.0, "measured", "test", "A")
FACTS = TraceFacts("t.json", 1, 1, 1, "strict", 0, 0, (), "cuda", (), (), None, None, None, 1, {}, {})


def linted() -> LintResult:
    return lint_text(TEXT, "project/train.py")


def traced(*frames: Frame | None, code: str = "SYN001", checked: tuple[str, ...] = ()) -> Result:
    findings = tuple(
        Finding(code, "n", "sync", "t", "high", "likely", "m", Place(frame=frame), COST, {}, Fix("f"))
        for frame in frames
    )
    return Result("torchtriage/1", "0", ("", "", ""), False, False, FACTS, (), None, findings, (), (), None, checked)


def test_source_alone_is_a_hint() -> None:
    assert {(finding.certainty, finding.cost) for finding in linted().findings} == {("hint", None)}


def test_the_exact_line_makes_one_of_two_certain() -> None:
    frame = Frame("/home/me/project/train.py", 7, "train", exact=True, called="item")
    first, second = join(linted(), traced(frame)).findings
    assert (first.certainty, first.cost, first.evidence["trace"]) == ("certain", COST, AGREES)
    assert first.severity == "high"
    assert (second.certainty, second.cost) == ("hint", None)
    assert second.evidence["trace"] == ELSEWHERE


def test_the_function_makes_both_certain_and_they_share_the_cost() -> None:
    result = join(linted(), traced(Frame("train.py", 2, "train")))
    assert [finding.certainty for finding in result.findings] == ["certain", "certain"]
    assert [finding.evidence["cost_shared_by"] for finding in result.findings] == [2, 2]
    assert result.trace_only == ()


@pytest.mark.parametrize(
    "frame",
    [
        Frame("other/train.py", 2, "train"),
        Frame("train.py", 2, "evaluate"),
        Frame("train.py", 9, "train", exact=True),
        Frame("strain.py", 2, "train"),
    ],
)
def test_another_place_is_no_agreement(frame: Frame) -> None:
    result = join(linted(), traced(frame))
    assert {finding.certainty for finding in result.findings} == {"hint"}
    assert [one.code for one in result.trace_only] == ["SYN001"]


def test_a_trace_without_places_makes_it_likely() -> None:
    result = join(linted(), traced(None))
    assert {(finding.certainty, finding.evidence["trace"]) for finding in result.findings} == {("likely", UNPLACED)}
    assert {finding.cost for finding in result.findings} == {None}


def test_free_and_unchecked_are_told_apart() -> None:
    said = [
        {finding.evidence["trace"] for finding in join(linted(), traced(checked=checked)).findings}
        for checked in (("SYN001",), ())
    ]
    assert said == [{FREE}, {UNCHECKED}]


def test_findings_of_the_trace_that_no_rule_is_about_are_not_listed() -> None:
    assert join(linted(), traced(None, code="LCH014")).trace_only == ()
    missed = join(linted(), traced(None, code="MEM028")).trace_only
    assert [one.code for one in missed] == ["MEM028"]


def test_a_frame_up_the_stack_counts() -> None:
    trace = traced(Frame("torch/_tensor.py", 1, "item"))
    stack = (Frame("train.py", 2, "train"),)
    finding = replace(trace.findings[0], place=replace(trace.findings[0].place, stack=stack))
    result = join(linted(), replace(trace, findings=(finding,)))
    assert {one.certainty for one in result.findings} == {"certain"}


def test_what_one_process_shows_stays_when_another_does_not() -> None:
    one = traced(Frame("train.py", 7, "train", exact=True))
    result = join(join(linted(), one), traced(checked=("SYN001",)))
    first, second = result.findings
    assert (first.certainty, first.cost) == ("certain", COST)
    assert (second.certainty, second.evidence["trace"]) == ("hint", FREE)
    assert result.trace == "t.json, t.json"
