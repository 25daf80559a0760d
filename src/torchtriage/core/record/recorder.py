"""Records a loop from the inside: unprofiled step times, a light recording, a heavy one.

Whoever knows the loop calls :meth:`Recorder.step` at each step boundary; what to do there is
decided here. A recording is on disk the moment it is complete, ``recording.json`` says beside it
what was measured and on what, and no failure of the profiler reaches the loop.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock, get_ident
from time import perf_counter_ns
from typing import Any

from torchtriage.core.record.environment import gather
from torchtriage.core.record.profiler_capture import BUSY, Capture, ProfilerBusyError, capture_ended, devices
from torchtriage.core.record.step_evidence import StepEvidence
from torchtriage.core.record.timing import OwnTime, settled, step_wall_ns
from torchtriage.core.record.torch_hooks import may_compile
from torchtriage.core.whole_files import replacing

SCHEMA = "torchtriage-recording/1"
RECORDING_FILE = "recording.json"
LIGHT_FILE = "light.json.gz"
HEAVY_FILE = "heavy.json.gz"
COMPLETE = "complete"
EARLY_LIGHT, EARLY_HEAVY, CALLS, WARM_UP, TIMING, LIGHT, HEAVY, AGAIN, OFF = _ORDER = (
    "early light",
    "early heavy",
    "calls",
    "warm-up",
    "timing",
    "light",
    "heavy",
    "timing again",
    "off",
)
EARLY = (EARLY_LIGHT, EARLY_HEAVY, CALLS, WARM_UP, TIMING)
"""States in which a better boundary may still take the place of the one that was chosen."""
CAPTURES = (EARLY_LIGHT, EARLY_HEAVY, LIGHT, HEAVY)
JOB_STEPS, FOREVER_S = 20, 1e9
"""Unprofiled steps that each rank of a job times, however long they take."""
FEWEST_STEPS = 3
"""Slow steps are timed no more often than this where ``max_timing_s`` is over."""
AGAIN_AT_MOST = 3
"""So many times ``timing_steps`` are timed in the end: it is a check of the times before."""
NO_STACKS = "stacks were not recorded: "
"""Begins why, among the failures."""
TAKE_OVER = 5
"""So many steps of another thread, without one of the first, and the loop has moved there."""


@dataclass(frozen=True)
class RecordPlan:
    """How many steps of what, in this order.

    ``early_light`` and ``early_heavy`` steps are recorded at once, for a loop that may end soon; the
    later recordings take their place. The early heavy one is left out while something is compiled.
    In the next ``calls`` steps the inputs and results of functions are compared, and in two more (0: in none) what
    operators compute and read is noted.
    ``warmup`` steps are not looked at. ``timing_steps`` unprofiled ones at least are timed, for
    ``min_timing_s`` at least, until their time has settled, or ``max_timing_steps`` or
    ``max_timing_s`` are reached (0 steps: none are timed). Then ``light`` and ``heavy`` steps are
    recorded, each after one that warms the profiler up (0: no such recording), and
    unprofiled ones timed again, by the same rule but for at most three times ``timing_steps``.
    """

    warmup: int = 5
    timing_steps: int = 10
    min_timing_s: float = 0.2
    max_timing_steps: int = 100
    max_timing_s: float = 10.0
    light: int = 6
    heavy: int = 3
    early_light: int = 0
    early_heavy: int = 0
    calls: int = 0

    @property
    def n_steps(self) -> int:
        """About how many steps all of it takes."""
        recorded = self.early_light + self.early_heavy + self.light + self.heavy
        return self.warmup + 2 * self.timing_steps + recorded + self.calls + 2 * (self.calls > 0)


@dataclass
class _Timed:
    """``own_ns`` : mean of a step without the wait for a processor; None where that is not known."""

    step_ns: list[int]
    settled: bool = False
    own_ns: float | None = None


class Recorder:
    """Records one loop into one folder.

    Light comes first, for cost; heavy, for location, may cost more memory. Both, and the times,
    exclude what the recorder itself spends starting, stopping and exporting.

    The thread that steps first owns the loop: the profiler sees only the thread that started it.
    Steps of other threads are counted and ignored; after five of one, without one of the owner
    between, the loop has moved there and warm-up begins again. In a forked child the recorder is
    off.

    Parameters
    ----------
    out_dir : path
        Folder for ``recording.json``, ``light.json.gz`` and ``heavy.json.gz``; made if needed.
    plan : Plan
        How many steps of what.
    rank : int, optional
        Of the job this process belongs to; asked of ``torch.distributed`` or the launcher's
        ``RANK`` where not given.
    boundary : str
        What a step is, in words (``"Adam.step"``); written down only.
    may_trace : callable, optional
        Asked before stacks are recorded; where it says no, they are not.
    on_done : callable, optional
        Called in the loop's thread, at a step boundary, when everything is recorded.
    on_stacks : callable, optional
        Called with True before stacks are recorded, and with False when that is over, or was never on.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        plan: RecordPlan | None = None,
        *,
        rank: int | None = None,
        boundary: str = "step",
        may_trace: Callable[[], bool] = lambda: True,
        on_done: Callable[[], object] | None = None,
        on_stacks: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._may_trace = may_trace
        self._on_stacks = on_stacks
        self.out_dir = Path(out_dir)
        self.plan = plan or RecordPlan()
        self.rank = rank
        self.boundary = boundary
        self.steps_seen = 0
        self.ended = ""  # the reason, when it has
        self._on_done = on_done
        self._failures: Counter[str] = Counter()
        self._ignored_steps = 0
        self._stray_run = 0
        self._owner: int | None = None
        self._acting = Lock()  # one thread at a time: starting and exporting take long
        self._before = _Timed([])
        self._after = _Timed([])
        self._recordings: dict[str, dict[str, Any]] = {}
        self._environment: dict[str, Any] | None = None
        self._queued = False
        self._capture: Capture | None = None
        self._short = False
        self._capture_ns: list[int] = []
        self._own_ns = 0
        self._phase_steps = 0
        self._last_ns = 0
        self._start_ns = 0
        self._entered_ns = 0
        self._own = OwnTime()
        self._look_at = 0
        self._look_ns = 0
        self._n_compiled = 0
        self._evidence = StepEvidence(self._failures)
        # what the next step boundary means; None: nothing any more
        self._advance: Callable[[int], None] | None
        if self.plan.early_light or self.plan.early_heavy:
            self.state, self._advance = "", self._begin_early
        else:
            self.state, self._advance = WARM_UP, self._warm_up
        _live.add(self)

    # -- what callers use ----------------------------------------------------------------------

    def step(self) -> None:
        """Say that a step has ended and the next begins. Never raises; cheap when over."""
        if self._advance is None:
            return
        now = perf_counter_ns()
        if not self._acting.acquire(blocking=False):
            self._ignored_steps += 1
            return
        try:
            if get_ident() != self._owner and not self._take_over():
                return
            advance = self._advance
            if advance is None:  # closed in the meantime
                return
            self._stray_run = 0
            self.steps_seen += 1
            advance(now)
            capture_ended.clear()  # at the next boundary
        except Exception as error:
            self._failed(error)
        finally:
            self._acting.release()

    # a step inside a compiled function ends the graph there instead of being traced
    step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def record_block(self, *, heavy: bool = True) -> None:
        """Record from here to :meth:`close` or :meth:`end_block` as one window; steps mean nothing in it."""
        self.state, self._advance, self._owner = HEAVY if heavy else LIGHT, lambda now: None, get_ident()
        try:
            self._begin_capture(first_step=None)
        except Exception as error:
            self._failed(error)

    def end_block(self) -> None:
        """Keep what :meth:`record_block` recorded; another block may follow. Never raises."""
        try:
            if self._capture is not None:
                self._keep(self._capture, inside_step=False)
        except Exception as error:
            self._failed(error)

    @property
    def capturing(self) -> bool:
        """Whether the profiler runs for this recorder."""
        return self._capture is not None

    @property
    def captures_elsewhere(self) -> bool:
        """Whether the profiler runs for this recorder in another thread, which alone can stop it."""
        return self.capturing and self._owner != get_ident()

    def cut_short(self) -> None:
        """End the current recording at the next step boundary, with the whole steps it has by then."""
        self._short = self._capture is not None

    def give_up(self, reason: str) -> None:
        """Throw away what is being recorded and go on with what comes next. Never raises."""
        if self._capture is not None:
            self._failed(RuntimeError(reason))

    @property
    def done(self) -> bool:
        """Whether nothing is left to record or to time."""
        return self._advance is None

    def recorded(self, kind: str) -> bool:
        """Whether the ``light`` or the ``heavy`` recording is on disk."""
        return kind in self._recordings

    def close(self, reason: str = "closed") -> None:
        """Stop; what is half recorded is kept up to its last whole step. Never raises.

        ``reason`` goes into ``recording.json``, unless everything had been recorded before.
        """
        if self.ended:
            return
        try:
            capture = self._capture
            if capture is not None:
                self._keep(capture, inside_step=True)
            self._evidence.end_calls()
            self._evidence.give_up_operators()
        except Exception as error:
            self._failed(error)
        self._end(reason)

    # -- the states, in order ------------------------------------------------------------------

    def _begin_early(self, now: int) -> None:
        self._n_compiled = _n_compiled()
        self._next()

    def _probing(self, now: int) -> None:
        self._phase_steps += 1
        self._evidence.calls_step()
        if self._phase_steps == self.plan.calls:
            self._evidence.end_calls()
            self._evidence.begin_operators()
        elif self._phase_steps == self.plan.calls + 1:
            self._evidence.operators_step()
        elif self._phase_steps > self.plan.calls:
            self._evidence.end_operators()
            self._next()

    def _warm_up(self, now: int) -> None:
        self._phase_steps += 1
        self._evidence.gradients_step(self._phase_steps, self.plan.warmup)
        if self._phase_steps > self.plan.warmup:  # the first call only begins a step
            self._queued = bool(devices())
            if _world_size() > 1:
                # ranks must record the same steps, so none may decide by its own clock
                n = min(self.plan.timing_steps, 1) * JOB_STEPS
                self.plan = replace(self.plan, timing_steps=n, max_timing_steps=n, max_timing_s=FOREVER_S)
            self._next()

    def _timing(self, now: int) -> None:
        self._time(self._before, now, self.plan.max_timing_steps)

    def _timing_again(self, now: int) -> None:
        self._phase_steps += 1
        if self._phase_steps > 1:  # in the first one the profiler's traces fade
            most = AGAIN_AT_MOST * self.plan.timing_steps
            self._time(self._after, now, min(most, self.plan.max_timing_steps))
        else:
            self._last_ns = now

    def _time(self, timed: _Timed, now: int, at_most: int) -> None:
        times = timed.step_ns
        times.append(now - self._last_ns)
        self._last_ns = now
        if len(times) < self._look_at and now < self._look_ns:
            return
        plan, n = self.plan, len(times)
        late = now >= self._entered_ns + int(plan.max_timing_s * 1e9)
        if n < FEWEST_STEPS or (n < plan.timing_steps and not late):
            return
        self._look_at = n + plan.timing_steps  # a look costs more than a step may
        recent = times[-max(plan.timing_steps, n // 2) :]
        timed.settled = settled(recent)
        long_enough = sum(times) >= plan.min_timing_s * 1e9
        if (timed.settled and long_enough) or late or n >= at_most:
            timed.step_ns = recent
            own_ns = self._own.passed_ns()
            timed.own_ns = None if own_ns is None else own_ns / max(self._phase_steps, n)
            self._next()

    def _begins_capture(self, _now: int) -> None:
        self._advance = self._captured
        self._begin_capture(self.steps_seen)
        self._last_ns = perf_counter_ns()

    def _captured(self, now: int) -> None:
        capture = self._capture
        assert capture is not None
        self._phase_steps += 1
        if self._phase_steps > capture.warms_up:
            self._capture_ns.append(now - self._last_ns)
        wanted = 1 if self._short else self._steps_of(self.state)
        if self._phase_steps < wanted + capture.warms_up:
            capture.step()
            self._last_ns = perf_counter_ns()
            return
        self._keep(capture, inside_step=False)
        self._next()

    # -- parts ---------------------------------------------------------------------------------

    def _next(self) -> None:
        """Go to the next state that has steps, and begin it: a recording at the next boundary if one ended here."""
        at = _ORDER.index(self.state) + 1 if self.state else 0
        while _ORDER[at] != OFF and not self._steps_of(_ORDER[at]):
            at += 1
        state = _ORDER[at]
        self._phase_steps = 0
        self.state = state
        if state == OFF:
            self._end(COMPLETE)
        elif state in CAPTURES:
            self._advance = self._begins_capture
            if not capture_ended.is_set():
                self._begins_capture(self._last_ns)
        elif state == CALLS:
            self._advance = self._probing
            self._evidence.begin_calls()
        else:
            self._advance = {WARM_UP: self._warm_up, TIMING: self._timing}.get(state, self._timing_again)
            if state in (AGAIN, WARM_UP):
                self._write()
        self._last_ns = self._entered_ns = perf_counter_ns()
        self._own = OwnTime()
        self._look_at = self.plan.timing_steps
        self._look_ns = self._entered_ns + int(self.plan.max_timing_s * 1e9)

    def _steps_of(self, state: str) -> int:
        plan = self.plan
        if state == EARLY_HEAVY and _n_compiled() != self._n_compiled:
            return 0  # the stacks of a compiler are endless
        if state == CALLS and may_compile():
            return 0  # it would compile what compares the calls, too
        if state in (EARLY_HEAVY, HEAVY):
            theirs = self._capture is None and (sys.getprofile() is not None or threading.getprofile() is not None)
            if theirs:
                why = "the script has a profiler such as cProfile on, which that would switch off"
            else:
                why = "" if self._may_trace() else "another thread runs Python all the time"
            if why:
                self._failures[NO_STACKS + why] += 1
                return 0
        steps = {
            EARLY_LIGHT: plan.early_light,
            EARLY_HEAVY: plan.early_heavy,
            CALLS: plan.calls,
            LIGHT: plan.light,
            HEAVY: plan.heavy,
        }
        return steps.get(state, max(plan.warmup, 1) if state == WARM_UP else plan.timing_steps)

    def _begin_capture(self, first_step: int | None) -> None:
        if self._environment is None:
            self._write()  # with the environment: from here on a killed script leaves it
        started = perf_counter_ns()
        heavy, early = self.state in (HEAVY, EARLY_HEAVY), self.state in (EARLY_LIGHT, EARLY_HEAVY)
        # stacks that are recorded without a warm-up crash torch 2.13 where another thread runs Python
        warms_up = heavy or not early or bool(devices())
        capture = Capture(heavy=heavy, first_step=first_step, warms_up=warms_up, on_lost=self._lost)
        self._on_stacks(heavy)
        try:
            capture.start()
        except ProfilerBusyError:
            self._on_stacks(False)
            self._end(BUSY)
            return
        except BaseException:
            capture.abandon()
            self._on_stacks(False)
            raise
        self._capture, self._capture_ns, self._short = capture, [], False
        self._start_ns = perf_counter_ns() - started
        self._own_ns += self._start_ns

    def _keep(self, capture: Capture, *, inside_step: bool) -> None:
        """Stop a capture and export it, if it holds a whole step."""
        kind = HEAVY if capture.heavy else LIGHT
        started = perf_counter_ns()
        self._capture = None
        try:
            capture.stop(inside_step=inside_step)
        finally:
            self._on_stacks(False)
        stopped = perf_counter_ns()
        if not capture.holds_something:
            return
        self.out_dir.mkdir(parents=True, exist_ok=True)
        name = HEAVY_FILE if capture.heavy else LIGHT_FILE
        size = capture.export(self.out_dir / name)
        self._recordings[kind] = {
            "file": name,
            "bytes": size,
            "steps": capture.active_steps,
            "whole": not inside_step,
            "early": self.state in (EARLY_LIGHT, EARLY_HEAVY),
            "step_ns": self._capture_ns,
            "start_ns": self._start_ns,
            "stop_ns": stopped - started,
            "export_ns": perf_counter_ns() - stopped,
        }
        self._own_ns += perf_counter_ns() - started

    def _lost(self, reason: str) -> None:
        self._capture = None
        self._on_stacks(False)
        if not self.ended:
            self._end(reason)

    def _take_over(self) -> bool:
        """Whether the thread that steps owns the loop, from now on."""
        if self._owner is not None:
            self._ignored_steps += 1
            self._stray_run += 1
            if self._stray_run < TAKE_OVER or self._capture is not None:
                return False
            self._evidence.end_calls()
            if self.state == AGAIN:
                self._after, self._phase_steps = _Timed([]), 0
            else:
                self._before = _Timed([])
                self._phase_steps, self.state, self._advance = 0, WARM_UP, self._warm_up
        self._owner = get_ident()
        return True

    def _failed(self, error: Exception) -> None:
        """Count a failure and go on with what comes after it."""
        self._failures[f"{type(error).__name__}: {error}"] += 1
        self._evidence.end_gradients()
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.abandon()
            self._on_stacks(False)
        self._evidence.end_calls()
        if self.ended:
            return
        if self.state not in CAPTURES:
            self._end("it failed")
            return
        try:
            self._next()
        except Exception as next_error:  # the heavy recording could not begin, either
            self._failed(next_error)

    def _end(self, reason: str) -> None:
        self._advance = None
        self.state = OFF
        self.ended = reason
        _live.discard(self)
        self._evidence.end_gradients()
        self._write()
        if reason == COMPLETE and self._on_done is not None:
            try:
                self._on_done()
            except Exception as error:
                self._failures[f"on_done: {type(error).__name__}: {error}"] += 1

    def _write(self) -> None:
        """Write ``recording.json`` as things stand, at once or not at all."""
        started = perf_counter_ns()
        try:
            if self._environment is None:
                self._environment = gather()
            self.out_dir.mkdir(parents=True, exist_ok=True)
            with replacing(self.out_dir / RECORDING_FILE) as part:
                part.write_text(json.dumps(self.facts(), indent=1), encoding="utf-8")
        except Exception as error:
            self._failures[f"{RECORDING_FILE}: {type(error).__name__}: {error}"] += 1
        self._own_ns += perf_counter_ns() - started

    def facts(self) -> dict[str, Any]:
        """Return what ``recording.json`` holds, as JSON values; times in ns."""
        return {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "rank": self.rank if self.rank is not None else _asked_rank(self._environment),
            "boundary": self.boundary,
            "plan": asdict(self.plan),
            "ended": self.ended or None,
            "steps_seen": self.steps_seen,
            "ignored_steps": self._ignored_steps,
            "queued": self._queued,
            "unprofiled_ns": self._unprofiled_ns(),
            "before": asdict(self._before),
            "after": asdict(self._after),
            **{kind: self._recordings.get(kind) for kind in (LIGHT, HEAVY)},
            **self._evidence.facts(),
            "own_ns": self._own_ns,
            "failures": dict(self._failures),
            "environment": self._environment,
        }

    def _unprofiled_ns(self) -> float | None:
        for timed in (self._before, self._after):
            mean = step_wall_ns(timed.step_ns, all_steps=self._queued)
            if mean is not None:
                return mean
        return None


_live: weakref.WeakSet[Recorder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for recorder in list(_live):
        recorder.close("exit")


def _forget() -> None:
    for recorder in list(_live):
        recorder._evidence.end_calls()
        recorder._evidence.give_up_operators()
        recorder._evidence.end_gradients()
        recorder._advance, recorder.state, recorder.ended = None, OFF, "forked"
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _n_compiled() -> int:
    """Return how many times something was compiled, or began to be, in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = getattr(utils, "counters", {}).get("frames", {})
    return sum(frames.values())


def _world_size() -> int:
    import torch.distributed as group

    try:
        return group.get_world_size() if group.is_available() and group.is_initialized() else 1
    except Exception:
        return 1


def _asked_rank(environment: dict[str, Any] | None) -> int:
    """Return this process' rank: of the process group, else of the launcher, else 0."""
    known = (environment or {}).get("distributed", {}).get("rank")
    if known is not None:
        return int(known)
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0
