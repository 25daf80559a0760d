"""Memory grows from step to step because tensors are kept across steps.

Looks like: allocated bytes are higher at the end of nine steady steps out of ten than one step before, by at least 64
    KiB, and by 1 MiB or 0.5 % of what is allocated; the growth consists of blocks from every step that are never freed
    before the recording ends.
Slow because: it is not slow until memory runs out; before that, graphs that are kept alive make the last backward
    longer.
Cost: none is claimed. Where it is known, the number of steps until the device is full is reported.
Fix: keep numbers instead of tensors (``loss.detach()``, ``loss.item()``), move results to the host, clear lists, and
    validate under ``torch.no_grad()``.
Leave it when: a buffer of fixed size is being filled, or results are collected on purpose.
Source: PyTorch documentation, FAQ, "My model reports cuda runtime error(2): out of memory"; measured: exactly 65,536
    bytes per step for a kept output, and none for a loss summed up after backward.
"""

from collections import Counter
from typing import Any

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_bytes, format_count
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(__name__, "MEM029", "Memory grows from step to step", order=322, needs="memory steps")
FIX = Fix(
    text="Keep numbers, not tensors with their graph.",
    code="""total += loss.detach()              # not: total += loss
outputs.append(out.detach().cpu())  # not: outputs.append(out)
with torch.no_grad():               # validation
    metric += criterion(model(x), y)""",
    link="https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
)

MIN_STEPS = 4
MOSTLY_UP = 0.9  # of the steady steps (catalogue 29)
MIN_GROWTH = 64 * 1024  # per step: lists of losses grow by 512 bytes, and do no harm
MIN_SHARE, MIN_LARGE = 0.005, 1 << 20  # of what is allocated, or this many bytes per step
MIN_KEPT = 0.5
"""Share of the growth that blocks of the same step explain; a cache that is copied to grow (cat) frees the old one in
each step, and keeps none."""


def find(trace: Trace) -> Claims:
    """Yield one claim for each memory that grows, the host's included."""
    memory = trace.memory
    kept = _kept(trace)
    places = zip(memory.device_type.tolist(), memory.device.tolist(), strict=True)
    for kind, device in sorted(set(places)):
        mine = (memory.device_type == kind) & (memory.device == device)
        yield from _judge(trace, mine, kept, on_host=kind == 0)


def _judge(trace: Trace, mine: Mask, kept: Mask, *, on_host: bool) -> Claims:
    steps = trace.steps
    ends = _allocated_at(trace, mine, steps.host_end_ns)
    # the growth of a step is told from the end of the one before
    pick = np.flatnonzero(steps.steady[1:]) + 1
    growth = ends[pick] - ends[pick - 1]
    if len(growth) < MIN_STEPS or (growth > 0).mean() < MOSTLY_UP:
        return
    slope = float(np.median(growth))
    if slope < MIN_GROWTH or slope < min(MIN_LARGE, MIN_SHARE * ends[pick[-1]]):
        return
    blocks = np.flatnonzero(mine & kept)
    step_of = np.searchsorted(steps.host_start_ns, trace.memory.at_ns[blocks], side="right") - 1
    # of the last step nobody knows what the next would free
    judged = pick[pick < len(steps) - 1]
    size = np.bincount(
        step_of[step_of >= 0], weights=trace.memory.size_bytes[blocks][step_of >= 0], minlength=len(steps)
    )[judged]
    if not len(judged) or float(np.median(size)) < MIN_KEPT * slope:
        return
    blocks = blocks[np.isin(step_of, judged)]
    ops = _ops_at(trace, trace.memory.at_ns[blocks])
    where = "host memory" if on_host else "device memory"
    left = _steps_left(trace, mine, slope) if not on_host else None
    full = f": full after {format_count(left, 'more step')}" if left is not None else ""
    yield Claim(
        message=f"{where} grows by {format_bytes(slope)} per step, from {format_bytes(ends[0])} to"
        f" {format_bytes(ends[-1])}, in blocks that are never freed{full}",
        certainty="certain",
        rows=distinct(ops[ops >= 0]),
        evidence={
            "growth_bytes_per_step": int(slope),
            "allocated_first_bytes": int(ends[0]),
            "allocated_last_bytes": int(ends[-1]),
            "kept_bytes_per_step": int(np.median(size)),
            "n_kept_blocks_per_step": round(len(blocks) / len(judged), 2),
            "share_of_steps_growing": round(float((growth > 0).mean()), 6),
            "allocated_by": _owners(trace, ops, trace.memory.size_bytes[blocks]),
            **({"steps_until_full": left} if left is not None else {}),
        },
        anchor=_anchor(ops, trace.memory.size_bytes[blocks]),
        always=True,
    )


def _allocated_at(trace: Trace, mine: Mask, times_ns: Ints) -> Ints:
    at_ns, allocated = trace.memory.at_ns[mine], trace.memory.allocated_bytes[mine]
    order = np.argsort(at_ns, kind="stable")
    index = np.searchsorted(at_ns[order], times_ns, side="right") - 1
    return np.where(index >= 0, allocated[order][index], 0)


def _kept(trace: Trace) -> Mask:
    """Return bool[records]: allocations whose address is not freed up to the end."""
    memory = trace.memory
    keys = (memory.at_ns, memory.addr, memory.device, memory.device_type)
    order = np.lexsort(keys)
    last = np.ones(len(order), dtype=bool)
    for key in keys[1:]:
        last[:-1] &= key[order][1:] == key[order][:-1]
    last[:-1], last[-1:] = ~last[:-1], True
    kept = np.zeros(len(order), dtype=bool)
    kept[order] = last & (memory.size_bytes[order] > 0)
    return kept


def _ops_at(trace: Trace, times_ns: Ints) -> Ints:
    """Return the outermost operator open at each time, -1 without one; any thread, main first."""
    found = np.full(len(times_ns), -1, np.int64)
    ops = trace.kind == Kind.OP
    lanes = distinct(trace.lane[ops]).tolist()
    for lane in sorted(lanes, key=lambda lane: lane != trace.steps.lane):
        todo = np.flatnonzero(found < 0)
        inner = trace.tree.at(np.full(len(todo), lane), times_ns[todo])
        todo, inner = todo[inner >= 0], inner[inner >= 0]
        outer = trace.tree.outermost(inner, ops)
        found[todo] = np.where(outer >= 0, outer, np.where(ops[inner], inner, -1))
    return found


def _owners(trace: Trace, ops: Ints, size_bytes: Ints) -> list[str]:
    total: Counter[str] = Counter()
    for row, size in zip(ops.tolist(), size_bytes.tolist(), strict=True):
        total[trace.name_of(row) if row >= 0 else "outside operators"] += size
    return [name for name, _ in total.most_common(3)]


def _anchor(ops: Ints, size_bytes: Ints) -> int:
    known = np.flatnonzero(ops >= 0)
    return int(ops[known[np.argmax(size_bytes[known])]]) if len(known) else -1


def _steps_left(trace: Trace, mine: Mask, slope: float) -> int | None:
    total: Any = trace.origin.memory_bytes
    if not total:
        return None
    return max(int((total - int(trace.memory.allocated_bytes[mine][-1])) / slope), 0)
