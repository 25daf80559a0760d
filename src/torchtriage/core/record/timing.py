"""The wall time of a step, from the times between its boundaries.

Nothing is synchronised for it. On a device the host runs ahead until its queue is full and then
waits for the device at each step, so single times may be far too short; but over many steps their
sum is what the device took, but for the depth of the queue at both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns, process_time_ns

SETTLED = 0.05
"""Halves whose medians differ by less say the same."""
ONE_THREAD = 1.1
"""Processor time for each second of a process in which one thread computes at a time."""
OUTLIER = 3.0
"""A step longer than this many medians is not steady (as in a trace)."""


def settled(step_ns: Sequence[int]) -> bool:
    """Whether the later half of the steps is as long as the earlier one: no trend is left."""
    half = len(step_ns) // 2
    if half < 2:
        return False
    earlier, later = median(step_ns[:half]), median(step_ns[-half:])
    return abs(later - earlier) <= SETTLED * earlier


def step_wall_ns(step_ns: Sequence[int], *, all_steps: bool) -> float | None:
    """Return the mean wall time of a step in ns, None without one.

    ``all_steps``: where long steps are of the loop itself, because they recur, or because a device works behind the
    host and a long step is where the host waits for those before. Else steps over three medians (an evaluation, a
    checkpoint) are left out.
    """
    if not step_ns:
        return None
    if all_steps:
        return fmean(step_ns)
    limit = OUTLIER * median(step_ns)
    return fmean(step for step in step_ns if step <= limit)


class OwnTime:
    """The time since it was made less what the main thread waited for a processor: what neighbours do not lengthen.

    Linux tells the latter. A process whose threads or children compete with each other makes such a wait by itself.
    """

    def __init__(self) -> None:
        self._begun = self._clocks()

    def passed_ns(self) -> int | None:
        """Return it in ns; None where more than one thread computes, or children may."""
        took, cpu, queued = (now - before for now, before in zip(self._clocks(), self._begun, strict=True))
        own = took - queued
        return own if own > 0 and cpu <= ONE_THREAD * own and not _has_children() else None

    @staticmethod
    def _clocks() -> tuple[int, int, int]:
        try:
            queued = int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            queued = 0
        return perf_counter_ns(), process_time_ns(), queued


def _has_children() -> bool:
    try:
        return any(path.read_text(encoding="ascii").split() for path in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True
