"""Copies to the GPU sit on the critical path although they could overlap with kernels.

Looks like: host-to-device copies from pinned memory (on ROCm: by the asynchronous call) during which no kernel runs,
    for at least 2 % of the step and 100 µs, in at least half of the steps.
Slow because: the copy is enqueued right before the work that needs it, on the same stream, or the host waits for it;
    the compute units are idle during the transfer.
Cost: exposed copy time; at the high end also the idle time a blocking call causes. Where uploads take longer than all
    the rest, as with weights that are kept on the host, a prefetch hides no more than that rest: the low end.
Fix: copy the next batch on a side stream while this one is computed, with ``non_blocking=True``; where uploads are most
    of the time, copy less.
Leave it when: there is nothing to compute meanwhile (one request at a time), or the loader is late: then fix the
    loader first.
Source: PyTorch tutorial on ``pin_memory()`` and ``non_blocking``; CUDA semantics, "Use pinned memory buffers".
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_bytes, format_ns, format_share, ms
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Spans, Trace, given
from torchtriage.diagnose.patterns.copy._host_link import exposed, from_pageable, uploads

PATTERN = Pattern.of(__name__, "CPY008", "Uploads that nothing overlaps", order=340, needs="device runtime")
FIX = Fix(
    text="Prefetch the next batch on a side stream.",
    code="""side = torch.cuda.Stream()
with torch.cuda.stream(side):
    upcoming = batch.to(device, non_blocking=True)  # while the model runs
...
torch.cuda.current_stream().wait_stream(side)
upcoming.record_stream(torch.cuda.current_stream())""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers",
)

COPY_LESS = Fix(
    text="Copy less: keep on the GPU what is copied there again and again, such as weights that an offload holds on the"
    " host, or store it in fewer bits. A prefetch hides copies only behind other work.",
    code="""# weights stay on the GPU: no CPUOffloadPolicy, cpu_offload or device_map on the host
model = model.to(device)
# or they are half as large
model = model.to(torch.bfloat16)""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)

MIN_SHARE = 0.02
MIN_NS = 100_000  # less exposed copy time than both of these, per step, is not worth a stream (catalogue 8)


def find(trace: Trace) -> Claims:
    """Yield one claim for all exposed uploads that could overlap."""
    steps, waits = trace.steps, trace.waits
    copies = _overlappable(trace)
    calls = trace.links.call[copies]
    if not len(copies) or not recurs(trace, calls):
        return
    steady = copies[steps.in_steady(steps.of_work(copies))]
    exposed_ns = intervals.length(_waited_for(trace, steady)) / steps.n_steady
    if exposed_ns < max(MIN_NS, MIN_SHARE * steps.wall_ns):
        return
    transfer = _waited_for(trace, copies)
    blocked = waits.idle(np.isin(waits.copy, copies))
    n_blocking = int(np.isin(steady, waits.copy).sum())
    size = int(np.maximum(trace.value[steady], 0).sum()) // steps.n_steady
    took_ns = int(trace.dur_ns[steady].sum()) / steps.n_steady
    copied = f"{format_bytes(size)} {steps.per} are copied to the GPU at {size / took_ns:.3g} GB/s"
    # another copy may run there: kernels are what the upload could hide behind
    copied = f"{copied if size else 'data is copied to the GPU'}, for {format_ns(exposed_ns)} with no kernel running"
    rest_ns, share = _beside_uploads(trace)
    if exposed_ns * steps.n_steady > rest_ns:
        yield Claim(
            message=f"{copied}: uploads take {format_share(share)} of the time, and a prefetch hides them only behind"
            " the rest",
            certainty="likely",
            rows=copies,
            spans=transfer,
            gain_low=rest_ns / (exposed_ns * steps.n_steady),
            time_class="copy",
            method="what else there is to do (low: a prefetch), exposed copy time (high: nothing is copied)",
            evidence={
                "exposed_copy_ms_per_step": ms(exposed_ns),
                "upload_share": round(share, 4),
                **given(copied_bytes_per_step=size, call_sites=call_sites(trace, calls)),
            },
            anchor=int(calls[np.argmax(trace.dur_ns[copies])]),
            fix=COPY_LESS,
        )
        return
    streams = distinct(np.array([trace.lanes[lane].stream for lane in trace.lane[copies]]))
    yield Claim(
        message=copied,
        certainty="likely",
        rows=copies,
        spans=np.concatenate([transfer, blocked]),
        gain_low=np.concatenate([np.ones(len(transfer)), np.zeros(len(blocked))]),
        time_class="copy",
        method="exposed copy time (low), and the idle time of blocking calls (high)",
        evidence={
            "exposed_copy_ms_per_step": ms(exposed_ns),
            **given(copied_bytes_per_step=size),
            "n_copies_per_step": steps.median_count(steps.of_work(copies)),
            "n_blocking_copies_per_step": round(n_blocking / steps.n_steady, 2),
            "streams": streams.tolist()[:5],
            **given(call_sites=call_sites(trace, calls)),
        },
        anchor=int(calls[np.argmax(trace.dur_ns[copies])]),
        edits=(Edit("overlap", copies), Edit("unblock", calls.astype(np.int64))),
    )


def _beside_uploads(trace: Trace) -> tuple[int, float]:
    """Return how much of the judged time, in ns, no upload takes, whoever asked for it; and the uploads' share."""
    rows = trace.devices[0].rows
    taken = trace.steps.judged_ns(trace.spans_of(rows[trace.matches(rows, "HtoD")]))
    whole = max(intervals.length(trace.steps.judged), 1)
    return whole - taken, taken / whole


def _waited_for(trace: Trace, copies: Ints) -> Spans:
    """Return the exposed time that ends with a copy somebody waited for.

    A copy on a side stream runs beside whatever the device does, also beside nothing, when the
    host comes late: where a kernel begins while the copy goes on, or is launched only after it.
    """
    spans = exposed(trace, copies)
    spans = spans[np.isin(spans[:, 1], trace.end_ns[copies])]
    if not len(spans):
        return spans
    work = trace.devices[0].rows
    work = work[trace.kind[work] == Kind.KERNEL]
    if not len(work):
        return spans
    last = copies[np.argsort(trace.end_ns[copies], kind="stable")]
    copy = last[np.searchsorted(trace.end_ns[last], spans[:, 1])]
    following = np.searchsorted(trace.start_ns[work], spans[:, 1])
    after = work[np.minimum(following, len(work) - 1)]
    aside = ~np.isin(trace.lane[copy], distinct(trace.lane[work]))
    late = trace.links.launched_ns(after) >= spans[:, 1]
    return spans[~(aside & (late | (following == len(work))))]


def _overlappable(trace: Trace) -> Ints:
    rows = uploads(trace)
    if trace.origin.vendor == "rocm":
        rows = rows[trace.named("hipMemcpyAsync")[trace.links.call[rows]]]
    # pageable memory cannot overlap: that is CPY007's
    return rows[~from_pageable(trace, rows)]
