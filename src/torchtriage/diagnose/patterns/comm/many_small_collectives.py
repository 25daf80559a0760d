"""Many small collectives, or a barrier, a broadcast or an object collective in every step.

Looks like: 20 or more collectives per training step below 1 MiB each (below 20 µs on a device, 1 ms on the host, where
    sizes were not recorded); or ``c10d::barrier``, or a pair of collectives with ``aten::item`` between them
    (``all_gather_object``), or ``c10d::broadcast_`` that takes 5 % of the step, in most of the steps.
Slow because: below 1 MiB a collective takes its latency, 10-30 µs on a device and more through the host, whatever it
    carries; a barrier makes every rank wait for the slowest to no purpose; parameters and buffers that are broadcast
    were mostly equal before.
Cost: exposed time of the small collectives only. Low saves one minimum latency for each, except for one per 25 MiB;
    high saves all but the transfer at the best rate that a large message reached in the recording. Low is 0 for
    barriers, broadcasts and objects, since uneven ranks wait at the next collective instead (of the buffers that DDP
    broadcasts it is their transfer), and also where layers need each result at once or computation hides most of them.
Fix: send one flat buffer: larger buckets, coalescing; exchange metrics every N steps; drop barriers; broadcast once,
    before the loop.
Leave it when: each collective needs what was computed since the last (SyncBatchNorm, tensor-parallel layers, MoE
    routing), or what is broadcast is new, such as the batch. FSDP's all-gathers, one for each unit, are not counted.
Source: PyTorch documentation, DistributedDataParallel, ``bucket_cap_mb``; measured: 404 all-reduces per step on V100,
    55 % of them below 20 µs.
"""

from collections import Counter

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._recurrence import call_sites
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Kind, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.comm._collectives import of_two, shorter, trains
from torchtriage.diagnose.patterns.comm._sharding import find_gathers
from torchtriage.diagnose.patterns.comm._step_collectives import (
    FIX_BARRIER,
    FIX_BROADCAST,
    FIX_OBJECTS,
    buffers_transfer,
    claim_each_step,
    large_broadcasts,
    object_collectives,
)

PATTERN = Pattern.of(__name__, "COM037", "Many small collectives", order=410, needs="collectives")
FIX = Fix(
    text="Combine small messages into one collective.",
    code="""model = DistributedDataParallel(model)  # bucket_cap_mb stays at 25
# or by hand: one flat buffer for all gradients
grads = [p.grad for p in model.parameters() if p.grad is not None]
flat = torch._utils._flatten_dense_tensors(grads)
torch.distributed.all_reduce(flat)
flat /= torch.distributed.get_world_size()
means = torch._utils._unflatten_dense_tensors(flat, grads)
torch._foreach_copy_(grads, list(means))""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)


MANY = 20
SMALL_BYTES = 1 << 20  # below, the latency of a ring (10-30 us) is longer than the transfer (catalogue 37)
SHORT_NS, SHORT_HOST_NS = 20_000, 1_000_000
"""What stands for small where sizes were not recorded: on a device, through the host."""
BUCKET_BYTES = 25 << 20  # DDP's default: what one message may carry instead
NEAR_OPS = 3  # operators between two collectives that could have been one: the division that averages, not a layer
MOSTLY = 0.5


def find(trace: Trace) -> Claims:
    """Yield a claim for small collectives, one for barriers, one for object collectives and one for broadcasts."""
    found = find_collectives(trace)
    if found is None or trace.origin.world_size == 1:
        return
    yield from filter(None, [_small(trace, found)])
    barriers = (trace.kind == Kind.OP) & trace.named("c10d::barrier")
    yield from claim_each_step(trace, found, np.flatnonzero(barriers), "barrier", FIX_BARRIER)
    objects = object_collectives(trace)
    yield from claim_each_step(trace, found, objects, "object collective", FIX_OBJECTS)
    ops, sure = large_broadcasts(trace, found, objects), buffers_transfer(trace, found)
    yield from claim_each_step(trace, found, ops, "broadcast", FIX_BROADCAST, sure=sure)


def _small(trace: Trace, found: Collectives) -> Claim | None:
    dur, size = trace.dur_ns[found.rows], found.size_bytes
    short = dur < (SHORT_HOST_NS if found.on_host else SHORT_NS)
    small = np.where(size >= 0, size < SMALL_BYTES, short)
    gathers = find_gathers(trace, found)
    if gathers is not None:
        # FSDP gathers each unit's parameters when they are needed
        small[gathers.at] = False
    # a stage sends what it has computed: what it computes next cannot go along
    ops = np.append(trace.matching(r"^c10d::(send|recv)"), False)
    small &= ~(ops[found.enqueued_by] | np.array([*map(of_two, found.labels)], bool))
    steps = trace.steps
    n_small = steps.median_count(found.step[small])
    if n_small < MANY or not trains(trace):
        return None
    apart = small & ~_together(trace, found)
    mine = small[found.source]
    spans, source = found.exposed[mine], found.source[mine]
    alone_ns = int((spans[:, 1] - spans[:, 0]).sum())
    # what layers need at once cannot wait; what runs beside computation mostly costs nothing
    doubtful = apart.sum() > MOSTLY * small.sum() or alone_ns < MOSTLY * int(dur[small].sum())
    carried = size[small & steps.in_steady(found.step)]
    per_step_bytes = int(np.maximum(carried, 0).sum()) / steps.n_steady
    n_merged = max(1, -(-per_step_bytes // BUCKET_BYTES))
    # at best nothing is left but the transfer; only large messages show what it takes
    rate = float(np.max(np.where(size >= SMALL_BYTES, size, 0) / np.maximum(dur, 1)))
    if rate > 0:
        high = 1 - np.minimum(np.maximum(size, 0) / rate / np.maximum(dur, 1), 1)
    else:
        high = np.full(len(dur), 1 - n_merged / n_small)
    low = np.minimum(int(dur[small].min()) / np.maximum(dur, 1), high) * (1 - n_merged / n_small)
    exposed_ns = steps.judged_ns(spans)
    names = Counter(label for label, item in zip(found.labels, small.tolist(), strict=True) if item)
    what = format_count(n_small, "collective")
    known = bool((size[small] >= 0).any())
    enqueued = found.enqueued_by[small]
    return Claim(
        message=f"{what} {steps.per} {'carry less than 1 MiB' if known else 'are short'} each (median"
        f" {format_ns(float(np.median(dur[small])))}); {format_ns(exposed_ns / steps.n_steady)} of them"
        f" {steps.per} is exposed",
        certainty="hint" if doubtful else "likely",
        rows=found.rows[small],
        spans=spans,
        gain_low=np.zeros(len(spans)) if doubtful else low[source],
        gain_high=high[source],
        time_class="host" if found.on_host else "comm",
        method="exposed time of small collectives, less one latency per 25 MiB (low) or the transfer at the best rate"
        " (high)",
        evidence={
            "n_small_per_step": n_small,
            "n_collectives_per_step": steps.median_count(found.step),
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "median_small_ms": ms(float(np.median(dur[small]))),
            "shortest_ms": ms(int(dur[small].min())),
            **({"median_bytes": int(np.median(size[small & (size >= 0)]))} if known else {}),
            **({"bytes_per_step": int(per_step_bytes)} if known else {}),
            "share_back_to_back": round(1 - float(apart.sum() / small.sum()), 6),
            "kinds": [name for name, _ in names.most_common(3)],
            **given(call_sites=call_sites(trace, enqueued[enqueued >= 0])),
        },
        edits=(shorter(found, small, spans, 0.0 if doubtful else low, high),),
    )


def _together(trace: Trace, found: Collectives) -> Mask:
    """Return bool[k]: collectives that could have been one with the one before or after.

    They are enqueued by the hooks of gradients, or one after the other with next to nothing
    computed between.
    """
    op = found.enqueued_by
    near = np.zeros(len(op), dtype=bool)
    at = np.flatnonzero(op >= 0)
    at = at[np.argsort(trace.start_ns[op[at]], kind="stable")]
    ops = trace.kind == Kind.OP
    outer = ops & ~np.append(ops, False)[trace.tree.parent]
    outer[op[at]] = False
    starts = np.sort(trace.start_ns[outer & np.isin(trace.lane, distinct(trace.lane[op[at]]))])
    count = np.searchsorted(starts, trace.start_ns[op[at]])
    close = (np.diff(count) <= NEAR_OPS) & (np.diff(trace.lane[op[at]]) == 0)
    near[at[1:]] |= close
    near[at[:-1]] |= close
    hooks = ops & trace.matching(rf"^{BACKWARD_NODE}.*AccumulateGrad")
    near[at] |= trace.tree.nearest(op[at], hooks) >= 0
    return near
