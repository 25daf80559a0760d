"""The accuracy gate of a mode: it must answer as the full one does before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_share
from torchtriage.operate.experiment.output_agreement import Agreement, agreement

__all__ = ["answers_agree"]


def answers_agree(
    full: Callable[..., Any],
    lite: Callable[..., Any],
    inputs: Sequence[tuple[Any, ...]],
    *,
    least: float = 0.99,
    compare: Callable[[Any, Any], Agreement] = agreement,
) -> Callable[[], str]:
    """Return a check for :class:`Mode`: why ``lite`` may not stand in for ``full``, or nothing.

    ``inputs`` : arguments of each call; ones with known difficulty, not noise.
    ``least`` : share of answers that must agree.
    ``compare`` : called as ``compare(full's answer, lite's answer)``; for a detector or a classifier, one
    that knows what an equal answer is.
    Raises ``UsageError``: no inputs, or a share out of 0 to 1.
    """
    if not inputs or not 0 < least <= 1:
        raise UsageError(f"expected inputs and a share up to 1, found {len(inputs)} and {least}")

    def check() -> str:
        reasons = [result.reason for args in inputs if not (result := compare(full(*args), lite(*args))).agrees]
        agree = 1 - len(reasons) / len(inputs)
        if agree >= least:
            return ""
        return (
            f"{format_share(agree)} of {len(inputs)} answers agree, {format_share(least)} wanted; first: {reasons[0]}"
        )

    return check
