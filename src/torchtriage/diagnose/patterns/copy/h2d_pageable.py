"""Large copies to the GPU come from ordinary (pageable) host memory.

Looks like: copies of 1 MiB or more named ``HtoD (Pageable -> Device)``; on ROCm, which does not record the kind of
    memory, copies by the blocking ``hipMemcpyWithStream``; where another recording lacks it, copies whose call lasts
    for most of the copy. In at least half of the steps; without two steps to compare also once, unless it looks like
    loading a model (8 uploads in a row).
Slow because: the driver stages pageable memory through a small pinned buffer, at a fraction of the link's speed, and
    the host stays in the call: the transfer begins once the first piece is staged, nothing is launched meanwhile, and
    the device waits for the next launch when the copy is done.
Cost: exposed copy time and the idle time that the call causes. Low: pinned memory alone, with a call that still waits
    for the copy, which saves the staging and the time beyond pinned speed; high: the copy is prefetched on another
    stream, and bounds the step only by its time at pinned speed.
Fix: let the loader pin its batches and copy with ``non_blocking=True``.
Leave it when: it happens once. Calling ``.pin_memory()`` on the hot path is itself a copy and can be slower than the
    plain one.
Source: CUDA Runtime API, "API synchronization behavior" (pageable copies return once staged); CUDA C++ Best Practices
    Guide, "Pinned Memory"; PyTorch tutorial on ``pin_memory()`` and ``non_blocking``.
"""

from typing import Any

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_bytes, format_ns, ms
from torchtriage.diagnose.patterns._recurrence import call_sites
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace
from torchtriage.diagnose.patterns.copy._host_link import (
    MIN_BYTES,
    beyond_pinned,
    exposed,
    from_pageable,
    pinned_bytes_per_s,
    uploads,
)

PATTERN = Pattern.of(__name__, "CPY007", "Large uploads from pageable host memory", order=341, needs="device runtime")
FIX = Fix(
    text="Pin the batches in the loader and copy them without blocking.",
    code="""loader = DataLoader(dataset, batch_size=..., num_workers=8, pin_memory=True)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)

UNSIZED_NS = 100_000  # ROCm 6.2 records no sizes: a copy this long is no small one
LOADING_RUN = 8  # uploads in a row without a kernel between them: a model is being loaded, not a batch


def find(trace: Trace) -> Claims:
    """Yield one claim for all large pageable uploads."""
    steps, waits = trace.steps, trace.waits
    copies = _recurring(trace, _pageable(trace))
    if not len(copies):
        return
    transfer = exposed(trace, copies)
    calls = trace.links.call[copies].astype(np.int64)
    returned = trace.end_ns.copy()
    returned[waits.row] = waits.end_ns  # behind the sync that follows a copy
    blocked = waits.lost(trace.start_ns[calls], returned[calls])
    spans = np.concatenate([transfer, blocked])
    if not len(spans):
        return
    saved = beyond_pinned(trace, copies)
    steady = copies[steps.in_steady(steps.of_work(copies))]
    took_ns = int(trace.dur_ns[steady].sum())
    size = int(np.maximum(trace.value[steady], 0).sum())
    rate = size / took_ns if took_ns else 0.0
    sites = call_sites(trace, calls)
    evidence: dict[str, Any] = {
        "copy_ms_per_step": ms(took_ns / steps.n_steady),
        "n_copies_per_step": steps.median_count(steps.of_work(copies)),
        "exposed_copy_ms_per_step": ms(steps.judged_ns(transfer) / steps.n_steady),
        "gpu_idle_ms_per_step": ms(steps.judged_ns(blocked) / steps.n_steady),
    }
    how = f"takes {format_ns(took_ns / steps.n_steady)} {steps.per}"
    if size:
        evidence["copied_bytes_per_step"] = size // steps.n_steady
        evidence["pageable_gb_per_s"] = round(rate, 2)
        evidence["assumed_pinned_gb_per_s"] = pinned_bytes_per_s(trace) / 1e9
        how += f" for {format_bytes(size / steps.n_steady)}, at {rate:.3g} GB/s"
    if sites:
        evidence["call_sites"] = sites
    yield Claim(
        message=f"copying from pageable memory to the GPU {how}",
        certainty="likely",
        rows=copies,
        spans=spans,
        gain_low=np.concatenate([np.full(len(transfer), saved), np.zeros(len(blocked))]),
        time_class="copy",
        method="exposed copy time beyond pinned speed (low), all of it and the idle time of the blocking call (high)",
        evidence=evidence,
        anchor=int(calls[np.argmax(trace.dur_ns[copies])]),
        edits=(
            Edit("shrink", copies, factor=1 - saved),
            Edit("overlap", copies, factor=1.0, best=0.0),
            Edit("unblock", calls, factor=1.0, best=0.0),
        ),
    )


def _pageable(trace: Trace) -> Ints:
    rows = uploads(trace)
    size = trace.value[rows]
    large = (size >= MIN_BYTES) | ((size < 0) & (trace.dur_ns[rows] >= UNSIZED_NS))
    return rows[from_pageable(trace, rows) & large]


def _recurring(trace: Trace, copies: Ints) -> Ints:
    steps = trace.steps
    if steps.n_steady >= 2:
        return copies if steps.share_of_steps(steps.of_work(copies)) >= 0.5 else copies[:0]
    rows = trace.devices[0].rows
    rows = rows[trace.kind[rows] != Kind.MEMSET]
    upload = trace.matches(rows, "HtoD") & (trace.kind[rows] == Kind.MEMCPY)
    run = np.cumsum(~upload)
    length = np.bincount(run[upload], minlength=int(run[-1]) + 1 if len(run) else 1)
    loading = rows[upload & (length[run] >= LOADING_RUN)]
    copies = distinct(copies)
    return copies[~trace.mask_of(loading)[copies]]
