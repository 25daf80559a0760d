from __future__ import annotations

import math

import numpy as np
import pytest

from torchtriage.core.stats.quantiles import least_values, quantile_interval


def series(n: int, memory: float, rng: np.random.Generator) -> np.ndarray:
    """Return standard normals that remember a share of the one before."""
    out = rng.standard_normal(n + 60)
    for i in range(1, n + 60):
        out[i] = memory * out[i - 1] + math.sqrt(1 - memory**2) * out[i]
    return np.exp(0.3 * out[60:])


@pytest.mark.parametrize(
    ("n", "memory", "q", "z", "least"),
    [
        (200, 0.0, 0.5, 0.0, 0.93),
        (200, 0.0, 0.95, 1.6449, 0.93),
        (1000, 0.0, 0.99, 2.3263, 0.93),
        (400, 0.7, 0.5, 0.0, 0.88),
        (400, 0.7, 0.95, 1.6449, 0.86),
    ],
)
def test_one_session_holds_the_truth_as_often_as_it_says(n, memory, q, z, least) -> None:
    rng = np.random.default_rng(51)
    holds = []
    for _ in range(300):
        _, low, high = quantile_interval(series(n, memory, rng), q)
        holds.append(not (math.exp(0.3 * z) < low or math.exp(0.3 * z) > high))
    assert np.mean(holds) >= least


def test_several_sessions_hold_what_a_typical_one_has() -> None:
    rng = np.random.default_rng(52)
    holds = []
    for _ in range(300):
        sessions = [math.exp(0.05 * rng.standard_normal()) * np.exp(0.3 * rng.standard_normal(200)) for _ in range(8)]
        _, low, high = quantile_interval(sessions, 0.95)
        holds.append(low <= math.exp(0.3 * 1.6449) <= high)
    assert np.mean(holds) >= 0.93


def test_ignoring_the_memory_would_be_too_narrow() -> None:
    rng = np.random.default_rng(53)
    remembers = series(400, 0.9, rng)
    shuffled = rng.permutation(remembers)
    wide, narrow = quantile_interval(remembers, 0.5), quantile_interval(shuffled, 0.5)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_an_end_beyond_the_extremes_is_not_a_number() -> None:
    # the largest of 71 is below P95 with 0.95 ** 71 = 2.6 %, of 72 with 2.49 %
    for n, known in ((71, False), (72, True)):
        value, low, high = quantile_interval(np.random.default_rng(0).permutation(n) + 1.0, 0.95)
        assert low < value
        assert (high == n) if known else math.isnan(high)


def test_ranks_are_those_of_the_binomial() -> None:
    # P(Binomial(30, 1/2) <= 9) = 2.1 %, with one more 4.9 %: the 10th and the 21st
    _, low, high = quantile_interval(np.random.default_rng(0).permutation(30) + 1.0, 0.5)
    assert (low, high) == (10, 21)


def test_tails_need_values() -> None:
    assert [least_values(q) for q in (0.5, 0.9, 0.95, 0.99, 0.999)] == [2, 10, 20, 100, 1000]
    for q, n in ((0.95, 20), (0.99, 100)):
        quantile_interval(np.arange(1.0, n + 1), q)
        with pytest.raises(ValueError, match=f"at least {n} values per session"):
            quantile_interval(np.arange(1.0, n), q)
        with pytest.raises(ValueError, match=f"at least {n} values per session"):
            quantile_interval([np.arange(1.0, n + 1), np.arange(1.0, n)], q)


def test_bad_values_are_refused() -> None:
    good = np.arange(1.0, 31.0)
    with pytest.raises(ValueError, match="finite"):
        quantile_interval(np.append(good, math.nan), 0.5)
    with pytest.raises(ValueError, match="positive"):
        quantile_interval([good, np.append(good, 0.0)], 0.5)
    with pytest.raises(ValueError, match="none"):
        quantile_interval([], 0.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_interval(good, 95)


def test_constant_values_are_their_own_quantile() -> None:
    assert quantile_interval(np.full(50, 3.0), 0.5) == (3, 3, 3)
