"""Whole tensors are copied to the host synchronously inside a step.

Looks like: copies of more than 16 bytes from device to host under ``aten::to`` or ``aten::copy_`` (``.cpu()``,
    ``.numpy()``, ``.tolist()``) whose call takes at least 20 µs longer than the transfer, or waits for one of 1 ms; in
    at least half of the steps, or three times in a recording without steps.
Slow because: the copy waits for everything enqueued before it, the host waits for the copy, and then the device waits
    for the host.
Cost: device idle time before the next work launched after each copy, at most as long as the host spent in it (low: the
    waiting call only, divided by the profiler's inflation), and at the high end the exposed transfer time that pinned
    memory would save. Until the next wait the device also idles for the lead that the host lost: in full at the high
    end and half at the low end, where it is at least 5 % of the time waited.
Fix: copy into pinned memory without blocking and read it one step later; reduce on the device first (argmax, top-k).
Leave it when: it is the answer to a request and nothing waits behind it, or a checkpoint.
Source: PyTorch tutorial on ``pin_memory()`` and ``non_blocking``.
"""

import dataclasses

import numpy as np

from torchtriage.core.units import ms
from torchtriage.diagnose.patterns._readbacks import bulk_reads, claim_reads
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Pattern, Trace, given
from torchtriage.diagnose.patterns.copy._host_link import beyond_pinned, exposed

PATTERN = Pattern.of(
    __name__, "CPY006", "Results copied to the host synchronously", order=331, needs="device runtime ops"
)
FIX = Fix(
    text="Copy into pinned memory without blocking, and read it a step later.",
    code="""host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)   # once
host.copy_(out, non_blocking=True)
done = torch.cuda.Event(); done.record()
# one step later
done.synchronize(); consume(host.numpy())""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


def find(trace: Trace) -> Claims:
    """Yield one claim for all blocking readbacks that starve the device."""
    index, holder = bulk_reads(trace)
    for claim in claim_reads(
        trace,
        index,
        holder,
        message="whole tensors are copied to the host {times}: the host waits {wait}, and the GPU idles {idle}",
        what="copies",
        method="host-late idle time up to the next launched work, capped by the time in the copy; exposed transfer"
        " time beyond pinned speed",
    ):
        copies = trace.waits.copy[index]
        pageable = copies[trace.matches(copies, "Pageable")]
        transfer = exposed(trace, pageable)
        saved = beyond_pinned(trace, pageable)
        low = np.broadcast_to(claim.gain_low, len(claim.spans))
        high = np.broadcast_to(claim.gain_high, len(claim.spans))
        steps = trace.steps
        steady = copies[steps.in_steady(steps.of_work(copies))]
        size = int(np.maximum(trace.value[steady], 0).sum()) // steps.n_steady
        transfer_ns = int(trace.dur_ns[steady].sum()) / steps.n_steady
        exposed_ns = steps.judged_ns(transfer) / steps.n_steady
        numbers = {
            # ROCm 6.2 records no sizes
            **given(copied_bytes_per_step=size),
            "transfer_ms_per_step": ms(transfer_ns),
            "exposed_pageable_transfer_ms_per_step": ms(exposed_ns),
        }
        yield dataclasses.replace(
            claim,
            spans=np.concatenate([claim.spans, transfer]),
            gain_low=np.concatenate([low, np.zeros(len(transfer))]),
            gain_high=np.concatenate([high, np.full(len(transfer), saved)]),
            time_class="copy",
            evidence={**claim.evidence, **numbers},
            edits=(*claim.edits, Edit("shrink", pageable, factor=1.0, best=1 - saved)),
        )
