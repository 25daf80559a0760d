"""The collectives of a recording, whoever carries them out: their sizes, and the time nothing hides them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.names import short_name
from torchtriage.core.trace.collectives import host_collectives
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.messages import MAX_BYTES, item_bytes
from torchtriage.core.trace.schema import Kind

ENQUEUES = r"^c10d::|^_?c10d_functional::"
_WAITS = r"wait_tensor$|^_c10d_functional::_wrap_tensor"
ENGINE = r"^autograd::engine::"


@dataclass(frozen=True, eq=False)
class Collectives:
    """The collectives of one recording.

    ``rows`` : int64[k], kernels of the main device, or rows of host threads where there is no device.
    ``size_bytes`` : int64[k], -1 where not recorded. ``exposed`` : int64[m, 2], disjoint time in which a collective
    runs and nothing is computed; ``source`` : int64[m], whose it is, an index into ``rows``. ``computing`` : int64[c,
    2], time in which something is.
    """

    trace: Trace
    rows: Ints
    exposed: Spans
    source: Ints
    computing: Spans
    on_host: bool

    @cached_property
    def running(self) -> Spans:
        """Time in which any of them runs."""
        rows, trace = self.rows, self.trace
        return trace.time_of(rows)

    @cached_property
    def step(self) -> Ints:
        """int64[k]: the step each collective belongs to, -1 for none."""
        steps = self.trace.steps
        return steps.of_host(self.rows) if self.on_host else steps.of_work(self.rows)

    @cached_property
    def labels(self) -> list[str]:
        """What each one is called: ``all_reduce``, or its kernel's name."""
        trace = self.trace
        named = trace.details_of("collective", self.rows)
        return [
            str(name) if name else short_name(trace.name_of(row)).split(":")[-1]
            for name, row in zip(named, self.rows.tolist(), strict=True)
        ]

    @cached_property
    def size_bytes(self) -> Ints:
        """int64[k], bytes: the message, -1 where it was not recorded."""
        return np.array([size for size, _ in self._sizes], np.int64)

    @cached_property
    def equal(self) -> Ints:
        """int64[k]: a code that collectives of one kind, size and type share; -1 without a size."""
        codes: dict[tuple[str, str], int] = {}
        return np.array(
            [
                codes.setdefault((label, key), len(codes)) if key else -1
                for label, (_, key) in zip(self.labels, self._sizes, strict=True)
            ],
            np.int64,
        )

    @cached_property
    def fastest_ns(self) -> Ints:
        """int64[k], ns: what the fastest of at least three equal ones took, 0 where unknown.

        A collective lasts from its first rank to its last: the fastest comes closest to the transfer itself.
        """
        dur = np.maximum(self.trace.dur_ns[self.rows], 1)
        known = self.equal >= 0
        if not known.any():
            return np.zeros(len(dur), np.int64)
        least = np.full(self.equal.max() + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, self.equal[known], dur[known])
        enough = np.bincount(self.equal[known], minlength=len(least)) >= MIN_EQUAL
        return np.where(known & enough[self.equal], least[self.equal], 0)

    @cached_property
    def enqueued_by(self) -> Ints:
        """int64[k]: the ``c10d`` op that enqueued each collective, -1 where it is not known."""
        trace = self.trace
        ops = trace.matching(ENQUEUES, Kind.OP)
        if not self.on_host:
            call = trace.links.call[self.rows].astype(np.int64)
            found = np.full(len(call), -1, np.int64)
            found[call >= 0] = trace.tree.nearest(call[call >= 0], ops)
            return found
        # threads of the host work through them in order: the k-th op, the k-th collective
        rows = np.flatnonzero(ops & ~trace.tree.under(ops) & ~trace.matching(_WAITS))
        rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        found = np.full(len(self.rows), -1, np.int64)
        order = np.argsort(trace.start_ns[self.rows], kind="stable")
        begin = trace.start_ns[self.rows[order]]
        index = np.searchsorted(trace.start_ns[rows], begin, side="right") - 1
        if len(rows) == len(order):
            index = np.arange(len(order))
        found[order] = np.where(index >= 0, np.append(rows, -1)[index], -1)
        return found

    @cached_property
    def _sizes(self) -> list[tuple[int, str]]:
        """Bytes (-1: unknown) and a text that is the same for equal messages (empty: unknown)."""
        trace = self.trace
        if self.on_host:
            what = zip(trace.details_of("dims", self.rows), trace.details_of("types", self.rows), strict=True)
            return [_of_dims(dims, types) for dims, types in what]
        # as text: what a file writes as a size need not be one
        what = zip(trace.details_of("nelems", self.rows), trace.details_of("dtype", self.rows), strict=True)
        return [_of_count(count, dtype) for count, dtype in what]


MIN_EQUAL = 3  # equal messages before the fastest of them stands for the transfer itself


def find_collectives(trace: Trace) -> Collectives | None:
    """Return the collectives of the main device, else those of host threads; None without any."""
    if trace.devices:
        device = trace.devices[0]
        rows = device.rows[device.comm]
        if not len(rows):
            return None
        spans, source = _pieces(trace, rows, device.comm_only)
        return Collectives(trace, rows, spans, source, device.compute, on_host=False)
    rows = np.flatnonzero(host_collectives(trace))
    if not len(rows) or not trace.is_host_only:
        return None  # beside a device that is not judged, nobody knows what the host waits for
    computing = _computing(trace)
    spans, source = _waiting(trace, rows, computing)
    return Collectives(trace, rows, spans, source, computing, on_host=True)


def _pieces(trace: Trace, rows: Ints, exposed: Spans) -> tuple[Spans, Ints]:
    """Return the exposed parts of each row, disjoint, and the index of the row each comes from."""
    order = np.argsort(trace.start_ns[rows], kind="stable")
    start, end = trace.start_ns[rows[order]], trace.end_ns[rows[order]]
    # collectives on several streams overlap: each stretch goes to the one that began first
    reach = np.maximum.accumulate(np.append(start[:1], end[:-1]))
    whole = intervals.spans(np.maximum(start, reach), np.maximum(end, reach))
    nonempty = np.flatnonzero(whole[:, 1] > whole[:, 0])
    parts = intervals.intersect(whole[nonempty], exposed)
    owner = intervals.owner(whole[nonempty], parts[:, 0])
    return parts, order[nonempty[owner]]


def _waiting(trace: Trace, rows: Ints, computing: Spans) -> tuple[Spans, Ints]:
    """Return when the host does nothing until a collective ends, and which one that is.

    Not in an op while a collective runs is not enough: the host may be in Python. It waits where it computes nothing up
    to the moment the collective ends.
    """
    idle = intervals.subtract(trace.time_of(rows), computing)
    if not len(idle):
        return intervals.EMPTY, np.empty(0, np.int64)
    order = np.argsort(trace.end_ns[rows], kind="stable")
    end = trace.end_ns[rows[order]]
    piece = np.searchsorted(idle[:, 0], end, side="left") - 1
    inside = (piece >= 0) & (end <= idle[np.maximum(piece, 0), 1])
    order, end, piece = order[inside], end[inside], piece[inside]
    begin = idle[piece, 0]
    again = np.zeros(len(end), dtype=bool)
    again[1:] = piece[1:] == piece[:-1]
    begin[again] = end[:-1][again[1:]]
    nonempty = end > begin
    return intervals.spans(begin[nonempty], end[nonempty]), order[nonempty]


def _computing(trace: Trace) -> Spans:
    """Return when the main thread or the autograd engine's are in ops, other than waiting ones."""
    ops = trace.kind == Kind.OP
    enqueues = ops & trace.matching(f"{ENQUEUES}|{_WAITS}")
    engine = distinct(trace.lane[ops & trace.matching(ENGINE)])
    crew = np.append(engine, trace.steps.lane)
    # an op that enqueues a collective may wait for it before it returns; what it computes has
    # rows of its own
    mine = ops & ~enqueues & ~trace.tree.above(enqueues) & np.isin(trace.lane, crew)
    return trace.time_of(np.flatnonzero(mine))


def _of_dims(dims: Any, types: Any) -> tuple[int, str]:
    shape = dims[0] if isinstance(dims, list) and dims else None
    if not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
        return -1, ""
    count = math.prod(shape)
    dtype = str(types[0]) if isinstance(types, list) and types else ""
    return _bytes(count, dtype), f"{count} {dtype}"


def _of_count(count: Any, dtype: Any) -> tuple[int, str]:
    if not count:
        return -1, ""
    known = isinstance(count, int)
    return _bytes(count, str(dtype)) if known else -1, f"{count} {dtype}"


def _bytes(count: int, dtype: str) -> int:
    size = count * item_bytes(dtype)
    return size if 0 < size < MAX_BYTES else -1
