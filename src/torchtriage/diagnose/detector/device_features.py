"""What a window looks like on its device: why it stands still, how far the host is ahead, what it computes with.

Of a recording without a device all of it is zero. Idle time is that of the busiest device.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.allocator_calls import allocator_calls
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.host_syncs import SYNC_CALL
from torchtriage.core.trace.matrix_products import NOT_FP32_KERNEL, TF32_KERNEL, is_fp32_kernel
from torchtriage.core.trace.schema import Kind
from torchtriage.diagnose.detector.families import WORK_FAMILIES
from torchtriage.diagnose.detector.windows import Columns, Windows, families_of, ratio

WORK = tuple(name for name, _ in WORK_FAMILIES)

_IDLE = ("sync", "copy call", "allocator", "launch", "other call", "loader", "read", "operator", "python", "queued")
"""What the host does while the device stands still; the first that is there counts."""
_PRODUCTS = ("fp32", "tf32", "half", "unaligned")
_DEVICE = (
    "busy",
    "longest idle",
    "kernels per ms",
    "log kernel time",
    "launches per ms",
    "log launch delay",
    "log queue",
    "log queue depth",
    "least log queue",
    "blocking calls",
    "short kernels",
    "short kernel time",
    "long kernel time",
    "few blocks",
    "same kernel again",
    "distinct kernels",
    "graph launched",
    "pageable copies",
    "copies per ms",
    "uploads per ms",
    "readbacks per ms",
    "pageable time",
    "log copy size",
    "small copies",
    "sync calls per ms",
    "allocator calls per ms",
    "exposed copies",
    "communication",
    "exposed communication",
)

DEVICE: tuple[str, ...] = (
    *(f"device time {name}" for name in WORK),
    *(f"device {name}" for name in _DEVICE),
    *(f"idle in {name}" for name in _IDLE),
    *(f"products {name}" for name in _PRODUCTS),
)
"""The columns of :func:`device_columns`."""

_SHORT_NS, _LONG_NS = 5_000, 100_000
_FEW_BLOCKS = 64
"""Blocks of a kernel: fewer leave half of a large device empty."""
_SMALL_BYTES = 4096
_LATE_NS = 2_000
"""A shorter hole between two kernels is the device's own turn-around."""


def device_columns(trace: Trace, windows: Windows) -> Columns:
    """Return a column for each of ``DEVICE``."""
    columns = {name: np.zeros(windows.count) for name in DEVICE}
    if not trace.works.any():
        return columns
    device = trace.devices[0]
    rows = device.rows
    codes = families_of(trace, trace.works, WORK_FAMILIES)[trace.name[rows]]
    pieces = windows.cut(trace.start_ns[rows], trace.end_ns[rows])
    time = windows.sums(pieces.window, codes[pieces.at], len(WORK), pieces.inside_ns)
    columns |= {f"device time {name}": time[:, k] / windows.wall_ns for k, name in enumerate(WORK)}
    total = time.sum(axis=1)

    def of_time(chosen: Mask) -> NDArray[np.float64]:
        """Return how much of the device's work is of the chosen rows."""
        return ratio(windows.total(pieces.window, pieces.inside_ns * chosen[pieces.at]), total)

    busy = device.busy
    at, window = pieces.at[pieces.begins], pieces.window[pieces.begins]
    columns |= _works(trace, windows, rows, at, window) | _queue(trace, windows, rows, at, window)
    kernels = trace.kind[rows] == Kind.KERNEL
    short, long = trace.dur_ns[rows] < _SHORT_NS, trace.dur_ns[rows] >= _LONG_NS
    columns |= {
        "device busy": windows.share(busy),
        "device longest idle": windows.longest(busy),
        "device exposed copies": windows.share(device.copy_only),
        "device communication": windows.share(device.communication),
        "device exposed communication": windows.share(device.comm_only),
        "device short kernel time": of_time(kernels & short),
        "device long kernel time": of_time(kernels & long),
        "device few blocks": of_time(kernels & _few_blocks(trace, rows)),
        "device pageable time": of_time(trace.matching("Pageable")[rows]),
    }
    columns |= _calls(trace, windows) | _idle(trace, windows, busy)
    product = np.isin(codes, [WORK.index("matmul"), WORK.index("convolution")])
    half, tf32 = trace.matching(NOT_FP32_KERNEL)[rows], trace.matching(TF32_KERNEL)[rows]
    columns |= {
        "products fp32": of_time(product & trace.rows_where(rows, is_fp32_kernel) & ~tf32),
        "products tf32": of_time(product & tf32),
        "products half": of_time(product & half & ~tf32),
        "products unaligned": of_time(product & trace.matching(r"align1(?!\d)")[rows]),
    }
    return columns


def _works(trace: Trace, windows: Windows, rows: Ints, at: Ints, window: Ints) -> Columns:
    """Return what begins in each window: ``rows[at]`` in ``window``."""
    begun = rows[at]
    n_works = windows.total(window)
    kernels, copies = trace.kind[begun] == Kind.KERNEL, trace.kind[begun] == Kind.MEMCPY
    n_kernels, n_copies = windows.total(window[kernels]), windows.total(window[copies])
    size = np.maximum(trace.value[begun], 0)
    name = trace.name[begun].astype(np.int64)
    again = np.zeros(len(begun), dtype=bool)
    again[1:] = name[1:] == name[:-1]
    n_distinct = windows.total(np.unique(np.stack([window, name]), axis=1)[0]) if len(begun) else n_works
    call = trace.links.call[begun]
    graph = (call >= 0) & trace.matching("GraphLaunch")[call]
    return {
        "device kernels per ms": windows.per_ms(window[kernels]),
        "device log kernel time": ratio(windows.total(window, np.log1p(trace.dur_ns[begun])), n_works),
        "device short kernels": ratio(windows.total(window[trace.dur_ns[begun] < _SHORT_NS]), n_works),
        "device same kernel again": ratio(windows.total(window[again & kernels]), n_kernels),
        "device distinct kernels": ratio(n_distinct, n_works),
        "device graph launched": ratio(windows.total(window[graph]), n_works),
        "device pageable copies": ratio(windows.total(window[copies & trace.matching("Pageable")[begun]]), n_works),
        "device copies per ms": windows.per_ms(window[copies]),
        "device uploads per ms": windows.per_ms(window[copies & trace.matching("HtoD|HostToDevice")[begun]]),
        "device readbacks per ms": windows.per_ms(window[copies & trace.matching("DtoH|DeviceToHost")[begun]]),
        "device log copy size": ratio(windows.total(window[copies], np.log1p(size[copies])), n_copies),
        "device small copies": ratio(windows.total(window[copies & (size < _SMALL_BYTES)]), n_works),
    }


def _queue(trace: Trace, windows: Windows, rows: Ints, at: Ints, window: Ints) -> Columns:
    """Return how far the host is ahead of the device."""
    n_works = windows.total(window)
    start_ns, end_ns = trace.start_ns[rows], trace.end_ns[rows]
    call = trace.links.call[rows]
    launched = call >= 0
    returned = np.where(launched, trace.end_ns[call], 0)
    # the device was free when the call returned: what is left is how long a launch takes
    reach = np.maximum.accumulate(end_ns)
    free = np.append(np.iinfo(np.int64).min, reach[:-1])
    delay = np.where(launched, np.maximum(start_ns - np.maximum(returned, free), 0), 0)[at]
    queued = np.where(launched, np.maximum(free - returned, 0), 0)[at]
    middle = (windows.start_ns + windows.end_ns) // 2
    depth = np.zeros(windows.count)
    for edge in (windows.start_ns, middle):
        waiting = np.searchsorted(np.sort(returned[launched]), edge) - np.searchsorted(start_ns[launched], edge)
        depth += np.log1p(np.maximum(waiting, 0)) / 2
    least = np.zeros(windows.count)
    least[n_works > 0] = np.inf
    np.minimum.at(least, window, np.log1p(queued))
    return {
        "device log launch delay": ratio(windows.total(window, np.log1p(delay)), n_works),
        "device log queue": ratio(windows.total(window, np.log1p(queued)), n_works),
        "device log queue depth": depth,
        "device least log queue": least,
    }


def _few_blocks(trace: Trace, rows: Ints) -> Mask:
    """Return which rows are kernels of few blocks."""

    def few(grid: object) -> bool:
        sizes = grid if isinstance(grid, list) else []
        return bool(sizes) and all(type(size) is int for size in sizes) and 0 < int(np.prod(sizes)) < _FEW_BLOCKS

    return trace.where_detail("grid", few, trace.kind == Kind.KERNEL)[rows]


def _calls(trace: Trace, windows: Windows) -> Columns:
    calls = np.flatnonzero(trace.kind == Kind.RUNTIME)
    owner = intervals.owner(windows.spans, trace.start_ns[calls])

    def per_ms(chosen: Mask) -> NDArray[np.float64]:
        return windows.per_ms(owner[chosen & (owner >= 0)])

    take, give = allocator_calls(trace)
    blocking = calls[trace.matching(r"Synchronize|Memcpy(?!Async)")[calls]]
    return {
        "device launches per ms": per_ms(trace.links.launches[calls]),
        "device blocking calls": windows.share(trace.time_of(blocking)),
        "device sync calls per ms": per_ms(trace.matching(SYNC_CALL)[calls]),
        "device allocator calls per ms": per_ms((take | give)[calls]),
    }


def _idle(trace: Trace, windows: Windows, busy: Spans) -> Columns:
    """Return the device's idle time by what the threads that launch did meanwhile."""
    ends = np.array([[windows.start_ns[0], windows.end_ns[-1]]], np.int64)
    idle = intervals.subtract(ends, busy)
    idle = idle[idle[:, 1] - idle[:, 0] > _LATE_NS]
    call = trace.links.call[trace.works]
    lanes = np.unique(np.append(trace.lane[call[call >= 0]], max(trace.steps.lane, 0)))
    here = np.isin(trace.lane, lanes)
    runtime, ops = here & (trace.kind == Kind.RUNTIME), here & (trace.kind == Kind.OP)
    take, give = allocator_calls(trace)
    causes: dict[str, Mask] = {
        "sync": runtime & trace.matching(SYNC_CALL),
        "copy call": runtime & trace.matching("Mem(?:cpy|set)"),
        "allocator": here & (take | give),
        "launch": runtime & trace.links.launches,
        "other call": runtime,
        "loader": here & trace.matching(r"^enumerate\(DataLoader\)"),
        "read": ops & trace.matching(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|equal)$"),
        "operator": ops,
    }
    columns: Columns = {}
    for cause, chosen in causes.items():
        cover = trace.time_of(np.flatnonzero(chosen))
        columns[f"idle in {cause}"] = windows.share(intervals.intersect(idle, cover))
        idle = intervals.subtract(idle, cover)
    # nothing of the host's: Python, unless the next work had been launched already
    queued = trace.devices[0].queued
    columns["idle in queued"] = windows.share(intervals.intersect(idle, queued))
    columns["idle in python"] = windows.share(intervals.subtract(idle, queued))
    return columns
