"""Every allocation of a snapshot as a life, and memory over time from them.

Sizes: the history records what was asked for, blocks what the allocator gave. Here a life has the
size of its block where that is still there at the snapshot, else what was asked for rounded up as
the allocator does under the recorded settings. What it could not split off a cached block is not known then, so
allocated bytes in the past are a lower bound, by less than 1 MiB for each large allocation; at the
end they are the file's own to the byte.
Source: ``round_size`` and ``should_split`` in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.errors import UsageError
from torchtriage.memory.allocator.settings import Settings
from torchtriage.memory.snapshot.snapshot import NONE, Action, AllocatorState, Codes, Columns, Snapshot


@dataclass(frozen=True)
class BlockLives(Columns):
    """Allocations of one device, one row each.

    ``stack free_stack`` : where it was asked for and given back, -1 where that is not recorded. ``born freed`` :
    rows of the history: alive in ``[born, freed)``. Born at -1: it was there before the recording. Freed at the
    history's end (``Timeline.end``): it was there at the snapshot.
    """

    address: Ints
    size_bytes: Ints
    stack: Codes
    free_stack: Codes
    born: Ints
    freed: Ints


@dataclass(frozen=True)
class Timeline:
    """Memory of one device over its part of the history, rows ``start`` to ``end``.

    ``allocated_bytes reserved_bytes`` : int64[end - start + 1], before the first entry and after
    each. ``n_unmatched`` : allocations whose free was not recorded though they are gone. ``settings`` : the
    allocator's, as recorded.
    """

    device: int
    start: int
    end: int
    lives: BlockLives
    allocated_bytes: Ints
    reserved_bytes: Ints
    n_unmatched: int
    settings: Settings

    @cached_property
    def peak(self) -> int:
        """The row of the history after which most was allocated; ``start - 1``: before all."""
        return self.start - 1 + int(np.argmax(self.allocated_bytes))

    @property
    def peak_bytes(self) -> int:
        """What was allocated at the peak."""
        return int(self.allocated_bytes.max())

    def allocated_at(self, row: int) -> int:
        """Return what was allocated after a row of the history."""
        return int(self.allocated_bytes[row - self.start + 1])

    def reserved_at(self, row: int) -> int:
        """Return what was reserved after a row of the history."""
        return int(self.reserved_bytes[row - self.start + 1])

    def alive(self, row: int) -> Mask:
        """Return which lives hold memory after a row: bool[n]."""
        return (self.lives.born <= row) & (self.lives.freed > row)


def timeline(snapshot: Snapshot, device: int) -> Timeline:
    """Return the lives and curves of one device."""
    history = snapshot.history
    rows = np.flatnonzero(history.device == device)
    start, end = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    settings = Settings()
    with suppress(UsageError, ValueError, OverflowError):  # no settings of PyTorch's
        settings = Settings.recorded(snapshot.settings)
    lives, n_unmatched = _lives(snapshot, device, start, end, settings)
    change = history.reserved_change[start:end]
    return Timeline(
        device=device,
        start=start,
        end=end,
        lives=lives,
        allocated_bytes=allocated(lives, start, end),
        reserved_bytes=snapshot.reserved_bytes(device) - change.sum() + np.append(0, np.cumsum(change)),
        n_unmatched=n_unmatched,
        settings=settings,
    )


def allocated(lives: BlockLives, start: int, end: int) -> Ints:
    """Return int64[end - start + 1]: what was allocated before the rows, and after each."""
    change = np.zeros(end - start + 1, np.int64)
    np.add.at(change, np.maximum(lives.born - start + 1, 0), lives.size_bytes)
    gone = lives.freed < end
    np.subtract.at(change, lives.freed[gone] - start + 1, lives.size_bytes[gone])
    return np.cumsum(change)


def _lives(snapshot: Snapshot, device: int, start: int, end: int, settings: Settings) -> tuple[BlockLives, int]:
    history, blocks = snapshot.history, snapshot.blocks
    action = history.action[start:end]
    gives = np.flatnonzero(action == Action.FREE_REQUESTED)
    if not len(gives):  # left out by skip_actions, or an old torch
        gives = np.flatnonzero(action == Action.FREE_COMPLETED)
    rows = np.concatenate([np.flatnonzero(action == Action.ALLOC), gives]) + start
    born, freed, by_free, old_born, old_freed = paired(
        rows, history.address[rows], history.action[rows] == Action.ALLOC, end
    )

    mine = snapshot.segments.device[blocks.segment] == device
    alive = np.flatnonzero(mine & (blocks.state == AllocatorState.ACTIVE_ALLOCATED))
    alive = alive[np.argsort(blocks.address[alive], kind="stable")]
    size = settings.round_sizes(history.size_bytes[born])
    last = np.flatnonzero(freed == end)
    place = np.searchsorted(blocks.address[alive], history.address[born[last]])
    known = np.zeros(len(last), np.bool_)
    inside = place < len(alive)
    known[inside] = blocks.address[alive[place[inside]]] == history.address[born[last[inside]]]
    size[last[known]] = blocks.size_bytes[alive[place[known]]]
    lost = last[~known]
    freed[lost] = np.maximum(born[lost], end - 1)
    rest = np.delete(alive, place[known])

    free_stack = np.full(len(born), NONE, np.int32)
    free_stack[by_free] = history.stack[freed[by_free]]
    none = np.full(len(rest), NONE, np.int32)
    lives = BlockLives(
        address=np.concatenate([history.address[born], history.address[old_freed], blocks.address[rest]]),
        size_bytes=np.concatenate([size, settings.round_sizes(history.size_bytes[old_freed]), blocks.size_bytes[rest]]),
        stack=np.concatenate([history.stack[born], np.full(len(old_born), NONE, np.int32), blocks.stack[rest]]),
        free_stack=np.concatenate([free_stack, history.stack[old_freed], none]),
        born=np.concatenate([born, old_born, none]),
        freed=np.concatenate([freed, old_freed, np.full(len(rest), end, np.int64)]),
    )
    return lives, len(lost)


def paired(rows: Ints, address: Ints, is_alloc: Mask, end: int) -> tuple[Ints, Ints, Mask, Ints, Ints]:
    """Pair allocations with what ends them: the next row at their address, a free or not, else ``end``.

    ``rows`` : in any order; a row's number says when it was.

    Returns
    -------
    born, freed : int64[k]
        Of allocations.
    by_free : bool[k]
        Whether a free ended it.
    old_born, old_freed : int64[m]
        Of frees without an allocation: born at -1, or at the free before at the same address.
    """
    order = np.lexsort((rows, address))
    rows, address, is_alloc = rows[order], address[order], is_alloc[order]
    same = np.append(address[1:] == address[:-1], False)[: len(rows)]
    freed = np.where(same, np.append(rows[1:], end)[: len(rows)], end)
    by_free = same & np.append(~is_alloc[1:], False)[: len(rows)]
    before = np.append(-1, np.where(same, rows, -1))[: len(rows)]
    was_alloc = np.append(False, is_alloc & same)[: len(rows)]
    orphan = ~is_alloc & ~was_alloc
    return rows[is_alloc], freed[is_alloc], by_free[is_alloc], before[orphan], rows[orphan]
