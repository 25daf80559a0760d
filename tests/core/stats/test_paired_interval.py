"""Runs taken in turns: what the rounds share cancels, and the error rate is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from torchtriage.core.stats.difference import student_quantile
from torchtriage.core.stats.paired_interval import ratio_of_pairs

N_TRIALS = 2000


def test_a_drift_that_both_share_cancels():
    drift = np.array([1.0, 1.5, 2.0, 4.0])
    ratio = ratio_of_pairs(10 * drift, 8 * drift)
    assert ratio.value == pytest.approx(0.8)
    assert ratio.high - ratio.low == pytest.approx(0, abs=1e-9)


def test_swapping_the_sides_mirrors_the_answer():
    rng = np.random.default_rng(1)
    one, other = rng.uniform(1, 2, (2, 6))
    there, back = ratio_of_pairs(one, other), ratio_of_pairs(other, one)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


def test_two_rounds_have_no_interval():
    ratio = ratio_of_pairs(np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    assert ratio.value == pytest.approx(2)
    assert np.isnan(ratio.low)
    assert np.isnan(ratio.high)


def test_it_is_the_paired_t_interval_of_the_logarithms():
    before, after = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0, 4.0])
    # logs of the ratios: ln 2, 0, 0
    mean, sd = np.log(2) / 3, np.log(2) / np.sqrt(3)
    high = np.exp(mean + student_quantile(0.975, 2) * sd / np.sqrt(3))
    assert ratio_of_pairs(before, after).high == pytest.approx(high)
    assert student_quantile(0.975, 2) == pytest.approx(4.3027, abs=1e-3)


def trial(rng: np.random.Generator, n: int, skewed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return runs of equal programs on a machine that drifts and is disturbed now and then."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.03, n)))
    noise = rng.exponential(0.03, (2, n)) if skewed else rng.normal(0, 0.03, (2, n))
    return drift * np.exp(noise[0]), drift * np.exp(noise[1])


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_equal_programs_are_told_apart_as_seldom_as_it_says(n, skewed):
    rng = np.random.default_rng(n)
    wrong = 0
    for _ in range(N_TRIALS):
        _, low, high = ratio_of_pairs(*trial(rng, n, skewed))
        wrong += not low <= 1 <= high
    assert 0.02 <= wrong / N_TRIALS <= 0.065


@pytest.mark.parametrize(("level", "most"), [(0.95, 0.095), (0.98, 0.055)])
def test_stopping_when_it_is_narrow_enough_costs_what_the_page_says(level, most):
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(N_TRIALS):
        before, after = trial(rng, 15, skewed=False)
        for n in range(5, 16):
            _, low, high = ratio_of_pairs(before[:n], after[:n], level=level)
            if high - low < 0.05:
                break
        wrong += not low <= 1 <= high
    assert wrong / N_TRIALS <= most


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([float("nan")], [1.0])])
def test_what_is_no_pair_of_series_is_refused(before, after):
    with pytest.raises(ValueError, match="expected"):
        ratio_of_pairs(np.array(before), np.array(after))
