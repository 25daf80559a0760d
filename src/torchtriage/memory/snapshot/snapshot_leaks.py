"""Leak verdict from a snapshot's history: what each step allocates and nobody frees.

Steps are found first: by the marks the program left (``ProfilerStep#3``, optimizer steps), else by
the period of the allocations themselves. Then every allocation has a step it was made in, and
either died or is still there at the end. A leak is a stack of which **each** step leaves something
behind. A cache that fills leaves something in early steps only, what is replaced in each step is
left by the last one only, and neither makes memory at the step boundaries rise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Floats, Ints, distinct
from torchtriage.core.finding import Fix, NotChecked, Place
from torchtriage.core.stats.trend import sen_slope
from torchtriage.core.units import format_bytes, format_count
from torchtriage.memory.findings.memory_growth import CODE as MEMORY_GROWTH
from torchtriage.memory.leaks.growth_series import follow
from torchtriage.memory.snapshot.attribution import NO_STACK, MemoryPhase, Owners
from torchtriage.memory.snapshot.result import Area, Opinion
from torchtriage.memory.snapshot.snapshot import Action, Snapshot
from torchtriage.memory.snapshot.timeline import Timeline

RECORD = (
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000)\n"
    "…  # at least eight steps\n"
    "torch.cuda.memory._dump_snapshot('snapshot.pickle')"
)


MIN_STEPS = 5
"""After the first, which makes optimizer state and fills caches."""
MOSTLY = 0.9
"""Of the judged steps must leave something."""
MIN_GROWTH = 1024
"""Bytes per step: two blocks of the allocator's smallest size. Losses that are kept are one."""
FEW_STEPS = 20
MAX_HOLDERS = 5
MIN_SPAN = 0.6
"""Of the history, from the first step to the last, where steps are found by their period."""
MAX_UNEVEN = 0.5
"""Spread over mean of the distances between steps, in entries of the history."""
MANY_STACKS = 3
"""A graph keeps what many operators saved; a list keeps what one line made."""
_MARK = re.compile(r"ProfilerStep#\d+|Optimizer\.step#|[Oo]ptimizer.*step")
_HOOK = re.compile(r"hook", re.IGNORECASE)

_FIXES = {
    "graph": Fix(
        text="Keep the number, not the tensor with its graph.",
        code="total += loss.detach()   # not: total += loss\nwith torch.no_grad():    # validation",
    ),
    "hook": Fix(text="Keep detached copies, or remove the hook after its step."),
    "tensor": Fix(text="Keep only what is needed, detached and on the host, or clear the list."),
}


_UNCERTAIN = NotChecked(
    MEMORY_GROWTH.code, MEMORY_GROWTH.name, ("steady growth from the same lines",), "record several times as many steps"
)


@dataclass(frozen=True)
class SnapshotSteps:
    """Where steps begin in the history of one device: ``row`` int64[n], increasing; and how."""

    row: Ints
    basis: str


def judge_snapshot(owners: Owners, memories: Sequence[Timeline]) -> Opinion:
    """Return whether memory grows from step to step, and which stacks hold it; ``memories`` : one for each device."""
    opinions = {memory.device: opinion for memory in memories if (opinion := _judge(owners, memory)) is not None}
    sentences = [
        opinion.sentence if len(memories) == 1 else f"GPU {device}: {opinion.sentence}"
        for device, opinion in opinions.items()
    ]
    not_checked = [missing for opinion in opinions.values() for missing in opinion.not_checked]
    without = [f"device {memory.device}" for memory in memories if memory.device not in opinions]
    if without or not memories:
        where = f" on {' and '.join(without)}" if len(memories) > 1 else ""
        why = f"history of {MIN_STEPS + 2} similar steps{where}"
        not_checked.append(NotChecked(MEMORY_GROWTH.code, MEMORY_GROWTH.name, (why,), RECORD))
    return Opinion(
        " ".join(sentences),
        tuple(finding for opinion in opinions.values() for finding in opinion.findings),
        tuple(not_checked),
        growth=tuple(picture for opinion in opinions.values() for picture in opinion.growth),
    )


def find_steps(owners: Owners, memory: Timeline) -> SnapshotSteps | None:
    """Return where steps begin in the history of a device, None where that is not known.

    Marks need the history's times. Without marks, the user's own lines show it: those that allocate
    outside a model's forward, equally often and evenly apart, with something freed in between. Layers
    of a model are as regular as steps, so what happens inside a forward, a backward or an optimizer
    does not count.
    """
    return _marked(owners.snapshot, memory) or _periodic(owners, memory.start, memory.end)


def _marked(snapshot: Snapshot, memory: Timeline) -> SnapshotSteps | None:
    marks, time = snapshot.annotations, snapshot.history.time_us[memory.start : memory.end]
    if not len(marks) or not len(time) or time[0] < 0:
        return None
    mine = np.flatnonzero(marks.device == memory.device)
    texts = [snapshot.texts[code] for code in marks.name[mine]]
    names = [re.sub(r"\d+", "#", text) for text in texts]
    common = Counter(name for name, text in zip(names, texts, strict=True) if _MARK.search(text))
    for name, n in common.most_common():
        if n < MIN_STEPS + 1:
            continue
        at = marks.start_us[mine[[mark == name for mark in names]]]
        row = distinct(np.searchsorted(np.maximum.accumulate(time), np.sort(at))) + memory.start
        row = row[row < memory.end]
        if len(row) > MIN_STEPS:
            return SnapshotSteps(row, f"{name.strip('#')} marks")
    return None


def _periodic(owners: Owners, start: int, end: int) -> SnapshotSteps | None:
    history = owners.snapshot.history
    rows = np.flatnonzero(history.action[start:end] == Action.ALLOC) + start
    rows = rows[history.stack[rows] >= 0]
    gives = np.flatnonzero(np.isin(history.action[start:end], (Action.FREE_REQUESTED, Action.FREE_COMPLETED))) + start
    outside = (owners.phase == MemoryPhase.OTHER) & (owners.user >= 0) & ~owners.is_parameter
    rows = rows[outside[history.stack[rows]]]
    if not len(rows):
        return None
    stack = history.stack[rows]
    count = np.bincount(stack, minlength=len(owners.snapshot.stacks))
    often = Counter(int(n) for n in count if n > MIN_STEPS)
    for n_steps, _ in often.most_common():
        best: tuple[float, int, Ints] | None = None
        for code in np.flatnonzero(count == n_steps):
            at = rows[stack == code]
            # a loop over parameters is even too, but soon over
            if at[-1] - at[0] < MIN_SPAN * (end - start):
                continue
            # a list that is built once is even too, but a step also gives something back
            if (np.diff(np.searchsorted(gives, at)) > 0).mean() < MOSTLY:
                continue
            gap = np.diff(at)
            key = round(float(gap.std() / gap.mean()), 2), int(at[0])
            if key[0] <= MAX_UNEVEN and (best is None or key < best[:2]):
                best = (*key, at)
        if best is not None:
            return SnapshotSteps(best[2], "the period of the allocations")
    return None


def _judge(owners: Owners, memory: Timeline) -> Opinion | None:
    """Return the opinion on one device, None where its history shows too few steps."""
    steps = find_steps(owners, memory)
    # the first step warms up; the last boundary needs a whole step after it to be judged
    if steps is None or len(steps.row) < MIN_STEPS + 2:
        return None
    row = steps.row[1:]
    index = np.arange(len(row), dtype=float)
    allocated = memory.allocated_bytes[row - memory.start].astype(float)
    slope = sen_slope(index, allocated)
    stacks, sizes, blocks = _left_behind(memory, row)
    each = ((sizes > 0).mean(axis=1) >= MOSTLY) & (sizes[:, -1] > 0)
    per_step = np.median(sizes[each], axis=1)
    grown = float(per_step.sum())
    name = f"allocated on device {memory.device}"
    boundaries = f"{format_count(len(row))} step boundaries ({steps.basis})"
    rises = float((np.diff(allocated) > 0).mean())
    if grown < MIN_GROWTH or slope.slope < MIN_GROWTH or rises < MOSTLY:
        picture = follow(name, steps.basis, index + 1, allocated)
        growth = () if picture is None else (picture,)
        change = format_bytes(allocated[-1] - allocated[0])
        if _stays_up(allocated):
            sentence = (
                f"Leak: not certain. Allocated memory grew by {change} over {boundaries} and stayed up, but not"
                " steadily from the same lines"
            )
            if len(stacks):
                most = int(np.argmax(sizes.sum(axis=1)))
                label = _label(owners, int(stacks[most]))
                sentence += f"; most of what remains is from {label} ({format_bytes(sizes[most].sum())})"
            return Opinion(f"{sentence}.", not_checked=(_UNCERTAIN,), growth=growth)
        cached = sen_slope(index, memory.reserved_bytes[row - memory.start].astype(float))
        cache = (
            f"; reserved memory grows by {format_bytes(cached.slope)} per step: the allocator's cache"
            " or fragmentation, not a leak"
            if cached.low > MIN_GROWTH > slope.slope
            else ""
        )
        return Opinion(f"No leak: allocated memory changed by {change} over {boundaries}{cache}.", growth=growth)
    stacks, sizes, n_per_step = stacks[each], sizes[each], blocks[each].mean(axis=1)
    order = np.argsort(-per_step, kind="stable")
    stacks, per_step, n_per_step = stacks[order], per_step[order], n_per_step[order]
    picture = follow(
        name,
        steps.basis,
        index + 1,
        allocated,
        # each step leaves something, so the growth is there from the first one judged
        onset_step=1,
        slope=slope,
        areas=_areas(owners, stacks, sizes[order]),
    )
    kind = _kind(owners, stacks)
    holders = [
        {"label": _label(owners, stack), "bytes_per_step": int(size), "blocks_per_step": round(float(n), 2)}
        for stack, size, n in zip(stacks[:MAX_HOLDERS].tolist(), per_step, n_per_step, strict=False)
    ]
    first = int(stacks[0])
    what = {
        "graph": "saved for a backward pass that never runs: an autograd graph is kept",
        "hook": "stored by a hook",
        "tensor": "still held",
    }[kind]
    low, high = format_bytes(slope.low), format_bytes(slope.high)
    interval = f" ({low} to {high})" if low != high else ""
    message = (
        f"allocated memory grows by {format_bytes(slope.slope)} per step{interval} over"
        f" {boundaries}:"
        f" {format_bytes(grown)} per step from {format_count(len(stacks), 'stack')} is {what},"
        f" most from {holders[0]['label']}"
    )
    finding = MEMORY_GROWTH.finding(
        severity="high" if slope.slope >= 1 << 20 else "medium",
        certainty="certain" if "marks" in steps.basis else "likely",
        message=message,
        place=Place(frame=owners.user_frame(first), stack=owners.stack(first)),
        evidence={
            "device": memory.device,
            "kind": kind,
            "growth_bytes_per_step": int(slope.slope),
            "growth_low_bytes_per_step": int(slope.low),
            "growth_high_bytes_per_step": int(slope.high),
            "kept_bytes_per_step": int(grown),
            "n_steps": len(row),
            "steps_by": steps.basis,
            "holders": holders,
        },
        fix=_FIXES[kind],
    )
    return Opinion(f"Leak: {message}.", (finding,), growth=() if picture is None else (picture,))


def _stays_up(allocated: Floats) -> bool:
    """Return whether memory grew in the later half of the steps too; a cache has filled by then."""
    half, last = len(allocated) // 2, len(allocated) * 2 // 3
    n_later = len(allocated) - half
    if sen_slope(np.arange(n_later, dtype=float), allocated[half:]).low >= MIN_GROWTH:
        return True
    # of few steps the slope is not known well; what rises once may be kept on purpose
    n_rises = int((np.diff(np.maximum.accumulate(allocated)[half - 1 :]) >= MIN_GROWTH).sum())
    grown = float(allocated[last:].min() - allocated[:half].max())
    return len(allocated) < FEW_STEPS and n_rises > 1 and grown >= MIN_GROWTH * n_later


def _areas(owners: Owners, stacks: Ints, sizes: Floats) -> tuple[Area, ...]:
    """Return what the growing stacks have left behind by each boundary, the small ones together."""
    by = np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0))).astype(np.int64)
    areas = [
        Area(_label(owners, stack), "growing", tuple(values.tolist()), owners.stack_lines(stack))
        for stack, values in zip(stacks[:MAX_HOLDERS].tolist(), by, strict=False)
    ]
    n_others = len(stacks) - MAX_HOLDERS
    if n_others > 0:
        rest = tuple(by[MAX_HOLDERS:].sum(axis=0).tolist())
        areas.append(Area(format_count(n_others, "other"), "other", rest))
    return tuple(areas)


def _label(owners: Owners, stack: int) -> str:
    return owners.label[stack] if stack >= 0 else NO_STACK


def _left_behind(memory: Timeline, row: Ints) -> tuple[Ints, Floats, Ints]:
    """Return the stacks that leave something behind, and its bytes and blocks by step.

    int64[k], float64[k, n_judged] and int64[k, n_judged]. Steps are judged but for the last one: what it
    made may still be in use.
    """
    lives, n_judged = memory.lives, len(row) - 1
    step = np.searchsorted(row, lives.born, side="right") - 1
    left = (lives.freed >= memory.end) & (step >= 0) & (step < n_judged)
    if not left.any():
        return np.empty(0, np.int64), np.empty((0, n_judged)), np.empty((0, n_judged), np.int64)
    stacks, code = np.unique(lives.stack[left], return_inverse=True)
    cell, n_cells = code * n_judged + step[left], len(stacks) * n_judged
    sizes = np.bincount(cell, weights=lives.size_bytes[left], minlength=n_cells).reshape(-1, n_judged)
    blocks = np.bincount(cell, minlength=n_cells).reshape(-1, n_judged)
    return stacks.astype(np.int64), sizes.astype(np.float64), blocks.astype(np.int64)


def _kind(owners: Owners, stacks: Ints) -> str:
    named, table = stacks[stacks >= 0], owners.snapshot.stacks

    def is_hook(frame: int) -> bool:
        return bool(owners.is_user_frame[frame] and _HOOK.search(table.functions[frame]))

    if len(named) and all(any(map(is_hook, table.frames_of(stack))) for stack in named.tolist()):
        return "hook"
    forward = int((owners.phase[named] == MemoryPhase.FORWARD).sum())
    return "graph" if forward >= MANY_STACKS and forward >= 0.5 * len(named) else "tensor"
