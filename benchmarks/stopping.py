"""Stops measuring pairs by a plan, as ``torchtriage gate`` does for one metric."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.sequential import StoppingPlan
from torchtriage.core.stats.session_comparison import Change, Statistic, Verdict, compare_values, session_value, verdict


def compare_sessions(
    before: Sequence[Floats], after: Sequence[Floats], *, statistic: Statistic = "low", **options: Any
) -> Change:
    """Return by what factor sessions differ, one array each; ``options`` : as of ``compare_values``."""
    from_, to = (np.array([session_value(item, statistic) for item in side]) for side in (before, after))
    return compare_values(from_, to, statistic=statistic, **options)


def stop(
    before: Sequence[Floats], after: Sequence[Floats], plan: StoppingPlan, min_effect: float = 0.01
) -> tuple[Verdict, int]:
    """Return the verdict that the looks of a plan come to, and after how many pairs."""
    for n in range(plan.first_pairs, plan.max_pairs + 1):
        compare = partial(compare_sessions, before[:n], after[:n], paired=True)
        found = verdict(compare(level=plan.level_at(n)), min_effect=min_effect)
        if found == "inconclusive" and verdict(compare(level=plan.same_level_at(n)), min_effect=min_effect) == "same":
            found = "same"
        if found != "inconclusive":
            return found, n
    return "inconclusive", plan.max_pairs
