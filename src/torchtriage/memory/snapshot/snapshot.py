"""A memory snapshot as columns: segments, blocks, history, frames.

Source: ``torch.cuda.memory._snapshot`` documents the fields; names follow it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import distinct

__all__ = ["NONE", "Action", "AllocatorState", "Annotations", "Blocks", "History", "Segments", "Snapshot", "Stacks"]

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Bools = NDArray[np.bool_]

NONE = -1
"""No stack, no time, not told."""


class Action(IntEnum):
    """What the allocator did, as ``TraceEntry::Action`` names it."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    USER_DEFINED = 9
    OTHER = 10
    """An action of a torch newer than this reader; counted in ``Snapshot.unknown``."""


class AllocatorState(IntEnum):
    """The state of a block, as the snapshot names it."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_AWAITING_FREE = 2


@dataclass(frozen=True)
class Segments:
    """What ``cudaMalloc`` returned (or, expandable, what is mapped): one row each.

    ``address size_bytes allocated_bytes active_bytes requested_bytes stream`` : int64[n].
    ``device`` : int64[n]. ``pool`` : int32[n], into ``Snapshot.pools``. ``is_small is_expandable``
    : bool[n]. ``stack`` : int32[n], -1 for none. ``block_start`` : int64[n + 1], the blocks of
    segment i are rows ``block_start[i]:block_start[i + 1]`` of :class:`Blocks`.
    """

    address: Ints
    size_bytes: Ints
    allocated_bytes: Ints
    active_bytes: Ints
    requested_bytes: Ints
    stream: Ints
    device: Ints
    pool: Codes
    is_small: Bools
    is_expandable: Bools
    stack: Codes
    block_start: Ints

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.address)


@dataclass(frozen=True)
class Blocks:
    """Pieces of segments, by address inside each segment.

    ``segment`` : int64[n], row of :class:`Segments`. ``address size_bytes requested_bytes`` :
    int64[n]. ``state`` : int8[n], a :class:`AllocatorState`. ``stack`` : int32[n], -1 for none.
    """

    segment: Ints
    address: Ints
    size_bytes: Ints
    requested_bytes: Ints
    state: NDArray[np.int8]
    stack: Codes

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.address)


@dataclass(frozen=True)
class History:
    """What the allocators did, device by device, in the order it happened.

    ``device action`` : int32[n], int8[n] (an :class:`Action`). ``address`` : int64[n], -1 for
    ``OOM``. ``size_bytes stream`` : int64[n]. ``time_us`` : int64[n] since the epoch, -1 where the
    version of torch told none. ``stack`` : int32[n], -1 for none. ``pool metadata
    compile_context`` : int32[n], codes into ``Snapshot.pools`` and ``Snapshot.texts``; pool is -1
    where not told. ``device_free_bytes`` : int64[n], what the driver had left, -1 but for ``OOM``.
    """

    device: Codes
    action: NDArray[np.int8]
    address: Ints
    size_bytes: Ints
    stream: Ints
    time_us: Ints
    stack: Codes
    pool: Codes
    metadata: Codes
    compile_context: Codes
    device_free_bytes: Ints

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.address)


@dataclass(frozen=True)
class Stacks:
    """The distinct stacks, innermost frame first, over one table of frames.

    ``frame`` : int32[k], stack i is ``frame[start[i]:start[i + 1]]``. ``files functions`` : text
    of each frame. ``lines`` : int64[n_frames], the line that ran if ``is_exact``, else the
    function's first. ``fx`` : for frames of generated code, what torch
    told of their origin.
    """

    start: Ints
    frame: Codes
    files: tuple[str, ...]
    lines: Ints
    functions: tuple[str, ...]
    fx: dict[int, str]
    is_exact: bool = True

    def __len__(self) -> int:
        """Return the number of distinct stacks."""
        return len(self.start) - 1

    def frames_of(self, stack: int) -> list[int]:
        """Return the frame ids of a stack, innermost first; none for -1."""
        if stack < 0:
            return []
        return [int(frame) for frame in self.frame[self.start[stack] : self.start[stack + 1]]]


@dataclass(frozen=True)
class Annotations:
    """Ranges the program named while it ran (optimizer steps, ``record_function``), by start.

    ``name`` : int32[n], into ``Snapshot.texts``. ``device`` : int32[n]. ``start_us end_us`` :
    int64[n] since the epoch; an end that was not recorded is -1.
    """

    name: Codes
    device: Codes
    start_us: Ints
    end_us: Ints

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self.name)


@dataclass(frozen=True)
class Snapshot:
    """One file of ``torch.cuda.memory._dump_snapshot``.

    ``unknown`` counts what was met and not understood, by name. ``n_devices`` : how many devices
    the file lists, with or without memory or history.
    """

    path: str
    size_bytes: int
    segments: Segments
    blocks: Blocks
    history: History
    stacks: Stacks
    annotations: Annotations
    pools: tuple[tuple[int, int], ...]
    texts: tuple[str, ...]
    settings: dict[str, Any]
    n_devices: int
    unknown: dict[str, int] = field(default_factory=dict)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices with segments or history, in order."""
        both = np.concatenate([self.segments.device, self.history.device.astype(np.int64)])
        return tuple(int(device) for device in distinct(both))

    def reserved_bytes(self, device: int) -> int:
        """Return what the allocator held at the snapshot."""
        return int(self.segments.size_bytes[self.segments.device == device].sum())

    def allocated_bytes(self, device: int) -> int:
        """Return what tensors held at the snapshot, rounded as the allocator rounds."""
        return int(self.segments.allocated_bytes[self.segments.device == device].sum())

    def check(self) -> list[str]:
        """Return where the file's own totals disagree; none in a good file."""
        segments, blocks = self.segments, self.blocks
        wrong: list[str] = []

        def compare(what: str, told: Ints, mask: Bools | slice, sizes: Ints) -> None:
            found = np.bincount(blocks.segment[mask], weights=sizes[mask], minlength=len(segments)).astype(np.int64)
            rows = np.flatnonzero(found != told)
            if len(rows):
                segment = rows[0]
                wrong.append(
                    f"{what} of {len(rows):,} of {len(segments):,} segments: segment"
                    f" {int(segments.address[segment]):#x} says {int(told[segment]):,}, its blocks"
                    f" {int(found[segment]):,}"
                )

        allocated = blocks.state == AllocatorState.ACTIVE_ALLOCATED
        compare("size", segments.size_bytes, slice(None), blocks.size_bytes)
        compare("allocated", segments.allocated_bytes, allocated, blocks.size_bytes)
        active = blocks.state != AllocatorState.INACTIVE
        compare("active", segments.active_bytes, active, blocks.size_bytes)
        return wrong
