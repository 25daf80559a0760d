"""Half-open time intervals as ``int64[k, 2]`` arrays of nanoseconds.

Every function returns sorted, disjoint, non-empty intervals unless it says otherwise, and every function is linear in
its inputs up to a sort. Unions, never sums of durations: work on one device overlaps in real traces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.engine import find_engine

Spans = NDArray[np.int64]

EMPTY: Spans = np.empty((0, 2), dtype=np.int64)


def spans(start_ns: Ints, end_ns: Ints) -> Spans:
    """Stack starts and ends into ``int64[k, 2]``; not sorted, may overlap."""
    out = np.empty((len(start_ns), 2), np.int64)
    out[:, 0], out[:, 1] = start_ns, end_ns
    return out


def union(values: Spans) -> Spans:
    """Return the time covered by any of ``values``."""
    library = find_engine().library
    if library is not None:
        held, out = _plain(values), np.empty((len(values), 2), np.int64)
        n_found = library.tt_union(held.ctypes.data, len(held), out.ctypes.data)
        return _some(out, n_found)
    values = values[values[:, 1] > values[:, 0]]
    if not len(values):
        return EMPTY
    start, end = values[np.argsort(values[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), dtype=bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:] - 1, len(start) - 1)
    return spans(start[heads], reach[tails])


def _plain(values: Spans) -> Spans:
    """Return the same as the library reads them."""
    return np.ascontiguousarray(values, np.int64)


def _some(out: Spans, n_found: int) -> Spans:
    """Return what the library has found, in no more memory than that takes."""
    if n_found < 0:
        raise AssertionError("the native library refused intervals")
    out.resize((n_found, 2), refcheck=False)
    return out


def length(values: Spans) -> int:
    """Return the summed length in ns of disjoint intervals."""
    return int((values[:, 1] - values[:, 0]).sum())


def clip(values: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return disjoint intervals cut to ``[start_ns, end_ns)``."""
    cut = np.clip(values, start_ns, end_ns)
    return cut[cut[:, 1] > cut[:, 0]]


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the time covered by both; each side must be sorted and disjoint."""
    if not len(left) or not len(right):
        return EMPTY
    library = find_engine().library
    if library is not None:
        left, right, out = _plain(left), _plain(right), np.empty((len(left) + len(right), 2), np.int64)
        places = left.ctypes.data, len(left), right.ctypes.data, len(right)
        return _some(out, library.tt_intersect(*places, out.ctypes.data))
    if len(left) > len(right):
        left, right = right, left
    # for every interval of the fewer: the run of others that touch it
    lo = np.searchsorted(right[:, 1], left[:, 0], side="right")
    hi = np.searchsorted(right[:, 0], left[:, 1], side="left")
    counts = np.maximum(hi - lo, 0)
    ends = np.cumsum(counts)
    other = np.repeat(lo - ends + counts, counts) + np.arange(ends[-1])
    start, end = (np.repeat(side, counts) for side in left.T)
    return spans(np.maximum(start, right[other, 0]), np.minimum(end, right[other, 1]))


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the time in ``left`` and not in ``right``; each sorted and disjoint."""
    if not len(left) or not len(right):
        return left
    edges = np.empty((len(right) + 1, 2), dtype=np.int64)
    edges[0, 0] = np.iinfo(np.int64).min
    edges[1:, 0] = right[:, 1]
    edges[:-1, 1] = right[:, 0]
    edges[-1, 1] = np.iinfo(np.int64).max
    return intersect(left, edges[edges[:, 1] > edges[:, 0]])


def covered(values: Spans, cover: Spans) -> Ints:
    """Return for each row of ``values`` (any order) how many ns of it ``cover`` covers.

    ``values`` : int64[k, 2], intervals in any order, overlaps allowed. ``cover`` : int64[m, 2], sorted and disjoint.
    """
    out = np.zeros(len(values), dtype=np.int64)
    if not len(cover):
        return out
    library = find_engine().library
    if library is not None:
        values, cover = _plain(values), _plain(cover)
        places = values.ctypes.data, len(values), cover.ctypes.data, len(cover)
        if library.tt_covered(*places, out.ctypes.data) < 0:
            raise AssertionError("the native library refused intervals")
        return out
    total = totals(cover)
    np.maximum(until(cover, total, values[:, 1]) - until(cover, total, values[:, 0]), 0, out=out)
    return out


def totals(cover: Spans) -> Ints:
    """Return int64[m + 1]: the summed length of disjoint intervals in front of each, and of all."""
    return np.concatenate([[0], np.cumsum(cover[:, 1] - cover[:, 0])])


def until(cover: Spans, total: Ints, times: Ints) -> Ints:
    """Return how many ns ``cover``, which is not empty, covers before each time; ``total`` as of :func:`totals`."""
    last = np.searchsorted(cover[:, 0], times, side="right") - 1
    before: Ints = np.minimum(times, cover[last, 1]) + (total[:-1] - cover[:, 0])[last]
    before[last < 0] = 0
    return before


def owner(values: Spans, times: Ints) -> Ints:
    """Return the index of the disjoint, sorted interval holding each time, else -1."""
    if not len(values):
        return np.full(len(times), -1, dtype=np.int64)
    index = np.searchsorted(values[:, 0], times, side="right") - 1
    inside = (index >= 0) & (times < values[np.maximum(index, 0), 1])
    return np.where(inside, index, -1)


def disjoint(spans: Spans) -> tuple[Spans, Ints]:
    """Cut overlapping spans so that each ns belongs to the one that began first; also which each piece is of."""
    order = np.argsort(spans[:, 0], kind="stable")
    cut = spans[order]
    if len(cut):
        cut[1:, 0] = np.maximum(cut[1:, 0], np.maximum.accumulate(cut[:, 1])[:-1])
    keep = cut[:, 1] > cut[:, 0]
    return cut[keep], order[keep]
