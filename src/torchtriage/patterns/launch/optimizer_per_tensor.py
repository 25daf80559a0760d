"""The optimizer updates one parameter after the other.

Looks like: ``Optimizer.step#`` or ``Optimizer.zero_grad#`` annotations with 100 launches or more
    each and neither ``aten::_foreach_*`` nor ``aten::_fused_*`` operators nor multi-tensor kernels
    under them; on a CPU, 50 pointwise operators on tensors of more than one element and 2 % of the
    step (without recorded shapes: 100 operators and 5 %).
Slow because: every parameter costs several operators and launches, each longer than the few
    microseconds of work it does.
Cost: device idle time inside the annotations (on a CPU: their host time). The low end is half of
    it, divided by the profiler's inflation; nothing on a CPU for a single operator per parameter.
Fix: the multi-tensor or fused form of the same optimizer; gradients set to None, not to zero.
Leave it when: gradients are sparse, the optimizer is differentiable, or it works on matrices
    (Shampoo); on a CPU the loop is the default, and fused forms exist for SGD, Adam, AdamW and
    Adagrad only.
Source: PyTorch documentation, torch.optim, "Algorithms" (for-loop, foreach, fused); measured: 404
    additions, 13.3 ms of host time, in one SGD step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.finding import Fix
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, ms

PATTERN = Pattern(
    code="LCH016",
    name="optimizer-per-tensor",
    family="launch",
    title="The optimizer loops over parameters",
    order=351,
    needs=frozenset({"ops"}),
)

FIX = Fix(
    text="Use the fused form of the optimizer (or foreach=True).",
    code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    link="https://docs.pytorch.org/docs/stable/optim.html#algorithms",
)

ZERO_FIX = Fix(
    text="Drop the gradients instead of filling them with zeros (the default since torch 2.0).",
    code="optimizer.zero_grad(set_to_none=True)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
)

Ints = NDArray[np.int64]

MIN_CALLS = 100
"""Launches per step (catalogue 16); 20-64 are toys and small recommenders."""
MIN_SHARE = 0.02
"""Share of the step the annotation has to take."""
MIN_CALLS_CPU = 50
"""Measured with AdamW over 17 parameters, 68 operators: 1.22 ms, fused 0.34 ms."""
MIN_KINDS_CPU = 2
"""With one kind of operator there is little to fuse: SGD over 80 tensors, 3.66 ms and 3.65 ms."""
MIN_SHARE_BLIND = 0.05
"""Share of the step on a CPU without shapes: the loop is the default there, and its operators may
work on large tensors (4.8 % of a healthy recommender's step)."""
_LOOPS = r"^Optimizer\.(step|zero_grad)#"
_GROUPED = r"^aten::_(foreach|fused)_|multi_tensor|^fused_"
_BEYOND = r"coalesce|sparse|::(mm|bmm|addmm|matmul|linalg_\w+|cholesky\w*)$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim per optimizer that loops."""
    if not trace.devices and not trace.is_host_only:
        return
    steps, tree = trace.steps, trace.tree
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(_LOOPS)
    marks &= ~tree.under(marks)
    judged = np.flatnonzero(marks)
    judged = judged[steps.in_steady(steps.of_host(judged))]
    held_ns = np.bincount(trace.name[judged], weights=trace.dur_ns[judged])
    least_ns = max(MIN_SHARE * steps.wall_ns * steps.n_steady, 1)
    # what follows looks at the whole trace for each name: only for those that take long enough
    for code in np.flatnonzero(held_ns >= least_ns).tolist():
        mine = marks & (trace.name == code)
        rows = judged[trace.name[judged] == code]
        inside = tree.under(mine)
        if (inside & trace.matching(f"{_GROUPED}|{_BEYOND}")).any():
            continue
        calls, kernels = _work(trace, inside)
        if trace.matching("multi_tensor")[kernels].any():
            continue
        of = tree.outermost(calls, mine)
        per_call = np.bincount(np.searchsorted(rows, of[np.isin(of, rows)]), minlength=len(rows))
        claim = _claim(trace, rows, calls[np.isin(of, rows)], float(np.median(per_call)))
        if claim is not None:
            yield claim


def _work(trace: Trace, inside: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the calls that launch (on a CPU: pointwise ops on tensors) and the device rows."""
    if trace.devices:
        return np.flatnonzero(inside & trace.links.launches), trace.links.work_under(inside)
    ops = inside & (trace.kind == Kind.OP)
    leaves = ops & ~trace.tree.above(ops)
    if trace.has_shapes:
        leaves = trace.where_detail("dims", _is_tensor, leaves)
    return np.flatnonzero(leaves), np.empty(0, np.int64)


def _is_tensor(dims: object) -> bool:
    """Return whether an op works on more than one element: step counters do not."""
    return isinstance(dims, list) and any(
        isinstance(one, list) and len(one) > 0 and any(size != 1 for size in one) for one in dims
    )


def _claim(trace: Trace, rows: Ints, calls: Ints, per_call: float) -> Claim | None:
    steps = trace.steps
    held = intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))
    on_device = bool(trace.devices)
    n_steps = steps.n_steady
    held_ns = intervals.length(held) / n_steps
    sighted = trace.has_shapes and not on_device
    least = MIN_SHARE if on_device or sighted else MIN_SHARE_BLIND
    if per_call < (MIN_CALLS_CPU if sighted else MIN_CALLS) or held_ns < least * steps.wall_ns:
        return None
    spans = intervals.intersect(held, trace.devices[0].host_late) if on_device else held
    lost_ns = intervals.length(spans) / n_steps
    if not lost_ns:
        return None
    method, _, name = trace.name_of(int(rows[0])).removeprefix("Optimizer.").partition("#")
    name = name.rpartition(".")[0] or name
    what = "launches" if on_device else "operators"
    kinds = len(np.unique(trace.name[calls]))
    single = not on_device and method == "step" and kinds < MIN_KINDS_CPU
    work = format_count(per_call, what, what)
    waits = f", while the GPU stands idle for {format_ns(lost_ns)}" if on_device else ""
    return Claim(
        message=f"{name}.{method} handles parameters one by one: {work} a call take the host"
        f" {format_ns(held_ns)} of {format_ns(steps.wall_ns)} {steps.per}{waits}",
        certainty="likely" if on_device or trace.has_shapes else "hint",
        rows=rows,
        spans=spans,
        gain_low=0.0 if single else 0.5 / trace.origin.inflation,
        gain_high=1.0,
        time_class="idle" if on_device else "host",
        method="idle time of the device inside the optimizer"
        if on_device
        else "host time of the optimizer",
        evidence={
            "host_ms_per_step": ms(held_ns),
            "share_of_step": round(held_ns / steps.wall_ns, 6),
            **({"gpu_idle_ms_per_step": ms(lost_ns)} if on_device else {}),
            f"n_{what}_per_call": per_call,
            "n_calls_per_step": round(len(rows) / n_steps, 2),
            "optimizer": name,
            "method": method,
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(rows[np.argmax(trace.dur_ns[rows])]),
        fix=ZERO_FIX if method == "zero_grad" else None,
        edits=(Edit("shrink", rows, factor=1.0 if single else 0.5, best=0.0),),
    )
