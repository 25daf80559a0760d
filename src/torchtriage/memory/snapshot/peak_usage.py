"""What was alive at a moment: by line, module, phase of the step, and category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.units import format_count
from torchtriage.memory.snapshot.attribution import NO_STACK, Category, MemoryPhase, Owners
from torchtriage.memory.snapshot.result import Holder, MemoryPart, MemoryPeak
from torchtriage.memory.snapshot.timeline import Timeline, allocated

MAX_LINES = 30
BEFORE = -2
NO_LINE = {-1: NO_STACK, BEFORE: "before the recording"}


CATEGORY_NAMES = [category.name.lower().replace("_", " ") for category in Category]
CATEGORY_NAMES[Category.COMMUNICATION] += " buffers"
CATEGORY_NAMES[Category.CASTS] = "autocast copies"
PHASE_NAMES = [phase.name.lower() for phase in MemoryPhase]


def by_stack(values: NDArray[Any], stack: NDArray[np.int32]) -> NDArray[Any]:
    """Return the value of each stack in a column, 0 or False for -1; ``values`` : of all stacks."""
    return np.append(values, np.zeros(1, values.dtype))[stack]


def phases(timeline: Timeline, owners: Owners) -> NDArray[np.int8]:
    """Return the phase that asked for each life: int8[n].

    From its stack; else from the ranges that ``Optimizer.step`` records beside the history.
    """
    lives = timeline.lives
    out = by_stack(owners.phase, lives.stack)
    snapshot = owners.snapshot
    notes = snapshot.annotations
    steps = [snapshot.texts[code].startswith("Optimizer.step") for code in notes.name]
    mine = np.array(steps, np.bool_) & (notes.end_us >= 0)
    if mine.any():
        starts, ends = notes.start_us[mine], notes.end_us[mine]
        rows = np.flatnonzero((lives.born >= 0) & (out != MemoryPhase.BACKWARD))
        at = snapshot.history.time_us[lives.born[rows]]
        place = np.searchsorted(starts, at, side="right") - 1
        out[rows[(place >= 0) & (at < ends[np.maximum(place, 0)])]] = MemoryPhase.OPTIMIZER
    return out


def categories(timeline: Timeline, owners: Owners, phase: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return what each life is for, a :class:`Category`: int8[n].

    Gradients differ from other memory of the backward pass by when they are freed: not before it ends.
    """
    lives = timeline.lives
    freed_in = by_stack(owners.phase, lives.free_stack)
    stays = lives.freed >= timeline.end
    out = np.full(len(lives), Category.UNKNOWN, np.int8)
    backward = phase == MemoryPhase.BACKWARD
    out[phase == MemoryPhase.FORWARD] = Category.ACTIVATIONS
    # asked for outside modules, but kept for the backward pass and freed by it
    out[(phase == MemoryPhase.OTHER) & (freed_in == MemoryPhase.BACKWARD)] = Category.ACTIVATIONS
    out[backward & (freed_in == MemoryPhase.BACKWARD)] = Category.TEMPORARIES
    later = stays | ((freed_in != MemoryPhase.BACKWARD) & (freed_in != MemoryPhase.UNKNOWN))
    out[backward & later] = Category.GRADIENTS
    optimizer = phase == MemoryPhase.OPTIMIZER
    out[optimizer & (freed_in == MemoryPhase.OPTIMIZER)] = Category.TEMPORARIES
    # an optimizer that makes its state anew frees it in the next step
    out[optimizer & (stays | _outlives_its_step(timeline, optimizer))] = Category.OPTIMIZER_STATE
    stated = by_stack(owners.category, lives.stack)
    out = np.where(stated, stated, out)
    _name_what_was_there(timeline, owners, out, phase, freed_in)
    return out


def _outlives_its_step(timeline: Timeline, optimizer: Mask) -> Mask:
    """Return bool[n]: between its birth and its end something was asked for outside the optimizer."""
    lives = timeline.lives
    others = np.zeros(timeline.end - timeline.start + 1, np.int64)
    others[lives.born[~optimizer & (lives.born >= 0)] - timeline.start + 1] = 1
    count = np.cumsum(others)
    born = np.maximum(lives.born - timeline.start + 1, 0)
    return count[np.minimum(lives.freed, timeline.end) - timeline.start] > count[born]


def _name_what_was_there(
    timeline: Timeline, owners: Owners, category: NDArray[np.int8], phase: NDArray[np.int8], freed_in: NDArray[np.int8]
) -> None:
    """Name what was there before a recording of passes: by who freed it, else what outlives a pass.

    Each gradient has a parameter of its size; what stays beside these is the optimizer's.
    """
    lives = timeline.lives
    before = (lives.born < 0) & (category == Category.UNKNOWN)
    category[before & (freed_in == MemoryPhase.OPTIMIZER)] = Category.OPTIMIZER_STATE
    category[before & (freed_in == MemoryPhase.BACKWARD)] = Category.ACTIVATIONS
    category[before & by_stack(owners.is_zero_grad, lives.free_stack)] = Category.GRADIENTS
    stays = np.flatnonzero(before & (lives.freed >= timeline.end))
    gradients = category == Category.GRADIENTS
    has_backward = (phase == MemoryPhase.BACKWARD).any()
    if not (phase == MemoryPhase.FORWARD).any() or (has_backward and not gradients.any()):
        return
    category[stays] = Category.PARAMETERS
    if has_backward:
        mine = lives.rows(np.flatnonzero(gradients))
        row = timeline.start - 1 + int(np.argmax(allocated(mine, timeline.start, timeline.end)))
        alive = mine.size_bytes[(mine.born <= row) & (mine.freed > row)]
        sizes, counts = np.unique(alive, return_counts=True)
        for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
            same = stays[lives.size_bytes[stays] == size]
            category[same[count:]] = Category.OPTIMIZER_STATE


def find_peak(timeline: Timeline, owners: Owners) -> MemoryPeak | None:
    """Return the moment with the most allocated bytes; None without a history."""
    if timeline.end == timeline.start:
        return None
    row = timeline.peak
    alive = timeline.alive(row)
    lives = timeline.lives
    phase = phases(timeline, owners)
    category = categories(timeline, owners, phase)
    total = timeline.peak_bytes
    sizes = lives.size_bytes[alive]
    modules: dict[str, int] = {}
    by_stack = np.bincount(lives.stack[alive] + 1, weights=sizes).astype(np.int64)
    for code in np.flatnonzero(by_stack).tolist():
        name = (owners.module_name(code - 1) or "outside modules") if code else NO_STACK
        modules[name] = modules.get(name, 0) + int(by_stack[code])
    return MemoryPeak(
        allocated_bytes=total,
        reserved_bytes=timeline.reserved_at(row),
        entry=row - timeline.start,
        n_entries=timeline.end - timeline.start,
        at_us=time_us(timeline, owners, row),
        before_bytes=int(sizes[lives.born[alive] < 0].sum()),
        no_stack_bytes=int(sizes[lives.stack[alive] < 0].sum()),
        n_allocations=int(alive.sum()),
        lines=holders(timeline, owners, alive, phase, category),
        modules=_parts(modules, total),
        phases=_parts(_sums(phase[alive], sizes, PHASE_NAMES), total),
        categories=_parts(_sums(category[alive], sizes, CATEGORY_NAMES), total),
    )


def holders(
    timeline: Timeline,
    owners: Owners,
    alive: Mask,
    phase: NDArray[np.int8],
    category: NDArray[np.int8],
    limit: int = MAX_LINES,
) -> tuple[Holder, ...]:
    """Return who holds the living allocations, the ``limit`` largest first, the rest as one.

    ``alive phase category`` : of the timeline's lives.
    """
    lives = timeline.lives
    rows = np.flatnonzero(alive)
    if not len(rows):
        return ()
    total = int(lives.size_bytes[rows].sum())
    # what has no stack because it was there before is kept apart from what has none for other reasons
    codes = lives.stack[rows].astype(np.int64)
    codes[(codes < 0) & (lives.born[rows] < 0)] = BEFORE
    order = np.argsort(codes, kind="stable")
    stacks, first = np.unique(codes[order], return_index=True)
    groups: dict[str, list[Ints]] = {}
    for stack, part in zip(stacks.tolist(), np.split(rows[order], first[1:]), strict=True):
        label = owners.label[stack] if stack >= 0 else NO_LINE[stack]
        groups.setdefault(label, []).append(part)
    every: list[Holder] = []
    for label, members in groups.items():
        mine = np.concatenate(members)
        sizes = lives.size_bytes[mine]
        stack = int(lives.stack[mine[np.argmax(sizes)]])
        size = int(sizes.sum())
        every.append(
            Holder(
                label=label,
                size_bytes=size,
                share=size / max(total, 1),
                n_allocations=len(mine),
                phase=_most(phase[mine], sizes, PHASE_NAMES),
                category=_most(category[mine], sizes, CATEGORY_NAMES),
                module=owners.module_name(stack),
                frame=owners.user_frame(stack),
                stack=owners.stack(stack),
            )
        )
    every.sort(key=lambda holder: (-holder.size_bytes, holder.label))
    shown, rest = every[:limit], every[limit:]
    if rest:
        size = sum(holder.size_bytes for holder in rest)
        count = sum(holder.n_allocations for holder in rest)
        shown.append(Holder(f"{len(rest)} other lines", size, size / max(total, 1), count, "", "", "", None, ()))
    return tuple(shown)


def time_us(timeline: Timeline, owners: Owners, row: int) -> int | None:
    """Return the time of an entry since the device's first; None where none was recorded."""
    times = owners.snapshot.history.time_us[timeline.start : timeline.end]
    if not len(times) or times[0] < 0:
        return None
    return int(times[max(row - timeline.start, 0)] - times[0])


def _sums(codes: NDArray[np.int8], sizes: Ints, names: list[str]) -> dict[str, int]:
    sums = np.bincount(codes, weights=sizes, minlength=len(names)).astype(np.int64)
    return {name: size for name, size in zip(names, sums.tolist(), strict=True) if size}


def _most(codes: NDArray[np.int8], sizes: Ints, names: list[str]) -> str:
    sums = _sums(codes, sizes, names)
    return max(sums, key=lambda name: sums[name], default="unknown")


def _parts(sizes: dict[str, int], total: int) -> tuple[MemoryPart, ...]:
    ordered: Sequence[tuple[str, int]] = sorted(sizes.items(), key=lambda part: (-part[1], part[0]))
    parts = [MemoryPart(name, size, size / max(total, 1)) for name, size in ordered[:MAX_LINES]]
    rest = sum(size for _, size in ordered[MAX_LINES:])
    if rest:
        parts.append(MemoryPart(format_count(len(ordered) - MAX_LINES, "other"), rest, rest / total))
    return tuple(parts)
