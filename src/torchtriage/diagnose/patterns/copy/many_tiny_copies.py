"""Many small copies, each with its own launch.

Looks like: 50 or more copies below 64 KiB per step, or 20 or more that make up a fifth of all GPU work; uploads and
    copies on the device alike. Not counted: readbacks of single values, copies inside DDP's reducer or a collective,
    and copies replayed by a graph.
Slow because: a copy below 64 KiB takes 1-3 µs on the GPU and 5-10 µs to launch whatever its size; the host cannot keep
    up.
Cost: device idle time inside and behind the copying operators, at most as long as the host spent in them; low is
    divided by the profiler's inflation.
Fix: pack them: stack on the host and copy once, keep the pieces in one buffer, keep indices on the device.
Leave it when: the device is busy meanwhile, or the copies write the slots of a cache by design.
Source: CUDA C++ best practices guide, "Data Transfer Between Host and Device" (batch small ones).
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.schema import HOST_KINDS
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._readbacks import TRANSFER_OPS
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Pattern, Trace, given, most_frequent

PATTERN = Pattern.of(__name__, "CPY010", "Many small copies", order=360, needs="device runtime ops")
FIX = Fix(
    text="Combine small copies into one.",
    code="""batch = torch.stack(pieces).to(device, non_blocking=True)  # not one .to() per piece
torch._foreach_copy_(targets, sources)  # or one call for many tensors""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)

MAX_BYTES = 64 * 1024  # copies below cost the same whatever their size: 1-3 us, and 5-10 us on the host (measured)
MANY = 50
SOME = 20
SHARE = 0.2  # of all GPU work in the step, from `SOME` copies on (catalogue 10).
_NOT_OURS = (
    r"reducer::|DistributedDataParallel|_broadcast_coalesced|^c10d::|^nccl:|all_?reduce"
    r"|all_?gather|reduce_?scatter|all_?to_?all|all2all|symm_mem|reshape_and_cache|kv_cache"
)


def find(trace: Trace) -> Claims:
    """Yield one claim for all small copies that hold the host up."""
    steps, waits = trace.steps, trace.waits
    copies = _small(trace)
    step_of = steps.of_work(copies)
    count = steps.median_count(step_of)
    calls = trace.links.call[copies].astype(np.int64)
    if not len(copies) or not recurs(trace, calls):
        return
    share = count / max(steps.median_count(steps.of_work(trace.devices[0].rows)), 1.0)
    if count < MANY and not (count >= SOME and share >= SHARE):
        return
    outer = trace.tree.outermost(calls, trace.named(*TRANSFER_OPS))
    holder = np.where(outer >= 0, outer, calls)
    lost = waits.lost(trace.start_ns[holder], trace.end_ns[holder])
    if not len(lost):
        return
    sizes = trace.value[copies]
    steady = steps.in_steady(step_of)
    host_ns = int(trace.dur_ns[distinct(holder[steady])].sum()) / steps.n_steady
    idle_ns = steps.judged_ns(lost)
    yield host_claim(
        trace,
        f"{format_count(count, 'copy', 'copies')} below 64 KiB {steps.per}, {format_share(share)} of all GPU"
        f" events, take {format_ns(host_ns)} of host time",
        copies,
        lost,
        certainty="likely" if count >= MANY else "hint",
        method="host-late idle time up to the next launched work, capped by the copying operators",
        evidence={
            "n_copies_per_step": count,
            "share_of_gpu_events": round(share, 6),
            "gpu_idle_ms_per_step": ms(idle_ns / steps.n_steady),
            "host_ms_per_step": ms(host_ns),
            "median_copy_bytes": int(np.median(sizes)),
            "max_copy_bytes": int(sizes.max()),
            "ops": most_frequent(trace, holder),
            **given(call_sites=call_sites(trace, calls)),
        },
        anchor=int(calls[0]),
        edits=(Edit("drop", distinct(np.concatenate([holder, copies]))),),
    )


def _small(trace: Trace) -> Ints:
    waits, links = trace.waits, trace.links
    rows: Ints = trace.devices[0].rows
    rows = rows[(trace.kind[rows] == Kind.MEMCPY) & (links.call[rows] >= 0)]
    size = trace.value[rows]
    calls = links.call[rows]
    small = (size >= 0) & (size < MAX_BYTES) & (links.n_enqueued[calls] == 1)
    small &= ~trace.mask_of(waits.copy[waits.to_host])[rows]
    small &= ~trace.tree.under(trace.matching(_NOT_OURS, *HOST_KINDS))[calls]
    return rows[small]
