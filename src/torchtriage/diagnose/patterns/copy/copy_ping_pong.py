"""Tensors, or the weights of a module, are copied between host and GPU and back in the same step.

Looks like: a blocking copy to the host and, on the same thread, in the same step and within 100 ms, the next copy to
    the device of exactly as many bytes (4 KiB or more, so that the size is meaningful); in at least half of the steps,
    or three times in a recording without steps. Or copies in both directions inside ``nn.Module.to`` in at least half
    of two or more steps; without stacks: 8 or more uploads in a row whose sizes come down in a row later in the step.
Slow because: the host drains the queue, computes on one core what the device could, and copies the result back while
    the device waits. Weights are copied one by one, from and to pageable memory, while nothing is computed.
Cost: device idle time from the first copy to the next work launched after the second, at most as long as the host took
    in between, plus the exposed time of both copies; low counts the two waiting calls only, divided by the profiler's
    inflation, and the copies. Of weights: all that their moves take of the idle time, and their exposed copies; low
    counts the idle time divided by the profiler's inflation.
Fix: use the device's operator (``torch.*``, ``torchvision.transforms.v2``, ``torch.linalg``), or move the step into
    the input pipeline. Weights: move the model once, before the loop, and leave it on the device.
Leave it when: it is deliberate offloading (large, pinned, on a side stream; models that do not fit together), or the
    operator has no GPU implementation.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import among, distinct
from torchtriage.core.units import format_bytes, format_count, format_ns, ms
from torchtriage.diagnose.patterns._readbacks import bulk_reads
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.copy._host_link import exposed
from torchtriage.diagnose.patterns.copy._weight_moves import WeightMoves, weight_moves

PATTERN = Pattern.of(__name__, "CPY009", "Tensors that leave the GPU and return", order=330, needs="device runtime ops")
FIX = Fix(
    text="Do the work in between on the device.",
    code="""x = x.clamp(0, 1)
# instead of: torch.from_numpy(np.clip(x.cpu().numpy(), 0, 1)).to(x.device)""",
    link="https://docs.pytorch.org/docs/stable/torch.html#math-operations",
)

WEIGHTS = Fix(
    text="Keep the model on the device: move it once, before the loop. Where not all models fit, keep those there that"
    " every step uses, or hold their weights in half precision.",
    code="""model.to(device)  # once, and no model.to("cpu") behind the step
for batch in loader:
    outputs = model(batch)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
)

MIN_BYTES = 4096  # equal sizes below are coincidence: indices, lengths, sizes
SURE_BYTES = 64 * 1024  # from here on one pair per step is enough to call it likely (catalogue 9)
MAX_APART_NS = 100_000_000  # what comes back later is another tensor


def find(trace: Trace) -> Claims:
    """Yield a claim for each function that moves weights, and one for all tensors that are read back and return."""
    moves = weight_moves(trace)
    for some in moves:
        yield _weights(trace, some)
    yield from _tensors(trace, trace.mask_of(np.concatenate([[], *(some.copies for some in moves)]).astype(np.int64)))


def _weights(trace: Trace, moves: WeightMoves) -> Claim:
    steps, device, inflation = trace.steps, trace.devices[0], trace.origin.inflation
    copies = moves.copies[steps.in_steady(steps.of_work(moves.copies))]
    copied = intervals.intersect(moves.held, device.copy_only)
    waited = intervals.intersect(moves.held, device.idle)
    calls = trace.links.call[moves.copies].astype(np.int64)
    ops = trace.tree.outermost(calls, trace.kind == Kind.OP)
    rows = distinct(np.where(ops >= 0, ops, calls))
    between = intervals.subtract(moves.held, trace.time_of(rows))
    n_copies, size = len(copies) / steps.n_steady, int(np.maximum(trace.value[copies], 0).sum())
    held_ns = steps.judged_ns(moves.held) / steps.n_steady
    took = f"takes {format_ns(held_ns)} of {format_ns(steps.wall_ns)} {steps.per}"
    return Claim(
        message=f"the weights move in every step: copying them to the GPU and back {took},"
        f" {format_bytes(size / steps.n_steady)} in {format_count(n_copies, 'copy', 'copies')}",
        certainty="certain" if trace.has_stacks else "likely",
        rows=np.concatenate([rows, moves.copies]),
        spans=np.concatenate([copied, waited]),
        gain_low=np.repeat([1.0, 1 / inflation], [len(copied), len(waited)]),
        time_class="copy",
        method="exposed copies and idle time of the device while the weights are moved",
        evidence={
            "kind": "weights",
            "moves_ms_per_step": ms(held_ns),
            "share_of_step": round(held_ns / steps.wall_ns, 6),
            "exposed_copy_ms_per_step": ms(steps.judged_ns(copied) / steps.n_steady),
            "gpu_idle_ms_per_step": ms(steps.judged_ns(waited) / steps.n_steady),
            "n_copies_per_step": round(n_copies, 2),
            **given(copied_bytes_per_step=size // steps.n_steady, call_sites=call_sites(trace, calls)),
            "profiler_inflation": inflation,
        },
        anchor=trace.longest(calls),
        fix=WEIGHTS,
        edits=(
            Edit("drop", rows),
            Edit("drop", moves.copies),
            Edit("threads", factor=1 - 1 / inflation, best=0.0, spans=between),
        ),
    )


def _tensors(trace: Trace, weights: Mask) -> Claims:
    waits, steps = trace.waits, trace.steps
    index, calls = _pairs(trace, weights)
    rows = waits.row[index]
    if not len(index) or not recurs(trace, rows):
        return
    back = np.full(len(trace), -1, np.int64)
    back[waits.row] = np.arange(len(waits))
    end = waits.end_ns.copy()
    returned = back[calls]
    end[index] = np.where(returned >= 0, waits.end_ns[returned], trace.end_ns[calls])
    both = np.concatenate([index, returned[returned >= 0]])
    sure = waits.idle(both)
    whole, _, _ = waits.stake(index, waits.start_ns, end)
    more = intervals.subtract(intervals.union(whole), sure)
    copies = distinct(np.concatenate([waits.copy[index], trace.links.work_of(calls)]))
    transfer = exposed(trace, copies)
    spans = np.concatenate([sure, more, transfer])
    if not len(spans):
        return
    low = np.zeros(len(spans))
    low[: len(sure)] = 1 / trace.origin.inflation
    low[len(spans) - len(transfer) :] = 1.0
    size = waits.copy_bytes[index]
    pick = steps.in_steady(steps.of_host(rows))
    apart_ns = int((end[index] - waits.start_ns[index])[pick].sum()) / steps.n_steady
    count = steps.median_count(steps.of_host(rows))
    times = "once" if count == 1 else format_count(count, "time")
    yield Claim(
        message=f"tensors are copied to the host and back in the same size {times} {steps.per}: the round trip takes"
        f" the host {format_ns(apart_ns)}",
        certainty="likely" if size.max() >= SURE_BYTES and steps.n_steady >= 2 else "hint",
        rows=np.concatenate([rows, calls, copies]),
        spans=spans,
        gain_low=low,
        time_class="copy",
        method="host-late idle time up to the next launched work, capped by the round trip; exposed transfer time",
        evidence={
            "n_round_trips_per_step": count,
            "round_trip_ms_per_step": ms(apart_ns),
            "median_tensor_bytes": int(np.median(size)),
            **given(call_sites=call_sites(trace, rows)),
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(rows[np.argmax(end[index] - waits.start_ns[index])]),
        edits=(Edit("drop", rows), Edit("drop", calls), Edit("drop", copies)),
    )


def _pairs(trace: Trace, weights: Mask) -> tuple[Ints, Ints]:
    """Return waits (readbacks) and, for each, the call that brings as many bytes back; without copies of weights."""
    waits, links = trace.waits, trace.links
    down = bulk_reads(trace)[0]
    down = down[(waits.copy_bytes[down] >= MIN_BYTES) & ~weights[waits.copy[down]]]
    copies = np.flatnonzero((trace.kind == Kind.MEMCPY) & (links.call >= 0) & ~weights)
    copies = copies[trace.matches(copies, "HtoD")]
    found: list[tuple[Ints, Ints]] = []
    sizes = distinct(waits.copy_bytes[down])
    for size in sizes[among(sizes, trace.value[copies])].tolist():
        left = down[waits.copy_bytes[down] == size]
        right = links.call[copies[trace.value[copies] == size]].astype(np.int64)
        right = right[np.argsort(trace.start_ns[right], kind="stable")]
        latest = np.searchsorted(waits.end_ns[left], trace.start_ns[right], side="right") - 1
        # the first to come back after each readback; in a queue of them, the last one left
        latest, first = np.unique(latest, return_index=True)
        first, latest = first[latest >= 0], latest[latest >= 0]
        found.append((left[latest], right[first]))
    if not found:
        return down[:0], down[:0]
    index = np.concatenate([pair[0] for pair in found])
    calls = np.concatenate([pair[1] for pair in found])
    rows = waits.row[index]
    keep = (trace.lane[rows] == trace.lane[calls]) & (trace.start_ns[calls] - waits.end_ns[index] <= MAX_APART_NS)
    keep &= trace.steps.of_host(rows) == trace.steps.of_host(calls)
    return index[keep], calls[keep]
