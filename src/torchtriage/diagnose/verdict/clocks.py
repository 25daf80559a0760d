"""How fine the clocks of a recording are, and how far those of host and device are apart."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.finding import Note
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.units import format_ns, format_share


def clocks(trace: Trace) -> Iterator[Note]:
    """Yield what the recording's times are too coarse for, or too far apart."""
    if trace.resolution_ns >= 1000 and len(trace):
        yield _coarse(trace)
    for device in trace.devices:
        if device.early_ns > trace.resolution_ns:
            yield Note(
                "early-clock",
                "info",
                f"work on GPU {device.index} begins up to {format_ns(device.early_ns)} before its own launch: the"
                " clocks of host and device are apart, and waits between them are known no closer than that",
                "record with a newer profiler and driver",
                {"early_ns": device.early_ns, "device": device.index},
            )


def _coarse(trace: Trace) -> Note:
    timed = ~trace.is_kind(Kind.INSTANT)
    zero = float((trace.dur_ns[timed] == 0).mean()) if timed.any() else 0.0
    return Note(
        "coarse-clock",
        "info",
        f"times are whole microseconds (torch before 2024-04): {format_share(zero)} of the events"
        " last 0, read as below the resolution",
        "record with a newer PyTorch for nanosecond times",
        {"zero_duration_share": round(zero, 4)},
    )
