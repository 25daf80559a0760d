"""Looking after every pair costs no error rate, and saves half the pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from stopping import compare_sessions, stop
from tests.core.stats.noise import pairs

from torchtriage.core.stats import sequential
from torchtriage.core.stats.sequential import StoppingPlan
from torchtriage.core.stats.session_comparison import verdict


def run(plan: StoppingPlan, effect: float, rng: np.random.Generator, *, kind: str = "plain", min_effect: float = 0.01):
    """Return the verdict at which the plan stops, and after how many pairs."""
    return stop(*pairs(kind, plan.max_pairs, effect, rng), plan, min_effect)


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
    said = [run(plan, 0, rng, kind=kind)[0] for _ in range(n)]
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
    verdicts, n_pairs = zip(*(run(plan, 0.1, rng) for _ in range(100)), strict=True)
    assert set(verdicts) == {"regression"}
    assert np.mean(n_pairs) <= 11


def test_no_change_is_told_in_half_the_pairs_and_a_change_of_interest_is_seldom_missed() -> None:
    rng = np.random.default_rng(33)
    plan = StoppingPlan(max_pairs=20)
    verdicts, n_pairs = zip(*(run(plan, 0, rng, min_effect=0.05) for _ in range(100)), strict=True)
    assert verdicts.count("same") >= 95
    assert np.mean(n_pairs) <= 11
    worse = [run(plan, 0.05, rng, min_effect=0.05)[0] for _ in range(200)]
    assert worse.count("same") / 200 <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 200)


def test_power_is_hardly_less_than_with_all_pairs() -> None:
    rng = np.random.default_rng(34)
    plan = StoppingPlan(max_pairs=20)
    early = all_pairs = 0
    for _ in range(150):
        before, after = pairs("plain", 20, 0.04, rng)
        all_pairs += verdict(compare_sessions(before, after, paired=True), min_effect=0.01) == "regression"
        early += stop(before, after, plan)[0] == "regression"
    assert early >= all_pairs - 10


def test_every_look_is_stricter_than_the_plan_and_the_last_is_the_least_strict() -> None:
    plan = StoppingPlan(max_pairs=30)
    levels = [plan.level_at(n) for n in range(7, 31)]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] > plan.level


@pytest.mark.parametrize(
    "options", [{"max_pairs": 5}, {"first_pairs": 1}, {"level": 1.0}, {"miss": 0.0}, {"miss": 0.7}]
)
def test_plans_that_cannot_be_carried_out_are_refused(options) -> None:
    with pytest.raises(ValueError, match="expected"):
        StoppingPlan(**options)


def test_more_pairs_than_planned_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 7 to 10 pairs, found 11"):
        StoppingPlan(max_pairs=10).level_at(11)
