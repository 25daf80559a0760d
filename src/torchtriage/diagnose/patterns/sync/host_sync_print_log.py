"""Tensors are printed or logged in every step.

Looks like: readbacks from the GPU under ``print``, ``logging``, ``torch/_tensor_str.py``, TensorBoard, wandb, mlflow
    or ``tqdm.set_postfix``, in at least half of the steps. Without Python stacks: a run of operators with
    ``aten::isfinite`` and ``aten::masked_select``, as ``str(tensor)`` produces.
Slow because: text needs the value: each readback drains the queue, and the host formats and writes while the device
    waits for the next launch.
Cost: device idle time before the next work launched after the logging frame, at most as long as the host spent in it;
    low counts the waiting calls only, divided by the profiler's inflation. Until the next wait the device also idles
    for the lead that the host lost: in full at the high end and half at the low end, where it is at least 5 % of the
    time waited.
Fix: log every N steps, from detached tensors that are summed on the device.
Leave it when: steps take seconds, or only a few of them log: logging at intervals is the fix itself.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from torchtriage.diagnose.patterns._readbacks import claim_reads, log_reads
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "SYN004", "Tensors printed or logged in every step", order=334, needs="device runtime ops"
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


def find(trace: Trace) -> Claims:
    """Yield one claim for all readbacks made to print or log."""
    yield from claim_reads(
        trace,
        *log_reads(trace),
        message="GPU values are read to print or log them {times}: the host waits {wait}, and the GPU idles {idle}",
        what="reads",
        method="host-late idle time up to the next launched work, capped by the logging frames",
    )
