"""Operators compute on the host, and the device waits for them.

Looks like: the device is idle because the next launch is late, and the launching thread is meanwhile in operators that
    launch nothing and whose own time is more than dispatch (15 µs, or 8 median views), views and allocation left out;
    or for at least 1 ms at once in any operator that launches nothing, or in the own time of one that does, as in every
    step (without two steps to compare: in one that launches nothing and is never short). Together 5 % of the step.
Slow because: features, random numbers and other work on CPU tensors, operators dispatched through Python (tensor
    subclasses, fake tensors) and lists of hundreds of views take the host milliseconds, in which nothing is launched.
Cost: the device idle time in which these operators ran, and what lies between them where they are most of a stretch;
    low counts half of the operators alone, what only dispatches divided by the profiler's inflation.
Fix: compute it on the device, for the whole batch, once instead of in every step, or in another thread than the
    launching one; ``broadcast_buffers=False`` where DDP joins its buffers.
Leave it when: the work has to be done on the host and its result is needed for this very step.
Source: PyTorch performance tuning guide, "Create tensors directly on the target device"; measured: ``torch.randn`` on
    the CPU 10 of 12 ms of a step, a split dispatched through Python 21 of 43 ms, log-mel features of 32 utterances, in
    400 operators of 20-460 µs, 50 of 80 ms.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_gaps import MIN_SHARE
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._late_launches import computing_operators, idle_during, late_gaps, slow_operators
from torchtriage.diagnose.patterns._recurrence import frame_around, recurs
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Pattern, Spans, Trace, given, longest_names

PATTERN = Pattern.of(
    __name__, "HST055", "Operators compute on the host while the GPU waits", order=372, needs="device runtime ops"
)

FIX = Fix(
    text="Compute it on the device, move it out of the loop, or prepare it while the device works.",
    code="""indices = indices.to(device)  # once
parts = indices.view(n, -1)  # one tensor instead of thousands of views""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
COMPUTED = Fix(
    text="Copy its inputs to the device and compute there, for the whole batch at once; or prepare it in"
    " the loader's workers.",
    code="""waves = torch.stack(batch).to(device, non_blocking=True)
features = log_mel(waves)  # window and filters on the device, too""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
CREATED = Fix(
    text="Create the tensor on the device instead of on the CPU.",
    code="noise = torch.randn(size, device=device)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#create-tensors-directly-on-the-target-device",
)
PINNED = Fix(
    text="Pin the batches where they are made, or copy them into a buffer that is pinned once: pinning memory takes"
    " longer than the copy it speeds up.",
    code="loader = DataLoader(dataset, batch_size=..., num_workers=8, pin_memory=True)",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)
BUFFERS = Fix(
    text="DDP sends the buffers of rank 0 to all ranks in each forward pass: switch that off where each rank may keep"
    " its own, such as statistics of batch norm.",
    code="model = DistributedDataParallel(model, broadcast_buffers=False)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)
_COALESCES = r"^aten::(un)?flatten_dense_tensors$"
_DDP = r"^DistributedDataParallel\.forward$"
_CREATES = r"^aten::(normal|uniform|random|bernoulli|exponential|randn?|randint|randperm|fill|arange|zeros|ones)_?$"


def find(trace: Trace) -> Claims:
    """Yield one claim for the operators that hold the host in every step."""
    steps, gaps, inflation = trace.steps, late_gaps(trace), trace.origin.inflation
    computing, slow = computing_operators(trace), slow_operators(trace).row
    if not recurs(trace, computing):
        computing = computing[:0]
    computed = intervals.intersect(trace.time_of(computing), gaps)
    dispatched = intervals.subtract(idle_during(trace, slow), computed)
    held = intervals.union(np.concatenate([computed, dispatched]))
    idle_ns = intervals.length(held)
    if not idle_ns or idle_ns < MIN_SHARE * intervals.length(steps.judged):
        return
    between = _between(held, gaps)
    rows = distinct(np.concatenate([computing, slow]))
    rows = rows[~trace.tree.under(trace.mask_of(rows))[rows]]
    took = intervals.covered(trace.spans_of(rows), held)
    rows, took = rows[took > 0], took[took > 0]
    names = longest_names(trace, rows)
    worst = _worst(trace, rows, took)
    n_ops = len(rows) / steps.n_steady
    yield host_claim(
        trace,
        f"the GPU stands idle for {format_ns(idle_ns / steps.n_steady)} of {format_ns(steps.wall_ns)} {steps.per} while"
        f" the host computes, in {format_count(n_ops, 'operator')}: {', '.join(names)}",
        rows,
        np.concatenate([computed, dispatched, between]),
        gain_low=np.repeat([0.5, 0.5 / inflation, 0.0], [len(computed), len(dispatched), len(between)]),
        method="idle time of the device while these operators ran on the host (low: half of it), and between them",
        evidence={
            "gpu_idle_ms_per_step": ms(idle_ns / steps.n_steady),
            "share_of_step": round(idle_ns / intervals.length(steps.judged), 6),
            **given(gpu_idle_between_ms_per_step=ms(intervals.length(between) / steps.n_steady)),
            "n_ops_per_step": round(n_ops, 2),
            "ops_gpu_idle_ms_per_step": {
                name: ms(int(took[trace.named(name)[rows]].sum()) / steps.n_steady) for name in names
            },
        },
        anchor=worst,
        fix=_fix(trace, worst, bool(np.isin(worst, computing))),
        edits=(Edit("threads", factor=0.5, best=0.0, spans=held), Edit("threads", factor=1.0, best=0.0, spans=between)),
    )


def _between(held: Spans, gaps: Spans) -> Spans:
    """Return the time between operators in one gap of the device, where they are most of the stretch."""
    gap = intervals.owner(gaps, held[:, 0])
    first = np.flatnonzero(np.diff(gap, prepend=-1))
    last = np.append(first[1:], len(held)) - 1
    stretch = intervals.spans(held[first, 0], held[last, 1])
    mostly = 2 * intervals.covered(stretch, held) >= stretch[:, 1] - stretch[:, 0]
    return intervals.subtract(stretch[mostly], held)


def _worst(trace: Trace, rows: Ints, took_ns: Ints) -> int:
    """Return the operator that holds the device longest, of those of the user's function in which most of it is."""
    frames = frame_around(trace, rows, trace.where_name(is_user_frame))
    _, site = np.unique(np.where(frames >= 0, trace.name[frames], -1), return_inverse=True)
    mine = np.flatnonzero(site == np.argmax(np.bincount(site, weights=took_ns)))
    return int(rows[mine[np.argmax(took_ns[mine])]])


def _fix(trace: Trace, row: int, computes: bool) -> Fix:
    if trace.matching(_CREATES)[row]:
        return CREATED
    if trace.named("aten::pin_memory")[row]:
        return PINNED
    if computes:
        return COMPUTED
    # outside the backward pass DDP joins nothing but its buffers
    return BUFFERS if (trace.matching(_COALESCES) & trace.tree.under(trace.matching(_DDP)))[row] else FIX
