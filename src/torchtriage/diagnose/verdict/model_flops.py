"""MFU: what the steady steps multiply, over what the device could multiply in their time.

Every operation counts that the device carries out, a recomputed one as often as it runs (some call that HFU); what a
causal mask hides does not count. Each is held against the dense peak of the type it is computed in.
"""

from __future__ import annotations

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import Codes
from torchtriage.core.trace.roofline import Roofline, multiplying, unchecked
from torchtriage.core.units import format_share
from torchtriage.diagnose.verdict.result import ModelFlops, PeakShare

MOSTLY = 0.9
"""Share of the products' time whose operations must be known."""


def model_flops(device: Device, category: Codes, line: Roofline | None) -> ModelFlops | None:
    """Return the MFU of a device's steady steps, or why it is not checked; None where nothing multiplies.

    ``line`` : the roofs of the device, None where they are not known.
    """
    trace, steps = device.trace, device.trace.steps
    begins = intervals.owner(steps.judged, trace.start_ns[device.rows]) >= 0
    mask = begins & multiplying(device, category)
    if not mask.any():
        return None
    if line is None:
        return ModelFlops(unchecked=unchecked(device))
    if not len(steps):
        return ModelFlops(unchecked="the recording has no marks of steps")
    flop, rate = line.flop, line.rate
    dur = trace.dur_ns[device.rows].astype(np.float64)
    # above its peak nothing runs: the operations were fewer (Winograd), or the type another
    known = mask & (rate > 0) & (flop <= rate * (dur + trace.resolution_ns))
    share = float(dur[known].sum() / max(dur[mask].sum(), 1.0))
    if share < MOSTLY:
        what = f"shapes and types are known for {format_share(share)} of the time of products and attention"
        return ModelFlops(unchecked=f"{what}, {format_share(MOSTLY)} are needed")
    at_peak_ns, total = float((flop[known] / rate[known]).sum()), float(flop[known].sum())
    wall_ns = intervals.length(steps.judged)
    if at_peak_ns > wall_ns:
        return ModelFlops(unchecked="at the peak, the operations would take longer than the steps do")
    peaks = [(each / 1e3, float(flop[known & (rate == each)].sum()) / total) for each in distinct(rate[known]).tolist()]
    return ModelFlops(
        share=round(at_peak_ns / wall_ns, 6),
        flop=round(total / steps.n_steady),
        step_ns=round(wall_ns / steps.n_steady),
        peaks=tuple(PeakShare(round(tflops, 3), round(part, 6)) for tflops, part in reversed(peaks)),
    )
