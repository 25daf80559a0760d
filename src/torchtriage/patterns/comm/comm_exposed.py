"""Communication runs while the device computes nothing.

Looks like: kernels of NCCL, RCCL or a custom all-reduce with no other kernel beside them for at
    least a tenth of the step, on whatever stream.
Slow because: the compute units wait for the network, and often for the slowest rank, instead of
    working on what does not depend on the result.
Cost: bounded by the exposed time. One rank's recording cannot tell transfer from waiting for
    other ranks: the low end counts only what the fastest of at least three equal messages took,
    and only while the next computation was already enqueued; it is 0 where sizes were not
    recorded.
Fix: start collectives while gradients are still computed (DDP's buckets, FSDP's prefetch), wait
    for ``async_op=True`` handles as late as possible, give each rank more work per message.
Leave it when: every layer needs its reduced result at once (tensor-parallel inference), or other
    ranks are simply late: look at the rank that arrives last.
Source: PyTorch documentation, "DistributedDataParallel", internal design; Li et al., "PyTorch
    Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.finding import Fix
from torchtriage.intervals import Spans
from torchtriage.names import short_name
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.trace.device import Device
from torchtriage.units import format_ns, format_share, ms

PATTERN = Pattern(
    code="COM035",
    name="comm-exposed",
    family="comm",
    title="Communication is not hidden behind computation",
    order=430,
    needs=frozenset({"device"}),
)
FIX = Fix(
    text="Start collectives while there is still something to compute, and wait for them late.",
    code=(
        "model = DistributedDataParallel(\n"
        "    model, gradient_as_bucket_view=True, static_graph=True\n"
        ")\n"
        "# or by hand:\n"
        "work = torch.distributed.all_reduce(tensor, async_op=True)\n"
        "...  # computation that does not need it\n"
        "work.wait()"
    ),
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)

MIN_SHARE = 0.10
"""Of the judged time (catalogue 35)."""
MIN_EQUAL = 3
"""Equal messages before the fastest of them stands for the transfer itself."""


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim over the exposed communication of the main device."""
    device = trace.devices[0]
    at = np.flatnonzero(device.comm)
    # without a computation to hide behind, nothing can be said about hiding
    computes = ~device.comm & (trace.kind[device.rows] == Kind.KERNEL)
    if len(at) < 2 or not computes.any() or trace.origin.world_size == 1:
        return
    judged = trace.steps.judged
    exposed_ns = intervals.length(intervals.intersect(device.comm_only, judged))
    wall_ns = intervals.length(judged)
    if not wall_ns or exposed_ns < MIN_SHARE * wall_ns:
        return
    rows = device.rows[at]
    spans, source = _pieces(trace, rows, device.comm_only)
    low = _transfer_share(trace, rows)[source] * _blocking_share(trace, device, computes, spans)
    own = intervals.covered(
        intervals.spans(trace.start_ns[rows], trace.end_ns[rows]), device.comm_only
    )
    training = bool(trace.matching(r"^autograd::engine|Backward\d*$|^Optimizer\.").any())
    if not training:
        low = np.zeros(len(spans))  # the next layer needs the sum
    steady = trace.steps.in_steady(trace.steps.of_work(rows))
    per_step = exposed_ns / trace.steps.n_steady
    comm_ns = intervals.length(intervals.intersect(device.communication, judged))
    names: Counter[str] = Counter()
    for row, time_ns in zip(rows[steady].tolist(), own[steady].tolist(), strict=True):
        names[_collective(trace, row)] += time_ns
    yield Claim(
        message=(
            f"communication has no computation beside it for {format_ns(per_step)} of"
            f" {format_ns(trace.steps.wall_ns)} {trace.steps.per},"
            f" {format_share(exposed_ns / comm_ns)} of all communication"
        ),
        certainty="likely" if training else "hint",
        rows=rows,
        spans=spans,
        gain_low=low,
        gain_high=1.0,
        anchor=int(rows[np.argmax(own)]),
        time_class="comm",
        basis="bounded",
        method=(
            "exposed communication; low counts the fastest of equal messages while the next"
            " computation was enqueued"
        ),
        evidence={
            "exposed_ms_per_step": ms(per_step),
            "share_of_step": round(exposed_ns / wall_ns, 6),
            "exposed_share_of_communication": round(exposed_ns / comm_ns, 6),
            "communication_ms_per_step": ms(comm_ns / trace.steps.n_steady),
            "n_collectives_per_step": round(int(steady.sum()) / trace.steps.n_steady, 2),
            "n_streams": len(np.unique(trace.lane[rows])),
            "top_exposed_ms_per_step": {
                name: ms(time_ns / trace.steps.n_steady) for name, time_ns in names.most_common(3)
            },
            **({"world_size": trace.origin.world_size} if trace.origin.world_size else {}),
            "waiting_for_other_ranks": "part of the exposed time that one rank cannot tell apart",
        },
        edits=(Edit("overlap", rows),),
    )


def _pieces(
    trace: Trace, rows: NDArray[np.int64], exposed: Spans
) -> tuple[Spans, NDArray[np.int64]]:
    """Return the exposed parts of each row, disjoint, and the index of the row each comes from."""
    order = np.argsort(trace.start_ns[rows], kind="stable")
    start, end = trace.start_ns[rows[order]], trace.end_ns[rows[order]]
    # collectives on several streams overlap: each stretch goes to the one that began first
    reach = np.maximum.accumulate(np.append(start[:1], end[:-1]))
    whole = intervals.spans(np.maximum(start, reach), np.maximum(end, reach))
    kept = np.flatnonzero(whole[:, 1] > whole[:, 0])
    parts = intervals.intersect(whole[kept], exposed)
    owner = intervals.owner(whole[kept], parts[:, 0])
    return parts, order[kept[owner]]


def _transfer_share(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the part of each collective that the fastest equal one took, 0 where unknown."""
    # as text: what a file writes as a size need not be one
    keys = [
        (_collective(trace, row), str(size or ""), str(dtype))
        for row, size, dtype in zip(
            rows.tolist(),
            trace.details_of("nelems", rows),
            trace.details_of("dtype", rows),
            strict=True,
        )
    ]
    code: dict[tuple[str, str, str], int] = {}
    group = np.array([code.setdefault(key, len(code)) for key in keys], np.int64)
    sized = np.array([bool(size) for _, size, _ in keys], dtype=bool)
    dur = np.maximum(trace.dur_ns[rows], 1)
    fastest = np.full(len(code), np.iinfo(np.int64).max)
    np.minimum.at(fastest, group, dur)
    enough = sized & (np.bincount(group)[group] >= MIN_EQUAL)
    return np.where(enough, fastest[group] / dur, 0.0)


def _blocking_share(
    trace: Trace, device: Device, computes: NDArray[np.bool_], spans: Spans
) -> NDArray[np.float64]:
    """Return the part of each span in which the next computation was already enqueued."""
    rows = device.rows[computes]
    index = np.searchsorted(trace.start_ns[rows], spans[:, 1], side="left")
    has_next = index < len(rows)
    following = rows[np.minimum(index, len(rows) - 1)]
    call = trace.links.call[following]
    enqueued = np.where(call >= 0, trace.end_ns[call], trace.start_ns[following])
    blocked = spans[:, 1] - np.clip(enqueued, spans[:, 0], spans[:, 1])
    return np.where(has_next, blocked / np.maximum(spans[:, 1] - spans[:, 0], 1), 0.0)


def _collective(trace: Trace, row: int) -> str:
    name = trace.details_of("collective", [row])[0]
    return str(name) if name else short_name(trace.name_of(row))
