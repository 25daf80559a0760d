"""What a snapshot holds of one device: the rows of its history, and what is there at its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.errors import TriageError
from torchtriage.memory.snapshot.snapshot import Action, AllocatorState, Codes, History, Snapshot

HOW = (
    "call torch.cuda.memory._record_memory_history(max_entries=1000000) before the model is built,"
    " and _dump_snapshot() before it is switched off"
)


class ReplayError(TriageError):
    """The history does not hold what a replay needs; the message says what is missing."""


@dataclass(frozen=True, eq=False)
class Now:
    """Segments and blocks in use of one device at the snapshot, each by address.

    ``seg_pool`` : 0 for the default pool. ``live_segment`` : int64[n], the segment of each block.
    """

    seg_address: Ints
    seg_size: Ints
    seg_stream: Ints
    seg_small: Mask
    seg_expandable: Mask
    seg_pool: Codes
    live_address: Ints
    live_size: Ints
    live_requested: Ints
    live_awaiting: Mask
    live_segment: Ints

    def segment_of(self, addr: Ints) -> Ints:
        """Return int64[n]: the segment at the snapshot that holds each address, -1 for none."""
        if not len(self.seg_address):
            return np.full(len(addr), -1, np.int64)
        at = np.searchsorted(self.seg_address, addr, side="right") - 1
        inside = (at >= 0) & (addr < self.seg_address[at] + self.seg_size[at])
        return np.where(inside, at, -1)


def history_of(snapshot: Snapshot, device: int) -> History:
    """Return the rows of one device that are about its memory; ``pool`` is 0 for the default one."""
    history = snapshot.history
    about = (history.action >= Action.ALLOC) & (history.action <= Action.OOM)
    rows = history.rows(np.flatnonzero((history.device == device) & about))
    return replace(rows, pool=_pools(snapshot, rows.pool, unknown=-1))


def now_of(snapshot: Snapshot, device: int) -> Now:
    """Return what there is of one device at the snapshot."""
    segments, blocks = snapshot.segments, snapshot.blocks
    mine = np.flatnonzero(segments.device == device)
    mine = mine[np.argsort(segments.address[mine], kind="stable")]
    live = np.flatnonzero(np.isin(blocks.segment, mine) & (blocks.state != AllocatorState.INACTIVE))
    live = live[np.argsort(blocks.address[live], kind="stable")]
    by_id = np.argsort(mine)
    return Now(
        seg_address=segments.address[mine],
        seg_size=segments.size_bytes[mine],
        seg_stream=segments.stream[mine],
        seg_small=segments.is_small[mine],
        seg_expandable=segments.is_expandable[mine],
        seg_pool=_pools(snapshot, segments.pool[mine], unknown=0),
        live_address=blocks.address[live],
        live_size=blocks.size_bytes[live],
        live_requested=blocks.requested_bytes[live],
        live_awaiting=blocks.state[live] == AllocatorState.ACTIVE_AWAITING_FREE,
        live_segment=by_id[np.searchsorted(mine[by_id], blocks.segment[live])],
    )


def _pools(snapshot: Snapshot, pool: Codes, *, unknown: int) -> Codes:
    codes = pool + 1
    if (0, 0) in snapshot.pools:
        codes[codes == snapshot.pools.index((0, 0)) + 1] = 0
    codes[pool < 0] = unknown
    return codes
