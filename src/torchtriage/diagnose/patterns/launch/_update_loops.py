"""Loops that update tensors in place outside of optimizers."""

import numpy as np

from torchtriage.core import fixes, intervals
from torchtriage.core.trace.op_runs import outer_ops, runs
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._host_time import host_claim, host_time
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import HOST_KINDS, Claims, Edit, Trace, most_frequent

MIN_UPDATES = 100  # in place, in a row, of nothing else: a model's own operators come with others between them
UPDATE_GAIN = 0.25
"""On a CPU a foreach call still works tensor by tensor: it saved 35 % of a loop of ``lerp_`` and 60 % of one of
``mul_`` and ``add_`` (measured)."""
_UPDATE = r"^aten::(mul_|add_|sub_|div_|lerp_|addcmul_|addcdiv_)$"


def claim_updates(trace: Trace, min_share: float) -> Claims:
    """Yield a claim on loops that update tensors in place, outside of optimizers and backward."""
    steps = trace.steps
    ops = outer_ops(trace, trace.matching(r"^Optimizer\.", *HOST_KINDS))
    stretches = runs(trace, ops, trace.matches(ops, _UPDATE))
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= MIN_UPDATES]
    if not len(stretches):
        return
    first, last = ops[stretches[:, 0]], ops[stretches[:, 1] - 1]
    if not recurs(trace, first):
        return
    updates = np.concatenate([ops[begin:end] for begin, end in stretches.tolist()])
    held = intervals.union(intervals.spans(trace.start_ns[first], trace.end_ns[last]))
    time = host_time(trace, held)
    if time.held_ns < min_share * steps.wall_ns or not time.lost_ns:
        return
    count = steps.mean_count(steps.of_host(updates))
    yield host_claim(
        trace,
        f"tensors are updated in place one by one outside the optimizer: {format_count(count, 'operator')} take the"
        f" host {time.text}{time.idle_text(', while')}",
        updates,
        time.spans,
        gain=UPDATE_GAIN,
        method="idle time of the device inside the loop" if trace.devices else "host time of the loop",
        evidence={**time.evidence(), "n_operators_per_step": count, "ops": most_frequent(trace, updates, 3)},
        fix=fixes.AVERAGE_AT_ONCE,
        edits=(Edit("threads", factor=1 - UPDATE_GAIN / trace.origin.inflation, best=0.0, spans=held),),
    )
