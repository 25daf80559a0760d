"""What else happened while requests ran: garbage collection, waiting for processors, compiling.

All of it is read off the request path and takes constant memory: pauses come from ``gc.callbacks``,
the rest is sampled a few times a second. Where the system reports nothing a number is None.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torchtriage.core.machine import Reading, allowed_cpus, read_host, read_kernel_file, use_between

SAMPLE_S = 0.5  # a sample takes 0.15 ms, with 32 threads about 1 ms
SOONEST_S = 0.01  # between two samples, where alarms come at once
N_MOMENTS = 256  # two minutes of samples
N_PAUSES = 512
N_COMPILATIONS = 64
SHORTEST_PAUSE_NS = 100_000  # younger generations are collected many times a second in less: no request is slow for it
MAX_THREADS = 32
TICKS_S = 0.2  # the kernel counts the machine's CPU time in steps of 10 ms: less says nothing
TASKS = Path("/proc/self/task")


class UsageSample(NamedTuple):
    """What had been used up to a moment.

    ``own_s`` : CPU time of this process. ``waited_s`` : its threads' time in the queue for a
    processor. ``requests_s`` : time of the requests that had ended.
    """

    at_ns: int
    own_s: float
    waited_s: float | None
    requests_s: float
    host: Reading | None


class HostUsage(NamedTuple):
    """What happened on the machine in a stretch of time, per second of it.

    ``from_ns`` : its start, the sample before what was asked for. ``waited`` : seconds in the queue for a processor
    per second on one, since what takes more turns waits more. ``own_cores``, ``others_cores`` : processors used.
    ``stolen`` : share of the machine's CPU time that a hypervisor took. None where it is not known.
    """

    from_ns: int
    seconds: float
    requests_s: float
    own_cores: float
    waited: float | None
    others_cores: float | None
    stolen: float | None


class HostSampler:
    """What a process can measure of itself and its machine, of the last two minutes."""

    def __init__(self) -> None:
        self.requests_s = 0.0  # time of all requests that ended; whoever sees them adds it
        # garbage collections of 0.1 ms and more: (start_ns, end_ns)
        self.pauses: deque[tuple[int, int]] = deque(maxlen=N_PAUSES)
        # (from_ns, to_ns, n): so many graphs were begun to compile between two looks
        self.compilations: deque[tuple[int, int, int]] = deque(maxlen=N_COMPILATIONS)
        self.moments: deque[UsageSample] = deque(maxlen=N_MOMENTS)
        self.n_cpus = allowed_cpus() or os.cpu_count() or 1
        self._pause_start_ns = 0
        self._threads: list[int] = []
        self._waits: dict[int, int] = {}
        self._waited_ns = 0
        self._n_compiled = 0
        self._looked_ns = time.perf_counter_ns()

    def start(self) -> None:
        """Begin; where it has begun, nothing changes."""
        self._n_compiled = compilations()
        if self._collecting not in gc.callbacks:
            gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """End."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._pause_start_ns = now_ns
        elif now_ns - self._pause_start_ns >= SHORTEST_PAUSE_NS and self._pause_start_ns:
            self.pauses.append((self._pause_start_ns, now_ns))

    def look(self, now_ns: int) -> None:
        """Count compilations; sample the machine if it is time for that."""
        n = compilations()
        if n > self._n_compiled:
            self.compilations.append((self._looked_ns, now_ns, n - self._n_compiled))
        self._n_compiled = n
        self._looked_ns = now_ns
        if not self.moments or now_ns - self.moments[-1].at_ns >= SAMPLE_S * 1e9:
            self._list_threads()
            self.sample(now_ns)

    def sample(self, now_ns: int) -> None:
        """Sample the machine, unless that was a moment ago."""
        if self.moments and now_ns - self.moments[-1].at_ns < SOONEST_S * 1e9:
            return
        waited_s = self._wait_s()
        self.moments.append(UsageSample(now_ns, time.process_time(), waited_s, self.requests_s, read_host()))

    def _list_threads(self) -> None:
        # those that serve: our own wait for nobody's request
        own = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("torchtriage-")}
        self._threads = []
        with contextlib.suppress(OSError):
            names = islice(os.listdir(TASKS), MAX_THREADS)  # noqa: PTH208
            self._threads = [int(name) for name in names if int(name) not in own]

    def _wait_s(self) -> float | None:
        # how long the threads that serve have waited for a processor, all together
        if not self._threads:
            self._list_threads()
        waits: dict[int, int] = {}
        for thread in self._threads:
            try:
                # time on a processor, time in the queue for one, turns; ns
                waits[thread] = int(read_kernel_file(f"{TASKS}/{thread}/schedstat").split()[1])
            except (OSError, ValueError, IndexError):  # noqa: PERF203 - it has ended
                continue
        if not waits:
            return None
        before = self._waits or waits
        self._waited_ns += sum(max(wait_ns - before.get(thread, 0), 0) for thread, wait_ns in waits.items())
        self._waits = waits
        return self._waited_ns * 1e-9

    def paused_ns(self, start_ns: int, end_ns: int) -> int:
        """Return how much of a stretch was garbage collection."""
        pauses = self.pauses
        if not pauses or pauses[-1][1] <= start_ns:
            return 0
        return sum(max(min(end_ns, to_ns) - max(start_ns, from_ns), 0) for from_ns, to_ns in _newest(pauses, start_ns))

    def n_pauses(self, start_ns: int) -> int:
        """Return how many collections ended since then."""
        return sum(1 for _ in _newest(self.pauses, start_ns))

    def compiled(self, start_ns: int, end_ns: int) -> int:
        """Return how many graphs were compiled at about this time."""
        return sum(n for from_ns, to_ns, n in self.compilations if from_ns < end_ns and to_ns > start_ns)

    def host(self, start_ns: int, end_ns: int | None = None) -> HostUsage | None:
        """Return what the machine did between the samples around a stretch; None: too few."""
        moments = list(self.moments)
        times = [moment.at_ns for moment in moments]
        first = max(bisect_right(times, start_ns) - 1, 0)
        last = len(moments) - 1 if end_ns is None else bisect_right(times, end_ns) - 1
        return _between(moments[first], moments[last]) if last > first else None


def _newest(pauses: Iterable[tuple[int, int]], start_ns: int) -> Iterable[tuple[int, int]]:
    for pause in reversed(list(pauses)):
        if pause[1] <= start_ns:
            return
        yield pause


def _between(before: UsageSample, after: UsageSample) -> HostUsage:
    seconds = (after.at_ns - before.at_ns) * 1e-9
    requests_s = after.requests_s - before.requests_s
    own_s = after.own_s - before.own_s
    use = use_between(before.host, after.host, wall_s=seconds, own_s=own_s)
    waited = others = stolen = None
    if before.waited_s is not None and after.waited_s is not None and own_s > 0:
        waited = (after.waited_s - before.waited_s) / own_s
    if use.others_s is not None and use.stolen_s is not None and seconds >= TICKS_S:
        others, stolen = use.others_s / seconds, use.stolen_s / seconds / use.n_cores
    return HostUsage(before.at_ns, seconds, requests_s, own_s / seconds, waited, others, stolen)


def compilations() -> int:
    """Return how many graphs torch.compile has begun to compile in this process, again or not."""
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    counter = getattr(frames, "FRAME_COMPILE_COUNTER", None)
    return sum(list(counter.values())) if counter else 0
