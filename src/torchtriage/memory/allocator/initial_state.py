"""The segments there were when a history began, and what was in use inside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from torchtriage.memory.allocator.history import HOW, Now, ReplayError
from torchtriage.memory.allocator.lifetimes import Lifetimes
from torchtriage.memory.allocator.settings import SMALL_SEGMENT, SMALL_SIZE, Settings
from torchtriage.memory.snapshot.snapshot import Action, History


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
    held: tuple[tuple[int, int, int], ...] = ()
    awaiting: frozenset[int] = frozenset()
    base: int = 0


def segments_at_start(rows: History, now: Now, lives: Lifetimes, settings: Settings) -> tuple[StartSegment, ...]:
    """Return what there was when the history began, walked back from what there is now.

    Raises ReplayError: the history cannot have led from there to here, so entries are missing.
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
        replace(
            piece,
            held=tuple(mine),
            awaiting=frozenset(life for life, _, _ in mine if life in awaiting),
            base=_base(piece, rows, settings),
        )
        for piece, mine in zip(pieces, held, strict=True)
    )


def _base(piece: StartSegment, rows: History, settings: Settings) -> int:
    lowest = piece.extents[0][0]
    if not piece.expandable:
        return lowest
    # small requests map one small page at a time, large ones never so little
    small = rows.size_bytes < settings.large_segment_bytes
    mine = (rows.action == Action.SEGMENT_MAP) & (rows.stream == piece.stream)
    return int(rows.address[mine & (small == piece.small)].min(initial=lowest))


def _plain_segments(rows: History, now: Now) -> list[StartSegment]:
    row = np.flatnonzero(np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)))
    row = row[np.argsort(rows.address[row], kind="stable")]
    addr, given = rows.address[row], rows.action[row] == Action.SEGMENT_FREE
    changes = addr[1:] != addr[:-1]
    first, last = np.append(True, changes)[: len(row)], np.append(changes, True)[: len(row)]
    repeats = np.append(False, given[1:] == given[:-1])[: len(row)]
    plain = ~now.seg_expandable
    present = set(now.seg_address[plain].tolist())
    gone = set(addr[last & given].tolist())
    if (~first & repeats).any() or not set(addr[last & ~given].tolist()) <= present or gone & present:
        raise ReplayError(
            "entries about segments are missing from the history (skip_actions, or switched off meanwhile?)", hint=HOW
        )
    lasting = np.flatnonzero(plain & ~np.isin(now.seg_address, addr))
    freed = row[first & given]
    columns = [
        (now.seg_stream[lasting], rows.stream[freed]),
        (now.seg_small[lasting], rows.size_bytes[freed] == SMALL_SEGMENT),
        (now.seg_pool[lasting], np.maximum(rows.pool[freed], 0)),
        (now.seg_address[lasting], rows.address[freed]),
        (now.seg_size[lasting], rows.size_bytes[freed]),
    ]
    return [
        StartSegment(stream, small, pool, False, ((address, size),))
        for stream, small, pool, address, size in zip(*(np.concatenate(pair).tolist() for pair in columns), strict=True)
    ]


def _mapped_ranges(rows: History, now: Now, settings: Settings) -> list[StartSegment]:
    """Return one entry per expandable segment, with what of it was mapped at the start."""
    page = SMALL_SEGMENT
    owner: dict[int, tuple[int, bool, int]] = {}
    for index in np.flatnonzero(now.seg_expandable).tolist():
        start, size = int(now.seg_address[index]), int(now.seg_size[index])
        kind = (int(now.seg_stream[index]), bool(now.seg_small[index]), int(now.seg_pool[index]))
        owner.update(dict.fromkeys(range(start, start + size, page), kind))
    kinds = dict(owner)
    for at_row in np.flatnonzero(np.isin(rows.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)))[::-1].tolist():
        start, size = int(rows.address[at_row]), int(rows.size_bytes[at_row])
        pages = range(start, start + size, page)
        if rows.action[at_row] == Action.SEGMENT_UNMAP:
            # what unmapped pages belonged to: a neighbour shows it, else the pages' size
            is_small = size % settings.large_segment_bytes != 0
            kind = next(
                (kinds[near] for near in (start, start - page, start + size) if near in kinds),
                (int(rows.stream[at_row]), is_small, max(int(rows.pool[at_row]), 0)),
            )
            owner.update(dict.fromkeys(pages, kind))
            kinds.update(dict.fromkeys(pages, kind))
            continue
        for address in pages:
            if owner.pop(address, None) is None:
                raise ReplayError(f"pages mapped at {address:#x} are missing later: entries are missing", hint=HOW)
    ranges: dict[tuple[int, bool, int], list[tuple[int, int]]] = {}
    for start in sorted(owner):
        mine = ranges.setdefault(owner[start], [])
        if mine and mine[-1][0] + mine[-1][1] == start:
            mine[-1] = (mine[-1][0], mine[-1][1] + page)
        else:
            mine.append((start, page))
    return [StartSegment(*kind, True, tuple(extents)) for kind, extents in ranges.items()]
