"""What the detectors once overlooked: failures at any usual rate, NaN, other sizes, growth, the end of an alarm."""

import math
import random
from functools import cache

import pytest
from tests.conftest import DATA
from tests.operate.detect.test_detect import changed, raised, stream, times

from torchtriage.operate.detect.failure_rate import FailureRate
from torchtriage.operate.detect.latency_detector import RequestDetector, Sample
from torchtriage.operate.detect.recorded import read_log


def failing(rate, seed=4):
    draw = random.Random(seed)
    return lambda at, one: one._replace(ok=draw.random() >= rate)


@pytest.mark.parametrize("usual", [0.002, 0.015, 0.05, 0.2, 0.5])
def test_all_failing_is_told_whatever_share_failed_before(usual):
    samples = changed(changed(stream(6000), 0, 4000, failing(usual)), 4000, 6000, failing(1.0))
    alarms = raised(samples)
    # a tenth and more that fail from the first request on are told once, then usual
    assert [alarm for alarm in alarms if 500 < alarm.row < 4000] == []
    found = [alarm for alarm in alarms if alarm.row >= 4000]
    assert found[0].kind == "missing"
    assert found[0].row < 4000 + 40


@pytest.mark.parametrize("usual", [0.0, 0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("run", [1.0, 3.0])
def test_failures_as_ever_are_quiet_also_in_runs(usual, run):
    draw, rate, failed, n_on, was = random.Random(7), FailureRate(), False, 0, False
    for _ in range(20_000):
        stays = 1 - 1 / run if failed and run > 1 else usual if run == 1 else usual / run / (1 - usual)
        failed = draw.random() < stays
        rate.update(failed)
        n_on += rate.on and not was
        was = rate.on
    assert n_on <= 4  # of 20,000: 2 of 10,000 in one draw


def test_nan_is_a_kind_of_its_own():
    often_failing = changed(stream(6000), 0, 6000, failing(0.05))
    alarms = raised(changed(often_failing, 4000, 4100, lambda at, one: one._replace(value=math.nan, ok=True)))
    assert {alarm.kind for alarm in alarms} == {"nan"}
    assert alarms[0].row < 4010


def test_a_service_whose_every_request_fails_is_told_from_its_first_hundred_on():
    (alarm, *_) = raised([one._replace(ok=False) for one in stream(600)])
    assert (alarm.kind, alarm.row < 200) == ("missing", True)


def test_calls_while_a_model_warms_up_are_not_judged():
    slow = changed(stream(), 0, 300, lambda at, one: one._replace(value=one.value * (200 if at < 20 else 5)))
    assert raised(slow) == []


@cache
def mixed_sizes():
    """Return recorded requests of services that got requests of several sizes."""
    paths = [path for path in sorted((DATA / "anomaly").glob("*/*.csv")) if path.parent.name in ("ptlat", "semi")]
    logs = [read_log(path)[0].samples for path in paths]
    return [log for log in logs if len({one.size for one in log}) > 3]


@pytest.mark.data
@pytest.mark.parametrize("series", range(7))
@pytest.mark.parametrize("apart", [2, 4])
def test_sizes_out_of_the_range_known_are_told(series, apart):
    # real requests of mixed sizes: first those of the small ones alone, then those of larger ones
    mixed = mixed_sizes()[series]
    sizes = sorted(one.size for one in mixed)
    middle = sizes[len(sizes) // 2]
    small = [one for one in mixed if one.size <= middle]
    larger = [one._replace(size=one.size * apart) for one in mixed if one.size >= middle]
    detector = RequestDetector()
    before = [detector.update(one) for one in (small * 3)[:2000]]
    after = [alarm for alarm in map(detector.update, larger[:100]) if alarm]
    assert not [alarm for alarm in before if alarm and alarm.kind == "input-mix"]
    assert [alarm for alarm in after if alarm.kind == "input-mix"], {alarm.kind for alarm in after}


def test_one_size_after_another_is_told_though_it_takes_no_longer():
    alarms = raised(changed(stream(size=8), 2000, 2400, lambda at, one: one._replace(size=64)))
    assert alarms[0].kind == "input-mix"
    assert alarms[0].row < 2030


def test_an_alarm_that_grows_is_told_again():
    samples = changed(changed(stream(), 2000, 2200, times(1.4)), 2100, 2200, times(4))
    first, again = [one for one in raised(samples) if one.kind == "shift"]
    assert first.row < 2020
    assert first.size == pytest.approx(1.4, rel=0.1)
    assert 2100 <= again.row < 2130
    assert again.size > 3


def test_the_end_is_told_with_the_largest_size():
    detector = RequestDetector()
    alarms = raised(changed(stream(), 2000, 2150, times(3)), detector)
    assert alarms[0].kind == "shift"
    ended = [one for one in detector.take_ended() if one.kind == "shift"]
    assert len(ended) == 1
    assert 2150 < ended[0].row < 2400
    assert ended[0].size == pytest.approx(3, rel=0.15)
    assert "over after" in ended[0].message
    assert detector.take_ended() == []


def test_a_change_that_stays_is_on_until_requests_are_as_before():
    detector = RequestDetector()
    alarms = raised(changed(stream(), 1500, 3500, times(2)), detector)
    assert [alarm.kind for alarm in alarms] == ["shift"]  # that it is back is its end, and no news of its own
    (over,) = detector.take_ended()
    assert 3500 < over.row < 3600
    assert "shift over after 2" in over.message
    assert over.size == pytest.approx(2, rel=0.1)
    assert not over.lasts


def lasts(samples, detector=None):
    """Return the alarms, and what ended or was told as lasting, with rows."""
    detector = detector or RequestDetector()
    alarms, ends = [], []
    for sample in samples:
        alarm = detector.update(sample)
        alarms += [] if alarm is None else [alarm]
        ends += detector.take_ended()
    return alarms, ends


def endless(n, fault_at, value, *, pace_s=1.0, ok=lambda draw, at: True, seed=3):
    draw = random.Random(seed)
    for at in range(n):
        took = 0.01 * math.exp(draw.gauss(0, 0.1)) * (value(draw, at) if at >= fault_at else 1)
        yield Sample(took, at * pace_s, ok=ok(draw, at))


@pytest.mark.parametrize(("pace_s", "row"), [(1.0, 12_000), (0.1, 38_000)])
def test_what_holds_for_an_hour_and_ten_thousand_requests_is_told_as_lasting(pace_s, row):
    alarms, ends = lasts(endless(row + 1_000, 2_000, lambda draw, at: 1.8, pace_s=pace_s))
    assert {alarm.kind for alarm in alarms} <= {"shift"}
    (lasting,) = ends
    assert lasting.lasts
    assert lasting.row == pytest.approx(row, abs=50)
    assert "lasting" in lasting.message
    assert lasting.size == pytest.approx(1.8, rel=0.15)


def test_a_further_fault_on_top_of_one_that_lasts_is_told():
    alarms, ends = lasts(endless(6_000, 2_000, lambda draw, at: 1.8 if at < 5_000 else 5.0))
    assert any(5_000 <= alarm.row < 5_030 and alarm.kind == "shift" for alarm in alarms)
    assert not [end for end in ends if end.kind == "shift"]


def test_failures_that_last_are_on_as_long_as_they_do():
    _, ends = lasts(endless(30_000, 0, lambda *_: 1, ok=lambda draw, at: at < 2_000 or draw.random() > 0.05))
    assert [(end.kind, end.lasts) for end in ends] == [("missing", True)]
    _, ends = lasts(endless(9_000, 0, lambda *_: 1, ok=lambda draw, at: not 2_000 < at < 8_000 or draw.random() > 0.05))
    assert [(end.kind, end.lasts) for end in ends] == [("missing", False)]
    assert ends[0].row > 8_000


def test_a_tail_that_lasts_is_on_as_long_as_it_does():
    _, ends = lasts(endless(14_000, 4_000, lambda draw, at: 20 if at < 12_000 and draw.random() < 0.06 else 1))
    ends = [end for end in ends if end.kind == "tail"]
    assert len(ends) == 1
    assert 11_900 < ends[0].row < 12_500
    assert 10 < ends[0].size < 20  # what they exceed, not the least that is rare


def test_what_is_accepted_is_the_normal():
    detector = RequestDetector()
    faulty = endless(6_000, 2_000, lambda draw, at: 2.0, ok=lambda draw, at: at < 2_000 or draw.random() > 0.2)
    samples = list(faulty)
    alarms, _ = lasts(samples[:4_000], detector)
    assert {alarm.kind for alarm in alarms} == {"shift", "missing"}
    detector.accept()
    assert not detector.alarmed
    alarms, ends = lasts(samples[4_000:], detector)
    assert (alarms, ends) == ([], [])
    alarms, _ = lasts([sample._replace(value=sample.value / 2, ok=True) for sample in samples[:300]], detector)
    assert [alarm.kind for alarm in alarms] == ["faster"]  # it is compared with what was accepted


def test_a_tail_is_told_by_how_long_requests_take_however_much_they_scatter_by_now():
    # requests of 3 x come as ever; where the scatter has grown, 30 x is fewer of its scales than 3 x once was
    draw, samples = random.Random(5), stream(5_000)
    samples = changed(samples, 500, 2_000, lambda at, one: times(3 if at % 40 == 0 else 1)(at, one))
    samples = changed(samples, 2_000, 5_000, lambda at, one: times(math.exp(draw.gauss(0, 0.25)))(at, one))
    usual = raised(samples)
    alarms = raised(changed(samples, 4_500, 4_800, lambda at, one: times(30 if at % 40 == 0 else 1)(at, one)))
    assert [one for one in usual if one.row >= 4_500] == []
    assert next(alarm.kind for alarm in alarms if alarm.row >= 4_500) == "tail"


def test_a_second_huge_request_is_told_and_what_comes_again_and_again_is_not():
    slow = [one._replace(value=one.value * 5) for one in stream(8_000)]
    twice = changed(changed(slow, 2_000, 2_001, times(200)), 2_750, 2_751, times(60))
    assert [(one.row, one.kind) for one in raised(twice)] == [(2_000, "surge"), (2_750, "surge")]
    often = changed(slow, 0, 8_000, lambda at, one: times(200 if at % 700 == 7 else 1)(at, one))
    assert len(raised(often)) <= 3


def test_one_huge_request_is_told_though_the_largest_known_are_few_and_differ():
    samples = changed(stream(1_000), 0, 700, lambda at, one: times(3 if at % 200 == 150 else 1)(at, one))
    assert [(one.row, one.kind) for one in raised(changed(samples, 720, 721, times(400)))] == [(720, "surge")]


def test_faster_is_a_kind_of_its_own():
    alarms = raised(changed(stream(), 2000, 2200, times(0.5)))
    assert alarms[0].kind == "faster"
    assert alarms[0].better
    assert 45 <= int(alarms[0].message.split()[2]) <= 55  # per cent of the time


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: math.exp(rng.gauss(0, 0.8)),
        lambda rng: (3 if rng.random() < 0.3 else 1) * math.exp(rng.gauss(0, 0.05)),
        lambda rng: (3 if rng.random() < 0.1 else 1) * math.exp(rng.gauss(0, 0.05)),
    ],
)
def test_wide_and_bimodal_latencies_are_learned(draw):
    n_false = n_found = 0
    for seed in range(4):
        rng = random.Random(seed)
        samples = [one._replace(value=0.01 * draw(rng)) for one in stream(10_000)]
        n_false += sum(not one.better for one in raised(samples))
        n_found += any(5000 <= one.row < 5300 for one in raised(changed(samples, 5000, 5300, times(3))))
    assert n_false <= 4
    assert n_found == 4


SHAPES = {
    "gamma": lambda draw: draw.gammavariate(2, 0.005),
    "uniform": lambda draw: draw.uniform(0.001, 0.1),
    "exponential": lambda draw: draw.expovariate(100),
    "log-normal 1.2": lambda draw: 0.01 * draw.lognormvariate(0, 1.2),
    "whole milliseconds": lambda draw: round(3 * draw.lognormvariate(0, 0.1)) * 1e-3,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_healthy_latencies_of_any_shape_are_quiet(shape):
    alarms = []
    for seed in range(2):
        draw, detector = random.Random(seed), RequestDetector()
        samples = [Sample(SHAPES[shape](draw), at * 0.01) for at in range(10_000)]
        alarms += [(alarm.kind, alarm.row) for sample in samples if (alarm := detector.update(sample))]
    assert len(alarms) <= 2, alarms


def test_a_value_that_sticks_is_told_where_values_are_whole_milliseconds():
    draw, detector = random.Random(1), RequestDetector()
    for at in range(3_000):
        assert detector.update(Sample(SHAPES["whole milliseconds"](draw), at * 0.01)) is None
    alarms = [detector.update(Sample(0.003, 30 + at * 0.01)) for at in range(400)]
    assert [alarm.kind for alarm in alarms if alarm] == ["stuck"]
