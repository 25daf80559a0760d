"""Looking after every pair costs no error rate, and saves half the pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.core.stats.noise import pairs

from torchtriage.core.stats import sequential
from torchtriage.core.stats.sequential import StoppingPlan, decide
from torchtriage.core.stats.session_comparison import compare_sessions, verdict


def run(plan: StoppingPlan, kind: str, effect: float, rng: np.random.Generator, **options):
    """Return the decision at which the plan stops."""
    before, after = pairs(kind, plan.max_pairs, effect, rng)
    for n in range(plan.first_pairs, plan.max_pairs + 1):
        decision = decide(before[:n], after[:n], plan, **options)
        if decision.stop:
            return decision
    raise AssertionError("the plan does not end")


@pytest.mark.parametrize(
    ("shape", "value"),
    # Jennison and Turnbull (2000), tables 2.1, 2.3 and 2.9: five looks, 5 % two-sided
    [(0.5, 2.413), (0.0, 2.040), (0.25, 2.136)],
)
def test_bounds_are_those_of_the_book(monkeypatch, shape: float, value: float) -> None:
    monkeypatch.setattr(sequential, "SHAPE", shape)
    sequential._bound.cache_clear()
    assert sequential._bound(1, 5, 0.025) == pytest.approx(value, abs=1e-3)
    sequential._bound.cache_clear()


@pytest.mark.parametrize("kind", ["plain", "heavy tails", "remembers"])
def test_all_looks_together_keep_the_error_rate(kind: str) -> None:
    rng = np.random.default_rng(31)
    plan, n = StoppingPlan(max_pairs=16), 250
    said = [run(plan, kind, 0, rng).verdict for _ in range(n)]
    # 1 % are 2.5; eight or more once in 200 times
    assert said.count("regression") <= 7
    assert said.count("improvement") <= 7


def test_stopping_at_the_level_of_one_look_would_be_wrong_several_times_as_often() -> None:
    rng = np.random.default_rng(31)
    false = 0
    for _ in range(250):
        before, after = pairs("plain", 20, 0, rng)
        false += any(compare_sessions(before[:n], after[:n], paired=True).low > 1 for n in range(7, 21))
    assert false > 7


def test_a_large_change_needs_half_the_pairs() -> None:
    rng = np.random.default_rng(32)
    plan = StoppingPlan(max_pairs=20)
    stopped = [run(plan, "plain", 0.1, rng) for _ in range(100)]
    assert all(one.verdict == "regression" for one in stopped)
    assert np.mean([one.change.n_before for one in stopped]) <= 11


def test_no_change_is_told_in_half_the_pairs_and_a_change_of_interest_is_seldom_missed() -> None:
    rng = np.random.default_rng(33)
    plan = StoppingPlan(max_pairs=20, min_effect=0.05)
    equal = [run(plan, "plain", 0, rng) for _ in range(100)]
    assert sum(one.verdict == "same" for one in equal) >= 95
    assert np.mean([one.change.n_before for one in equal]) <= 11
    worse = [run(plan, "plain", 0.05, rng).verdict for _ in range(200)]
    assert worse.count("same") / 200 <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 200)


def test_power_is_hardly_less_than_with_all_pairs() -> None:
    rng = np.random.default_rng(34)
    plan = StoppingPlan(max_pairs=20)
    early = all_pairs = 0
    for _ in range(150):
        before, after = pairs("plain", 20, 0.04, rng)
        all_pairs += verdict(compare_sessions(before, after, paired=True), min_effect=0.01) == "regression"
        early += any(decide(before[:n], after[:n], plan).verdict == "regression" for n in range(7, 21))
    assert early >= all_pairs - 10


def test_every_look_is_stricter_than_the_plan_and_the_last_is_the_least_strict() -> None:
    plan = StoppingPlan(max_pairs=30)
    levels = [plan.level_at(n) for n in range(7, 31)]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] > plan.level


def test_before_the_first_look_nothing_is_said() -> None:
    decision = decide(*pairs("plain", 5, 1.0, np.random.default_rng(0)), StoppingPlan())
    assert decision == (False, "inconclusive", None, 2)


def test_the_last_look_stops_and_says_how_many_more() -> None:
    before, after = pairs("plain", 8, 0.01, np.random.default_rng(2))
    decision = decide(before, after, StoppingPlan(max_pairs=8, min_effect=0.02))
    assert decision.stop
    assert decision.verdict == "inconclusive"
    assert decision.n_more > 5


def test_more_is_better_for_throughput() -> None:
    rng = np.random.default_rng(5)
    plan = StoppingPlan()
    assert run(plan, "plain", -0.2, rng, better="higher").verdict == "regression"
    assert run(plan, "plain", 0.3, rng, better="higher").verdict == "improvement"


@pytest.mark.parametrize(
    "options", [{"max_pairs": 5}, {"first_pairs": 1}, {"level": 1.0}, {"miss": 0.0}, {"miss": 0.7}]
)
def test_plans_that_cannot_be_carried_out_are_refused(options) -> None:
    with pytest.raises(ValueError, match="expected"):
        StoppingPlan(**options)


def test_more_pairs_than_planned_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 7 to 10 pairs, found 11"):
        decide(*pairs("plain", 11, 0, np.random.default_rng(0)), StoppingPlan(max_pairs=10))
