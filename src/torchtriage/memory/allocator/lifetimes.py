"""Each allocation of a history from its request to its end: a *life*."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_count
from torchtriage.memory.allocator.history import HOW, HistoryRows, Now, ReplayError
from torchtriage.memory.snapshot.snapshot import Action

__all__ = ["Lifetimes", "lives_of"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Lives by number, and the rows at which they are asked for, freed, and given back.

    ``address`` : int64[n], -1 where nothing was given. ``size_bytes stream pool`` : int64[n], as
    requested. ``exact`` : int64[n], bytes of the block, -1 where they are not told. ``start`` :
    lives from before the history; ``start_awaiting`` : of these, those their owner has freed.
    ``*_row *_life`` : pairs of a row and the life it is about; without ``both_frees`` a recording
    has one kind of free, which stands for both.
    """

    address: Ints
    size_bytes: Ints
    stream: Ints
    pool: Ints
    exact: Ints
    start: Ints
    start_awaiting: Bools
    both_frees: bool
    alloc_row: Ints
    alloc_life: Ints
    request_row: Ints
    request_life: Ints
    complete_row: Ints
    complete_life: Ints
    failed_row: Ints
    failed_life: Ints


def lives_of(rows: HistoryRows, now: Now) -> Lifetimes:
    """Give each allocation a number; each address must tell a possible story.

    Raises
    ------
    ReplayError
        It does not: entries are missing.
    """
    used = np.flatnonzero(rows.action <= Action.FREE_COMPLETED)
    kinds = set(distinct(rows.action[used]).tolist())
    # a recording may skip one of the two kinds of frees: the other then stands for both
    both_frees = {int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)} <= kinds
    action = rows.action[used].astype(np.int64)
    if not both_frees:
        action = np.minimum(action, Action.FREE_REQUESTED)
    cycle = 3 if both_frees else 2
    order = np.argsort(rows.address[used], kind="stable")
    row, action, addr = used[order], action[order], rows.address[used][order]
    first = np.ones(len(addr), np.bool_)
    first[1:] = addr[1:] != addr[:-1]
    follows = np.zeros(len(addr), np.bool_)
    follows[1:] = action[1:] == (action[:-1] + 1) % cycle
    wrong = np.flatnonzero(~first & ~follows)
    if len(wrong):
        first_wrong = wrong[np.argmin(row[wrong])]
        names = [Action(int(a)).name.lower() for a in action[first_wrong - 1 : first_wrong + 1]]
        raise ReplayError(
            f"{format_count(len(wrong), 'entry is', 'entries are')} missing from the history:"
            f" at {int(addr[first_wrong]):#x}, {names[1]} follows {names[0]}",
            hint=HOW,
        )
    begins = first | (action == Action.ALLOC)
    life = np.cumsum(begins) - 1
    n_lives = int(begins.sum())
    last = np.ones(len(addr), np.bool_)
    last[:-1] = first[1:]
    _check_ends(now, addr[last], action[last], cycle)
    at = np.flatnonzero(begins)
    early = action[at] != Action.ALLOC
    # blocks in use all along have no entry
    known = np.isin(now.live_address, addr)
    silent = np.flatnonzero(~known)
    failed = np.flatnonzero(rows.action == Action.OOM)
    address = np.concatenate([addr[at], now.live_address[silent], np.full(len(failed), -1)])
    size_bytes = np.concatenate([rows.size[row[at]], now.live_requested[silent], rows.size[failed]])
    holder = np.maximum(now.live_segment[silent], 0)
    stream = np.concatenate([rows.stream[row[at]], now.seg_stream[holder], rows.stream[failed]])
    pools = rows.pool[row[at]].copy()
    inside = now.segment_of(addr[at])
    guess = np.where(inside >= 0, now.seg_pool[np.maximum(inside, 0)], 0)
    pools = np.where(pools >= 0, pools, guess)
    pool = np.concatenate([pools, now.seg_pool[holder], np.zeros(len(failed), np.int64)])
    n_seen = n_lives + len(silent)
    start = np.concatenate([np.flatnonzero(early), n_lives + np.arange(len(silent))])
    start_awaiting = np.concatenate(
        [
            action[at[early]] == Action.FREE_COMPLETED if both_frees else np.zeros(int(early.sum()), np.bool_),
            now.live_awaiting[silent],
        ]
    )
    # a block still in use at the snapshot told its size; of others it is worked out
    exact = np.full(len(address), -1, np.int64)
    exact[n_lives + np.arange(len(silent))] = now.live_size[silent]
    asked, freed, back = (action == kind for kind in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    return Lifetimes(
        address=address,
        size_bytes=size_bytes,
        stream=stream,
        pool=pool,
        exact=exact,
        start=start,
        start_awaiting=start_awaiting,
        both_frees=both_frees,
        alloc_row=row[asked],
        alloc_life=life[asked],
        request_row=row[freed],
        request_life=life[freed],
        complete_row=row[back],
        complete_life=life[back],
        failed_row=failed,
        failed_life=n_seen + np.arange(len(failed)),
    )


def _check_ends(now: Now, addr: Ints, action: Ints, cycle: int) -> None:
    """Refuse a history whose end is not the state at the snapshot."""
    at = np.searchsorted(now.live_address, addr)
    at = np.minimum(at, max(len(now.live_address) - 1, 0))
    alive = now.live_address[at] == addr if len(now.live_address) else np.zeros(len(addr), np.bool_)
    held = (action == Action.ALLOC) | ((action == Action.FREE_REQUESTED) & (cycle == 3))
    wrong = np.flatnonzero(alive != held)
    if len(wrong):
        first_wrong = int(wrong[0])
        says = "in use" if held[first_wrong] else "free"
        raise ReplayError(
            f"the history does not lead to the snapshot: {format_count(len(wrong), 'block')},"
            f" as at {int(addr[first_wrong]):#x}, should be {says} by then (recorded, then switched"
            " off before the snapshot?)",
            hint=HOW,
        )
