"""What is looked at after every request is wrong no more often than promised."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest

from torchtriage.core.stats.sequential_ab import BLOCK, Difference, EventRatio, Moments, SplitCheck


def remembering(n: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """Return logarithms of latencies that vary by 30 % and remember the one before."""
    noise = rng.standard_normal(n)
    for at in range(1, n):
        noise[at] = rho * noise[at - 1] + math.sqrt(1 - rho * rho) * noise[at]
    return math.sqrt(math.log(1.09)) * noise


def first_stop(control, treated) -> int | None:
    """Return after how many requests per arm the interval leaves zero out."""
    found = Difference()
    for at, (one, other) in enumerate(zip(control, treated, strict=True), 1):
        found.add(False, one)
        if found.add(True, other):
            _, low, high, *_ = found.estimate(0.05)
            if low > 0 or high < 0:
                return at
    return None


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_equal_arms_are_seldom_told_apart_at_any_of_thousands_of_looks(rho: float) -> None:
    rng = np.random.default_rng(1)
    stops = [first_stop(remembering(2000, rho, rng).tolist(), remembering(2000, rho, rng).tolist()) for _ in range(120)]
    # 5 % are 6; 13 or more once in 150 times
    assert sum(stop is not None for stop in stops) <= 12


def test_a_shift_of_five_percent_is_found_within_700_requests() -> None:
    rng = np.random.default_rng(2)
    stops = [
        first_stop(remembering(3000, 0, rng).tolist(), (remembering(3000, 0, rng) + math.log(1.05)).tolist())
        for _ in range(60)
    ]
    assert all(stops)
    assert np.median([stop for stop in stops if stop]) <= 700


def test_the_interval_holds_the_truth_and_narrows() -> None:
    rng = np.random.default_rng(3)
    widths = []
    found = Difference()
    for n in range(1, 4001):
        found.add(False, rng.normal(1.0, 0.3))
        found.add(True, rng.normal(1.2, 0.3))
        if n in (500, 4000):
            told = found.estimate()
            assert told.low < 0.2 < told.high
            widths.append(told.high - told.low)
    assert widths[1] < widths[0] / 2
    assert told.n_control == told.n_treated == 4000


def test_blocks_grow_where_requests_remember() -> None:
    rng = np.random.default_rng(4)
    blocks = []
    for rho in (0.0, 0.9):
        found = Difference()
        for one, other in zip(remembering(4000, rho, rng), remembering(4000, rho, rng), strict=True):
            found.add(False, float(one))
            found.add(True, float(other))
        blocks.append(found.estimate().block)
    assert blocks[0] == BLOCK
    assert blocks[1] >= 8 * BLOCK


def test_what_both_arms_share_cancels() -> None:
    rng = np.random.default_rng(5)
    wave = np.repeat(rng.normal(0, 1.0, 60), 50)
    found = Difference()
    for level in wave:
        found.add(False, float(level + rng.normal(0, 0.1)))
        found.add(True, float(level + 0.05 + rng.normal(0, 0.1)))
    told = found.estimate()
    assert 0 < told.low < 0.05 < told.high < 0.1


def test_a_small_arm_closes_the_blocks() -> None:
    rng = np.random.default_rng(6)
    found = Difference()
    treated = 0
    for _ in range(20_000):
        one = bool(rng.random() < 0.05)
        treated += one
        found.add(one, rng.normal(0.2 * one, 0.3))
    told = found.estimate()
    assert told.n_treated == pytest.approx(treated, abs=25)
    assert told.low < 0.2 < told.high
    assert told.low > 0


def test_a_covariate_takes_off_what_it_explains_and_moves_nothing_else() -> None:
    rng = np.random.default_rng(7)
    plain, adjusted = Difference(), Difference()
    for _ in range(1500):
        for treated in (False, True):
            size = rng.normal(0, 1)
            value = 2 * size + 0.1 * treated + rng.normal(0, 0.5)
            plain.add(treated, value)
            adjusted.add(treated, value, size)
    wide, narrow = plain.estimate(), adjusted.estimate()
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3
    assert narrow.low < 0.1 < narrow.high
    assert adjusted.explained == pytest.approx(16 / 17, abs=0.02)
    assert adjusted.slope == pytest.approx(2, abs=0.05)


def test_before_there_is_enough_nothing_is_excluded() -> None:
    found = Difference()
    assert math.isnan(found.estimate().centre)
    for n in range(59):
        found.add(False, float(n % 7))
        found.add(True, float(n % 5))
    assert found.estimate()[1:3] == (-math.inf, math.inf)


def test_values_that_never_vary_are_equal_or_not() -> None:
    same, other = Difference(), Difference()
    for _ in range(100):
        same.add(False, 0.1)
        same.add(True, 0.1)
        other.add(False, 0.1)
        other.add(True, 0.3)
    assert same.estimate().low <= 0 <= same.estimate().high
    assert other.estimate().low > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected finite values"):
        Difference().add(False, value)


def test_moments_are_those_of_numpy() -> None:
    rng = np.random.default_rng(8)
    values, others = rng.normal(1e6, 1, 500), rng.normal(3, 2, 500)
    found = Moments()
    for value, other in zip(values.tolist(), others.tolist(), strict=True):
        found.add(value, other)
    assert found.mean == pytest.approx(values.mean())
    assert found.variance == pytest.approx(values.var(ddof=1))
    assert found.products / 499 == pytest.approx(np.cov(values, others)[0, 1])


# -- events ------------------------------------------------------------------------------------


def alarm(rates: tuple[float, float], share: float, n: int, rng, **options) -> int | None:
    """Return how many treated requests it takes to say that events come too often."""
    found = EventRatio(options.get("worse_than", 1.0), share)
    arms, chances = rng.random(n) < share, rng.random(n)
    for treated, chance in zip(arms.tolist(), chances.tolist(), strict=True):
        if found.add(treated, chance < rates[treated]) and found.log_evidence > math.log(20):
            return found.n[1]
    return None


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_equal_rates_seldom_alarm(share: float) -> None:
    rng = np.random.default_rng(9)
    false = sum(alarm((0.02, 0.02), share, 5000, rng) is not None for _ in range(200))
    assert false <= 18  # 5 % are 10; 19 or more once in 200 times


def test_errors_of_one_percent_instead_of_a_tenth_are_found_within_1500_requests() -> None:
    rng = np.random.default_rng(10)
    needed = [alarm((0.001, 0.01), 0.05, 60_000, rng) for _ in range(40)]
    assert np.median([one or 10**9 for one in needed]) <= 1000
    assert sum(one is not None and one <= 1500 for one in needed) >= 36


def test_a_version_that_always_fails_is_found_in_a_few_requests() -> None:
    rng = np.random.default_rng(11)
    needed = [alarm((0.001, 1.0), 0.05, 4000, rng, worse_than=1.5) for _ in range(20)]
    assert all(one is not None and one <= 5 for one in needed)


def test_the_allowed_ratio_is_allowed() -> None:
    rng = np.random.default_rng(12)
    false = sum(alarm((0.02, 0.03), 0.5, 5000, rng, worse_than=1.5) is not None for _ in range(100))
    assert false <= 11


def test_events_pause_for_as_long_as_they_are_told() -> None:
    found = EventRatio(1.0, 0.5)
    for _ in range(100):
        found.add(True, True, pause=10)
        found.add(False, False)
    assert found.n_events == [0, 100]
    assert found.n_counted == [0, 10]


def test_the_interval_of_rates_holds_the_ratio() -> None:
    rng = np.random.default_rng(13)
    found = EventRatio(1.0, 0.5)
    assert found.interval() == (0.0, math.inf)
    for _ in range(20_000):
        treated = bool(rng.random() < 0.5)
        found.add(treated, bool(rng.random() < (0.03 if treated else 0.01)))
    low, high = found.interval()
    assert 1 < low < 3 < high < 5


def test_events_in_one_arm_alone_have_no_upper_end() -> None:
    found = EventRatio(1.0, 0.5)
    for _ in range(50):
        found.add(True, True)
        found.add(False, False)
    low, high = found.interval()
    assert low > 3
    assert high == math.inf


# -- the split ---------------------------------------------------------------------------------


def test_a_wrong_split_is_found_and_a_right_one_is_not() -> None:
    rng = np.random.default_rng(14)
    wrong = SplitCheck(0.5)
    for treated in (rng.random(100_000) < 0.49).tolist():
        wrong.add(treated)
    assert wrong.log_evidence > math.log(1e4)
    for share in (0.01, 0.5):
        right = SplitCheck(share)
        top = -math.inf
        for at, treated in enumerate((rng.random(50_000) < share).tolist()):
            right.add(treated)
            if at % 50 == 0:
                top = max(top, right.log_evidence)
        assert top < math.log(1e3)


# -- all of it is plain data ---------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [Difference, lambda: EventRatio(1.5, 0.05), lambda: SplitCheck(0.3)])
def test_state_goes_through_json_and_goes_on(fresh) -> None:
    rng = np.random.default_rng(15)
    one = fresh()

    def feed(target, treated: bool, value: float) -> None:
        if isinstance(target, SplitCheck):
            target.add(treated)
        else:
            target.add(treated, value > 1 if isinstance(target, EventRatio) else value)

    rows = [(bool(rng.random() < 0.5), float(rng.normal())) for _ in range(2000)]
    for row in rows[:1000]:
        feed(one, *row)
    other = msgspec.convert(json.loads(msgspec.json.encode(one)), type(one))
    for row in rows[1000:]:
        feed(one, *row)
        feed(other, *row)
    assert one == other
