"""What was alive at a moment: by line, module, phase of the step, and category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.units import format_count
from torchtriage.memory.snapshot.attribution import NO_STACK, Category, MemoryPhase, Owners
from torchtriage.memory.snapshot.result import Holder, MemoryPart, MemoryPeak
from torchtriage.memory.snapshot.snapshot import Bools, Ints
from torchtriage.memory.snapshot.timeline import Timeline

__all__ = ["NO_LINE", "categories", "find_peak", "holders", "phases", "time_us"]


MAX_LINES = 30
BEFORE = -2
NO_LINE = {-1: NO_STACK, BEFORE: "before the recording"}


CATEGORY_NAMES = [category.name.lower().replace("_", " ") for category in Category]
CATEGORY_NAMES[Category.COMMUNICATION] += " buffers"
PHASE_NAMES = [phase.name.lower() for phase in MemoryPhase]


def phases(timeline: Timeline, owners: Owners) -> NDArray[np.int8]:
    """Return the phase that asked for each life: int8[n].

    From its stack; else from the ranges that ``Optimizer.step`` records beside the history.
    """
    lives = timeline.lives
    out = _by_stack(owners.phase, lives.stack).astype(np.int8)
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
    freed_in = _by_stack(owners.phase, lives.free_stack)
    stays = lives.freed >= timeline.end
    out = np.full(len(lives), Category.UNKNOWN, np.int8)
    backward = phase == MemoryPhase.BACKWARD
    out[phase == MemoryPhase.FORWARD] = Category.ACTIVATIONS
    # asked for outside modules, but kept for the backward pass and freed by it
    out[(phase == MemoryPhase.OTHER) & (freed_in == MemoryPhase.BACKWARD)] = Category.ACTIVATIONS
    out[backward & (freed_in == MemoryPhase.BACKWARD)] = Category.TEMPORARIES
    later = stays | ((freed_in != MemoryPhase.BACKWARD) & (freed_in != MemoryPhase.UNKNOWN))
    out[backward & later] = Category.GRADIENTS
    out[(phase == MemoryPhase.OPTIMIZER) & (freed_in == MemoryPhase.OPTIMIZER)] = Category.TEMPORARIES
    out[(phase == MemoryPhase.OPTIMIZER) & stays] = Category.OPTIMIZER_STATE
    stated = _by_stack(owners.category, lives.stack)
    return np.where(stated, stated, out).astype(np.int8)


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
    alive: Bools,
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
                share=size / total if total else 0.0,
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
        share = size / total if total else 0.0
        shown.append(Holder(f"{len(rest)} other lines", size, share, count, "", "", "", None, ()))
    return tuple(shown)


def time_us(timeline: Timeline, owners: Owners, row: int) -> int | None:
    """Return the time of an entry since the device's first; None where none was recorded."""
    times = owners.snapshot.history.time_us[timeline.start : timeline.end]
    if not len(times) or times[0] < 0:
        return None
    return int(times[max(row - timeline.start, 0)] - times[0])


def _by_stack(values: NDArray[Any], stack: NDArray[np.int32]) -> Ints:
    of_life: Ints = np.append(values.astype(np.int64), 0)[stack]  # -1 is the last one
    return of_life


def _sums(codes: NDArray[np.int8], sizes: Ints, names: list[str]) -> dict[str, int]:
    sums = np.bincount(codes, weights=sizes, minlength=len(names)).astype(np.int64)
    return {name: size for name, size in zip(names, sums.tolist(), strict=True) if size}


def _most(codes: NDArray[np.int8], sizes: Ints, names: list[str]) -> str:
    sums = _sums(codes, sizes, names)
    return max(sums, key=lambda name: sums[name], default="unknown")


def _parts(sizes: dict[str, int], total: int) -> tuple[MemoryPart, ...]:
    ordered: Sequence[tuple[str, int]] = sorted(sizes.items(), key=lambda part: (-part[1], part[0]))
    parts = [MemoryPart(name, size, size / total if total else 0.0) for name, size in ordered[:MAX_LINES]]
    rest = sum(size for _, size in ordered[MAX_LINES:])
    if rest:
        parts.append(MemoryPart(format_count(len(ordered) - MAX_LINES, "other"), rest, rest / total))
    return tuple(parts)
