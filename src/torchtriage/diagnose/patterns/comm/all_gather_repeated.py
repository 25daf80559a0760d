"""FSDP gathers the same parameters again within a step.

Looks like: a unit's ``FSDP::all_gather`` more than once per step, exposed for at least 3 % of it: in each micro-batch
    between two optimizer steps, twice in a row with no other unit between, or, where it begins in time already, once
    for the forward and once for the backward pass.
Slow because: parameters change only with the optimizer step; what was gathered once and freed is sent again.
Cost: exposed time of all gathers of a unit but its first in the step, on the host with the copies around them. Low
    counts the fastest of equal messages, since ranks that are late may be waited for elsewhere; it is 0 for the
    backward pass's own gather, which FSDP makes on purpose.
Fix: ``reshard_after_forward=False`` keeps the parameters for the backward pass, ``set_reshard_after_backward(False)``
    for the next micro-batch. The finding states the memory this takes.
Leave it when: the gathered parameters do not fit alongside the activations: freeing them is what full sharding is for.
Source: PyTorch documentation, ``fully_shard``, ``reshard_after_forward``; Rajbhandari et al., "ZeRO", SC 2020, section
    7.2.2: 1.5 times the volume.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.trace.messages import Messages
from torchtriage.core.units import format_bytes, format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.comm._collectives import shorter
from torchtriage.diagnose.patterns.comm._sharding import Gathers, find_gathers
from torchtriage.diagnose.patterns.comm.fsdp_prefetch_late import is_late

PATTERN = Pattern.of(__name__, "COM058", "FSDP gathers the same parameters again", order=403, needs="collectives ops")
FIX = Fix(
    text="Keep what was gathered until it is no longer needed, as far as memory allows: the last unit first, which is"
    " freed and gathered again at once.",
    code="""for block in model.layers:
    fully_shard(block, reshard_after_forward=False)""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
_FIX_ROUNDS = Fix(
    text="Keep the parameters from one micro-batch to the next, as far as memory allows.",
    code="""for block in model.layers:
    fully_shard(block, reshard_after_forward=False)
for i, batch in enumerate(micro_batches):
    model.set_reshard_after_backward(i == len(micro_batches) - 1)
    (loss_fn(model(batch)) / len(micro_batches)).backward()
optimizer.step()""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)

MIN_SHARE = 0.03  # of the judged time: below, memory is worth more


def find(trace: Trace) -> Claims:
    """Yield one claim over the repeated gathers that would not be better hidden."""
    found = find_collectives(trace)
    gathers = find_gathers(trace, found) if found is not None and trace.origin.world_size != 1 else None
    if found is None or gathers is None:
        return
    again = gathers.turn > 0
    rounds = int(gathers.round.max(initial=0)) + 1
    in_a_row = np.append(False, gathers.unit[1:] == gathers.unit[:-1]) & gathers.follows
    needless = again & ((gathers.round > 0) | in_a_row)
    # what only begins too late is hidden by prefetching, at no memory
    pick = np.zeros(len(found.rows), dtype=bool)
    pick[gathers.at[needless | (again & ~is_late(trace, found, gathers)[gathers.at])]] = True
    mine = pick[found.source]
    spans, source = found.exposed[mine], found.source[mine]
    steps = trace.steps
    exposed_ns = steps.judged_ns(spans)
    if exposed_ns < MIN_SHARE * steps.wall_ns * steps.n_steady:
        return
    sure = np.zeros(len(found.rows), dtype=bool)
    sure[gathers.at[needless]] = True
    transfer = np.where(sure, found.fastest_ns / np.maximum(trace.dur_ns[found.rows], 1), 0.0)
    gone = np.minimum(transfer, 1.0)
    edit = shorter(found, pick, spans, gone, 1.0)
    low = gone[source]
    if found.on_host:
        # the copies around the message go as well
        mine = pick[gathers.at]
        within = gathers.within[mine]
        low = trace.dur_ns[found.rows] * gone
        low = np.minimum(low[gathers.at[mine]] / np.maximum(trace.dur_ns[within], 1), 1.0)
        spans = intervals.spans(trace.start_ns[within], trace.end_ns[within])
        edit = Edit("shrink", within, 1 - low, best=0.0)
    rows = found.rows[pick]
    kept = _kept_bytes(trace, found, gathers, pick)
    count = steps.median_count(gathers.step[pick[gathers.at]])
    memory = f"; keeping them takes up to {format_bytes(kept)} more memory" if kept else ""
    yield Claim(
        message=f"{format_count(count, 'all-gather')} {steps.per} fetch parameters that were gathered before in the"
        f" step, {format_ns(exposed_ns / steps.n_steady)} of it exposed{memory}",
        certainty="likely" if needless.any() and rounds > 1 else "hint",
        rows=rows,
        spans=spans,
        gain_low=low,
        anchor=trace.longest(rows),
        time_class="host" if found.on_host else "comm",
        method="exposed time of repeated all-gathers; low the fastest of equal messages, 0 for the backward pass's own",
        evidence={
            "repeated_gathers_per_step": count,
            "gathers_per_step": steps.median_count(gathers.step),
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "n_units": len(distinct(gathers.unit)),
            "micro_batches_per_step": rounds,
            **given(bytes_to_keep=kept),
        },
        fix=_FIX_ROUNDS if rounds > 1 else FIX,
        edits=(edit,),
    )


def _kept_bytes(trace: Trace, found: Collectives, gathers: Gathers, pick: Mask) -> int:
    """Return the bytes of all units' parameters that are gathered again, 0 where sizes were not recorded."""
    mine = gathers.at[pick[gathers.at]]
    _, first = np.unique(gathers.unit[pick[gathers.at]], return_index=True)
    one_each = mine[first]
    shard = found.size_bytes[one_each]
    if not len(shard) or (shard < 0).any():
        return 0
    members = Messages(trace, found.rows[one_each]).n_ranks
    return int((shard * np.where(members > 0, members, trace.origin.world_size or 1)).sum())
