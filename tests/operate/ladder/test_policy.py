"""When to go down and when to come back."""

from __future__ import annotations

import math

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.operate.ladder.policy import LadderState, Policy, decide

WELL = LadderState(1, "", False, 100, 0, 10.0, 30.0, 0.0, 10.0, 0, 0)
TRIAL = {"share": 0.5, "n_probes": 50}


@pytest.mark.parametrize(
    ("change", "do"),
    [
        ({}, "stay"),
        ({"alarm": "p99 doubled"}, "down"),
        ({"n_late": 5}, "stay"),
        ({"n_late": 6}, "down"),
        ({"n_calls": 19, "n_late": 19}, "stay"),
        ({"n_calls": 20, "n_late": 20}, "down"),
        ({"well_s": 29.9}, "stay"),
        ({"well_s": 30.0}, "probe"),
        ({"well_s": 30.0, "level": 0}, "stay"),
        ({"alarm": "slower", "relative": True}, "stay"),
        ({"alarm": "slower", "relative": True, "n_late": 2}, "down"),
        ({"alarm": "slower", "relative": True, "n_calls": 19}, "down"),
        (TRIAL | {"n_probes": 49}, "stay"),
        (TRIAL | {"share": 0.05, "n_probes": 20}, "probe"),
        (TRIAL, "probe"),
        (TRIAL | {"step_s": 7.4}, "stay"),
        (TRIAL | {"share": 1.0}, "stay"),
        (TRIAL | {"share": 1.0, "n_probes": 100}, "up"),
        (TRIAL | {"n_probes_late": 1}, "stay"),
        (TRIAL | {"n_probes_late": 3}, "give up"),
        (TRIAL | {"n_probes": 5, "n_probes_late": 2}, "give up"),
        (TRIAL | {"n_probes": 199, "n_probes_late": 2}, "stay"),
        (TRIAL | {"n_probes": 200, "n_probes_late": 3}, "give up"),
        (TRIAL | {"n_probes": 200, "n_probes_late": 2}, "probe"),
        (TRIAL | {"alarm": "again"}, "down"),
    ],
)
def test_what_is_done(change, do: str) -> None:
    assert decide(Policy(deadline_s=0.1), WELL._replace(**change)).do == do


def test_why_is_a_sentence_with_its_number() -> None:
    move = decide(Policy(), WELL._replace(n_late=12))
    assert move.why == "12 % of the newest 100 calls were late or failed"


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_s": 0},
        {"deadline_s": math.nan},
        {"timeout_s": -1},
        {"dwell_s": 0},
        {"recover_s": math.inf},
        {"recover_s": 700.0},  # beyond longest_s: a failed trial would shorten the wait
        {"enter": 0.1, "leave": 0.1},
        {"enter": 1.5},
        {"leave": -0.1},
        {"ramp": ()},
        {"ramp": (0.5, 0.25, 1.0)},
        {"ramp": (0.05, 0.5)},
        {"probe_calls": 0},
        {"least_calls": 0},
        {"budget": -1},
    ],
)
def test_policies_that_cannot_be_meant_are_refused(options) -> None:
    with pytest.raises(UsageError):
        Policy(**options)
