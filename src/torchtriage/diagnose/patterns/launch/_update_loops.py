"""Loops that update tensors in place outside of optimizers."""

import numpy as np

from torchtriage.core import fixes, intervals
from torchtriage.core.trace.op_runs import outer_ops, runs
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Trace

MIN_UPDATES = 100  # in place, in a row, of nothing else: a model's own operators come with others between them
UPDATE_GAIN = 0.25
"""On a CPU a foreach call still works tensor by tensor: it saved 35 % of a loop of ``lerp_`` and 60 % of one of
``mul_`` and ``add_`` (measured)."""
_UPDATE = r"^aten::(mul_|add_|sub_|div_|lerp_|addcmul_|addcdiv_)$"


def claim_updates(trace: Trace, min_share: float) -> Claims:
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
    held_ns = steps.judged_ns(held) / steps.n_steady
    lost_ns = steps.judged_ns(spans) / steps.n_steady
    if held_ns < min_share * steps.wall_ns or not lost_ns:
        return
    count = steps.mean_count(steps.of_host(updates))
    names = np.bincount(trace.name[updates])
    top = [trace.names[row] for row in np.argsort(-names, kind="stable")[:3].tolist() if names[row]]
    waits = f", while the GPU stands idle for {format_ns(lost_ns)}" if trace.devices else ""
    yield Claim(
        message=f"tensors are updated in place one by one outside the optimizer: {format_count(count, 'operator')}"
        f" take the host {format_ns(held_ns)} of {format_ns(steps.wall_ns)} {steps.per}{waits}",
        certainty="likely",
        rows=updates,
        spans=spans,
        gain_low=UPDATE_GAIN / trace.origin.inflation,
        time_class="idle" if trace.devices else "host",
        method="idle time of the device inside the loop" if trace.devices else "host time of the loop",
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
        edits=(Edit("threads", factor=1 - UPDATE_GAIN / trace.origin.inflation, best=0.0, spans=held),),
    )
