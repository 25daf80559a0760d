"""Memory over time by owner, and the segments at the peak, small enough for a page.

A million allocations become a few hundred moments of a few dozen owners. Each moment is the
entry with the most allocated bytes of its stretch of the history, so the peak is one of them and
the areas of every moment add up to what was really allocated then.
"""

from __future__ import annotations

import numpy as np

from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.units import format_bytes, format_count
from torchtriage.memory.snapshot.attribution import Category, Owners
from torchtriage.memory.snapshot.fragmentation import Segment, free_at, segments_at
from torchtriage.memory.snapshot.peak_usage import NO_LINE, categories, phases
from torchtriage.memory.snapshot.result import Area, BlockRow, Picture
from torchtriage.memory.snapshot.snapshot import Snapshot
from torchtriage.memory.snapshot.timeline import Timeline

MOMENTS = 600
AREAS = 24
SEGMENTS = 80
PIECES = 1000
"""Pixels of a segment's row: what is smaller is drawn with its neighbours."""
FREE, AWAITING, MIXED = -1, -2, -3


def draw(timeline: Timeline, owners: Owners, failed: int | None = None) -> Picture | None:
    """Return the picture of one device; None where nothing was ever reserved.

    Segments are drawn as they were at the peak, or when the allocation ``failed``, a row.
    """
    if not timeline.reserved_bytes.max():
        return None
    snapshot = owners.snapshot
    rows = thinned(timeline.allocated_bytes) + timeline.start - 1
    owner, names = _owners(timeline, owners, rows)
    values = _values(timeline, owner, len(names), rows)
    row = timeline.peak if failed is None else failed
    segments = segments_at(snapshot, timeline, row)
    drawn = sorted(segments, key=lambda segment: (segment.start - segment.end, segment.start))[:SEGMENTS]
    times = snapshot.history.time_us[timeline.start : timeline.end]
    at = np.maximum(rows - timeline.start, 0)
    has_times = len(times) > 0 and times[0] >= 0
    return Picture(
        entries=tuple((rows - timeline.start).tolist()),
        times_us=tuple((times[at] - times[0]).tolist()) if has_times else (-1,) * len(rows),
        reserved_bytes=tuple(timeline.reserved_bytes[rows - timeline.start + 1].tolist()),
        areas=tuple(
            Area(label, kind, tuple(values[i].tolist()), stack) for i, (label, kind, stack) in enumerate(names)
        ),
        segments_entry=row - timeline.start,
        segments=_rows(snapshot, timeline, row, segments, drawn, owner),
        n_segments_left_out=len(segments) - len(drawn),
    )


def thinned(total: Ints) -> Ints:
    """Return places of int64[n], the highest of each stretch; the first and the last are kept."""
    if len(total) <= MOMENTS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), MOMENTS - 1).astype(np.int64)
    best = [
        low + int(np.argmax(total[low:high])) for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return distinct(np.array([0, *best, len(total) - 1]))


def _owners(timeline: Timeline, owners: Owners, rows: Ints) -> tuple[Ints, list[tuple[str, str, tuple[str, ...]]]]:
    """Return the area of each life: int64[n], and label, kind and stack of the areas.

    The areas are those who held most at any one time; what stays longest lies at the bottom.
    """
    lives = timeline.lives
    labels: dict[str, int] = {}
    of_stack = [labels.setdefault(label, len(labels)) for label in owners.label]
    of_stack += [labels.setdefault(NO_LINE[code], len(labels)) for code in (-2, -1)]
    codes = np.array(of_stack, np.int64)
    place = lives.stack.astype(np.int64)
    place[(place < 0) & (lives.born < 0)] = -2
    label = codes[place]
    weight = np.bincount(label, weights=lives.size_bytes, minlength=len(labels))
    # many short lives weigh much and show little: what counts is what was held at one time
    candidates = np.argsort(-weight, kind="stable")[: 8 * AREAS]
    rank = np.full(len(labels), len(candidates), np.int64)
    rank[candidates] = np.arange(len(candidates))
    held = _values(timeline, rank[label], len(candidates) + 1, rows)
    drawn = candidates[np.argsort(-held[:-1].max(axis=1), kind="stable")[: AREAS - 1]]
    drawn = drawn[weight[drawn] > 0]
    drawn = drawn[np.argsort(-held[rank[drawn]].mean(axis=1), kind="stable")]
    area = np.full(len(labels), len(drawn), np.int64)
    area[drawn] = np.arange(len(drawn))
    texts = list(labels)
    category = categories(timeline, owners, phases(timeline, owners))
    names = []
    for code in drawn.tolist():
        mine = np.flatnonzero(label == code)
        largest = int(mine[np.argmax(lives.size_bytes[mine])])
        kind = Category(int(category[largest])).name.lower()
        names.append((texts[code], kind, owners.stack_lines(int(lives.stack[largest]))))
    if (area[label] == len(drawn)).any():
        names.append((format_count(len(distinct(label)) - len(drawn), "other"), "other", ()))
    return area[label], names


def _values(timeline: Timeline, owner: Ints, n_owners: int, rows: Ints) -> Ints:
    lives = timeline.lives
    change = np.zeros((n_owners, len(rows) + 1), np.int64)
    np.add.at(change, (owner, np.searchsorted(rows, lives.born)), lives.size_bytes)
    np.subtract.at(change, (owner, np.searchsorted(rows, lives.freed)), lives.size_bytes)
    return np.cumsum(change, axis=1)[:, :-1]


def _rows(
    snapshot: Snapshot, timeline: Timeline, row: int, segments: list[Segment], drawn: list[Segment], owner: Ints
) -> tuple[BlockRow, ...]:
    lives = timeline.lives
    alive = np.flatnonzero(timeline.alive(row))
    free = free_at(snapshot, timeline, row, segments)
    start = np.concatenate([lives.address[alive], free.start])
    size = np.concatenate([lives.size_bytes[alive], free.size_bytes])
    what = np.concatenate([owner[alive], np.where(free.is_awaiting, AWAITING, FREE)])
    order = np.argsort(start, kind="stable")
    start, size, what = start[order], size[order], what[order]
    out = []
    for segment in drawn:
        inside = slice(*np.searchsorted(start, [segment.start, segment.end]))
        n_bytes = segment.end - segment.start
        pool = "small" if segment.is_small else "large"
        extra = ", expandable" if segment.is_expandable else ""
        out.append(
            BlockRow(
                address=segment.start,
                size_bytes=n_bytes,
                allocated_bytes=int(size[inside][what[inside] >= 0].sum()),
                label=f"{format_bytes(n_bytes)} {pool}, stream {segment.stream}{extra}",
                pieces=_merged(start[inside] - segment.start, size[inside], what[inside], n_bytes),
            )
        )
    return tuple(out)


def _merged(start: Ints, size: Ints, what: Ints, whole: int) -> tuple[tuple[int, int, int], ...]:
    """Return pieces as ``(start, end, what)``: equal neighbours joined, the tiny ones mixed."""
    least = whole / PIECES
    out: list[list[int]] = []
    for low, n_bytes, kind in zip(start.tolist(), size.tolist(), what.tolist(), strict=True):
        high = low + n_bytes
        if out and out[-1][2] == kind:
            out[-1][1] = high
        elif n_bytes < least and out and out[-1][1] - out[-1][0] < least:
            out[-1][1], out[-1][2] = high, MIXED
        else:
            out.append([low, high, kind])
    return tuple((low, high, kind) for low, high, kind in out)
