"""Many metrics judged at once: p-values that keep the error rate of the whole check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from torchtriage.core.arrays import Floats

Method = Literal["holm", "benjamini-hochberg"]


def adjust(p_values: Sequence[float] | Floats, *, method: Method = "holm") -> Floats:
    """Return p-values that may each be held against the level meant for all of them together.

    ``p_values`` : float64[k], NaN where a metric could not be tested; it stays NaN and is not counted. ``method`` :
    ``holm``: the chance of even one false alarm in a check (Holm 1979; whatever the metrics have in common).
    ``benjamini-hochberg``: the expected share of false alarms among alarms (1995; independent or positively dependent
    metrics, as metrics of one run are). Where nothing changed the two say the same.

    Raises ValueError: a p-value outside 0 to 1, or an unknown method.
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(p)
    tested = p[known]
    if tested.size and (tested.min() < 0 or tested.max() > 1):
        raise ValueError("expected p-values from 0 to 1")
    n = len(tested)
    order = np.argsort(tested, kind="stable")
    ranked = tested[order]
    if method == "holm":
        stepped = np.maximum.accumulate(ranked * (n - np.arange(n)))
    elif method == "benjamini-hochberg":
        stepped = np.minimum.accumulate((ranked * (n / np.arange(1, n + 1)))[::-1])[::-1]
    else:
        raise ValueError(f"expected 'holm' or 'benjamini-hochberg', found {method!r}")
    adjusted = np.empty(n)
    adjusted[order] = np.minimum(stepped, 1.0)
    out = np.full(p.shape, np.nan)
    out[known] = adjusted
    return out
