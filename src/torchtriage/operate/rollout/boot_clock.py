"""The machine's own clock, which nobody sets."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

__all__ = ["boot_id", "boot_seconds"]

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_seconds() -> float:
    """Return seconds since the machine's start, sleep included, which no clock setting changes."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


@cache
def boot_id() -> str:
    """Return which start of the machine this is; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
