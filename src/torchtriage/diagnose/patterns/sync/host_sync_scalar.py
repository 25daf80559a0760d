"""GPU scalars are read on the host inside a step.

Looks like: ``aten::_local_scalar_dense`` (under ``aten::item``, ``aten::is_nonzero``, ``aten::equal``,
    ``aten::_linalg_check_errors`` or ``aten::one_hot``) that encloses a call which waits for the device:
    ``cudaMemcpyAsync`` with its stream sync, or ``hipMemcpyWithStream``; or a copy of at most 16 bytes under
    ``aten::to`` or ``aten::copy_`` that takes at least 20 µs longer than its transfer (``sizes.cpu()``). In at least
    half of the steps, or three times in a recording without steps. The operator alone proves nothing: on a CPU tensor
    it is free (945 of 945 in one training trace).
Slow because: each read drains the queue. The host stops running ahead, and the device idles until the next launch
    arrives.
Cost: device idle time before the next work launched after each read, at most as long as the host spent in it; low
    counts the waiting call only, divided by the profiler's inflation, high the whole operator. A read hidden by GPU
    work is free and not reported. Until the next wait the device also idles for the lead that the host lost: in full
    at the high end and half at the low end, where it is at least 5 % of the time waited.
Fix: keep the value on the device; sum ``loss.detach()`` and read it every N steps; use ``torch.where`` instead of
    ``if``.
Leave it when: the next step depends on the value (a line search, a stopping rule, a sampled token). The one read per
    step with which a gradient scaler decides is never counted.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from torchtriage.core import fixes
from torchtriage.diagnose.patterns._readbacks import claim_reads, scalar_reads
from torchtriage.diagnose.patterns.base import Claims, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "SYN001", "GPU scalars read on the host inside a step", order=335, needs="device runtime ops"
)
FIX = fixes.READ_NOW_AND_THEN


def find(trace: Trace) -> Claims:
    """Yield one claim for all scalar readbacks that starve the device."""
    yield from claim_reads(
        trace,
        *scalar_reads(trace),
        message="GPU scalars are read on the host {times} ({ops}): the host waits {wait}, and the GPU idles {idle}",
        what="reads",
        method="host-late idle time up to the next launched work, capped by the time in the read",
    )
