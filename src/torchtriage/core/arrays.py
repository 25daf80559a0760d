"""Types of arrays, and the distinct values of one."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Mask", "distinct"]

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
