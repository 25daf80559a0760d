"""How the parts of a memory result read, whichever page they are on."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.memory.result import (
    Device,
    Fragmentation,
    Growth,
    Holder,
    MemoryResult,
    Part,
    Peak,
)
from torchtriage.names import visible
from torchtriage.units import format_bytes, format_count, format_share

__all__ = [
    "SETTINGS",
    "accounts",
    "advice",
    "because",
    "beside",
    "change",
    "facts",
    "file_name",
    "fit",
    "growth",
    "holder",
    "parts",
    "slope",
    "tags",
    "unchecked",
    "where",
]

SETTINGS = "MEM050"
_DULL = ("", "unknown")


def file_name(path: str) -> str:
    """Return the last part of a path, safe to print."""
    return visible(path.replace("\\", "/").rstrip("/").split("/")[-1] or path)


def facts(result: MemoryResult) -> str:
    """Return what was read, on one line."""
    if result.n_steps is not None:
        return f"{format_count(result.n_steps, 'step')} watched"
    parts = [
        format_bytes(result.size_bytes),
        f"{len(result.devices)} of {format_count(result.n_devices, 'device')} with memory",
        format_count(result.n_entries, "entry", "entries") + " of history",
        format_count(result.n_stacks, "stack"),
        f"allocator settings: {visible(result.settings)}",
    ]
    return ", ".join(parts)


def advice(result: MemoryResult) -> str:
    """Return what other settings would change, where no finding says so already."""
    return "" if any(one.code == SETTINGS for one in result.findings) else result.advice


def slope(one: Growth) -> str:
    """Return how fast memory changes per step, with its interval, and from where on."""
    low, high = format_bytes(one.slope_low_bytes), format_bytes(one.slope_high_bytes)
    interval = f" ({low} to {high})" if low != high else ""
    return f"{format_bytes(one.slope_bytes)} per step{interval} from step {one.from_step:,} on"


def growth(one: Growth) -> str:
    """Return whose memory did what from the first step to the last."""
    return f"{one.name}: {change(one)}"


def change(one: Growth) -> str:
    """Return what memory did from the first step to the last."""
    first, last = format_bytes(one.held_bytes[0]), format_bytes(one.held_bytes[-1])
    n_steps = format_count(one.steps[-1] - one.steps[0] + 1, "step")
    return f"{first} to {last} over {n_steps}, {slope(one)}"


def accounts(device: Device) -> tuple[tuple[str, int | None, str], ...]:
    """Return the sizes of a device at the snapshot: name, bytes, what it means."""
    return (
        ("requested", device.requested_bytes, "what tensors asked for"),
        ("allocated", device.allocated_bytes, "what they were given, rounded up"),
        ("active", device.active_bytes, "and what another stream still uses"),
        ("reserved", device.reserved_bytes, "all that was taken from the driver"),
    )


def beside(peak: Peak) -> str:
    """Return what was reserved beside the peak, where that is told."""
    told = peak.reserved_bytes
    return f", {format_bytes(told)} reserved" if told is not None else ""


def fit(text: str, room: int) -> str:
    """Return a line cut to fit: first its folder goes, then its end."""
    shown = visible(text)
    if len(shown) > room:
        shown = shown.split("/", 1)[-1]
    return shown if len(shown) <= room else shown[: room - 1] + "…"


def tags(one: Holder) -> str:
    """Return how often a holder allocated, in which phase and for what."""
    said = [format_count(one.n_allocations, "allocation")]
    return ", ".join([*said, *(tag for tag in (one.phase, one.category) if tag not in _DULL)])


def holder(one: Holder) -> str:
    """Return a holder's line, and its tags."""
    return f"{visible(one.label)}, {tags(one)}"


def where(one: Holder) -> str:
    """Return who called the holder's line, outermost last; empty when it was called by nobody."""
    callers = [f"{file_name(frame.file)}:{frame.line}" for frame in one.stack[1:5]]
    return " < ".join(map(visible, callers))


def unchecked(result: MemoryResult) -> list[tuple[str, list[str]]]:
    """Return what was not judged for want of data, grouped by how to record it."""
    groups: dict[str, list[str]] = {}
    for one in result.not_checked:
        said = f"{one.code} {visible(one.name)}: no {', '.join(map(visible, one.missing))}"
        groups.setdefault(one.how_to_record, []).append(said)
    return list(groups.items())


def parts(values: Iterable[Part], limit: int = 6) -> str:
    """Return parts on one line, largest first."""
    shown = list(values)
    said = [
        f"{visible(one.name)} {format_bytes(one.size_bytes)} ({format_share(one.share)})"
        for one in shown[:limit]
    ]
    rest = sum(one.size_bytes for one in shown[limit:])
    if rest:
        said.append(f"{format_count(len(shown) - limit, 'other')} {format_bytes(rest)}")
    return ", ".join(said)


def because(told: Fragmentation) -> str:
    """Return what was free, and when."""
    share = told.free_bytes / told.reserved_bytes
    when = "when most was reserved" if told.when == "reserved peak" else "at the snapshot"
    return (
        f"{format_bytes(told.free_bytes)} of {format_bytes(told.reserved_bytes)} reserved"
        f" ({format_share(share)}) {when}, the largest piece {format_bytes(told.largest_bytes)}"
    )
