"""The device's own account: what of a window is lost, and what each type could have cost of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchtriage.diagnose.detector.detector import Detector
from torchtriage.diagnose.detector.device_costs import Account, Rows, costs, lost, weighed
from torchtriage.diagnose.detector.features import NAMES

COMPUTES = {"has device": 1, "device busy": 1, "device time matmul": 1}
STANDS_STILL = {"has device": 1, "device busy": 0}


def rows(*windows: dict[str, float]) -> Rows:
    """Return windows with these features, all others zero."""
    found = np.zeros((len(windows), len(NAMES)), np.float32)
    for at, window in enumerate(windows):
        for name, value in window.items():
            found[at, NAMES.index(name)] = value
    return found


@pytest.mark.parametrize(
    ("window", "share"),
    [
        (COMPUTES, 0),
        (STANDS_STILL, 1),
        (STANDS_STILL | {"idle in queued": 0.75}, 0.25),
        (COMPUTES | {"products fp32": 0.5}, 0.5),
        ({"device busy": 1, "device time communication": 1, "device exposed communication": 1}, 1),
        ({"device busy": 1, "device time pointwise": 1}, 0.5),
        # nothing is computed: there is no work to hide copies behind
        ({"device busy": 1, "device time copy_to_device": 1, "device exposed copies": 1}, 0),
    ],
)
def test_what_the_device_could_have_done_in_the_time_is_lost(window: dict[str, float], share: float) -> None:
    assert lost(rows(window)).tolist() == pytest.approx([share])


def test_copies_are_lost_as_far_as_there_is_work_to_hide_them_behind() -> None:
    copies = {"device busy": 1, "device time copy_to_device": 1, "device exposed copies": 1}
    found = lost(rows(copies, copies, COMPUTES))
    assert found.mean() == pytest.approx(1 / 3)
    assert found[0] == found[1] > found[2] > 0  # halfway to the mean


def test_a_type_costs_the_time_that_it_could_give_back() -> None:
    waits = STANDS_STILL | {"idle in loader": 0.5, "idle in python": 0.3, "device kernels per ms": 5}
    loader, launch, python, call, talk = costs(rows(waits), ("DAT019", "LCH014", "HST020", "HST055", "COM035"))
    assert loader == launch > python > call > talk > 0


def test_few_long_holes_are_no_launches() -> None:
    few, many = (STANDS_STILL | {"device kernels per ms": rate} for rate in (0.01, 5))
    (launch, hole), (launch_of_many, hole_of_many) = (costs(rows(one), ("LCH014", "MSR034")) for one in (few, many))
    assert launch < 0.1 < launch_of_many
    assert hole == hole_of_many


def test_what_trees_know_of_a_device_has_a_cost() -> None:
    idle = [name for name in NAMES if name.startswith("idle in") and "," not in name]
    every = rows(*({"has device": 1, name: 1, "device kernels per ms": 5} for name in idle), dict.fromkeys(NAMES, 1.0))
    codes = Detector.load().experts["device"].trees.codes
    unknown = {code for code in codes if costs(every, (code,)) < 0.03}
    assert unknown == {"CFG043", "OPT041"}  # nothing in the account is theirs alone


def test_of_types_that_trees_hold_alike_the_costlier_is_named() -> None:
    codes = ("COM035", "LCH014")
    talks = {"device busy": 1, "device time communication": 1, "device exposed communication": 1}
    assert weighed(np.full((1, 2), 0.5), rows(talks), codes)[0, 0] > 0.9
    assert weighed(np.full((1, 2), 0.5), rows(STANDS_STILL | {"device kernels per ms": 5}), codes)[0, 1] > 0.9


def test_a_device_that_stands_still_is_suspected_where_trees_say_the_same() -> None:
    account = Account(1, -4, 0.5, 0.9)
    likely = account.probability(np.zeros(2), rows(COMPUTES, STANDS_STILL))
    assert likely[0] < 0.5 < likely[1]


def test_the_account_is_kept_with_the_weights_and_not_asked_of_a_device_that_is_made_up(tmp_path: Path) -> None:
    detector = Detector.load()
    (tmp_path / "again.npz").write_bytes(detector.to_bytes())
    expert = Detector.load(tmp_path / "again.npz").experts["device"]
    assert expert.account == detector.experts["device"].account is not None
    assert detector.experts["host"].account is None
    waits = rows(STANDS_STILL, STANDS_STILL)
    assert detector.judge(waits).probability.tolist() != expert.trees.probability(waits).tolist()
    assert detector.judge(waits, made_up=True).probability.tolist() == expert.trees.probability(waits).tolist()
