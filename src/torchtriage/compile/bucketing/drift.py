"""When the sizes have changed: which buckets to add, at most two at a time, and which to drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.compile.bucketing.planning import Work, least_cost

__all__ = ["Revision", "revise"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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

    Parameters
    ----------
    buckets : ints
        In use, ascending.
    sizes : int[n]
        Of the latest requests.
    weights : float64[n], optional
        What each request counts: of several axes, the product of the others' padded sizes.
    compile_cost, multiple_of, work, fallback
        As in :func:`~torchtriage.compile.bucketing.planning.plan`; compiling counts for each new bucket.
    min_gain : float
        Share of the present cost that must be saved (after compiling): without it noise in a
        histogram would replan for ever.
    """
    now = sorted(set(buckets))
    column = -(-np.asarray(sizes, np.int64) // multiple_of) * multiple_of
    found, where = np.unique(column, return_inverse=True)
    counts = np.bincount(where, weights).astype(np.float64)
    price = _Prices(found, counts, np.asarray(work(found), np.float64), work, fallback)
    present = price.of(now)
    options = _options(price, now, max_new)
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
        after.remove(min(after, key=lambda bucket: (price.of([b for b in after if b != bucket]), bucket)))
    saved = present - price.of(after)
    kept = tuple(size for size in added if size in after)
    if not kept or saved - compile_cost * len(kept) < max(min_gain * present, 1e-12):
        return None
    dropped = tuple(size for size in now if size not in after)
    return Revision(tuple(after), kept, dropped, saved / present)


@dataclass(frozen=True)
class _Prices:
    """What the latest requests cost: ``sizes`` ascending, with ``counts`` and ``cost`` each."""

    sizes: Ints
    counts: Floats
    cost: Floats
    work: Work
    fallback: float

    def of(self, buckets: Sequence[int]) -> float:
        """Return the cost of all requests with these buckets."""
        known = np.array(sorted(buckets), np.int64)
        if not len(known):
            return float((self.fallback * self.cost * self.counts).sum())
        at = np.searchsorted(known, self.sizes)
        priced = np.asarray(self.work(known), np.float64)[np.minimum(at, len(known) - 1)]
        each = np.where(at < len(known), priced, self.fallback * self.cost)
        return float((each * self.counts).sum())


def _options(price: _Prices, now: list[int], max_new: int) -> list[list[tuple[float, tuple[int, ...]]]]:
    """Return for each gap between buckets what one, two ... more would save there, and where."""
    options = []
    edges: list[int | None] = [*now, None]
    low = 0
    for high in edges:
        inside = (price.sizes > low) & ((price.sizes < high) if high is not None else True)
        low = high if high is not None else low
        if not inside.any():
            continue
        sizes, counts, cost = price.sizes[inside], price.counts[inside], price.cost[inside]
        if high is not None:  # what is not in a new bucket is padded to this one
            end = float(np.asarray(price.work(np.array([high])), np.float64)[0])
        gap = []
        for n_new in range(1, max_new + 1):
            if high is None:
                at, after = least_cost(cost, counts, n_new, 0.0, price.fallback)
                before = price.fallback * float((cost * counts).sum())
            else:
                at, after = least_cost(np.append(cost, end), np.append(counts, 0.0), n_new + 1, 0.0, None)
                before = end * float(counts.sum())
                at = at[at < len(sizes)]
            if len(at):
                gap.append((before - after, tuple(sizes[at].tolist())))
        options.append(gap)
    return options


def _ways(
    options: list[list[tuple[float, tuple[int, ...]]]], max_new: int
) -> list[list[tuple[float, tuple[int, ...]]]]:
    """Return the choices worth a look: for each number of new buckets, the best of the gaps."""
    # best[k] : the most that k new ones save in the gaps so far
    best: list[tuple[float, list[tuple[float, tuple[int, ...]]]]] = [(0.0, [])]
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
