from __future__ import annotations

import numpy as np
import pytest

from torchtriage.core.stats.median import median_interval, medians_of_others


def test_few_values_give_their_extremes() -> None:
    assert median_interval(np.array([7])) == (7, 7, 7)
    assert median_interval(np.array([3, 1, 2])) == (1, 2, 3)


def test_eight_values_leave_one_out_at_either_end() -> None:
    # P(Binomial(8, 1/2) <= 1) = 3.5 %, with one more 14.5 %
    assert median_interval(np.arange(8)) == (1, 3.5, 6)


def test_no_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_interval(np.array([]))


@pytest.mark.parametrize("n", [5, 8, 20, 101, 2500])
def test_the_true_median_is_missed_at_the_stated_rate(n: int) -> None:
    random = np.random.default_rng(n)
    n_trials = 2000 if n < 1000 else 300
    missed = 0
    for _ in range(n_trials):
        low, _, high = median_interval(random.exponential(size=n))
        missed += not low <= np.log(2) <= high
    # at most 10 %; the binomial's steps make it conservative for small n, three sigma of luck
    assert missed / n_trials <= 0.10 + 3 * np.sqrt(0.1 * 0.9 / n_trials)
    assert missed / n_trials >= 0.02 or n <= 20


def test_the_median_of_the_others_leaves_out_each_value_itself() -> None:
    for values in ([3.0, 1.0], [4.0, 1.0, 2.0], [5.0, 5.0, 1.0, 5.0], [7.0, 1.0, 3.0, 9.0, 3.0]):
        others = [np.median(np.delete(values, at)) for at in range(len(values))]
        assert medians_of_others(np.array(values)).tolist() == others
