from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from torchtriage.core.stats import rank_tests
from torchtriage.core.stats.rank_tests import centre_and_interval, rank_sum_below, signed_rank_below, two_sided_p


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_signed_ranks_are_those_of_all_signs(n: int) -> None:
    sums = [sum(itertools.compress(range(1, n + 1), s)) for s in itertools.product([0, 1], repeat=n)]
    expected = [np.mean(np.array(sums) <= t) for t in range(n * (n + 1) // 2 + 1)]
    np.testing.assert_allclose(signed_rank_below(n), expected)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 3), (1, 6)])
def test_rank_sums_are_those_of_all_orders(n: int, m: int) -> None:
    counts = []
    for first in itertools.combinations(range(n + m), n):
        second = set(range(n + m)) - set(first)
        counts.append(sum(a < b for a in first for b in second))
    expected = [np.mean(np.array(counts) <= u) for u in range(n * m + 1)]
    np.testing.assert_allclose(rank_sum_below(n, m), expected)


def test_critical_values_are_those_of_the_tables() -> None:
    # Wilcoxon and Wilcox (1964), one-sided 1 %: n = 10 -> 5, n = 20 -> 43
    for n, critical in ((10, 5), (20, 43)):
        assert signed_rank_below(n)[critical] <= 0.01 < signed_rank_below(n)[critical + 1]
    # Mann and Whitney, one-sided 1 %: 10 and 10 -> 19
    assert rank_sum_below(10, 10)[19] <= 0.01 < rank_sum_below(10, 10)[20]


def test_many_values_are_normal_to_three_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = signed_rank_below(200), rank_sum_below(40, 50)
    for one in (signed_rank_below, rank_sum_below):
        one.cache_clear()
    monkeypatch.setattr(rank_tests, "EXACT_PAIRS", 100)
    monkeypatch.setattr(rank_tests, "EXACT_PRODUCT", 100)
    for true, near in zip(exact, (signed_rank_below(200), rank_sum_below(40, 50)), strict=True):
        seen = true > 1e-4
        np.testing.assert_allclose(near[seen], true[seen], rtol=0.05, atol=5e-4)
    for one in (signed_rank_below, rank_sum_below):
        one.cache_clear()


def test_the_interval_excludes_zero_exactly_where_the_test_rejects() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.standard_normal(9) + 0.7
        one, other = np.triu_indices(9)
        shifts = (values[one] + values[other]) / 2
        _, low, high = centre_and_interval(shifts, signed_rank_below(9), 0.98)
        assert (low > 0 or high < 0) == (two_sided_p(shifts, signed_rank_below(9)) <= 0.02)


def test_too_few_values_have_no_interval() -> None:
    centre, low, high = centre_and_interval(np.array([1.0]), signed_rank_below(1), 0.98)
    assert centre == 1
    assert math.isnan(low)
    assert math.isnan(high)
