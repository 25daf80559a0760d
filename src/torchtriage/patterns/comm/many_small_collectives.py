"""Many small collectives, or a barrier or an object collective in every step.

Looks like: 20 or more collectives per step below 1 MiB each (below 20 µs on a device, 1 ms on the
    host, where sizes were not recorded) in training; or ``c10d::barrier``, or a pair of collectives
    with ``aten::item`` between them (``all_gather_object``), in most of the steps.
Slow because: below 1 MiB a collective costs its latency, 10-30 µs on a device and more through the
    host, whatever it carries; a barrier makes everybody wait for the slowest for nothing.
Cost: exposed time of the small collectives only. Low gives back one shortest latency each, but for
    one per 25 MiB; high all but what they carry at the best rate a large message reached here. For
    barriers and objects low is 0: uneven ranks wait at the next collective instead; so it is where
    layers need each one at once, and where computation hides most of them.
Fix: send one flat buffer: larger buckets, coalescing; exchange metrics every N steps; drop
    barriers.
Leave it when: each one needs what was computed since the last (SyncBatchNorm, tensor-parallel
    layers, MoE routing).
Source: PyTorch documentation, DistributedDataParallel, ``bucket_cap_mb``; measured: 404 all-reduces
    per step on V100, 55 % of them below 20 µs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.distinct import distinct
from torchtriage.finding import Fix
from torchtriage.patterns._recurrence import call_sites, recurs
from torchtriage.patterns.base import Claim, Pattern
from torchtriage.patterns.comm._collectives import (
    Collectives,
    find_collectives,
    shorter,
    trains,
)
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, ms

PATTERN = Pattern(
    code="COM037",
    name="many-small-collectives",
    family="comm",
    title="Many small collectives",
    order=410,
    needs=frozenset({"collectives"}),
)

FIX = Fix(
    text="Send together what belongs together.",
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

_FIX_BARRIER = Fix(
    text="Drop the barrier: the collectives of the step keep the ranks together.",
    code="""optimizer.step()  # and no barrier after it
# torch.distributed.barrier() only around what one rank does for all:
# downloads, checkpoints""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier",
)

_FIX_OBJECTS = Fix(
    text="Exchange tensors, and only every so many steps: objects are pickled and sent twice.",
    code="""if step % 100 == 0:
    torch.distributed.all_reduce(metrics)  # one tensor that holds all of them""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object",
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MANY = 20
SMALL_BYTES = 1 << 20
"""Below, the latency of a ring (10-30 us) is longer than the transfer (catalogue 37)."""
SHORT_NS, SHORT_HOST_NS = 20_000, 1_000_000
"""What stands for small where sizes were not recorded: on a device, through the host."""
BUCKET_BYTES = 25 << 20
"""DDP's default: what one message may carry instead."""
NEAR_OPS = 3
"""Operators between two collectives that could have been one: the division that averages, not a
layer."""
MOSTLY = 0.5


def find(trace: Trace) -> Iterator[Claim]:
    """Yield a claim for small collectives, one for barriers and one for object collectives."""
    found = find_collectives(trace)
    if found is None or trace.origin.world_size == 1:
        return
    small = _small(trace, found)
    if small is not None:
        yield small
    barriers = (trace.kind == Kind.OP) & trace.named("c10d::barrier")
    yield from _each_step(trace, found, np.flatnonzero(barriers), "barrier", _FIX_BARRIER)
    yield from _each_step(trace, found, _objects(trace), "object collective", _FIX_OBJECTS)


def _small(trace: Trace, found: Collectives) -> Claim | None:
    dur, size = trace.dur_ns[found.rows], found.size_bytes
    short = dur < (SHORT_HOST_NS if found.on_host else SHORT_NS)
    small = np.where(size >= 0, size < SMALL_BYTES, short)
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
    exposed_ns = intervals.length(intervals.intersect(intervals.union(spans), steps.judged))
    names = Counter(label for label, one in zip(found.labels, small.tolist(), strict=True) if one)
    what = format_count(n_small, "collective")
    known = bool((size[small] >= 0).any())
    sites = call_sites(trace, _known(found.enqueued_by[small]))
    return Claim(
        message=(
            f"{what} {steps.per} {'carry less than 1 MiB' if known else 'are short'} each"
            f" (median {format_ns(float(np.median(dur[small])))});"
            f" {format_ns(exposed_ns / steps.n_steady)} of them {steps.per} has no computation"
            " beside it"
        ),
        certainty="hint" if doubtful else "likely",
        rows=found.rows[small],
        spans=spans,
        gain_low=np.zeros(len(spans)) if doubtful else low[source],
        gain_high=high[source],
        time_class="host" if found.on_host else "comm",
        basis="bounded",
        method=(
            "exposed time of small collectives, less one latency per 25 MiB (low) or the transfer"
            " at the best rate (high)"
        ),
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
            **({"call_sites": sites} if sites else {}),
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
    hooks = ops & trace.matching(r"^autograd::engine::evaluate_function: .*AccumulateGrad")
    near[at] |= trace.tree.nearest(op[at], hooks) >= 0
    return near


def _objects(trace: Trace) -> Ints:
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


def _each_step(trace: Trace, found: Collectives, ops: Ints, what: str, fix: Fix) -> Iterator[Claim]:
    """Claim what ops that recur from step to step make the program wait."""
    steps = trace.steps
    if not len(ops) or not recurs(trace, ops):
        return
    mine = np.isin(found.enqueued_by, ops)
    spans = found.exposed[mine[found.source]]
    if not len(spans):
        return
    exposed_ns = intervals.length(intervals.intersect(intervals.union(spans), steps.judged))
    each = 2 if what.startswith("object") else 1
    count = steps.median_count(steps.of_host(ops)) / each
    sites = call_sites(trace, ops)
    yield Claim(
        message=(
            f"{format_count(count, what)} {steps.per}: {format_ns(exposed_ns / steps.n_steady)} in"
            " which nothing is computed"
        ),
        certainty="likely",
        rows=distinct(np.concatenate([ops, found.rows[mine]])),
        spans=spans,
        gain_low=0.0,
        time_class="host" if found.on_host else "comm",
        basis="bounded",
        method="exposed time of these collectives; uneven ranks may wait at the next one instead",
        evidence={
            f"n_{what.replace(' ', '_')}s_per_step": count,
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "share_of_steps": round(steps.share_of_steps(steps.of_host(ops)), 6),
            **({"call_sites": sites} if sites else {}),
        },
        anchor=int(ops[0]),
        fix=fix,
        edits=(shorter(found, mine, spans, 0.0, 1.0),),
    )


def _known(rows: Ints) -> Ints:
    return rows[rows >= 0]
