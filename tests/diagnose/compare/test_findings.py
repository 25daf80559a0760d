from __future__ import annotations

from dataclasses import replace

import pytest
from tests.report.sample_result import problems

from torchtriage.core.finding import Cost, Crash, Finding, Frame, NotChecked, Place
from torchtriage.diagnose.compare.findings import keep_promise, match
from torchtriage.diagnose.compare.result import FindingChange, TimeChange
from torchtriage.diagnose.compare.sentences import promise_saved
from torchtriage.diagnose.verdict.result import Result

WHOLE = problems()
FIRST = WHOLE.findings[0]


def cost(low: float, high: float, naive: float | None = None) -> Cost:
    return Cost(low, high, "step", 100.0, low / 100, high / 100, naive or high, "bounded", "", "C")


def finding(code: str, low: float, high: float, place: Place | None = None, **more: float) -> Finding:
    where = place or Place(ops=("train", "aten::item"))
    return replace(FIRST, code=code, title=code, cost=cost(low, high, **more), place=where)


def result(*findings: Finding) -> Result:
    return replace(WHOLE, findings=findings)


def statuses(before: Result, after: Result) -> list[tuple[str, str]]:
    return [(one.status, one.code) for one in match(before, after)]


def total(before_ms: float, after_ms: float, half_ms: float | None = 1.0) -> TimeChange:
    delta = round((after_ms - before_ms) * 1e6)
    ends = (None, None) if half_ms is None else (delta - round(half_ms * 1e6), delta + round(half_ms * 1e6))
    return TimeChange(round(before_ms * 1e6), round(after_ms * 1e6), delta, *ends, told=True)


def whole(went: list[FindingChange]) -> TimeChange | None:
    """Say that no more is known than the whole step's change."""
    return None


def test_findings_went_came_and_stayed_the_costliest_first():
    before = result(finding("SYN001", 5, 10), finding("LCH014", 20, 30), finding("CPY007", 1, 4))
    after = result(finding("CPY007", 2, 5), finding("HST020", 1, 3))
    assert statuses(before, after) == [("went", "LCH014"), ("went", "SYN001"), ("came", "HST020"), ("stayed", "CPY007")]


def test_one_result_against_itself_has_only_stayed():
    assert {status for status, _ in statuses(WHOLE, WHOLE)} <= {"stayed"}


def test_what_is_left_below_the_limit_of_a_finding_that_was_large_counts_as_gone():
    before, after = result(finding("SYN001", 5, 10)), result(finding("SYN001", 0, 0.4))
    assert statuses(before, after) == [("went", "SYN001")]
    assert statuses(after, before) == [("came", "SYN001")]


def test_a_finding_around_the_limit_stays():
    before, after = result(finding("SYN001", 0, 1.1)), result(finding("SYN001", 0, 0.9))
    assert statuses(before, after) == [("stayed", "SYN001")]


def test_a_finding_that_only_became_cheap_to_keep_has_stayed():
    """A slow kernel behind a slower loader is free to keep, and no less slow."""
    before = result(finding("KRN022", 20, 30, naive=60.0))
    after = result(finding("KRN022", 0, 0.5, naive=58.0))
    assert statuses(before, after) == [("stayed", "KRN022")]


def test_two_places_of_one_code_are_two_findings():
    def at(function: str) -> Place:
        return Place(ops=("aten::item",), frame=Frame("train.py", 10, function))

    before = result(finding("SYN001", 5, 10, at("log")), finding("SYN001", 5, 9, at("loss")))
    after = result(finding("SYN001", 5, 10, at("loss")), finding("SYN001", 1, 2, at("clip")))
    found = match(before, after)
    assert [(one.status, one.place) for one in found] == [
        ("went", "train.py: log"),
        ("came", "train.py: clip"),
        ("stayed", "train.py: loss"),
    ]


def test_a_line_that_moved_is_the_same_place():
    def at(line: int) -> Place:
        return Place(frame=Frame("train.py", line, "step"))

    assert statuses(result(finding("SYN001", 5, 10, at(10))), result(finding("SYN001", 5, 10, at(14)))) == [
        ("stayed", "SYN001")
    ]


def test_without_stacks_one_code_at_other_operators_is_the_same_finding():
    before = result(finding("SYN001", 5, 10, Place(ops=("aten::item",))))
    after = result(finding("SYN001", 5, 10, Place(ops=("aten::is_nonzero",))))
    assert statuses(before, after) == [("stayed", "SYN001")]


@pytest.mark.parametrize(
    "looked",
    [
        {"not_checked": (NotChecked("KRN025", "attention-unfused", ("input shapes",), ""),)},
        {"crashes": (Crash("KRN025", "ValueError: odd"),)},
        {"checked": ("SYN001",)},  # by a release without the pattern
    ],
)
def test_what_the_other_run_was_not_checked_for_is_neither_gone_nor_new(looked):
    there, away = replace(result(finding("KRN025", 20, 30)), checked=("KRN025",)), replace(result(), **looked)
    assert statuses(there, away) == statuses(away, there) == [("unchecked", "KRN025")]
    assert keep_promise(match(there, away), total(100, 70), whole) is None


def test_what_is_seen_beside_the_patterns_is_gone_where_it_is_not_seen_again():
    # a run's looks at its stacks: which codes they look for is listed nowhere
    assert statuses(result(finding("HST114", 20, 30)), result()) == [("went", "HST114")]


@pytest.mark.parametrize(
    ("after_ms", "holds", "within"),
    [(85.0, True, True), (78.0, False, False), (80.0, True, True), (79.5, False, True), (99.0, False, False)],
)
def test_a_promise_is_checked_against_what_was_saved(after_ms, holds, within):
    before, after = result(finding("SYN001", 10, 15), finding("LCH014", 2, 5)), result()
    promise = keep_promise(match(before, after), total(100.0, after_ms), whole)
    assert promise is not None
    assert (promise.low_ms, promise.high_ms) == (12, 20)
    assert promise.measured_ms == pytest.approx(100 - after_ms)
    assert (promise.holds, promise.holds_within_noise) == (holds, within)


def test_without_an_interval_only_the_figure_itself_counts():
    found = match(result(finding("SYN001", 10, 15)), result())
    promise = keep_promise(found, total(100.0, 84.0, None), whole)
    assert promise is not None
    assert (promise.measured_low_ms, promise.holds, promise.holds_within_noise) == (None, False, False)


def test_no_promise_without_a_finding_that_went_and_had_a_cost():
    before = result(finding("SYN001", 10, 15))
    assert keep_promise(match(before, before), total(100, 90), whole) is None
    free = result(replace(FIRST, cost=None))
    assert keep_promise(match(free, result()), total(100, 90), whole) is None


def test_a_promise_is_held_against_what_it_is_about_not_the_whole_step():
    found = match(result(finding("SYN001", 10, 15)), result())
    promise = keep_promise(found, total(100.0, 99.0), lambda _went: total(20.0, 8.0))
    assert promise is not None
    assert (promise.measured_ms, promise.step_ms, promise.outcome) == (12.0, 1.0, "kept")


def test_nothing_is_said_of_a_promise_whose_time_did_not_change_beyond_the_noise():
    found = match(result(finding("SYN001", 10, 15)), result())
    promise = keep_promise(found, replace(total(100.0, 88.0), told=False), whole)
    assert promise is not None
    assert (promise.holds, promise.holds_within_noise, promise.outcome) == (False, False, "not checked")
    assert promise_saved(promise) == "not checked: no significant change of the step"
