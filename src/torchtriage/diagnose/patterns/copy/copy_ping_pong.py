"""A tensor leaves the GPU and returns within the step.

Looks like: a blocking copy to the host and, on the same thread, in the same step and within 100 ms, the next copy to
    the device of exactly as many bytes (4 KiB or more, so that the size is meaningful); in at least half of the steps,
    or three times in a recording without steps.
Slow because: the host drains the queue, computes on one core what the device could, and copies the result back while
    the device waits.
Cost: device idle time from the first copy to the next work launched after the second, at most as long as the host took
    in between, plus the exposed time of both copies; low counts the two waiting calls only, divided by the profiler's
    inflation, and the copies.
Fix: use the device's operator (``torch.*``, ``torchvision.transforms.v2``, ``torch.linalg``), or move the step into
    the input pipeline.
Leave it when: it is deliberate offloading (large, pinned, on a side stream), or the operator has no GPU
    implementation.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._readbacks import bulk_reads
from torchtriage.diagnose.patterns._recurrence import call_sites, recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace, given
from torchtriage.diagnose.patterns.copy._host_link import exposed

PATTERN = Pattern.of(__name__, "CPY009", "Tensors that leave the GPU and return", order=330, needs="device runtime ops")
FIX = Fix(
    text="Do on the device what is done on the host in between.",
    code="""x = x.clamp(0, 1)
# instead of: torch.from_numpy(np.clip(x.cpu().numpy(), 0, 1)).to(x.device)""",
    link="https://docs.pytorch.org/docs/stable/torch.html#math-operations",
)

MIN_BYTES = 4096  # equal sizes below are coincidence: indices, lengths, sizes
SURE_BYTES = 64 * 1024  # from here on one pair per step is enough to call it likely (catalogue 9)
MAX_APART_NS = 100_000_000  # what comes back later is another tensor


def find(trace: Trace) -> Claims:
    """Yield one claim for all pairs of a readback and the upload of its result."""
    waits, steps = trace.waits, trace.steps
    index, calls = _pairs(trace)
    rows = waits.row[index]
    if not len(index) or not recurs(trace, rows):
        return
    back = np.full(len(trace), -1, np.int64)
    back[waits.row] = np.arange(len(waits))
    end = waits.end_ns.copy()
    returned = back[calls]
    end[index] = np.where(returned >= 0, waits.end_ns[returned], trace.end_ns[calls])
    both = np.concatenate([index, returned[returned >= 0]])
    sure = waits.idle(both)
    whole, _, _ = waits.stake(index, waits.start_ns, end)
    more = intervals.subtract(intervals.union(whole), sure)
    copies = distinct(np.concatenate([waits.copy[index], trace.links.work_of(calls)]))
    transfer = exposed(trace, copies)
    spans = np.concatenate([sure, more, transfer])
    if not len(spans):
        return
    low = np.zeros(len(spans))
    low[: len(sure)] = 1 / trace.origin.inflation
    low[len(spans) - len(transfer) :] = 1.0
    size = waits.copy_bytes[index]
    pick = steps.in_steady(steps.of_host(rows))
    apart_ns = int((end[index] - waits.start_ns[index])[pick].sum()) / steps.n_steady
    count = steps.median_count(steps.of_host(rows))
    times = "once" if count == 1 else format_count(count, "time")
    yield Claim(
        message=f"tensors are copied to the host and back in the same size {times} {steps.per}: the host spends"
        f" {format_ns(apart_ns)} on the way",
        certainty="likely" if size.max() >= SURE_BYTES and steps.n_steady >= 2 else "hint",
        rows=np.concatenate([rows, calls, copies]),
        spans=spans,
        gain_low=low,
        time_class="copy",
        method="host-late idle time up to the next launched work, capped by the round trip; exposed transfer time",
        evidence={
            "n_round_trips_per_step": count,
            "round_trip_ms_per_step": ms(apart_ns),
            "median_tensor_bytes": int(np.median(size)),
            **given(call_sites=call_sites(trace, rows)),
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(rows[np.argmax(end[index] - waits.start_ns[index])]),
        edits=(Edit("drop", rows), Edit("drop", calls), Edit("drop", copies)),
    )


def _pairs(trace: Trace) -> tuple[Ints, Ints]:
    """Return waits (readbacks) and, for each, the call that brings as many bytes back."""
    waits, links = trace.waits, trace.links
    down = bulk_reads(trace)[0]
    down = down[waits.copy_bytes[down] >= MIN_BYTES]
    copies = np.flatnonzero((trace.kind == Kind.MEMCPY) & (links.call >= 0))
    copies = copies[trace.matching("HtoD")[copies]]
    found: list[tuple[Ints, Ints]] = []
    sizes = distinct(waits.copy_bytes[down])
    for size in sizes[np.isin(sizes, distinct(trace.value[copies]))].tolist():
        left = down[waits.copy_bytes[down] == size]
        right = links.call[copies[trace.value[copies] == size]].astype(np.int64)
        right = right[np.argsort(trace.start_ns[right], kind="stable")]
        latest = np.searchsorted(waits.end_ns[left], trace.start_ns[right], side="right") - 1
        # the first to come back after each readback; in a queue of them, the last one left
        latest, first = np.unique(latest, return_index=True)
        first, latest = first[latest >= 0], latest[latest >= 0]
        found.append((left[latest], right[first]))
    if not found:
        return down[:0], down[:0]
    index = np.concatenate([pair[0] for pair in found])
    calls = np.concatenate([pair[1] for pair in found])
    rows = waits.row[index]
    keep = (trace.lane[rows] == trace.lane[calls]) & (trace.start_ns[calls] - waits.end_ns[index] <= MAX_APART_NS)
    keep &= trace.steps.of_host(rows) == trace.steps.of_host(calls)
    return index[keep], calls[keep]
