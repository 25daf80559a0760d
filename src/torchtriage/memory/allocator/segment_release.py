"""Memory given back: asked for by the program, or the allocator's own doing to make room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.memory.allocator.lifetimes import Lifetimes
from torchtriage.memory.allocator.settings import SMALL_SEGMENT, SMALL_SIZE, Settings
from torchtriage.memory.snapshot.snapshot import Action, History, Stacks


@dataclass
class FreeRun:
    """Segments given back one after the other, in rows ``start`` to ``end``; ``last`` the last.

    ``before`` : bytes reserved until then. ``own`` : the allocator did it, to make room for
    ``need`` bytes.
    """

    start: int
    end: int
    last: int
    before: int
    pools: tuple[int, ...]
    need: int = 0
    own: bool = False


def releases(
    rows: History, lives: Lifetimes, settings: Settings, reserved: Ints, stacks: Stacks, *, as_asked: bool
) -> list[FreeRun]:
    """Return the runs of segments given back, and which may be the allocator's own."""
    gives = np.isin(rows.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    quiet = gives.copy()
    if lives.both_frees:  # frees that waited: a retry completes them first
        quiet[lives.complete_row[lives.completed_late]] = True
    edge = np.diff(quiet.astype(np.int8), prepend=0, append=0)
    given = np.append(0, np.cumsum(gives))
    starts, ends = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    some = given[ends] > given[starts]
    runs: list[FreeRun] = []
    by_hand = stacks.having(np.array([name == "empty_cache" for name in stacks.functions], np.bool_))
    for start, end in zip(starts[some].tolist(), ends[some].tolist(), strict=True):
        mine = start + np.flatnonzero(gives[start:end])
        pools = {0, *np.maximum(rows.pool[mine], 0).tolist()}
        before = int(reserved[start]) - int(rows.reserved_change[start])
        run = FreeRun(start, end, int(mine[-1]), before, tuple(sorted(pools)))
        runs.append(run)
        # with expandable segments, what was missing is not recorded: pages had served a part
        if end == len(rows.action) or settings.expandable or as_asked:
            continue
        follower = int(rows.action[end])
        if follower == Action.OOM:
            run.need = int(_most_needed(settings, rows.size_bytes[end : end + 1])[0])
        elif follower == Action.SEGMENT_ALLOC:
            run.need = int(rows.size_bytes[end])
        else:
            continue
        stack = int(rows.stack[mine[0]])
        if stack >= 0:
            run.own = not by_hand[stack] and stack == int(rows.stack[end])
        else:  # it would have fitted: nobody had to make room
            run.own = before + run.need > int(reserved.max())
    return runs


def _most_needed(settings: Settings, asked_bytes: Ints) -> Ints:
    rounded = settings.round_sizes(asked_bytes)
    if settings.expandable:
        page = np.where(rounded <= SMALL_SIZE, SMALL_SEGMENT, settings.large_segment_bytes)
        return np.asarray(-(-rounded // page) * page, np.int64)
    return np.array([settings.segment_size(size) for size in rounded.tolist()], np.int64)


def limit(rows: History, settings: Settings, reserved: Ints, runs: list[FreeRun]) -> int | None:
    """Return what the device could give at most; None where it never refused, or that changed."""
    # a collection by age says nothing about what the device had left
    collects = settings.gc_threshold > 0
    bounds = [run.before + run.need - 1 for run in runs if run.own and not collects]
    failed = np.flatnonzero(rows.action == Action.OOM)
    short = reserved[failed] + _most_needed(settings, rows.size_bytes[failed]) - 1
    left = rows.device_free_bytes[failed]
    free = (reserved[failed] + left)[left >= 0]
    known = bounds + short.tolist() + free.tolist()
    if known and min(known) < int(reserved.max(initial=0)):
        # what else was on the device changed meanwhile: take the frees as asked for
        for run in runs:
            run.own = False
        return None
    return min(known, default=None)
