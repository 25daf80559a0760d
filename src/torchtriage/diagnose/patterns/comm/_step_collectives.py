"""Barriers, broadcasts and object collectives that recur from step to step."""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Floats, Ints, Kind, Trace, given
from torchtriage.diagnose.patterns.comm._collectives import shorter

FIX_BARRIER = Fix(
    text="Drop the barrier: the step's collectives already keep the ranks together.",
    code="""optimizer.step()  # and no barrier after it
# torch.distributed.barrier() only around what one rank does for all:
# downloads, checkpoints""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier",
)
FIX_OBJECTS = Fix(
    text="Exchange tensors, and only every N steps: objects are pickled and sent twice.",
    code="""if step % 100 == 0:
    torch.distributed.all_reduce(metrics)  # one tensor that holds all of them""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object",
)

FIX_BROADCAST = Fix(
    text="Broadcast once, before the loop: ranks that apply the same gradients keep the same values. Of buffers that"
    " need not be equal, DistributedDataParallel broadcasts none.",
    code="""model = DistributedDataParallel(model, broadcast_buffers=False)
# by hand: before the loop, not in it
for parameter in model.parameters():
    torch.distributed.broadcast(parameter.data, src=0)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)
MIN_BROADCAST = 0.05
"""Of the step: what is less may be the batch, or a setting."""


def large_broadcasts(trace: Trace, found: Collectives, objects: Ints) -> Ints:
    """Return the ops that broadcast, without those of objects, where they take a part of the step; else none."""
    ops = np.flatnonzero((trace.kind == Kind.OP) & trace.named("c10d::broadcast_"))
    ops = ops[~np.isin(ops, objects)]
    alone = found.exposed[np.isin(found.enqueued_by, ops)[found.source]]
    judged_ns = intervals.length(trace.steps.judged)
    return ops if trace.steps.judged_ns(alone) >= MIN_BROADCAST * judged_ns else ops[:0]


def buffers_transfer(trace: Trace, found: Collectives) -> Floats:
    """Return float64[k]: of broadcasts in DDP's forward the share that is transfer, of all others 0.

    What DDP broadcasts there are buffers, which ranks that do alike hold already; the wait for a late rank would come
    at the next collective.
    """
    forward = trace.tree.under(trace.matching(r"^DistributedDataParallel\.forward$") & trace.hosts)
    op = found.enqueued_by
    mine = (op >= 0) & (forward & trace.named("c10d::broadcast_"))[op]
    return np.where(mine, found.fastest_ns / np.maximum(trace.dur_ns[found.rows], 1), 0.0)


def object_collectives(trace: Trace) -> Ints:
    """Return the ops of object collectives: a size, read on the host, then the bytes."""
    ops = trace.kind == Kind.OP
    forward = trace.tree.under(trace.matching(r"DataParallel\.forward$") & trace.hosts)
    pairs = np.flatnonzero(ops & trace.matching(r"^c10d::(allgather|broadcast|gather|scatter)_$"))
    pairs = pairs[~forward[pairs] & (trace.lane[pairs] == trace.steps.lane)]
    pairs = pairs[np.argsort(trace.start_ns[pairs], kind="stable")]
    reads = np.flatnonzero(ops & trace.named("aten::item") & (trace.lane == trace.steps.lane))
    reads = np.sort(trace.start_ns[reads])
    n_read = np.searchsorted(reads, trace.start_ns[pairs])
    outer = np.flatnonzero(ops & trace.matching(r"^autograd::engine|Backward\d*$"))
    n_outer = np.searchsorted(np.sort(trace.start_ns[outer]), trace.start_ns[pairs])
    same = (
        (trace.name[pairs[1:]] == trace.name[pairs[:-1]])
        & (np.diff(n_read) > 0)
        & (np.diff(n_outer) == 0)
        & (np.diff(trace.steps.of_host(pairs)) == 0)
    )
    # the second of one pair is not the first of the next
    first = np.flatnonzero(same)
    first = first[np.append(True, np.diff(first) > 1)] if len(first) else first
    return np.sort(np.concatenate([pairs[first], pairs[first + 1]]))


def claim_each_step(
    trace: Trace, found: Collectives, ops: Ints, what: str, fix: Fix, *, sure: Floats | float = 0.0
) -> Claims:
    """Claim what ops that recur from step to step make the program wait.

    ``sure`` : float64[k], of each collective the share that goes whatever other ranks do.
    """
    steps = trace.steps
    if not len(ops) or not recurs(trace, ops):
        return
    mine = np.isin(found.enqueued_by, ops)
    spans = found.exposed[mine[found.source]]
    if not len(spans):
        return
    low = np.broadcast_to(np.asarray(sure, float), len(found.rows))
    exposed_ns = steps.judged_ns(spans)
    each = 2 if what.startswith("object") else 1
    count = steps.median_count(steps.of_host(ops)) / each
    yield Claim(
        message=f"{format_count(count, what)} {steps.per}: {format_ns(exposed_ns / steps.n_steady)} in which nothing"
        " is computed",
        certainty="likely",
        rows=distinct(np.concatenate([ops, found.rows[mine]])),
        spans=spans,
        gain_low=low[found.source[mine[found.source]]],
        time_class="host" if found.on_host else "comm",
        method="exposed time of these collectives; uneven ranks may wait at the next one instead",
        evidence={
            f"n_{what.replace(' ', '_')}s_per_step": count,
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "share_of_steps": round(steps.share_of_steps(steps.of_host(ops)), 6),
            **given(call_sites=call_sites(trace, ops)),
        },
        anchor=int(ops[0]),
        fix=fix,
        edits=(shorter(found, mine, spans, low, 1.0),),
    )
