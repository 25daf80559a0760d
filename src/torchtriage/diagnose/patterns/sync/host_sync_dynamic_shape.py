"""Operators whose result size depends on the data make the host wait for it.

Looks like: a waiting call inside ``aten::nonzero`` (boolean masks, one-argument ``where``), ``aten::masked_select``,
    ``aten::_unique2``, ``aten::bincount`` or ``aten::repeat_interleave``, in at least half of the steps, or three
    times in a recording without steps.
Slow because: memory for the result cannot be allocated before the device has counted; the host reads the count back,
    and the queue runs dry.
Cost: device idle time before the next work launched after each wait, at most as long as the host waited; low is
    divided by the profiler's inflation. Waits hidden by GPU work are free, and the operator's own kernels are not
    counted: its replacement has some too. Until the next wait the device also idles for the lead that the host lost:
    in full at the high end and half at the low end, where it is at least 5 % of the time waited.
Fix: keep the shape fixed: ``masked_fill``, ``torch.where(mask, a, b)``, a product with the mask, or pass the size
    (``output_size=``, ``torch.nonzero_static``).
Leave it when: it is post-processing that needs the count (detection, non-maximum suppression), or the compacted tensor
    saves far more work than the wait takes.
Source: PyTorch docs, ``torch.nonzero``: "causes host-device synchronization" on CUDA.
"""

from torchtriage.diagnose.patterns._readbacks import claim_reads, shape_reads
from torchtriage.diagnose.patterns.base import Claims, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "SYN002", "Data-dependent shapes make the host wait", order=333, needs="device runtime ops"
)
FIX = Fix(
    text="Keep shapes fixed: mask values instead of selecting them, or pass the output size.",
    code="""loss = torch.where(y >= 0, loss_per_item, 0).sum() / (y >= 0).sum()
# instead of: loss = loss_per_item[y >= 0].mean()
torch.repeat_interleave(x, repeats, output_size=n)
torch.nonzero_static(mask, size=n)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nonzero.html",
)


def find(trace: Trace) -> Claims:
    """Yield one claim for all waits for a result's size that starve the device."""
    yield from claim_reads(
        trace,
        *shape_reads(trace),
        message="the host needs the size of a result {times} ({ops}): it waits {wait}, and the GPU idles {idle}",
        what="waits",
        method="host-late idle time up to the next launched work, capped by the time in the wait",
        whole=False,
    )
