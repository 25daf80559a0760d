"""A model of PyTorch's CUDA caching allocator: blocks, pools, segments, and what it asks of CUDA.

It follows ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` rule by rule (best
fit by size then address within a stream, splitting, merging, expandable segments, oversize blocks,
garbage collection by age, release and retry when the device is full), so that a recorded history
gives the recorded segments again. It knows sizes and addresses only; nothing is allocated.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from torchtriage.memory.allocator.settings import MIN_BLOCK, SMALL_SEGMENT, SMALL_SIZE, UNLIMITED, Settings

FREE, ALLOCATED, AWAITING, UNMAPPED = range(4)
"""Of a block: cached, in use, freed but still used by another stream, address space only."""

_BITS = 64
_ADDRESS = (1 << _BITS) - 1
_VIRTUAL_BYTES = 1 << 46
"""Address space of an expandable segment where the device's size is unknown: never full."""
_SEGMENTS_AT, RANGES_AT = 1 << 56, 1 << 60
"""Where addresses begin that were not recorded: above all real ones, each kind for itself."""
RANGE_STRIDE = 2 * _VIRTUAL_BYTES
"""From one expandable segment to the next."""


@dataclass(slots=True, eq=False)
class Range:
    """The address space of an expandable segment: where it starts, what it maps at a time."""

    base: int
    granule: int


@dataclass(slots=True, eq=False)
class SimulatedBlock:
    """A piece of a segment; neighbours in address order are ``prev`` and ``next``."""

    addr: int
    size: int
    shelf: Shelf
    range: Range | None = None
    """The expandable segment it lies in, None in ordinary ones."""
    state: int = FREE
    prev: SimulatedBlock | None = None
    next: SimulatedBlock | None = None
    born: int = 0
    """Calls of the pool when the block was last cached: its age counts from there."""


@dataclass(slots=True, eq=False)
class Pool:
    """Small or large blocks of the default pool or of a private one (CUDA graphs, MemPool)."""

    code: int
    small: bool
    calls: int = 0
    shelves: dict[int, Shelf] = field(default_factory=dict)


class Shelf:
    """The free blocks of one stream in one pool, smallest first, then lowest address."""

    __slots__ = ("blocks", "keys", "pool", "small", "stream", "unmapped", "unmapped_at")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.small = pool.small
        self.stream = stream
        self.keys: list[int] = []
        self.blocks: dict[int, SimulatedBlock] = {}
        self.unmapped_at: list[int] = []
        self.unmapped: dict[int, SimulatedBlock] = {}

    def put(self, block: SimulatedBlock) -> None:
        """Cache a block."""
        block.state = FREE
        block.born = self.pool.calls
        self.blocks[block.addr] = block
        insort(self.keys, block.size << _BITS | block.addr)

    def drop(self, block: SimulatedBlock) -> None:
        """Take a cached block out."""
        keys = self.keys
        del keys[bisect_left(keys, block.size << _BITS | block.addr)]
        del self.blocks[block.addr]

    def put_unmapped(self, block: SimulatedBlock) -> None:
        """Keep a piece of address space without memory."""
        block.state = UNMAPPED
        self.unmapped[block.addr] = block
        insort(self.unmapped_at, block.addr)

    def drop_unmapped(self, block: SimulatedBlock) -> None:
        """Take such a piece out."""
        del self.unmapped_at[bisect_left(self.unmapped_at, block.addr)]
        del self.unmapped[block.addr]

    def in_order(self) -> list[SimulatedBlock]:
        """Return the cached blocks, smallest first."""
        return [self.blocks[key & _ADDRESS] for key in self.keys]


@dataclass
class Simulator:
    """The allocator of one device under one setting.

    ``limit_bytes`` : what it can reserve before the device refuses; None: never refused. ``addresses`` : for
    sizes of segments, addresses to hand out in turn, as far as they are free: equal sizes differ by address
    only, so recorded ones make a replay exact.
    """

    settings: Settings = field(default_factory=Settings)
    limit_bytes: int | None = None
    addresses: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with nothing reserved."""
        self.reserved_bytes = 0
        self.peak_bytes = 0
        self.n_mallocs = 0
        """Calls that take memory from the device: cudaMalloc, or one mapping of pages."""
        self.n_frees = 0
        self.n_retries = 0
        self.n_ooms = 0
        self.pools: dict[tuple[int, bool], Pool] = {}
        self._heads: dict[int, SimulatedBlock] = {}  # first block of each segment, by its address
        self._segments: list[int] = []  # addresses of ordinary segments, ascending
        self._sizes: dict[int, int] = {}
        self._top = _SEGMENTS_AT
        self._n_ranges = 0
        self._awaiting: dict[int, SimulatedBlock] = {}
        settings = self.settings
        self._expandable = settings.expandable
        self._max_split = settings.max_split_bytes
        self._plain = not settings.expandable and settings.max_split_bytes >= UNLIMITED
        self._collects = settings.gc_threshold > 0 and self.limit_bytes is not None

    # -- what a program does -----------------------------------------------------------------

    def shelf(self, stream: int, small: bool, pool: int = 0) -> Shelf:
        """Return where blocks of this kind are cached, an empty place at first."""
        owner = self.pools.get((pool, small))
        if owner is None:
            owner = self.pools[pool, small] = Pool(pool, small)
        if stream not in owner.shelves:
            owner.shelves[stream] = Shelf(owner, stream)
        return owner.shelves[stream]

    def malloc(self, size: int, shelf: Shelf) -> SimulatedBlock | None:
        """Return a block of at least ``size`` bytes (rounded already), None when out of memory."""
        if self._collects:
            shelf.pool.calls += 1
        if self._plain:  # the common case of _cached, in line: this runs once per event
            keys = shelf.keys
            at = bisect_left(keys, size << _BITS)
            if at < len(keys):
                block = shelf.blocks.pop(keys.pop(at) & _ADDRESS)
            else:
                fresh = self._from_device(size, shelf)
                if fresh is None:
                    return None
                block = fresh
            rest_bytes = block.size - size
            split = rest_bytes >= MIN_BLOCK if shelf.small else rest_bytes > SMALL_SIZE
        else:
            candidate = self._cached(size, shelf) or self._from_device(size, shelf)
            if candidate is None:
                return None
            block = candidate
            rest_bytes = block.size - size
            if shelf.small or self._expandable:
                split = rest_bytes >= MIN_BLOCK
            else:
                split = size < self._max_split and rest_bytes > SMALL_SIZE
        if split:
            rest = SimulatedBlock(block.addr + size, rest_bytes, shelf, block.range)
            after = rest.next = block.next
            if after is not None:
                after.prev = rest
            rest.prev = block
            block.next = rest
            block.size = size
            rest.born = shelf.pool.calls
            shelf.blocks[rest.addr] = rest
            insort(shelf.keys, rest_bytes << _BITS | rest.addr)
        block.state = ALLOCATED
        return block

    def free(self, block: SimulatedBlock) -> None:
        """Cache a block again, merged with free neighbours."""
        shelf = block.shelf
        keys = shelf.keys
        near = block.prev
        if near is not None and near.state == FREE:
            addr = near.addr
            del keys[bisect_left(keys, near.size << _BITS | addr)]
            del shelf.blocks[addr]
            block.addr = addr
            block.size += near.size
            before = block.prev = near.prev
            if before is not None:
                before.next = block
            else:
                self._heads[addr] = block
        near = block.next
        if near is not None and near.state == FREE:
            del keys[bisect_left(keys, near.size << _BITS | near.addr)]
            del shelf.blocks[near.addr]
            block.size += near.size
            after = block.next = near.next
            if after is not None:
                after.prev = block
        block.state = FREE
        block.born = shelf.pool.calls
        shelf.blocks[block.addr] = block
        insort(keys, block.size << _BITS | block.addr)

    def await_streams(self, block: SimulatedBlock) -> None:
        """Mark a block as freed by its owner and still used by another stream."""
        block.state = AWAITING
        self._awaiting[block.addr] = block

    def complete(self, block: SimulatedBlock) -> None:
        """Free a block that waited, unless a retry has freed it meanwhile."""
        if self._awaiting.pop(block.addr, None) is block:
            self.free(block)

    def release_cached(self, pools: Collection[int] = (0,)) -> None:
        """Give free segments of these pools back: ``empty_cache``, and the last retry."""
        for block in list(self._awaiting.values()):
            self.complete(block)
        for small in (False, True):
            for pool in self.pools.values():
                if pool.small is small and pool.code in pools:
                    self._release_pool(pool)

    # -- what it holds -----------------------------------------------------------------------

    def blocks(self) -> Iterator[SimulatedBlock]:
        """Yield every block of every segment in address order, address space included."""
        for addr in sorted(self._heads):
            block: SimulatedBlock | None = self._heads[addr]
            while block is not None:
                yield block
                block = block.next

    def adopt(
        self, shelf: Shelf, extents: list[tuple[int, int]], held: list[tuple[int, int]], granule: int, base: int
    ) -> list[SimulatedBlock]:
        """Take over a segment as it stands and return a block for each held range.

        ``extents`` : (address, bytes) of its memory, ascending: one range, or the mapped ranges of
        an expandable segment (``granule`` > 0). ``held`` : (address, bytes) in use, ascending. What
        lies between them is free, and what lies between extents is unmapped, from ``base`` on, the first address.
        """
        pieces: list[SimulatedBlock] = []
        result: list[SimulatedBlock] = []
        space = Range(base, granule) if granule else None
        at = 0
        end = base
        for start, size in extents:
            if start > end:
                pieces.append(SimulatedBlock(end, start - end, shelf, space, UNMAPPED))
            here = start
            end = start + size
            while at < len(held) and held[at][0] < end:
                addr, held_bytes = held[at]
                if addr > here:
                    pieces.append(SimulatedBlock(here, addr - here, shelf, space))
                result.append(SimulatedBlock(addr, held_bytes, shelf, space, ALLOCATED))
                pieces.append(result[-1])
                here = addr + held_bytes
                at += 1
            if here < end:
                pieces.append(SimulatedBlock(here, end - here, shelf, space))
            self._reserve(size)
        if granule:
            pieces.append(SimulatedBlock(end, _VIRTUAL_BYTES, shelf, space, UNMAPPED))
        else:
            self._own(extents[0][0], extents[0][1])
        for left, right in pairwise(pieces):
            _link(left, right)
        for block in pieces:
            if block.state == FREE:
                shelf.put(block)
            elif block.state == UNMAPPED:
                shelf.put_unmapped(block)
        self._heads[base] = pieces[0]
        return result

    # -- cached blocks -----------------------------------------------------------------------

    def _cached(self, size: int, shelf: Shelf) -> SimulatedBlock | None:
        keys, blocks = shelf.keys, shelf.blocks
        at = bisect_left(keys, size << _BITS)
        if at == len(keys):
            return None
        block = blocks[keys[at] & _ADDRESS]
        if block.range is not None:
            if self._expandable:
                # a block that can still grow counts as large as it can become
                room = _expandable_size(block)
                while at + 1 < len(keys) and block.range is not None:
                    other = blocks[keys[at + 1] & _ADDRESS]
                    other_room = _expandable_size(other)
                    if other_room >= room:
                        break
                    block, room = other, other_room
                    at += 1
            else:
                while block.range is not None:
                    at += 1
                    if at == len(keys):
                        return None
                    block = blocks[keys[at] & _ADDRESS]
        if size < self._max_split:
            if block.size >= self._max_split:
                return None
        elif block.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        del keys[at]
        del blocks[block.addr]
        return block

    def _from_device(self, size: int, shelf: Shelf) -> SimulatedBlock | None:
        """Return a new block, after giving cached memory back as far as that is needed."""
        if self._collects:
            self._collect()
        block = self._grow(size, shelf)
        if block is None and self._release_available(size, shelf):
            block = self._grow(size, shelf)
        if block is None:
            self.n_retries += 1
            self.release_cached()
            block = self._grow(size, shelf)
        if block is None:
            self.n_ooms += 1
        return block

    def _grow(self, size: int, shelf: Shelf) -> SimulatedBlock | None:
        if self._expandable:
            return self._expand(size, shelf)
        wanted = self.settings.segment_size(size)
        if not self._fits(wanted):
            return None
        addr = self._place(wanted)
        block = self._heads[addr] = SimulatedBlock(addr, wanted, shelf)
        self._own(addr, wanted)
        self._reserve(wanted)
        self.n_mallocs += 1
        return block

    def _fits(self, size: int) -> bool:
        return self.limit_bytes is None or self.reserved_bytes + size <= self.limit_bytes

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)

    def _own(self, addr: int, size: int) -> None:
        insort(self._segments, addr)
        self._sizes[addr] = size

    def _place(self, size: int) -> int:
        """Return a recorded address of such a segment if it is free, else one above them all."""
        hints = self.addresses.get(size)
        for position, addr in enumerate(hints or ()):
            at = bisect_left(self._segments, addr)
            below = self._segments[at - 1] if at else None
            if (below is None or below + self._sizes[below] <= addr) and (
                at == len(self._segments) or addr + size <= self._segments[at]
            ):
                assert hints is not None
                del hints[position]
                return addr
        addr = self._top
        self._top += size
        return addr

    # -- expandable segments -----------------------------------------------------------------

    def _expand(self, size: int, shelf: Shelf) -> SimulatedBlock | None:
        block = self._room_to_expand(size, shelf)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it has swallowed the block before it
        shelf.drop(block)
        return block

    def _room_to_expand(self, size: int, shelf: Shelf) -> SimulatedBlock:
        """Return the first block of the lowest run of free or unmapped space that is enough."""
        for addr in shelf.unmapped_at:
            first = shelf.unmapped[addr]
            if first.prev is not None and first.prev.state == FREE:
                first = first.prev
            room = 0
            block: SimulatedBlock | None = first
            while block is not None and room < size and block.state in (FREE, UNMAPPED):
                room += block.size
                block = block.next
            if room >= size:
                return first
        granule = SMALL_SEGMENT if shelf.small else self.settings.large_segment_bytes
        base = RANGES_AT + self._n_ranges * RANGE_STRIDE
        self._n_ranges += 1
        fresh = SimulatedBlock(base, _VIRTUAL_BYTES // granule * granule, shelf, Range(base, granule))
        shelf.put_unmapped(fresh)
        self._heads[base] = fresh
        return fresh

    def _map(self, block: SimulatedBlock, size: int) -> bool:
        """Back the start of an unmapped block with pages and merge it with free neighbours."""
        assert block.range is not None
        granule = block.range.granule
        wanted = -(-size // granule) * granule
        if not self._fits(wanted):
            return False
        shelf = block.shelf
        shelf.drop_unmapped(block)
        if wanted < block.size:
            rest = SimulatedBlock(block.addr + wanted, block.size - wanted, shelf, block.range)
            _link(rest, block.next)
            _link(block, rest)
            block.size = wanted
            shelf.put_unmapped(rest)
        self.free(block)
        self._reserve(wanted)
        self.n_mallocs += 1
        return True

    def _unmap(self, block: SimulatedBlock) -> None:
        """Give back the whole pages inside a free block of an expandable segment."""
        space, shelf = block.range, block.shelf
        assert space is not None
        base, granule = space.base, space.granule
        start = base + -(-(block.addr - base) // granule) * granule
        end = base + (block.addr + block.size - base) // granule * granule
        if end <= start:
            return
        shelf.drop(block)
        left, right = start - block.addr, block.addr + block.size - end
        if left:
            before = SimulatedBlock(block.addr, left, shelf, space)
            self._follow(block.prev, before)
            _link(before, block)
            shelf.put(before)
        if right:
            after = SimulatedBlock(end, right, shelf, space)
            _link(after, block.next)
            _link(block, after)
            shelf.put(after)
        block.addr, block.size = start, end - start
        self.reserved_bytes -= end - start
        self.n_frees += 1
        near = block.prev
        if near is not None and near.state == UNMAPPED:
            shelf.drop_unmapped(near)
            block.addr, block.size = near.addr, block.size + near.size
            self._follow(near.prev, block)
        near = block.next
        if near is not None and near.state == UNMAPPED:
            shelf.drop_unmapped(near)
            block.size += near.size
            _link(block, near.next)
        if block.prev is None and block.next is None:
            del self._heads[block.addr]
        else:
            shelf.put_unmapped(block)

    def _follow(self, before: SimulatedBlock | None, block: SimulatedBlock) -> None:
        _link(before, block)
        if before is None:
            self._heads[block.addr] = block

    # -- giving memory back ------------------------------------------------------------------

    def _release_pool(self, pool: Pool) -> None:
        cached = [block for shelf in pool.shelves.values() for block in shelf.in_order()]
        for block in cached:
            if block.range is not None:
                self._unmap(block)
            elif block.prev is None and block.next is None:
                self._release(block)

    def _release(self, block: SimulatedBlock) -> None:
        block.shelf.drop(block)
        del self._heads[block.addr]
        del self._segments[bisect_left(self._segments, block.addr)]
        del self._sizes[block.addr]
        self.reserved_bytes -= block.size
        self.n_frees += 1

    def _release_available(self, size: int, shelf: Shelf) -> bool:
        """Give back oversize blocks of this stream, as few as the request needs."""
        if self._max_split >= UNLIMITED:
            return False
        wanted = max(size, self._max_split)
        at = bisect_left(shelf.keys, wanted << _BITS)
        cached = shelf.in_order()
        if at < len(cached) and cached[at].range is None:
            self._release(cached[at])
            return True
        released = 0
        for block in reversed(cached[:at]):
            if released >= wanted or block.size < self._max_split:
                break
            if block.range is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def _collect(self) -> None:
        """Give back cached large segments older than the mean, while above the threshold."""
        assert self.limit_bytes is not None
        threshold = int(self.settings.gc_threshold * self.limit_bytes)
        pool = self.pools.get((0, False))
        if self.reserved_bytes <= threshold or pool is None:
            return
        target = self.reserved_bytes - threshold
        whole = [
            block
            for stream in sorted(pool.shelves)
            for block in pool.shelves[stream].in_order()
            if block.prev is None and block.next is None
        ]
        age = sum(pool.calls - block.born for block in whole)
        reclaimed = 0
        while whole and reclaimed < target:
            mean = age / len(whole)
            old = [block for block in whole if pool.calls - block.born >= mean]
            if not old:
                break
            for block in old:
                reclaimed += block.size
                age -= pool.calls - block.born
                self._release(block)
            whole = [block for block in whole if pool.calls - block.born < mean]


def _link(left: SimulatedBlock | None, right: SimulatedBlock | None) -> None:
    if left is not None:
        left.next = right
    if right is not None:
        right.prev = left


def _expandable_size(block: SimulatedBlock) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)
