from __future__ import annotations

import numpy as np
import pytest
from stopping import compare_sessions
from tests.core.stats.noise import pairs

from torchtriage.core.stats.multiple_testing import adjust


def test_benjamini_and_hochbergs_own_example() -> None:
    # Benjamini and Hochberg (1995), section 3.2: at 5 % Bonferroni rejects three, theirs four
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719]
    p += [0.6528, 0.7590, 1.0]
    assert (adjust(p) <= 0.05).sum() == 4


def test_what_could_not_be_tested_does_not_count() -> None:
    adjusted = adjust([0.01, np.nan, 0.5])
    assert np.isnan(adjusted[1])
    np.testing.assert_array_equal(adjusted[[0, 2]], adjust([0.01, 0.5]))
    assert adjust([]).size == 0


def test_order_does_not_matter_and_nothing_exceeds_one() -> None:
    p = np.random.default_rng(0).random(50)
    np.testing.assert_array_equal(adjust(p)[::-1], adjust(p[::-1]))
    assert (adjust(p) >= p).all()
    assert adjust(p).max() <= 1


def test_two_hundred_metrics_raise_one_false_alarm_in_a_hundred_checks() -> None:
    rng = np.random.default_rng(41)
    # what 16 pairs say of nothing; half of the metrics share their noise
    null = np.array([compare_sessions(*pairs("plain", 16, 0, rng), paired=True).p_value for _ in range(1500)])
    n, false, naive = 1000, 0, 0
    for _ in range(n):
        p = rng.choice(null, 200)
        p[:100] = p[0]
        naive += (p <= 0.01).any()
        false += bool((adjust(p) <= 0.01).any())
    assert naive / n > 0.5
    assert false / n <= 0.02


def test_five_per_cent_is_still_found_among_two_hundred() -> None:
    rng = np.random.default_rng(42)
    n, found = 60, 0
    null = [compare_sessions(*pairs("plain", 30, 0, rng), paired=True).p_value for _ in range(199)]
    for _ in range(n):
        changed = compare_sessions(*pairs("plain", 30, 0.05, rng), paired=True).p_value
        found += bool(adjust([changed, *null])[0] <= 0.02)
    assert found / n >= 0.9


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        adjust([0.1, 1.2])
