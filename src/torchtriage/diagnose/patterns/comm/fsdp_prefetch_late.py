"""FSDP gathers a unit's parameters when they are needed, not while the previous unit computes.

Looks like: inside ``FSDP::all_gather`` (FSDP1: ``FullyShardedDataParallel._pre_forward``) all-gathers of three or more
    units while nothing is computed, although the previous unit computed while nothing was communicated.
Slow because: the next unit's parameters need no result of the previous unit; gathered one unit earlier, they are there
    in time.
Cost: bounded by the exposed time, without the waiting for late ranks, and by the computation before each gather. Low
    counts the fastest of equal messages on a device, nothing on the host: gloo's threads take cores from those that
    compute.
Fix: ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch`` (FSDP1: ``forward_prefetch=True``,
    ``backward_prefetch=BackwardPrefetch.BACKWARD_PRE``). On the CPU gathers block unless
    ``module.unshard(async_op=True)`` was called one unit earlier.
Leave it when: there is no memory for the parameters of another unit. The first unit of a step cannot be prefetched.
Source: PyTorch documentation, ``FSDPModule.set_modules_to_forward_prefetch``; Zhao et al., "PyTorch FSDP: Experiences
    on Scaling Fully Sharded Data Parallel", VLDB 2023, section 3.3.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.units import format_count, format_ns
from torchtriage.diagnose.patterns.base import Claims, Fix, Ints, Mask, Pattern, Trace
from torchtriage.diagnose.patterns.comm._earlier import alone_ns, earlier, exposed_ns, usual_ns
from torchtriage.diagnose.patterns.comm._sharding import Gathers, find_gathers

PATTERN = Pattern.of(
    __name__, "COM057", "FSDP gathers parameters too late to hide it", order=404, needs="collectives ops"
)
FIX = Fix(
    text="Gather the next unit's parameters while the current unit computes.",
    code="""blocks = list(model.layers)  # each fully_shard(block)
for now, following in zip(blocks, blocks[1:]):
    now.set_modules_to_forward_prefetch([following])
    following.set_modules_to_backward_prefetch([now])
# FSDP1: FullyShardedDataParallel(..., forward_prefetch=True,
#     backward_prefetch=BackwardPrefetch.BACKWARD_PRE)""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
_FIX_HOST = Fix(
    text="Gather the next unit's parameters while the current unit computes: on the CPU a gather blocks unless it is"
    " asynchronous.",
    code="""for block, following in zip(blocks, blocks[1:]):  # each fully_shard(block)
    following.unshard(async_op=True)  # returns at once; its pre-forward waits
    x = block(x)""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)

MIN_UNITS = 3  # the root and one unit: there is nothing to prefetch behind
MIN_SHARE = 0.03  # of the judged time that could be hidden: below, it is what pipelining always leaves at its ends
MIN_SHARE_HOST = 0.10  # on the CPU gathers block unless a program asks for them itself
MOSTLY = 0.5  # of a gather that the computation before it could have hidden: then it is late
MANY = 0.3  # of a step's gathers that are late: the backward pass alone has half of them


def find(trace: Trace) -> Claims:
    """Yield one claim over the gathers that the computation before them could hide."""
    found = find_collectives(trace)
    gathers = find_gathers(trace, found) if found is not None and trace.origin.world_size != 1 else None
    if found is None or gathers is None or len(distinct(gathers.unit)) < MIN_UNITS:
        return
    late = is_late(trace, found, gathers)
    steps = trace.steps
    after = gathers.at[gathers.follows & steps.in_steady(gathers.step)]
    if not len(after) or late[after].mean() < MANY:
        return
    gain = earlier(trace, found, late, alone_ns(found, _since(trace, found, gathers)))
    wall_ns = steps.wall_ns * steps.n_steady
    if gain.hidden_ns < (MIN_SHARE_HOST if found.on_host else MIN_SHARE) * wall_ns:
        return
    rows = found.rows[late]
    of_all = f"{format_count(steps.median_count(gathers.step[late[gathers.at]]), 'all-gather')} {steps.per}"
    yield gain.claim(
        found,
        rows,
        f"{of_all} start only when their parameters are needed:"
        f" {format_ns(gain.exposed_ns / steps.n_steady)} exposed {steps.per}, of which"
        f" earlier computation could hide {format_ns(gain.hidden_ns / steps.n_steady)}",
        {
            "late_gathers_per_step": steps.median_count(gathers.step[late[gathers.at]]),
            "gathers_per_step": steps.median_count(gathers.step),
            "n_units": len(distinct(gathers.unit)),
        },
        certainty="hint" if found.on_host else "likely",
        method="exposed all-gathers without the wait for late ranks, as far as computation before them had no"
        " communication beside it",
        fix=_FIX_HOST if found.on_host else FIX,
    )


def is_late(trace: Trace, found: Collectives, gathers: Gathers) -> Mask:
    """Return bool[k]: gathers that are mostly exposed although computation before them could have hidden that."""
    candidates = np.zeros(len(found.rows), dtype=bool)
    candidates[gathers.at[gathers.follows]] = True
    own = exposed_ns(found, candidates)
    hide = np.minimum(own, alone_ns(found, _since(trace, found, gathers)))
    return candidates & (hide > MOSTLY * usual_ns(found))


def _since(trace: Trace, found: Collectives, gathers: Gathers) -> Ints:
    """Return int64[k]: the end of the gather before, from when on each could have run; its own begin for others."""
    out = trace.start_ns[found.rows].copy()
    at = gathers.at
    out[at[1:]] = np.where(gathers.follows[1:], trace.end_ns[found.rows[at[:-1]]], out[at[1:]])
    return out
