"""Each allocation of a history from its request to its end: a *life*."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.units import format_count
from torchtriage.memory.allocator.history import HOW, Now, ReplayError
from torchtriage.memory.snapshot.snapshot import Action, History


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Lives by number, and the rows at which they are asked for, freed, and given back.

    ``address`` : int64[n], -1 where nothing was given. ``size_bytes stream pool`` : int64[n], as
    requested. ``exact`` : int64[n], bytes of the block, -1 where they are not recorded. ``start`` :
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
    start_awaiting: Mask
    both_frees: bool
    alloc_row: Ints
    alloc_life: Ints
    request_row: Ints
    request_life: Ints
    complete_row: Ints
    complete_life: Ints
    failed_row: Ints
    failed_life: Ints

    def row_of(self, row: Ints, life: Ints) -> Ints:
        """Return int64[n]: the row of each life in such a pair of columns, -2 where it has none."""
        rows = np.full(len(self.address), -2, np.int64)
        rows[life] = row
        return rows

    @property
    def completed_late(self) -> Mask:
        """bool[n] over ``complete_row``: not in the row after the request."""
        requested = self.row_of(self.request_row, self.request_life)[self.complete_life]
        return self.complete_row != requested + 1


def lives_of(rows: History, now: Now) -> Lifetimes:
    """Give each allocation a number.

    Raises ReplayError: what happened at an address is not possible, so entries are missing.
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
    changes = addr[1:] != addr[:-1]
    first, last = np.append(True, changes)[: len(addr)], np.append(changes, True)[: len(addr)]
    follows = np.append(False, action[1:] == (action[:-1] + 1) % cycle)[: len(addr)]
    wrong = np.flatnonzero(~first & ~follows)
    if len(wrong):
        first_wrong = wrong[np.argmin(row[wrong])]
        names = [Action(code).name.lower() for code in action[first_wrong - 1 : first_wrong + 1].tolist()]
        raise ReplayError(
            f"{format_count(len(wrong), 'entry is', 'entries are')} missing from the history:"
            f" at {int(addr[first_wrong]):#x}, {names[1]} follows {names[0]}",
            hint=HOW,
        )
    _check_ends(now, addr[last], action[last], cycle)
    begins = first | (action == Action.ALLOC)
    life = np.cumsum(begins) - 1
    at = np.flatnonzero(begins)
    early = action[at] != Action.ALLOC
    # blocks in use all along have no entry
    silent = np.flatnonzero(~np.isin(now.live_address, addr))
    holder = now.live_segment[silent]
    failed = np.flatnonzero(rows.action == Action.OOM)
    n_lives, n_silent, n_failed = len(at), len(silent), len(failed)
    inside = now.segment_of(addr[at])
    pool = rows.pool[row[at]]
    if len(now.seg_pool):
        pool = np.where((pool < 0) & (inside >= 0), now.seg_pool[inside], pool)
    # a block still in use at the snapshot has its size; of others it is worked out
    none = np.full(n_failed, -1)
    asked, freed, back = (action == kind for kind in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    return Lifetimes(
        address=np.concatenate([addr[at], now.live_address[silent], none]),
        size_bytes=np.concatenate([rows.size_bytes[row[at]], now.live_requested[silent], rows.size_bytes[failed]]),
        stream=np.concatenate([rows.stream[row[at]], now.seg_stream[holder], rows.stream[failed]]),
        pool=np.concatenate([np.maximum(pool, 0), now.seg_pool[holder], none + 1]),
        exact=np.concatenate([np.full(n_lives, -1), now.live_size[silent], none]),
        start=np.concatenate([np.flatnonzero(early), n_lives + np.arange(n_silent)]),
        start_awaiting=np.concatenate(
            [(action[at[early]] == Action.FREE_COMPLETED) & both_frees, now.live_awaiting[silent]]
        ),
        both_frees=both_frees,
        alloc_row=row[asked],
        alloc_life=life[asked],
        request_row=row[freed],
        request_life=life[freed],
        complete_row=row[back],
        complete_life=life[back],
        failed_row=failed,
        failed_life=n_lives + n_silent + np.arange(n_failed),
    )


def _check_ends(now: Now, addr: Ints, action: Ints, cycle: int) -> None:
    """Refuse a history whose end is not the state at the snapshot."""
    alive = np.isin(addr, now.live_address)
    held = (action == Action.ALLOC) | ((action == Action.FREE_REQUESTED) & (cycle == 3))
    wrong = np.flatnonzero(alive != held)
    if len(wrong):
        says = "in use" if held[wrong[0]] else "free"
        raise ReplayError(
            f"the history does not lead to the snapshot: {format_count(len(wrong), 'block')},"
            f" as at {int(addr[wrong[0]]):#x}, should be {says} by then (recorded, then switched"
            " off before the snapshot?)",
            hint=HOW,
        )
