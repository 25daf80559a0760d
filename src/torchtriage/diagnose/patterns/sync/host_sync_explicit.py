"""The loop synchronises host and device explicitly.

Looks like: ``*DeviceSynchronize``, ``*StreamSynchronize`` or ``*EventSynchronize`` outside every operator and not part
    of a copy, in at least half of the steps, or three times in a recording without steps. Not counted: the profiler's
    own stop, event waits below 20 µs, everything up to the last CUDA graph capture, and waits for work that was not
    recorded.
Slow because: the host waits until the device is done; the next step is launched into an empty queue, and the device
    idles until it arrives.
Cost: device idle time before the next work launched after each sync, at most as long as the sync took; low is divided
    by the profiler's inflation. A sync with the next work already queued, or with nothing after it, is free. Until the
    next wait the device also idles for the lead that the host lost: in full at the high end and half at the low end,
    where it is at least 5 % of the time waited.
Fix: delete it. To time a step use CUDA events and read them later.
Leave it when: it is the one sync around a whole benchmark, or it hands a buffer to another library.
Source: PyTorch docs, CUDA semantics, "Asynchronous execution".
"""

import numpy as np

from torchtriage.diagnose.patterns._readbacks import claim_reads
from torchtriage.diagnose.patterns._recurrence import frame_around
from torchtriage.diagnose.patterns.base import Claims, Fix, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "SYN003", "Explicit synchronisation inside the loop", order=336, needs="device runtime")
FIX = Fix(
    text="Delete the synchronisation; time with events that are read once the work is done.",
    code="""start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); train_step(batch); end.record()
# later, outside the loop
end.synchronize(); print(start.elapsed_time(end))""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
)

SHORT_EVENT_NS = 20_000  # an event wait that costs less guards a prefetched input or a timer (DDP: < 10 us, measured)
_CAPTURE = r"StreamBeginCapture|StreamEndCapture"
_NOT_THE_LOOP = r"torch/profiler/|torch/cuda/graphs\.py\("


def find(trace: Trace) -> Claims:
    """Yield one claim for all explicit syncs that starve the device."""
    index = _explicit(trace)
    yield from claim_reads(
        trace,
        index,
        trace.waits.row[index],
        message="host and device are synchronised {times} ({ops}): the host waits {wait}, and the GPU idles {idle}",
        what="syncs",
        method="host-late idle time up to the next launched work, capped by the time in the sync",
        whole=False,
    )


def _explicit(trace: Trace) -> Ints:
    waits = trace.waits
    rows = waits.row
    pure = (waits.copy < 0) & (waits.sync_row == rows) & ~waits.profiler & ~waits.blind
    pure &= ~trace.matches(rows, "Memcpy")
    pure &= waits.op < 0
    pure &= ~(trace.matches(rows, "EventSynchronize") & (waits.wait_ns < SHORT_EVENT_NS))
    captures = np.flatnonzero(trace.matching(_CAPTURE, Kind.RUNTIME))
    if len(captures):
        pure &= waits.start_ns > trace.start_ns[captures].max()
    index = np.flatnonzero(pure)
    return index[frame_around(trace, rows[index], trace.matching(_NOT_THE_LOOP, Kind.PYTHON)) < 0]
