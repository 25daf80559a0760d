"""What a rank tells of itself: where it is now, and the times of some windows of its steps, in some hundred bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PHASE_NAMES = ("between", "loader", "forward", "backward", "optimizer")
"""Of a rank's own work; waiting for others is none of it."""
N = len(PHASE_NAMES)
NUMBERS = 6 + 3 * N
_HEAD, _WINDOW = struct.Struct("<IIBBfB"), struct.Struct(f"<II{NUMBERS}f")
LEVELS = {1: 4, 8: 2, 64: 2, 512: 2}
"""Of windows that are multiples of these, so many are told: where they are too short to be told one by one, the ranks
have some in common still."""
MAD = 1.4826
"""Median deviation to standard deviation."""


@dataclass(frozen=True)
class WindowTimes:
    """A rank's times of some steps, in ms per step.

    ``values`` : of its own work median, mean and the median's standard error, of its waiting median and mean, the
    step's mean; then by phase the medians, the means, and the host's medians.
    """

    number: int
    n_steps: int
    values: Any


@dataclass
class RankNote:
    """What a rank tells: ``beat`` counts what it has told, ``phase`` and ``since_s`` say where it is and how long."""

    beat: int
    step: int
    phase: int
    since_s: float = 0.0
    ended: bool = False
    windows: list[WindowTimes] = field(default_factory=list)

    def pack(self) -> bytes:
        """Return it as bytes."""
        head = _HEAD.pack(self.beat, self.step, self.phase, self.ended, self.since_s, len(self.windows))
        return head + b"".join(_WINDOW.pack(window.number, window.n_steps, *window.values) for window in self.windows)

    @classmethod
    def unpack(cls, data: bytes) -> RankNote:
        """Return what :meth:`pack` wrote."""
        beat, step, phase, ended, since_s, n = _HEAD.unpack_from(data)
        found = cls(beat, step, phase, since_s, bool(ended))
        for at in range(n):
            number, n_steps, *_ = _WINDOW.unpack_from(data, _HEAD.size + at * _WINDOW.size)
            values = np.frombuffer(data, "<f4", NUMBERS, _HEAD.size + at * _WINDOW.size + 8)
            found.windows.append(WindowTimes(number, n_steps, values.astype(float)))
        return found


def window_times(number: int, host_ns: Sequence[Sequence[float]], device_ns: Sequence[Sequence[float]]) -> WindowTimes:
    """Return the times of a window from its steps' nanoseconds by phase, the last of which is waiting.

    Where a device was asked, its times are the rank's: the host only runs ahead of it.
    """
    host = np.asarray(host_ns, float) / 1e6
    times = np.asarray(device_ns, float) / 1e6 if device_ns else host
    own, wait = times[:, :N].sum(axis=1), times[:, N]
    middle = np.median(own)
    error = 1.2533 * MAD * float(np.median(np.abs(own - middle))) / len(own) ** 0.5
    sums = (middle, own.mean(), error, np.median(wait), wait.mean(), host.sum(axis=1).mean())
    by_phase = (np.median(times[:, :N], axis=0), times[:, :N].mean(axis=0), np.median(host[:, :N], axis=0))
    return WindowTimes(number, len(host), np.concatenate([sums, *by_phase]))


def kept(windows: dict[int, WindowTimes]) -> dict[int, WindowTimes]:
    """Return the windows to tell, by number: the last ones of each level."""
    numbers: set[int] = set()
    for level, n in LEVELS.items():
        numbers.update(sorted(number for number in windows if number % level == 0)[-n:])
    return {number: windows[number] for number in sorted(numbers)}
