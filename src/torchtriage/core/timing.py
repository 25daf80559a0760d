"""Where the time of a run goes: parts by name, each with the time that is its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class PartTime:
    """A part of a run of torchtriage: wall time of its own, and its share of all parts (0-1)."""

    name: str
    seconds: float
    share: float


class _Parts:
    """Seconds by part, and the parts that are running, the innermost last."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[str] = []
        self.since = time.perf_counter()

    def turn(self) -> None:
        """Give the time since the last turn to the innermost part."""
        now = time.perf_counter()
        if self.running:
            name = self.running[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now


_measured: ContextVar[_Parts | None] = ContextVar("measured", default=None)


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Measure the parts of what runs inside, in this thread; seconds by name."""
    parts = _Parts()
    token = _measured.set(parts)
    try:
        yield parts.seconds
    finally:
        _measured.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Count what runs inside as ``name``, and no longer as the part around it; nothing where nobody measures."""
    parts = _measured.get()
    if parts is None:
        yield
        return
    parts.turn()
    parts.running.append(name)
    try:
        yield
    finally:
        parts.turn()
        parts.running.pop()


def part_times(seconds: Mapping[str, float]) -> tuple[PartTime, ...]:
    """Return the parts, the longest first; their shares add up to 1."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(PartTime(name, round(spent, 6), round(spent / total, 6)) for name, spent in ordered)
