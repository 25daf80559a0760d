"""What a share of the looks at the stacks costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from torchtriage.core.finding import Cost, Severity
from torchtriage.diagnose.calibration import calibrated
from torchtriage.diagnose.runs.account import SampledLoop

WORTH = 0.03
"""Of a step, what is worth a word: less is within the noise of most measurements."""


def share_cost(
    low: float,
    high: float,
    of_ms: float,
    share: float,
    method: str,
    loop: SampledLoop,
    grade: Literal["B", "C"],
    most: float = 1.0,
) -> Cost:
    """Return a saving of ``low`` to ``high`` of ``of_ms``, where ``share`` of it is spent; no fix saves over ``most``.

    Grade B is measured, C bounded.
    """
    cost = Cost(
        low_ms=round(low * of_ms, 6),
        high_ms=round(high * of_ms, 6),
        per="step" if loop.n_steps else "window",
        of_ms=round(of_ms, 6),
        share_low=round(low, 6),
        share_high=round(high, 6),
        naive_ms=round(share * of_ms, 6),
        basis="measured" if grade == "B" else "bounded",
        method=method,
        grade=grade,
    )
    return calibrated(cost, "looks", most_ms=most * of_ms)


def of_looks(cost: Cost, low: float, high: float, of_ms: float, method: str) -> Cost:
    """Return a cost with the saving that the looks at the stacks tell of."""
    return calibrated(of_share(cost, low, high, of_ms, method), "looks")


def of_share(cost: Cost, low: float, high: float, of_ms: float, method: str) -> Cost:
    """Return a cost with another saving, of ``low`` to ``high`` of ``of_ms``."""
    return replace(
        cost,
        low_ms=round(low * of_ms, 6),
        high_ms=round(high * of_ms, 6),
        of_ms=round(of_ms, 6),
        share_low=round(low, 6),
        share_high=round(high, 6),
        naive_ms=round(high * of_ms, 6),
        together_ms=None,
        method=method,
        calibration=None,
    )


def counting_error(share: float, n_looks: int) -> float:
    """Return the standard error of a share of ``n_looks``."""
    return math.sqrt(max(share * (1 - share), 0.0) / n_looks)


def severity_of(low: float, high: float) -> Severity:
    """Return how severe a saving of these shares of a step is."""
    if low >= 0.10:
        return "high"
    if low >= WORTH:
        return "medium"
    return "low" if high >= 0.10 else "note"
