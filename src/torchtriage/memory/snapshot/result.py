"""What is said about a memory snapshot: the dataclasses are the JSON document.

Bytes are ``_bytes`` integers, shares are of what the field's docstring names, times are
microseconds since the first entry of the history that has a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.core.finding import Crash, Finding, Frame, NotChecked, Note

MEMORY_SCHEMA = "torchtriage-memory/1"
RECORD = (
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000, context='all')\n"
    "…  # some steps\n"
    "torch.cuda.memory._dump_snapshot('snapshot.pickle')"
)
"""How to record what a verdict lacked."""


@dataclass(frozen=True)
class MemoryPart:
    """A share of a whole that the owner of the list names; parts add up to it to the byte."""

    name: str
    size_bytes: int
    share: float


@dataclass(frozen=True)
class Holder:
    """One line, or one operation without a line, and what it holds; share of all allocated then.

    ``stack`` : the user's frames (any Python frames where there are none), innermost first, of the
    largest allocation. ``category`` : of the largest part.
    """

    label: str
    size_bytes: int
    share: float
    n_allocations: int
    phase: str
    category: str
    module: str
    frame: Frame | None
    stack: tuple[Frame, ...]


@dataclass(frozen=True)
class MemoryPeak:
    """The moment with the most allocated bytes. Shares are of ``allocated_bytes``.

    ``entry`` : number of the history's entry after which it was reached, from 0 on this device;
    -1 before the first. ``at_us`` : its time; None where no times were recorded.
    ``before_bytes`` : what was there before the recording began. ``no_stack_bytes`` : what has no
    stack, so no line; part of it may be from before. The four tables add up, each to the whole.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    entry: int
    n_entries: int
    at_us: int | None
    before_bytes: int
    no_stack_bytes: int
    n_allocations: int
    lines: tuple[Holder, ...]
    modules: tuple[MemoryPart, ...]
    phases: tuple[MemoryPart, ...]
    categories: tuple[MemoryPart, ...]


@dataclass(frozen=True)
class Fragmentation:
    """Why reserved memory was not allocated; ``parts`` add up to ``free_bytes``, their whole.

    ``when`` : ``allocated peak``, or ``snapshot`` where the history does not hold it. ``gap_bytes`` : all but whole
    segments, which any tensor can use and which are given back before an allocation fails. ``largest_bytes`` : the
    largest free piece.
    """

    when: str
    entry: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    gap_bytes: int
    largest_bytes: int
    parts: tuple[MemoryPart, ...]

    @property
    def is_seen(self) -> bool:
        """Whether the history holds the moment where gaps matter."""
        return self.when == "allocated peak"


@dataclass(frozen=True)
class OutOfMemory:
    """One allocation that failed, and why; ``parts`` add up to ``free_bytes``.

    ``device_free_bytes`` : what the driver had left; None where not told. ``sentences`` : the post
    mortem. ``would_fit`` : whether free pieces and the driver's rest together were enough, and
    ``next_would_fit`` : also for one more of its size.
    """

    entry: int
    at_us: int | None
    wanted_bytes: int
    stream: int
    device_free_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_bytes: int
    would_fit: bool
    next_would_fit: bool
    parts: tuple[MemoryPart, ...]
    frame: Frame | None
    stack: tuple[Frame, ...]
    holders: tuple[Holder, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Area:
    """What one owner held over time: a value for each moment of the picture."""

    label: str
    kind: str
    values: tuple[int, ...]
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockRow:
    """One segment. ``pieces`` rows are ``(start_bytes, end_bytes, area)``.

    ``area`` is a row of ``Picture.areas``; -1 free, -2 waiting for another stream, -3 several small
    ones. Neighbours of one kind are one piece.
    """

    address: int
    size_bytes: int
    allocated_bytes: int
    label: str
    pieces: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Picture:
    """Memory over time by owner, and the segments at one moment, merged to what a screen can show.

    ``entries`` : number of the history's entry at each moment; ``times_us`` : its time, -1 where
    none was recorded; ``reserved_bytes`` beside the areas, empty where it is not told.
    ``segments_entry`` : after which entry the segments are drawn, the peak's or that of a failed
    allocation. ``n_segments_left_out`` of the smallest are not drawn.
    """

    entries: tuple[int, ...]
    times_us: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    areas: tuple[Area, ...]
    segments_entry: int
    segments: tuple[BlockRow, ...]
    n_segments_left_out: int


@dataclass(frozen=True)
class Growth:
    """Memory from step to step, and the robust line through it.

    ``name`` : whose memory. ``steps`` : increasing step numbers, ``held_bytes`` : what was held at
    each. ``steps_by`` : how steps were told. ``slope_bytes`` and its 95 % interval
    ``slope_low_bytes slope_high_bytes`` are per step, of the rows from ``from_step`` on (where the
    growth begins, if ``is_leak``); the line goes through ``middle_bytes`` at ``middle_step``.
    ``areas`` : what each growing stack has left behind by each step, largest first.
    """

    name: str
    is_leak: bool
    steps_by: str
    steps: tuple[int, ...]
    held_bytes: tuple[int, ...]
    from_step: int
    slope_bytes: float
    slope_low_bytes: float
    slope_high_bytes: float
    middle_step: float
    middle_bytes: float
    areas: tuple[Area, ...] = ()


@dataclass(frozen=True)
class DeviceMemory:
    """One device: what it held at the snapshot, and at its worst.

    ``requested_bytes`` is what tensors asked for, ``allocated_bytes`` what they were given (rounded
    up), ``active_bytes`` adds what was freed but another stream still uses, ``reserved_bytes`` is
    all that the allocator took from the driver; None where the file does not tell. ``name`` : how
    people call it, ``device 0`` or ``host``.
    """

    device: int
    name: str
    requested_bytes: int | None
    allocated_bytes: int
    active_bytes: int | None
    reserved_bytes: int | None
    n_segments: int
    n_blocks: int
    n_entries: int
    max_reserved_bytes: int | None
    peak: MemoryPeak | None
    fragmentation: Fragmentation | None
    out_of_memory: tuple[OutOfMemory, ...]
    n_out_of_memory: int
    picture: Picture | None


@dataclass(frozen=True)
class Opinion:
    """What one judge says about a snapshot: a sentence, and what follows from it."""

    sentence: str
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[Note, ...] = ()
    growth: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class MemoryResult:
    """Everything said about one snapshot. ``healthy`` : nothing found, and leaks were judged on every device."""

    schema: str
    version: str
    path: str
    size_bytes: int
    verdict: tuple[str, str, str]
    healthy: bool
    n_devices: int
    n_entries: int
    n_stacks: int
    settings: str
    devices: tuple[DeviceMemory, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    not_checked: tuple[NotChecked, ...]
    crashes: tuple[Crash, ...]
    leak: str = ""
    """The leak verdict in one sentence; empty where it was not judged."""
    advice: str = ""
    """What other allocator settings would change, by replay; empty where it was not replayed."""
    growth: tuple[Growth, ...] = ()
    """Memory from step to step, where steps were found."""
    n_steps: int | None = None
    """Steps that a live watch has seen; None for what was recorded otherwise."""
