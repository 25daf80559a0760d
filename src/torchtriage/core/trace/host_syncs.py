"""Host calls that wait for the device, and what each wait costs.

Where the wait hides differs (catalogue 1.5, measured): a copy to pageable memory blocks inside ``cudaMemcpyAsync``; a
pageable upload and newer pinned readbacks block in the stream sync that follows; ROCm puts both into
``hipMemcpyWithStream``. A wait costs nothing by itself: it costs the device the time it stays idle because the host
could not run ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.schema import Kind
from torchtriage.core.trace.steps import profiler_stop

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

SYNC_CALL = r"^(cuda|hip|cu|mtia|xpu)?(Device|Stream|Event|Ctx)Synchronize(_\w+)?$"
_STREAM_SYNC = r"^(cuda|hip|cu)?StreamSynchronize(_\w+)?$"
BLOCKING_COPY = r"^(cudaMemcpy|hipMemcpy|hipMemcpyWithStream|cudaMemcpy2D|hipMemcpyDtoH|hipMemcpyHtoD)$"
_ASYNC_COPY = r"^(cuda|hip)Memcpy(2D)?Async"
NEVER_BLOCKS = r"DtoD|PtoP|Pinned"
FOLLOW_NS = 50_000
"""A stream sync this soon after a copy, inside the same op, belongs to it (catalogue 1.5)."""
LEAD_LOW = 0.5
"""Of the idle time further on at the low end: a host that lags behind catches up by itself, or meets something else
that holds it up."""
MISSED = 0.05
"""Of the time waited. Where less of it is missed later, device work hid the waits: in one public recording they held
the host for 233 ms with the device 99 % busy, and 3 ms were missed."""
LEAD_NS = 10_000
"""Less idle time than this further on is the latency of a launch (medians 6-20 us)."""
STRETCH_NS = 1_000_000
"""Of the host without operators or calls: HST020 has the evidence."""
BLIND_NS = 1_000_000
"""A longer wait over a device that shows less than half of it busy waits for something that was not recorded: 463 ms
with 0 % busy in a sliced file, 95-100 % in complete ones (catalogue 1.5)."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Waiting calls in time order; arrays have one element per wait.

    ``row`` : the call (the copy, when a sync follows it). ``sync_row`` : the call that held the
    wait. ``start_ns``/``end_ns`` : from the call to the return of its sync. ``copy`` : the device
    copy it enqueued, -1 for a pure sync. ``op`` : innermost op around it, -1 outside ops.
    ``blind`` : waits for work that was not recorded, so nobody can say what they cost.
    ``profiler`` : the profiler's own stop.
    """

    trace: Trace
    row: Ints
    sync_row: Ints
    start_ns: Ints
    end_ns: Ints
    copy: Ints
    op: Ints
    blind: Mask
    profiler: Mask

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self.row)

    @cached_property
    def wait_ns(self) -> Ints:
        """int64[k], ns: how long the host stood in each call."""
        return self.end_ns - self.start_ns

    @cached_property
    def copy_bytes(self) -> Ints:
        """int64[k], bytes: size of the copy; -1 without a copy or where it was not recorded."""
        return np.where(self.copy >= 0, self.trace.value[self.copy], -1)

    @cached_property
    def to_host(self) -> Mask:
        """bool[k]: readbacks. ROCm calls the copy of a scalar to the host DtoD (measured)."""
        return self._copies("DtoH") | (self._copies("DtoD") & self.trace.matches(self.row, BLOCKING_COPY))

    @cached_property
    def to_device(self) -> Mask:
        """bool[k]: uploads."""
        return self._copies("HtoD")

    @cached_property
    def bubble(self) -> Spans:
        """int64[k, 2]: where each wait starves the device (empty spans where it does not).

        What is idle and host-late inside is lost to the wait; see :func:`bubbles`.
        """
        return self.bubbles(self.start_ns, self.end_ns)

    @cached_property
    def bubble_ns(self) -> Ints:
        """int64[k], ns: device idle time each wait caused."""
        return intervals.covered(self.bubble, _late(self.trace))

    def bubbles(self, start_ns: Ints, end_ns: Ints) -> Spans:
        """Return int64[k, 2], the bubbles if the host were spared ``start_ns`` to ``end_ns``.

        ``start_ns``, ``end_ns`` : int64[k], one stretch of host time around each wait, such as the whole op that holds
        it.
        """
        spans = bubbles(self.trace, start_ns, end_ns, self._launches_but_readbacks)
        spans[self.blind | self.profiler, 0] = spans[self.blind | self.profiler, 1]
        return spans

    def lead(self, pick: Mask | Ints) -> Spans:
        """Return where the device idles later because the picked waits took the host's lead.

        A host that waited while the device worked off its queue has lost that much lead. Without the waits it would
        launch that much earlier, so that much of the idle time in front of its launches is lost to them, beyond the
        bubble right behind each; what it does not use up before the next wait it still has after it, if that goes, too.
        Long stretches in which the host ran neither operators nor calls are its own work, and not counted.

        Returns int64[m, 2]: one span for each pick, empty where it caused none. What is idle and host-late inside is
        lost to it.
        """
        picked = np.zeros(len(self), dtype=bool)
        picked[pick] = True
        return lost_lead(self, picked & self.tells)[pick]

    @cached_property
    def tells(self) -> Mask:
        """bool[k]: neither the profiler's nor for something that was not recorded."""
        return ~(self.blind | self.profiler)

    def idle(self, pick: Mask | Ints) -> Spans:
        """Return the device idle time that the picked waits caused together."""
        return self._idle(self.bubble[pick])

    def lost(self, start_ns: Ints, end_ns: Ints) -> Spans:
        """Return the device idle time that stretches of host time cause together.

        ``start_ns``, ``end_ns`` : int64[m], any stretches, such as operators; see :func:`bubbles`.
        """
        return self._idle(bubbles(self.trace, start_ns, end_ns, self.launches))

    def stake(
        self, pick: Mask | Ints, start_ns: Ints, end_ns: Ints
    ) -> tuple[Spans, NDArray[np.float64], NDArray[np.float64]]:
        """Return the idle time at stake if the picked waits go, and with them the host code around.

        ``pick`` : bool[k] or int64[m], the waits. ``start_ns``, ``end_ns`` : int64[k], the host code that goes with
        each wait, as in :meth:`bubbles`; must contain it.

        Returns ``spans`` : int64[s, 2], disjoint idle time of the device; ``gain_low``, ``gain_high`` : float64[s],
        shares of it to win: surely what the call itself lost, and half of what the host lacked later, as if no profiler
        had slowed the host; at most all of it.
        """
        sure = self.idle(pick)
        more = intervals.subtract(self._idle(self.bubbles(start_ns, end_ns)[pick]), sure)
        near = intervals.union(np.concatenate([sure, more]))
        late = intervals.intersect(intervals.union(self.lead(pick)), self.dispatch)
        later = intervals.subtract(late, near)
        if intervals.length(later) < MISSED * int(self.wait_ns[pick].sum()):
            later = intervals.EMPTY
        spans = np.concatenate([sure, more, later])
        low = np.zeros(len(spans))
        low[: len(sure)] = 1 / self.trace.origin.inflation
        low[len(spans) - len(later) :] = LEAD_LOW / self.trace.origin.inflation
        return spans, low, np.ones(len(spans))

    def under(self, mask: Mask) -> Mask:
        """Return bool[k]: waits inside a host row of ``mask``."""
        return self.trace.tree.nearest(self.row, mask) >= 0

    def _idle(self, spans: Spans) -> Spans:
        return intervals.intersect(intervals.union(spans), _late(self.trace))

    @cached_property
    def launches(self) -> _Launches:
        """What the main device was given."""
        return _launches(self.trace)

    @cached_property
    def _launches_but_readbacks(self) -> _Launches:
        """The same without readbacks: they are no work to run ahead to, they go as well."""
        return _launches(self.trace, ignore=self.copy[self.to_host])

    @cached_property
    def dispatch(self) -> Spans:
        """Idle time of the main device for a late host, without longer stretches of the host's own work."""
        late = _late(self.trace)
        if not len(late):
            return late
        own = intervals.subtract(late, self.trace.devices[0].host_work)
        return intervals.subtract(late, own[own[:, 1] - own[:, 0] >= STRETCH_NS])

    @cached_property
    def lead_room(self) -> tuple[Ints, Ints, Ints, Ints]:
        """int64[k] each, for a lead lost: where it would show, the late time before, how much there is, how much it is.

        From the first work launched after each wait to the last before the next; ns, the first a time.
        """
        launch_ns, first_start, last_start = self.launches
        first = np.searchsorted(launch_ns, self.end_ns, side="left")
        until = np.append(self.start_ns[1:], np.iinfo(np.int64).max)
        last = np.searchsorted(launch_ns, until, side="left") - 1
        begin, end = first_start[first], last_start[np.maximum(last, 0)]
        total = intervals.totals(self.dispatch)
        before = intervals.until(self.dispatch, total, begin)
        idle = np.where(last > first, intervals.until(self.dispatch, total, end) - before, 0)
        took = intervals.covered(intervals.spans(self.start_ns, self.end_ns), self.trace.devices[0].busy)
        # what the bubble right behind it gives back is no lead any more
        return begin, before, idle, np.minimum(took, self.wait_ns - self.bubble_ns)

    def _copies(self, what: str) -> Mask:
        return (self.copy >= 0) & self.trace.matches(self.copy, f"^Memcpy {what}")


def find_waits(trace: Trace) -> Waits:
    """Find the calls that wait."""
    syncs = trace.matching(SYNC_CALL, Kind.RUNTIME)
    copies = trace.matching(f"{BLOCKING_COPY}|{_ASYNC_COPY}", Kind.RUNTIME)
    rows = np.flatnonzero(syncs | copies)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    rows = rows[np.argsort(trace.lane[rows], kind="stable")]
    copy = _copy_of(trace)[rows]
    is_sync = syncs[rows]
    start, until = trace.start_ns[rows], trace.end_ns[rows].copy()

    # a copy takes over the sync that directly follows it; one in another op is somebody else's
    follows = np.zeros(len(rows), dtype=bool)
    parent = trace.tree.parent[rows]
    follows[:-1] = (
        ~is_sync[:-1]
        & trace.matching(_STREAM_SYNC, Kind.RUNTIME)[rows[1:]]
        & (trace.lane[rows[1:]] == trace.lane[rows[:-1]])
        & (parent[1:] == parent[:-1])
        & (start[1:] - until[:-1] < FOLLOW_NS)
    )
    at = np.flatnonzero(follows)
    sync_row = rows.copy()
    sync_row[at] = rows[at + 1]
    until[at] = trace.end_ns[rows[at + 1]]
    swallowed = np.zeros(len(rows), dtype=bool)
    swallowed[at + 1] = True

    # an asynchronous copy without a sync waited only if it returned after its transfer ended
    returned_late = (copy >= 0) & (until >= trace.end_ns[copy])
    returned_late &= ~trace.matches(copy, NEVER_BLOCKS)
    waits = is_sync | follows | trace.matching(BLOCKING_COPY, Kind.RUNTIME)[rows] | returned_late
    keep = np.flatnonzero(waits & ~swallowed)
    keep = keep[np.argsort(start[keep], kind="stable")]
    rows, sync_row, copy = rows[keep], sync_row[keep], copy[keep]
    start, until = start[keep], until[keep]
    return Waits(
        trace,
        row=rows,
        sync_row=sync_row,
        start_ns=start,
        end_ns=until,
        copy=copy,
        op=trace.tree.nearest(rows, trace.kind == Kind.OP),
        blind=_blind(trace, start, until, copy),
        profiler=profiler_stop(trace)[sync_row],
    )


class _Launches(NamedTuple):
    """Launches in time order; the earliest start of what is launched from each on, and the latest up to it."""

    launch_ns: Ints
    first_start: Ints
    last_start: Ints


def bubbles(trace: Trace, start_ns: Ints, end_ns: Ints, launches: _Launches) -> Spans:
    """Return the spans in which host time starves the main device.

    Had the host not spent ``start_ns`` to ``end_ns``, everything it launched afterwards would have been launched that
    much earlier. So at most that much is won, out of the time the device stood idle for the host between the last work
    launched before and the first launched after: a queue that was deep gives the whole gap, an empty one no more than
    the time spent.

    ``start_ns``, ``end_ns`` : int64[k], stretches of host time. ``launches`` : the work to run ahead to.

    Returns int64[k, 2]: spans that begin inside or after the stretch and end once the time won is used up, at the
    latest with the start of that first work. The host-late idle time inside is the bubble; spans without any are empty.
    """
    spans = np.stack([end_ns, end_ns], axis=1)
    late = _late(trace)
    if not len(late) or not len(spans):
        return spans
    launch_ns, first_start, last_start = launches
    index = np.searchsorted(launch_ns, end_ns, side="left")
    stop = first_start[index]

    total = intervals.totals(late)
    # idle time before work that was enqueued already is not lost to what came after
    earlier = np.searchsorted(launch_ns, start_ns, side="left") - 1
    begin = np.where(earlier >= 0, last_start[earlier], start_ns)
    begin = np.maximum(begin, start_ns)
    before = intervals.until(late, total, begin)
    lost = np.minimum(intervals.until(late, total, stop) - before, end_ns - start_ns)
    # of that time, the first `lost` ns: where the host stood itself, if the device rested there
    hit = (index < len(launch_ns)) & (lost > 0)
    spans[hit] = np.stack([begin, _used_up(late, total, before + lost)], axis=1)[hit]
    return spans


def lost_lead(waits: Waits, picked: Mask) -> Spans:
    """Return the spans in which the device idles for a lead that waits took; see ``Waits.lead``.

    ``picked`` : bool[k], those that would go.

    Returns int64[k, 2]: from the first work launched after each wait, until the lead lost is used up, at the latest
    with the last work launched before the next wait.
    """
    spans = intervals.spans(waits.end_ns, waits.end_ns)
    late = waits.dispatch
    if not len(late) or not picked.any():
        return spans
    begin, before, idle, took = waits.lead_room
    lost, lead, previous = np.zeros(len(spans), np.int64), 0, -1
    rows = np.flatnonzero(picked)
    for at, more, most in zip(rows.tolist(), took[rows].tolist(), idle[rows].tolist(), strict=True):
        # a wait between them that stays has used the lead up
        lead = lead if at == previous + 1 else 0
        lead = lead + more if more >= LEAD_NS else lead
        used = min(lead, most)
        lost[at] = used = used if used >= LEAD_NS else 0
        lead, previous = lead - used, at
    hit = lost > 0
    spans[hit] = np.stack([begin, _used_up(late, intervals.totals(late), before + lost)], axis=1)[hit]
    return spans


def _launches(trace: Trace, ignore: Ints | None = None) -> _Launches:
    """Return what the main device was given, but for some device rows; empty without a device."""
    rows = trace.devices[0].rows if trace.devices else np.empty(0, np.int64)
    launched = trace.links.call[rows] >= 0
    if ignore is not None:
        launched &= ~trace.mask_of(ignore[ignore >= 0])[rows]
    rows = rows[launched]
    rows = rows[np.argsort(trace.links.launched_ns(rows), kind="stable")]
    started = trace.start_ns[rows]
    first_start = np.append(np.minimum.accumulate(started[::-1])[::-1], 0)
    return _Launches(trace.links.launched_ns(rows), first_start, np.append(np.maximum.accumulate(started), 0))


def _used_up(late: Spans, total: Ints, amount: Ints) -> Ints:
    """Return when so much of all late time has passed."""
    gap = np.maximum(np.searchsorted(total, amount, side="left") - 1, 0)
    return late[gap, 0] + amount - total[gap]


def _late(trace: Trace) -> Spans:
    return trace.devices[0].host_late if trace.devices else intervals.EMPTY


def _copy_of(trace: Trace) -> Ints:
    out = np.full(len(trace), -1, np.int64)
    copies = np.flatnonzero((trace.kind == Kind.MEMCPY) & (trace.links.call >= 0))
    out[trace.links.call[copies]] = copies
    return out


def _blind(trace: Trace, start: Ints, until: Ints, copy: Ints) -> Mask:
    if not trace.devices:
        return np.ones(len(start), dtype=bool)
    # an upload from pageable memory is staged by the host: the device rests meanwhile
    upload = (copy >= 0) & trace.matches(copy, "HtoD")
    if trace.steps.rows_end is not None:
        until = np.minimum(until, trace.steps.rows_end.end_ns)
    busy = intervals.covered(np.stack([start, until], axis=1), trace.devices[0].busy)
    return ~upload & (until - start > BLIND_NS) & (2 * busy < until - start)
