"""``tt.StragglerWatch``: which rank makes the others wait, and where its time goes, while a job trains.

>>> with tt.StragglerWatch(model, optimizer=optimizer):
...     for batch in loader:
...         train_step(batch)
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.api.profile import Profile, need_torch, profile
from torchtriage.core.errors import UsageError
from torchtriage.core.record.job_store import JobStore, process_group
from torchtriage.core.record.phase_clock import BETWEEN, WAIT, PhaseClock, Window
from torchtriage.core.record.phase_hooks import PhaseHooks, phase_of
from torchtriage.core.record.stacks import callers, current_frames
from torchtriage.operate.monitor import process_metrics
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.stragglers.job import Hung, JobWatch, Lost
from torchtriage.operate.stragglers.judge import Late
from torchtriage.operate.stragglers.summary import PHASE_NAMES, RankNote, WindowTimes, kept, window_times

if TYPE_CHECKING:  # here only the script imports torch
    import torch

__all__ = ["Hung", "Late", "Lost", "StragglerWatch"]

SCHEMA = "torchtriage-straggler-watch/1"
PERIOD_S = 1.0
"""How often a rank tells where it is, and the first one reads what all told."""
RANKS_A_PERIOD = 100
"""Of more ranks the notes are read less often: to read and judge a thousand takes the first rank some 10 ms."""
STOP_S = 3.0
"""What the end may take: the first rank waits so long for what the others tell last."""
ARM_PERIODS = 3
"""So long before its first step a recording is announced: every rank has to hear of it."""
MOST_RECORDINGS = 3
RECORD = "record"
_logger = logging.getLogger("torchtriage.stragglers")
_watches = itertools.count()


class StragglerWatch:
    """Tells which rank of a job makes the others wait, and in which phase of its step.

    Made on every rank, before the loop; a context manager, or ``start()`` and ``stop()``. A step ends where
    ``optimizer`` ends one, or where :meth:`step` is called. The ranks exchange some hundred bytes a second through the
    store of the process group, in a thread of their own; no collective is added, nothing is synchronised, and no
    failure reaches the loop. The first rank compares them, and says in the log, and to ``on_late``, who is late.

    Parameters
    ----------
    *models : module
        Whose forward and backward passes are told apart: as they are called, with their wrapper.
    optimizer : optional
        Each of its steps ends a step of the loop. Without it, call :meth:`step` at the end of each iteration.
    every : int
        Steps that are compared together. A rank is told after three such windows in a row.
    on_late : callable, optional
        Called on the first rank, in the watch's thread, with each :class:`Late`, :class:`Lost` and :class:`Hung`.
    arm : path, optional
        Record some steps of a late rank and of a usual one into this folder, which both can write.
    out : path, optional
        Write :meth:`summary` there as JSON at the end, on the first rank.

    Raises MissingExtraError: torch is not installed; UsageError: ``every`` cannot be meant.
    """

    def __init__(
        self,
        *models: torch.nn.Module,
        optimizer: Any = None,
        every: int = 40,
        on_late: Callable[[Late | Lost | Hung], object] | None = None,
        arm: str | os.PathLike[str] | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> None:
        need_torch("tt.StragglerWatch")
        self._every = _steps_of_window(every)
        self._on_late = on_late
        self._arm = None if arm is None else Path(arm)
        self._out = None if out is None else Path(out)
        self._clock = PhaseClock(self._every)
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps one
        self._hooks = PhaseHooks(self._clock, models, optimizer, self.step)
        self._attend = True  # whether a step has more to do than to be timed
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._state = "new"
        self._rank, self._n_ranks = 0, 1
        self._job: JobWatch | None = None
        self._store: JobStore | None = None
        self._pid = os.getpid()
        self._loop_thread = 0
        self._name = ""
        self._beat = 0
        self._waiting: dict[int, tuple[Window, list[list[float]]]] = {}
        self._windows: dict[int, WindowTimes] = {}
        self._history: list[Late | Lost | Hung] = []
        self._n_late: Counter[tuple[int, str]] = Counter()
        self._recordings: list[str] = []
        self._asked: dict[str, Any] = {}
        self._profile: Profile | None = None
        self._recorded: tuple[float, float] = (float("inf"), float("-inf"))

    # -- the loop's thread -----------------------------------------------------------------------

    def __enter__(self) -> StragglerWatch:
        """Begin."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End."""
        self.stop()

    def start(self) -> StragglerWatch:
        """Begin without ``with``."""
        if self._state != "new":
            raise UsageError("expected a new tt.StragglerWatch(), found one that has begun")
        self._state = "on"
        self._name = f"torchtriage/watch{next(_watches)}"  # of all ranks: each begins the same ones
        self._hooks.install()
        self._clock.begin()
        atexit.register(self.stop)
        return self

    def step(self) -> None:
        """Say that an iteration has ended. Never raises."""
        self._clock.end_step()
        if self._attend:
            self._attend_to()

    def phase(self, name: str) -> _Phase:
        """Return a context manager for what the watch does not see: ``with watch.phase("loader")``.

        Raises UsageError: there is no such phase.
        """
        if name not in PHASE_NAMES:
            raise UsageError(f"expected a phase of {', '.join(PHASE_NAMES)}, found {name!r}")
        return _Phase(self._clock, PHASE_NAMES.index(name))

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches; fetching them is the loader's phase. A ``DataLoader`` needs none of this."""
        ended = object()
        fetching = self.phase("loader")
        iterator = iter(batches)
        while True:
            with fetching:
                batch = next(iterator, ended)
            if batch is ended:
                return
            yield batch

    def stop(self) -> None:
        """End: tell the last windows, write the summary. Takes three seconds at most; never raises."""
        if self._state == "ended" or os.getpid() != self._pid:
            return
        was, self._state = self._state, "ended"
        self._off()
        atexit.unregister(self.stop)
        if was == "on" and not self._clock.step:
            _logger.warning("no step was seen: give the watch the optimizer, or call its step()")
        if self._profile is not None:
            self._profile.stop("the watch ended")
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        if self._out is not None and self._rank == 0:
            try:
                self._out.parent.mkdir(parents=True, exist_ok=True)
                self._out.write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
            except Exception as error:  # the training has a result of its own to save
                _logger.warning("the summary cannot be written: %s", error)

    def _off(self) -> None:
        self._hooks.remove()
        self._attend = False

    def _attend_to(self) -> None:
        try:
            if self._thread is None:
                self._begin()
            else:
                self._record()
        except Exception as error:
            self._attend = False
            _logger.warning("the straggler watch failed: %s: %s", type(error).__name__, error)

    def _begin(self) -> None:
        """Begin to compare, at the first step: the process group is there by now, or never will be."""
        self._attend = False
        group = process_group()
        if group is None or group[1] < 2:
            why = "torch.distributed is not initialised" if group is None else "the job has one rank"
            _logger.warning("%s: a straggler watch compares ranks, and does nothing here", why)
            self._off()
            self._state = "alone"
            return
        self._rank, self._n_ranks = group
        if self._rank == 0:
            self._job = JobWatch(self._n_ranks, self._every)
            process_metrics.register(self)
        cuda = getattr(sys.modules["torch"], "cuda", None)
        self._clock.begin(cuda if cuda is not None and cuda.is_initialized() else None)
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="torchtriage-stragglers", daemon=True)
        self._thread.start()

    def _record(self) -> None:
        """Record this rank, between two steps of the loop."""
        step = self._clock.step
        if step < self._asked["step"]:
            return
        try:
            if self._profile is None:
                self._recorded = (step, float("inf"))
                self._profile = profile(self._asked["folder"], warmup=1)
                self._profile.start(sys._getframe(3))
                return
            self._profile.step()
            if not self._profile.done:
                return
            self._profile.stop()
            _logger.warning("rank %d is recorded: %s", self._rank, self._asked["folder"])
        except Exception as error:
            _logger.warning("the recording of rank %d failed: %s: %s", self._rank, type(error).__name__, error)
        self._attend, self._profile = False, None
        self._recorded = (self._recorded[0], step)

    # -- the watch's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._store = JobStore(self._name)
            while not self._stop.wait(PERIOD_S):
                self._exchange(self._store, ended=False)
            self._exchange(self._store, ended=True)
            until_s = time.monotonic() + STOP_S * 0.8
            while self._job is not None and len(self._job.ended) < self._n_ranks and time.monotonic() < until_s:
                time.sleep(0.05)
                self._compare(self._store, self._job)
        except ConnectionError as error:  # a store that is gone is no matter of the loop
            if not self._stop.is_set():
                _logger.warning("the straggler watch has ended, its store is gone: %s", str(error).partition("\n")[0])
        except Exception as error:
            _logger.warning("the straggler watch failed: %s: %s", type(error).__name__, error)
        finally:
            if self._job is not None:
                process_metrics.unregister(self)

    def _exchange(self, store: JobStore, *, ended: bool) -> None:
        self._take_windows(ended=ended)
        clock = self._clock
        self._beat += 1
        since_s = (time.perf_counter_ns() - clock.since_ns) / 1e9
        phase = clock.phase
        if not clock.timed and phase == BETWEEN:  # only phases of the user's own are switched in such a step
            frame = current_frames().get(self._loop_thread)
            phase = WAIT if frame is None else phase_of(callers(frame))
        note = RankNote(self._beat, clock.step, phase, since_s, ended, list(self._windows.values()))
        store.set(str(self._rank), note.pack())
        if self._job is not None and (ended or self._beat % (1 + self._n_ranks // RANKS_A_PERIOD) == 0):
            self._compare(store, self._job)
        if self._arm is not None and not ended:
            self._hear(store.get([RECORD]).get(RECORD))

    def _take_windows(self, *, ended: bool) -> None:
        clock = self._clock
        while clock.windows:
            window = clock.windows.popleft()
            first, last = self._recorded
            if first <= (window.number + 1) * self._every and window.number * self._every <= last:
                continue  # under the profiler a step is longer
            self._waiting[window.number] = window, []
        device = clock.read_device()
        for number, rows in device.items():
            if number in self._waiting:
                self._waiting[number][1].extend(rows)
        done = [number for number in self._waiting if not clock.on_device or ended or number < max(self._waiting)]
        for number in done:
            window, rows = self._waiting.pop(number)
            if rows or not clock.on_device:
                self._windows[number] = window_times(number, window.host_ns, rows)
        self._windows = kept(self._windows)

    def _compare(self, store: JobStore, job: JobWatch) -> None:
        told = store.get([str(rank) for rank in range(self._n_ranks)])
        notes = {int(rank): RankNote.unpack(data) for rank, data in told.items()}
        for event in job.update(notes, time.monotonic()):
            self._history.append(event)
            _logger.warning("%s", event)
            if isinstance(event, Late) and event.kind == "late":
                self._n_late[event.rank, next(iter(event.phases))] += 1
                self._ask(store, job, event, max(note.step for note in notes.values()))
            if self._on_late is not None:
                try:
                    self._on_late(event)
                except Exception as error:
                    _logger.warning("on_late raised %s: %s", type(error).__name__, error)

    def _ask(self, store: JobStore, job: JobWatch, late: Late, step: int) -> None:
        """Ask the late rank and a usual one to record the same steps."""
        if self._arm is None or len(self._recordings) >= MOST_RECORDINGS or self._stop.is_set():
            return
        busy = {straggler.rank for straggler in job.judge.late}
        other = next(rank for rank in job.judge.typical if rank not in busy)
        begin = step + int(ARM_PERIODS * PERIOD_S * 1e3 / late.step_ms) + 1
        folder = str(self._arm / f"step{begin}")
        store.set(RECORD, json.dumps({"ranks": [late.rank, other], "step": begin, "folder": folder}).encode())
        self._recordings.append(folder)
        _logger.warning(
            "recording rank %d and rank %d from step %d on: torchtriage analyze %s", late.rank, other, begin, folder
        )

    def _hear(self, message: bytes | None) -> None:
        asked = json.loads(message) if message else {}
        if asked.get("folder") != self._asked.get("folder") and not self._attend:
            self._asked = asked
            self._attend = self._rank in asked["ranks"]

    # -- what is known ---------------------------------------------------------------------------

    @property
    def late(self) -> list[Late]:
        """The ranks that are late now, on the first rank; empty on the others."""
        return [] if self._job is None else self._job.judge.late

    def summary(self) -> dict[str, Any]:
        """Return what was told so far, on the first rank, as JSON takes it; times in ms."""
        job = self._job
        return {
            "schema": SCHEMA,
            "ranks": self._n_ranks,
            "steps": self._clock.step,
            "windows": 0 if job is None else job.judge.n_windows,
            "every": self._every,
            "told": [
                {"what": type(event).__name__.lower(), "text": str(event), **asdict(event)} for event in self._history
            ],
            "recordings": self._recordings,
        }

    def metrics(self) -> Iterable[Value]:
        """Yield them for Prometheus, where the process' monitor has it."""
        for late in self.late:
            labels = {"rank": str(late.rank), "phase": next(iter(late.phases))}
            yield "straggler_late_ratio", labels, late.late_ms / late.step_ms
        for (rank, phase), n in list(self._n_late.items()):
            yield "straggler_late_total", {"rank": str(rank), "phase": phase}, n
        yield "straggler_windows_total", {}, 0 if self._job is None else self._job.judge.n_windows


def _steps_of_window(every: Any) -> int:
    if isinstance(every, bool) or not isinstance(every, Integral) or every < 5:
        hint = "steps that are compared together; fewer say nothing of their spread"
        raise UsageError(f"expected every as a whole number from 5, found {every!r}", hint=hint)
    return int(every)


class _Phase:
    def __init__(self, clock: PhaseClock, phase: int) -> None:
        self._clock, self._phase, self._before = clock, phase, 0

    def __enter__(self) -> None:
        if threading.get_ident() in self._clock.threads:
            self._before = self._clock.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() in self._clock.threads:
            self._clock.enter(self._before)
