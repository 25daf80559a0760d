"""Launch links: which host call and which op enqueued each piece of device work.

Joined on the column ``key`` only (``correlation`` or what stands for it): flow arrows are missing or mean other things
in many versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

_LAUNCHES = r"^(cuda|hip|cu)\w*Launch\w*Kernel|^(cuda|hip)GraphLaunch|^cuLaunchKernel"
_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.DEVICE_OTHER)


@dataclass(frozen=True, eq=False)
class Links:
    """Device rows to host rows; both arrays are int32[n] with -1 for "none".

    ``call`` : the runtime or driver call of a device row; -1 is an *orphan* (enqueued before the
    recording, or its call was not recorded).
    ``op`` : the innermost op around that call.
    """

    trace: Trace
    call: NDArray[np.int32]
    op: NDArray[np.int32]

    @cached_property
    def orphans(self) -> Mask:
        """bool[n]: work rows without a launch call."""
        return self.trace.works & (self.call < 0)

    @cached_property
    def launches(self) -> Mask:
        """bool[n]: calls that enqueued work seen on a device."""
        return self.trace.mask_of(self.call[self.call >= 0])

    @cached_property
    def launch_calls(self) -> Mask:
        """bool[n]: calls that launch kernels or graphs, whether or not their work is in the file."""
        return self.trace.matching(_LAUNCHES, Kind.RUNTIME)

    @cached_property
    def lost(self) -> Mask:
        """bool[n]: launches whose work is not in the file."""
        return self.launch_calls & ~self.launches

    def launched_ns(self, rows: NDArray[np.integer]) -> Ints:
        """Return when each device row was enqueued (call start), own start for orphans."""
        call = self.call[rows]
        return self.trace.start_ns[np.where(call >= 0, call, rows)]

    def device_end_ns(self, calls: NDArray[np.integer]) -> Ints:
        """Return the latest end of what each call enqueued; -1 for a row that enqueued nothing."""
        rows = np.flatnonzero(self.call >= 0)
        known = distinct(self.call[rows])
        latest = np.full(len(known) + 1, -1, np.int64)
        np.maximum.at(latest, np.searchsorted(known, self.call[rows]), self.trace.end_ns[rows])
        at = np.searchsorted(known, calls)
        return latest[np.where(np.append(known, -1)[at] == calls, at, -1)]

    @cached_property
    def n_enqueued(self) -> NDArray[np.int32]:
        """int32[n]: for a call, how many device rows it owns (a graph launch owns many)."""
        rows = self.call[self.call >= 0]
        return np.bincount(rows, minlength=len(self.trace)).astype(np.int32)

    def work_of(self, calls: NDArray[np.integer]) -> Ints:
        """Return the device rows enqueued by any of these calls, in row order."""
        wanted = np.zeros(len(self.trace) + 1, dtype=bool)
        wanted[calls] = True
        return np.flatnonzero(wanted[self.call])

    def work_under(self, mask: Mask) -> Ints:
        """Return the device rows whose call lies inside (or is) a host row of ``mask``."""
        inside = self.trace.tree.under(mask) | mask
        return np.flatnonzero(np.append(inside, False)[self.call])


def link(trace: Trace) -> Links:
    """Join device rows to calls on correlation; the last call before the work wins a tie."""
    n = len(trace)
    call = np.full(n, -1, np.int32)
    hosts = np.flatnonzero((trace.kind == Kind.RUNTIME) & (trace.key > 0))
    work = np.flatnonzero(trace.is_kind(*_DEVICE) & (trace.key > 0))
    if len(hosts) and len(work):
        # duplicates exist on MTIA: sort by (correlation, start), take the last that can be it
        order = np.lexsort((trace.start_ns[hosts], trace.key[hosts]))
        hosts = hosts[order]
        keys = trace.key[hosts]
        first = np.searchsorted(keys, trace.key[work], side="left")
        last = np.searchsorted(keys, trace.key[work], side="right") - 1
        found = last >= first
        work, first, last = work[found], first[found], last[found]
        while (first < last).any():
            half = (first + last + 1) // 2
            late = trace.start_ns[hosts[half]] > trace.start_ns[work]
            first, last = np.where(late, first, half), np.where(late, half - 1, last)
        call[work] = hosts[first]
    op = np.full(n, -1, np.int32)
    rows = np.flatnonzero(call >= 0)
    if len(rows):
        calls, inverse = np.unique(call[rows], return_inverse=True)
        op[rows] = trace.tree.nearest(calls, trace.kind == Kind.OP)[inverse]
    return Links(trace, call, op)
