"""What a program asked of the allocator, taken out of a snapshot's history.

The history of one device is walked back from the blocks and segments at the snapshot to what was
there when it began. What remains are requests: allocate, free, ``empty_cache``. The allocator's
answers (addresses, segments) are kept beside them, to compare a replay with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchtriage.errors import TriageError
from torchtriage.memory.allocator.settings import (
    SMALL_SEGMENT,
    SMALL_SIZE,
    Settings,
)
from torchtriage.memory.snapshot import Action, Snapshot, State
from torchtriage.units import format_bytes, format_count

__all__ = ["Op", "Recording", "ReplayError", "StartSegment", "record"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_BYTES = 1 << 42
"""Sizes above it (4 TiB) are no memory of a device."""
_HOW = (
    "call torch.cuda.memory._record_memory_history(max_entries=1000000) before the model is built,"
    " and _dump_snapshot() before it is switched off"
)


class ReplayError(TriageError):
    """The history does not hold what a replay needs; the message says what is missing."""


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


@dataclass(frozen=True, eq=False)
class Recording:
    """One device's requests and the answers they got.

    A *life* is one allocation from its request to its end; ``life_*`` arrays have one entry each.

    ``op`` : int64[k], ``life << 3 | Op`` (for ``RELEASE``: index into ``releases``). ``op_row`` :
    int64[k], row of the device's history after which it is done, ascending. ``life_bytes`` :
    int64[n], requested. ``life_address`` : int64[n], -1 where nothing was given. ``life_stream`` :
    int64[n]. ``life_pool`` : int64[n], 0 for the default pool. ``reserved_bytes`` : int64[rows],
    after each row. ``limit_bytes`` : what the device could give at most, None where it never
    refused. ``n_held_back`` : runs of frees taken for the allocator's own, made to find room.
    """

    device: int
    settings: Settings
    told_settings: bool
    op: Ints
    op_row: Ints
    life_bytes: Ints
    life_address: Ints
    life_stream: Ints
    life_pool: Ints
    start: tuple[StartSegment, ...]
    start_bytes: int
    start_held_bytes: int
    reserved_bytes: Ints
    allocated_bytes: Ints
    addresses: dict[int, list[int]]
    releases: tuple[tuple[int, ...], ...]
    limit_bytes: int | None
    limit_basis: str
    n_held_back: int
    n_mallocs: int
    n_frees: int
    malloc_us: Ints
    """Time since the entry before each call that took memory: what such a call costs at most."""

    @property
    def peak_bytes(self) -> int:
        """The most that was reserved during the history."""
        return max(int(self.reserved_bytes.max(initial=0)), self.start_bytes)


@dataclass(frozen=True)
class _Piece:
    """A segment without what is in it; fields as in :class:`StartSegment`."""

    extents: list[tuple[int, int]]
    stream: int
    small: bool
    pool: int
    expandable: bool = False


@dataclass
class _Run:
    """Segments given back one after the other, in rows ``start`` to ``end``; ``last`` the last.

    ``before`` : bytes reserved until then. ``own`` : the allocator did it, to make room for
    ``need`` bytes.
    """

    start: int
    end: int
    last: int
    before: int
    pools: tuple[int, ...]
    need: int = 0
    own: bool = False


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one device."""

    action: NDArray[np.int8]
    address: Ints
    size: Ints
    stream: Ints
    time_us: Ints
    stack: NDArray[np.int32]
    pool: Ints
    free: Ints


def record(
    snapshot: Snapshot,
    device: int,
    settings: Settings | None = None,
    *,
    as_asked: bool = False,
) -> Recording:
    """Return the requests one device's history holds, and the state it began with.

    Cached memory given back right before more was taken may have been the allocator's own doing,
    to make room; with ``as_asked`` all of it counts as asked for by the program.

    Raises
    ------
    ReplayError
        There is no history, parts of it are missing, or another allocator was at work.
    """
    told = settings is not None or bool(snapshot.settings)
    settings = settings or Settings.recorded(snapshot.settings)
    if settings.backend != "native":
        raise ReplayError(
            f"the caching allocator was not at work: backend {settings.backend!r}",
            hint="record with PyTorch's own allocator (no backend: in PYTORCH_ALLOC_CONF)",
        )
    rows = _rows(snapshot, device)
    if not np.isin(rows.action, (Action.ALLOC, Action.FREE_REQUESTED)).any():
        raise ReplayError("the snapshot holds no history of allocations", hint=_HOW)
    sizes = np.concatenate([rows.size, snapshot.segments.size_bytes, snapshot.blocks.size_bytes])
    if sizes.min(initial=0) < 0 or sizes.max(initial=0) > MAX_BYTES:
        raise ReplayError("the snapshot tells sizes that no device has", hint=_HOW)
    return _Walk(snapshot, device, settings, told, rows, as_asked).recording()


def _rows(snapshot: Snapshot, device: int) -> _Rows:
    history = snapshot.history
    keep = np.flatnonzero(
        (history.device == device)
        & np.isin(history.action, np.arange(Action.ALLOC, Action.OOM + 1, dtype=np.int8))
    )
    default = [i for i, pool in enumerate(snapshot.pools) if pool == (0, 0)]
    pool = history.pool[keep].astype(np.int64) + 1
    if default:
        pool[pool == default[0] + 1] = 0
    pool[history.pool[keep] < 0] = -1
    return _Rows(
        action=history.action[keep],
        address=history.address[keep],
        size=history.size_bytes[keep],
        stream=history.stream[keep],
        time_us=history.time_us[keep],
        stack=history.stack[keep],
        pool=pool,
        free=history.device_free_bytes[keep],
    )


class _Walk:
    """The steps from rows to a :class:`Recording`, sharing what they find."""

    def __init__(
        self,
        snapshot: Snapshot,
        device: int,
        settings: Settings,
        told: bool,
        rows: _Rows,
        as_asked: bool,
    ) -> None:
        self.as_asked = as_asked
        self.snapshot = snapshot
        self.device = device
        self.settings = settings
        self.told = told
        self.rows = rows
        segments = snapshot.segments
        mine = np.flatnonzero(segments.device == device)
        mine = mine[np.argsort(segments.address[mine], kind="stable")]
        default = [i for i, pool in enumerate(snapshot.pools) if pool == (0, 0)]
        pool = segments.pool[mine].astype(np.int64) + 1
        pool[segments.pool[mine] < 0] = 0
        if default:
            pool[pool == default[0] + 1] = 0
        self.seg_address = segments.address[mine]
        self.seg_size = segments.size_bytes[mine]
        self.seg_stream = segments.stream[mine]
        self.seg_small = segments.is_small[mine]
        self.seg_expandable = segments.is_expandable[mine]
        self.seg_pool = pool
        blocks = snapshot.blocks
        active = np.isin(blocks.segment, mine) & (blocks.state != State.INACTIVE)
        live = np.flatnonzero(active)
        live = live[np.argsort(blocks.address[live], kind="stable")]
        self.live_address = blocks.address[live]
        self.live_size = blocks.size_bytes[live]
        self.live_requested = blocks.requested_bytes[live]
        self.live_awaiting = blocks.state[live] == State.ACTIVE_AWAITING_FREE
        by_id = np.argsort(mine)
        self.live_segment = by_id[np.searchsorted(mine[by_id], blocks.segment[live])]

    def recording(self) -> Recording:
        rows = self.rows
        self._lives()
        start = self._start()
        start_bytes = sum(size for one in start for _, size in one.extents)
        reserved = start_bytes + np.cumsum(_signed(rows))
        final = int(self.seg_size.sum())
        if len(reserved) and reserved[-1] != final:
            raise ReplayError(
                f"segments do not add up: {format_bytes(final)} at the snapshot,"
                f" {format_bytes(int(reserved[-1]))} by the history",
                hint=_HOW,
            )
        runs = self._releases(reserved)
        limit, basis = self._limit(reserved, runs)
        ops, op_rows = self._ops(runs)
        takes = np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        gives = np.isin(rows.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        plain = np.flatnonzero(rows.action == Action.SEGMENT_ALLOC)
        hints: dict[int, list[int]] = {}
        for addr, size in zip(rows.address[plain].tolist(), rows.size[plain].tolist(), strict=True):
            hints.setdefault(size, []).append(addr)
        change = np.zeros(len(rows.action), np.int64)
        change[self.alloc_row] = self.life_bytes[self.alloc_life]
        change[self.request_row] = -self.life_bytes[self.request_life]
        held = sum(
            int(self.life_bytes[life])
            for one in start
            for life, _, _ in one.held
            if life not in one.awaiting
        )
        return Recording(
            device=self.device,
            settings=self.settings,
            told_settings=self.told,
            op=ops,
            op_row=op_rows,
            life_bytes=self.life_bytes,
            life_address=self.life_address,
            life_stream=self.life_stream,
            life_pool=self.life_pool,
            start=start,
            start_bytes=start_bytes,
            start_held_bytes=held,
            reserved_bytes=reserved,
            allocated_bytes=held + np.cumsum(change),
            addresses=hints,
            releases=tuple(run.pools for run in runs),
            limit_bytes=limit,
            limit_basis=basis,
            n_held_back=sum(run.own for run in runs),
            n_mallocs=int(takes.sum()),
            n_frees=int(gives.sum()),
            malloc_us=self._malloc_us(takes | gives),
        )

    # -- lives ---------------------------------------------------------------------------------

    def _lives(self) -> None:
        """Give each allocation a number; each address must tell a possible story."""
        rows = self.rows
        used = np.flatnonzero(rows.action <= Action.FREE_COMPLETED)
        kinds = set(np.unique(rows.action[used]).tolist())
        # a recording may skip one of the two kinds of frees: the other then stands for both
        self.both_frees = {int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)} <= kinds
        action = rows.action[used].astype(np.int64)
        if not self.both_frees:
            action = np.minimum(action, Action.FREE_REQUESTED)
        cycle = 3 if self.both_frees else 2
        order = np.argsort(rows.address[used], kind="stable")
        row, action, addr = used[order], action[order], rows.address[used][order]
        first = np.ones(len(addr), np.bool_)
        first[1:] = addr[1:] != addr[:-1]
        follows = np.zeros(len(addr), np.bool_)
        follows[1:] = action[1:] == (action[:-1] + 1) % cycle
        wrong = np.flatnonzero(~first & ~follows)
        if len(wrong):
            one = wrong[np.argmin(row[wrong])]
            names = [Action(int(a)).name.lower() for a in action[one - 1 : one + 1]]
            raise ReplayError(
                f"{format_count(len(wrong), 'entry is', 'entries are')} missing from the history:"
                f" at {int(addr[one]):#x}, {names[1]} follows {names[0]}",
                hint=_HOW,
            )
        begins = first | (action == Action.ALLOC)
        life = np.cumsum(begins) - 1
        n_lives = int(begins.sum())
        last = np.ones(len(addr), np.bool_)
        last[:-1] = first[1:]
        self._check_ends(addr[last], action[last], cycle)
        at = np.flatnonzero(begins)
        early = action[at] != Action.ALLOC
        # blocks in use all along have no entry
        known = np.isin(self.live_address, addr)
        silent = np.flatnonzero(~known)
        failed = np.flatnonzero(rows.action == Action.OOM)
        self.life_address = np.concatenate(
            [addr[at], self.live_address[silent], np.full(len(failed), -1)]
        )
        self.life_bytes = np.concatenate(
            [rows.size[row[at]], self.live_requested[silent], rows.size[failed]]
        )
        holder = np.maximum(self.live_segment[silent], 0)
        self.life_stream = np.concatenate(
            [rows.stream[row[at]], self.seg_stream[holder], rows.stream[failed]]
        )
        pools = rows.pool[row[at]].copy()
        inside = self._segment_of(addr[at])
        guess = np.where(inside >= 0, self.seg_pool[np.maximum(inside, 0)], 0)
        pools = np.where(pools >= 0, pools, guess)
        self.life_pool = np.concatenate(
            [pools, self.seg_pool[holder], np.zeros(len(failed), np.int64)]
        )
        n_seen = n_lives + len(silent)
        self.failed_row, self.failed_life = failed, n_seen + np.arange(len(failed))
        starts = np.concatenate([np.flatnonzero(early), n_lives + np.arange(len(silent))])
        self.start_life = starts
        self.start_awaiting = np.concatenate(
            [
                action[at[early]] == Action.FREE_COMPLETED
                if self.both_frees
                else np.zeros(int(early.sum()), np.bool_),
                self.live_awaiting[silent],
            ]
        )
        # a block still in use at the snapshot told its size; of others it is worked out
        exact = np.full(len(self.life_address), -1, np.int64)
        exact[n_lives + np.arange(len(silent))] = self.live_size[silent]
        self.life_exact = exact

        def of(kind: int) -> tuple[Ints, Ints]:
            mask = action == kind
            return row[mask], life[mask]

        self.alloc_row, self.alloc_life = of(Action.ALLOC)
        self.request_row, self.request_life = of(Action.FREE_REQUESTED)
        self.complete_row, self.complete_life = of(Action.FREE_COMPLETED)

    def _check_ends(self, addr: Ints, action: Ints, cycle: int) -> None:
        """Refuse a history whose end is not the state at the snapshot."""
        at = np.searchsorted(self.live_address, addr)
        at = np.minimum(at, max(len(self.live_address) - 1, 0))
        alive = (
            self.live_address[at] == addr
            if len(self.live_address)
            else np.zeros(len(addr), np.bool_)
        )
        held = (action == Action.ALLOC) | ((action == Action.FREE_REQUESTED) & (cycle == 3))
        wrong = np.flatnonzero(alive != held)
        if len(wrong):
            one = int(wrong[0])
            says = "in use" if held[one] else "free"
            raise ReplayError(
                f"the history does not lead to the snapshot: {format_count(len(wrong), 'block')},"
                f" as at {int(addr[one]):#x}, should be {says} by then (recorded, then switched"
                " off before the snapshot?)",
                hint=_HOW,
            )

    def _segment_of(self, addr: Ints) -> Ints:
        """Return int64[n]: the segment at the snapshot that holds each address, -1 for none."""
        if not len(self.seg_address):
            return np.full(len(addr), -1, np.int64)
        at = np.searchsorted(self.seg_address, addr, side="right") - 1
        inside = (at >= 0) & (addr < self.seg_address[at] + self.seg_size[at])
        return np.where(inside, at, -1)

    # -- the state at the start ----------------------------------------------------------------

    def _start(self) -> tuple[StartSegment, ...]:
        pieces = self._plain_segments() + self._mapped_ranges()
        pieces.sort(key=lambda piece: piece.extents[0][0])
        order = self.start_life[np.argsort(self.life_address[self.start_life], kind="stable")]
        awaiting = set(self.start_life[self.start_awaiting].tolist())
        rounded = self.settings.round_sizes(self.life_bytes[order])
        lives = list(
            zip(
                order.tolist(),
                self.life_address[order].tolist(),
                rounded.tolist(),
                self.life_exact[order].tolist(),
                strict=True,
            )
        )
        extents = sorted(
            (addr, size, index)
            for index, piece in enumerate(pieces)
            for addr, size in piece.extents
        )
        for (addr, size, _), (after, _, _) in pairwise(extents):
            if addr + size > after:
                raise ReplayError(f"segments overlap at {after:#x}: entries are missing", hint=_HOW)
        held: list[list[tuple[int, int, int]]] = [[] for _ in pieces]
        at = 0
        for position, (life, addr, size, exact) in enumerate(lives):
            while at < len(extents) and extents[at][0] + extents[at][1] <= addr:
                at += 1
            if at == len(extents) or extents[at][0] > addr:
                raise ReplayError(
                    f"a block at {addr:#x} lies in no segment: entries about segments are missing",
                    hint=_HOW,
                )
            end = extents[at][0] + extents[at][1]
            if position + 1 < len(lives):
                end = min(end, lives[position + 1][1])
            index = extents[at][2]
            piece = pieces[index]
            if exact >= 0:
                size = exact
            elif not (piece.small or piece.expandable) and (
                end - addr - size <= SMALL_SIZE or size >= self.settings.max_split_bytes
            ):
                size = end - addr  # what a large block cannot leave to another one is its own
            if addr + size > end:
                raise ReplayError(
                    f"blocks overlap at {addr:#x}: entries are missing, or the settings changed"
                    " while it was recorded",
                    hint=_HOW,
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
                base=self._base(piece),
            )
            for piece, mine in zip(pieces, held, strict=True)
        )

    def _base(self, piece: _Piece) -> int:
        """Return the lowest address that was ever mapped of an expandable segment."""
        rows, lowest = self.rows, piece.extents[0][0]
        if not piece.expandable:
            return lowest
        # small requests map one small page at a time, large ones never so little
        small = rows.size < self.settings.large_segment_bytes
        mine = (rows.action == Action.SEGMENT_MAP) & (rows.stream == piece.stream)
        return int(rows.address[mine & (small == piece.small)].min(initial=lowest))

    def _plain_segments(self) -> list[_Piece]:
        """Return the ordinary segments there were at the start."""
        rows = self.rows
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
        plain = ~self.seg_expandable
        now = set(self.seg_address[plain].tolist())
        gone = set(addr[last & given].tolist())
        if wrong.any() or not ends <= now or gone & now:
            raise ReplayError(
                "entries about segments are missing from the history"
                " (skip_actions, or switched off meanwhile?)",
                hint=_HOW,
            )
        touched = set(addr.tolist())
        lasting = [
            _Piece(
                [(int(self.seg_address[index]), int(self.seg_size[index]))],
                int(self.seg_stream[index]),
                bool(self.seg_small[index]),
                int(self.seg_pool[index]),
            )
            for index in np.flatnonzero(plain).tolist()
            if int(self.seg_address[index]) not in touched
        ]
        freed = [
            _Piece(
                [(int(rows.address[one]), int(rows.size[one]))],
                int(rows.stream[one]),
                int(rows.size[one]) == SMALL_SEGMENT,
                max(int(rows.pool[one]), 0),
            )
            for one in row[first & given].tolist()
        ]
        return lasting + freed

    def _mapped_ranges(self) -> list[_Piece]:
        """Return one entry per expandable segment, with what of it was mapped at the start."""
        rows = self.rows
        about = np.isin(rows.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
        row = np.flatnonzero(about)
        page = SMALL_SEGMENT
        owner: dict[int, tuple[int, bool, int]] = {}
        for index in np.flatnonzero(self.seg_expandable).tolist():
            start, size = int(self.seg_address[index]), int(self.seg_size[index])
            kind = (
                int(self.seg_stream[index]),
                bool(self.seg_small[index]),
                int(self.seg_pool[index]),
            )
            owner.update(dict.fromkeys(range(start, start + size, page), kind))
        kinds: dict[int, tuple[int, bool, int]] = dict(owner)
        for one in row[::-1].tolist():
            start, size = int(rows.address[one]), int(rows.size[one])
            pages = range(start, start + size, page)
            if rows.action[one] == Action.SEGMENT_UNMAP:
                # what unmapped pages belonged to: a neighbour tells, else the pages' size
                is_small = size % self.settings.large_segment_bytes != 0
                kind = next(
                    (kinds[near] for near in (start, start - page, start + size) if near in kinds),
                    (int(rows.stream[one]), is_small, max(int(rows.pool[one]), 0)),
                )
                fresh = dict.fromkeys(pages, kind)
                owner.update(fresh)
                kinds.update(fresh)
                continue
            for each in pages:
                if owner.pop(each, None) is None:
                    raise ReplayError(
                        f"pages mapped at {each:#x} are missing later: entries are missing",
                        hint=_HOW,
                    )
        ranges: dict[tuple[int, bool, int], list[tuple[int, int]]] = {}
        for start in sorted(owner):
            mine = ranges.setdefault(owner[start], [])
            if mine and mine[-1][0] + mine[-1][1] == start:
                mine[-1] = (mine[-1][0], mine[-1][1] + page)
            else:
                mine.append((start, page))
        return [_Piece(extents, *kind, True) for kind, extents in ranges.items()]

    # -- memory given back ---------------------------------------------------------------------

    def _releases(self, reserved: Ints) -> list[_Run]:
        """Return the runs of segments given back, and which may be the allocator's own."""
        rows = self.rows
        gives = np.isin(rows.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        quiet = gives.copy()
        quiet[self._late_rows()] = True  # frees that waited: a retry completes them first
        edge = np.diff(quiet.astype(np.int8), prepend=0, append=0)
        given = np.concatenate([np.zeros(1, np.int64), np.cumsum(gives)])
        starts, ends = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        some = given[ends] > given[starts]
        runs: list[_Run] = []
        asked = self._stacks_of("empty_cache")
        for start, end in zip(starts[some].tolist(), ends[some].tolist(), strict=True):
            mine = start + np.flatnonzero(gives[start:end])
            pools = {0, *np.maximum(rows.pool[mine], 0).tolist()}
            before = int(reserved[start]) - int(_signed(rows)[start])
            run = _Run(start, end, int(mine[-1]), before, tuple(sorted(pools)))
            runs.append(run)
            # with expandable segments, what was missing is not told: pages had served a part
            if end == len(rows.action) or self.settings.expandable or self.as_asked:
                continue
            follower = int(rows.action[end])
            if follower == Action.OOM:
                run.need = int(self._most_needed(rows.size[end : end + 1])[0])
            elif follower == Action.SEGMENT_ALLOC:
                run.need = int(rows.size[end])
            else:
                continue
            stack = int(rows.stack[mine[0]])
            if stack >= 0:
                run.own = stack not in asked and stack == int(rows.stack[end])
            else:  # it would have fitted: nobody had to make room
                run.own = before + run.need > int(reserved.max())
        return runs

    def _late_rows(self) -> Ints:
        """Return the rows of frees that were completed later than they were requested."""
        if not self.both_frees:
            return np.zeros(0, np.int64)
        requested = np.full(len(self.life_address), -2, np.int64)
        requested[self.request_life] = self.request_row
        late: Ints = self.complete_row[self.complete_row != requested[self.complete_life] + 1]
        return late

    def _most_needed(self, asked_bytes: Ints) -> Ints:
        """Return int64[n]: the most each request can have wanted of the device."""
        rounded = self.settings.round_sizes(asked_bytes)
        if self.settings.expandable:
            page = np.where(rounded <= SMALL_SIZE, SMALL_SEGMENT, self.settings.large_segment_bytes)
            return np.asarray(-(-rounded // page) * page, np.int64)
        return np.array([self.settings.segment_size(one) for one in rounded.tolist()], np.int64)

    def _stacks_of(self, function: str) -> set[int]:
        stacks = self.snapshot.stacks
        frames = [i for i, name in enumerate(stacks.functions) if name == function]
        hit = np.flatnonzero(np.isin(stacks.frame, frames))
        return set((np.searchsorted(stacks.start, hit, side="right") - 1).tolist())

    def _limit(self, reserved: Ints, runs: list[_Run]) -> tuple[int | None, str]:
        """Return what the device could give at most and how that is known."""
        rows = self.rows
        # a collection by age says nothing about what the device had left
        collects = self.settings.gc_threshold > 0
        bounds = [run.before + run.need - 1 for run in runs if run.own and not collects]
        failed = np.flatnonzero(rows.action == Action.OOM)
        short = reserved[failed] + self._most_needed(rows.size[failed]) - 1
        told = rows.free[failed] >= 0
        free = (reserved[failed] + rows.free[failed])[told]
        known = bounds + short.tolist() + free.tolist()
        if not known:
            return None, "the device never refused"
        if min(known) < int(reserved.max(initial=0)):
            # what else was on the device changed meanwhile: take the frees as asked for
            for run in runs:
                run.own = False
            return None, "what the device could give changed while it was recorded"
        basis = "an out-of-memory error" if len(failed) else "cached memory given back to make room"
        return min(known), basis

    def _malloc_us(self, about: Bools) -> Ints:
        """Return the time between each SEGMENT_ALLOC or SEGMENT_MAP and the entry before it."""
        rows = self.rows
        takes = np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        takes[:1] = False
        takes[1:] &= ~about[:-1]
        at = np.flatnonzero(takes & (rows.time_us >= 0))
        gaps: Ints = rows.time_us[at] - rows.time_us[at - 1] if len(at) else at
        return gaps[gaps >= 0]

    # -- operations ----------------------------------------------------------------------------

    def _ops(self, runs: list[_Run]) -> tuple[Ints, Ints]:
        """Return the operations and their rows, in order."""
        n_lives = len(self.life_address)
        parts = [(self.alloc_row, self.alloc_life, Op.ALLOC)]
        if self.both_frees:
            completed = np.full(n_lives, -2, np.int64)
            completed[self.complete_life] = self.complete_row
            at_once = completed[self.request_life] == self.request_row + 1
            requested = np.full(n_lives, -2, np.int64)
            requested[self.request_life] = self.request_row
            late = self.complete_row != requested[self.complete_life] + 1
            # what a retry completed came back after the request had looked in vain
            back = self.complete_row.copy()
            for run in runs:
                if run.own and not self.settings.gc_threshold:  # collecting completes nothing
                    inside = (back >= run.start) & (back < run.end)
                    back[inside] = min(run.end + 1, len(self.rows.action) - 1)
            parts += [
                (self.request_row[at_once] + 1, self.request_life[at_once], Op.FREE),
                (self.request_row[~at_once], self.request_life[~at_once], Op.FREE_REQUESTED),
                (back[late], self.complete_life[late], Op.FREE_COMPLETED),
            ]
        else:
            parts.append((self.request_row, self.request_life, Op.FREE))
        asked = [index for index, run in enumerate(runs) if not run.own]
        parts += [
            (self.failed_row, self.failed_life, Op.FAILED),
            (
                np.array([runs[index].last for index in asked], np.int64),
                np.array(asked, np.int64),
                Op.RELEASE,
            ),
        ]
        row = np.concatenate([part[0] for part in parts])
        op = np.concatenate([part[1] << 3 | int(part[2]) for part in parts])
        # of one row, what was delayed to it comes last
        order = np.lexsort(((op & 7) == Op.FREE_COMPLETED, row))
        return op[order].astype(np.int64), row[order].astype(np.int64)


def _signed(rows: _Rows) -> Ints:
    takes = np.isin(rows.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    gives = np.isin(rows.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    return np.where(takes, rows.size, np.where(gives, -rows.size, 0)).astype(np.int64)
