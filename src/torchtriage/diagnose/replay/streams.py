"""The device side: work in stream order, and what had been launched by when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Trace

BEFORE_EVERYTHING = -(1 << 61)


@dataclass(frozen=True, eq=False)
class Streams:
    """Device work sorted by stream, then start, then launch; a *position* indexes these arrays.

    ``row`` : row of the trace. ``stream`` : 0 ... ``n_streams`` - 1. ``start_ns``/``end_ns``.
    ``call`` : row of the launch call, -1 for orphans. ``launch_ns`` : its start, before everything
    for orphans. ``first`` : int64[n_streams + 1], where each stream begins. ``lane`` : lane of the
    trace for each stream. ``device`` : device number of each stream.
    """

    row: Ints
    stream: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    launch_ns: Ints
    first: Ints
    lane: Ints
    device: Ints

    def __len__(self) -> int:
        """Return how much device work there is."""
        return len(self.row)

    @property
    def n_streams(self) -> int:
        """Number of streams with work."""
        return len(self.lane)

    @cached_property
    def previous(self) -> Ints:
        """int64[k]: position before on the same stream, -1 for a stream's first."""
        out = np.arange(-1, len(self) - 1, dtype=np.int64)
        out[self.first[:-1]] = -1
        return out

    @cached_property
    def gap_ns(self) -> Ints:
        """int64[k], ns: from the end of the work before on the stream to the start; 0 for none."""
        return np.where(self.previous >= 0, self.start_ns - self.end_ns[self.previous], 0)

    @cached_property
    def _launched(self) -> list[Ints]:
        return [
            np.maximum.accumulate(self.launch_ns[a:b])
            for a, b in zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True)
        ]

    @cached_property
    def _linked(self) -> Ints:
        """int64[k]: the last position with a launch up to each, on any stream."""
        return np.maximum.accumulate(np.where(self.call >= 0, np.arange(len(self)), -1))

    def last_before(self, stream: int, times_ns: Ints, until_ns: Ints) -> Ints:
        """Return the position of the last work of a stream launched before each time, -1: none.

        Work without a launch may have been launched with the work before it, if it began before ``until_ns``.
        """
        first, stop = self.first[stream], self.first[stream + 1]
        last = np.searchsorted(self._launched[stream], times_ns, side="left") - 1 + first
        begun = np.searchsorted(self.start_ns[first:stop], until_ns, side="left") - 1 + first
        last = np.minimum(last, np.maximum(self._linked[last], begun))
        return np.where(last >= first, last, -1)

    @cached_property
    def first_of_call(self) -> tuple[Ints, Ints]:
        """Launch calls in row order, and the position of the earliest work of each."""
        linked = np.flatnonzero(self.call >= 0)
        order = linked[np.lexsort((self.start_ns[linked], self.call[linked]))]
        calls, first = np.unique(self.call[order], return_index=True)
        return calls, order[first]


def device_streams(trace: Trace) -> Streams:
    """Return the device work of a trace."""
    row = np.flatnonzero(trace.works)
    call = trace.links.call[row].astype(np.int64)
    launch = np.where(call >= 0, trace.start_ns[call], BEFORE_EVERYTHING)
    order = np.lexsort((launch, trace.start_ns[row], trace.lane[row]))
    row, call, launch = row[order], call[order], launch[order]
    lane, first = np.unique(trace.lane[row], return_index=True)
    first = np.append(first, len(row)).astype(np.int64)
    stream = np.repeat(np.arange(len(lane)), np.diff(first))
    device = np.array([trace.lanes[item].device for item in lane.tolist()], np.int64)
    return Streams(
        row, stream, trace.start_ns[row], trace.end_ns[row], call, launch, first, lane.astype(np.int64), device
    )


class CallTimeline:
    """Calls by thread and time; ``order`` : where each of the given rows is."""

    def __init__(self, trace: Trace, rows: Ints) -> None:
        """Sort the calls."""
        self.order = np.lexsort((trace.start_ns[rows], trace.lane[rows]))
        rows = rows[self.order]
        self.lane, self.start_ns = trace.lane[rows], trace.start_ns[rows]
        self._base = int(trace.start_ns.min())
        self._span = int(trace.end_ns.max()) - self._base + 3
        self._keys = self._key(self.lane, self.start_ns)

    def _key(self, lane: NDArray[np.integer], times_ns: Ints) -> Ints:
        return lane.astype(np.int64) * self._span + (times_ns - self._base)

    def before(self, lane: NDArray[np.integer], times_ns: Ints) -> Ints:
        """Return the index of the last call of a thread before each time, -1 without one."""
        index = np.searchsorted(self._keys, self._key(lane, times_ns), side="left") - 1
        hit = (index >= 0) & (self.lane[np.maximum(index, 0)] == lane)
        return np.where(hit, index, -1)

    def after(self, lane: NDArray[np.integer], times_ns: Ints) -> Ints:
        """Return the index of the first call of a thread after each time, -1 without one."""
        index = np.searchsorted(self._keys, self._key(lane, times_ns), side="right")
        at = np.minimum(index, len(self._keys) - 1)
        return np.where((index < len(self._keys)) & (self.lane[at] == lane), at, -1)
