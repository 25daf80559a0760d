"""Every rank reads the whole global batch and keeps its own part.

Looks like: before anything is computed in a step, ``aten::slice`` takes from a tensor's first dimension the part that
    belongs to this rank of the job, one of as many equal ones as there are ranks (or every n-th sample), and the host
    has taken at least 5 % of the step until then.
Slow because: n ranks read and decode n times what they need. All are alike, so no rank waits for another.
Cost: the host's time from the start of the step to the slice (with a device: the device's idle time in it), of which n
    - 1 of n parts are other ranks'. Low counts half of that: not all of it is necessarily reading.
Fix: read only this part: ``DistributedSampler``, ``split_dataset_by_node``, or indices of this rank.
Leave it when: what is read does not depend on the number of samples (one large file, a cache that all ranks share), or
    a batch in memory is cut.
Source: PyTorch documentation, ``torch.utils.data.distributed.DistributedSampler``.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace
from torchtriage.diagnose.patterns.data._fetches import MIN_SHARE, idle

PATTERN = Pattern.of(__name__, "DAT069", "Every rank reads the whole global batch", order=299, needs="ops shapes steps")
FIX = Fix(
    text="Let each rank read only its own part of the batch.",
    code="""sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=per_rank, sampler=sampler)
# by hand: data.read(range(first + rank * per_rank, first + (rank + 1) * per_rank))""",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)

MOSTLY = 0.5  # of the steps
_WORK = r"(?i)mm\b|conv|linear|embedding|attention|^autograd::engine"


def find(trace: Trace) -> Claims:
    """Yield one claim over the time until the slices."""
    rank, world, steps = trace.origin.rank, trace.origin.world_size or 1, trace.steps
    if rank is None or not 0 <= rank < world or world < 2:
        return
    rows = _own_parts(trace, rank, world)
    step = steps.of_host(rows)
    if steps.share_of_steps(step) < MOSTLY:
        return
    spans = intervals.spans(steps.start_ns[step], trace.start_ns[rows])
    at_stake = intervals.intersect(spans, idle(trace)) if trace.devices else spans
    lost_ns = intervals.length(at_stake) / steps.n_steady
    if lost_ns < MIN_SHARE * steps.wall_ns:
        return
    high = (world - 1) / world
    yield Claim(
        message=f"{format_ns(lost_ns)} of {format_ns(steps.wall_ns)} {steps.per} pass until a batch is ready of which"
        f" rank {rank} keeps one of {format_count(world, 'equal part')}",
        certainty="likely",
        rows=rows,
        spans=at_stake,
        gain_low=high / 2,
        gain_high=high,
        time_class="idle" if trace.devices else "host",
        method="time from the begin of the step until the batch is cut, less this rank's part; low end: half of it",
        evidence={
            "until_cut_ms_per_step": ms(lost_ns),
            "rank": rank,
            "world_size": world,
            "n_samples": int(trace.details_of("dims", rows[:1])[0][0][0]),
        },
        edits=(Edit("threads", factor=1 - high / 2, best=1 - high, spans=at_stake),),
    )


def _own_parts(trace: Trace, rank: int, world: int) -> Ints:
    """Return the first slice of each steady step that takes this rank's part, before anything is computed."""
    slices = (trace.kind == Kind.OP) & trace.named("aten::slice")
    slices &= trace.where_detail("concrete", lambda given: _whole(given, rank, world) != 0, slices)
    rows = np.flatnonzero(slices)
    rows = rows[trace.steps.in_steady(trace.steps.of_host(rows))]
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    step = trace.steps.of_host(rows)
    first = np.append(True, step[1:] != step[:-1])[: len(rows)]
    rows, step = rows[first], step[first]
    work = np.sort(trace.start_ns[trace.matching(_WORK, Kind.OP)])
    begun = np.searchsorted(work, trace.start_ns[rows]) > np.searchsorted(work, trace.steps.start_ns[step])
    rows = rows[~begun]
    dims, given = (trace.details_of(what, rows) for what in ("dims", "concrete"))
    fits = [_fits(size, _whole(inputs, rank, world)) for size, inputs in zip(dims, given, strict=True)]
    return rows[np.array(fits, bool)]


def _whole(given: object, rank: int, world: int) -> int:
    """Return how many samples all ranks have together where a slice's inputs are this rank's part, 0 where not.

    -1 where each takes every n-th sample.
    """
    if not isinstance(given, list) or len(given) < 5 or str(given[1]) != "0":
        return 0
    numbers = [int(text) if (text := str(value)).isdecimal() else 0 for value in given[2:5]]
    begin, end, every = numbers
    if (begin, every) == (rank, world):
        return -1
    part = end - begin
    return world * part if every == 1 and part > 0 and begin == rank * part else 0


def _fits(size: object, whole: int) -> bool:
    n = size[0][0] if isinstance(size, list) and size and isinstance(size[0], list) and size[0] else 0
    return isinstance(n, int) and n > 0 and whole in (n, -1)
