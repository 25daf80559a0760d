"""The accuracy gate of a mode: it must answer as the full one does before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_share
from torchtriage.operate.experiment.output_agreement import Agreement, agreement


def answers_agree(
    full: Callable[..., Any],
    lite: Callable[..., Any],
    inputs: Iterable[tuple[Any, ...]],
    *,
    least: float = 0.99,
    compare: Callable[[Any, Any], Agreement | bool] = agreement,
) -> Callable[[], str]:
    """Return a check for :class:`Mode`: why ``lite`` may not stand in for ``full``, or nothing.

    ``inputs`` : of each call a tuple of its arguments, ``[(image,), ...]``; ones with known difficulty, not noise.
    ``least`` : share of answers that must agree.
    ``compare`` : called as ``compare(full's answer, lite's answer)``, says whether they agree; for a detector or a
    classifier, one that knows what an equal answer is.
    Raises ``UsageError``: no inputs, one that is no tuple, or a share out of 0 to 1.
    """
    inputs = list(inputs)
    if not inputs or not 0 < least <= 1:
        raise UsageError(f"expected inputs and a share up to 1, found {len(inputs)} and {least}")
    for args in inputs:
        if not isinstance(args, tuple | list):
            raise UsageError(
                f"expected a tuple of each call's arguments, found {type(args).__name__}", hint="[(image,), (image,)]"
            )

    def check() -> str:
        reasons = [why for args in inputs if (why := _unlike(compare(full(*args), lite(*args))))]
        agree = (len(inputs) - len(reasons)) / len(inputs)
        if agree >= least:
            return ""
        return (
            f"{format_share(agree)} of {len(inputs)} answers agree, {format_share(least)} required; first: {reasons[0]}"
        )

    return check


def _unlike(said: Agreement | bool) -> str:
    if isinstance(said, Agreement):
        return said.reason
    return "" if said else "different according to `compare`"
