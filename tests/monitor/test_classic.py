"""The laws every detector keeps, and what each finds."""

import math
import pickle
import random

import pytest

from torchtriage.monitor.detect.classic import Cusum, PageHinkley, QuantileDrift, RobustZ

EVERY = [
    RobustZ,
    Cusum,
    QuantileDrift,
    lambda: PageHinkley(40.0, slack=0.2),
]


def noise(n, seed=1):
    draw = random.Random(seed)
    return [10 + draw.gauss(0, 1) for _ in range(n)]


def alarms(detector, values):
    return [at for at, value in enumerate(values) if detector.update(value, float(at)) >= 1]


@pytest.mark.parametrize("make", EVERY)
def test_quiet_on_noise_and_on_one_value_for_ever(make):
    assert alarms(make(), noise(5000)) == []
    assert alarms(make(), [3.0] * 3000) == []


@pytest.mark.parametrize("make", EVERY)
def test_finds_a_shift(make):
    values = [*noise(2000), *(value + 3 for value in noise(300, seed=2))]
    found = alarms(make(), values)
    assert found
    assert 2000 <= found[0] < 2100


@pytest.mark.parametrize("make", EVERY)
def test_what_is_not_finite_and_clocks_that_jump_change_nothing(make):
    one, other = make(), make()
    for at, value in enumerate(noise(3000)):
        expected = one.update(value, float(at))
        if at % 7 == 0:
            for odd in (math.nan, math.inf, -math.inf):
                other.update(odd, -1e9)
        assert other.update(value, -float(at)) == expected


@pytest.mark.parametrize("make", EVERY)
def test_a_saved_detector_goes_on_as_if_nothing_had_been(make):
    one = make()
    for at, value in enumerate(noise(1500)):
        one.update(value, float(at))
    other = pickle.loads(pickle.dumps(one))
    for at, value in enumerate(noise(1500, seed=3)):
        assert one.update(value + at / 300, at) == other.update(value + at / 300, at)


@pytest.mark.parametrize("make", EVERY)
def test_it_does_not_grow(make):
    detector = make()
    sizes = []
    for at, value in enumerate(noise(6000)):
        detector.update(value, float(at))
        if at in (2500, 5999):
            sizes.append(len(pickle.dumps(detector)))
    assert abs(sizes[1] - sizes[0]) < 200


def test_a_change_of_the_tail_alone_is_a_drift_of_quantiles():
    draw = random.Random(5)
    tail = [value * (4 if draw.random() < 0.1 else 1) for value in noise(400, seed=6)]
    found = alarms(QuantileDrift(), [*noise(2000), *tail])
    assert found
    assert found[0] >= 2000
