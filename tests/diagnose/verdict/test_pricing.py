"""Costs: replayed where the run can be told from its causes, bounded by what a finding owns."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder, untraced
from diagnose.replay import programs

import torchtriage as tt
from torchtriage.api.traces import sample_path
from torchtriage.core import intervals
from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Finding, Fix, Place
from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.patterns import Claim, Edit, Pattern
from torchtriage.diagnose.replay import parse_what_if
from torchtriage.diagnose.verdict.pricing import Pricing, answers
from torchtriage.diagnose.verdict.summary import N_PIECES, summarise_path
from torchtriage.diagnose.verdict.time_ownership import Share, share_out

US = 1_000
PATTERN = Pattern("TST001", "test", "test", "Test", 1, frozenset())


def claim(trace: Trace, *edits: Edit, low: float = 0.2, high: float = 1.0) -> Claim:
    """Return a claim on all work of the device."""
    rows = np.flatnonzero(trace.works)
    spans = intervals.spans(trace.start_ns[rows], trace.end_ns[rows])
    return Claim("work", "likely", rows, spans, low, high, "compute", "measured", edits=edits)


def price(trace: Trace, one: Claim):
    pricing = Pricing.of(trace, ())
    (share,) = share_out(trace, [(PATTERN, one)])
    (prediction,) = pricing.predict([one])
    return pricing, share, pricing.cost(share, prediction)


def halved(trace: Trace) -> Edit:
    return Edit("shrink", np.flatnonzero(trace.works), 0.5)


def test_what_the_host_hides_costs_nothing() -> None:
    """Arithmetic promises up to 200 us of the 1200 us step; replay knows better."""
    trace = programs.host_bound()
    pricing, share, cost = price(trace, claim(trace, halved(trace)))
    assert cost.high_ms == pytest.approx(0, abs=0.002)
    assert cost.naive_ms == pytest.approx(0.2, rel=0.01)
    assert pricing.hides(share, pricing.predict([share.claim])[0])


def paced_by_the_profiler(*, sleep_us: float = 0) -> Trace:
    """Steps of ten kernels of 80 us; shapes and stacks make the host, 100 us a kernel, slower than those."""
    b = TraceBuilder(record_shapes=1, with_stack=1)
    for step in range(4):
        wall = 1_000 + sleep_us
        at = 1_000 + step * wall
        b.step(step, at, wall)
        for i in range(10):
            for k in range(10):
                b.op("aten::view", at + i * 100 + 10 * k, 10)
            b.launch(at + i * 100 + 30, 8, at + i * 100 + 40, 80)
    return b.build()


def test_a_host_that_only_the_profiler_slows_hides_no_saving_of_the_device() -> None:
    trace = paced_by_the_profiler()
    pricing, share, cost = price(trace, claim(trace, halved(trace), high=0.5))
    # without the profiler the device paces the step: 0.8 ms, and 0.45 ms (the host) with the fix, half of which is
    # sure; at best the host stays ahead, and all of it is saved
    assert cost.calibration is not None
    ends = cost.calibration.share_low * cost.of_ms, cost.calibration.share_high * cost.of_ms
    assert ends == pytest.approx((0.35 / 2, 0.4), abs=0.01)
    (prediction,) = pricing.predict([share.claim])
    assert not pricing.hides(share, prediction)
    # all findings together give no less than one of them
    finding = Finding("TST001", "test", "test", "Test", "low", "likely", "work", Place(), cost, {}, Fix("shrink it"))
    joint = pricing.joint([finding], [share.claim])
    assert joint is not None
    assert joint.high_ms == pytest.approx(cost.high_ms)


def test_nor_of_an_operator_that_goes_with_its_kernel() -> None:
    trace = paced_by_the_profiler()
    rows = np.flatnonzero(trace.kind == Kind.KERNEL)
    gone = np.concatenate([rows, trace.links.op[rows]])
    _, _, cost = price(trace, claim(trace, Edit("drop", gone)))
    assert cost.calibration is not None
    assert cost.calibration.share_high * cost.of_ms > 0.4  # 0.1 as recorded


def test_idle_time_that_only_the_profiler_makes_saves_nothing_for_sure() -> None:
    trace = paced_by_the_profiler()
    spans = trace.devices[0].idle
    idle = Claim("late", "likely", np.empty(0, np.int64), spans, 0.2, 1.0, "idle", edits=(Edit("threads", factor=0.5),))
    _, _, cost = price(trace, idle)
    assert cost.low_ms == pytest.approx(0, abs=0.01)
    assert cost.high_ms == pytest.approx(0.2, abs=0.02)


def test_a_host_that_is_slower_even_without_the_profiler_hides_it() -> None:
    # no event is near where the host sleeps
    trace = paced_by_the_profiler(sleep_us=1_000)
    _, _, cost = price(trace, claim(trace, halved(trace)))
    assert cost.low_ms == 0
    assert cost.high_ms < 0.05


def test_what_bounds_the_step_is_replayed() -> None:
    trace = programs.device_bound()
    _, _, cost = price(trace, claim(trace, halved(trace)))
    assert cost.calibration is not None
    ends = cost.calibration.share_low * cost.of_ms, cost.calibration.share_high * cost.of_ms
    assert ends == pytest.approx((0.5, 0.5), rel=0.02)
    assert cost.low_ms < 0.5 < cost.high_ms
    assert (cost.basis, cost.grade) == ("modelled", "A")
    assert "replay" in cost.method


def test_no_finding_gets_more_than_it_owns() -> None:
    trace = programs.host_bound()
    everything = Edit("threads")
    _, share, cost = price(trace, claim(trace, everything, halved(trace)))
    owned = share.owned_ns.sum() / trace.steps.n_steady / 1e6
    assert cost.calibration is not None
    assert cost.calibration.share_high * cost.of_ms == pytest.approx(owned, rel=1e-4)
    assert cost.low_ms <= cost.high_ms


def test_without_edits_arithmetic_stays() -> None:
    trace = programs.device_bound()
    _, _, cost = price(trace, claim(trace, low=0.25, high=0.5))
    wall = trace.steps.wall_ns / 1e6
    busy = 1000 * US / 1e6
    assert cost.low_ms == pytest.approx(0.25 * busy, rel=0.02)
    assert cost.high_ms == pytest.approx(0.5 * busy, rel=0.02)
    assert (cost.basis, cost.of_ms) == ("measured", pytest.approx(wall, rel=1e-3))


def test_a_claim_on_no_time_has_no_cost() -> None:
    trace = programs.device_bound()
    one = Claim("flag", "certain", np.empty(0, np.int64), edits=(halved(trace),))
    pricing = Pricing.of(trace, ())
    (share,) = share_out(trace, [(PATTERN, one)])
    assert pricing.predict([one]) == [None]
    assert pricing.cost(share, None) is None


def test_a_refused_model_gives_no_number_and_says_why() -> None:
    trace = untraced().build()
    pricing = Pricing.of(trace, ())
    assert not pricing.facts.accepted
    assert pricing.facts.reason
    one = claim(trace, halved(trace))
    assert pricing.predict([one]) == [None]
    _, _, cost = price(trace, one)
    assert cost.basis == "measured"
    (answer,) = answers(pricing, [parse_what_if("gpu*0.5")])
    assert answer.saving_ms is None
    assert answer.reason == pricing.facts.reason
    result = tt.analyze(trace, what_if=["gpu*0.5"], step_ms=0.5)
    assert result.replay is not None
    assert not result.replay.accepted
    assert result.replay.unprofiled_step_ms is None  # nothing was scaled
    assert result.critical_path is None


def test_what_is_taken_away_is_the_most_that_it_saves() -> None:
    (answer,) = tt.analyze(sample_path(), what_if=["loader=0"]).what_ifs
    assert answer.high_ms == pytest.approx(answer.naive_ms)
    assert answer.low_ms < answer.saving_ms <= answer.high_ms


def test_answers_are_in_the_result() -> None:
    result = tt.analyze(programs.device_bound(), what_if=["gpu*0.5", "comm=0"])
    fast, none = result.what_ifs
    assert (fast.question, fast.per) == ("gpu*0.5", "step")
    assert fast.after_ms == pytest.approx(0.51, rel=0.02)
    assert fast.low_ms <= fast.saving_ms <= fast.high_ms
    assert none.saving_ms is None
    assert none.reason


def test_one_question_is_no_list_of_letters() -> None:
    (one,) = tt.analyze(programs.device_bound(), what_if="gpu*0.5").what_ifs
    assert one.question == "gpu*0.5"


@pytest.mark.parametrize("options", [{"what_if": ["gpx*0.5"]}, {"step_ms": 0}, {"step_ms": -1.0}])
def test_odd_questions_and_times_are_refused(options) -> None:
    with pytest.raises(UsageError):
        tt.analyze(programs.device_bound(), **options)


def test_savings_are_shares_of_the_unprofiled_step() -> None:
    b = TraceBuilder(with_stack=1)
    for step in range(4):
        at = 1_000 + step * 1_200
        b.step(step, at, 1_200)
        for i in range(100):
            b.op("aten::mul", at + i * 11 + 1, 9)
            b.launch(at + i * 11 + 2, 5, at + i * 11 + 9, 2)
    result = tt.analyze(b.build(), step_ms=0.8)
    assert result.replay is not None
    assert result.replay.unprofiled_step_ms == pytest.approx(0.8, rel=0.02)
    (found,) = [finding for finding in result.findings if finding.code == "LCH014"]
    assert found.cost is not None
    assert found.cost.of_ms == pytest.approx(0.8, rel=0.02)
    assert found.cost.high_ms < 0.8  # the rest of the step was recorded as well
    # more than the profiler's own cost cannot go, and nothing comes
    for asked in (0.001, 100):
        result = tt.analyze(b.build(), step_ms=asked)
        assert result.replay is not None
        assert result.findings[0].cost is not None
        assert result.replay.unprofiled_step_ms == pytest.approx(result.findings[0].cost.of_ms)
        assert 0.1 < result.findings[0].cost.of_ms < 1.3


@pytest.mark.parametrize("step_ms", [10, 5])
def test_a_profiler_that_slows_much_leaves_a_saving(step_ms: float) -> None:
    """A norm takes 8 of 20 recorded ms: with the same slow-down everywhere it is 40 % of the step."""
    b = TraceBuilder(vendor="cpu")
    for step in range(4):
        b.step(step, 20_000 * step, 20_000)
        for number in range(11):
            b.op("aten::mm", 20_000 * step + 8_100 + 1_000 * number, 950)
        dims, types = [[2, 100, 1000], [], []], ["float", "Scalar", "ScalarList"]
        b.op("aten::linalg_vector_norm", 20_000 * step + 5, 8_000, dims=dims, types=types, concrete=["", "2", "[0]"])
    result = tt.analyze(b.build(), step_ms=step_ms)
    (found,) = [finding for finding in result.findings if finding.code == "KRN073"]
    assert found.cost is not None
    assert 0.3 * step_ms < found.cost.high_ms < 0.5 * step_ms


def test_together_counts_what_overlaps_once() -> None:
    trace = programs.uploads_pageable(steps=6)
    result = tt.analyze(trace)
    timed = [finding.cost for finding in result.findings if finding.cost and finding.cost.together_ms is not None]
    grown = [cost.together_ms for cost in timed]
    assert grown == sorted(grown)
    assert all(one <= cost.of_ms for one, cost in zip(grown, timed, strict=True))
    if result.joint_cost is not None:
        highs = sum(finding.cost.high_ms for finding in result.findings if finding.cost)
        assert result.joint_cost.high_ms <= highs + 1e-6


def test_claims_served_last_get_what_is_left() -> None:
    trace = programs.device_bound()
    first, second = claim(trace), claim(trace)
    other = Pattern("TST002", "other", "test", "Other", 2, frozenset())
    both = [(PATTERN, first), (other, second)]

    def owners(shares: list[Share]) -> dict[str, int]:
        return {share.pattern.code: int(share.owned_ns.sum()) for share in shares}

    assert owners(share_out(trace, both))["TST002"] == 0
    assert owners(share_out(trace, both, last={id(first)}))["TST001"] == 0


def test_the_path_in_the_result_is_short_and_tiles_the_step() -> None:
    b = TraceBuilder()
    at = 1_000.0
    for i in range(400):
        busy = 10 if i < 200 else 100  # first the host is late, then the device
        b.op("aten::item", at, busy + 10)
        b.launch(at + 2, 3, at + 8, busy)
        b.sync(at + 6, busy + 6)
        at += busy + 30
    trace = b.build()
    path = summarise_path(trace)
    assert path is not None
    assert 1 < len(path.pieces) <= N_PIECES
    assert path.pieces[0].start_ns == path.start_ns
    assert path.pieces[-1].end_ns == path.end_ns
    for one, two in zip(path.pieces, path.pieces[1:], strict=False):
        assert one.end_ns == two.start_ns
    assert sum(path.shares.values()) == pytest.approx(1, abs=1e-4)
    assert sum(path.by_lane.values()) == pytest.approx(1, abs=1e-4)


def test_devices_beside_the_busiest_are_named_in_the_method() -> None:
    b = TraceBuilder()
    for step in range(4):
        at = 1_000 + step * 1_000
        b.step(step, at, 1_000)
        b.op("aten::mm", at, 50)
        b.launch(at + 2, 5, at + 10, 900)
        b.launch(at + 20, 5, at + 30, 500, device=1)
    trace = b.build()
    assert len(trace.devices) == 2
    _, _, cost = price(trace, claim(trace, halved(trace)))
    assert "all 2 devices" in cost.method
    _, _, plain = price(trace, claim(trace))
    assert "busiest device" in plain.method


def test_kernels_are_what_the_helper_claims() -> None:
    trace = programs.device_bound()
    assert (trace.kind[claim(trace).rows] == Kind.KERNEL).all()
