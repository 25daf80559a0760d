"""Which sizes to pad to: exactly solved for one axis, a heuristic for several.

A request of size ``s`` is served at the smallest bucket ``b >= s`` and costs ``work(b)`` instead of ``work(s)``;
each bucket costs one compilation. Sizes beyond the largest bucket are served by the fallback (eager or a dynamic
graph), which costs ``fallback * work(s)``.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtriage.core.arrays import Floats, Ints, distinct
from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_share

Work = Callable[[Any], Any]
"""What a request of each size costs, in any unit: ``int64[n] -> float64[n]``, growing."""

AXIS = "size"
"""The axis of plans made from plain sizes."""

_ROUNDS = 20
_MAX_SIZE = 1 << 53  # sizes are weighed as float64


@dataclass(frozen=True)
class BucketPlan:
    """Buckets for each axis, ascending, and what they mean for the sizes they were chosen for.

    ``padding`` : work on padding over the real work of the requests that have a bucket. ``covered`` : share of
    requests that have one. ``exact`` : no other choice costs less, as for one axis; of several axes the choice is
    good, not proven best.
    """

    buckets: Mapping[str, tuple[int, ...]]
    padding: float = 0.0
    covered: float = 1.0
    exact: bool = True
    n_requests: int = 0

    def bucket_of(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Return the bucket of a request, a size for each axis it has; None where one has none."""
        bucket = {}
        for axis, buckets in self.buckets.items():
            if axis not in sizes:
                continue
            at = bisect_left(buckets, sizes[axis])
            if at == len(buckets) or sizes[axis] < 1:
                return None
            bucket[axis] = buckets[at]
        return bucket

    def __str__(self) -> str:
        """Return the buckets and what they cost: ``size 104, 152, 200; padding 12 %``."""
        axes = "; ".join(f"{axis} {', '.join(map(str, sizes)) or 'none'}" for axis, sizes in self.buckets.items())
        if not self.n_requests:
            return axes
        how = "" if self.exact else " (a heuristic for several axes)"
        rest = "" if self.covered == 1 else f", {format_share(1 - self.covered)} without a bucket"
        return f"{axes}; padding {format_share(self.padding)}{rest}{how}"


def plan(
    sizes: Sequence[int] | Ints | Mapping[str, Sequence[int] | Ints],
    *,
    max_buckets: int = 8,
    compile_cost: float = 0.0,
    multiple_of: int = 1,
    work: Work = np.asarray,
    fallback: float | None = None,
) -> BucketPlan:
    """Return the buckets that cost least for a history of sizes.

    ``sizes`` : of each request, in any order; for several axes one such array each, of equal lengths. For one axis
    the answer is exact; for several each is solved exactly with the others held, in turn until nothing improves.
    ``max_buckets`` : for several axes, at most so many combinations. ``compile_cost`` : what one more bucket costs, in
    the unit of ``work``; 0 uses all that are allowed. ``multiple_of`` : 8 or 16 suits tensor cores. ``work`` : what
    each size costs, growing; ``np.square`` suits attention. ``fallback`` : how many times as much a size costs without
    a bucket; of several axes every size gets one, as without it.

    Raises UsageError: no sizes, sizes or limits that are not positive whole numbers, or costs that cannot be.

    The exact solution is the dynamic programme of one-dimensional clustering; its layers have monotone minima (the
    cost is a Monge array), so each takes O(n log n).
    """
    limits: tuple[Any, ...] = max_buckets, multiple_of
    if not all(isinstance(limit, int | np.integer) and limit >= 1 for limit in limits):
        raise UsageError(
            "expected max_buckets and multiple_of to be whole numbers of at least 1,"
            f" found {max_buckets!r:.60} and {multiple_of!r:.60}"
        )
    # not a number is neither
    if not 0 <= compile_cost < math.inf or not (fallback is None or fallback >= 1):
        raise UsageError(
            f"expected compile_cost >= 0 and fallback >= 1, found {compile_cost!r:.60} and {fallback!r:.60}"
        )
    if isinstance(sizes, Mapping):
        axes = {axis: _sizes(values, axis) for axis, values in sizes.items()}
    else:
        axes = {AXIS: _sizes(sizes, AXIS)}
    if len({len(column) for column in axes.values()}) != 1:
        lengths = ", ".join(f"{len(column)} of {axis}" for axis, column in axes.items()) or "no axis"
        raise UsageError(f"expected one size of each axis for each request, found {lengths}")
    if len(axes) > 1:
        chosen = _grid(axes, max_buckets, compile_cost, multiple_of, work)
    else:
        ((axis, column),) = axes.items()
        weights = np.ones(len(column))
        chosen = {axis: _one_axis(column, weights, max_buckets, compile_cost, multiple_of, work, fallback)}
    padding, covered = _quality(chosen, axes, work)
    return BucketPlan(chosen, padding, covered, len(axes) == 1, len(next(iter(axes.values()))))


def powers_of_two(sizes: Sequence[int] | Ints) -> tuple[int, ...]:
    """Return the usual buckets for these sizes: every power of two that one is padded to."""
    return tuple(sorted({1 << int(size - 1).bit_length() for size in _sizes(sizes, AXIS).tolist()}))


def _sizes(sizes: Any, axis: str) -> Ints:
    column = np.asarray(sizes)
    if column.ndim != 1 or not column.size:
        raise UsageError(
            f"expected a list of sizes for axis {axis}, found {sizes!r:.60}",
            hint="give the size of each request: [128, 97, 131]",
        )
    if column.dtype.kind not in "iu" or int(column.min()) < 1 or int(column.max()) > _MAX_SIZE:
        fine = [type(size) is int and 1 <= size <= _MAX_SIZE for size in column.tolist()]
        odd = column.tolist()[fine.index(False)]
        raise UsageError(f"expected positive whole sizes for axis {axis}, found {odd!r:.60}")
    return column.astype(np.int64)


def _one_axis(
    column: Ints,
    weights: Floats,
    max_buckets: int,
    compile_cost: float,
    multiple_of: int,
    work: Work,
    fallback: float | None,
) -> tuple[int, ...]:
    rounded = -(-column // multiple_of) * multiple_of
    sizes, where = np.unique(rounded, return_inverse=True)
    counts = np.bincount(where, weights).astype(np.float64)
    left = None
    if fallback is not None:  # which pads nothing
        left = (fallback * np.bincount(where, weights * np.asarray(work(column), np.float64))).astype(np.float64)
    at, _ = least_cost(np.asarray(work(sizes), np.float64), counts, max_buckets, compile_cost, left)
    return tuple(sizes[at].tolist())


def least_cost(
    work: Floats, counts: Floats, max_buckets: int, compile_cost: float, left: Floats | None
) -> tuple[Ints, float]:
    """Return which of the sizes to make buckets, and the cost of all requests then.

    ``work`` : float64[n], of each distinct size, growing. ``counts`` : float64[n], requests of each size.
    ``max_buckets``, ``compile_cost`` : as in :func:`plan`. ``left`` : float64[n], what all requests of each size cost
    without a bucket; None where each needs one. The indices are ascending; there may be none if the fallback is
    cheapest for all.
    """
    if (np.diff(work) < 0).any() or not np.isfinite(work).all():
        raise UsageError("expected work that grows with size", hint="work=np.square, for example")
    n = len(work)
    before = np.concatenate(([0.0], np.cumsum(counts)))
    # sizes from j on are left to the fallback
    tail = np.full(n + 1, np.inf)
    tail[n] = 0.0
    if left is not None:
        tail[:n] = np.cumsum(left[::-1])[::-1]
    layer = np.concatenate(([0.0], work * before[1:]))
    layers, cuts = [layer], [np.zeros(n + 1, np.int64)]
    best, chosen = float(tail[0]), (0, 0)
    for k in range(1, min(max_buckets, n) + 1):
        if k > 1:
            layer, cut = _layer(layers[-1], before, work)
            layers.append(layer)
            cuts.append(cut)
        total = layer + tail + k * compile_cost
        j = int(np.argmin(total[1:])) + 1
        if total[j] < best:
            best, chosen = float(total[j]), (k, j)
    at = []
    k, j = chosen
    while k:
        at.append(j - 1)
        k, j = k - 1, int(cuts[k - 1][j])
        if not j:
            break  # fewer did as well
    return np.array(at[::-1], np.int64), best


def _layer(previous: Floats, before: Floats, work: Floats) -> tuple[Floats, Ints]:
    """Return the least cost of the first j sizes with one bucket more, and where it begins.

    ``previous[i]`` : least cost of the first i; ``before[i]`` : their requests. The best ``i`` grows with ``j``:
    rows are solved from coarse to fine, each between its neighbours' minima, all rows of one level in one step.
    """
    n = len(work)
    cost, cut = np.zeros(n + 1), np.zeros(n + 1, np.int64)
    step = 1 << n.bit_length()
    while step >= 1:
        rows = np.arange(step, n + 1, 2 * step)
        low = cut[rows - step]
        above = rows + step
        high = np.where(above <= n, cut[np.minimum(above, n)], n)
        high = np.minimum(high, rows - 1)
        low = np.minimum(low, high)
        lengths = high - low + 1
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
        if len(rows):
            row = np.repeat(np.arange(len(rows)), lengths)
            i = np.arange(int(lengths.sum())) - starts[row] + low[row]
            j = rows[row]
            values = previous[i] + work[j - 1] * (before[j] - before[i])
            least = np.minimum.reduceat(values, starts)
            hits = np.flatnonzero(values == least[row])
            first = hits[np.searchsorted(hits, starts)]
            cost[rows], cut[rows] = least, i[first]
        step //= 2
    return cost, cut


def _grid(
    axes: Mapping[str, Ints], max_buckets: int, compile_cost: float, multiple_of: int, work: Work
) -> dict[str, tuple[int, ...]]:
    """Return buckets for several axes whose combinations are at most ``max_buckets``.

    For each way to share them out, every axis is solved exactly with the others held, in turn until nothing
    improves. Each bucket of one axis multiplies those of the others, so a compilation's cost is that of all
    combinations it adds.
    """
    best: tuple[float, dict[str, tuple[int, ...]]] | None = None
    limits = [min(len(distinct(column)), max_buckets) for column in axes.values()]
    for shares in _shares(limits, max_buckets):
        chosen: dict[str, tuple[int, ...]] = {
            axis: (int(-(-column.max() // multiple_of) * multiple_of),) for axis, column in axes.items()
        }
        cost = math.inf
        for _ in range(_ROUNDS):
            for (axis, column), share in zip(axes.items(), shares, strict=True):
                others = [name for name in axes if name != axis]
                weights = np.ones(len(column))
                for other in others:
                    weights *= work(_padded(axes[other], chosen[other]))
                each = compile_cost * math.prod(len(chosen[other]) for other in others)
                chosen[axis] = _one_axis(column, weights, share, each, multiple_of, work, None)
            padded = [work(_padded(column, chosen[axis])) for axis, column in axes.items()]
            now = float(np.prod(np.array(padded, np.float64), axis=0).sum()) + compile_cost * math.prod(
                map(len, chosen.values())
            )
            if now >= cost * (1 - 1e-12):
                break
            cost = now
        if best is None or cost < best[0]:
            best = cost, dict(chosen)
    assert best is not None
    return best[1]


def _shares(limits: list[int], most: int) -> list[tuple[int, ...]]:
    ways = [way for way in itertools.product(*(range(1, limit + 1) for limit in limits)) if math.prod(way) <= most]
    return [
        way
        for way in ways
        if not any(other != way and all(a <= b for a, b in zip(way, other, strict=True)) for other in ways)
    ]


def _padded(column: Ints, buckets: tuple[int, ...]) -> Ints:
    known = np.array(buckets, np.int64)
    at = np.searchsorted(known, column)
    return np.where(at < len(known), known[np.minimum(at, len(known) - 1)], column)


def _quality(chosen: Mapping[str, tuple[int, ...]], axes: Mapping[str, Ints], work: Work) -> tuple[float, float]:
    """Return padding over real work of the requests that have a bucket, and their share."""
    n = len(next(iter(axes.values())))
    covered = np.ones(n, bool)
    real, padded = np.ones(n), np.ones(n)
    for axis, column in axes.items():
        covered &= column <= (chosen[axis][-1] if chosen[axis] else 0)
        real *= work(column)
        if chosen[axis]:
            padded *= work(_padded(column, chosen[axis]))
    if not covered.any():
        return 0.0, 0.0
    return float(padded[covered].sum() / real[covered].sum() - 1), float(covered.mean())
