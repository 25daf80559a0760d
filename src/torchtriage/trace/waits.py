"""Host calls that wait for the device, and what each wait costs.

Where the wait hides differs (catalogue 1.5, measured): a copy to pageable memory blocks inside
``cudaMemcpyAsync``; a pageable upload and newer pinned readbacks block in the stream sync that
follows; ROCm puts both into ``hipMemcpyWithStream``. A wait costs nothing by itself: it costs the
device the time it stays idle because the host could not run ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.intervals import Spans
from torchtriage.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.trace.columns import Trace

__all__ = ["SYNC_CALL", "Waits", "find_waits"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

SYNC_CALL = r"^(cuda|hip|cu|mtia|xpu)?(Device|Stream|Event|Ctx)Synchronize(_\w+)?$"
_BLOCKING_COPY = r"^(cudaMemcpy|hipMemcpy|hipMemcpyWithStream|cudaMemcpy2D|hipMemcpyDtoH|hipMemcpyHtoD)$"
_ASYNC_COPY = r"^(cuda|hip)Memcpy(2D)?Async"
FOLLOW_NS = 50_000
"""A sync this soon after a copy on the same thread belongs to the copy (catalogue 1.5)."""
LAUNCH_LATENCY_NS = {"cuda": 10_000, "rocm": 20_000}
"""Nominal time from a launch on an idle device to its start; not the wait's fault."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Waiting calls in time order; arrays have one element per wait.

    ``row`` : the call (the copy, when a sync follows it). ``sync_row`` : the call that held the
    wait. ``start_ns``/``end_ns`` : from the call to the return of its sync. ``copy`` : the device
    copy it enqueued, -1 for a pure sync. ``op`` : innermost op around it, -1 outside ops.
    ``bubble`` : int64[k, 2], the device idle time the wait caused (empty spans where none): what
    the host lost in the call, as far as the device then stood idle waiting for the next launch.
    ``profiler`` : the profiler's own stop.
    """

    trace: Trace
    row: Ints
    sync_row: Ints
    start_ns: Ints
    end_ns: Ints
    copy: Ints
    op: Ints
    bubble: Spans
    profiler: Mask

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self.row)

    @property
    def bubble_ns(self) -> Ints:
        """int64[k], ns: length of each bubble."""
        return self.bubble[:, 1] - self.bubble[:, 0]

    def under(self, mask: Mask) -> Mask:
        """Return bool[k]: waits inside a host row of ``mask``."""
        return self.trace.tree.under(mask)[self.row]


def find_waits(trace: Trace) -> Waits:
    """Find waiting calls and their bubbles."""
    runtime = trace.kind == Kind.RUNTIME
    syncs = runtime & trace.matching(SYNC_CALL)
    copies = runtime & trace.matching(f"{_BLOCKING_COPY}|{_ASYNC_COPY}")
    rows = np.flatnonzero(syncs | copies)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    rows = rows[np.argsort(trace.lane[rows], kind="stable")]
    copy_of = _copy_of(trace)
    copy = copy_of[rows]
    is_sync = syncs[rows]
    start, end = trace.start_ns[rows], trace.end_ns[rows]

    # a copy takes over the sync that directly follows it on its thread
    follows = np.zeros(len(rows), dtype=bool)
    if len(rows) > 1:
        follows[:-1] = (
            ~is_sync[:-1]
            & is_sync[1:]
            & (trace.lane[rows[1:]] == trace.lane[rows[:-1]])
            & (start[1:] - end[:-1] < FOLLOW_NS)
        )
    sync_row = rows.copy()
    until = end.copy()
    taken = np.flatnonzero(follows)
    sync_row[taken] = rows[taken + 1]
    until[taken] = end[taken + 1]
    swallowed = np.zeros(len(rows), dtype=bool)
    swallowed[taken + 1] = True

    # an asynchronous copy without a sync waits only if it returned after its transfer ended
    copy_end = np.where(copy >= 0, trace.end_ns[copy], np.iinfo(np.int64).max)
    named_blocking = trace.matching(_BLOCKING_COPY)[rows]
    blocking = is_sync | follows | named_blocking | (until >= copy_end)
    keep = blocking & ~swallowed
    rows, sync_row, copy = rows[keep], sync_row[keep], copy[keep]
    start, until = start[keep], until[keep]

    order = np.argsort(start, kind="stable")
    rows, sync_row, copy = rows[order], sync_row[order], copy[order]
    start, until = start[order], until[order]
    from torchtriage.trace.steps import profiler_stop

    profiler = profiler_stop(trace)[sync_row]
    bubble = _bubbles(trace, start, until)
    bubble[profiler, 1] = bubble[profiler, 0]
    op = trace.tree.nearest(rows, trace.kind == Kind.OP)
    return Waits(
        trace, rows.astype(np.int64), sync_row, start, until, copy, op, bubble, profiler
    )


def _copy_of(trace: Trace) -> Ints:
    """Return for each call the copy it enqueued, -1 without one."""
    out = np.full(len(trace), -1, np.int64)
    copies = np.flatnonzero((trace.kind == Kind.MEMCPY) & (trace.links.call >= 0))
    out[trace.links.call[copies]] = copies
    return out


def _bubbles(trace: Trace, start: Ints, until: Ints) -> Spans:
    """Return the device idle time each wait caused.

    Without the wait the host would have gone on ``until - start`` earlier, and so would the next
    launch: the idle time before that launch's work, at most by as much, is the bubble. It counts
    on the busiest device and only where the host was late.
    """
    bubble = np.stack([until, until], axis=1)
    if not trace.devices or not len(start):
        return bubble
    device = trace.devices[0]
    work = device.rows[trace.links.call[device.rows] >= 0]
    if not len(work):
        return bubble
    launched = trace.links.launch_ns[work]
    order = np.argsort(launched, kind="stable")
    launched, work = launched[order], work[order]
    # first start among everything enqueued after the wait returned
    first = np.minimum.accumulate(trace.start_ns[work][::-1])[::-1]
    index = np.searchsorted(launched, until, side="left")
    found = index < len(work)
    next_start = np.where(found, first[np.minimum(index, len(work) - 1)], until)
    busy = device.busy
    before = np.searchsorted(busy[:, 0], next_start, side="left") - 1
    dry = np.where(before >= 0, busy[np.maximum(before, 0), 1], trace.window.start_ns)
    latency = LAUNCH_LATENCY_NS.get(trace.origin.vendor, 10_000)
    # the wait itself cannot have cost more than it lasted, nor before it began
    lo = np.maximum.reduce([dry, start, next_start - (until - start)])
    hi = np.maximum(next_start - latency, lo)
    bubble = np.stack([np.where(found, lo, until), np.where(found, hi, until)], axis=1)
    # only host-late idle: a queued gap would have been there anyway
    late = intervals.covered(bubble, device.host_late)
    bubble[late < (bubble[:, 1] - bubble[:, 0]) // 2] = 0
    return bubble
