"""Rare, short captures of a service that runs for long: on time, on demand, within its means.

>>> sampler = tt.sample("traces", every_s=600, max_mb=200)
>>> with sampler.request():
...     model(batch)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from threading import get_ident
from types import TracebackType

from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.core.record.attach_socket import Ask, AttachSocket
from torchtriage.core.record.profiler_capture import BUSY, Capture, ProfilerBusyError

ATTACH_VARIABLE = "TORCHTRIAGE_ATTACH"
PATTERN = "sample-*.json.gz"
JITTER = 0.1
"""Captures of many replicas drift apart by this share of ``every_s``."""
CLOSE_S = 10.0
"""So long an export at the end of the process may take."""
SLOWED = {False: 1 / 3, True: 0.55}
"""The share of captured time that is the profiler's, light and heavy: it stretches the host's time
1.5-fold and 2.2-fold where operators are tiny, less elsewhere (measured)."""
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class SampleStats:
    """What a sampler did and what it cost.

    ``captures`` : exported ones. ``skipped_overhead`` : left out because the cap was reached.
    ``skipped_busy`` : because another profiler ran. ``removed`` : old files that made room.
    ``failures`` : by message. ``own_s`` : spent starting, stopping and exporting (measured), and
    the share of captured time that the profiler takes at most (modelled, :data:`SLOWED`).
    ``overhead`` : ``own_s`` over ``wall_s``, 0-1.
    """

    captures: int = 0
    skipped_overhead: int = 0
    skipped_busy: int = 0
    removed: int = 0
    disk_bytes: int = 0
    own_s: float = 0.0
    wall_s: float = 0.0
    overhead: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


def sample(
    out: str | os.PathLike[str],
    *,
    every_s: float | None = 600.0,
    max_mb: float = 200.0,
    max_overhead: float = 0.01,
    steps: int = 3,
    heavy: bool = False,
    attach: bool = True,
) -> Sampler:
    """Return a sampler that captures one request, or a few steps, from time to time.

    The profiler is started once, empty, right here, because its first start takes seconds.
    Surround each request with ``sampler.request()``, from any thread, or call ``sampler.step()``
    once per iteration of a loop. Nothing is raised into either, whatever happens to the profiler
    or the disk; ``sampler.stats`` counts it.

    Parameters
    ----------
    out : path
        Folder for the captures; several processes may share one. It is made when first needed.
    every_s : float, optional
        Seconds between captures, ± 10 %. None: only on ``sampler.trigger()``.
    max_mb : float
        The captures in ``out`` take no more than this many MB; the oldest are removed.
    max_overhead : float
        Captures are left out, and counted, while the sampler's own time is above this share of the
        wall time (0-1).
    steps : int
        Steps per capture, after one that warms the profiler up. A request is always one.
    heavy : bool
        Record shapes and stacks as well: says where, and costs about twice as much.
    attach : bool
        Let ``torchtriage attach PID`` of the same user ask for captures and stacks, over a unix socket.
        ``TORCHTRIAGE_ATTACH=0`` in the environment keeps it out whatever is given here.

    Raises MissingExtraError: torch is not installed; UsageError: a number cannot be meant.
    """
    for name, value in (("every_s", every_s), ("max_mb", max_mb), ("max_overhead", max_overhead)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or not value > 0):
            raise UsageError(f"expected {name} above 0, found {value!r}")
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise UsageError(f"expected steps as a whole number from 1, found {steps!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"tt.sample needs torch, which cannot be imported: {error}", hint="pip install 'torchtriage[torch]'"
        ) from error
    sampler = Sampler(
        Path(out), every_s=every_s, max_bytes=max_mb * 1e6, max_overhead=max_overhead, steps=steps, heavy=heavy
    )
    if attach and os.environ.get(ATTACH_VARIABLE, "") != "0" and hasattr(os, "geteuid"):
        sampler.listen()
    return sampler


class Sampler:
    """Captures now and then; made by :func:`sample`.

    One capture runs at a time. The profiler sees the thread that started it, so a capture is of
    one thread's request or steps, with the autograd threads that work for it; the others go on
    undisturbed. Exports happen in a thread of their own. A forked child samples for itself.
    """

    def __init__(
        self,
        out: Path,
        *,
        every_s: float | None,
        max_bytes: float,
        max_overhead: float,
        steps: int,
        heavy: bool,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.out = out
        self._every_s = every_s
        self._max_bytes = max_bytes
        self._max_overhead = max_overhead
        self._steps = steps
        self._heavy = heavy
        self._clock = clock
        self._random = random.Random(seed)  # the script's own numbers stay
        self._closed = False
        self._listens = self._only_listens = False
        self._socket: AttachSocket | None = None
        self.on_capture: Callable[[Path], object] | None = None
        """Called with each exported file, in the exporting thread."""
        _wake_profiler()
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        """Start counting: in this process, from now."""
        self._lock = threading.Lock()  # held by the thread that captures
        self._counts = threading.Lock()
        self._started_s = self._clock()
        self._due_s = self._next_time()
        self._own_s = 0.0
        self._last_cost_s = 0.0
        self._captures = self._removed = self._skipped_overhead = self._skipped_busy = 0
        self._failures: Counter[str] = Counter()
        self._disk_bytes = 0
        self._number = 0
        self._owner = 0
        self._loop: _Loop | None = None
        self._left: Capture | None = None  # of a request that ended in another thread
        self._ask: Ask | None = None
        self._exports: queue.SimpleQueue[tuple[Capture, float, Ask | None] | None] = queue.SimpleQueue()
        self._exporter: threading.Thread | None = None

    # -- what callers use ----------------------------------------------------------------------

    def request(self) -> AbstractContextManager[None]:
        """Return a context for one request; captured if it is time for that. Never raises."""
        if self._left is not None:
            self._end_left()
        if self._clock() < self._due_s or self._closed:
            return _NOTHING
        return _Request(self) if self._claim() else _NOTHING

    def step(self) -> None:
        """Say that an iteration of the loop has ended. Never raises."""
        if self._left is not None:
            self._end_left()
        loop = self._loop
        if loop is not None:
            if self._owner == get_ident():
                loop.step()
            return
        if self._clock() < self._due_s or self._closed or not self._claim():
            return
        loop = _Loop(self)
        if self._owner:  # it could start
            self._loop = loop

    def trigger(self) -> None:
        """Capture the next request or steps, whatever the time; the cap on overhead holds."""
        self._only_listens = False
        self._due_s = float("-inf")

    def listen(self) -> None:
        """Let ``torchtriage attach`` in; never raises."""
        self._listens = True
        try:
            self._socket = AttachSocket(self)
        except Exception as error:
            self._failed(error)

    def ask(self, steps: int) -> Ask | None:
        """Capture the next request or so many steps, above the cap if need be; None while another was asked for."""
        with self._counts:
            if self._ask is not None or self._closed:
                return None
            ask = self._ask = Ask(steps)
        self.trigger()
        return ask

    def withdraw(self, ask: Ask) -> None:
        """Take back a capture that was asked for: one that runs ends at the next step."""
        ask.cancelled = True
        with self._counts:
            if self._ask is ask and not ask.begun:
                self._ask = None
                self._due_s = self._next_time()

    @property
    def stats(self) -> SampleStats:
        """What was done and what it cost until now."""
        with self._counts:
            wall_s = self._clock() - self._started_s
            return SampleStats(
                captures=self._captures,
                skipped_overhead=self._skipped_overhead,
                skipped_busy=self._skipped_busy,
                removed=self._removed,
                disk_bytes=self._disk_bytes,
                own_s=self._own_s,
                wall_s=wall_s,
                overhead=self._own_s / wall_s if wall_s > 0 else 0.0,
                failures=dict(self._failures),
            )

    @property
    def capturing(self) -> bool:
        """Whether this thread is being captured."""
        return self._owner == get_ident()

    @property
    def files(self) -> list[Path]:
        """The captures on disk, oldest first."""
        with contextlib.suppress(OSError):
            return sorted(self.out.glob(PATTERN))
        return []

    def close(self) -> None:
        """End: a capture that runs is given up, exports are finished. Never raises."""
        if self._closed:
            return
        self._closed = True
        if self._owner == get_ident() and self._loop is not None:
            self._loop.give_up()
        self._end_left()
        if self._exporter is not None:
            self._exports.put(None)
            self._exporter.join(CLOSE_S)
        if self._socket is not None:
            self._socket.close()
        if self._ask is not None:
            self._ask.end(error="the sampler was closed")
        _live.discard(self)

    def __enter__(self) -> Sampler:
        """Return the sampler."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # -- parts ---------------------------------------------------------------------------------

    def _next_time(self) -> float:
        if self._every_s is None:
            return float("inf")
        spread = self._random.uniform(1 - JITTER, 1 + JITTER)
        return self._clock() + self._every_s * spread

    def _claim(self) -> bool:
        """Whether this thread may capture now; nobody waits for another."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._clock() < self._due_s:  # another thread was quicker
            self._lock.release()
            return False
        self._due_s = self._next_time()
        if self._listens and self._socket is None:  # a forked child that works
            self.listen()
            if self._only_listens:
                self._only_listens = False
                self._lock.release()
                return False
        with self._counts:
            ask = self._ask
            if ask is not None:
                ask.begun, ask.begun_s, ask.own_s = True, self._clock(), self._own_s
        wall_s = self._clock() - self._started_s
        if ask is None and self._own_s and self._own_s + self._last_cost_s > self._max_overhead * wall_s:
            with self._counts:
                self._skipped_overhead += 1
            self._lock.release()
            return False
        self._owner = get_ident()
        return True

    def _end_left(self) -> None:
        """End a capture whose request ended in another thread: the one that began it alone can stop the profiler."""
        if self._left is not None and self._owner == get_ident():
            self._left.abandon()
            self._release()

    def _release(self) -> None:
        ask = self._ask
        if ask is not None and ask.begun:
            self._ask = None
            if not ask.exporting:
                ask.end(error=ask.error or "the capture was given up")
        self._owner, self._loop, self._left = 0, None, None
        self._lock.release()

    def _lost(self, reason: str) -> None:
        self._failed(ProfilerBusyError(reason) if reason == BUSY else RuntimeError(reason))
        self._release()

    def _failed(self, error: BaseException) -> None:
        with self._counts:
            if self._ask is not None and self._owner == get_ident():
                self._ask.error = f"{type(error).__name__}: {error}"
            if isinstance(error, ProfilerBusyError):
                self._skipped_busy += 1
            else:
                self._failures[f"{type(error).__name__}: {error}"] += 1

    def _spent(self, seconds: float, *, first: bool = False) -> None:
        with self._counts:
            self._own_s += seconds
            self._last_cost_s = seconds if first else self._last_cost_s + seconds

    def _slowed(self, seconds: float) -> None:
        self._spent(seconds * SLOWED[self._heavy])

    def _export(self, capture: Capture) -> None:
        """Hand a stopped capture to the exporting thread."""
        self._number += 1
        if self._exporter is None or not self._exporter.is_alive():
            self._exporter = threading.Thread(
                target=_export_all, args=(weakref.ref(self), self._exports), name="torchtriage-export", daemon=True
            )
            self._exporter.start()
        ask = self._ask if self._ask is not None and self._ask.begun else None
        if ask is not None:
            ask.exporting, ask.wall_s = True, self._clock() - ask.begun_s
        self._exports.put((capture, time.time(), ask))

    def _write(self, capture: Capture, at_s: float, ask: Ask | None) -> None:
        begun = time.perf_counter()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(at_s)) + f".{int(at_s % 1 * 1000):03}"
        error = None
        path = self.out / f"sample-{stamp}-{os.getpid()}-{self._captures}.json.gz"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            capture.export(path)
            with self._counts:
                self._captures += 1
            self._make_room()
            if self.on_capture is not None:
                self.on_capture(path)
        except Exception as problem:
            capture.abandon()
            self._failed(problem)
            error = problem
        # most of it is done with the interpreter's lock held: others wait for it
        self._spent(time.perf_counter() - begun)
        if ask is not None:
            ask.cost_s = self._own_s - ask.own_s
            ask.end(path=path.absolute() if error is None else None, error=f"{type(error).__name__}: {error}")

    def _make_room(self) -> None:
        sizes = {}
        for path in self.files:
            with contextlib.suppress(OSError):  # another process may have removed it
                sizes[path] = path.stat().st_size
        whole = sum(sizes.values())
        for path, size in sizes.items():
            if whole <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            whole -= size
            with self._counts:
                self._removed += 1
        self._disk_bytes = whole


class _Request:
    """One request, captured: the profiler is started before it and stopped after it."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._capture: Capture | None = None
        self._begun_s = 0.0
        if sampler._ask is not None and sampler._ask.begun:
            sampler._ask.request = True

    def __enter__(self) -> None:
        sampler = self._sampler
        begun = time.perf_counter()
        capture = Capture(heavy=sampler._heavy, first_step=sampler._number, on_lost=self._lost)
        try:
            capture.start()
            capture.step()
            self._capture = capture
        except Exception as error:
            capture.abandon()
            sampler._failed(error)
            sampler._release()
        self._begun_s = time.perf_counter()
        sampler._spent(self._begun_s - begun, first=True)

    def _lost(self, reason: str) -> None:
        self._capture = None
        self._sampler._lost(reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        capture, sampler = self._capture, self._sampler
        if capture is None:
            return
        if sampler._owner != get_ident():
            sampler._left = capture
            sampler._failed(RuntimeError("a captured request ended in another thread than it began in"))
            return
        begun = time.perf_counter()
        sampler._slowed(begun - self._begun_s)
        try:
            capture.stop()
            sampler._export(capture)
        except Exception as problem:
            capture.abandon()
            sampler._failed(problem)
        finally:
            sampler._spent(time.perf_counter() - begun)
            sampler._release()


class _Loop:
    """A few steps of a loop, captured: the first one warms the profiler up."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._capture = Capture(heavy=sampler._heavy, first_step=sampler._number, on_lost=sampler._lost)
        self._n = 0
        ask = sampler._ask
        self._ask = ask if ask is not None and ask.begun else None
        self._steps = sampler._steps if self._ask is None else self._ask.steps
        self._begun_s = self._last_s = time.perf_counter()
        self._act(self._capture.start)

    def step(self) -> None:
        self._n += 1
        took = time.perf_counter() - self._last_s
        self._sampler._slowed(took)
        if self._ask is not None and self._ask.cancelled:
            self.give_up()
        else:
            self._act(self._capture.step if self._n <= self._steps else self._end)

    def _act(self, what: Callable[[], None]) -> None:
        sampler, begun = self._sampler, time.perf_counter()
        try:
            what()
        except Exception as error:
            self._capture.abandon()
            sampler._failed(error)
            sampler._release()
        self._last_s = time.perf_counter()
        sampler._spent(self._last_s - begun, first=not self._n)

    def _end(self) -> None:
        self._capture.stop()
        self._sampler._export(self._capture)
        self._sampler._release()

    def give_up(self) -> None:
        self._capture.abandon()
        self._sampler._release()


def _wake_profiler() -> None:
    capture = Capture()
    with contextlib.suppress(Exception):
        capture.start()
    capture.abandon()


def _export_all(
    sampler: weakref.ref[Sampler], exports: queue.SimpleQueue[tuple[Capture, float, Ask | None] | None]
) -> None:
    while (item := exports.get()) is not None:
        owner = sampler()
        if owner is None:
            return
        owner._write(*item)
        del owner, item


_live: weakref.WeakSet[Sampler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sampler in list(_live):
        sampler.close()


def _begin_again() -> None:
    for sampler in list(_live):
        sampler._begin()
        if sampler._socket is not None:
            sampler._socket.close()
            sampler._socket = None
            # a child that works listens from its first call on; workers of loaders never do
            sampler._only_listens = True
            sampler._due_s = float("-inf")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)
