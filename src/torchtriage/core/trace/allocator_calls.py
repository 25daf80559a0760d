"""Calls of the device's own allocator, and the device idle time they cause."""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.device import HOST_LATE
from torchtriage.core.trace.schema import Kind

# not the stream-ordered cudaMallocAsync/FreeAsync: they neither wait nor map memory
_MALLOC = (
    r"^(cuda(Malloc|MallocManaged|HostAlloc|MallocHost)"
    r"|hip(Malloc|ExtMallocWithFlags|HostMalloc)"
)
_FREE = r"^(cuda(Free|FreeHost)|hip(Free|HostFree)"
# expandable segments map and unmap instead
_MAP, _UNMAP = r"|cuMem(Create|Map|SetAccess))", r"|cuMem(Unmap|Release))"
_SUFFIX = r"(_v\d+|_ptsz)?$"


def allocator_calls(trace: Trace) -> tuple[Mask, Mask]:
    """Return two bool[n]: runtime calls that take memory from the device, and that give it back."""
    taken, freed = _MALLOC + _MAP + _SUFFIX, _FREE + _UNMAP + _SUFFIX
    return trace.matching(taken, Kind.RUNTIME), trace.matching(freed, Kind.RUNTIME)


def outside_capture(trace: Trace, rows: Ints) -> Ints:
    """Return the rows outside steps that capture a graph: capture allocates its own pool."""
    ends = np.flatnonzero(trace.matching("StreamEndCapture", Kind.RUNTIME))
    if not len(ends):
        return rows
    return rows[~np.isin(trace.steps.of_host(rows), trace.steps.of_host(ends))]


def idle_behind(trace: Trace, calls: Ints) -> tuple[Spans, Floats]:
    """Return the host-late gaps behind host calls and how much of each they explain.

    Between two launches of a thread the host spends some time in ``calls``; without them the second launch comes that
    much earlier, and the device's gap before it is that much shorter, at most gone. A call that the device's own work
    hides explains nothing.

    Returns ``spans`` : int64[k, 2], gaps of the main device; ``share`` : float64[k], 0-1.
    """
    gaps = trace.devices[0].gaps
    late = np.flatnonzero(gaps.blame == HOST_LATE)
    spans = gaps.spans[late]
    launch = trace.links.call[gaps.next_row[late]].astype(np.int64)
    launches = np.flatnonzero(trace.links.launches)
    launches = launches[np.lexsort((trace.start_ns[launches], trace.lane[launches]))]
    place = np.full(len(trace), -1, np.int64)
    place[launches] = np.arange(len(launches))
    before = launches[np.maximum(place[launch] - 1, 0)]
    has_before = (place[launch] > 0) & (trace.lane[before] == trace.lane[launch])
    since = np.where(has_before, trace.end_ns[before], trace.window.host_start_ns)
    lost = np.zeros(len(late), np.int64)
    for lane in distinct(trace.lane[calls]).tolist():
        mine = calls[trace.lane[calls] == lane]
        cover = trace.time_of(mine)
        here = trace.lane[launch] == lane
        lost[here] = intervals.covered(intervals.spans(since[here], trace.start_ns[launch[here]]), cover)
    share = np.minimum(lost / np.maximum(spans[:, 1] - spans[:, 0], 1), 1.0)
    hit = share > 0
    return spans[hit], share[hit]
