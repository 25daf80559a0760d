from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from tests.conftest import DATA

from torchtriage.core.stats.change_points import find
from torchtriage.measure.gate.history import LEAST_T, LEAST_VALUES, MIN_CHANGE


def history(*levels: tuple[int, float], noise: float, seed: int = 0) -> np.ndarray:
    """Return stretches of (length, level) with log-normal noise."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([np.full(n, level) for n, level in levels])
    return steps * np.exp(noise * rng.standard_normal(len(steps)))


def test_a_quiet_history_has_no_changes() -> None:
    told = sum(bool(find(history((100, 5.0), noise=0.02, seed=seed))) for seed in range(200))
    assert told <= 3


def test_looking_again_after_every_commit_raises_one_false_alarm_in_five_hundred() -> None:
    told = 0
    for seed in range(12):
        values = history((100, 5.0), noise=0.02, seed=seed)
        told += any(find(values[:n]) for n in range(10, 101))
    assert told <= 2


def test_noise_that_remembers_is_not_a_change() -> None:
    told = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal(120) * 0.02
        for i in range(1, 120):
            noise[i] += 0.5 * noise[i - 1]
        told += bool(find(np.exp(noise)))
    assert told <= 5


@pytest.mark.parametrize(("effect", "least"), [(0.04, 0.9), (0.1, 1.0), (-0.04, 0.9)])
def test_changes_are_found_in_place(effect: float, least: float) -> None:
    found = 0
    for seed in range(60):
        at = 20 + seed
        values = history((at, 1.0), (100 - at, 1 + effect), noise=0.017, seed=seed)
        found += any(abs(one.at - at) <= 2 for one in find(values))
    assert found / 60 >= least


def test_a_change_is_told_a_few_commits_after_it() -> None:
    delays = []
    for seed in range(20):
        values = history((50, 1.0), (30, 1.1), noise=0.02, seed=seed)
        delays.append(next(n for n in range(51, 81) if any(one.at >= 48 for one in find(values[:n]))))
    assert np.median(delays) - 50 <= 4


def test_what_is_said_of_a_change() -> None:
    first, second = find(history((30, 100.0), (30, 110.0), (30, 99.0), noise=0.005))
    assert (first.at, second.at) == (30, 60)
    assert first.ratio == pytest.approx(1.1, rel=0.01)
    assert second.ratio == pytest.approx(0.9, rel=0.01)
    assert (first.before, first.after) == pytest.approx((100, 110), rel=0.01)
    assert first.p_value < 1e-9


@pytest.mark.parametrize("at", [0, 1, 30, 58, 59])
def test_single_outliers_are_no_change(at: int) -> None:
    values = history((60, 1.0), noise=0.01)
    values[at] *= 5
    assert find(values) == ()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_host_that_jumps_between_two_states_at_random_has_no_changes(share: float) -> None:
    told = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = np.where(rng.random(150) < share, 1.0, 3.0) * np.exp(0.01 * rng.standard_normal(150))
        told += bool(find(values))
    assert told <= 2


def test_small_changes_can_be_left_out() -> None:
    values = history((40, 1.0), (40, 1.03), (40, 1.2), noise=0.005)
    assert [one.at for one in find(values)] == [40, 80]
    assert [one.at for one in find(values, min_effect=0.1)] == [80]


def test_the_unit_and_the_direction_of_time_do_not_matter() -> None:
    values = history((35, 1.0), (45, 1.1), noise=0.02, seed=3)
    assert [one.at for one in find(values * 1e6)] == [one.at for one in find(values)]
    assert [80 - one.at for one in find(values[::-1])] == [one.at for one in find(values)]


def test_missing_values_keep_their_places() -> None:
    values = history((30, 1.0), (30, 1.2), noise=0.01)
    values[[0, 5, 29, 45]] = math.nan
    (change,) = find(values)
    assert change.at == 30


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 50, [math.nan] * 50, [1, 2, 3, 4, 5, 6]])
def test_too_little_to_tell_is_no_change(values) -> None:
    assert find(np.array(values, dtype=float)) == ()


def test_a_clean_step_is_certain() -> None:
    (change,) = find(np.array([1.0] * 10 + [2.0] * 10))
    assert (change.at, change.ratio, change.p_value) == (10, pytest.approx(2), pytest.approx(0))


def test_nonsense_is_refused() -> None:
    for bad, match in ((math.inf, "inf"), (0.0, "positive"), (-1.0, "positive")):
        with pytest.raises(ValueError, match=match):
            find(np.array([1.0, 2.0, bad, 4.0]))
    for options in ({"risk": 0.0}, {"min_size": 1}, {"min_effect": math.nan}):
        with pytest.raises(ValueError, match="expected a risk"):
            find(np.ones(20), **options)


def test_what_does_not_stand_out_of_the_noise_around_it_can_be_left_out() -> None:
    values = history((60, 1.0), (60, 1.03), (60, 1.2), noise=0.02)
    small, large = find(values)
    assert abs(small.at - 60) <= 2
    assert find(values, least_t=7) == (large,)


def test_levels_that_do_not_last_are_no_levels() -> None:
    rng = np.random.default_rng(0)
    values = np.exp(np.repeat(0.2 * rng.standard_normal(60), 6) + 0.002 * rng.standard_normal(360))
    assert len(find(values)) > 50
    assert len(find(values, least_t=7)) < 10


@pytest.mark.data
def test_what_perfherders_own_tests_expect_is_found() -> None:
    folder = DATA / "anomaly" / "perf_history"
    expected = json.loads((folder / "talos_expected.json").read_text())
    for name in ("talos_runs1.csv", "talos_runs2.csv", "talos_a11y.csv"):
        with (folder / name).open() as file:
            rows = list(csv.DictReader(file))
        found = [one.at for one in find(np.array([float(row["value"]) for row in rows]))]
        times = np.array([float(row["push_timestamp"]) for row in rows])
        for stamp in expected[name]:
            assert min(abs(at - int(np.abs(times - stamp).argmin())) for at in found) <= 2


PERF = DATA / "anomaly" / "perf_history"
HALVES = {
    "chosen on": ("quality_control_1", "quality_control_5", "talos_a11y.csv", "talos_runs2.csv"),
    "held back": ("quality_control_3", "run_log", "talos_runs1.csv", "talos_runs5.csv"),
}
"""Every second history by name: the rule was chosen on one half."""


def marked(name: str) -> tuple[np.ndarray, list[int]]:
    """Return a public history, and where its test suite or most of five people see a change."""
    if name.endswith(".csv"):
        with (PERF / name).open() as file:
            rows = list(csv.DictReader(file))
        times = np.array([float(row["push_timestamp"]) for row in rows])
        stamps = json.loads((PERF / "talos_expected.json").read_text())[name]
        return np.array([float(row["value"]) for row in rows]), [int(np.abs(times - at).argmin()) for at in stamps]
    raw = np.array(json.loads((PERF / "tcpd" / f"{name}.json").read_text())["series"][0]["raw"], float)
    people = json.loads((PERF / "tcpd" / "annotations.json").read_text())[name]
    every = sorted(at for marks in people.values() for at in marks)
    most = [
        at
        for i, at in enumerate(every)
        if sum(abs(at - one) <= 5 for one in every) > len(people) / 2 and (not i or at - every[i - 1] > 5)
    ]
    # of any sign: their spread is made a tenth of a logarithm
    return np.exp(0.1 * (raw - np.nanmean(raw)) / np.nanstd(raw)), most


@pytest.mark.data
@pytest.mark.parametrize("half", HALVES)
def test_what_is_told_of_public_histories_is_what_people_mark(half: str) -> None:
    n_marks = n_found = n_besides = 0
    for name in HALVES[half]:
        values, marks = marked(name)
        found = [one.at for one in find(values, min_effect=MIN_CHANGE, min_size=LEAST_VALUES, least_t=LEAST_T)]
        n_marks += len(marks)
        n_found += sum(any(abs(at - mark) <= 5 for at in found) for mark in marks)
        n_besides += sum(all(abs(at - mark) > 5 for mark in marks) for at in found)
    assert n_found >= 0.9 * n_marks
    assert n_found >= 0.8 * (n_found + n_besides)
