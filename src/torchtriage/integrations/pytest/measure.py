"""One step timed, and its peak memory: warm, synchronised, in this process."""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from torchtriage.core.errors import BenchmarkError
from torchtriage.core.machine import HostUse, Noise, judge_noise, read_host, use_between
from torchtriage.core.process import status_bytes
from torchtriage.core.units import format_bytes, format_count, format_ns, format_share
from torchtriage.integrations.pytest.check import Check

LOOKS = 3
"""How often more steps are timed where the first ones cannot decide; each look has its share."""
ALPHA = 0.01
"""How often a step of exactly its budget may be called too slow, and how often within."""
WARM_UP_S, WARM_UP_CALLS = 0.2, 3
TIMED_S, TIMED_CALLS = 0.6, 20
"""The kernel counts CPU time in steps of 10 ms: shorter, and nobody knows who else ran."""
MOST_CALLS = 20_000
BUSY_FACTOR = 2.0
"""What neighbours can do to a thread's own CPU time: two threads that share a core."""
MIB = 1024 * 1024
LATER: dict[type, tuple[str, str]] = {
    CoroutineType: ("a coroutine", "give perf_gate a function that calls asyncio.run(step())"),
    GeneratorType: ("a generator", "give perf_gate a function that goes through it: for _ in step(): pass"),
    AsyncGeneratorType: ("an async generator", "give perf_gate a function that goes through it with asyncio.run"),
}
"""What is returned before anything of it runs, in words, and what to do."""


class Step:
    """A user's callable; whatever it raises ends as one line."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.n_calls = 0

    def __call__(self) -> None:
        """Run it once; a BenchmarkError where it raises, or returns what has not run yet."""
        self.n_calls += 1
        try:
            made = self._call()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            place = next(
                (frame for frame in reversed(frames) if "site-packages" not in frame.filename),
                frames[-1] if frames else None,
            )
            text = " ".join(str(error).split())[:300]
            kind = type(error).__name__
            raise BenchmarkError(
                f"the step raised {f'{kind}: {text}' if text else kind}, in call {self.n_calls}",
                where="" if place is None else f"{place.filename}:{place.lineno}",
                hint="call it once before perf_gate to see all of the traceback",
            ) from error
        for later, (words, how) in LATER.items():
            if isinstance(made, later):
                if isinstance(made, CoroutineType):
                    made.close()  # or Python warns of it
                raise BenchmarkError(f"the step returned {words}: nothing of it has run", hint=how)


@dataclass
class Timing:
    """Times of calls, in the order they ran; of whom else used the machine, one look each.

    ``wall_ns cpu_ns`` : int[n]; CPU time is the calling thread's own.
    """

    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    uses: list[HostUse] = field(default_factory=list)

    @property
    def noise(self) -> Noise:
        """Whether others disturbed it."""
        return judge_noise(self.uses)

    @property
    def median_ns(self) -> float:
        """The typical call."""
        return float(median(self.wall_ns))

    def warm_up(self, step: Step, wait: Callable[[], None], calls: int | None) -> None:
        """Call the step until it is warm: the first calls load, compile and fill caches."""
        for _ in _calls(calls, WARM_UP_CALLS, WARM_UP_S):
            step()
        wait()

    def look(self, step: Step, wait: Callable[[], None], calls: int | None) -> None:
        """Time calls of the step: so many, else until there are enough."""
        gc.collect()
        wait()
        clock, own = time.perf_counter_ns, time.thread_time_ns
        host, own_s, begun = read_host(), time.process_time(), time.perf_counter()
        for _ in _calls(calls, TIMED_CALLS, TIMED_S):
            from_ns, cpu_ns = clock(), own()
            step()
            wait()
            self.cpu_ns.append(own() - cpu_ns)
            self.wall_ns.append(max(clock() - from_ns, 1))
        wall_s, own_s = time.perf_counter() - begun, time.process_time() - own_s
        self.uses.append(use_between(host, read_host(), wall_s=wall_s, own_s=own_s))


def _calls(n: int | None, least: int, least_s: float) -> Iterator[int]:
    """Yield for each of ``n`` calls; without a number, until there are enough and time has passed."""
    if n is not None:
        yield from range(n)
        return
    begun = time.perf_counter()
    for call in range(MOST_CALLS):
        if call >= least and time.perf_counter() - begun >= least_s:
            return
        yield call


def judge_time(timing: Timing, budget_ms: float, *, looks: int = LOOKS) -> Check:
    """Check whether the typical step is within its budget, from an interval on its median.

    Others on the machine only ever add time. So within is within on a noisy host, too; too slow is
    only reported of a quiet one, or where the thread's own CPU time is more than twice the budget.

    ``looks`` : how often this may be asked while the sample grows.
    """
    import numpy as np

    from torchtriage.core.stats.quantiles import quantile_interval

    level = 1 - 2 * ALPHA / looks
    values = np.asarray(timing.wall_ns, dtype=np.float64)
    budget_ns = budget_ms * 1e6
    # one call has no interval
    value, low, high = quantile_interval(values, 0.5, level) if len(values) > 1 else (values[0], math.nan, math.nan)
    few = math.isnan(low) or math.isnan(high)
    ends = "" if few else f"{format_ns(low)} to {format_ns(high)}, "
    sentence = f"{format_ns(value)} ({ends}{format_count(len(values), 'call')}), budget {format_ns(budget_ns)}"
    noise = timing.noise
    if high <= budget_ns:
        return Check("step time", "within", sentence)
    ratio = value / budget_ns
    excess = f"{format_share(ratio - 1)} over" if ratio < 3 else f"{ratio:,.0f} times the budget"
    over = f"{sentence}: {excess}"
    if low > budget_ns:
        if noise.status != "noisy":
            unknown = "" if noise.status == "quiet" else "; who else used the host is not known"
            return Check("step time", "over", over + unknown)
        own = quantile_interval(np.asarray(timing.cpu_ns, dtype=np.float64), 0.5, level)
        if own.low > BUSY_FACTOR * budget_ns:
            return Check(
                "step time",
                "over",
                f"{over}; the host was noisy ({'; '.join(noise.reasons)}), but the step's own"
                f" thread computed for {format_ns(own.value)}",
            )
    if few:
        # where calls resemble their neighbours, more of them are needed
        enough = f"{TIMED_CALLS} or more" if len(values) < TIMED_CALLS else "more"
        why = f"too few calls for an interval; time {enough}: perf_gate(step, repeats=…)"
    elif noise.status == "noisy":
        why = f"the host was noisy: {'; '.join(noise.reasons)}; run it alone"
    else:
        why = "the budget is inside the interval; time more calls: perf_gate(step, repeats=…)"
    return Check("step time", "inconclusive", f"{sentence}; {why}")


# -- memory ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Peak memory of the timed steps.

    ``device`` : its name, empty for the host's. ``peak_bytes`` : allocated at the peak on the
    device; on the host, what was resident at the peak above ``before_bytes``, before the first
    call.
    """

    device: str
    peak_bytes: int
    before_bytes: int

    def __str__(self) -> str:
        """Return the amount and what it is."""
        peak, before = format_bytes(self.peak_bytes), format_bytes(self.before_bytes)
        if self.device:
            return f"{peak} allocated on {self.device} ({before} of it before the first call)"
        return f"{peak} of host memory above the {before} before the first call"


class MemoryWatch:
    """Peak memory from ``begin`` to ``end``; made before the first call."""

    def __init__(self) -> None:
        gc.collect()
        self._resident = status_bytes("VmRSS")
        self._allocated = {name: _allocated(name, "memory_allocated") for name in _accelerators()}
        self._can_reset = False

    def begin(self) -> None:
        """Let the peak begin here."""
        for name in _accelerators():
            _accelerator(name).reset_peak_memory_stats()
        with suppress(OSError):
            # resets the peak of resident memory (Linux)
            Path("/proc/self/clear_refs").write_text("5")
            self._can_reset = True

    def end(self) -> Memory | None:
        """Return the peak; None where the system does not report it."""
        names = _accelerators()
        if names:
            peaks = {name: _allocated(name, "max_memory_allocated") for name in names}
            name = max(peaks, key=lambda peak: peaks[peak])
            return Memory(name, peaks[name], self._allocated.get(name, 0))
        if not self._can_reset:
            return None
        return Memory("", max(status_bytes("VmHWM") - self._resident, 0), self._resident)


def judge_memory(memory: Memory | None, budget_mb: float) -> Check:
    """Check whether peak memory is within its budget, in MiB."""
    if memory is None:
        return Check("peak memory", "not checked", "this system does not report it")
    budget = budget_mb * MIB
    sentence = f"{memory}, budget {format_bytes(budget)}"
    if memory.peak_bytes <= budget:
        return Check("peak memory", "within", sentence)
    how = (
        "fix: torch.cuda.memory._record_memory_history() around the step,"
        " torch.cuda.memory._dump_snapshot('memory.pickle'), then: torchtriage memory memory.pickle"
        if memory.device.startswith("cuda")
        else "fix: a smaller batch, torch.no_grad() where nothing is trained; whether it grows from"
        " step to step: torchtriage run --memory train.py"
    )
    return Check("peak memory", "over", f"{sentence}: {format_bytes(memory.peak_bytes - budget)} over", (how,))


def _accelerators() -> list[str]:
    if "torch" not in sys.modules:
        return []
    from torchtriage.core.record.profiler_capture import devices

    return [name for name in devices() if hasattr(_accelerator(name), "max_memory_allocated")]


def _accelerator(name: str) -> Any:
    return getattr(sys.modules["torch"], name)


def _allocated(name: str, what: str) -> int:
    module = _accelerator(name)
    count = getattr(module, "device_count", lambda: 1)()
    return max((int(getattr(module, what)(number)) for number in range(count)), default=0)


def waiting() -> Callable[[], None]:
    """Return what waits for every accelerator in use; nothing where there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    from torchtriage.core.record.profiler_capture import devices

    waits = [getattr(getattr(torch, name), "synchronize", None) for name in devices()]
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        waits.append(torch.mps.synchronize)
    present = [wait for wait in waits if wait is not None]
    if len(present) == 1:
        return present[0]

    def wait_for_all() -> None:
        for wait in present:
            wait()

    return wait_for_all
