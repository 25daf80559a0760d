"""The optimizer updates one parameter after the other.

Looks like: ``Optimizer.step#`` annotations with at least 100 launches each and neither ``aten::_foreach_*`` nor
    ``aten::_fused_*`` operators nor multi-tensor kernels under them; on a CPU, 50 pointwise operators on tensors of
    more than one element and 2 % of the step (without recorded shapes: 100 operators and 5 %), or fewer ones of four
    kinds, on tensors of 65,000 elements in the mean, and 10 % of the step. Also
    ``aten::_foreach_*`` where a fused form exists and the optimizer takes 5 % of the step; and outside the optimizer
    100 in-place pointwise operators in a row, such as an average of the weights.
Slow because: every parameter takes several operators and launches, each longer than the few microseconds of work it
    does; the foreach form still reads and writes all tensors once per operation.
Cost: device idle time inside the annotations (on a CPU: their host time). The low end is half of it, divided by the
    profiler's inflation; nothing on a CPU for a single operator per parameter, or for few parameters. From foreach to
    fused a quarter to 60 % of the kernels, where those take longer than the idle time.
Fix: the multi-tensor or fused form of the same optimizer, and of the average.
Leave it when: gradients are sparse, or could be (OPT047: tables of which a step touches few rows), the optimizer is
    differentiable, or it works on matrices (Shampoo); on a CPU the loop is the default, and fused forms exist for SGD,
    Adam, AdamW and Adagrad only.
Source: PyTorch documentation, torch.optim, "Algorithms" (for-loop, foreach, fused) and "Weight Averaging"; measured:
    404 additions, 13.3 ms of host time, in one SGD step; on a CPU a fused AdamW takes 25 % off a step of 120
    parameters, a foreach average 3-8 %.
"""

import math

import numpy as np

from torchtriage.core import fixes, intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import inputs_of
from torchtriage.core.trace.op_runs import outer_ops, runs
from torchtriage.core.trace.optimizer_steps import closures, updates
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._host_time import host_claim, host_time
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns._sparse_tables import lookups, moves_no_other_row, passes
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Ints, Kind, Mask, Pattern, Trace, most_frequent
from torchtriage.diagnose.patterns.launch._foreach_optimizer import claim_foreach, fix_of, optimizer_name

PATTERN = Pattern.of(__name__, "LCH016", "Parameters are updated one by one", order=351, needs="ops work")
FIX = fixes.FUSE_OPTIMIZER

MIN_CALLS = 100  # launches per step (catalogue 16); 20-64 are toys and small recommenders
MIN_SHARE = 0.02  # share of the step the annotation has to take
MIN_CALLS_CPU = 50  # measured with AdamW over 17 parameters, 68 operators: 1.22 ms, fused 0.34 ms
MIN_KINDS_CPU = 2  # with one kind of operator there is little to fuse: SGD over 80 tensors, 3.66 ms and 3.65 ms
LARGE, MIN_KINDS_LARGE, MIN_SHARE_LARGE = 1 << 16, 4, 0.1
"""Of a tensor's elements, the kinds of operators, and the share of the step from which few tensors on a CPU count,
with nothing sure: five passes over four tensors of 200,000 elements took 29 % of a step, and fused half of that."""
MOSTLY_TABLES = 0.5
MIN_SHARE_BLIND = 0.05
"""Share of the step on a CPU without shapes: the loop is the default there, and its operators may work on large
tensors (4.8 % of a healthy recommender's step)."""
_STEP = r"^Optimizer\.step#"
_FOREACH = r"^aten::_foreach_"
_FUSED = r"^aten::_fused_|^fused_"
_BEYOND = r"coalesce|sparse|::(mm|bmm|addmm|matmul|linalg_\w+|cholesky\w*)$"
MIN_UPDATES = 100  # in place, in a row, of nothing else: a model's own operators come with others between them
UPDATE_GAIN = 0.25
"""On a CPU a foreach call still works tensor by tensor: it saved 35 % of a loop of ``lerp_`` and 60 % of one of
``mul_`` and ``add_`` (measured)."""
_UPDATE = r"^aten::(mul_|add_|sub_|div_|lerp_|addcmul_|addcdiv_)$"


def find(trace: Trace) -> Claims:
    """Yield one claim per optimizer that loops, and one for loops of updates elsewhere."""
    yield from _optimizers(trace)
    yield from _updates(trace)


def _optimizers(trace: Trace) -> Claims:
    steps, tree, called = trace.steps, trace.tree, closures(trace)
    marks = trace.matching(_STEP, Kind.ANNOTATION, Kind.OP)
    marks &= ~tree.under(marks)
    judged = np.flatnonzero(marks)
    judged = judged[steps.in_steady(steps.of_host(judged))]
    held_ns = np.bincount(trace.name[judged], weights=trace.dur_ns[judged])
    least_ns = max(MIN_SHARE * steps.wall_ns * steps.n_steady, 1)
    # what follows looks at the whole trace for each name: only for those that take long enough
    for code in np.flatnonzero(held_ns >= least_ns).tolist():
        mine = marks & (trace.name == code)
        rows = judged[trace.name[judged] == code]
        inside = tree.under(mine) & ~called.rows
        held = intervals.subtract(trace.time_of(rows), called.spans)
        if (inside & trace.matching(f"{_FUSED}|{_BEYOND}")).any():
            continue
        calls, kernels = _work(trace, inside)
        foreach = np.flatnonzero(inside & trace.matching(_FOREACH))
        if len(foreach):
            if _over_unused_rows(trace, mine):
                continue
            of = tree.outermost(foreach, mine)
            claim = claim_foreach(trace, rows, held, foreach[np.isin(of, rows)])
        elif trace.matching("multi_tensor")[kernels].any():
            continue
        else:
            of = tree.outermost(calls, mine)
            per_call = np.bincount(np.searchsorted(rows, of[np.isin(of, rows)]), minlength=len(rows))
            claim = _claim(trace, rows, held, calls[np.isin(of, rows)], float(np.median(per_call)))
        if claim is not None:
            yield claim


def _over_unused_rows(trace: Trace, mine: Mask) -> bool:
    """Return whether most of it goes over rows that a sparse gradient would spare, fused or not (OPT047)."""
    _, used = lookups(trace)
    updates, part = passes(trace, mine, used)
    return bool(len(updates)) and part.mean() >= MOSTLY_TABLES and moves_no_other_row(trace, updates, used)


def _work(trace: Trace, inside: Mask) -> tuple[Ints, Ints]:
    """Return the calls that launch (on a CPU: pointwise ops on tensors) and the device rows."""
    if trace.devices:
        return np.flatnonzero(inside & trace.links.launches), trace.links.work_under(inside)
    ops = inside & (trace.kind == Kind.OP)
    leaves = ops & ~trace.tree.above(ops)
    if trace.has_shapes:
        leaves = trace.where_detail("dims", _is_tensor, leaves)
    return np.flatnonzero(leaves), np.empty(0, np.int64)


def _is_tensor(dims: object) -> bool:
    return isinstance(dims, list) and any(isinstance(shape, list) and any(n != 1 for n in shape) for shape in dims)


def _claim(trace: Trace, rows: Ints, held: Spans, calls: Ints, per_call: float) -> Claim | None:
    on_device = bool(trace.devices)
    sighted = trace.has_shapes and not on_device
    least = MIN_SHARE if on_device or sighted else MIN_SHARE_BLIND
    time = host_time(trace, held)
    few = per_call < (MIN_CALLS_CPU if sighted else MIN_CALLS)
    large = few and sighted and _has_large_tensors(trace, calls)
    least = MIN_SHARE_LARGE if large else least
    if (few and not large) or time.held_ns < least * trace.steps.wall_ns or not time.lost_ns:
        return None
    name = optimizer_name(trace, rows)
    what = "launches" if on_device else "operators"
    nothing_sure = not on_device and (large or len(distinct(trace.name[calls])) < MIN_KINDS_CPU)
    return host_claim(
        trace,
        f"{name}.step handles parameters one by one: {format_count(per_call, what, what)} a call take the host"
        f" {time.text}{time.idle_text(', while')}",
        rows,
        time.spans,
        certainty="certain" if large else "likely" if on_device or trace.has_shapes else "hint",
        gain=0.0 if nothing_sure else 0.5,
        method="idle time of the device inside the optimizer" if on_device else "host time of the optimizer",
        evidence={
            **time.evidence(),
            f"n_{what}_per_call": per_call,
            "n_calls_per_step": round(len(rows) / trace.steps.n_steady, 2),
            "optimizer": name,
        },
        anchor=trace.longest(rows),
        fix=fix_of(name),
        # a CPU computes as long in one call as in many: foreach took 77 % of the loop there
        edits=(_shorter(trace, rows, held, 1.0 if nothing_sure else 0.5 if on_device else 0.8),),
    )


def _has_large_tensors(trace: Trace, calls: Ints) -> bool:
    """Return whether an optimizer of many passes, such as Adam, goes over tensors that do not stay in a cache."""
    inputs, which = inputs_of(trace, calls)
    largest = [max((math.prod(shape) for shape in given.dims if is_shape(shape)), default=0) for given in inputs]
    sizes = np.array(largest, np.float64)[which]
    return len(distinct(trace.name[calls])) >= MIN_KINDS_LARGE and len(sizes) > 0 and sizes.mean() >= LARGE


def _shorter(trace: Trace, rows: Ints, held: Spans, factor: float) -> Edit:
    """Return the edit that makes an optimizer's own work shorter, and nothing of a closure that it calls."""
    if intervals.length(held) < intervals.length(trace.time_of(rows)):
        return Edit("threads", factor=factor, best=0.0, spans=held)
    return Edit("shrink", rows, factor=factor, best=0.0)


def _updates(trace: Trace) -> Claims:
    """Yield a claim on loops that update tensors in place, outside of optimizers and backward."""
    steps = trace.steps
    ops = outer_ops(trace, updates(trace))
    stretches = runs(trace, ops, trace.matches(ops, _UPDATE))
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= MIN_UPDATES]
    if not len(stretches):
        return
    first, last = ops[stretches[:, 0]], ops[stretches[:, 1] - 1]
    if not recurs(trace, first):
        return
    changed = np.concatenate([ops[begin:end] for begin, end in stretches.tolist()])
    held = intervals.union(intervals.spans(trace.start_ns[first], trace.end_ns[last]))
    time = host_time(trace, held)
    if time.held_ns < MIN_SHARE * steps.wall_ns or not time.lost_ns:
        return
    count = steps.mean_count(steps.of_host(changed))
    yield host_claim(
        trace,
        f"tensors are updated in place one by one outside the optimizer: {format_count(count, 'operator')} take the"
        f" host {time.text}{time.idle_text(', while')}",
        changed,
        time.spans,
        gain=UPDATE_GAIN,
        method="idle time of the device inside the loop" if trace.devices else "host time of the loop",
        evidence={**time.evidence(), "n_operators_per_step": count, "ops": most_frequent(trace, changed, 3)},
        fix=fixes.AVERAGE_AT_ONCE,
        edits=(Edit("threads", factor=1 - UPDATE_GAIN / trace.origin.inflation, best=0.0, spans=held),),
    )
