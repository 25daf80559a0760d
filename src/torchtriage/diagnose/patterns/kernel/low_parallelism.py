"""Kernels are too small to fill the device.

Looks like: kernels of at least 10 µs with at most half as many blocks as the device has multiprocessors, nothing else
    running meanwhile and the next kernel already queued; together at least 20 % of the kernel time. Reductions, batch
    norms (a block per channel, whatever the batch), optimizers, communication and kernels without a recorded grid do
    not count.
Slow because: a block runs on one multiprocessor, so more than half of the device is idle while such a kernel runs, and
    a larger batch would take no longer.
Cost: at most the part of the kernels' time that a full device would not need. The gain is per sample, from doing more
    in a step: a step of the same size may not get shorter.
Fix: a larger batch; or several requests at once on separate streams; for products, kernels that split the inner
    dimension.
Leave it when: latency matters and not throughput, or memory is full.
Source: CUDA C++ best practices guide, "Thread and Block Heuristics": more blocks than multiprocessors.
"""

import re

import numpy as np

from torchtriage.core.names import short_name
from torchtriage.core.trace.device import Device
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_at
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Kind, Pattern, Trace, longest_names
from torchtriage.diagnose.patterns.kernel._occupancy import alone, blocks, multiprocessors

PATTERN = Pattern.of(__name__, "KRN024", "Kernels are too small to fill the device", order=560, needs="device size")
FIX = Fix(
    text="Give every step more work: a larger batch, or several small ones merged.",
    code="loader = DataLoader(dataset, batch_size=4 * batch_size)  # and scale the learning rate",
    link="https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data",
)

MIN_NS = 10_000  # shorter kernels are bound by their launch (catalogue 24)
MIN_SHARE = 0.20  # of the kernel time (catalogue 24)
MAX_FILLED = 0.5
"""Blocks per multiprocessor. Above, little is left to win: well chosen product kernels fill 64 to 72 of 80-108
multiprocessors in healthy recordings."""
# in lower case, as names of kernels are long: without regard to case takes several times as long
_GRID_OF_ITS_OWN = re.compile(
    r"reduce_kernel|batch_?norm|bn(?<!\wbn)_(?:fw|bw)|multi_tensor|catarray|scan|sort|topk|nccl"
)


def find(trace: Trace) -> Claims:
    """Yield one claim over all small kernels of the main device."""
    device = trace.devices[0]
    units = multiprocessors(device)
    if not units:
        return
    at, filled = _small(trace, device, units)
    work = work_at(trace, at)
    if work is None or work.share < MIN_SHARE:
        return
    dur = trace.dur_ns[work.rows].astype(np.float64)
    mean_filled = float((filled * dur).sum() / dur.sum())
    yield work.claim(
        f"kernels that fill {format_share(mean_filled)} of {units} multiprocessors take"
        f" {format_ns(work.per_step_ns)} {trace.steps.per}, {format_share(work.share)} of the kernel time: a larger"
        " batch would take no longer",
        "small_kernel",
        certainty="hint",
        low=0.0,
        high=1 - filled,
        method="the kernels' time without what a full device would need for it; won per sample",
        evidence={
            "n_kernels_per_step": work.n_per_step,
            "mean_filled_share_of_multiprocessors": round(mean_filled, 6),
            "n_multiprocessors": units,
            "top_kernels": list(map(short_name, longest_names(trace, work.rows))),
        },
        anchor=trace.longest(work.rows),
    )


def _small(trace: Trace, device: Device, units: int) -> tuple[Ints, Floats]:
    rows = device.rows
    fits = (trace.kind[rows] == Kind.KERNEL) & ~device.comm & (trace.dur_ns[rows] >= MIN_NS)
    fits &= device.followed_in_time & alone(device)
    at = np.flatnonzero(fits)
    at = at[~trace.rows_where(rows[at], lambda name: _GRID_OF_ITS_OWN.search(name.lower()))]
    filled = blocks(trace, rows[at]) / units
    small = (filled > 0) & (filled <= MAX_FILLED)
    return at[small], filled[small]
