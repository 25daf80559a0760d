"""What pointwise operators and kernels move through memory, by their recorded shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.diagnose.patterns.base import Floats, Ints, Trace


def by_detail(trace: Trace, what: str, rows: NDArray[np.integer], measure: Callable[[list[Any]], int]) -> Ints:
    """Return a measure of one argument of each row, 0 for row -1 or where it is missing."""
    codes, first, inverse = np.unique(
        np.where(rows >= 0, trace.detail[rows], -1), return_index=True, return_inverse=True
    )
    values = np.zeros(len(codes), np.int64)
    known = codes >= 0
    found = trace.details_of(what, rows[first[known]].astype(np.int64))
    values[known] = [measure(item) if isinstance(item, list) else 0 for item in found]
    return values[inverse]


def _sizes(dims: list[Any]) -> list[int]:
    return [product(dim) for dim in dims if isinstance(dim, list) and dim]


def largest(dims: list[Any]) -> int:
    """Return the number of elements of the largest tensor among an operator's inputs."""
    return max(_sizes(dims), default=0)


def _full_size(dims: list[Any]) -> int:
    sizes = _sizes(dims)
    return sum(2 * size > max(sizes) for size in sizes)


def product(values: list[Any]) -> int:
    """Return the product of recorded sizes, 0 where they make no sense."""
    out = 1
    for value in values:
        out *= value if isinstance(value, int) else 0
    # shapes come from a file: keep nonsense inside int64
    return out if 0 <= out < 1 << 30 else 0


def saved_traffic(trace: Trace, op: Ints, chain: Ints) -> Floats:
    """Return per operator (-1: unknown) the share of its chain's traffic that fusing saves."""
    read = np.where(op >= 0, by_detail(trace, "dims", op, _full_size), 1)
    # copy_ lists the tensor it writes among its inputs
    read -= (op >= 0) & trace.named("aten::copy_")[op]
    kernels = np.bincount(chain)
    moved = np.bincount(chain, weights=np.maximum(read, 1)) + kernels
    saved: Floats = 2.0 * (kernels - 1) / np.maximum(moved, 1)
    return saved[chain]
