"""In the script's process: what a few steps show that no recording holds.

Calls that repeat with equal inputs, numbers too small to be fast, padding, results and gradients that nobody uses.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from torchtriage.core.record.call_probe import CallProbe
from torchtriage.core.record.unused_gradients import GradientWatch

if TYPE_CHECKING:  # here only the script imports torch
    from torchtriage.core.record.operator_probe import OperatorProbe

MOST_CALLS = 100


class StepEvidence:
    """Watches steps for as long as it is told to; ``failures`` counts what goes wrong with the script's own classes."""

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._probe: CallProbe | None = None
        self._gradients: GradientWatch | None = None
        self._calls: list[dict[str, Any]] = []
        self._subnormal: list[dict[str, Any]] = []
        self._padded: list[dict[str, Any]] = []
        self._operators: OperatorProbe | None = None
        self._unread: list[dict[str, Any]] = []
        self._repeated: list[dict[str, Any]] = []
        self._unused_gradients: dict[str, Any] | None = None
        self._thrown_gradients: list[dict[str, Any]] = []

    def begin_calls(self) -> None:
        """Compare inputs and results of calls from here on; the end of a step is said with :meth:`calls_step`."""
        self._probe = CallProbe()
        self._probe.start()

    def calls_step(self) -> None:
        """Say that a step has ended."""
        if self._probe is not None:
            self._probe.step()

    def end_calls(self) -> None:
        """Keep what calls showed."""
        probe, self._probe = self._probe, None
        if probe is not None:
            self._calls = probe.stop()[:MOST_CALLS]
            self._subnormal = probe.subnormal()
            self._padded = probe.padding.facts()

    def begin_operators(self) -> None:
        """Note from here on what operators compute and read."""
        from torchtriage.core.record.operator_probe import OperatorProbe

        self._operators = OperatorProbe()
        self._operators.start()

    def operators_step(self) -> None:
        """Say that the first of two steps has ended."""
        if self._operators is not None:
            self._operators.step()

    def end_operators(self) -> None:
        """Keep what operators showed."""
        probe, self._operators = self._operators, None
        if probe is not None:
            try:
                self._unread, self._repeated = probe.stop()
            except Exception as error:  # of a torch that does otherwise
                self._failures[f"operators: {type(error).__name__}: {error}"] += 1

    def give_up_operators(self) -> None:
        """Note no more, and keep nothing."""
        probe, self._operators = self._operators, None
        if probe is not None:
            probe.give_up()

    def gradients_step(self, nth: int, last: int) -> None:
        """Compare gradients after the first and the second step; see until step ``last`` which are thrown away."""
        try:
            if nth == 1:
                self.end_gradients()  # of another thread's steps
                self._gradients = GradientWatch() if last else None
            elif self._gradients is not None:
                if nth == 2:
                    self._unused_gradients = self._gradients.facts()
                if nth > last:
                    self._thrown_gradients, self._gradients = self._gradients.thrown.facts(), None
        except Exception as error:  # of the script's own classes
            self._failures[f"gradients: {type(error).__name__}: {error}"] += 1

    def end_gradients(self) -> None:
        """Take every hook out."""
        gradients, self._gradients = self._gradients, None
        if gradients is not None:
            gradients.thrown.stop()

    def facts(self) -> dict[str, Any]:
        """Return what was seen, as JSON values."""
        return {
            "calls": self._calls,
            "subnormal": self._subnormal,
            "padded": self._padded,
            "unread": self._unread,
            "repeated": self._repeated,
            "unused_gradients": self._unused_gradients,
            "thrown_gradients": self._thrown_gradients,
        }
