"""A memory snapshot as columns: segments, blocks, history, frames.

Source: ``torch.cuda.memory._snapshot`` documents the fields; names follow it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, Mask, distinct

Codes = NDArray[np.int32]
Table = TypeVar("Table", bound="Columns")

NONE = -1
"""No stack, no time, not recorded."""


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


class Columns:
    """Rows as arrays of one length, the fields of a dataclass."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def rows(self: Table, rows: Ints) -> Table:
        """Return some of the rows."""
        return type(self)(*(getattr(self, column.name)[rows] for column in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Segments(Columns):
    """What ``cudaMalloc`` returned (or, expandable, what is mapped): one row each.

    ``pool`` : into ``Snapshot.pools``. ``stack`` : -1 for none.
    """

    address: Ints
    size_bytes: Ints
    allocated_bytes: Ints
    active_bytes: Ints
    requested_bytes: Ints
    stream: Ints
    device: Ints
    pool: Codes
    is_small: Mask
    is_expandable: Mask
    stack: Codes


@dataclass(frozen=True)
class Blocks(Columns):
    """Pieces of segments, by address inside each segment.

    ``segment`` : row of :class:`Segments`. ``state`` : an :class:`AllocatorState`. ``stack`` : -1 for none.
    """

    segment: Ints
    address: Ints
    size_bytes: Ints
    requested_bytes: Ints
    state: NDArray[np.int8]
    stack: Codes


@dataclass(frozen=True)
class History(Columns):
    """What the allocators did, device by device, in the order it happened.

    ``action`` : an :class:`Action`. ``address`` : -1 for ``OOM``. ``time_us`` : since the epoch, -1 where the
    version of torch recorded none. ``stack`` : -1 for none. ``pool`` : into ``Snapshot.pools``, -1 where not
    recorded. ``device_free_bytes`` : what the driver had left, -1 but for ``OOM``.
    """

    device: Codes
    action: NDArray[np.int8]
    address: Ints
    size_bytes: Ints
    stream: Ints
    time_us: Ints
    stack: Codes
    pool: Codes
    device_free_bytes: Ints

    @cached_property
    def reserved_change(self) -> Ints:
        """Return int64[rows]: what each row took from the device, negative where it gave back."""
        grows = np.isin(self.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        shrinks = np.isin(self.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        return self.size_bytes * (grows.astype(np.int64) - shrinks)


@dataclass(frozen=True)
class Stacks:
    """The distinct stacks, innermost frame first, over one table of frames.

    ``frame`` : int32[k], stack i is ``frame[start[i]:start[i + 1]]``. ``lines`` : int64[n_frames], the line that
    ran if ``is_exact``, else the function's first.
    """

    start: Ints
    frame: Codes
    files: tuple[str, ...]
    lines: Ints
    functions: tuple[str, ...]
    is_exact: bool = True

    def __len__(self) -> int:
        """Return the number of distinct stacks."""
        return len(self.start) - 1

    def frames_of(self, stack: int) -> list[int]:
        """Return the frame ids of a stack, innermost first; none for -1."""
        return self.frame[self.start[stack] : self.start[stack + 1]].tolist() if stack >= 0 else []

    def having(self, wanted: Mask) -> Mask:
        """Return bool[n]: which stacks have a frame that is ``wanted``, bool[n_frames]."""
        return np.logical_or.reduceat(wanted[self.frame], self.start[:-1]) if len(self) else np.zeros(0, np.bool_)


class StackTable:
    """Collects frames and stacks, each once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], int] = {}
        self._stacks: dict[bytes, int] = {}
        self._flat = array("i")
        self._start = array("q", [0])

    def frame(self, file: str, line: int, function: str) -> int:
        """Return the id of a frame."""
        return self._frames.setdefault((file, line, function), len(self._frames))

    def stack(self, frames: Iterable[int]) -> int:
        """Return the id of a stack, given as ids of frames."""
        key = array("i", frames).tobytes()
        stack = self._stacks.setdefault(key, len(self._stacks))
        if stack == len(self._start) - 1:
            self._flat.frombytes(key)
            self._start.append(len(self._flat))
        return stack

    def stacks(self, *, is_exact: bool = True) -> Stacks:
        """Return what was collected."""
        return Stacks(
            start=np.array(self._start, np.int64),
            frame=np.array(self._flat, np.int32),
            files=tuple(file for file, _, _ in self._frames),
            lines=np.array([line for _, line, _ in self._frames], np.int64),
            functions=tuple(function for _, _, function in self._frames),
            is_exact=is_exact,
        )


@dataclass(frozen=True)
class Annotations(Columns):
    """Ranges the program named while it ran (optimizer steps, ``record_function``), by start.

    ``name`` : into ``Snapshot.texts``. ``start_us end_us`` : since the epoch; an end that was not recorded is -1.
    """

    name: Codes
    device: Codes
    start_us: Ints
    end_us: Ints


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
        return tuple(distinct(np.concatenate([self.segments.device, self.history.device])).tolist())

    def reserved_bytes(self, device: int) -> int:
        """Return what the allocator held at the snapshot."""
        return int(self.segments.size_bytes[self.segments.device == device].sum())

    def check(self) -> list[str]:
        """Return where the file's own totals disagree; none in a good file."""
        segments, blocks = self.segments, self.blocks
        wrong: list[str] = []
        for what, stated, mask in (
            ("size", segments.size_bytes, np.ones(len(blocks), np.bool_)),
            ("allocated", segments.allocated_bytes, blocks.state == AllocatorState.ACTIVE_ALLOCATED),
            ("active", segments.active_bytes, blocks.state != AllocatorState.INACTIVE),
        ):
            sizes = blocks.size_bytes[mask]
            sums = np.bincount(blocks.segment[mask], weights=sizes, minlength=len(segments)).astype(np.int64)
            rows = np.flatnonzero(sums != stated)
            if len(rows):
                segment = rows[0]
                wrong.append(
                    f"{what} of {len(rows):,} of {len(segments):,} segments: segment"
                    f" {int(segments.address[segment]):#x} says {int(stated[segment]):,}, its blocks"
                    f" {int(sums[segment]):,}"
                )
        return wrong
