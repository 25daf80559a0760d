"""Where warm-up ends, on planted warm-ups, and that series without a steady state have none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from torchtriage.core.stats.steady_state import LEAST_VALUES, TOLERANCE, find_steady

Floats = NDArray[np.float64]
N_SERIES = 100


def noise(rng: np.random.Generator, n: int) -> Floats:
    """Return factors around 1: independent, with memory, skewed, or with rare outliers."""
    kind = rng.choice(["iid", "memory", "skewed", "outliers"])
    size = rng.choice([0.005, 0.02, 0.05])
    if kind == "skewed":
        return 1 + size * (rng.gamma(1.0, 1.0, n) - 1)
    errors = rng.normal(0, 1, n)
    if kind == "memory":
        for i in range(1, n):
            errors[i] = 0.5 * errors[i - 1] + 0.75**0.5 * errors[i]
    factors = np.exp(size * errors)
    if kind == "outliers":
        factors *= np.where(rng.random(n) < 0.02, rng.uniform(1.5, 4, n), 1)
    return factors


def length(rng: np.random.Generator) -> int:
    return int(np.exp(rng.uniform(np.log(60), np.log(20_000))))


def warm_up(rng: np.random.Generator) -> tuple[Floats, int]:
    """Return a series that becomes steady, and the step from which it is within the tolerance."""
    n = length(rng)
    k = int(np.exp(rng.uniform(np.log(3), np.log(n * 0.5))))
    mean = np.ones(n)
    kind = rng.choice(["step", "stairs", "decay", "first calls", "rise"])
    if kind == "step":
        mean[:k] = rng.uniform(1.15, 4)
    elif kind == "rise":
        mean[:k] = rng.uniform(0.5, 0.85)
    elif kind == "first calls":
        k = int(rng.integers(1, 6))
        mean[:k] = np.exp(rng.uniform(np.log(1.5), np.log(1e4), k))
    elif kind == "stairs":
        cuts = [0, *sorted(rng.choice(np.arange(1, k), min(2, k - 1), replace=False)), k]
        levels = np.sort(rng.uniform(1.15, 4, len(cuts) - 1))[::-1]
        for a, b, level in zip(cuts[:-1], cuts[1:], levels, strict=True):
            mean[a:b] = level
    else:
        height = rng.uniform(0.3, 5)
        mean += height * np.exp(-np.arange(n) * np.log(height / TOLERANCE) / k)
    mean[0] *= rng.choice([1, 30])  # compiling
    off = np.flatnonzero(np.abs(mean - 1) > TOLERANCE)
    return mean * noise(rng, n), int(off[-1]) + 1 if len(off) else 0


def never(rng: np.random.Generator) -> Floats:
    """Return a series without a steady state."""
    n = length(rng)
    t = np.arange(n) / n
    kind = rng.choice(["drift", "late change", "walk", "cycle", "growth"])
    if kind == "drift":
        mean = 1 + rng.choice([-1, 1]) * rng.uniform(0.2, 0.8) * t
    elif kind == "late change":
        mean = np.where(t < rng.uniform(0.8, 0.95), 1, rng.choice([0.7, 1.3, 2.0]))
    elif kind == "walk":
        mean = np.exp(np.cumsum(rng.normal(0, rng.uniform(0.2, 0.5) / n**0.5, n)))
    elif kind == "cycle":
        mean = np.where((t / rng.uniform(0.05, 0.2)).astype(int) % 2, rng.uniform(1.2, 2), 1.0)
    else:
        mean = 1 + rng.uniform(0.3, 2) * t**2
    return np.asarray(mean * noise(rng, n))


def test_the_end_of_planted_warm_ups_is_found() -> None:
    """Within 10 % (one step below ten) in at least 90 %; 95.6 % of 480 others."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(N_SERIES):
        times, true = warm_up(rng)
        begin = find_steady(times * 1e6).begin
        found.append(begin is not None and abs(begin - true) <= max(0.1 * true, 1))
    assert np.mean(found) >= 0.9


def test_what_never_becomes_steady_is_not_called_steady() -> None:
    """At least 95 %; 97.7 % of 480 others."""
    rng = np.random.default_rng(0)
    found = [find_steady(never(rng)).begin is None for _ in range(N_SERIES)]
    assert np.mean(found) >= 0.95


def test_level_series_are_steady_from_the_start() -> None:
    rng = np.random.default_rng(0)
    found = [find_steady(noise(rng, length(rng))) for _ in range(N_SERIES)]
    assert np.mean([one.begin is not None and one.begin <= 3 for one in found]) >= 0.95


def test_the_unit_does_not_matter() -> None:
    times, _ = warm_up(np.random.default_rng(3))
    assert find_steady(times).begin == find_steady(times * 1e9).begin


def test_equal_values_are_steady_from_the_first() -> None:
    found = find_steady(np.full(50, 7))
    assert found == (0, 7.0, "")


def test_one_slow_first_step_is_the_warm_up() -> None:
    found = find_steady(np.array([1e9] + [1e6] * 40))
    assert found.begin == 1
    assert found.level == 1e6


def test_too_few_values_say_nothing() -> None:
    for n in range(LEAST_VALUES):
        found = find_steady(np.ones(n))
        assert found.begin is None
        assert "too few" in found.reason


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite positive"):
        find_steady(np.array([1.0] * 20 + [bad]))
