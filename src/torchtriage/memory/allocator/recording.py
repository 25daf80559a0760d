"""What a program asked of the allocator, taken out of a snapshot's history.

The history of one device is walked back from the blocks and segments at the snapshot to what was
there when it began. What remains are requests: allocate, free, ``empty_cache``. The allocator's
answers (addresses, segments) are kept beside them, to compare a replay with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.units import format_bytes
from torchtriage.memory.allocator.history import HOW, ReplayError, history_of, now_of
from torchtriage.memory.allocator.initial_state import StartSegment, segments_at_start
from torchtriage.memory.allocator.lifetimes import Lifetimes, lives_of
from torchtriage.memory.allocator.segment_release import FreeRun, limit, releases
from torchtriage.memory.allocator.settings import Settings
from torchtriage.memory.snapshot.snapshot import Action, History, Snapshot

__all__ = ["AllocatorRecording", "Op", "ReplayError", "record"]

MAX_BYTES = 1 << 42
"""Sizes above it (4 TiB) are no memory of a device."""


class Op(IntEnum):
    """A request of the program, in the low three bits of an operation."""

    ALLOC = 0
    FREE = 1
    FREE_REQUESTED = 2
    """Another stream still uses the block: it comes back with FREE_COMPLETED."""
    FREE_COMPLETED = 3
    RELEASE = 4
    """``empty_cache``."""
    FAILED = 5
    """An allocation that ended in an out-of-memory error."""


@dataclass(frozen=True, eq=False)
class AllocatorRecording:
    """One device's requests and the answers they got.

    A *life* is one allocation from its request to its end.

    ``op`` : int64[k], ``life << 3 | Op`` (for ``RELEASE``: index into ``releases``). ``op_row`` :
    int64[k], row of the device's history after which it is done, ascending. ``reserved_bytes`` : int64[rows],
    after each row. ``limit_bytes`` : what the device could give at most, None where it never
    refused. ``n_held_back`` : runs of frees taken for the allocator's own, made to find room.
    """

    device: int
    settings: Settings
    op: Ints
    op_row: Ints
    lives: Lifetimes
    start: tuple[StartSegment, ...]
    start_bytes: int
    start_held_bytes: int
    reserved_bytes: Ints
    allocated_bytes: Ints
    addresses: dict[int, list[int]]
    releases: tuple[tuple[int, ...], ...]
    limit_bytes: int | None
    n_held_back: int
    malloc_us: Ints
    """Time since the entry before each call that took memory: what such a call costs at most."""

    @property
    def peak_bytes(self) -> int:
        """The most that was reserved during the history."""
        return max(int(self.reserved_bytes.max(initial=0)), self.start_bytes)


def record(snapshot: Snapshot, device: int, *, as_asked: bool = False) -> AllocatorRecording:
    """Return the requests one device's history holds, and the state it began with.

    Cached memory given back right before more was taken may have been the allocator's own doing,
    to make room; with ``as_asked`` all of it counts as asked for by the program.

    Raises ReplayError: there is no history, parts of it are missing, or another allocator was at work.
    """
    settings = Settings.recorded(snapshot.settings)
    if settings.backend != "native":
        raise ReplayError(
            f"the caching allocator was not at work: backend {settings.backend!r}",
            hint="record with PyTorch's own allocator (no backend: in PYTORCH_ALLOC_CONF)",
        )
    rows = history_of(snapshot, device)
    if not np.isin(rows.action, (Action.ALLOC, Action.FREE_REQUESTED)).any():
        raise ReplayError("the snapshot holds no history of allocations", hint=HOW)
    sizes = np.concatenate([rows.size_bytes, snapshot.segments.size_bytes, snapshot.blocks.size_bytes])
    if sizes.min(initial=0) < 0 or sizes.max(initial=0) > MAX_BYTES:
        raise ReplayError("the snapshot holds sizes that no device has", hint=HOW)
    now = now_of(snapshot, device)
    lives = lives_of(rows, now)
    start = segments_at_start(rows, now, lives, settings)
    start_bytes = sum(size for segment in start for _, size in segment.extents)
    reserved = start_bytes + np.cumsum(rows.reserved_change)
    final = int(now.seg_size.sum())
    if len(reserved) and reserved[-1] != final:
        raise ReplayError(
            f"segments do not add up: {format_bytes(final)} at the snapshot,"
            f" {format_bytes(int(reserved[-1]))} by the history",
            hint=HOW,
        )
    runs = releases(rows, lives, settings, reserved, snapshot.stacks, as_asked=as_asked)
    limit_bytes = limit(rows, settings, reserved, runs)
    ops, op_rows = _ops(rows, lives, settings, runs)
    plain = np.flatnonzero(rows.action == Action.SEGMENT_ALLOC)
    hints: dict[int, list[int]] = {}
    for addr, size in zip(rows.address[plain].tolist(), rows.size_bytes[plain].tolist(), strict=True):
        hints.setdefault(size, []).append(addr)
    change = np.zeros(len(rows.action), np.int64)
    change[lives.alloc_row] = lives.size_bytes[lives.alloc_life]
    change[lives.request_row] = -lives.size_bytes[lives.request_life]
    held = sum(
        int(lives.size_bytes[life]) for segment in start for life, _, _ in segment.held if life not in segment.awaiting
    )
    return AllocatorRecording(
        device=device,
        settings=settings,
        op=ops,
        op_row=op_rows,
        lives=lives,
        start=start,
        start_bytes=start_bytes,
        start_held_bytes=held,
        reserved_bytes=reserved,
        allocated_bytes=held + np.cumsum(change),
        addresses=hints,
        releases=tuple(run.pools for run in runs),
        limit_bytes=limit_bytes,
        n_held_back=sum(run.own for run in runs),
        malloc_us=_malloc_us(rows),
    )


def _malloc_us(rows: History) -> Ints:
    takes = np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    about = takes | np.isin(rows.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    takes[:1] = False
    takes[1:] &= ~about[:-1]
    at = np.flatnonzero(takes & (rows.time_us >= 0))
    gaps: Ints = rows.time_us[at] - rows.time_us[at - 1]
    return gaps[gaps >= 0]


def _ops(rows: History, lives: Lifetimes, settings: Settings, runs: list[FreeRun]) -> tuple[Ints, Ints]:
    parts = [(lives.alloc_row, lives.alloc_life, Op.ALLOC)]
    if lives.both_frees:
        completed = lives.row_of(lives.complete_row, lives.complete_life)[lives.request_life]
        at_once = completed == lives.request_row + 1
        late = lives.completed_late
        # what a retry completed came back after the request had looked in vain
        back = lives.complete_row.copy()
        for run in runs:
            if run.own and not settings.gc_threshold:  # collecting completes nothing
                inside = (back >= run.start) & (back < run.end)
                back[inside] = min(run.end + 1, len(rows.action) - 1)
        parts += [
            (lives.request_row[at_once] + 1, lives.request_life[at_once], Op.FREE),
            (lives.request_row[~at_once], lives.request_life[~at_once], Op.FREE_REQUESTED),
            (back[late], lives.complete_life[late], Op.FREE_COMPLETED),
        ]
    else:
        parts.append((lives.request_row, lives.request_life, Op.FREE))
    asked = [index for index, run in enumerate(runs) if not run.own]
    parts += [
        (lives.failed_row, lives.failed_life, Op.FAILED),
        (np.array([runs[index].last for index in asked], np.int64), np.array(asked, np.int64), Op.RELEASE),
    ]
    row = np.concatenate([rows for rows, _, _ in parts])
    op = np.concatenate([subject << 3 | int(kind) for _, subject, kind in parts])
    # of one row, what was delayed to it comes last
    order = np.lexsort(((op & 7) == Op.FREE_COMPLETED, row))
    return op[order].astype(np.int64), row[order].astype(np.int64)
