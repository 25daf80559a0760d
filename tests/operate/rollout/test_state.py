"""The rules of a rollout, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import msgspec
import numpy as np
import pytest

from torchtriage.core.errors import UsageError
from torchtriage.operate.experiment import Rate, Tail, Typical
from torchtriage.operate.rollout.state import RolloutPlan, RolloutState, StageEvidence, advance, roll_back

PLAN = RolloutPlan("int8", least_s=10)
READY = RolloutState(PLAN, watched_s=100)
GOOD = StageEvidence(epoch=1, number=5, age_s=0.1, n_control=50_000, n_candidate=500)


def test_whole_evidence_moves_up_one_step() -> None:
    after = advance(READY, GOOD, 1)
    assert (after.stage, after.share, after.epoch, after.watched_s) == (1, 0.05, 2, 0)


@pytest.mark.parametrize(
    ("change", "waiting"),
    [
        ({"epoch": 0}, "the evidence is from another step"),
        ({"epoch": 2}, "the evidence is from another step"),
        ({"age_s": None}, "no request was seen in the last 30 s"),
        ({"age_s": math.nan}, "no request was seen in the last 30 s"),
        ({"age_s": 31}, "no request was seen in the last 30 s"),
        ({"age_s": -1}, "no request was seen in the last 30 s"),
        ({"n_candidate": 499}, "499 of 500 requests of candidate"),
        ({"n_control": 10}, "10 of 500 requests of control"),
        ({"n_candidate": math.nan}, "the request counts are not numbers"),
        ({"n_control": math.inf}, "the request counts are not numbers"),
        ({"n_control": -1}, "the request counts are not numbers"),
        ({"missing": ("error: no usable value",)}, "error: no usable value"),
    ],
)
def test_what_is_not_whole_holds_and_says_why(change, waiting: str) -> None:
    after = advance(READY, replace(GOOD, **change), 1)
    assert (after.stage, after.epoch, after.waiting) == (0, 1, waiting)


def test_no_evidence_holds() -> None:
    assert advance(READY, None, 1).waiting == "no evidence"


def test_the_same_evidence_counts_once() -> None:
    held = advance(RolloutState(PLAN), GOOD, 1)
    assert held.waiting == "watched for 1 of 10 s"
    for _ in range(30):
        held = advance(held, GOOD, 1)
    assert held.stage == 0
    assert held.waiting == "nothing new since the last poll"


@pytest.mark.parametrize("elapsed_s", [-3600, 3600, 86_400, math.nan, math.inf, 5.1])
def test_jumps_of_the_clock_are_no_time(elapsed_s: float) -> None:
    state = advance(RolloutState(PLAN), GOOD, elapsed_s)
    assert state.watched_s == 0
    assert state.stage == 0


def test_worse_rolls_back_from_whichever_stage() -> None:
    for epoch in (0, 1, 7):
        after = advance(READY, replace(GOOD, epoch=epoch, worse=("p99", "errors")), 1)
        assert (after.status, after.share, after.waiting) == ("rolled back", 0.0, "p99; errors")


def test_it_ends_when_all_requests_have_been_watched() -> None:
    state = RolloutState(PLAN)
    shares = [state.share]
    while state.status == "running":
        evidence = replace(GOOD, epoch=state.epoch, n_control=500 if state.share < 1 else 0)
        state = advance(replace(state, watched_s=100), evidence, 1)
        shares.append(state.share)
    assert shares == [0.01, 0.05, 0.2, 0.5, 1.0, 1.0]
    assert state.status == "done"
    assert advance(state, replace(GOOD, worse=("late",)), 1) is state


def test_a_second_rollback_changes_nothing() -> None:
    once = roll_back(READY, "first")
    assert roll_back(once, "second") is once
    assert advance(once, GOOD, 1) is once


@pytest.mark.parametrize(
    "options",
    [
        {"steps": np.array([0.2, 1.0])},
        {"steps": (share for share in (0.2, 1))},
        {"steps": {0.5, 1.0, 1e-5, 0.05}},
        {"steps": (Decimal("0.2"), 1)},
        {"guardrails": {Rate("error"), Rate("nan"), Tail("latency_s")}},
        {"least_requests": np.int64(5), "alpha": np.float32(0.05)},
    ],
)
def test_numbers_and_lists_of_other_kinds_are_stored_as_they_were_meant(options) -> None:
    plan = RolloutPlan("int8", **options)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=RolloutPlan) == plan
    assert type(plan.steps) is tuple


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"steps": ()},
        {"steps": (0.5, 0.1, 1.0)},
        {"steps": (0.1, 0.5)},
        {"steps": (0.0, 1.0)},
        {"least_requests": 0},
        {"least_s": -1},
        {"fresh_s": math.nan},
        {"candidate": "control"},
        {"alpha": 0},
        {"steps": (0.5, "1")},
        {"steps": 0.5},
        {"steps": np.array(1.0)},
        {"steps": (0.5, True)},
        {"steps": "0.5"},
        {"least_requests": "500"},
        {"least_s": True},
        {"candidate": 2},
        {"metric": Tail("latency_s")},
        {"guardrails": ("error",)},
        {"guardrails": Rate("error")},
        {"guardrails": (Typical("latency_s", worse_than=1.05), Rate("error"))},
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(options) -> None:
    with pytest.raises(UsageError):
        RolloutPlan(**({"name": "int8"} | options))
