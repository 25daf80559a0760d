"""An operator computes on the host, and the device waits for it.

Looks like: gaps of at least 1 ms in which the device is idle because the next launch is late, and in which the
    launching thread was for at least 1 ms in an operator that launches nothing, or in the own time of one that does, as
    in every step (without two steps to compare: in one that launches nothing and is never short); together 5 % of the
    step.
Slow because: random numbers and other work on CPU tensors, operators dispatched through Python (tensor subclasses, fake
    tensors) and lists of hundreds of views take the host milliseconds, in which nothing is launched.
Cost: the device idle time in which these operators ran; low counts half of it, divided by the profiler's inflation.
Fix: compute it on the device, once instead of in every step, or beside the launching thread;
    ``broadcast_buffers=False`` where DDP joins its buffers.
Leave it when: the work has to be done on the host and its result is needed for this very step.
Source: PyTorch performance tuning guide, "Create tensors directly on the target device"; measured: ``torch.randn`` on
    the CPU 10 of 12 ms of a step, a split dispatched through Python 21 of 43 ms.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_gaps import MIN_SHARE
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._late_launches import idle_during, slow_operators
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Pattern, Trace, longest_names

PATTERN = Pattern.of(
    __name__, "HST055", "An operator computes on the host while the GPU waits", order=372, needs="device runtime ops"
)

FIX = Fix(
    text="Compute it on the device, move it out of the loop, or prepare it while the device works.",
    code="""indices = indices.to(device)  # once
parts = indices.view(n, -1)  # one tensor instead of thousands of views""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
CREATED = Fix(
    text="Create the tensor on the device instead of on the CPU.",
    code="noise = torch.randn(size, device=device)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#create-tensors-directly-on-the-target-device",
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
    """Yield one claim for the operators that take the host long in every step."""
    steps, slow = trace.steps, slow_operators(trace)
    spans = idle_during(trace, slow.row)
    idle_ns = intervals.length(spans)
    if not idle_ns or idle_ns < MIN_SHARE * intervals.length(steps.judged):
        return
    names = longest_names(trace, slow.row)
    worst = int(slow.row[np.argmax(slow.idle_ns)])
    n_ops = len(slow.row) / steps.n_steady
    yield host_claim(
        trace,
        f"the GPU stands idle for {format_ns(idle_ns / steps.n_steady)} of {format_ns(steps.wall_ns)} {steps.per} while"
        f" the host is in {format_count(n_ops, 'long operator')}: {', '.join(names)}",
        slow.row,
        spans,
        gain=0.5,
        method="idle time of the device while these operators ran on the host",
        evidence={
            "gpu_idle_ms_per_step": ms(idle_ns / steps.n_steady),
            "share_of_step": round(idle_ns / intervals.length(steps.judged), 6),
            "n_ops_per_step": round(n_ops, 2),
            "ops_gpu_idle_ms_per_step": {
                name: ms(int(slow.idle_ns[trace.named(name)[slow.row]].sum()) / steps.n_steady) for name in names
            },
        },
        anchor=worst,
        fix=CREATED if trace.matching(_CREATES)[worst] else BUFFERS if _sends_buffers(trace, worst) else FIX,
        edits=(Edit("threads", factor=0.5, best=0.0, spans=spans),),
    )


def _sends_buffers(trace: Trace, row: int) -> bool:
    """Return whether DDP joins its buffers there: outside the backward pass it joins nothing else."""
    return bool((trace.matching(_COALESCES) & trace.tree.under(trace.matching(_DDP)))[row])
