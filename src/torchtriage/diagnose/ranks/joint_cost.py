"""What a finding of the job costs by the joint replay of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtriage.core.finding import Cost
from torchtriage.core.units import ms
from torchtriage.diagnose.ranks.joint_savings import Fixed, JointSavings
from torchtriage.diagnose.ranks.rank_skeleton import ALL
from torchtriage.diagnose.ranks.straggler import Straggler
from torchtriage.diagnose.verdict.result import Result

JOINT_METHOD = "all ranks replayed together with the fix"
MIN_SAVING = 0.001
"""Of the step: what is less in a rank's own replay says nothing about the job, and in the job's it is nothing."""
OFF, NOISE = 0.10, 0.005
"""How far the joint replay may be off, as a share of the saving and of the step: who is last is also chance. Chosen, as
are the next three, on one half of emulated jobs: 61 fixes and 35 late ranks (``benchmarks/job_savings.py``)."""
LATE_AGAIN, LATE_MORE, BY_CHANCE = 0.10, 0.05, 0.05
"""A rank at the others' pace is at times the last, too: shares of the gain, and at most one of the rest of the step."""
MIN_EXPLAINED = 0.5
"""Of the waiting for a late rank, before its joint replay is believed."""
MAX_STRENGTH = 3.0
"""Times the saving that a rank's own replay has: no interval reaches farther."""


def finding_cost(
    joint: JointSavings, results: Sequence[Result], found: dict[int, list[int]], cost: Cost, step_ms: float
) -> Cost | None:
    """Return the cost of one finding of the job; None where it is not known for each of its ranks.

    ``found`` : position of a rank to the places of the finding among its own. ``cost`` : its bound, which gives way.
    """
    if joint.reason:
        return None
    fixed: Fixed = {}
    for position, places in found.items():
        for place in places:
            mine = results[position].findings[place].cost
            if mine is None or mine.high_ms == 0:
                continue
            strengths = _strengths(joint, position, place, mine.low_ms, mine.high_ms)
            if strengths is None:
                return None
            fixed.setdefault(position, []).append((place, strengths))
    if not fixed:
        return None
    return _priced(cost, joint, joint.savings_ns(fixed, 2), step_ms, JOINT_METHOD)


def all_cost(
    joint: JointSavings, results: Sequence[Result], cost: Cost, step_ms: float, *, unawaited: int = -1
) -> Cost | None:
    """Return what all findings save together, with nobody waiting for the rank ``unawaited``; None where not known."""
    if joint.reason:
        return None
    fixed: Fixed = {}
    for position, result in enumerate(results):
        replayed = joint.fixes_of(position)
        places = [place for place in replayed if place != ALL]
        costs = [own_cost for place in places if (own_cost := result.findings[place].cost) is not None]
        if not costs:
            continue
        key = ALL if ALL in replayed else places[0]
        strengths = _strengths(joint, position, key, sum(c.low_ms for c in costs), sum(c.high_ms for c in costs))
        if strengths is None:
            return None
        fixed[position] = [(key, strengths)]
    if not fixed and unawaited < 0:
        return None
    savings = joint.savings_ns(fixed, 2, unawaited=unawaited)
    return _priced(cost, joint, savings, step_ms, "all ranks replayed together with all fixes")


def with_joint_gain(late: Straggler, joint: JointSavings) -> Straggler:
    """Return a straggler with what each step saves when nobody waits for it, by the joint replay where that holds.

    Where it gives back little of the waiting that was recorded, the ranks wait in a way that it does not know.
    """
    if joint.reason:
        return late
    gain = np.clip(joint.without_waiting_for(late.position), 0, None)
    if gain.sum() < MIN_EXPLAINED * late.gain_ns.sum():
        return late
    # a step that comes out otherwise holds a wait that the replay does not see
    gain = np.where(gain < MIN_EXPLAINED * late.gain_ns, late.gain_ns, gain)
    most, middle = BY_CHANCE * max(joint.step_ns - float(gain.mean()), 0.0), float(np.median(gain))
    off_ns = (min(LATE_AGAIN * middle, most), min(LATE_MORE * middle, most))
    return replace(late, gain_ns=gain.round().astype(np.int64), off_ns=off_ns)


def _strengths(
    joint: JointSavings, position: int, place: int, low_ms: float, high_ms: float
) -> tuple[float, float] | None:
    saving = joint.saving_of(position, place)
    if saving is None or saving < MIN_SAVING * joint.step_ns:
        return None
    low, high = (min(max(end * 1e6 / saving, 0.0), MAX_STRENGTH) for end in (low_ms, high_ms))
    return low, high


def interval_ns(joint: JointSavings, savings_ns: Sequence[float]) -> tuple[float, float]:
    """Return from and to what is saved, by what the replay says of the cautious and the hopeful fix."""
    low, high = min(savings_ns), max(savings_ns)
    if high <= MIN_SAVING * joint.step_ns:
        return 0.0, 0.0
    return low * (1 - OFF) - NOISE * joint.step_ns, high * (1 + OFF) + NOISE * joint.step_ns


def _priced(cost: Cost, joint: JointSavings, savings_ns: Sequence[float], step_ms: float, method: str) -> Cost:
    low, high = (min(max(ms(end), 0.0), step_ms) for end in interval_ns(joint, savings_ns))
    return replace(
        cost,
        low_ms=round(low, 6),
        high_ms=round(high, 6),
        share_low=round(low / step_ms, 6),
        share_high=round(high / step_ms, 6),
        basis="modelled",
        method=method,
        grade="B",
    )
