"""A tensor grows by ``cat``, and every call copies all of it again.

Looks like: ``aten::cat`` calls that each take a tensor as long as the result of an earlier call, plus a piece of
    constant size, eight times in a row or through four steps. Results that a convolution reads, as in densely
    connected nets, do not count.
Slow because: the n-th call copies n pieces to add one, so the copied bytes grow with the square of the number of
    calls, and every call allocates a larger block.
Cost: each call's time without the share of its new piece; at the low end minus the time of writing the piece instead,
    and only the part the device can recover because the next kernel is already queued.
Fix: allocate the final size once and write each piece to its place, or collect the pieces in a list and concatenate
    once.
Leave it when: the final size is unknown and small, or the loop is short.
Source: PyTorch documentation, ``torch.cat`` (it returns a new tensor); Hugging Face Transformers, "Best practices for
    generation with a cache": static against dynamic caches.
"""

from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import call_sites
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Pattern, Trace, given

PATTERN = Pattern.of(
    __name__, "CPY013", "A tensor grows by concatenation in a loop", order=538, needs="ops shapes work"
)
FIX = Fix(
    text="Allocate once and write to slices, or collect in a list and concatenate at the end.",
    code="""out = torch.empty(n, width, device=x.device)
for i, piece in enumerate(pieces):
    out[i : i + 1] = piece  # not out = torch.cat([out, piece])""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cat.html",
)

MIN_GROWTH = 8  # calls in a row that each take the result before; feature pyramids have fewer (catalogue 13)
MIN_STEPS = 4  # what goes on growing from step to step does not need to be that many
WRITE_NS = {"host": 20_000, "compute": 2_000}
"""What writing one piece to its place takes: two views and a copy on the host (measured under the profiler), a small
copy kernel on a device. A cache of 64 tokens on a CPU gained nothing."""
MAX_CLAIMS = 3
_CONVOLUTION = r"^aten::(conv\dd|convolution)$"


class _Join(NamedTuple):
    """One distinct set of inputs: what grows (``kind``), from where to where, of what shape."""

    kind: str
    before: int
    after: int
    result: tuple[int, ...]


def find(trace: Trace) -> Claims:
    """Yield one claim per tensor that grows, the largest cost first."""
    claims = [claim for chain in _chains(trace) if (claim := _claim(trace, *chain)) is not None]
    claims.sort(key=lambda claim: -intervals.length(intervals.union(claim.spans)))
    yield from claims[:MAX_CLAIMS]


def _chains(trace: Trace) -> list[tuple[Ints, list[_Join]]]:
    rows = trace.tree.members
    rows = rows[trace.named("aten::cat")[rows]]
    rows = rows[~trace.tree.under(trace.named("aten::cat"))[rows]]
    inputs, which = inputs_of(trace, rows)
    joins = [_join(call) for call in inputs]
    convolutions = np.flatnonzero(trace.matching(_CONVOLUTION, Kind.OP))
    read = {tuple(inputs.shape(0)) for inputs in inputs_of(trace, convolutions)[0]}
    kinds: dict[tuple[int, str], list[int]] = {}
    for index, code in enumerate(which.tolist()):
        join = joins[code]
        if join is not None and join.result not in read:
            kinds.setdefault((int(trace.lane[rows[index]]), join.kind), []).append(index)
    found = []
    for members in kinds.values():
        if len(members) < MIN_STEPS:
            continue
        chain = [join for code in which[members].tolist() if (join := joins[code]) is not None]
        before = np.array([join.before for join in chain])
        piece = chain[0].after - chain[0].before
        # layers grow side by side: each call begins where the one before began, or where it ended
        grows = np.diff(before) == piece
        run = np.cumsum(np.append(True, ~(grows | (np.diff(before) == 0)))) - 1
        at = rows[np.array(members)]
        n_growths = np.bincount(run[1:], weights=grows & (run[1:] == run[:-1]))
        keep = n_growths[run] >= MIN_GROWTH
        if len(trace.steps):
            for index in np.flatnonzero((n_growths >= MIN_STEPS - 1) & (n_growths < MIN_GROWTH)).tolist():
                part = run == index
                keep |= part & (len(distinct(trace.steps.of_host(at[part]))) >= MIN_STEPS)
        if keep.any():
            found.append((at[keep], [chain[index] for index in np.flatnonzero(keep).tolist()]))
    return found


def _join(inputs: Inputs) -> _Join | None:
    """Return what a ``cat`` of two tensors joins, None where it cannot be a growing one."""
    shapes = inputs.dims[0] if inputs.dims else None
    if not isinstance(shapes, list) or len(shapes) != 2 or not all(map(is_shape, shapes)):
        return None
    left, right = shapes
    along = inputs.axis(1, len(left))
    if len(left) != len(right) or along < 0:
        return None
    old, new = left[along], right[along]
    rest = left[:along] + left[along + 1 :]
    if rest != right[:along] + right[along + 1 :] or not all([*rest, new]):
        return None
    result = (*left[:along], old + new, *left[along + 1 :])
    return _Join(f"{rest} {along} {new}", old, old + new, result)


def _claim(trace: Trace, rows: Ints, joins: list[_Join]) -> Claim | None:
    steps = trace.steps
    work = work_of(trace, rows)
    steady = steps.in_steady(steps.of_host(rows))
    if work is None or not steady.any():
        return None
    left = WRITE_NS[work.time_class] / np.maximum(trace.dur_ns[work.rows], 1)
    copied = np.array([join.before / join.after for join in joins])
    copied_by = dict(zip(rows.tolist(), copied.tolist(), strict=True))
    gain = np.array([copied_by[op] for op in work.op.tolist()])
    count = steps.mean_count(steps.of_host(rows))
    longest = max(joins, key=lambda join: join.after)
    size = np.array([np.prod(join.result, dtype=np.float64) for join in joins])[steady]
    new = size * (1 - copied)[steady]
    return work.claim(
        f"a tensor grows by cat to {list(longest.result)}: {format_count(count, 'call')} {steps.per} write"
        f" {format_count(round(size.sum() / new.sum(), 1))} times the new data and take {work.text}",
        "cat",
        low=np.clip(gain - left, 0, 1),
        high=gain,
        method="time of the calls without the share of the new piece; low: minus a write each",
        evidence={
            "n_calls_per_step": count,
            "new_elements_per_step": round(float(new.sum()) / steps.n_steady),
            "written_elements_per_step": round(float(size.sum()) / steps.n_steady),
            "final_shape": list(longest.result),
            **given(call_sites=call_sites(trace, rows)),
        },
    )
