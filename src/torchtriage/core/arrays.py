"""Types of arrays, and what numpy does slowly: distinct values, membership, quantiles.

``numpy.unique`` without indices, and with it ``isin`` and ``quantile``, also imports ``numpy.ma``: 20 ms, a tenth of
what a small trace takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Return the distinct values of a one-dimensional array, in order.

    What ``numpy.unique`` returns, but for NaN, of which all stay. From numpy 2.3 on that goes through a hash table,
    which among a million values takes five times as long as sorting where few are distinct and fifty times where most
    are (measured with numpy 2.4).
    """
    ordered: NDArray[Any] = np.sort(values, axis=None)
    is_first = np.empty(len(ordered), np.bool_)
    is_first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def joined(parts: Sequence[NDArray[np.integer]]) -> Ints:
    """Return the parts one after the other; there may be none."""
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def among(values: NDArray[np.integer], chosen: NDArray[np.integer]) -> Mask:
    """Return bool[k]: which of the values are among the chosen ones."""
    ordered = distinct(np.asarray(chosen, np.int64))
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def quantile(values: NDArray[Any], share: float) -> float:
    """Return what this share of the values (0-1) lies below, between the two nearest in proportion; there are some."""
    place = (len(values) - 1) * share
    below = int(place)
    above, part = min(below + 1, len(values) - 1), place - below
    low, high = np.partition(values, (below, above))[[below, above]].tolist()
    # from the nearer end, as numpy does
    return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))
