"""Many metrics judged at once: p-values that keep the error rate of the whole check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtriage.core.arrays import Floats


def adjust(p_values: Sequence[float] | Floats) -> Floats:
    """Return p-values that may each be held against the level meant for all of them together.

    ``p_values`` : float64[k], NaN where a metric could not be tested; it stays NaN and is not counted.

    Benjamini and Hochberg (1995): the expected share of false alarms among alarms; independent or positively dependent
    metrics, as metrics of one run are. Where nothing changed it is the chance of any false alarm.

    Raises ValueError: a p-value outside 0 to 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(p)
    tested = p[known]
    if tested.size and (tested.min() < 0 or tested.max() > 1):
        raise ValueError("expected p-values from 0 to 1")
    n = len(tested)
    order = np.argsort(tested, kind="stable")
    stepped = np.minimum.accumulate((tested[order] * (n / np.arange(1, n + 1)))[::-1])[::-1]
    adjusted = np.empty(n)
    adjusted[order] = np.minimum(stepped, 1.0)
    out = np.full(p.shape, np.nan)
    out[known] = adjusted
    return out
