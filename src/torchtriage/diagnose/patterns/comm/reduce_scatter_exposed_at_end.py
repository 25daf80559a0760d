"""Most gradients are reduced in one message at the end of the backward pass, when nothing is left to compute.

Looks like: the last reduce-scatter or all-reduce of a backward pass carries more than half of the gradients, more than
    4 MiB, and is exposed, although the backward pass computed while nothing was communicated.
Slow because: a bucket (DDP) or unit (FSDP) is reduced when its last gradient is ready. One that is too large is ready
    only at the end, and everything waits for it.
Cost: bounded by the exposed time of that message, without the waiting for late ranks and without the transfer of
    4 MiB, by the computation before it, and by when its gradients were ready. Low counts the fastest of equal messages
    on a device, nothing on the host.
Fix: DDP: leave ``bucket_cap_mb`` at 25 or choose it smaller. FSDP: ``fully_shard`` each layer, embedding and head too,
    not only the model as a whole.
Leave it when: the network is the limit, so that smaller messages would only queue.
Source: PyTorch documentation, "DistributedDataParallel", ``bucket_cap_mb``; Li et al., "PyTorch Distributed:
    Experiences on Accelerating Data Parallel Training", VLDB 2020, sections 3.2.3 and 5.3.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.units import format_bytes, format_ns, format_share
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.comm._earlier import alone_ns, earlier, exposed_ns
from torchtriage.diagnose.patterns.comm._gradient_reduces import Reduces, earliest_end_ns, find_reduces

PATTERN = Pattern.of(
    __name__, "COM059", "Most gradients are reduced after the backward pass", order=402, needs="collectives ops"
)
FIX = Fix(
    text="Reduce gradients in buckets that become ready while the backward pass still computes.",
    code="""model = DistributedDataParallel(model, bucket_cap_mb=25)  # the default""",
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)
_FIX_SHARDED = Fix(
    text="Make each layer, the embedding and the head a unit of its own, so that gradients are reduced during the"
    " backward pass.",
    code="""for layer in (model.embedding, *model.layers, model.head):
    fully_shard(layer)
fully_shard(model)""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)

MIN_SHARE = 0.03  # of the judged time that could be hidden: the last message is always exposed
MOST = 0.5  # of the gradients of a backward pass
SMALL_BYTES = 4 << 20  # what stays at the end anyhow; below, a ring is bound by its latency


def find(trace: Trace) -> Claims:
    """Yield one claim over the last message of each backward pass."""
    found = find_collectives(trace)
    reduces = find_reduces(trace, found) if found is not None and trace.origin.world_size != 1 else None
    if found is None or reduces is None:
        return
    size = found.size_bytes[reduces.at].astype(np.float64)
    known = bool((size >= 0).all())
    weight = size if known else trace.dur_ns[found.rows[reduces.at]].astype(np.float64)
    last = np.append(reduces.turn[1:] != reduces.turn[:-1], True)
    share = _share(reduces, weight)
    large = last & (share > MOST)
    if known:
        large &= size > SMALL_BYTES
    steps = trace.steps
    if (
        2 * np.count_nonzero(large & steps.in_steady(reduces.step))
        < len(distinct(reduces.turn[steps.in_steady(reduces.step)]))
        or not large.any()
    ):
        return
    pick = np.zeros(len(found.rows), dtype=bool)
    pick[reduces.at[large]] = True
    gain = earlier(trace, found, pick, _room(trace, found, reduces, large, size if known else None))
    # else the network is slow, or the gradients come at the end: smaller messages would wait as well
    if gain.hidden_ns < max(MIN_SHARE * steps.wall_ns * steps.n_steady, MOST * gain.exposed_ns):
        return
    rows = found.rows[pick]
    sharded = "scatter" in trace.name_of(int(reduces.op[large][0]))
    median = float(np.median(size[large]))
    much = f" ({format_bytes(median)})" if known else ""
    yield gain.claim(
        found,
        rows,
        f"the last message of a backward pass carries {format_share(float(np.median(share[large])))} of the"
        f" gradients{much}: {format_ns(gain.exposed_ns / steps.n_steady)} exposed {steps.per},"
        f" of which the backward pass could hide {format_ns(gain.hidden_ns / steps.n_steady)}",
        {
            "share_of_gradients": round(float(np.median(share[large])), 6),
            "n_reduces_per_step": steps.median_count(reduces.step),
            **given(bytes_of_last=int(median) if known else 0),
        },
        method="exposed time of the last message without the wait for late ranks and 4 MiB of it, as far as the"
        " backward pass before it had no communication beside it",
        fix=_FIX_SHARDED if sharded else FIX,
    )


def _share(reduces: Reduces, weight: Floats) -> Floats:
    """Return float64[r]: what share of its backward pass each message carries."""
    _, which = np.unique(reduces.turn, return_inverse=True)
    return weight / np.maximum(np.bincount(which, weights=weight)[which], 1)


def _room(trace: Trace, found: Collectives, reduces: Reduces, large: Mask, size: Floats | None) -> Ints:
    """Return int64[k]: how much of each could run beside the backward pass."""
    since = trace.start_ns[found.rows].copy()
    since[reduces.at] = reduces.since_ns
    room = alone_ns(found, since)
    chosen = reduces.at[large]
    possible = earliest_end_ns(trace, found, reduces, large)[large]
    gain = np.where(possible > 0, trace.end_ns[found.rows[chosen]] - possible, room[chosen])
    if size is not None:
        pick = np.zeros(len(room), dtype=bool)
        pick[chosen] = True
        part = 1 - np.minimum(SMALL_BYTES / np.maximum(size[large], 1), 1)
        gain = np.minimum(gain, part * exposed_ns(found, pick)[chosen])
    room[chosen] = np.clip(gain, 0, room[chosen])
    return room
