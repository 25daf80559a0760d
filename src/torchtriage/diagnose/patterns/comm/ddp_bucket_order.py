"""DDP's buckets become ready in a different order from the one they are reduced in.

Looks like: two or more ``c10d::allreduce_`` in one gradient's hook, in most steps: buckets that were ready have waited
    for an earlier one. The last of them are exposed, although the backward pass computed while nothing was
    communicated.
Slow because: every rank reduces the buckets in the same fixed order. DDP lays them out in reverse order of
    registration and again in the order of the first backward pass, but not with ``find_unused_parameters=True``.
Cost: bounded by the exposed time of the buckets that waited, without the waiting for late ranks, and by the computation
    before them. Low counts the fastest of equal messages on a device, nothing on the host.
Fix: ``static_graph=True`` where every step uses the same parameters, ``find_unused_parameters=False`` where it uses
    all; else register modules in the order in which ``forward`` calls them.
Leave it when: branches really change from step to step: then no order fits all.
Source: PyTorch documentation, "DistributedDataParallel", internal design; ``Reducer::rebuild_buckets``.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import Collectives, find_collectives
from torchtriage.core.units import format_count, format_ns
from torchtriage.diagnose.patterns.base import HOST_KINDS, Claims, Fix, Ints, Kind, Mask, Pattern, Trace
from torchtriage.diagnose.patterns.comm._earlier import alone_ns, earlier, exposed_ns
from torchtriage.diagnose.patterns.comm._gradient_reduces import Reduces, find_reduces

PATTERN = Pattern.of(
    __name__, "COM061", "DDP's buckets wait for one that is ready late", order=401, needs="collectives ops"
)
FIX = Fix(
    text="Let DDP rebuild its buckets in the order in which gradients become ready.",
    code="""model = DistributedDataParallel(
    model, static_graph=True, gradient_as_bucket_view=True
)  # and not find_unused_parameters=True""",
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)

MIN_SHARE = 0.03  # of the judged time that could be hidden
NO_BUCKET_BYTES = 1 << 16  # the map of used parameters, which follows the last bucket
_BETWEEN = r"^autograd::engine::evaluate_function|reducer::mul_out$|^aten::(mul|div|copy)_?$"


def find(trace: Trace) -> Claims:
    """Yield one claim over the buckets that waited for an earlier one."""
    if not trace.matching(r"^DistributedDataParallel\.forward$", *HOST_KINDS).any():
        return
    found = find_collectives(trace)
    reduces = find_reduces(trace, found) if found is not None and trace.origin.world_size != 1 else None
    if found is None or reduces is None:
        return
    waited = _waited(trace, found, reduces)
    steps = trace.steps
    steady = steps.in_steady(reduces.step)
    if 2 * len(distinct(reduces.turn[waited & steady])) < len(distinct(reduces.turn[steady])) or not waited.any():
        return
    pick = np.zeros(len(found.rows), dtype=bool)
    pick[reduces.at[waited]] = True
    gain = earlier(trace, found, pick, _room(found, reduces, waited, pick))
    if gain.hidden_ns < MIN_SHARE * steps.wall_ns * steps.n_steady:
        return
    rows = found.rows[pick]
    count = steps.median_count(reduces.step[waited])
    yield gain.claim(
        found,
        rows,
        f"{format_count(count, 'bucket')} {steps.per} wait for one that is ready late:"
        f" {format_ns(gain.exposed_ns / steps.n_steady)} exposed {steps.per}, of which"
        f" the backward pass could hide {format_ns(gain.hidden_ns / steps.n_steady)}",
        {"waiting_buckets_per_step": count, "n_reduces_per_step": steps.median_count(reduces.step)},
        anchor=int(reduces.op[waited][0]),
        method="exposed time of buckets enqueued together with one that was late, as far as the backward pass before"
        " had no communication beside it",
    )


def _waited(trace: Trace, found: Collectives, reduces: Reduces) -> Mask:
    """Return bool[r]: buckets enqueued right behind another one, with no gradient between."""
    size = found.size_bytes[reduces.at]
    bucket = (size < 0) | (size > NO_BUCKET_BYTES)
    gradients = np.sort(trace.start_ns[trace.matching(_BETWEEN, Kind.OP)])
    before = np.searchsorted(gradients, trace.start_ns[reduces.op])
    same = (np.diff(before) == 0) & (np.diff(reduces.turn) == 0)
    return np.append(False, same) & bucket & np.append(False, bucket[:-1])


def _room(found: Collectives, reduces: Reduces, waited: Mask, pick: Mask) -> Ints:
    """Return int64[k]: what of the computation before a late bucket each of those behind it could use."""
    since = found.trace.start_ns[found.rows].copy()
    since[reduces.at] = reduces.since_ns
    alone = alone_ns(found, since)[reduces.at]
    # those that waited share what was computed before the one they waited for
    head = np.maximum.accumulate(np.where(waited, 0, np.arange(len(waited))))
    need = np.where(waited, exposed_ns(found, pick)[reduces.at], 0)
    total = np.cumsum(need)
    taken = total - need - total[head]
    room = np.zeros(len(found.rows), np.int64)
    room[reduces.at] = np.where(waited, np.maximum(alone[head] - taken, 0), 0)
    return room
