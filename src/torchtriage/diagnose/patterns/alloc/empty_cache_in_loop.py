"""``empty_cache()`` runs inside the loop and returns the cache to the device each time.

Looks like: a frame ``torch/cuda/memory.py: empty_cache`` in at least a tenth of the steady steps, at least twice.
    Without Python stacks: one burst of two or more frees outside every op in at least half of the steady steps, and
    mallocs in as many.
Slow because: every free waits for the device, and the next step requests the same memory again.
Cost: bounded by the device idle time before each launch that those frees and mallocs delayed; the low end is divided
    by the profiler's inflation.
Fix: delete the call. If memory runs out without it, find the peak that needs it.
Leave it when: it runs once between phases (training and evaluation) or in an out-of-memory handler.
Source: PyTorch documentation, ``torch.cuda.memory.empty_cache``: "does not increase the amount of GPU memory available
    for PyTorch".
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.allocator_calls import allocator_calls, idle_behind, outside_capture
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "MEM028", "The allocator's cache is emptied inside the loop", order=321, needs="device runtime steps"
)
FIX = Fix(
    text="Delete the call from the loop; keep it between phases that need different memory.",
    code="""for batch in loader:
    train_step(batch)  # and no torch.cuda.empty_cache() here""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
)

_FRAME = r"^(.*/)?torch/(cuda|accelerator|xpu)/memory\.py\(\d+\): empty_cache$"
_BUILTIN = r"^<built-in (function|method) _(cuda|accelerator|xpu)_?empty_?[cC]ache"
MIN_STEPS = 0.1  # share of the steady steps: one call in ten steps (catalogue 28)
MIN_STEPS_BURST = 0.5  # without a frame the burst has to be regular to be believed


def emptied(trace: Trace) -> tuple[Ints, Ints]:
    """Return the calls that empty the cache in the loop, and the frees they make; none if rare."""
    steps = trace.steps
    none = np.empty(0, np.int64)
    mallocs, frees = allocator_calls(trace)
    calls = _frames(trace) if trace.has_stacks else _bursts(trace, mallocs, frees)
    step_of = steps.of_host(calls)
    calls, step_of = calls[steps.in_steady(step_of)], step_of[steps.in_steady(step_of)]
    least = MIN_STEPS if trace.has_stacks else MIN_STEPS_BURST
    if steps.n_steady < 2 or len(calls) < 2 or steps.share_of_steps(step_of) < least:
        return none, none
    if not trace.has_stacks:
        return calls, calls
    emptied = trace.mask_of(calls)
    freed = np.flatnonzero(frees)
    inner = trace.frames.at(trace.lane[freed], trace.start_ns[freed])
    return calls, freed[np.append(trace.frames.under(emptied) | emptied, False)[inner]]


def find(trace: Trace) -> Claims:
    """Yield one claim over the calls, what they free and what is allocated again."""
    steps = trace.steps
    calls, freed = emptied(trace)
    if not len(calls):
        return
    again = np.flatnonzero(allocator_calls(trace)[0])
    again = again[steps.in_steady(steps.of_host(again))]
    host = distinct(np.concatenate([freed, again]))
    spans, share = idle_behind(trace, host)
    host_ns = int(trace.dur_ns[host].sum())
    n_freed = int(steps.in_steady(steps.of_host(freed)).sum())
    share_of_steps = steps.share_of_steps(steps.of_host(calls))
    evidence: dict[str, float | str] = {
        "host_ms_per_step": ms(host_ns / steps.n_steady),
        "share_of_steady_steps": round(share_of_steps, 6),
        "n_frees_per_step": round(n_freed / steps.n_steady, 2),
        "n_mallocs_per_step": round(len(again) / steps.n_steady, 2),
    }
    what = "the allocator's cache goes back to the device"
    if trace.has_stacks:
        what = "empty_cache() runs"
        evidence["n_calls_per_step"] = round(len(calls) / steps.n_steady, 2)
    evidence["seen_by"] = "Python frame" if trace.has_stacks else "burst of frees outside operators"
    yield host_claim(
        trace,
        f"{what} in {format_share(share_of_steps)} of the steady steps:"
        f" {format_count(n_freed / steps.n_steady, 'free')} and the"
        f" {format_count(len(again) / steps.n_steady, 'allocation')} that follow take"
        f" {format_ns(host_ns / steps.n_steady)} of host time {steps.per}",
        distinct(np.concatenate([calls, host])),
        spans,
        certainty="certain" if trace.has_stacks else "likely",
        gain=share,
        gain_high=share,
        anchor=int(calls[0]),
        method="device idle before the launches that these calls delayed, by at most their time",
        evidence=evidence,
        edits=(Edit("drop", host),),
    )


def _frames(trace: Trace) -> Ints:
    frame, builtin = trace.matching(_FRAME, Kind.PYTHON), trace.matching(_BUILTIN, Kind.PYTHON)
    return outside_capture(trace, np.flatnonzero(frame | (builtin & ~trace.frames.under(frame))))


def _bursts(trace: Trace, mallocs: Mask, frees: Mask) -> Ints:
    steps = trace.steps
    none = np.empty(0, np.int64)
    freed = outside_capture(trace, np.flatnonzero(frees))
    freed = freed[steps.of_host(freed) >= 0]
    if not len(freed):
        return none
    again = steps.of_host(np.flatnonzero(mallocs))
    if steps.share_of_steps(again) < MIN_STEPS_BURST:
        return none
    outside = trace.tree.nearest(freed, trace.kind == Kind.OP) < 0
    # frees that tensors cause one by one have launches or mallocs between them
    launched = np.sort(trace.start_ns[trace.links.launches | mallocs])
    burst = np.searchsorted(launched, trace.start_ns[freed])
    step_of = steps.of_host(freed)
    keep = np.zeros(len(freed), dtype=bool)
    for step in distinct(step_of).tolist():
        mine = step_of == step
        keep[mine] = mine.sum() >= 2 and outside[mine].all() and len(distinct(burst[mine])) == 1
    return freed[keep]
