"""The optimizer updates one parameter after the other.

Looks like: ``Optimizer.step#`` annotations with 100 launches or more each and neither
    ``aten::_foreach_*`` nor ``aten::_fused_*`` operators nor multi-tensor kernels under them; on a
    CPU, 50 pointwise operators on tensors of more than one element and 2 % of the step (without
    recorded shapes: 100 operators and 5 %). Also ``aten::_foreach_*`` where a fused form exists and
    the optimizer takes 5 % of the step; and outside the optimizer 100 in-place pointwise operators
    in a row, such as an average of the weights.
Slow because: every parameter costs several operators and launches, each longer than the few
    microseconds of work it does; the foreach form still reads and writes all tensors once per
    operation.
Cost: device idle time inside the annotations (on a CPU: their host time). The low end is half of
    it, divided by the profiler's inflation; nothing on a CPU for a single operator per parameter.
    From foreach to fused a quarter to 60 % of the kernels, where those take longer than the idle
    time.
Fix: the multi-tensor or fused form of the same optimizer, and of the average.
Leave it when: gradients are sparse, the optimizer is differentiable, or it works on matrices
    (Shampoo); on a CPU the loop is the default, and fused forms exist for SGD, Adam, AdamW and
    Adagrad only.
Source: PyTorch documentation, torch.optim, "Algorithms" (for-loop, foreach, fused) and "Weight
    Averaging"; measured: 404 additions, 13.3 ms of host time, in one SGD step; on a CPU a fused
    AdamW takes 25 % off a step of 120 parameters, a foreach average 3-8 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage import fixes, intervals
from torchtriage.distinct import distinct
from torchtriage.patterns._recurrence import recurs
from torchtriage.patterns._runs import outer_ops, runs
from torchtriage.patterns._work import work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, ms

PATTERN = Pattern(
    code="LCH016",
    name="optimizer-per-tensor",
    family="launch",
    title="The optimizer loops over parameters",
    order=351,
    needs=frozenset({"ops", "work"}),
)

FIX = fixes.FUSE_OPTIMIZER

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
MIN_SHARE_FOREACH = 0.05
"""Share of the step from which the fused form is worth naming (catalogue 16, second level)."""
MIN_FOREACH = 2
"""Foreach calls per step; a single one reads and writes no more than a fused kernel."""
FOREACH_GAIN = (0.25, 0.6)
"""Tensors read and written: SGD with momentum 8 by foreach and 5 fused, Adam 18 and 7."""
MIN_UPDATES = 100
"""In place, in a row, of nothing else: a model's own operators come with others between them."""
UPDATE_GAIN = 0.25
"""On a CPU a foreach call still works tensor by tensor: it saved 35 % of a loop of ``lerp_`` and
60 % of one of ``mul_`` and ``add_`` (measured)."""
_STEP = r"^Optimizer\.step#"
_FOREACH = r"^aten::_foreach_"
_FUSED = r"^aten::_fused_|^fused_"
_BEYOND = r"coalesce|sparse|::(mm|bmm|addmm|matmul|linalg_\w+|cholesky\w*)$"
_HAS_FUSED = re.compile(r"#(SGD|Adam|AdamW|Adagrad)\.")
_UPDATE = r"^aten::(mul_|add_|sub_|div_|lerp_|addcmul_|addcdiv_)$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim per optimizer that loops, and one for loops of updates elsewhere."""
    if not trace.devices and not trace.is_host_only:
        return
    yield from _optimizers(trace)
    yield from _updates(trace)


def _optimizers(trace: Trace) -> Iterator[Claim]:
    steps, tree = trace.steps, trace.tree
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(_STEP)
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
        if (inside & trace.matching(f"{_FUSED}|{_BEYOND}")).any():
            continue
        calls, kernels = _work(trace, inside)
        foreach = np.flatnonzero(inside & trace.matching(_FOREACH))
        if len(foreach):
            of = tree.outermost(foreach, mine)
            claim = _foreach(trace, rows, foreach[np.isin(of, rows)])
        elif trace.matching("multi_tensor")[kernels].any():
            continue
        else:
            of = tree.outermost(calls, mine)
            per_call = np.bincount(
                np.searchsorted(rows, of[np.isin(of, rows)]), minlength=len(rows)
            )
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
    name = _optimizer(trace, rows)
    what = "launches" if on_device else "operators"
    kinds = len(distinct(trace.name[calls]))
    single = not on_device and kinds < MIN_KINDS_CPU
    work = format_count(per_call, what, what)
    waits = f", while the GPU stands idle for {format_ns(lost_ns)}" if on_device else ""
    return Claim(
        message=f"{name}.step handles parameters one by one: {work} a call take the host"
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
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(rows[np.argmax(trace.dur_ns[rows])]),
        # a CPU computes as long in one call as in many: foreach took 77 % of the loop there
        edits=(
            Edit("shrink", rows, factor=1.0 if single else 0.5 if on_device else 0.8, best=0.0),
        ),
    )


def _optimizer(trace: Trace, rows: Ints) -> str:
    """Return the class of an optimizer by its annotation, ``Optimizer.step#AdamW.step``."""
    name = trace.name_of(int(rows[0])).partition("#")[2]
    return name.rpartition(".")[0] or name


def _foreach(trace: Trace, rows: Ints, calls: Ints) -> Claim | None:
    """Return the claim on an optimizer whose foreach form could be fused."""
    steps = trace.steps
    held = intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))
    held_ns = intervals.length(held) / steps.n_steady
    if (
        _HAS_FUSED.search(trace.name_of(int(rows[0]))) is None
        or len(calls) < MIN_FOREACH * len(rows)
        or held_ns < MIN_SHARE_FOREACH * steps.wall_ns
    ):
        return None
    name, count = _optimizer(trace, rows), round(len(calls) / steps.n_steady, 2)
    least, most = FOREACH_GAIN
    evidence = {
        "host_ms_per_step": ms(held_ns),
        "share_of_step": round(held_ns / steps.wall_ns, 6),
        "n_foreach_calls_per_step": count,
        "optimizer": name,
        "profiler_inflation": trace.origin.inflation,
    }
    low: float | NDArray[np.float64] = least / trace.origin.inflation
    spans, high = held, 1.0
    edit = Edit("threads", factor=1 - least / trace.origin.inflation, best=0.0, spans=held)
    time_class: Literal["host", "idle", "compute"] = "host"
    work = work_of(trace, rows) if trace.devices else None
    if trace.devices:
        spans, time_class = intervals.intersect(held, trace.devices[0].host_late), "idle"
    if work is not None and work.per_step_ns * steps.n_steady > intervals.length(spans):
        evidence["kernel_ms_per_step"] = ms(work.per_step_ns)
        spans, high, time_class = work.spans, most, "compute"
        edit = Edit("shrink", work.rows, factor=1 - least, best=1 - most)
        low = np.minimum(least, work.free)
    if not len(spans):
        return None
    return Claim(
        message=f"{name}.step works through its tensors in {format_count(count, 'foreach call')}"
        f" {steps.per}, {format_ns(held_ns)} of {format_ns(steps.wall_ns)} on the host; its fused"
        " form needs one",
        certainty="likely",
        rows=rows,
        spans=spans,
        gain_low=low,
        gain_high=high,
        time_class=time_class,
        basis="modelled",
        method="tensors read and written by the foreach form against the fused one",
        evidence=evidence,
        anchor=int(rows[np.argmax(trace.dur_ns[rows])]),
        edits=(edit,),
    )


def _updates(trace: Trace) -> Iterator[Claim]:
    """Yield a claim on loops that update tensors in place, outside of optimizers and backward."""
    steps = trace.steps
    ops = outer_ops(trace, trace.hosts & trace.matching(r"^Optimizer\."))
    stretches = runs(trace, ops, trace.matching(_UPDATE)[ops])
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= MIN_UPDATES]
    if not len(stretches):
        return
    first, last = ops[stretches[:, 0]], ops[stretches[:, 1] - 1]
    if not recurs(trace, first):
        return
    updates = np.concatenate([ops[begin:end] for begin, end in stretches.tolist()])
    held = intervals.union(intervals.spans(trace.start_ns[first], trace.end_ns[last]))
    spans = intervals.intersect(held, trace.devices[0].host_late) if trace.devices else held
    held_ns = intervals.length(intervals.intersect(held, steps.judged)) / steps.n_steady
    lost_ns = intervals.length(intervals.intersect(spans, steps.judged)) / steps.n_steady
    if held_ns < MIN_SHARE * steps.wall_ns or not lost_ns:
        return
    count = round(int(steps.in_steady(steps.of_host(updates)).sum()) / steps.n_steady, 2)
    names = np.bincount(trace.name[updates])
    top = [trace.names[one] for one in np.argsort(-names, kind="stable")[:3].tolist() if names[one]]
    waits = f", while the GPU stands idle for {format_ns(lost_ns)}" if trace.devices else ""
    yield Claim(
        message=f"tensors are updated in place one by one outside the optimizer:"
        f" {format_count(count, 'operator')} take the host {format_ns(held_ns)} of"
        f" {format_ns(steps.wall_ns)} {steps.per}{waits}",
        certainty="likely",
        rows=updates,
        spans=spans,
        gain_low=UPDATE_GAIN / trace.origin.inflation,
        gain_high=1.0,
        time_class="idle" if trace.devices else "host",
        method="idle time of the device inside the loop"
        if trace.devices
        else "host time of the loop",
        evidence={
            "host_ms_per_step": ms(held_ns),
            "share_of_step": round(held_ns / steps.wall_ns, 6),
            **({"gpu_idle_ms_per_step": ms(lost_ns)} if trace.devices else {}),
            "n_operators_per_step": count,
            "ops": top,
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(first[0]),
        fix=fixes.AVERAGE_AT_ONCE,
        edits=(
            Edit("threads", factor=1 - UPDATE_GAIN / trace.origin.inflation, best=0.0, spans=held),
        ),
    )
