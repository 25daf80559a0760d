"""Tensors are printed or logged in every step.

Looks like: readbacks from the GPU under ``print``, ``logging``, ``torch/_tensor_str.py``,
    TensorBoard, wandb, mlflow or ``tqdm.set_postfix``, in at least half of the steps. Without
    Python stacks: a run of operators with ``aten::isfinite`` and ``aten::masked_select``, which is
    what ``str(tensor)`` does.
Slow because: text needs the value: each one drains the queue, and the host formats and writes
    while the device waits for the next launch.
Cost: device idle time before the next work launched after the logging frame, at most as much as
    the host spent in it; low counts the waiting calls only, divided by the profiler's inflation.
    Up to the next wait the device idles for the lead that the host has lost: that counts in full
    at the high end and half at the low end, where it is at least 5 % of the time waited.
Fix: log every N steps, from detached tensors that were added up on the device.
Leave it when: steps take seconds, or it happens in few of them: an interval is what this asks for.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.finding import Fix
from torchtriage.patterns._reads import claim_reads, log_reads
from torchtriage.patterns.base import Claim, Pattern
from torchtriage.trace import Trace

PATTERN = Pattern(
    code="SYN004",
    name="host-sync-print-log",
    family="sync",
    title="Tensors printed or logged in every step",
    order=334,
    needs=frozenset({"device", "runtime", "ops"}),
)

FIX = Fix(
    text="Log every N steps, from values added up on the device.",
    code="""running += loss.detach()
if step % 50 == 0:
    logger.info("loss %.4f", running.item() / 50)
    running.zero_()""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#avoid-unnecessary-cpu-gpu-synchronization",
)


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim for all readbacks made to print or log."""
    index, holder = log_reads(trace)
    claim = claim_reads(
        trace,
        index,
        holder,
        message="GPU values are read to print or log them {times}: the host waits {wait}, and the"
        " GPU idles {idle}",
        what="reads",
        method="host-late idle time up to the next launched work, capped by the logging frames",
    )
    if claim is not None:
        yield claim
