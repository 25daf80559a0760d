"""The caching allocator calls the device's own allocator in steady steps.

Looks like: ``cudaMalloc``, ``cudaFree``, ``cudaHostAlloc``, their HIP equivalents, or ``cuMemMap``/``Unmap`` in at
    least 30 % of the steady steps or for at least 1 % of their time. Several frees between two mallocs inside one op
    are a *retry*: the allocator ran out of memory and emptied its cache.
Slow because: each call takes the host 0.1-10 ms, and a free first waits for the device to finish.
Cost: bounded by the device idle time before each launch that such calls delayed; the low end is divided by the
    profiler's inflation.
Fix: use expandable segments, bucket or pad shapes that vary, or reduce the batch slightly; keep the caching allocator
    on.
Leave it when: it happens only in the first steps or during graph capture.
Source: PyTorch documentation, "CUDA semantics", memory management and ``PYTORCH_ALLOC_CONF``.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.allocator_calls import allocator_calls, idle_behind, outside_capture
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.alloc.empty_cache_in_loop import emptied
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(
    __name__,
    "MEM027",
    "The caching allocator goes to the device in steady steps",
    order=320,
    needs="device runtime steps",
)
FIX = Fix(
    text="Let segments grow in place, and bound the variation of shapes.",
    code="""# in the environment, or before torch is imported;
# before torch 2.9: PYTORCH_CUDA_ALLOC_CONF
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True\"""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
)
_FIX_OFF = Fix(
    text="The caching allocator seems to be switched off: unset the variable that does that.",
    code="""# in the environment, or before torch is imported
os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
os.environ.pop("PYTORCH_NO_HIP_MEMORY_CACHING", None)""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)

MIN_STEPS = 0.3  # share of steady steps with such a call (catalogue 27)
MIN_TIME = 0.01  # share of the steady steps' time inside such calls, when fewer steps have them
UNCACHED = 50  # mallocs and frees per step that no cache would let through: one step measured 292 and 272


def find(trace: Trace) -> Claims:
    """Yield one claim over all allocator calls of the steady steps."""
    steps = trace.steps
    if steps.n_steady < 2:
        return  # first use and churn look alike in a single step
    mallocs, frees = allocator_calls(trace)
    rows = outside_capture(trace, np.flatnonzero(mallocs | frees))
    rows = rows[steps.in_steady(steps.of_host(rows))]
    _, given_back = emptied(trace)
    rows = rows[~np.isin(rows, given_back)]
    if not len(rows) or (len(given_back) and not frees[rows].any()):
        return  # an emptied cache has to be filled again: MEM028 has both
    step_of = steps.of_host(rows)
    host_ns = int(trace.dur_ns[rows].sum())
    often = steps.share_of_steps(step_of) >= MIN_STEPS
    costly = host_ns >= MIN_TIME * steps.wall_ns * steps.n_steady and len(distinct(step_of)) > 1
    if not (often or costly):
        return
    n_mallocs = steps.median_count(step_of[mallocs[rows]])
    n_frees = steps.median_count(step_of[frees[rows]])
    uncached = min(n_mallocs, n_frees) >= UNCACHED
    # without a cache every large op mallocs and frees: that is no retry
    n_retries = 0 if uncached else _n_retries(trace, rows, mallocs, frees)
    spans, share = idle_behind(trace, rows)
    evidence = {
        "host_ms_per_step": ms(host_ns / steps.n_steady),
        "n_mallocs_per_step": n_mallocs,
        "n_frees_per_step": n_frees,
        "share_of_steady_steps": round(steps.share_of_steps(step_of), 6),
        "n_retries_per_step": round(n_retries / steps.n_steady, 2),
        "caching_allocator_off": uncached,
    }
    on_device = trace.memory.device_type != 0
    if on_device.any():
        evidence["peak_allocated_bytes"] = int(trace.memory.allocated_bytes[on_device].max())
        evidence["peak_reserved_bytes"] = int(trace.memory.reserved_bytes[on_device].max())
    if trace.origin.memory_bytes:
        evidence["device_memory_bytes"] = trace.origin.memory_bytes
    yield host_claim(
        trace,
        f"{format_count(n_mallocs, 'allocation')} and {format_count(n_frees, 'free')} {steps.per} go to the device and"
        f" take {format_ns(host_ns / steps.n_steady)} of host time",
        rows,
        spans,
        gain=share,
        gain_high=share,
        anchor=trace.longest(rows),
        method="device idle before launches that allocator calls delayed, by at most their time",
        evidence=evidence,
        fix=_FIX_OFF if uncached else FIX,
        edits=(Edit("drop", rows),),
    )


def _n_retries(trace: Trace, rows: Ints, mallocs: Mask, frees: Mask) -> int:
    op = trace.tree.nearest(rows, trace.kind == Kind.OP)
    rows, op = rows[op >= 0], op[op >= 0]
    n_mallocs, n_frees = (np.bincount(op, weights=calls[rows]) for calls in (mallocs, frees))
    return int(((n_mallocs >= 2) & (n_frees >= 2)).sum())
