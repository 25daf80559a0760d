"""The profiler's memory timeline: bytes by category over time, without stacks or addresses.

Two forms: the raw one, ``[time, action, bytes, category]`` for each event, times in ns, and the drawn
one, ``[times, sizes]`` with a row of categories for each time, in µs. Both are per device, and say nothing of
the allocator. Source: ``torch/profiler/_memory_profiler.py``, ``export_memory_timeline_raw`` and
``export_memory_timeline``; categories are numbered in the order of ``_CATEGORY_TO_COLORS``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import SnapshotError
from torchtriage.core.finding import NotChecked
from torchtriage.core.units import format_bytes, format_ns, format_share
from torchtriage.core.version import __version__
from torchtriage.memory.snapshot.attribution import NO_STACK
from torchtriage.memory.snapshot.result import (
    MEMORY_SCHEMA,
    RECORD,
    Area,
    DeviceMemory,
    MemoryPart,
    MemoryPeak,
    MemoryResult,
    Picture,
)
from torchtriage.memory.snapshot.timeline_chart import thinned

CATEGORIES = (
    "parameters",
    "optimizer state",
    "inputs",
    "temporaries",
    "activations",
    "gradients",
    "autograd detail",
    "unknown",
)
_EXPORT = (
    "export one with prof.export_memory_timeline('timeline.raw.json.gz', device='cuda:0'), recorded"
    " with profile_memory=True, record_shapes=True, with_stack=True"
)


@dataclass(frozen=True)
class CategoryTimeline:
    """Bytes by category after each event.

    ``time_us`` : int64[n], -1 before the recording. ``held_bytes`` : int64[8, n].
    """

    path: str
    size_bytes: int
    time_us: Ints
    held_bytes: Ints


def parse_categories(data: bytes, path: str) -> CategoryTimeline:
    """Return the timeline a JSON document holds, in either form; a SnapshotError where it is neither."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, OverflowError):  # beyond 64 bits
        events = msgspec.json.decode(data, type=list[tuple[int, int, int, int]])
        return _raw(np.array(events, np.int64).reshape(-1, 4), path, len(data))
    with suppress(msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        times, sizes = msgspec.json.decode(data, type=tuple[list[int], list[list[int]]])
        if len(times) == len(sizes) and {len(row) for row in sizes} == {len(CATEGORIES) + 1}:
            held = np.array(sizes, np.int64)[:, 1:].T
            return CategoryTimeline(path, len(data), np.array(times, np.int64), held)
    raise SnapshotError(
        "expected a memory snapshot or the profiler's memory timeline, found other JSON", where=path, hint=_EXPORT
    )


def _raw(events: Ints, path: str, size_bytes: int) -> CategoryTimeline:
    category = events[:, 3]
    wrong = category[(category < 0) | (category >= len(CATEGORIES))]
    if len(wrong):
        message = f"expected categories 0 to {len(CATEGORIES) - 1}, found {int(wrong[0])}"
        raise SnapshotError(message, where=path, hint=_EXPORT)
    change = np.zeros((len(CATEGORIES), len(events)), np.int64)
    change[category, np.arange(len(events))] = events[:, 2]
    return CategoryTimeline(path, size_bytes, events[:, 0] // 1000, np.cumsum(change, axis=1))


def judge_categories(timeline: CategoryTimeline) -> MemoryResult:
    """Return the peak by category, and what such a file does not show."""
    total = timeline.held_bytes.sum(axis=0)
    start = timeline.time_us[timeline.time_us >= 0]
    first = int(start[0]) if len(start) else 0
    place = int(np.argmax(total)) if len(total) else 0
    most = int(total[place]) if len(total) else 0
    at_us = max(int(timeline.time_us[place]) - first, 0) if len(total) else None
    held = sorted(zip(timeline.held_bytes[:, place].tolist(), CATEGORIES, strict=True), reverse=True)
    parts = tuple(MemoryPart(name, size, size / most) for size, name in held if size and most)
    top = ", ".join(f"{part.name} {format_bytes(part.size_bytes)} ({format_share(part.share)})" for part in parts[:3])
    before = int(total[timeline.time_us < 0][-1]) if (timeline.time_us < 0).any() else 0
    peak = MemoryPeak(
        allocated_bytes=most,
        reserved_bytes=None,
        entry=place,
        n_entries=len(total),
        at_us=at_us,
        before_bytes=before,
        no_stack_bytes=most,
        n_allocations=0,
        lines=(),
        modules=(MemoryPart(NO_STACK, most, 1.0),),
        phases=(MemoryPart("unknown", most, 1.0),),
        categories=parts,
    )
    rows = thinned(total)
    picture = Picture(
        entries=tuple(rows.tolist()),
        times_us=tuple(np.maximum(timeline.time_us[rows] - first, 0).tolist()),
        reserved_bytes=(),
        areas=tuple(
            Area(name, name, tuple(timeline.held_bytes[i, rows].tolist()))
            for i, name in enumerate(CATEGORIES)
            if timeline.held_bytes[i].any()
        ),
        segments_entry=-1,
        segments=(),
        n_segments_left_out=0,
    )
    device = DeviceMemory(
        device=0,
        name="the timeline's device",
        requested_bytes=None,
        allocated_bytes=int(total[-1]) if len(total) else 0,
        active_bytes=None,
        reserved_bytes=None,
        n_segments=0,
        n_blocks=0,
        n_entries=len(total),
        max_reserved_bytes=None,
        peak=peak,
        fragmentation=None,
        out_of_memory=(),
        n_out_of_memory=0,
        picture=picture if len(total) else None,
    )
    when = f" {format_ns((at_us or 0) * 1000)} into the recording"
    return MemoryResult(
        schema=MEMORY_SCHEMA,
        version=__version__,
        path=timeline.path,
        size_bytes=timeline.size_bytes,
        verdict=(
            f"Peak: {format_bytes(most)} allocated{when}.",
            f"Held then: {top}." if top else "Nothing was held.",
            "Leak: not checked. Lines and fragmentation: a memory timeline has none.",
        ),
        healthy=False,
        n_devices=1,
        n_entries=len(total),
        n_stacks=0,
        settings="not recorded",
        devices=(device,),
        findings=(),
        notes=(),
        not_checked=(
            NotChecked("MEM029", "memory-growth", ("snapshot, or trace with steps",), RECORD),
            NotChecked("MEM049", "fragmentation", ("segments of the allocator",), RECORD),
            NotChecked("MEM052", "peak by line", ("stacks",), RECORD),
        ),
        crashes=(),
    )
