"""Windows of a trace as features sum over them: rows cut at their edges, shares, counts, longest stretches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.trace.columns import Trace
from torchtriage.diagnose.detector.families import Table, family_codes

Columns = dict[str, Floats]


class Pieces(NamedTuple):
    """Rows cut at the windows: ``row[at]``, the window, ns inside, and whether it begins there."""

    at: Ints
    window: Ints
    inside_ns: Ints
    begins: Mask


class Windows:
    """Stretches of time in order, none inside another, and sums over what lies in them."""

    def __init__(self, spans: Ints) -> None:
        """``spans`` : int64[n, 2], beginnings and ends in ns."""
        self.spans = spans
        self.start_ns = np.ascontiguousarray(spans[:, 0])
        self.end_ns = np.ascontiguousarray(spans[:, 1])
        self.count = len(spans)
        self.wall_ns = np.maximum(self.end_ns - self.start_ns, 1).astype(np.float64)

    def cut(self, start_ns: Ints, end_ns: Ints) -> Pieces:
        """Return intervals cut at the windows; one without length lies where it starts."""
        first = np.searchsorted(self.end_ns, start_ns, side="right")
        last = np.searchsorted(self.start_ns, end_ns, side="left")
        pieces = np.maximum(last - first, 0)
        if (pieces <= 1).all():
            at = np.flatnonzero(pieces)
            window = first[at]
        else:
            at = np.repeat(np.arange(len(start_ns)), pieces)
            window = first[at] + np.arange(len(at)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin, end = self.start_ns[window], self.end_ns[window]
        start = start_ns[at]
        inside = np.minimum(end_ns[at], end) - np.maximum(start, begin)
        return Pieces(at, window, np.maximum(inside, 0), start >= begin)

    def sums(self, window: Ints, code: Ints, n_codes: int, weights: Any = None) -> Floats:
        """Return float64[count, n_codes]: weights (or ones) added up."""
        flat = np.bincount(window * n_codes + code, weights, self.count * n_codes)
        return flat.astype(np.float64).reshape(self.count, n_codes)

    def total(self, window: Ints, weights: Any = None) -> Floats:
        """Return float64[count]: weights (or ones) added up."""
        return np.bincount(window, weights, self.count).astype(np.float64)

    def share(self, cover: intervals.Spans) -> Floats:
        """Return float64[count]: how much of each window sorted, disjoint intervals cover."""
        return intervals.covered(self.spans, cover) / self.wall_ns

    def longest(self, cover: intervals.Spans) -> Floats:
        """Return float64[count]: the longest stretch not covered, by the window's length.

        A stretch counts whole in each window that it reaches into.
        """
        ends = np.array([[self.start_ns[0], self.end_ns[-1]]], np.int64)
        free = intervals.subtract(ends, cover)
        pieces = self.cut(free[:, 0], free[:, 1])
        return bounded(self.most(pieces.window, (free[:, 1] - free[:, 0])[pieces.at]))

    def most(self, window: Ints, lengths_ns: Ints) -> Floats:
        """Return float64[count]: the longest of each window's lengths, in windows."""
        order = np.argsort(window, kind="stable")
        first = np.flatnonzero(np.append(True, np.diff(window[order]) != 0)[: len(order)])
        longest = np.zeros(self.count)
        if len(first):
            longest[window[order[first]]] = np.maximum.reduceat(lengths_ns[order], first)
        return longest / self.wall_ns

    def per_ms(self, window: Ints) -> Floats:
        """Return float64[count]: the logarithm of how many there are in a millisecond."""
        return np.log1p(self.total(window) / self.wall_ns * 1e6)


def ratio(amount: Floats, of: Floats) -> Floats:
    """Return the quotient, 0 where there is nothing to divide by."""
    return np.divide(amount, of, out=np.zeros_like(amount), where=of > 0)


def bounded(windows: Floats) -> Floats:
    """Return lengths in windows, none above a hundred."""
    return np.minimum(windows, 100.0)


def families_of(trace: Trace, among: Mask, table: Table) -> Ints:
    """Return int64[names]: the family of each name that rows of ``among`` bear."""
    used = np.flatnonzero(np.bincount(trace.name[among], minlength=len(trace.names)))
    family = np.full(len(trace.names), len(table) - 1, np.int64)
    family[used] = family_codes([trace.names[code] for code in used.tolist()], table)
    return family
