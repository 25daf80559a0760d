"""Replaying a recorded history with the simulated allocator, under the recorded or another setting."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.memory.allocator.recording import AllocatorRecording, Op
from torchtriage.memory.allocator.settings import SMALL_SEGMENT, SMALL_SIZE, Settings
from torchtriage.memory.allocator.simulator import RANGE_STRIDE, RANGES_AT, Shelf, SimulatedBlock, Simulator


@dataclass(frozen=True, eq=False)
class Replayed:
    """What a replay reserved.

    ``change_row`` : int64[k], rows of the history after which ``change_bytes`` (int64[k]) were
    reserved, until the next change. ``same_address`` : share of the recorded allocations that got
    their recorded address. ``n_fitted`` : recorded out-of-memory errors that had room here, and for one more of their
    size, since a pass that went on would ask again: for the gradient of what it made, in the next layer or step.
    """

    settings: Settings
    change_row: Ints
    change_bytes: Ints
    start_bytes: int
    peak_bytes: int
    n_mallocs: int
    n_frees: int
    n_ooms: int
    n_fitted: int
    same_address: float

    def error(self, recording: AllocatorRecording) -> float:
        """Return the largest distance to the recorded curve, as a share of its peak."""
        rows = recording.op_row
        reserved = np.append(self.start_bytes, self.change_bytes)[np.searchsorted(self.change_row, rows, side="right")]
        away = np.abs(reserved - recording.reserved_bytes[rows])
        return float(away.max(initial=0) / max(recording.peak_bytes, 1))


def replay(
    recording: AllocatorRecording, settings: Settings | None = None, *, limit_bytes: int | None = None
) -> Replayed:
    """Return what the recorded requests would have reserved.

    Without ``settings`` the recorded ones, from the state the history began with, segment by
    segment. With ``settings`` the blocks in use at the start are allocated anew, in the order of
    their addresses: segments and cache from before were made under another setting.

    ``limit_bytes`` : what the device can give; by default what the recording shows of it.
    """
    used = settings or recording.settings
    limit = limit_bytes if limit_bytes is not None else recording.limit_bytes
    simulator = Simulator(used, limit, {size: list(addrs) for size, addrs in recording.addresses.items()})
    lives = recording.lives
    rounded = used.round_sizes(lives.size_bytes)
    sizes = rounded.tolist()
    small = rounded <= SMALL_SIZE
    kinds, code = np.unique(np.stack([lives.stream, lives.pool, small]), axis=1, return_inverse=True)
    shelves = [simulator.shelf(stream, bool(is_small), pool) for stream, pool, is_small in kinds.T.tolist()]
    shelf_of = [shelves[index] for index in np.ravel(code).tolist()]
    blocks: list[SimulatedBlock | None] = [None] * len(sizes)
    _begin(simulator, recording, blocks, sizes, shelf_of, as_recorded=settings is None)

    start = simulator.reserved_bytes
    collecting = gc.isenabled()
    gc.disable()  # blocks point at each other and are dropped one by one: nothing to collect
    try:
        rows, values, given, n_fitted = _run(simulator, recording, blocks, sizes, shelf_of)
    finally:
        if collecting:
            gc.enable()
    wanted = recording.op[(recording.op & 7) == Op.ALLOC] >> 3
    same = _relative(given[wanted], lives.address[wanted])
    return Replayed(
        settings=used,
        change_row=recording.op_row[np.array(rows, np.int64)],
        change_bytes=np.array(values, np.int64),
        start_bytes=start,
        peak_bytes=simulator.peak_bytes,
        n_mallocs=simulator.n_mallocs,
        n_frees=simulator.n_frees,
        n_ooms=simulator.n_ooms,
        n_fitted=n_fitted,
        same_address=float(same.mean()) if len(same) else 1.0,
    )


def _run(
    simulator: Simulator,
    recording: AllocatorRecording,
    blocks: list[SimulatedBlock | None],
    sizes: list[int],
    shelf_of: list[Shelf],
) -> tuple[list[int], list[int], Ints, int]:
    """Return where what is reserved changed, to what, the addresses, and how many failures had room."""
    rows: list[int] = []
    values: list[int] = []
    given = [-1] * len(sizes)
    now = simulator.reserved_bytes
    n_fitted = 0
    malloc, free = simulator.malloc, simulator.free
    for position, op in enumerate(recording.op.tolist()):
        kind, life = op & 7, op >> 3
        if kind == 0:
            block = blocks[life] = malloc(sizes[life], shelf_of[life])
            if block is not None:
                given[life] = block.addr
            if simulator.reserved_bytes == now:
                continue
        else:
            if kind < 4:
                block = blocks[life]
                if block is None:
                    continue
                if kind == 1:
                    free(block)
                    blocks[life] = None
                elif kind == 2:
                    simulator.await_streams(block)
                else:
                    simulator.complete(block)
                continue
            if kind == 4:
                simulator.release_cached(recording.releases[life])
            elif (block := malloc(sizes[life], shelf_of[life])) is not None:
                n_ooms = simulator.n_ooms
                if (following := malloc(sizes[life], shelf_of[life])) is not None:
                    n_fitted += 1
                    free(following)
                simulator.n_ooms = n_ooms  # nobody asked for the second
                free(block)
        now = simulator.reserved_bytes
        rows.append(position)
        values.append(now)
    return rows, values, np.array(given, np.int64), n_fitted


def _relative(given: Ints, recorded: Ints) -> Mask:
    """Return bool[n]: the recorded address; in an expandable segment, the same place inside it."""
    same: Mask = given == recorded
    inside = np.flatnonzero(given >= RANGES_AT)
    which = (given[inside] - RANGES_AT) // RANGE_STRIDE
    for number in distinct(which).tolist():
        mine = inside[which == number]
        shift, count = np.unique(given[mine] - recorded[mine], return_counts=True)
        same[mine] = given[mine] - recorded[mine] == shift[np.argmax(count)]
    return same


def _begin(
    simulator: Simulator,
    recording: AllocatorRecording,
    blocks: list[SimulatedBlock | None],
    sizes: list[int],
    shelf_of: list[Shelf],
    *,
    as_recorded: bool,
) -> None:
    for segment in recording.start:
        if as_recorded:
            granule = SMALL_SEGMENT if segment.small else recording.settings.large_segment_bytes
            adopted = simulator.adopt(
                simulator.shelf(segment.stream, segment.small, segment.pool),
                list(segment.extents),
                [(addr, size) for _, addr, size in segment.held],
                granule if segment.expandable else 0,
                segment.base,
            )
            for (life, _, _), block in zip(segment.held, adopted, strict=True):
                blocks[life] = block
        else:
            for life, _, _ in segment.held:
                blocks[life] = simulator.malloc(sizes[life], shelf_of[life])
        for life in segment.awaiting:
            waiting = blocks[life]
            if waiting is not None:
                simulator.await_streams(waiting)
