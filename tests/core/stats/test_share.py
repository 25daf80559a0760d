from __future__ import annotations

import numpy as np
import pytest

from torchtriage.core.stats.share import share_interval


def test_all_and_none_are_not_certain() -> None:
    low, high = share_interval(np.ones(9), np.ones(9))
    assert (low, high) == (pytest.approx(0.70, abs=0.01), 1.0)
    assert share_interval(np.zeros(9), np.ones(9)) == (0.0, pytest.approx(1 - low))


def test_one_cluster_says_as_much_as_one() -> None:
    low, high = share_interval(np.array([50]), np.array([100]))
    assert high - low > 0.8


@pytest.mark.parametrize(("n", "share", "alike"), [(9, 0.9, 1), (87, 0.98, 1), (40, 0.7, 4), (60, 0.9, 2)])
def test_the_true_share_is_missed_at_the_stated_rate(n: int, share: float, alike: int) -> None:
    random = np.random.default_rng(n)
    n_trials = 1000
    missed = 0
    for _ in range(n_trials):
        counts = alike * (random.random(n // alike) < share)
        low, high = share_interval(counts, np.full(n // alike, alike))
        missed += not low <= share <= high
    assert missed / n_trials <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_trials)
