"""A tensor grows by ``cat``, and every call copies all of it again.

Looks like: ``aten::cat`` calls that each take a tensor as long as the result of a call before, plus
    a piece that is always of the same size, eight times in a row or through four steps. Results
    that a convolution reads, as in densely connected nets, do not count.
Slow because: the n-th call copies n pieces to add one, so the copied bytes grow with the square of
    the number of calls, and every call allocates a larger block.
Cost: each call's time without the share of its new piece; at the low end minus what writing the
    piece takes instead, and only what the device can make up for because the next kernel waits.
Fix: allocate the final size once and write each piece to its place, or collect the pieces in a list
    and concatenate once.
Leave it when: the final size is unknown and small, or the loop is short.
Source: PyTorch documentation, ``torch.cat`` (it returns a new tensor); Hugging Face Transformers,
    "Best practices for generation with a cache": static against dynamic caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.distinct import distinct
from torchtriage.finding import Fix
from torchtriage.patterns._inputs import Inputs, inputs_of
from torchtriage.patterns._products import is_shape
from torchtriage.patterns._recurrence import call_sites
from torchtriage.patterns._work import work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, format_share

PATTERN = Pattern(
    code="CPY013",
    name="cat-grow-in-loop",
    family="copy",
    title="A tensor grows by concatenation in a loop",
    order=538,
    needs=frozenset({"ops", "shapes", "work"}),
)

FIX = Fix(
    text="Allocate once and write to slices, or collect in a list and concatenate at the end.",
    code="""out = torch.empty(n, width, device=x.device)
for i, piece in enumerate(pieces):
    out[i : i + 1] = piece  # not out = torch.cat([out, piece])""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cat.html",
)

Ints = NDArray[np.int64]

MIN_GROWTH = 8
"""Calls in a row that each take the result before; feature pyramids have fewer (catalogue 13)."""
MIN_STEPS = 4
"""What goes on growing from step to step does not need to be that many."""
WRITE_NS = {"host": 20_000, "compute": 2_000}
"""What writing one piece to its place takes: two views and a copy on the host (measured under the
profiler), a small copy kernel on a device. A cache of 64 tokens on a CPU gained nothing."""
MAX_CLAIMS = 3
_CONVOLUTION = r"^aten::(conv\dd|convolution)$"


class _Join(NamedTuple):
    """One distinct set of inputs: what grows (``kind``), from where to where, of what shape."""

    kind: str
    before: int
    after: int
    result: tuple[int, ...]


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim per tensor that grows, the costliest first."""
    if not trace.devices and not trace.is_host_only:
        return
    claims = [claim for chain in _chains(trace) if (claim := _claim(trace, *chain)) is not None]
    claims.sort(key=lambda claim: -intervals.length(intervals.union(claim.spans)))
    yield from claims[:MAX_CLAIMS]


def _chains(trace: Trace) -> list[tuple[Ints, list[_Join]]]:
    """Return the calls that make each tensor grow, in order, and what each of them joins."""
    rows = trace.tree.members
    rows = rows[trace.named("aten::cat")[rows]]
    rows = rows[~trace.tree.under(trace.named("aten::cat"))[rows]]
    inputs, which = inputs_of(trace, rows)
    joins = [_join(one) for one in inputs]
    read = _read_by_convolutions(trace)
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
        keep = np.zeros(len(at), dtype=bool)
        for one in np.flatnonzero(n_growths >= MIN_STEPS - 1).tolist():
            part = run == one
            keep |= part & _goes_on(trace, at[part], int(n_growths[one]))
        if keep.any():
            found.append((at[keep], [chain[one] for one in np.flatnonzero(keep).tolist()]))
    return found


def _goes_on(trace: Trace, rows: Ints, n_growths: int) -> bool:
    """Return whether a tensor grows often enough, or through enough steps."""
    steps = distinct(trace.steps.of_host(rows)) if len(trace.steps) else np.empty(0)
    return n_growths >= MIN_GROWTH or (n_growths >= MIN_STEPS - 1 and len(steps) >= MIN_STEPS)


def _join(inputs: Inputs) -> _Join | None:
    """Return what a ``cat`` of two tensors joins, None where it cannot be a growing one."""
    shapes = inputs.dims[0] if inputs.dims else None
    if not isinstance(shapes, list) or len(shapes) != 2 or not all(map(is_shape, shapes)):
        return None
    left, right = shapes
    along = inputs.axis(1, len(left))
    if len(left) != len(right) or along < 0:
        return None
    rest = left[:along] + left[along + 1 :]
    if rest != right[:along] + right[along + 1 :] or not all(rest):
        return None
    old, new = left[along], right[along]
    if not new:
        return None
    result = (*left[:along], old + new, *left[along + 1 :])
    return _Join(f"{rest} {along} {new}", old, old + new, result)


def _read_by_convolutions(trace: Trace) -> set[tuple[int, ...]]:
    rows = np.flatnonzero((trace.kind == Kind.OP) & trace.matching(_CONVOLUTION))
    return {tuple(one.shape(0)) for one in inputs_of(trace, rows)[0]}


def _claim(trace: Trace, rows: Ints, joins: list[_Join]) -> Claim | None:
    steps = trace.steps
    work = work_of(trace, rows)
    if work is None:
        return None
    left = WRITE_NS[work.time_class] / np.maximum(trace.dur_ns[work.rows], 1)
    copied = dict(zip(rows.tolist(), (join.before / join.after for join in joins), strict=True))
    gain = np.array([copied[op] for op in work.op.tolist()])
    low = np.clip(gain - left, 0, 1)
    steady = np.flatnonzero(steps.in_steady(steps.of_host(rows)))
    if not len(steady):
        return None
    count = round(len(steady) / steps.n_steady, 2)
    longest = max(joins, key=lambda join: join.after)
    size = np.array([np.prod(join.result, dtype=np.float64) for join in joins])[steady]
    new = size * (1 - np.array([join.before / join.after for join in joins]))[steady]
    sites = call_sites(trace, rows)
    return Claim(
        message=(
            f"a tensor grows by cat to {list(longest.result)}: {format_count(count, 'call')}"
            f" {steps.per} write {format_count(round(size.sum() / new.sum(), 1))} times what is"
            f" new and take {format_ns(work.per_step_ns)}, {format_share(work.share)} of {work.of}"
        ),
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=np.minimum(low, work.free),
        gain_high=gain,
        time_class=work.time_class,
        basis="modelled",
        method="time of the calls without the share of the new piece; low: minus a write each",
        evidence={
            **work.evidence("cat"),
            "n_calls_per_step": count,
            "new_elements_per_step": round(float(new.sum()) / steps.n_steady),
            "written_elements_per_step": round(float(size.sum()) / steps.n_steady),
            "final_shape": list(longest.result),
            **({"call_sites": sites} if sites else {}),
        },
        anchor=int(work.op[np.argmax(trace.dur_ns[work.rows])]),
        edits=(Edit("shrink", work.rows, factor=1 - low, best=1 - gain),),
    )
