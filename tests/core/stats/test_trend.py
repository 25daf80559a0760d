"""Slopes that a few wild points do not move, and where a series begins to rise."""

from __future__ import annotations

import numpy as np
import pytest

from torchtriage.core.stats.trend import block_minima, hinge, sen_slope


def test_slope_of_a_line_is_exact() -> None:
    x = np.arange(50.0)
    assert sen_slope(x, 3 * x + 7) == pytest.approx((3, 3, 3))


def test_a_quarter_of_wild_points_does_not_move_it() -> None:
    x = np.arange(100.0)
    y = 2 * x
    y[::4] += 1e6
    assert sen_slope(x, y).slope == pytest.approx(2, rel=0.05)


def test_interval_holds_the_true_slope_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(32.0)
    found = [sen_slope(x, 0.5 * x + rng.normal(0, 3, 32)) for _ in range(1000)]
    held = np.mean([one.low <= 0.5 <= one.high for one in found])
    # 950 expected, 7 is one standard deviation
    assert 0.925 <= held <= 0.975


def test_two_points_have_no_slope() -> None:
    assert np.isnan(sen_slope(np.arange(2.0), np.arange(2.0)).slope)


def test_long_series_are_thinned() -> None:
    x = np.arange(20_000.0)
    assert sen_slope(x, 4 * x).slope == pytest.approx(4)


def test_block_minima_are_the_lowest_of_each_block() -> None:
    x = np.arange(8.0)
    middle, lowest = block_minima(x, np.array([5, 1, 9, 2, 7, 7, 3, 8.0]), 4)
    assert lowest.tolist() == [1, 2, 7, 3]
    assert middle.tolist() == pytest.approx([0.875, 2.625, 4.375, 6.125])


def test_blocks_without_points_are_left_out() -> None:
    _, lowest = block_minima(np.array([0.0, 1, 9, 10]), np.array([4.0, 3, 2, 1]), 5)
    assert lowest.tolist() == [3, 1]


def test_no_points_have_no_blocks() -> None:
    assert len(block_minima(np.empty(0), np.empty(0), 4)[0]) == 0


def test_hinge_finds_the_corner() -> None:
    x = np.arange(60.0)
    y = np.where(x > 40, 5 * (x - 40), 0.0) + 100
    found = hinge(x, y)
    assert found.at == 40
    assert (found.level, found.slope) == pytest.approx((100, 5))
