"""Gradient clipping loops over the parameters, or waits for the norm.

Looks like: between backward pass and optimizer a run of nothing but norms and operators on them, in which (a) 20 norms
    or more are taken one by one instead of by ``aten::_foreach_norm``, or (b) the host reads a value back, as
    ``error_if_nonfinite=True`` and ``norm.item()`` in the loop do.
Slow because: (a) every parameter needs launches of its own for the norm and for the scaling; (b) the host waits until
    the whole backward pass is done, and launches the optimizer late.
Cost: the device idle time it causes. At the low end that of the readbacks, and half of that of the loop, divided by
    the profiler's inflation. On a CPU at most half of the loop.
Fix: clip with ``foreach=True`` (the default for parameters on a GPU) and leave the norm on the device.
Leave it when: a wrong gradient must stop the run at once, or individual norms are needed.
Source: PyTorch documentation, ``torch.nn.utils.clip_grad_norm_``; measured on a CPU: the foreach form takes 3 % off a
    step of 120 parameters, a readback is free there.
"""

import numpy as np

from torchtriage.core import fixes, intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_runs import outer_ops, runs
from torchtriage.core.trace.optimizer_steps import updates
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import HOST_KINDS, Claim, Claims, Edit, Ints, Mask, Pattern, Trace, given

PATTERN = Pattern.of(__name__, "OPT041", "Gradient clipping loops or waits", order=329, needs="ops work")
FIX = fixes.CLIP_AT_ONCE

MIN_NORMS = 20  # taken one by one (catalogue 41)
LOOP_GAIN = 0.5
_BACKWARD = r"^autograd::engine|Backward\d*$"
_NORM = r"^aten::(linalg_vector_norm|norm)$"
_GROUPED = "aten::_foreach_norm"
_PART = (
    r"^aten::(linalg_vector_norm|norm|_foreach_\w+|stack|cat|add_?|sub|rsub|mul_?|div_?|reciprocal"
    r"|pow|square|sqrt|sum|maximum|max|clamp(_max)?_?|to|_to_copy|detach_?|item|is_nonzero|isnan"
    r"|isinf|isfinite|logical_or|any|all|lt|gt|le|ge|eq|where|unbind|select|lift_fresh)$"
)


def find(trace: Trace) -> Claims:
    """Yield at most one claim: on the loop with its readbacks, or on the readbacks alone."""
    ops = outer_ops(trace, updates(trace))
    stretches = runs(trace, ops, trace.matches(ops, _PART))
    alone = _count(trace.matches(ops, _NORM), stretches)
    looping = alone >= MIN_NORMS
    clipping = looping | (_count(trace.named(_GROUPED)[ops], stretches) > 0)
    # norms before it are the model's own: rows made unit length one by one
    clipping &= _follows_backward(trace, trace.start_ns[ops[stretches[:, 0]]])
    stretches, looping = stretches[clipping], looping[clipping]
    if not len(stretches):
        return
    first, last = ops[stretches[:, 0]], ops[stretches[:, 1] - 1]
    if not recurs(trace, first):
        return
    n_norms = int(np.median(alone[clipping]))
    if trace.devices:
        yield from _on_device(trace, first, last, looping, n_norms)
    else:
        yield from _on_cpu(trace, first[looping], last[looping], n_norms)


def _follows_backward(trace: Trace, start_ns: Ints) -> Mask:
    nodes = np.sort(trace.start_ns[trace.matching(_BACKWARD, *HOST_KINDS)])
    stepped = np.sort(trace.start_ns[trace.matching(r"^Optimizer\.", *HOST_KINDS)])
    reset = np.searchsorted(stepped, start_ns)
    last_step = np.append(np.iinfo(np.int64).min, stepped)[reset]
    return np.searchsorted(nodes, start_ns) > np.searchsorted(nodes, last_step)


def _count(fits: Mask, stretches: Ints) -> Ints:
    total = np.concatenate([[0], np.cumsum(fits)])
    return total[stretches[:, 1]] - total[stretches[:, 0]]


def _on_device(trace: Trace, first: Ints, last: Ints, looping: Mask, n_norms: int) -> Claims:
    steps, waits = trace.steps, trace.waits
    start, end = trace.start_ns[first], trace.end_ns[last]
    held = intervals.union(intervals.spans(start, end))
    at = intervals.owner(held, waits.start_ns)
    same = trace.lane[waits.row] == steps.lane
    reads = np.flatnonzero((at >= 0) & same & waits.to_host & ~waits.profiler)
    waited = waits.idle(reads)
    looped_on_host = intervals.union(intervals.spans(start[looping], end[looping]))
    lost = waits.lost(start[looping], end[looping])
    looped = intervals.subtract(lost, waited)
    spans = np.concatenate([waited, looped])
    idle_ns = steps.judged_ns(spans) / steps.n_steady
    n_reads = steps.median_count(steps.of_host(waits.row[reads]))
    held_ns = steps.judged_ns(held) / steps.n_steady
    loops = bool(looping.any())
    does = [f"takes {format_count(n_norms, 'norm')} one by one"] if loops else []
    if n_reads:
        does.append(f"reads {format_count(n_reads, 'value')} back")
    if not idle_ns or not does:
        return
    edits = [Edit("unblock", waits.sync_row[reads])] if len(reads) else []
    if loops:
        edits.append(Edit("threads", factor=1 - LOOP_GAIN, best=0.0, spans=looped_on_host))
    yield host_claim(
        trace,
        f"clipping gradients {' and '.join(does)} {steps.per}: the host spends {format_ns(held_ns)} on it, and the GPU"
        f" stands idle for {format_ns(idle_ns)}",
        distinct(np.concatenate([first, waits.row[reads]])),
        spans,
        gain=np.repeat([1.0, LOOP_GAIN], [len(waited), len(looped)]),
        method="idle time of the device that the readbacks (low) and the loop cause",
        evidence={
            "gpu_idle_ms_per_step": ms(idle_ns),
            "host_ms_per_step": ms(held_ns),
            "n_readbacks_per_step": n_reads,
            **({"n_norms_one_by_one": n_norms} if loops else {}),
            **given(call_sites=call_sites(trace, first)),
        },
        anchor=int(waits.row[reads[0]]) if len(reads) and not loops else int(first[0]),
        fix=None if loops else fixes.LEAVE_NORM_ON_DEVICE,
        edits=tuple(edits),
    )


def _on_cpu(trace: Trace, first: Ints, last: Ints, n_norms: int) -> Claims:
    """Yield the claim on a CPU's loop; the foreach form saves the Python between the norms."""
    steps = trace.steps
    start, end = trace.start_ns[first], trace.end_ns[last]
    held = intervals.union(intervals.spans(start, end))
    held_ns = steps.judged_ns(held) / steps.n_steady
    if not held_ns:
        return
    yield Claim(
        message=f"clipping gradients takes {format_count(n_norms, 'norm')} one by one {steps.per}:"
        f" {format_ns(held_ns)} of {format_ns(steps.wall_ns)}",
        certainty="hint",
        rows=first,
        spans=held,
        gain_low=0.0,
        gain_high=LOOP_GAIN,
        time_class="host",
        method="half of the host time of the loop, at most",
        evidence={
            "host_ms_per_step": ms(held_ns),
            "share_of_step": round(held_ns / steps.wall_ns, 6),
            "n_norms_one_by_one": n_norms,
        },
        edits=(Edit("threads", factor=1.0, best=1 - LOOP_GAIN, spans=held),),
    )
