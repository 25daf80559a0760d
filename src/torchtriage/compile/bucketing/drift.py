"""When the sizes have changed: which buckets to add, at most two at a time, and which to drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtriage.compile.bucketing.planning import Work, least_cost
from torchtriage.core.arrays import Floats, Ints

_Choice = tuple[float, tuple[int, ...]]
"""What new buckets save, and their sizes."""


@dataclass(frozen=True)
class Revision:
    """A change of buckets that pays.

    ``buckets`` : all of them from now on. ``added``, ``dropped`` : the change. ``gain`` : share of the cost of the
    requests looked at that it saves, 0-1, compilations not taken off.
    """

    buckets: tuple[int, ...]
    added: tuple[int, ...]
    dropped: tuple[int, ...]
    gain: float


def revise(
    buckets: Sequence[int],
    sizes: Sequence[int] | Ints,
    *,
    weights: Floats | None = None,
    max_buckets: int = 8,
    max_new: int = 2,
    compile_cost: float = 0.0,
    min_gain: float = 0.02,
    multiple_of: int = 1,
    work: Work = np.asarray,
    fallback: float = 2.0,
) -> Revision | None:
    """Return the best change with at most ``max_new`` new buckets, None where none pays.

    Exact for the additions: a new bucket only helps the sizes between its neighbours, so each gap is solved by
    itself with one and with two more, and the gains are combined. Buckets over ``max_buckets`` are then dropped,
    cheapest first.

    ``buckets`` : in use. ``sizes`` : int[n], of the latest requests. ``weights`` : float64[n], what each request
    counts: of several axes, the product of the others' padded sizes. ``min_gain`` : share of the present cost that
    must be saved (after compiling): without it noise in a histogram would replan for ever. Others are as in
    :func:`~torchtriage.compile.bucketing.planning.plan`; compiling counts for each new bucket.
    """
    now = sorted(set(buckets))
    column = -(-np.asarray(sizes, np.int64) // multiple_of) * multiple_of
    distinct, where = np.unique(column, return_inverse=True)
    counts = np.bincount(where, weights).astype(np.float64)
    cost = np.asarray(work(distinct), np.float64)
    real = np.asarray(work(np.asarray(sizes, np.int64)), np.float64)
    left = (fallback * np.bincount(where, real if weights is None else real * weights)).astype(np.float64)

    def price_of(buckets: Sequence[int]) -> float:
        known = np.array(buckets, np.int64)
        if not len(known):
            return float(left.sum())
        at = np.searchsorted(known, distinct)
        padded = np.asarray(work(known), np.float64)[np.minimum(at, len(known) - 1)]
        return float((np.where(at < len(known), padded * counts, left)).sum())

    present = price_of(now)
    options = _options(distinct, counts, cost, work, left, now, max_new)
    net = 0.0
    added: tuple[int, ...] = ()
    for way in _ways(options, max_new):
        sizes_added = tuple(sorted(size for _, new in way for size in new))
        saved = sum(gain for gain, _ in way) - compile_cost * len(sizes_added)
        if saved > net:
            net, added = saved, sizes_added
    if not added or net < min_gain * present:
        return None
    after = sorted({*now, *added})
    while len(after) > max_buckets:
        after.remove(min(after, key=lambda bucket: (price_of([b for b in after if b != bucket]), bucket)))
    saved = present - price_of(after)
    new = tuple(size for size in added if size in after)
    if not new or saved - compile_cost * len(new) < max(min_gain * present, 1e-12):
        return None
    dropped = tuple(size for size in now if size not in after)
    return Revision(tuple(after), new, dropped, saved / present)


def _options(
    sizes: Ints, counts: Floats, cost: Floats, work: Work, left: Floats, now: list[int], max_new: int
) -> list[list[_Choice]]:
    """Return for each gap between buckets what one, two ... more would save there, and where."""
    options = []
    edges: list[int | None] = [*now, None]
    low = 0
    for high in edges:
        inside = (sizes > low) & ((sizes < high) if high is not None else True)
        low = high if high is not None else low
        if not inside.any():
            continue
        n, each = counts[inside], cost[inside]
        if high is not None:  # what is not in a new bucket is padded to this one
            end = float(np.asarray(work(np.array([high])), np.float64)[0])
        gap = []
        for n_new in range(1, max_new + 1):
            if high is None:
                at, after = least_cost(each, n, n_new, 0.0, left[inside])
                before = float(left[inside].sum())
            else:
                at, after = least_cost(np.append(each, end), np.append(n, 0.0), n_new + 1, 0.0, None)
                before = end * float(n.sum())
                at = at[at < len(n)]
            if len(at):
                gap.append((before - after, tuple(sizes[inside][at].tolist())))
        options.append(gap)
    return options


def _ways(options: list[list[_Choice]], max_new: int) -> list[list[_Choice]]:
    """Return the choices worth a look: for each number of new buckets, the best of the gaps."""
    # best[k] : the most that k new ones save in the gaps so far
    best: list[tuple[float, list[_Choice]]] = [(0.0, [])]
    for gap in options:
        longer = list(best)
        for k, (gain, way) in enumerate(best):
            for option in gap:
                total = k + len(option[1])
                if total > max_new:
                    continue
                while len(longer) <= total:
                    longer.append((-1.0, []))
                if gain + option[0] > longer[total][0]:
                    longer[total] = (gain + option[0], [*way, option])
        best = longer
    return [way for _, way in best if way]
