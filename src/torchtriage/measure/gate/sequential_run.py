"""Looks at pairs while they are measured: stop as soon as the answer is clear."""

from __future__ import annotations

from torchtriage.core.samples import Run
from torchtriage.core.stats.sequential import StoppingPlan
from torchtriage.core.units import format_count
from torchtriage.measure.gate.check import check
from torchtriage.measure.gate.result import Stopping
from torchtriage.measure.gate.row_verdict import GateLimits

FIRST = 7
"""Pairs before the first look: fewer cannot show a change at 1 % (an exact test of signs)."""


class Looks:
    """Looks at a growing number of pairs; what all looks spend together is ``limits.alpha``.

    ``spent`` : what the last look spent of alpha and miss, for the verdict on exactly these pairs.
    """

    def __init__(self, limits: GateLimits, max_pairs: int) -> None:
        self._limits = limits
        self._plan = StoppingPlan(
            max_pairs=max_pairs, level=1 - 2 * limits.alpha, first_pairs=min(FIRST, max_pairs), miss=limits.miss
        )
        self._n_pairs = 0
        self._n_looks = 0
        self._why = ""
        self.spent: tuple[float, float] | None = None

    def enough(self, before: Run, after: Run) -> bool:
        """Return whether what was measured so far settles it."""
        self._n_pairs += 1
        first = self._n_pairs == 1
        if not first and self._n_pairs < self._plan.first_pairs:
            return False
        if not first:
            self._n_looks += 1
            self.spent = (
                (1 - self._plan.level_at(self._n_pairs)) / 2,
                (1 - self._plan.same_level_at(self._n_pairs)) / 2,
            )
        outcome = check([before], [after], self._limits, look=self.spent).outcome
        if outcome == "infrastructure":
            self._why = "stopped: it cannot be evaluated"
        elif outcome != "inconclusive" and not first and self._n_pairs < self._plan.max_pairs:
            self._why = f"clear before the limit of {self._plan.max_pairs}"
        return bool(self._why)

    @property
    def stopping(self) -> Stopping:
        """How it ended."""
        return Stopping(
            n_rounds=self._n_pairs,
            max_rounds=self._plan.max_pairs,
            looks=self._n_looks,
            reason=self._why or f"all {format_count(self._plan.max_pairs, 'pair')} were measured",
        )
