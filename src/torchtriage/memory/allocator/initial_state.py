"""The segments there were when a history began, and what was in use inside them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchtriage.memory.allocator.history import HOW, HistoryRows, Now, ReplayError
from torchtriage.memory.allocator.lifetimes import Lifetimes
from torchtriage.memory.allocator.settings import SMALL_SEGMENT, SMALL_SIZE, Settings
from torchtriage.memory.snapshot.snapshot import Action

__all__ = ["StartSegment", "segments_at_start"]


@dataclass(frozen=True)
class StartSegment:
    """A segment that was there when the history began, with the lives in use inside it.

    ``extents`` : (address, bytes), one, or the mapped ranges of an expandable segment; ``base`` :
    where its address space begins, as far as it was ever mapped.
    ``held`` : (life, address, bytes) by address; ``awaiting`` : those already freed by their owner.
    """

    stream: int
    small: bool
    pool: int
    expandable: bool
    extents: tuple[tuple[int, int], ...]
    held: tuple[tuple[int, int, int], ...]
    awaiting: frozenset[int]
    base: int


@dataclass(frozen=True)
class _Piece:
    """A segment without what is in it; fields as in :class:`StartSegment`."""

    extents: list[tuple[int, int]]
    stream: int
    small: bool
    pool: int
    expandable: bool = False


def segments_at_start(rows: HistoryRows, now: Now, lives: Lifetimes, settings: Settings) -> tuple[StartSegment, ...]:
    """Return what there was when the history began, walked back from what there is now.

    Raises
    ------
    ReplayError
        The history cannot have led from there to here: entries are missing.
    """
    pieces = _plain_segments(rows, now) + _mapped_ranges(rows, now, settings)
    pieces.sort(key=lambda piece: piece.extents[0][0])
    order = lives.start[np.argsort(lives.address[lives.start], kind="stable")]
    awaiting = set(lives.start[lives.start_awaiting].tolist())
    rounded = settings.round_sizes(lives.size_bytes[order])
    begun = list(
        zip(order.tolist(), lives.address[order].tolist(), rounded.tolist(), lives.exact[order].tolist(), strict=True)
    )
    extents = sorted((addr, size, index) for index, piece in enumerate(pieces) for addr, size in piece.extents)
    for (addr, size, _), (after, _, _) in pairwise(extents):
        if addr + size > after:
            raise ReplayError(f"segments overlap at {after:#x}: entries are missing", hint=HOW)
    held: list[list[tuple[int, int, int]]] = [[] for _ in pieces]
    at = 0
    for position, (life, addr, size, exact) in enumerate(begun):
        while at < len(extents) and extents[at][0] + extents[at][1] <= addr:
            at += 1
        if at == len(extents) or extents[at][0] > addr:
            raise ReplayError(f"a block at {addr:#x} lies in no segment: entries about segments are missing", hint=HOW)
        end = extents[at][0] + extents[at][1]
        if position + 1 < len(begun):
            end = min(end, begun[position + 1][1])
        index = extents[at][2]
        piece = pieces[index]
        if exact >= 0:
            size = exact
        elif not (piece.small or piece.expandable) and (
            end - addr - size <= SMALL_SIZE or size >= settings.max_split_bytes
        ):
            size = end - addr  # what a large block cannot leave to another one is its own
        if addr + size > end:
            raise ReplayError(
                f"blocks overlap at {addr:#x}: entries are missing, or the settings changed while it was recorded",
                hint=HOW,
            )
        held[index].append((life, addr, size))
    return tuple(
        StartSegment(
            stream=piece.stream,
            small=piece.small,
            pool=piece.pool,
            expandable=piece.expandable,
            extents=tuple(piece.extents),
            held=tuple(mine),
            awaiting=frozenset(life for life, _, _ in mine if life in awaiting),
            base=_base(piece, rows, settings),
        )
        for piece, mine in zip(pieces, held, strict=True)
    )


def _base(piece: _Piece, rows: HistoryRows, settings: Settings) -> int:
    """Return the lowest address that was ever mapped of an expandable segment."""
    lowest = piece.extents[0][0]
    if not piece.expandable:
        return lowest
    # small requests map one small page at a time, large ones never so little
    small = rows.size < settings.large_segment_bytes
    mine = (rows.action == Action.SEGMENT_MAP) & (rows.stream == piece.stream)
    return int(rows.address[mine & (small == piece.small)].min(initial=lowest))


def _plain_segments(rows: HistoryRows, now: Now) -> list[_Piece]:
    """Return the ordinary segments there were at the start."""
    about = np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    row = np.flatnonzero(about)
    row = row[np.argsort(rows.address[row], kind="stable")]
    addr, given = rows.address[row], rows.action[row] == Action.SEGMENT_FREE
    first = np.ones(len(row), np.bool_)
    first[1:] = addr[1:] != addr[:-1]
    last = np.ones(len(row), np.bool_)
    last[:-1] = first[1:]
    wrong = ~first
    wrong[1:] &= given[1:] == given[:-1]
    ends = set(addr[last & ~given].tolist())
    plain = ~now.seg_expandable
    present = set(now.seg_address[plain].tolist())
    gone = set(addr[last & given].tolist())
    if wrong.any() or not ends <= present or gone & present:
        raise ReplayError(
            "entries about segments are missing from the history (skip_actions, or switched off meanwhile?)", hint=HOW
        )
    touched = set(addr.tolist())
    lasting = [
        _Piece(
            [(int(now.seg_address[index]), int(now.seg_size[index]))],
            int(now.seg_stream[index]),
            bool(now.seg_small[index]),
            int(now.seg_pool[index]),
        )
        for index in np.flatnonzero(plain).tolist()
        if int(now.seg_address[index]) not in touched
    ]
    freed = [
        _Piece(
            [(int(rows.address[at_row]), int(rows.size[at_row]))],
            int(rows.stream[at_row]),
            int(rows.size[at_row]) == SMALL_SEGMENT,
            max(int(rows.pool[at_row]), 0),
        )
        for at_row in row[first & given].tolist()
    ]
    return lasting + freed


def _mapped_ranges(rows: HistoryRows, now: Now, settings: Settings) -> list[_Piece]:
    """Return one entry per expandable segment, with what of it was mapped at the start."""
    about = np.isin(rows.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
    row = np.flatnonzero(about)
    page = SMALL_SEGMENT
    owner: dict[int, tuple[int, bool, int]] = {}
    for index in np.flatnonzero(now.seg_expandable).tolist():
        start, size = int(now.seg_address[index]), int(now.seg_size[index])
        kind = (int(now.seg_stream[index]), bool(now.seg_small[index]), int(now.seg_pool[index]))
        owner.update(dict.fromkeys(range(start, start + size, page), kind))
    kinds: dict[int, tuple[int, bool, int]] = dict(owner)
    for at_row in row[::-1].tolist():
        start, size = int(rows.address[at_row]), int(rows.size[at_row])
        pages = range(start, start + size, page)
        if rows.action[at_row] == Action.SEGMENT_UNMAP:
            # what unmapped pages belonged to: a neighbour tells, else the pages' size
            is_small = size % settings.large_segment_bytes != 0
            kind = next(
                (kinds[near] for near in (start, start - page, start + size) if near in kinds),
                (int(rows.stream[at_row]), is_small, max(int(rows.pool[at_row]), 0)),
            )
            fresh = dict.fromkeys(pages, kind)
            owner.update(fresh)
            kinds.update(fresh)
            continue
        for each in pages:
            if owner.pop(each, None) is None:
                raise ReplayError(f"pages mapped at {each:#x} are missing later: entries are missing", hint=HOW)
    ranges: dict[tuple[int, bool, int], list[tuple[int, int]]] = {}
    for start in sorted(owner):
        mine = ranges.setdefault(owner[start], [])
        if mine and mine[-1][0] + mine[-1][1] == start:
            mine[-1] = (mine[-1][0], mine[-1][1] + page)
        else:
            mine.append((start, page))
    return [_Piece(extents, *kind, True) for kind, extents in ranges.items()]
