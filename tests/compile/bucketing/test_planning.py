"""Buckets cost least: held against every choice there is; drift is followed, in small steps."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.compile.bucketing import BucketPlan, plan, powers_of_two, revise
from torchtriage.compile.bucketing.advice import advise
from torchtriage.compile.bucketing.planner import REVIEW, WINDOW, Planner
from torchtriage.compile.bucketing.planner import given as named
from torchtriage.core.errors import UsageError

SIZES = st.lists(st.integers(1, 24), min_size=1, max_size=14)


def cost(buckets: Sequence[int], sizes: Sequence[int], fallback: float = math.inf) -> float:
    """Return the padded work of all sizes, in the plainest way."""
    total = 0.0
    for size in sizes:
        total += min((bucket for bucket in buckets if bucket >= size), default=fallback * size)
    return total


def waste(buckets: Sequence[int], sizes: Sequence[int]) -> float:
    return cost(buckets, sizes) / sum(sizes) - 1


# -- one axis ----------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 5), st.sampled_from([0.0, 1.5, 20.0]), st.sampled_from([None, 1.0, 1.7, 6.0]))
def test_no_choice_costs_less(sizes: list[int], most: int, compile_cost: float, fallback: float | None) -> None:
    beyond = math.inf if fallback is None else fallback
    best = min(
        cost(chosen, sizes, beyond) + compile_cost * k
        for k in range(most + 1)
        for chosen in itertools.combinations(sorted(set(sizes)), k)
    )
    made = plan(sizes, max_buckets=most, compile_cost=compile_cost, fallback=fallback)
    assert made.exact
    buckets = made.buckets["size"]
    assert len(buckets) <= most
    assert cost(buckets, sizes, beyond) + compile_cost * len(buckets) == pytest.approx(best)


@given(SIZES, st.integers(1, 4))
def test_no_choice_costs_less_where_work_is_quadratic(sizes: list[int], most: int) -> None:
    def squared(buckets: Sequence[int]) -> float:
        return sum(min(bucket for bucket in buckets if bucket >= size) ** 2 for size in sizes)

    smaller = sorted(set(sizes))[:-1]
    best = min(squared([*chosen, max(sizes)]) for k in range(most) for chosen in itertools.combinations(smaller, k))
    made = plan(sizes, max_buckets=most, work=np.square)
    assert squared(made.buckets["size"]) == pytest.approx(best)


@given(SIZES, st.integers(1, 4), st.sampled_from([2, 8]), st.sampled_from([None, 1.25, 2.0]))
def test_multiples_are_the_best_of_multiples(sizes: list[int], most: int, step: int, fallback: float | None) -> None:
    beyond = math.inf if fallback is None else fallback
    grid = range(step, -(-max(sizes) // step) * step + 1, step)
    best = min(cost(chosen, sizes, beyond) for k in range(most + 1) for chosen in itertools.combinations(grid, k))
    buckets = plan(sizes, max_buckets=most, multiple_of=step, fallback=fallback).buckets["size"]
    assert all(bucket % step == 0 for bucket in buckets)
    assert cost(buckets, sizes, beyond) == pytest.approx(best)


@given(SIZES)
def test_padding_and_covered_are_what_they_are_called(sizes: list[int]) -> None:
    made = plan(sizes, max_buckets=2, compile_cost=4.0, fallback=1.5)
    inside = [size for size in sizes if made.bucket_of({"size": size}) is not None]
    assert made.covered == pytest.approx(len(inside) / len(sizes))
    if inside:
        assert made.padding == pytest.approx(waste(made.buckets["size"], inside))


def test_a_size_that_came_once_is_left_to_the_fallback() -> None:
    sizes = [100] * 500 + [101] * 500 + [4000]
    assert plan(sizes, compile_cost=5000.0, fallback=2.0).buckets["size"] == (101,)
    assert plan(sizes, compile_cost=5000.0).buckets["size"] == (101, 4000)


def test_thousands_of_sizes_are_planned_at_once() -> None:
    sizes = np.random.default_rng(0).integers(1, 4000, 20_000)
    plan(sizes)
    begun = time.process_time()
    made = plan(sizes, max_buckets=16)
    assert time.process_time() - begun < 0.5  # 0.03 s on a quiet machine
    assert len(made.buckets["size"]) == 16


def test_powers_of_two_waste_more() -> None:
    draw = np.random.default_rng(1)
    for sizes in (draw.integers(1, 513, 4000), np.exp(draw.normal(4.5, 0.8, 4000)).astype(int) + 1):
        usual = powers_of_two(sizes)
        best = plan(sizes, max_buckets=len(usual))
        assert best.padding < 0.7 * waste(usual, sizes.tolist())


@pytest.mark.parametrize("odd", [[], [0], [-3], [2.5], ["a"], [[1, 2]], None, [True], [2**70]])
def test_sizes_that_are_none_are_named(odd: object) -> None:
    with pytest.raises(UsageError, match="axis size"):
        plan(odd)  # type: ignore[arg-type]


def test_limits_that_cannot_be() -> None:
    odd = [{"max_buckets": 2.5}, {"multiple_of": 1.5}, {"compile_cost": math.nan}, {"fallback": math.nan}]
    for wrong in ({"max_buckets": 0}, {"multiple_of": 0}, {"compile_cost": -1}, {"fallback": 0.5}, *odd):
        with pytest.raises(UsageError, match="expected"):
            plan([1], **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="grows"):
        plan([1, 2], work=np.negative)
    with pytest.raises(UsageError, match="2 of a, 1 of b"):
        plan({"a": [1, 2], "b": [1]})


def test_a_plan_reads_well() -> None:
    assert str(plan([90, 100, 200], max_buckets=2)) == "size 100, 200; padding 2.6 %"
    assert str(BucketPlan({"size": (1, 2)})) == "size 1, 2"
    told = str(plan([1, 1, 90], max_buckets=1, compile_cost=50.0, fallback=1.1))
    assert told == "size none; padding 0 %, 100 % without a bucket"


# -- several axes ------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=10))
def test_a_grid_is_near_the_best_and_says_what_it_is(pairs: list[tuple[int, int]]) -> None:
    left, right = [one for one, _ in pairs], [one for _, one in pairs]

    def area(a: Sequence[int], b: Sequence[int]) -> int:
        return sum(min(x for x in a if x >= i) * min(y for y in b if y >= j) for i, j in pairs)

    def choices(column: list[int], k: int) -> list[list[int]]:
        inner = sorted(set(column))[:-1]
        return [[*combination, max(column)] for n in range(k) for combination in itertools.combinations(inner, n)]

    best = min(area(a, b) for k, m in ((1, 4), (2, 2), (4, 1)) for a in choices(left, k) for b in choices(right, m))
    made = plan({"a": left, "b": right}, max_buckets=4)
    assert not made.exact
    assert "heuristic" in str(made)
    assert len(made.buckets["a"]) * len(made.buckets["b"]) <= 4
    assert best <= area(made.buckets["a"], made.buckets["b"]) <= 1.25 * best


# -- drift -------------------------------------------------------------------------------------


@given(
    SIZES, st.lists(st.integers(1, 24), min_size=1, max_size=3), st.sampled_from([0.0, 3.0]), st.sampled_from([1, 4])
)
def test_no_two_new_buckets_save_more(sizes: list[int], now: list[int], price: float, step: int) -> None:
    now = [bucket * step for bucket in now]
    present = cost(now, sizes, 1.25)
    new = sorted({-(-size // step) * step for size in sizes} - set(now))
    best = max(
        present - cost([*now, *added], sizes, 1.25) - price * k
        for k in (0, 1, 2)
        for added in itertools.combinations(new, k)
    )
    made = revise(now, sizes, max_buckets=99, compile_cost=price, min_gain=0.0, multiple_of=step, fallback=1.25)
    if made is None:
        assert best == pytest.approx(0.0)
        return
    assert len(made.added) <= 2
    saved = present - cost(made.buckets, sizes, 1.25)
    assert saved - price * len(made.added) == pytest.approx(best)
    assert made.gain == pytest.approx(saved / present)


def test_what_does_not_pay_is_left() -> None:
    sizes = np.random.default_rng(2).integers(100, 201, 1000)
    now = plan(sizes, max_buckets=8).buckets["size"]
    again = np.random.default_rng(3).integers(100, 201, 1000)
    assert revise(now, again) is None
    assert revise([200], [100] * 50, compile_cost=1e9) is None


def test_drift_is_followed_two_sizes_at_a_time_within_a_thousand_requests() -> None:
    draw = np.random.default_rng(4)
    planner = Planner(["size"], None)
    changes = []
    for at, size in enumerate([*draw.integers(100, 201, 1000), *draw.integers(300, 401, 1000)]):
        if planner.observe({"size": int(size)}):
            before = set(planner.plan.buckets["size"]) if planner.plan else None
            if planner.review() and before is not None:
                assert planner.plan is not None
                changes.append((at, set(planner.plan.buckets["size"]) - before))
    assert changes
    assert all(len(new) <= 2 and at >= 1000 for at, new in changes)
    assert changes[0][0] < 1000 + 2 * REVIEW
    assert planner.plan is not None
    assert len(planner.plan.buckets["size"]) <= 8
    assert planner.n_replans == len(changes)
    late = draw.integers(300, 401, 1000).tolist()
    inside = [one for one in late if one <= max(planner.plan.buckets["size"])]
    assert len(inside) > 0.97 * len(late)
    assert waste(planner.plan.buckets["size"], inside) < 0.08


def test_two_axes_drift_too() -> None:
    draw = np.random.default_rng(5)
    planner = Planner(["batch", "seq"], None, max_buckets=8)
    for low in (10, 60):
        for _ in range(WINDOW):
            if planner.observe({"batch": int(draw.integers(1, 5)), "seq": int(draw.integers(low, low + 20))}):
                planner.review()
    assert planner.plan is not None
    assert planner.n_replans >= 1
    assert planner.plan is not None
    assert planner.plan.bucket_of({"batch": 4, "seq": 78}) is not None
    assert planner.plan.bucket_of({"seq": 61}) is not None


def test_given_buckets_never_change() -> None:
    planner = Planner(["size"], BucketPlan({"size": (8, 16)}))
    assert not any(planner.observe({"size": 3}) for _ in range(2000))
    assert planner.wanted(planner.history) == [{"size": 8}]
    assert planner.least({"size": 8}) == {"size": 3}
    assert planner.least({"size": 16}) == {"size": 9}


# -- what users name ---------------------------------------------------------------------------


def test_buckets_are_taken_as_lists_dicts_and_plans() -> None:
    assert named("auto", ["size"]) is None
    for one in ([16, 8, 8], {"seq": [8, 16]}, plan([8, 16]), (np.int64(8), 16)):
        assert named(one, ["seq"]) == BucketPlan({"seq": (8, 16)})
    for wrong in ([], [0], "8", 8, [1.5], {"a": [1], "b": [2]}):
        with pytest.raises(UsageError, match="buckets"):
            named(wrong, ["seq"])


def test_advice_names_what_takes_least() -> None:
    costs = {"eager_s": 3e-3, "n_compiles": 8, "compile_s": 10.0, "dynamic_compile_s": 12.0}
    short = advise(bucket_s=1e-3, dynamic_s=1.5e-3, n_requests=1000, **costs)
    assert short.best == "eager"
    middle = advise(bucket_s=1e-3, dynamic_s=1.5e-3, n_requests=50_000, **costs)
    assert middle.best == "dynamic"
    assert "dynamic=True" in str(middle)
    long = advise(bucket_s=1e-3, dynamic_s=1.5e-3, n_requests=10_000_000, **costs)
    assert long.best == "buckets"
    tie = advise(bucket_s=1e-3, dynamic_s=0.97e-3, n_requests=10_000_000, **costs)
    assert tie.best == "buckets"
