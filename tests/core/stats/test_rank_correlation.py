"""Spearman's rho against SciPy's definition by hand, and what its interval promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchtriage.core.stats.rank_correlation import MIN_PAIRS, rank_correlation


def test_what_rises_together_in_any_shape_has_one() -> None:
    x = np.arange(12.0)
    assert rank_correlation(x, np.exp(x)) == (1.0, 1.0, 1.0)
    assert rank_correlation(x, -(x**3)).rho == -1.0


def test_ties_take_the_mean_of_their_ranks() -> None:
    one = np.array([1, 1, 1, 2, 2, 3, 4, 5, 6, 7], dtype=float)
    other = np.array([2, 1, 4, 3, 5, 5, 8, 7, 6, 9], dtype=float)
    ranks = [[2, 2, 2, 4.5, 4.5, 6, 7, 8, 9, 10], [2, 1, 4, 3, 5.5, 5.5, 9, 8, 7, 10]]
    assert rank_correlation(one, other).rho == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    r = 0.6
    truth = 6 / math.pi * math.asin(r / 2)  # of normal pairs with this correlation
    held = 0
    for _ in range(2000):
        x, noise = random.standard_normal((2, 30))
        found = rank_correlation(x, r * x + math.sqrt(1 - r * r) * noise)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 2000 <= 0.97


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (np.arange(MIN_PAIRS - 1.0), np.arange(MIN_PAIRS - 1.0), "10 or more pairs, found 9"),
        (np.arange(12.0), np.arange(11.0), "found 11"),
        (np.ones(12), np.arange(12.0), "one side are equal"),
        (np.arange(12.0), np.full(12, math.nan), "finite"),
    ],
)
def test_what_cannot_be_told_is_refused(one: np.ndarray, other: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rank_correlation(one, other)
