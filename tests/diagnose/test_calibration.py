"""Printed intervals hold what fixes really save, as often as they claim, and stay useful."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import pytest
from builder import TraceBuilder
from coverage import LARGE, PRINTED, SHIPPED, conformal_quantile, high_score, odds_score, of_cases, stored, worst
from replay_accuracy import Sample, asked, emulated, in_virtual_time

import torchtriage
from torchtriage.core.finding import Cost
from torchtriage.diagnose.calibration import (
    MOST_NOISE,
    UNKNOWN_NOISE,
    Margins,
    calibrated,
    margins,
    step_noise,
    widened,
)

NONE = Margins(1.0, 1.0, 0.0, 0.8)


def cost(low: float, high: float) -> Cost:
    return Cost(10 * low, 10 * high, "step", 10.0, low, high, 9.5, "modelled", "replay", "A")


def test_margins_of_nothing_move_nothing() -> None:
    assert widened(0.2, 0.4, NONE) == pytest.approx((0.2, 0.4))


def test_odds_and_noise_move_both_ends() -> None:
    low, high = widened(0.2, 0.5, Margins(2.0, 3.0, 1.5, 0.8), 0.01)
    assert low == pytest.approx(1 / 9 - 0.015)  # 1:4 becomes 1:8
    assert high == pytest.approx(0.75 + 0.015)  # 1:1 becomes 3:1


def test_an_interval_ends_at_the_step_and_a_slow_down_keeps_its_sign() -> None:
    low, high = widened(-0.1, 1.0, Margins(2.0, 2.0, 1.0, 0.8), 0.01)
    assert low == pytest.approx(-0.11)
    assert high == 1.0


def test_a_cost_says_what_was_moved_and_promises_nothing_below_zero() -> None:
    out = calibrated(cost(0.001, 0.4), "replay", 0.01)
    assert (out.low_ms, out.share_low) == (0.0, 0.0)
    assert out.share_high > 0.4
    assert out.high_ms == pytest.approx(10 * out.share_high, abs=1e-5)
    assert out.calibration is not None
    assert (out.calibration.share_low, out.calibration.share_high) == (0.001, 0.4)
    assert out.calibration.coverage == margins("replay").coverage


def test_no_more_is_promised_than_any_fix_can_give_back() -> None:
    assert calibrated(cost(0.1, 0.4), "replay", 0.01, most_ms=4.1).high_ms == pytest.approx(4.1)
    # where the model itself says more, it stays
    assert calibrated(cost(0.1, 0.4), "replay", 0.01, most_ms=3.0).high_ms == pytest.approx(4.0)
    assert calibrated(cost(0.1, 0.4), "looks").high_ms > 4.1


def test_no_saving_stays_no_saving() -> None:
    nothing = cost(0.0, 0.0)
    assert calibrated(nothing, "replay", 0.01) == nothing


@pytest.mark.parametrize("family", ["replay", "looks"])
def test_findings_keep_their_order(family: str) -> None:
    lows = [calibrated(cost(low, 0.9), family, 0.002).low_ms for low in (0.02, 0.1, 0.3, 0.8)]
    assert lows == sorted(lows)


def test_the_noise_of_the_step_is_read_off_its_spread() -> None:
    builder = TraceBuilder()
    for index, (start, length) in enumerate([(0, 1000), (1000, 1004), (2004, 996), (3000, 1000), (4000, 1000)]):
        builder.step(index, start, length).op("aten::add", start + 1, 10)
    trace = builder.build()
    assert trace.steps.n_steady == 4  # the first step warms up
    spread = (32 / 3) ** 0.5
    assert step_noise(trace) == pytest.approx(2**0.5 * spread / 2 / 1000)


def test_odd_steps_are_no_noise_of_the_saving() -> None:
    builder = TraceBuilder()
    for index, (start, length) in enumerate([(0, 100), (100, 100), (200, 130), (330, 100), (430, 90)]):
        builder.step(index, start, length).op("aten::add", start + 1, 10)
    assert step_noise(builder.build()) == MOST_NOISE


def test_too_few_steps_tell_no_noise() -> None:
    assert step_noise(TraceBuilder().step(0, 0, 100).op("aten::add", 1, 10).build()) == UNKNOWN_NOISE


def test_quantile_is_the_conformal_one() -> None:
    assert conformal_quantile([1, 2, 3, 4], 0.8) == 4
    assert conformal_quantile(range(1, 10), 0.8) == 8
    assert conformal_quantile([1, 2], 0.8) == float("inf")


def test_coverage_of_fixes_that_set_no_margin_is_what_is_claimed() -> None:
    sample = Sample(n_random=16, n_mixed=6, n_deep=0, first=2_000)
    by = margins("replay")
    for found in (emulated(sample, in_virtual_time), asked(sample)):
        pairs = [pair for pair in of_cases(found, "emulated fix") if pair.high > PRINTED]
        assert len(pairs) > 60
        inside = sum(pair.is_inside(by) for pair in pairs) / len(pairs)
        assert inside >= by.coverage, inside
        assert median(pair.width(by) for pair in pairs if pair.saved > LARGE) <= 0.5


def test_shipped_margins_are_those_of_the_stored_pairs() -> None:
    document = json.loads(SHIPPED.read_text())
    for row in document["measured"]:
        if row["n_judged"] >= 20:  # of fewer one is 5 % and more
            assert row["inside"] >= document["coverage"], row
    # each factor is one that a pair of the setting half asks for
    noises = document["families"]["replay"]["noises"]
    sets = [pair for pair in stored() if pair.sets and pair.high > PRINTED]
    for family, score in (("replay", lambda pair: odds_score(pair, noises)), ("looks", high_score)):
        shipped = document["families"][family]["odds_high"]
        asked_for = conformal_quantile(worst(sets, family, score), document["coverage"])
        assert asked_for == pytest.approx(shipped, abs=0.006)


def test_a_trace_is_priced_with_its_margins() -> None:
    _, seed, program = next(iter(Sample(n_random=1).programs()))
    trace = in_virtual_time(program, seed)
    result = torchtriage.analyze(trace)
    priced = [finding.cost for finding in result.findings if finding.cost and finding.cost.calibration]
    assert priced
    for item in priced:
        ends = item.calibration
        assert ends is not None
        again = calibrated(
            replace(item, share_low=ends.share_low, share_high=ends.share_high, calibration=None),
            "replay",
            step_noise(trace),
            most_ms=item.naive_ms,
        )
        assert (again.low_ms, again.high_ms) == pytest.approx((item.low_ms, item.high_ms), abs=1e-4)
