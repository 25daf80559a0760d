"""Promises held against the emulated device: the fix is made, the program runs again."""

import pytest
from replay_accuracy import Sample, Scores, asked, emulated, in_virtual_time, score

FIXED = Sample(n_random=16, n_mixed=6, n_deep=1)
ASKED = Sample(n_random=8, n_mixed=6, n_deep=1)


@pytest.fixture(scope="module")
def cases():
    return emulated(FIXED, in_virtual_time)


@pytest.fixture(scope="module")
def scores(cases) -> Scores:
    return score(cases)


def test_the_sample_is_large_enough_to_judge(scores):
    assert scores.n_cases >= 150
    assert scores.n_large >= 25
    assert scores.n_small >= 60
    assert scores.n_pairs >= 150


def test_the_step_after_the_fix_is_as_long_as_predicted(scores):
    assert scores.error_median <= 0.02
    assert scores.error_p95 <= 0.05


def test_the_best_fix_is_named(scores):
    assert scores.best_named >= 0.95


def test_little_is_promised_where_little_is_to_be_had(scores):
    assert scores.false_promises <= 0.05


def test_the_measured_saving_is_inside_the_promised_interval(scores):
    assert scores.inside >= 0.80
    assert scores.inside_printed >= 0.80


def test_the_rarer_kinds_are_told_apart_too(cases):
    mixed = score([case for case in cases if case.program.startswith("mixed")])
    assert mixed.error_p95 <= 0.02
    assert mixed.n_refused == 0


def test_summing_durations_fails_all_of_it(cases):
    """Otherwise the programs would be too easy to tell a model from a sum."""
    naive = score([case.as_naive() for case in cases])
    assert naive.error_p95 > 0.05
    assert naive.best_named < 0.95
    assert naive.false_promises > 0.05
    assert naive.inside < 0.80


@pytest.mark.parametrize("kind", ["sync", "copy", "kernel", "host", "comm", "loader", "launch"])
def test_no_kind_of_fix_is_left_out_of_the_bar(cases, kind):
    mine = score([case for case in cases if case.kind == kind])
    assert mine.error_median <= 0.02


@pytest.fixture(scope="module")
def questions():
    return asked(ASKED)


def test_questions_by_hand_are_answered_by_what_happens(questions):
    scores = score(questions)
    assert scores.n_cases >= 60
    assert scores.error_median <= 0.02
    assert scores.error_p95 <= 0.05
    assert score([case.as_naive() for case in questions]).error_p95 > 0.20


@pytest.mark.parametrize("text", ["gpu*0.5", "cpu*0.5", "launch=0", "copy*0.5", "no-sync"])
def test_no_question_is_left_out_of_the_bar(questions, text):
    assert score([case for case in questions if case.fix == text]).error_median <= 0.02
