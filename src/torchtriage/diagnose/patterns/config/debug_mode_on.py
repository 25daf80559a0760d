"""A debug mode is on: anomaly detection, or blocking launches.

Looks like: (a) ``aten::isnan`` or ``aten::_is_any_true`` inside at least half of the backward nodes that return
    gradients: anomaly detection checks every one of them; (b) at least 90 % of the kernels have finished when their
    launch call returns, against at most 1.5 % in normal recordings: ``CUDA_LAUNCH_BLOCKING=1`` or
    ``AMD_SERIALIZE_KERNEL``.
Slow because: (a) every node gets two extra kernels and a readback, every forward operator a stack trace; (b) host and
    device take turns instead of working in parallel.
Cost: (a) bounded by the host time of the checks and of the stack traces, which frames show; without frames the high
    end counts 0.3 ms of the forward operators per node (measured); (b) modelled: the device's host-late idle time, as
    far as device work can hide the host.
Fix: switch the mode off outside of debugging.
Leave it when: you are hunting a NaN or an illegal memory access right now.
Source: PyTorch documentation, ``torch.autograd.set_detect_anomaly`` and "CUDA Environment Variables".
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "CFG044", "A debug mode is switched on", order=200, suppresses=("SYN001", "SYN003", "LCH014", "HST020")
)
FIX = Fix(
    text="Switch anomaly detection off once the NaN is found.",
    code="torch.autograd.set_detect_anomaly(False)",
    link="https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.set_detect_anomaly",
)

_NO_GRADIENT = r"AccumulateGrad$"
_CHECK = ("aten::isnan", "aten::_is_any_true")
_CHECKING = (*_CHECK, "aten::any", "aten::is_nonzero", "aten::item")
MIN_NODES = 4
MIN_CHECKED = 0.5  # nodes that hand on no gradient are not checked; a user's own check is one per step
_TRACES = r"(^|/)traceback\.py\(\d+\): format_stack$"
TRACE_NS = 300_000  # one stack trace of a forward operator, ten frames deep: 0.14 ms, under the profiler 0.31 ms
LEAST_TRACE = 0.25  # of that at the low end: half of the shorter time
_FIX_BLOCKING = Fix(
    text="Unset the variable that makes launches block.",
    code="""# in the environment, or before torch is imported; on AMD also AMD_SERIALIZE_KERNEL,
# AMD_SERIALIZE_COPY and HIP_LAUNCH_BLOCKING
os.environ.pop("CUDA_LAUNCH_BLOCKING", None)""",
    link="https://docs.pytorch.org/docs/stable/cuda_environment_variables.html",
)
MIN_FINISHED = 0.9  # at most 1.5 % in 36 normal recordings (catalogue 44)
MIN_KERNELS = 20


def find(trace: Trace) -> Claims:
    """Yield at most one claim per mode."""
    yield from _anomaly(trace)
    if trace.devices:
        yield from _blocking(trace)


def _anomaly(trace: Trace) -> Claims:
    kinds = Kind.OP, Kind.ANNOTATION
    ops = trace.is_kind(*kinds)
    node = trace.matching(f"^{BACKWARD_NODE}", *kinds) & ~trace.matching(_NO_GRADIENT, *kinds)
    check = ops & trace.named(*_CHECK)
    n_nodes = int(node.sum())
    if n_nodes < MIN_NODES or not check.any():
        return
    checks = np.flatnonzero(check & trace.tree.under(node))
    n_checked = len(distinct(trace.tree.nearest(checks, node)))
    if n_checked < MIN_CHECKED * n_nodes:
        return
    # the checks stand directly under the node; what the gradient formula itself does stands deeper
    direct = np.flatnonzero(ops & trace.named(*_CHECKING))
    direct = direct[node[trace.tree.parent[direct]] & (trace.tree.parent[direct] >= 0)]
    checking = trace.spans_of(direct)
    traces, share = _stack_traces(trace, node)
    tracing = trace.spans_of(traces)
    own = intervals.union(np.concatenate([checking, tracing]) if share == 1.0 else checking)
    spans, extra = own, intervals.subtract(intervals.union(tracing), own)
    if trace.devices:
        idle = trace.devices[0].idle
        spans, extra = intervals.intersect(spans, idle), intervals.intersect(extra, idle)
    gone = Edit("drop", traces)
    if share != 1.0:
        gone = Edit("shrink", traces, factor=1.0 - share * LEAST_TRACE, best=1.0 - share)
    host_ns = trace.steps.judged_ns(own) / trace.steps.n_steady
    yield host_claim(
        trace,
        f"anomaly detection checks {n_checked:,} of {format_count(n_nodes, 'backward node')} for NaN and takes the host"
        f" {format_ns(host_ns)} {trace.steps.per}" + ("" if share == 1.0 else ", stack traces not counted"),
        checks,
        np.concatenate([spans, extra]),
        certainty="certain",
        gain_low=np.repeat([1 / trace.origin.inflation, 0.0], [len(spans), len(extra)]),
        gain_high=np.repeat([1.0, share], [len(spans), len(extra)]),
        method="host time of checks and stack traces" + (" while the device idles" if trace.devices else ""),
        evidence={
            "host_ms_per_step": ms(host_ns),
            "n_checked_nodes": n_checked,
            "n_backward_nodes": n_nodes,
            "mode": "anomaly detection",
        },
        always=True,
        edits=(Edit("drop", direct), gone),
    )


def _stack_traces(trace: Trace, node: Mask) -> tuple[Ints, float]:
    """Return the rows in which a stack trace per node is formatted, and the share of their time.

    Frames show it; else it hides inside the forward operators, and its share is an estimate.
    """
    if trace.has_stacks:
        formats = trace.matching(_TRACES, Kind.PYTHON)
        return np.flatnonzero(formats & ~trace.frames.under(formats)), 1.0
    is_op = trace.kind == Kind.OP
    rows = np.flatnonzero(is_op & ~node & ~trace.tree.under(is_op) & (trace.key >= 0))
    total = intervals.length(trace.time_of(rows))
    # nodes that only accumulate a gradient have a trace of their own, too
    n_traces = int((is_op & trace.matching(f"^{BACKWARD_NODE}")).sum())
    return rows, min(TRACE_NS * n_traces / max(total, 1), 0.99)


def _blocking(trace: Trace) -> Claims:
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
