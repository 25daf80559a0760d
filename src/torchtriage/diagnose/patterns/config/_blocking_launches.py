"""Launches that return only when their kernel has finished."""

import numpy as np

from torchtriage.core.units import format_share, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Kind, Trace

_FIX_BLOCKING = Fix(
    text="Unset the variable that makes launches block.",
    code="""# in the environment, or before torch is imported; on AMD also AMD_SERIALIZE_KERNEL,
# AMD_SERIALIZE_COPY and HIP_LAUNCH_BLOCKING
os.environ.pop("CUDA_LAUNCH_BLOCKING", None)""",
    link="https://docs.pytorch.org/docs/stable/cuda_environment_variables.html",
)
MIN_FINISHED = 0.9  # at most 1.5 % in 36 normal recordings (catalogue 44)
MIN_KERNELS = 20


def claim_blocking(trace: Trace) -> Claims:
    """Yield a claim when nearly all kernels have finished as their launch returns."""
    device = trace.devices[0]
    rows = device.rows[(trace.kind[device.rows] == Kind.KERNEL)]
    call = trace.links.call[rows]
    # a graph launch is one call for many kernels
    rows = rows[(call >= 0) & (trace.links.n_enqueued[call] == 1)]
    if len(rows) < MIN_KERNELS:
        return
    # a clock that is ahead lets every kernel end too early
    finished = trace.end_ns[rows] + device.early_ns <= trace.end_ns[trace.links.call[rows]]
    share = float(finished.mean())
    if share < MIN_FINISHED:
        return
    idle_ns = max(trace.steps.judged_ns(device.host_late), 1)
    busy_ns = trace.steps.judged_ns(device.busy)
    yield host_claim(
        trace,
        f"{format_share(share)} of {len(rows):,} kernels have finished when their launch call returns: launches block",
        rows,
        device.host_late,
        certainty="certain",
        # host and device side by side take as long as the longer of the two
        gain_low=min(busy_ns, idle_ns / trace.origin.inflation) / idle_ns,
        gain_high=min(busy_ns / idle_ns, 1.0),
        basis="modelled",
        method="host-late idle time, as far as device work can hide the host",
        evidence={
            "finished_at_return_share_of_kernels": round(share, 6),
            "n_kernels": len(rows),
            "gpu_idle_ms_per_step": ms(idle_ns / trace.steps.n_steady),
            "gpu_busy_ms_per_step": ms(busy_ns / trace.steps.n_steady),
            "mode": "blocking launches",
        },
        fix=_FIX_BLOCKING,
        always=True,
        edits=(Edit("unblock", trace.links.call[rows].astype(np.int64)),),
    )
