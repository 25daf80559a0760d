"""Why reserved memory is not allocated, and why an allocation failed while memory was free.

The allocator's segments at a moment are the snapshot's own, with what the history did to them after
that moment undone. What lies in them and belongs to no tensor is free; each free byte has one
cause. Source: ``DeviceCachingAllocator::malloc`` looks for a block of the request's own pool and
stream, then asks the driver, then gives whole free segments back and asks again, then gives up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.units import format_bytes, format_count
from torchtriage.memory.allocator.settings import SMALL_SEGMENT, SMALL_SIZE
from torchtriage.memory.snapshot.attribution import Owners
from torchtriage.memory.snapshot.peak_usage import categories, holders, phases, time_us
from torchtriage.memory.snapshot.result import Fragmentation, MemoryPart, OutOfMemory
from torchtriage.memory.snapshot.snapshot import NONE, Action, AllocatorState, Snapshot
from torchtriage.memory.snapshot.timeline import Timeline

PAGE_BYTES = 20 << 20
"""Expandable segments of large requests grow and shrink by this much (``kLargeBuffer``)."""
MAX_OUT_OF_MEMORY = 20

AWAITING = "freed, but another stream still uses it"
PRIVATE = "in private pools (CUDA graphs, MemPool)"
OTHER_STREAM = "cached for other streams"
OTHER_POOL = "cached for the other size class (small or large allocations)"
WHOLE = "whole segments, not given back to the driver"
PIECES = "pieces between tensors in use, each too small"
FREE_PIECES = "pieces between tensors in use"
LARGE = "pieces that were large enough"
_USABLE = (WHOLE, PIECES, LARGE)


@dataclass(frozen=True, order=True)
class Segment:
    """Reserved memory ``[start, end)`` of one stream and pool; ``pool`` as ``History.pool``."""

    start: int
    end: int
    stream: int = 0
    pool: int = NONE
    is_small: bool = False
    is_expandable: bool = False


@dataclass(frozen=True)
class Free:
    """Free pieces at a moment, one row each.

    ``start size_bytes`` : int64[n]. ``segment`` : int64[n], place among the segments.
    ``is_awaiting`` : bool[n], still used by another stream. ``is_whole`` : bool[n], all of it.
    """

    start: Ints
    size_bytes: Ints
    segment: Ints
    is_awaiting: Mask
    is_whole: Mask


def segments_at(snapshot: Snapshot, timeline: Timeline, row: int) -> list[Segment]:
    """Return what was reserved after a row of the history, by address."""
    table, history = snapshot.segments, snapshot.history
    rows = np.flatnonzero(table.device == timeline.device)
    segments = sorted(
        Segment(
            int(table.address[place]),
            int(table.address[place] + table.size_bytes[place]),
            int(table.stream[place]),
            int(table.pool[place]),
            bool(table.is_small[place]),
            bool(table.is_expandable[place]),
        )
        for place in rows
    )
    actions = history.action[row + 1 : timeline.end]
    changes = np.flatnonzero((actions >= Action.SEGMENT_ALLOC) & (actions <= Action.SEGMENT_UNMAP))
    for at in (changes[::-1] + row + 1).tolist():
        start = int(history.address[at])
        end = start + int(history.size_bytes[at])
        if history.action[at] in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            _cut(segments, start, end)
        else:
            mapped = history.action[at] == Action.SEGMENT_UNMAP
            is_small = end - start == SMALL_SEGMENT and not mapped
            stream, pool = int(history.stream[at]), int(history.pool[at])
            insort(segments, Segment(start, end, stream, pool, is_small, bool(mapped)))
    return segments


def _cut(segments: list[Segment], start: int, end: int) -> None:
    """Take a range out of the segments; of expandable ones it may be a part."""
    first = max(bisect_right(segments, Segment(start, 1 << 63)) - 1, 0)
    last = bisect_left(segments, Segment(end, 0))
    segments[first:last] = [
        replace(segment, start=low, end=high)
        for segment in segments[first:last]
        for low, high in ((segment.start, min(segment.end, start)), (max(segment.start, end), segment.end))
        if low < high
    ]


def free_at(snapshot: Snapshot, timeline: Timeline, row: int, segments: list[Segment]) -> Free:
    """Return the free pieces after a row of the history; ``segments`` : what :func:`segments_at` returns for it."""
    lives = timeline.lives
    alive = timeline.alive(row)
    starts = np.array([piece.start for piece in segments], np.int64)
    ends = np.array([piece.end for piece in segments], np.int64)
    waiting_at, waiting_size = _awaiting(snapshot, timeline, row)
    at = np.concatenate([lives.address[alive], waiting_at])
    size = np.concatenate([lives.size_bytes[alive], waiting_size])
    opens = np.sort(np.concatenate([starts, at + size]))
    closes = np.sort(np.concatenate([at, ends]))
    gap = closes - opens
    opens, gap = opens[gap > 0], gap[gap > 0]
    start = np.concatenate([opens, waiting_at])
    size = np.concatenate([gap, waiting_size])
    segment = np.searchsorted(starts, start, side="right") - 1
    whole = (size == (ends - starts)[segment]) if len(segments) else np.zeros(0, np.bool_)
    # of an expandable segment, whole pages are given back
    pages = np.array([PAGE_BYTES if piece.is_expandable else 1 << 62 for piece in segments], np.int64)
    whole |= size >= pages[segment]
    is_awaiting = np.arange(len(start)) >= len(opens)
    return Free(start, size, segment, is_awaiting, whole & ~is_awaiting)


def _awaiting(snapshot: Snapshot, timeline: Timeline, row: int) -> tuple[Ints, Ints]:
    """Return address and size of blocks that were freed but not yet free."""
    history, blocks = snapshot.history, snapshot.blocks
    rows = row + 1 + np.flatnonzero(history.action[row + 1 : timeline.end] <= Action.FREE_COMPLETED)
    _, first = np.unique(history.address[rows], return_index=True)
    rows = rows[first]
    # only where requests are recorded is a completion without one a wait
    requested = (history.action[timeline.start : timeline.end] == Action.FREE_REQUESTED).any()
    done = rows[(history.action[rows] == Action.FREE_COMPLETED) & requested]
    last = blocks.state == AllocatorState.ACTIVE_AWAITING_FREE
    last &= snapshot.segments.device[blocks.segment] == timeline.device
    if row < timeline.end - 1:
        # those of the snapshot that were asked for before this row
        last &= ~np.isin(blocks.address, history.address[row + 1 : timeline.end])
    at = np.concatenate([history.address[done], blocks.address[last]])
    return at, np.concatenate([timeline.settings.round_sizes(history.size_bytes[done]), blocks.size_bytes[last]])


def _split(
    free: Free, segments: list[Segment], snapshot: Snapshot, wanted: Segment | None, n_bytes: int
) -> tuple[tuple[MemoryPart, ...], int]:
    """Return the free bytes by cause, largest first, and the largest piece that could be used."""
    cause = np.full(len(free.start), FREE_PIECES if wanted is None else PIECES, object)
    if wanted is not None:
        cause[free.size_bytes >= n_bytes] = LARGE
    cause[free.is_whole] = WHOLE
    if wanted is not None and len(segments):
        rows = [(segment.is_small, segment.stream, segment.pool) for segment in segments]
        is_small, stream, pool = np.array(rows, np.int64)[free.segment].T
        cause[is_small != wanted.is_small] = OTHER_POOL
        cause[stream != wanted.stream] = OTHER_STREAM
        default = snapshot.pools.index((0, 0)) if (0, 0) in snapshot.pools else NONE
        cause[(pool >= 0) & (pool != default) & (pool != wanted.pool)] = PRIVATE
    cause[free.is_awaiting] = AWAITING
    usable = np.isin(cause, (*_USABLE, FREE_PIECES))
    largest = int(free.size_bytes[usable].max(initial=0))
    total = int(free.size_bytes.sum())
    sums = {name: int(free.size_bytes[cause == name].sum()) for name in dict.fromkeys(cause)}
    parts = [MemoryPart(name, size, size / total) for name, size in sums.items() if size]
    return tuple(sorted(parts, key=lambda part: (-part.size_bytes, part.name))), largest


def find_fragmentation(snapshot: Snapshot, timeline: Timeline) -> Fragmentation | None:
    """Return what was free when most was allocated; at the snapshot where the history does not hold that moment."""
    if not timeline.reserved_bytes.max():
        return None
    is_seen = timeline.peak >= timeline.start
    row = timeline.peak if is_seen else timeline.end - 1
    segments = segments_at(snapshot, timeline, row)
    free = free_at(snapshot, timeline, row, segments)
    parts, largest = _split(free, segments, snapshot, None, 0)
    return Fragmentation(
        when="allocated peak" if is_seen else "snapshot",
        entry=row - timeline.start,
        allocated_bytes=timeline.allocated_at(row),
        reserved_bytes=timeline.reserved_at(row),
        free_bytes=int(free.size_bytes.sum()),
        gap_bytes=int(free.size_bytes[~free.is_whole].sum()),
        largest_bytes=largest,
        parts=parts,
    )


def find_out_of_memory(timeline: Timeline, owners: Owners) -> tuple[list[OutOfMemory], int]:
    """Return the post mortem of failed allocations, the last ones, and how many there were."""
    snapshot, history = owners.snapshot, owners.snapshot.history
    rows = timeline.start + np.flatnonzero(history.action[timeline.start : timeline.end] == Action.OOM)
    if not len(rows):
        return [], 0
    phase = phases(timeline, owners)
    category = categories(timeline, owners, phase)
    failures = []
    for row in rows[-MAX_OUT_OF_MEMORY:].tolist():
        n_bytes, stack = int(history.size_bytes[row]), int(history.stack[row])
        segments = segments_at(snapshot, timeline, row)
        free = free_at(snapshot, timeline, row, segments)
        wanted = Segment(0, 0, int(history.stream[row]), int(history.pool[row]), n_bytes <= SMALL_SIZE)
        parts, largest = _split(free, segments, snapshot, wanted, n_bytes)
        left = int(history.device_free_bytes[row])
        free_bytes = int(free.size_bytes.sum())
        failure = OutOfMemory(
            entry=row - timeline.start,
            at_us=time_us(timeline, owners, row),
            wanted_bytes=n_bytes,
            stream=wanted.stream,
            device_free_bytes=left if left >= 0 else None,
            allocated_bytes=timeline.allocated_at(row),
            reserved_bytes=timeline.reserved_at(row),
            free_bytes=free_bytes,
            largest_bytes=largest,
            would_fit=free_bytes + max(left, 0) >= n_bytes,
            next_would_fit=free_bytes + max(left, 0) >= 2 * n_bytes,
            parts=parts,
            frame=owners.user_frame(stack),
            stack=owners.stack(stack),
            holders=holders(timeline, owners, timeline.alive(row), phase, category, limit=10),
            sentences=(),
        )
        failures.append(replace(failure, sentences=post_mortem(failure)))
    return failures, len(rows)


def post_mortem(failure: OutOfMemory) -> tuple[str, ...]:
    """Return what happened, in sentences."""
    where = "".join(f" at {frame.file}:{frame.line} {frame.function}" for frame in failure.stack[:1])
    left = max(failure.device_free_bytes or 0, 0)
    sentences = [
        f"An allocation of {format_bytes(failure.wanted_bytes)} failed{where}"
        f" while {format_bytes(failure.allocated_bytes)} was allocated and"
        f" {format_bytes(failure.reserved_bytes)} reserved."
    ]
    if failure.device_free_bytes is not None:
        sentences.append(f"The driver had {format_bytes(failure.device_free_bytes)} left.")
    if failure.free_bytes:
        causes = "; ".join(f"{format_bytes(part.size_bytes)} {part.name}" for part in failure.parts)
        sentences.append(f"{format_bytes(failure.free_bytes)} of the reserved memory was free: {causes}.")
        sentences.append(f"The largest piece it could have used was {format_bytes(failure.largest_bytes)}.")
    usable = sum(part.size_bytes for part in failure.parts if part.name in _USABLE)
    if failure.would_fit and not failure.next_would_fit:
        sentences.append(
            "In one piece, the free memory would have held it, but not a second one of its size, as a backward pass"
            " or the next step needs: too much was alive."
        )
    elif usable + left >= failure.wanted_bytes:
        sentences.append("In one piece, the free memory would have held it: fragmentation is the cause.")
    elif failure.would_fit:
        sentences.append(
            "It would have fit only with memory cached for other streams, pools or size"
            " classes: memory is split between them."
        )
    else:
        short = failure.wanted_bytes - failure.free_bytes - left
        sentences.append(f"All free memory together was {format_bytes(short)} too little: too much was alive.")
    if failure.holders:
        top = failure.holders[0]
        sentences.append(
            f"{top.label} held most: {format_bytes(top.size_bytes)} in {format_count(top.n_allocations, 'allocation')}."
        )
    return tuple(sentences)
