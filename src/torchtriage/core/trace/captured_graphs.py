"""The launches that a replayed graph was captured from, in a recording of the capture.

Of a kernel in a replayed graph a trace knows the call that replays the graph. The recording in which the graph was
captured has a launch call for each of its kernels, in the same order, with operators and modules around it. ROCm's
calls name their kernel, which proves that both belong together; CUDA's do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import LONGEST, elide
from torchtriage.core.trace.event_types import KERNEL
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

GRAPH_LAUNCH = r"^(cuda|hip|cu)\w*GraphLaunch"
_BEGIN, _END = r"^(cuda|hip|cu)\w*StreamBeginCapture", r"^(cuda|hip|cu)\w*StreamEndCapture"
_LAUNCH = r"^(cuda|hip|cu)\w*LaunchKernel"
_RUNTIMES_OWN = r"^__amd_rocclr_"
"""Kernels with which the runtime copies and fills."""
MISSING = 0.01
"""Share of a graph's last kernels that a replay may lack: roctracer leaves out the last of 994 (measured)."""


@dataclass(frozen=True, eq=False)
class CapturedGraphs:
    """``call`` : int64[n] of the replaying trace, the row of ``trace`` that captured each kernel; -1 for none."""

    trace: Trace
    call: Ints
    n_replays: int
    n_known: int


def find_captured(trace: Trace, capture: Trace) -> CapturedGraphs:
    """Return which launches of ``capture`` each kernel of the graphs that ``trace`` replays was captured from.

    A graph belongs to a capture with the same kernel names in the same order; of several, to the one whose successors
    are replayed next.

    Raises TraceFormatError: nothing is captured in ``capture``, its launches do not name their kernels, or none of its
    graphs is replayed in ``trace``; or ``trace`` replays none.
    """
    replays = _replays(trace)
    if not replays:
        raise TraceFormatError(
            "expected a trace that replays graphs, found no graph launch with kernels", where=trace.report.path
        )
    graphs = _graphs(capture, {name: code for code, name in enumerate(trace.names)})
    fits: dict[bytes, Mask] = {}
    for rows in replays:
        names = trace.name[rows]
        if names.tobytes() not in fits:
            fits[names.tobytes()] = np.array([_is_of(names, captured) for _, captured in graphs], bool)
    known = [rows for rows in replays if fits[trace.name[rows].tobytes()].any()]
    if not known:
        raise TraceFormatError(
            f"none of the {len(graphs):,} captured graphs has the kernels of one that is replayed",
            where=capture.report.path,
            hint="pass the recording of the same process's capture",
        )
    call = np.full(len(trace), -1, np.int64)
    for rows, index in zip(known, _in_order([fits[trace.name[rows].tobytes()] for rows in known]), strict=True):
        call[rows] = graphs[index][0][: len(rows)]
    return CapturedGraphs(capture, call, len(replays), len(known))


def _is_of(names: NDArray[np.integer], captured: Ints) -> bool:
    """Return whether kernels are those of a captured graph, but for the very last ones."""
    enough = len(names) <= len(captured) <= len(names) + MISSING * len(captured)
    return enough and np.array_equal(captured[: len(names)], names)


def _in_order(fits: Sequence[Mask]) -> list[int]:
    """Return the graph of each replay: of those that fit, one from which on most of the following replays fit as well.

    Layers have the same kernels, so that their order alone tells them apart, and a recording may begin at any of them.

    ``fits`` : for each replay bool[graphs], at least one of them.
    """
    out: list[int] = []
    while len(out) < len(fits):
        begins, n = np.flatnonzero(fits[len(out)]), 1
        while len(out) + n < len(fits):
            longer = begins[fits[len(out) + n][(begins + n) % len(fits[0])]]
            if not len(longer):
                break
            begins, n = longer, n + 1
        after = begins[begins > out[-1]] if out else begins
        begin = int(after[0] if len(after) else begins[0])
        out += [(begin + index) % len(fits[0]) for index in range(n)]
    return out


def _replays(trace: Trace) -> list[Ints]:
    """Return the kernels of each graph launch, both in the order of time."""
    launches = trace.matching(GRAPH_LAUNCH, Kind.RUNTIME)
    rows = np.flatnonzero((trace.kind == Kind.KERNEL) & (trace.links.call >= 0) & ~trace.matching(_RUNTIMES_OWN))
    rows = rows[launches[trace.links.call[rows]]]
    if not len(rows):
        return []
    at_ns = trace.links.launched_ns(rows)
    rows = rows[np.lexsort((trace.start_ns[rows], trace.links.call[rows], at_ns))]
    return np.split(rows, np.flatnonzero(np.diff(trace.links.call[rows])) + 1)


def _graphs(capture: Trace, codes: dict[str, int]) -> list[tuple[Ints, Ints]]:
    """Return the launch calls of each captured graph, and the codes of their kernels' names (-1: not among them)."""
    runtime = capture.kind == Kind.RUNTIME
    begins, ends, launches = (np.flatnonzero(runtime & capture.matching(name)) for name in (_BEGIN, _END, _LAUNCH))
    begins = begins[np.argsort(capture.start_ns[begins], kind="stable")]
    graphs, named = [], False
    for begin in begins.tolist():
        lane, start_ns = capture.lane[begin], capture.start_ns[begin]
        later = ends[(capture.lane[ends] == lane) & (capture.start_ns[ends] > start_ns)]
        end_ns = capture.start_ns[later].min(initial=np.iinfo(np.int64).max)
        times = capture.start_ns[launches]
        inside = (capture.lane[launches] == lane) & (times > start_ns) & (times < end_ns)
        rows = launches[inside][np.argsort(times[inside], kind="stable")]
        kernels = [capture.args(row).get(KERNEL) for row in rows.tolist()]
        named |= any(kernels)
        names = (elide(kernel, LONGEST) if isinstance(kernel, str) else "" for kernel in kernels)
        graphs.append((rows, np.array([codes.get(name, -1) for name in names], np.int64)))
    if not any(len(rows) for rows, _ in graphs):
        raise TraceFormatError(
            "expected a recording in which graphs are captured, found no capture with launches",
            where=capture.report.path,
        )
    if not named:
        raise TraceFormatError(
            "the launches of the captured graphs do not name their kernels, so that nothing proves what they belong to",
            where=capture.report.path,
            hint="ROCm's runtime calls do; CUDA's are not matched",
        )
    return graphs
