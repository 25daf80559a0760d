"""Gradients are filled with zeros instead of being dropped.

Looks like: ten or more ``aten::zero_`` (or ``aten::_foreach_zero_``) inside ``Optimizer.zero_grad#``, or ten in a row
    outside every operator: ``set_to_none=False``, the default before torch 2.0, the same in ``Module.zero_grad``, or a
    loop over ``p.grad.zero_()``.
Slow because: every gradient is written once for nothing, and then the backward pass has to read it and add to it where
    it could have stored its result; in a loop each fill also needs a launch.
Cost: on a CPU the fills and the additions of the backward pass. On a GPU the larger of two: the idle time while the
    host fills one by one, or the kernels of fills and additions. The low end is divided by the profiler's inflation
    where the host sets the pace.
Fix: ``zero_grad(set_to_none=True)``, which is the default.
Leave it when: something reads gradients between two steps and expects tensors there.
Source: PyTorch performance tuning guide, "Use optimizer.zero_grad(set_to_none=True)"; measured: 161 fills, 6 ms of
    idle GPU, in every step of a ResNet-50; on a CPU 19 % of a step whose gradients are large, 4 % where they are
    small.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_runs import outer_ops, runs
from torchtriage.core.trace.optimizer_steps import updates
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Pattern, Spans, Trace

PATTERN = Pattern.of(
    __name__, "OPT040", "Gradients are filled with zeros instead of dropped", order=352, needs="ops work"
)
FIX = Fix(
    text="Drop the gradients instead of filling them with zeros (the default since torch 2.0).",
    code="optimizer.zero_grad(set_to_none=True)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
)

MIN_FILLS = 10  # in one go; a state that a step starts with has fewer (catalogue 40)
_ZERO = ("aten::zero_", "aten::_foreach_zero_")
_GRADIENT_ADD = r"AccumulateGrad$"


def find(trace: Trace) -> Claims:
    """Yield at most one claim."""
    fills, stretches = _fills(trace)
    if not len(fills) or not recurs(trace, fills):
        return
    steps = trace.steps
    adds = _additions(trace, fills)
    steady_ns = int(trace.dur_ns[fills[steps.in_steady(steps.of_host(fills))]].sum())
    count = steps.mean_count(steps.of_host(fills))
    counts = {"n_fills_per_step": count, "host_ms_per_step": ms(steady_ns / steps.n_steady)}
    message = f"gradients are filled with zeros in {format_count(count, 'call')} {steps.per}"
    if not trace.devices:
        yield from _on_cpu(trace, fills, stretches, adds, message, counts)
        return
    work = work_of(trace, np.concatenate([fills, adds]))
    late = intervals.intersect(stretches, trace.devices[0].host_late)
    late_ns = steps.judged_ns(late)
    idle_ns = late_ns / steps.n_steady
    if work is not None and late_ns < work.per_step_ns * steps.n_steady:
        yield work.claim(
            f"{message}, and the backward pass adds to them: {work.text}",
            "fill_and_add",
            certainty="certain",
            method="time of the fills, and of the additions that would be stores",
            evidence={**counts, "n_additions_per_step": steps.mean_count(steps.of_host(adds))},
            anchor=int(fills[0]),
        )
    elif late_ns:
        yield host_claim(
            trace,
            f"{message}, while the GPU stands idle for {format_ns(idle_ns)} of {format_ns(steps.wall_ns)}",
            fills,
            late,
            certainty="certain",
            method="idle time of the device while the host fills gradients",
            evidence={"gpu_idle_ms_per_step": ms(idle_ns), **counts},
            edits=(_no_loop(trace, stretches), Edit("drop", trace.links.work_under(trace.mask_of(fills)))),
        )


def _fills(trace: Trace) -> tuple[Ints, Spans]:
    tree = trace.tree
    zero = trace.named(*_ZERO) & (trace.kind == Kind.OP)
    zero &= ~tree.under(zero)
    marks = trace.matching(r"^Optimizer\.zero_grad#", Kind.ANNOTATION, Kind.OP)
    mine = np.flatnonzero(zero & tree.under(marks))
    mark = tree.outermost(mine, marks)
    inner = np.bincount(mark, minlength=len(trace))
    # one foreach call fills them all
    inner[mark[trace.named(_ZERO[1])[mine]]] += MIN_FILLS
    keep = inner[mark] >= MIN_FILLS
    mine, mark = mine[keep], distinct(mark[keep])
    ops = outer_ops(trace, updates(trace))
    alone = runs(trace, ops, zero[ops])
    alone = alone[alone[:, 1] - alone[:, 0] >= MIN_FILLS]
    manual = np.concatenate([ops[:0], *(ops[first:last] for first, last in alone.tolist())])
    stretches = np.concatenate(
        [trace.spans_of(mark), intervals.spans(trace.start_ns[ops[alone[:, 0]]], trace.end_ns[ops[alone[:, 1] - 1]])]
    )
    return np.concatenate([mine, manual]), intervals.union(stretches)


def _additions(trace: Trace, fills: Ints) -> Ints:
    """Return the operators that add to a gradient that was just filled.

    Of several backward passes per fill only the first would store instead.
    """
    node = trace.matching(_GRADIENT_ADD, Kind.OP)
    rows = np.flatnonzero(trace.named("aten::add_") & trace.tree.under(node))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    if not len(rows):
        return rows
    starts = np.sort(trace.start_ns[fills])
    since = np.searchsorted(starts, trace.start_ns[rows])
    # additions behind the same fill, up to as many as there were fills before it
    groups, first, count = np.unique(since, return_index=True, return_counts=True)
    n_filled = np.diff(np.append(0, groups))
    if trace.named(_ZERO[1])[fills].any():
        n_filled = count  # a foreach call does not say how many: taken as one backward pass
    place = np.arange(len(rows)) - np.repeat(first, count)
    keep = place < np.repeat(np.where(groups > 0, n_filled, 0), count)
    return rows[keep]


def _on_cpu(trace: Trace, fills: Ints, stretches: Spans, adds: Ints, message: str, counts: dict[str, float]) -> Claims:
    steps = trace.steps
    added = work_of(trace, adds)
    free = np.full(len(stretches), 1 / trace.origin.inflation)
    spans = stretches
    if added is not None:
        spans, free = np.concatenate([spans, added.spans]), np.concatenate([free, added.free])
    took_ns = steps.judged_ns(spans) / steps.n_steady
    if took_ns:
        yield host_claim(
            trace,
            f"{message}, and the backward pass adds to them: {format_ns(took_ns)} of {format_ns(steps.wall_ns)}",
            np.concatenate([fills, adds]),
            spans,
            certainty="certain",
            gain_low=free,
            method="host time of the fills, and of the additions that would be stores",
            evidence={
                "fill_and_add_ms_per_step": ms(took_ns),
                "share_of_step": round(took_ns / steps.wall_ns, 6),
                **counts,
                "n_additions_per_step": steps.mean_count(steps.of_host(adds)),
            },
            edits=(_no_loop(trace, stretches), Edit("drop", adds)),
        )


def _no_loop(trace: Trace, stretches: Spans) -> Edit:
    return Edit("threads", factor=1 - 1 / trace.origin.inflation, best=0.0, spans=stretches)
