"""Error rates are simulated: an interval that is right on paper only is worth nothing."""

from __future__ import annotations

import numpy as np
import pytest

from torchtriage.core.stats import difference, difference_of_means
from torchtriage.core.stats.difference import block_length, student_quantile

N_SERIES = 300


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of single intervals wobble more, how often they hold the truth stays the same."""
    monkeypatch.setattr(difference, "N_RESAMPLES", 200)


def series(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(n + 50)
    if kind == "skewed":
        return np.exp(0.5 * noise[:n])[:, None]
    memory = {"independent": 0.0, "correlated": 0.5}[kind]
    out = np.zeros(n + 50)
    for i in range(1, n + 50):
        out[i] = memory * out[i - 1] + noise[i]
    return out[50:, None]


def coverage(kind: str, n: int, m: int) -> float:
    rng = np.random.default_rng(7)
    hits = 0
    for seed in range(N_SERIES):
        low, high = difference_of_means(series(kind, n, rng), series(kind, m, rng), seed=seed)
        hits += bool(low[0] <= 0 <= high[0])
    return hits / N_SERIES


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(
    ("kind", "n", "m", "least"),
    [
        ("independent", 5, 5, 0.93),
        ("independent", 5, 20, 0.93),
        ("independent", 40, 40, 0.93),
        ("skewed", 5, 5, 0.92),
        ("skewed", 40, 40, 0.92),
        # memory cannot be seen in few steps: the reason for the allowance on top
        ("correlated", 60, 60, 0.90),
    ],
)
def test_the_interval_of_the_mean_holds_the_truth_as_often_as_it_says(kind, n, m, least):
    assert coverage(kind, n, m) >= least


@pytest.mark.usefixtures("few_resamples")
def test_ignoring_memory_would_be_wrong_twice_as_often():
    """What the blocks are for: without them the same series fail more than the level allows."""
    rng = np.random.default_rng(7)
    misses = 0
    for _ in range(N_SERIES):
        before, after = series("correlated", 60, rng), series("correlated", 60, rng)
        error = np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 60)
        misses += abs(after.mean() - before.mean()) > 1.98 * error
    assert misses / N_SERIES > 0.2
    assert coverage("correlated", 60, 60) > 0.9


def test_intervals_are_not_needlessly_wide():
    rng = np.random.default_rng(3)
    low, high = difference_of_means(rng.standard_normal((40, 1)), 2 + rng.standard_normal((40, 1)))
    assert 0 < low[0] < 2 < high[0]
    assert high[0] - low[0] < 1.3  # 4 * sqrt(2 / 40) is 0.9


def test_swapped_series_give_the_mirrored_interval():
    rng = np.random.default_rng(1)
    before, after = rng.gamma(4, size=(7, 3)), rng.gamma(5, size=(9, 3))
    low, high = difference_of_means(before, after)
    mirrored = difference_of_means(after, before)
    np.testing.assert_array_equal(mirrored.low, -high)
    np.testing.assert_array_equal(mirrored.high, -low)


def test_one_value_tells_nothing():
    low, high = difference_of_means(np.ones((1, 2)), np.ones((5, 2)))
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_blocks_are_as_long_as_the_memory():
    rng = np.random.default_rng(2)
    assert block_length(rng.standard_normal(200)) == 1
    assert block_length(np.ones(50)) == 1
    assert block_length(np.cumsum(rng.standard_normal(200))) > 20
    assert block_length(np.arange(5.0)) == 1


@pytest.mark.parametrize(
    ("probability", "df", "value"),
    # Student (1908); Fisher and Yates, Statistical Tables, table III
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.995, 10, 3.169), (0.975, 120, 1.980)],
)
def test_student_quantiles_are_those_of_the_tables(probability, df, value):
    assert student_quantile(probability, df) == pytest.approx(value, rel=1e-3)
    assert student_quantile(1 - probability, df) == pytest.approx(-value, rel=1e-3)
