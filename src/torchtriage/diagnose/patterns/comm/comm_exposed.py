"""Communication runs while the device computes nothing.

Looks like: kernels of NCCL, RCCL or a custom all-reduce with no other kernel running, for at least a tenth of the step,
    on whatever stream. Without a device: gloo or MPI collectives that the main thread waits for, outside every
    operator. Tensor-parallel ones (COM060) and, without a device, FSDP's (COM057 to COM059) do not count.
Slow because: the compute units wait for the network, and often for the slowest rank, instead of working on what does
    not depend on the result.
Cost: bounded by the exposed time. One rank's recording cannot separate transfer from waiting for other ranks: the low
    end counts only the duration of the fastest of at least three equal messages, only while the next computation was
    already enqueued, and no more than the computation without communication could hide (of gradients that DDP or FSDP
    reduces: what follows the first of them in their backward pass); it is 0 where sizes were not recorded.
Fix: start collectives while gradients are still being computed (DDP's buckets, FSDP's prefetch), wait for
    ``async_op=True`` handles as late as possible, and give each rank more work per message.
Leave it when: every layer needs its reduced result at once (tensor-parallel inference), or other ranks are simply
    late: then look at the rank that arrives last.
Source: PyTorch documentation, "DistributedDataParallel", internal design; Li et al., "PyTorch Distributed: Experiences
    on Accelerating Data Parallel Training", VLDB 2020.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.trace.device import Device
from torchtriage.core.units import format_ns, format_share, ms
from torchtriage.diagnose.patterns.base import (
    Claim,
    Claims,
    Edit,
    Fix,
    Floats,
    Ints,
    Kind,
    Mask,
    Pattern,
    Spans,
    Trace,
    given,
)
from torchtriage.diagnose.patterns.comm._collectives import trains
from torchtriage.diagnose.patterns.comm._gradient_reduces import find_reduces
from torchtriage.diagnose.patterns.comm._sharding import FSDP
from torchtriage.diagnose.patterns.comm._tensor_parallel import tensor_parallel

PATTERN = Pattern.of(
    __name__, "COM035", "Communication is not hidden behind computation", order=430, needs="collectives"
)
FIX = Fix(
    text="Start collectives while there is still something to compute, and wait for them late.",
    code="""# buckets below the default of 25 MB leave less for the end of the pass
model = DistributedDataParallel(model, bucket_cap_mb=5)
# or by hand:
work = torch.distributed.all_reduce(tensor, async_op=True)
...  # computation that does not need it
work.wait()""",
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)
_FIX_ALONE = replace(
    FIX,
    text="Analyse the traces of all ranks together (torchtriage analyze FOLDER): one rank's trace does not"
    " separate transfer from waiting for a late rank, which overlap does not fix. For the transfer, start collectives"
    " while there is still something to compute, and wait for them late.",
)
MIN_SHARE = 0.10  # of the judged time (catalogue 35)


def find(trace: Trace) -> Claims:
    """Yield one claim over the exposed communication of the main device, or of the host."""
    found = find_collectives(trace)
    judged = trace.steps.judged
    wall_ns = intervals.length(judged)
    if found is None or len(found.rows) < 2 or not wall_ns or trace.origin.world_size == 1:
        return
    training = trains(trace)
    # without a computation to hide behind, nothing can be said about hiding
    if not (training if found.on_host else _computes(trace.devices[0]).any()):
        return
    rows, keep = found.rows, ~_judged_elsewhere(found)
    mine = keep[found.source]
    spans, source = found.exposed[mine], found.source[mine]
    exposed_ns = trace.steps.judged_ns(spans)
    if exposed_ns < MIN_SHARE * wall_ns:
        return
    transfer = found.fastest_ns / np.maximum(trace.dur_ns[rows], 1)
    low = transfer[source]
    if not training:
        low = np.zeros(len(spans))  # the next layer needs the sum
    elif not found.on_host:
        low *= _blocking_share(trace, trace.devices[0], spans)
    low = _as_far_as_it_can_hide(found, low, spans, source)
    own = np.bincount(source, weights=intervals.covered(spans, judged), minlength=len(rows)).astype(np.int64)
    beyond_ns = int(np.maximum(own - found.fastest_ns, 0)[found.fastest_ns > 0].sum())
    steps = trace.steps
    per_step = exposed_ns / steps.n_steady
    comm_ns = steps.judged_ns(trace.time_of(rows[keep]))
    names: Counter[str] = Counter()
    for label, time_ns in zip(found.labels, own.tolist(), strict=True):
        names[label] += time_ns
    of_step = f"{format_ns(per_step)} of {format_ns(steps.wall_ns)} {steps.per}"
    share = f"{format_share(exposed_ns / comm_ns)} of all communication"
    if 2 * beyond_ns > exposed_ns:
        share += f"; {format_ns(beyond_ns / steps.n_steady)} of it is more than the fastest equal message took"
    yield Claim(
        message=(
            f"the host computes nothing and waits for collectives for {of_step}, {share}"
            if found.on_host
            else f"communication runs without computation for {of_step}, {share}"
        ),
        certainty="likely" if training else "hint",
        rows=rows[keep],
        spans=spans,
        gain_low=low,
        anchor=int(rows[np.argmax(own)]),
        time_class="host" if found.on_host else "comm",
        method=(
            "exposed communication; low counts the fastest of equal messages, as far as there is"
            " computation to hide it" + ("" if found.on_host else ", while the next was enqueued")
        ),
        evidence={
            "exposed_ms_per_step": ms(per_step),
            "share_of_step": round(exposed_ns / wall_ns, 6),
            "exposed_share_of_communication": round(exposed_ns / comm_ns, 6),
            "communication_ms_per_step": ms(comm_ns / steps.n_steady),
            "n_collectives_per_step": steps.mean_count(found.step[keep]),
            "n_threads" if found.on_host else "n_streams": len(distinct(trace.lane[rows[keep]])),
            "top_exposed_ms_per_step": {name: ms(time_ns / steps.n_steady) for name, time_ns in names.most_common(3)},
            **given(world_size=trace.origin.world_size, beyond_fastest_ms_per_step=ms(beyond_ns / steps.n_steady)),
        },
        fix=_FIX_ALONE,
        edits=(
            # on the host, a wait is time of the main thread; low: the transfer, high: all of it
            Edit("threads", factor=1 - float(np.mean(low)), best=0.0, spans=spans)
            if found.on_host
            else Edit("overlap", rows[keep], factor=(1 - transfer * training)[keep], best=0.0),
        ),
    )


def _as_far_as_it_can_hide(found: Collectives, low: Floats, spans: Spans, source: Ints) -> Floats:
    """Return ``low`` with no more hidden than there is computation without communication.

    Of gradients that DDP or FSDP reduces that is what follows the first of them in their backward pass.
    """
    trace = found.trace
    free = intervals.subtract(found.computing, found.running)
    reduces = find_reduces(trace, found)
    waits_ns = intervals.covered(spans, trace.steps.judged)

    def within(mine: Mask, part: Floats, room: Spans) -> Floats:
        hidden_ns = float((part * waits_ns)[mine].sum())
        fits = min(1.0, trace.steps.judged_ns(room) / hidden_ns) if hidden_ns else 1.0
        return np.where(mine, part * fits, part)

    if reduces is not None:
        gradients = np.isin(source, reduces.at)
        behind = intervals.union(intervals.spans(reduces.since_ns, trace.end_ns[found.rows[reduces.at]]))
        low = within(gradients, low, intervals.intersect(free, behind))
    return within(np.ones(len(low), dtype=bool), low, free)


def _judged_elsewhere(found: Collectives) -> Mask:
    """Return bool[k]: collectives that other patterns judge, as nothing independent of them could run beside them.

    The next product needs a tensor-parallel one at once (COM060). On the CPU, FSDP's own block (COM057 to COM059).
    """
    trace = found.trace
    out = tensor_parallel(found)[0]
    if found.on_host:
        op = np.maximum(found.enqueued_by, 0)
        out |= trace.tree.nearest(op, trace.hosts & trace.matching(FSDP)) >= 0
    return out


def _computes(device: Device) -> Mask:
    return ~device.comm & (device.trace.kind[device.rows] == Kind.KERNEL)


def _blocking_share(trace: Trace, device: Device, spans: Spans) -> Floats:
    rows = device.rows[_computes(device)]
    index = np.searchsorted(trace.start_ns[rows], spans[:, 1], side="left")
    has_next = index < len(rows)
    following = rows[np.minimum(index, len(rows) - 1)]
    call = trace.links.call[following]
    enqueued = np.where(call >= 0, trace.end_ns[call], trace.start_ns[following])
    blocked = spans[:, 1] - np.clip(enqueued, spans[:, 0], spans[:, 1])
    return np.where(has_next, blocked / np.maximum(spans[:, 1] - spans[:, 0], 1), 0.0)
