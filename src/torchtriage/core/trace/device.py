"""Devices: what kept each one busy, its idle gaps, and who is to blame for each gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct, quantile
from torchtriage.core.finding import TimeClasses
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.peak_rates import Peak, peak_of
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

BACK_TO_BACK_NS = 2_000
"""Gaps up to this are the device's own turn-around: 0.8-2 us on CUDA, ~0 on ROCm (measured)."""

LAUNCH_SLACK_NS = 50_000
"""Longest time from a launch call's return to the start of its work on an idle device: medians are 6-20 us on NVIDIA
and 9-38 us on ROCm (measured)."""

EARLY_NS = 1_000_000
"""Work waits 6-38 us in an empty queue (measured); longer on an idle device means that earlier work, not recorded, was
still running: 7.8, 149 and 463 ms in three recordings that begin while the device is busy."""

STAGED = r"^Memcpy HtoD"
"""Uploads start late without a queue: the host stages them first."""

HOST_LATE, QUEUED, UNKNOWN = 0, 1, 2


class Backlog(NamedTuple):
    """Work enqueued before the recording and not in it, over when ``row`` starts, ``lag_ns`` after its launch."""

    row: int
    lag_ns: int


@dataclass(frozen=True, eq=False)
class Gaps:
    """Idle gaps between pieces of work, arrays of equal length, in time order.

    ``next_row`` : the work that ends the gap. ``blame`` : ``HOST_LATE`` when its launch call returned after the device
    had run dry, ``QUEUED`` when it was enqueued in time or the gap is back-to-back, ``UNKNOWN`` when the launch was not
    recorded.
    """

    spans: Spans
    next_row: Ints
    blame: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Device:
    """One accelerator: its work rows in start order and the classes of its time."""

    trace: Trace
    index: int
    name: str
    rows: Ints
    comm: NDArray[np.bool_]
    """bool[len(rows)]: communication kernels."""

    @property
    def peak(self) -> Peak | None:
        """Its dense peak rates, as stated by the user or known by its name."""
        return self.trace.stated_peak or peak_of(self.name)

    @cached_property
    def busy(self) -> Spans:
        """Time with any work on any stream."""
        return self._union(np.ones(len(self.rows), dtype=bool))

    @cached_property
    def compute(self) -> Spans:
        """Time with a kernel that is not communication, or a set."""
        return self._union(~self.comm & (self.trace.kind[self.rows] != Kind.MEMCPY))

    @cached_property
    def communication(self) -> Spans:
        """Time with a communication kernel, exposed or not."""
        return self._union(self.comm)

    @cached_property
    def comm_only(self) -> Spans:
        """Exposed communication: no computation beside it."""
        return intervals.subtract(self.communication, self.compute)

    @cached_property
    def copies(self) -> Spans:
        """Time with a copy."""
        return self._union(self.trace.kind[self.rows] == Kind.MEMCPY)

    @cached_property
    def copy_only(self) -> Spans:
        """Exposed copies: neither computation nor communication beside them."""
        return intervals.subtract(intervals.subtract(self.copies, self.compute), self.communication)

    @cached_property
    def early_ns(self) -> int:
        """How far the device's clock is ahead of the host's at least: so long before their launch call its rows begin.

        Of all but 1 % of the rows; 0 where they begin later, as they must.
        """
        call = self.trace.links.call[self.rows]
        begun = self.trace.start_ns[self.rows[call >= 0]] - self.trace.start_ns[call[call >= 0]]
        return max(0, -int(quantile(begun, 0.01))) if len(begun) else 0

    @cached_property
    def backlog(self) -> Backlog | None:
        """What the device still worked off, unrecorded, when the recording began; None where nothing shows it.

        The first work of a stream waited for it: long after its launch, on a device that looks idle meanwhile.
        """
        trace, rows = self.trace, self.rows
        if trace.origin.vendor == "tpu":  # a program waits there for its inputs and for other cores
            return None
        first = rows[np.unique(trace.lane[rows], return_index=True)[1]]
        call = trace.links.call[first]
        lag = np.where(call >= 0, trace.start_ns[first] - trace.end_ns[call], 0)
        waited = (lag > EARLY_NS) & ~trace.matches(first, STAGED)
        first, lag = first[waited], lag[waited]
        busy = intervals.covered(intervals.spans(trace.start_ns[first] - lag, trace.start_ns[first]), self.busy)
        first, lag = first[2 * busy < lag], lag[2 * busy < lag]
        if not len(first):
            return None
        last = int(np.argmax(trace.start_ns[first]))
        return Backlog(int(first[last]), int(lag[last]))

    @cached_property
    def gaps(self) -> Gaps:
        """Idle gaps inside the window, the one before its first work included."""
        trace, window = self.trace, self.trace.window
        busy = intervals.clip(self.busy, window.start_ns, np.iinfo(np.int64).max >> 1)
        edges = np.concatenate([[window.start_ns], busy[:, 1]])[: len(busy)]
        spans = np.stack([edges, busy[:, 0]], axis=1)
        spans = spans[(spans[:, 1] > spans[:, 0]) & (spans[:, 0] < window.end_ns)]
        starts = trace.start_ns[self.rows]
        position = np.searchsorted(starts, spans[:, 1], side="left")
        next_row = self.rows[np.minimum(position, len(self.rows) - 1)]
        call = trace.links.call[next_row]
        returned = np.where(call >= 0, trace.end_ns[call], 0)
        blame = np.where(returned > spans[:, 0], HOST_LATE, QUEUED)
        # enqueued, yet starting much later than a launch takes: from there on it was queued
        split = (blame == HOST_LATE) & (spans[:, 1] - returned > LAUNCH_SLACK_NS)
        # kernels of one graph launch follow each other without the host
        before = trace.links.call[self.rows[np.maximum(position - 1, 0)]]
        blame[(call >= 0) & (before == call) & (position > 0)] = QUEUED
        blame[call < 0] = UNKNOWN
        blame[spans[:, 1] - spans[:, 0] <= BACK_TO_BACK_NS] = QUEUED
        split &= blame == HOST_LATE
        if split.any():
            tail = np.stack([returned[split], spans[split, 1]], axis=1)
            spans[split, 1] = returned[split]
            spans = np.concatenate([spans, tail])
            next_row = np.concatenate([next_row, next_row[split]])
            blame = np.concatenate([blame, np.full(len(tail), QUEUED)])
            order = np.argsort(spans[:, 0], kind="stable")
            spans, next_row, blame = spans[order], next_row[order], blame[order]
        # work after the window ends a gap that began inside it
        spans = np.minimum(spans, window.end_ns)
        inside = spans[:, 1] > spans[:, 0]
        return Gaps(spans[inside], next_row[inside], blame[inside].astype(np.uint8))

    @cached_property
    def host_late(self) -> Spans:
        """Idle time because the host came late."""
        return self.gaps.spans[self.gaps.blame == HOST_LATE]

    @cached_property
    def gap_lane(self) -> Ints:
        """int64[gaps]: the host thread each gap waited for, the one that issued the next launch.

        The main thread and the autograd engine's take turns, so all of them are the main thread;
        -1 where the launch was not recorded.
        """
        trace = self.trace
        call = trace.links.call[self.gaps.next_row]
        lanes = np.where(call >= 0, trace.lane[call], -1).astype(np.int64)
        return np.where(np.isin(lanes, self._crew), trace.steps.lane, lanes)

    @cached_property
    def host_work(self) -> Spans:
        """Time of host-late gaps in which the thread they waited for was in ops or calls."""
        trace, gaps = self.trace, self.gaps
        late = gaps.blame == HOST_LATE
        calls = trace.is_kind(Kind.OP, Kind.RUNTIME)
        lane = np.arange(len(trace.lanes))
        lane[self._crew[self._crew >= 0]] = trace.steps.lane
        gap_lane, spans = self.gap_lane[late], gaps.spans[late]
        found = [intervals.EMPTY]
        for item in distinct(gap_lane).tolist():
            # in order of their start, in which they are soon joined
            held = [rows[calls[rows]] for rows in map(trace.tree.members_of, np.flatnonzero(lane == item).tolist())]
            work = trace.time_of(np.concatenate([np.empty(0, np.int64), *held]))
            found.append(intervals.intersect(spans[gap_lane == item], work))
        return intervals.union(np.concatenate(found))

    @cached_property
    def _crew(self) -> Ints:
        trace = self.trace
        # Ascend's queue is worked off by a thread of its own, which calls what the main thread enqueued
        engine = trace.matching("^autograd::engine::|^Dequeue@", Kind.OP, Kind.RUNTIME)
        return np.append(distinct(trace.lane[engine]), trace.steps.lane).astype(np.int64)

    @cached_property
    def queued(self) -> Spans:
        """Idle time although the next work was enqueued."""
        return self.gaps.spans[self.gaps.blame == QUEUED]

    @cached_property
    def idle(self) -> Spans:
        """All time of the window without work, its tail included."""
        window = self.trace.window
        whole = np.array([[window.start_ns, window.end_ns]], np.int64)
        return intervals.subtract(whole[whole[:, 1] > whole[:, 0]], self.busy)

    def classes(self, pieces: Spans) -> list[TimeClasses]:
        """Split each piece of time (any order) into the disjoint classes; they add up exactly."""
        wall = pieces[:, 1] - pieces[:, 0]
        parts = [
            intervals.covered(pieces, spans)
            for spans in (self.compute, self.comm_only, self.copy_only, self.host_late, self.queued)
        ]
        rest = wall - sum(parts)
        return [TimeClasses(*map(int, row)) for row in np.stack([wall, *parts, rest], axis=1).tolist()]

    @cached_property
    def streams(self) -> Ints:
        """Distinct stream numbers with work."""
        lanes = distinct(self.trace.lane[self.rows])
        return distinct(np.array([self.trace.lanes[lane].stream for lane in lanes]))

    @cached_property
    def followed_in_time(self) -> NDArray[np.bool_]:
        """bool[len(rows)]: the next work was already enqueued when this row ended.

        Only then does shortening the row shorten the step (catalogue 3.3).
        """
        trace = self.trace
        call = trace.links.call[self.rows]
        returned = np.where(call >= 0, trace.end_ns[call], trace.start_ns[self.rows])
        ends = np.maximum.accumulate(trace.end_ns[self.rows])
        out = np.ones(len(self.rows), dtype=bool)
        # the kernels of one graph launch need no host between them
        out[:-1] = (returned[1:] <= ends[:-1]) | ((call[1:] == call[:-1]) & (call[1:] >= 0))
        return out

    def _union(self, mask: NDArray[np.bool_]) -> Spans:
        return self.trace.time_of(self.rows[mask])


def find_devices(trace: Trace) -> tuple[Device, ...]:
    """Return every device with work rows, the busiest first."""
    rows = np.flatnonzero(trace.works)
    if not len(rows):
        return ()
    of_lane = np.array([lane.device for lane in trace.lanes], np.int64)
    device = of_lane[trace.lane[rows]]
    comm = communicates(trace)
    names = trace.origin.device_names
    found = []
    for order, index in enumerate(distinct(device).tolist()):
        mine = rows[device == index]
        mine = mine[np.argsort(trace.start_ns[mine], kind="stable")]
        # ROCm numbers agents, not devices: fall back on the order of appearance
        name = names[index] if 0 <= index < len(names) else names[order % len(names)] if names else ""
        name = name or trace.origin.accelerator
        found.append(Device(trace, index, name, mine, comm[mine]))
    return tuple(sorted(found, key=lambda item: -intervals.length(item.busy)))
