"""Intervals that cover: ends moved as far as measured fixes lay outside, by split conformal prediction.

A model's own interval holds what the model is unsure of. What it does not know of (the next run's noise, side effects
of a fix) shows only where fixes were measured. ``calibration.json`` holds how far, for each family of savings:
``replay``, and ``looks`` at the stacks of a run. ``benchmarks/coverage.py`` makes and judges it: one half of the pairs
sets the numbers, the other tells the coverage.

Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World (2005); Romano, Patterson and Candes,
Conformalized Quantile Regression (2019).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from torchtriage.core.finding import Calibration, Cost
from torchtriage.core.trace import Trace

Family = Literal["replay", "looks"]

FEWEST_STEPS = 3
UNKNOWN_NOISE, MOST_NOISE = 0.005, 0.01
"""Of the step, where too few steps were recorded to tell (three public recordings of one program, of commits that do
not change its work, are 0.1 to 1.4 % apart); and at most: odd steps tell nothing of the fix."""


@dataclass(frozen=True)
class Margins:
    """How far the ends of a family's intervals are moved.

    ``odds_low``, ``odds_high`` : what ``share / (1 - share)`` of the low end is divided by, and of the high one
    multiplied with. ``noises`` : standard errors of the difference of two runs' steps, taken off and added.
    ``coverage`` : what is promised, 0-1.
    """

    odds_low: float
    odds_high: float
    noises: float
    coverage: float


@cache
def margins(family: Family) -> Margins:
    """Return the margins of a family of savings."""
    data = json.loads(Path(__file__).with_name("calibration.json").read_text(encoding="utf-8"))
    entry = data["families"][family]
    return Margins(entry["odds_low"], entry["odds_high"], entry["noises"], data["coverage"])


def step_noise(trace: Trace) -> float:
    """Return the standard error of the difference of two such recordings' mean steps, as a share of the step."""
    steps = trace.steps
    walls = (steps.end_ns - steps.start_ns)[steps.steady]
    if len(walls) < FEWEST_STEPS:
        return UNKNOWN_NOISE
    noise = math.sqrt(2) * walls.std(ddof=1) / math.sqrt(len(walls)) / max(walls.mean(), 1.0)
    return min(float(noise), MOST_NOISE)


def widened(low: float, high: float, by: Margins, noise: float = 0.0) -> tuple[float, float]:
    """Return the ends of an interval of shares of a step, moved; ``noise`` as from :func:`step_noise`.

    Ends of 0 and 1 stay on their side: a saving is no more than the step, a slow-down may be.
    """
    return (
        _times_odds(low, 1 / by.odds_low) - by.noises * noise,
        min(_times_odds(high, by.odds_high) + by.noises * noise, 1.0),
    )


def _times_odds(share: float, factor: float) -> float:
    if share <= 0:  # a slow-down has no odds
        return share
    return factor * share / (1 - min(share, 1.0) + factor * share)


def calibrated(cost: Cost, family: Family, noise: float = 0.0, most_ms: float = math.inf) -> Cost:
    """Return a cost whose interval covers; one that promises nothing stays as it is.

    ``most_ms`` : what no fix exceeds, ms per step: all that it is about, less what must be done.
    """
    if cost.high_ms <= 0 or cost.of_ms <= 0:
        return cost
    by = margins(family)
    low, high = widened(cost.share_low, cost.share_high, by, noise)
    high = min(high, max(cost.share_high, most_ms / cost.of_ms))
    low = min(max(low, 0.0), high)
    return replace(
        cost,
        low_ms=round(low * cost.of_ms, 6),
        high_ms=round(high * cost.of_ms, 6),
        share_low=round(low, 6),
        share_high=round(high, 6),
        calibration=Calibration(family, by.coverage, cost.share_low, cost.share_high),
    )
