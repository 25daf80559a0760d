"""Where the time of a training step goes, by phase: a clock that hooks switch, and that costs a step some microseconds.

On a device the host runs ahead, so that its times are not the work's: every few steps the device is asked, too. Its
events are recorded between the phases and read when they have long passed; nothing is synchronised.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from itertools import pairwise
from threading import get_ident
from time import perf_counter_ns
from typing import Any

BETWEEN, LOADER, FORWARD, BACKWARD, OPTIMIZER, WAIT = range(6)
PHASES = ("between", "loader", "forward", "backward", "optimizer", "wait")
TIMED_NS, COUNTED_NS, MOST_SHARE = 100_000, 30_000, 0.002
"""What a step takes longer that is timed in full, and one that is only counted (measured, with cold caches between two
ranks); and the share of a step that this may be in the mean: of shorter steps, fewer are timed."""
LEAST_TIMED, MOST_SKIPPED = 5, 8
"""So many steps of each window are timed at least, and one of so many."""
PLACES = (0, 2, 5, 7, 3, 1, 4, 6, 1, 4, 7, 2, 6, 3, 0, 5)
"""Which of a few steps is timed, by turns, and on every rank the same: what recurs is met as often as it comes."""
DEVICE_EVERY = 4
"""The device is asked in one step of so many, or in each that is timed: an event costs some microseconds, and a step
has a dozen."""
MOST_WINDOWS = 16
"""So many windows wait for whoever takes them; older ones are dropped."""
MOST_STEPS_PENDING = 64


class Window:
    """Some steps in a row: for each, nanoseconds by phase; of some of them also the device's.

    ``number`` : windows begin at its multiple of their length.
    """

    __slots__ = ("device_ns", "host_ns", "number")

    def __init__(self, number: int, host_ns: list[list[int]]) -> None:
        self.number = number
        self.host_ns = host_ns
        self.device_ns: list[list[float]] = []


class PhaseClock:
    """Counts the nanoseconds of each phase of each step.

    Only ``threads``, the loop's and the one that runs its backward pass, may switch it.

    ``step`` : steps that have ended. ``phase`` : now. ``timed`` : whether this step is one of the timed ones.
    ``windows`` : full ones, to be taken.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_every",
        "_ns",
        "_rows",
        "_sampling",
        "_stride",
        "_wake",
        "_window_ns",
        "phase",
        "since_ns",
        "step",
        "threads",
        "timed",
        "windows",
    )

    def __init__(self, every: int) -> None:
        self.step = 0
        self.phase = BETWEEN
        self.since_ns = perf_counter_ns()
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        self.threads = {get_ident()}
        _clocks.add(self)
        self._every = every
        self._wake = 0
        self._ns = [0] * len(PHASES)
        self._rows: list[list[int]] = []
        self._device: DeviceClock | None = None
        self._sampling = False
        self.timed = True
        self._stride = 1
        self._window_ns = self.since_ns

    def enter(self, phase: int) -> int:
        """Begin a phase; return the one that ended."""
        now = perf_counter_ns()
        before = self.phase
        self._ns[before] += now - self.since_ns
        self.since_ns = now
        self.phase = phase
        if self._sampling:
            self._device.mark(before)  # type: ignore[union-attr]
        return before

    def end_step(self) -> None:
        """End a step and begin the next, between the phases; one that is not timed is only counted."""
        self.step = step = self.step + 1
        if self.timed or step == self._wake:
            self._turn(step)

    def _turn(self, step: int) -> None:
        if self.timed:
            self.enter(BETWEEN)
            self._rows.append(self._ns)
            self._ns = [0] * len(PHASES)  # phases of the user's own are switched in steps that are not timed, too
            if self._sampling:
                self._device.end()  # type: ignore[union-attr]
        every = self._every
        if step % every == 0:
            self.windows.append(Window(step // every - 1, self._rows))
            self._rows = []
            self._stride = self._next_stride()
        stride = self._stride
        block, place = divmod(step, stride)
        timed_place = PLACES[block % len(PLACES)] % stride
        self.timed = place == timed_place
        if not self.timed:
            if place > timed_place:  # the next block's
                timed_place = stride + PLACES[(block + 1) % len(PLACES)] % stride
            self._wake = min(step - place + timed_place, (step // every + 1) * every)
            self._sampling = False
            return
        self._ns = [0] * len(PHASES)
        self.phase, self.since_ns = BETWEEN, perf_counter_ns()
        if self._device is not None:
            self._sampling = stride >= DEVICE_EVERY or block % (DEVICE_EVERY // stride) == 0
            if self._sampling:
                self._device.begin(step // every)

    def _next_stride(self) -> int:
        """Return of how many steps one is timed: by how long they are."""
        now = perf_counter_ns()
        step_ns = (now - self._window_ns) / self._every
        self._window_ns = now
        stride = 1
        while (
            stride < min(MOST_SKIPPED, self._every // LEAST_TIMED)
            and COUNTED_NS + (TIMED_NS - COUNTED_NS) / stride > step_ns * MOST_SHARE
        ):
            stride *= 2
        return stride if self._every // stride >= LEAST_TIMED else stride // 2

    def begin(self, cuda: Any = None) -> None:
        """Begin the first step now; ``cuda`` : torch's module of the device that works for this loop."""
        self.threads = {get_ident()}
        self._ns = [0] * len(PHASES)
        self.since_ns = perf_counter_ns()
        self.phase = BETWEEN
        self._device = None if cuda is None else DeviceClock(cuda)

    @property
    def on_device(self) -> bool:
        """Whether a device is asked, too."""
        return self._device is not None

    def read_device(self) -> dict[int, list[list[float]]]:
        """Return the device's nanoseconds by phase of the steps that it has finished, by window."""
        return {} if self._device is None else self._device.read()


_clocks: weakref.WeakSet[PhaseClock] = weakref.WeakSet()


def _forget() -> None:
    for clock in _clocks:  # a forked child's main thread has the number of its parent's
        clock.threads = set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class DeviceClock:
    """Events on the device between the phases of some steps."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._free: deque[Any] = deque()
        self._stream = cuda.current_stream()
        self._marks: list[tuple[int, Any]] = []
        self._window = 0
        self._ended: deque[tuple[int, list[tuple[int, Any]]]] = deque(maxlen=MOST_STEPS_PENDING)

    def begin(self, window: int) -> None:
        """Begin a step."""
        self._window, self._marks = window, []
        self.mark(BETWEEN)

    def mark(self, ended: int) -> None:
        """Note where the device's work of a phase ends."""
        cuda = self._cuda
        if cuda.is_current_stream_capturing() or cuda.current_stream() != self._stream:
            return  # a graph would replay the event; another stream is not the loop's
        try:
            event = self._free.popleft()
        except IndexError:
            event = cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((ended, event))

    def end(self) -> None:
        """End a step."""
        self._ended.append((self._window, self._marks))

    def read(self) -> dict[int, list[list[float]]]:
        """Return what has passed on the device."""
        found: dict[int, list[list[float]]] = {}
        # a step that ran on another stream has next to no marks
        while self._ended and all(event.query() for _, event in self._ended[0][1][-1:]):
            window, marks = self._ended.popleft()
            if len(marks) < 2:
                self._free.extend(event for _, event in marks)
                continue
            row = [0.0] * len(PHASES)
            for (_, before), (phase, after) in pairwise(marks):
                row[phase] += before.elapsed_time(after) * 1e6
            found.setdefault(window, []).append(row)
            self._free.extend(event for _, event in marks)
        return found
