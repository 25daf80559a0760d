"""Copies to the GPU sit on the critical path although they could run beside the kernels.

Looks like: host-to-device copies from pinned memory (on ROCm: by the asynchronous call) beside
    which no kernel runs, for at least 2 % of the step and 100 us, in at least half of the steps.
Slow because: the copy is enqueued right before the work that needs it, on the same stream, or the
    host waits for it; the compute units stand still during the transfer.
Cost: exposed copy time; at the high end also the idle time a blocking call causes.
Fix: copy the next batch on a side stream while this one is computed, with ``non_blocking=True``.
Leave it when: there is nothing to compute meanwhile (one request at a time), or the loader is late:
    then the loader is what to mend first.
Source: PyTorch tutorial on ``pin_memory()`` and ``non_blocking``; CUDA semantics, "Use pinned
    memory buffers".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.finding import Fix
from torchtriage.patterns._recurrence import call_sites, per, recurs
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.patterns.copy._link import exposed
from torchtriage.trace import Kind, Trace

PATTERN = Pattern(
    code="CPY008",
    name="h2d-not-overlapped",
    family="copy",
    title="Uploads that nothing overlaps",
    order=340,
    needs=frozenset({"device", "runtime"}),
)

FIX = Fix(
    text="Prefetch the next batch on a side stream.",
    code="""side = torch.cuda.Stream()
with torch.cuda.stream(side):
    upcoming = batch.to(device, non_blocking=True)     # while the model runs
...
torch.cuda.current_stream().wait_stream(side)
upcoming.record_stream(torch.cuda.current_stream())""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers",
)

MIN_SHARE = 0.02
MIN_NS = 100_000
"""Less exposed copy time than both of these, per step, is not worth a stream (catalogue 8)."""

Ints = NDArray[np.int64]


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim for all exposed uploads that could overlap."""
    steps, waits = trace.steps, trace.waits
    copies = _overlappable(trace)
    calls = trace.links.call[copies]
    if not len(copies) or not recurs(trace, calls):
        return
    steady = copies[steps.in_steady(steps.of_work(copies))]
    exposed_ns = intervals.length(exposed(trace, steady)) / steps.n_steady
    if exposed_ns < max(MIN_NS, MIN_SHARE * steps.wall_ns):
        return
    transfer = exposed(trace, copies)
    blocking = np.isin(waits.copy, copies)
    blocked = waits.idle(blocking)
    unit = per(trace)
    size = int(np.maximum(trace.value[steady], 0).sum()) / steps.n_steady
    yield Claim(
        message=f"{size / 1e6:.3g} MB per {unit} are copied to the GPU with nothing running beside"
        f" them for {exposed_ns / 1e6:.3g} ms",
        certainty="likely",
        rows=copies,
        spans=np.concatenate([transfer, blocked]),
        gain_low=np.concatenate([np.ones(len(transfer)), np.zeros(len(blocked))]),
        time_class="copy",
        basis="bounded",
        method="exposed copy time (low), and the idle time of blocking calls (high)",
        evidence={
            "per": unit,
            "copies": steps.median_count(steps.of_work(copies)),
            "mbytes": round(size / 1e6, 4),
            "exposed_ms": round(exposed_ns / 1e6, 4),
            "blocking_copies_in_all": int(blocking.sum()),
            "streams": np.unique([trace.lanes[lane].stream for lane in trace.lane[copies]])[
                :5
            ].tolist(),
            "call_sites": call_sites(trace, calls),
        },
        anchor=int(calls[np.argmax(trace.dur_ns[copies])]),
        edits=(Edit("overlap", copies),),
    )


def _overlappable(trace: Trace) -> Ints:
    rows: Ints = trace.devices[0].rows
    rows = rows[(trace.kind[rows] == Kind.MEMCPY) & (trace.links.call[rows] >= 0)]
    rows = rows[trace.matching("HtoD")[rows]]
    if trace.origin.vendor == "rocm":
        rows = rows[trace.named("hipMemcpyAsync")[trace.links.call[rows]]]
    # pageable memory cannot overlap: that is CPY007's
    rows = rows[~trace.matching("Pageable")[rows]]
    return rows
