"""A leak watch for loops that run for days: what grows, what holds it, which line adds to it.

``step()`` counts, and every few steps reads the resident set. At a **look** (every 20th step at first, then as often
as the budget allows) the user's names are walked for things that grew since the last look (``object_growth.py``),
one step's new tensors are noted by line (``allocation_sites.py``), children and the device's allocator are asked for
their size. What grew at every look for ``patience_steps`` is a leak; then, once, single steps are traced line by line
to find the one that adds to it.

The loop is never hurt: no exception leaves, everything stored is bounded, and the time spent stays under ``credit_s``
plus ``SHARE`` of the loop's time, once for looks after the first five and once for counts of Python's objects, which
grow rare where they are slow. Forked children watch themselves (``children.py``).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, thread_time
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from torchtriage.core import process
from torchtriage.core.stats.trend import block_minima
from torchtriage.memory.leaks.allocation_sites import Sites
from torchtriage.memory.leaks.children import watch_children
from torchtriage.memory.leaks.growth_test import FLOOR_BYTES, MIN_SLOPE, judge, judge_device
from torchtriage.memory.leaks.leak_candidates import FLOOR, GrowthTracker, Kind, LeakCandidate, SizeTrack, weigh
from torchtriage.memory.leaks.leak_report import REPORT, SCHEMA, SNAPSHOT, Leak, MemorySeries, WatchReport
from torchtriage.memory.leaks.line_watch import LineWatch
from torchtriage.memory.leaks.object_growth import WALK_S, CodeLine, Key, note_generators, walk
from torchtriage.memory.leaks.process_growth import child_processes, compiled_graphs
from torchtriage.memory.leaks.samples import Samples

ALARM_STEPS = 5
"""After an alarm, of which a snapshot is left."""

PATIENCE_STEPS = 150
"""GrowthTracker at every look for this long is a leak: a cache of fewer entries fills in less."""
SHARE = 0.0025
"""Of the loop's own CPU time, after the credit; with it, half a percent after 48 seconds."""
CREDIT_S = 0.12
"""For the first looks, and once more to name a holder."""
LOOK_STEPS, MAX_LOOK_STEPS = 20, 500
RSS_STEPS, BLOCKS_STEPS = 20, 40
NATIVE_PATIENCE_STEPS = 1000
"""For a resident set that grows while Python has as many objects as before, or as its logs account for: no cache of
Python's fills. Of 32 recorded loops, those that came to rest later than this had filled one."""
NATIVE_BYTES = 1 << 20
"""That it must have grown by: the heap of a healthy loop creeps by a third of it in as many steps."""
LEVEL = 0.25
"""Objects per step: so many more are none. A cache that fills has one at least."""
LOGS = 2.0
"""Times what logs seem to take: their items vary, and the heap has holes."""
MIN_LOOKS = 5
TRACE_STEPS = 4
BLOCKS = 12
"""Of the objects' numbers, whose lowest is taken: garbage comes and goes."""
MAX_POINTS = 256
"""Samples of a series in a report: enough for a chart."""
MAX_LEAKS = 8


class LeakWarning(UserWarning):
    """Memory leaks; the text names the holder."""


@dataclass
class _Trace:
    """Suspects, and the steps up to ``until`` that are traced line by line for them."""

    suspects: list[LeakCandidate]
    lines: LineWatch | None
    until: int


class Watch:
    """Watches one loop; see :func:`watch`."""

    def __init__(
        self,
        *,
        out_dir: str | Path | None = None,
        on_alarm: Callable[[Leak], object] | None = None,
        patience_steps: int = PATIENCE_STEPS,
        credit_s: float = CREDIT_S,
    ) -> None:
        self._out = Path(out_dir) if out_dir is not None else None
        self._on_alarm = on_alarm
        self._patience = patience_steps
        self._credit_s = credit_s
        self._step = 0
        self._due = 1
        self._pid = os.getpid()
        self._thread = 0
        self._began_s = perf_counter()
        self._began_cpu_s = 0.0
        self._own_s = 0.0
        self._counted_s = 0.0
        self._next_look = LOOK_STEPS // 2
        self._n_looks = 0
        self._n_errors = 0
        self._notes: dict[str, None] = {}
        self._rss = Samples(2, RSS_STEPS)
        self._device = Samples(3, RSS_STEPS)
        self._blocks = Samples(2, BLOCKS_STEPS)
        self._growth = GrowthTracker()
        self._sites = Sites()
        self._trace: _Trace | None = None
        self._leaks: list[Leak] = []
        self._reported: set[Key] = set()
        self._light: dict[Key, tuple[int, float, float]] = {}
        """What grows and is no leak: the step it was weighed at, bytes and objects per step."""
        self._history_until: int | None = None
        self._closed = False
        self.looking = True
        """Whether looks are taken; without, steps are counted and memory is read."""
        with suppress(Exception):
            self._sites.warm()
            np.median(0.0)  # numpy imports more at its first median

    def __enter__(self) -> Watch:
        """Begin; call :meth:`step` once per step."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the report."""
        self.close()

    def step(self) -> None:
        """Note the end of a step. Costs a comparison, except in the steps that are analysed."""
        self._step += 1
        if self._step >= self._due:
            self._guarded(sys._getframe(1))

    def close(self) -> None:
        """Stop watching and write the report; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._due = sys.maxsize
        with suppress(Exception):
            self._sites.stop()
            self._settle()
        with suppress(Exception):
            if self._history_until is not None:
                self._dump_history()
        with suppress(Exception):
            self.save()

    def report(self) -> WatchReport:
        """Return what was observed so far."""
        steps, rss = self._rss.columns
        verdict = judge(steps, rss)
        leaks = tuple(self._leaks)
        enough = self._step >= self._patience + 2 * LOOK_STEPS and self._n_looks >= MIN_LOOKS
        elapsed = max(perf_counter() - self._began_s, 1e-9)
        return WatchReport(
            schema=SCHEMA,
            answer="leak" if leaks else "no leak" if enough else "too early",
            n_steps=self._step,
            n_looks=self._n_looks,
            leaks=leaks,
            rss_first_bytes=rss[0] if rss else 0,
            rss_last_bytes=rss[-1] if rss else 0,
            rss_why=verdict.why,
            own_s=round(self._own_s, 6),
            own_share=round(self._own_s / elapsed, 6),
            notes=tuple(self._notes),
            rss_peak_bytes=max(process.peak_rss_bytes(), rss[-1] if rss else 0),
            **_device_peaks(),
            series=(
                *_thinned(("resident memory of the process",), self._rss),
                *_thinned(("allocated on the CUDA device", "reserved on the CUDA device"), self._device),
            ),
        )

    # -- one step that is looked at ----------------------------------------------------------------

    def _guarded(self, frame: FrameType) -> None:
        if self._closed or os.getpid() != self._pid:
            self._due = sys.maxsize  # a forked child; it has a watch of its own
            return
        me = threading.get_ident()
        if self._thread not in (0, me):
            return  # another thread's step
        if not self._thread:
            self._thread, self._began_cpu_s = me, thread_time()
            note_generators()
        # own time of this thread: waiting for a busy machine is not the watch's doing
        began = thread_time()
        try:
            self._on_step(frame, began)
        except Exception as error:
            self._n_errors += 1
            self._notes[f"a look failed: {type(error).__name__}: {error}"[:200]] = None
            if self._n_errors >= 3:
                self._notes["the watch switched itself off after three failures"] = None
                self._due = sys.maxsize
            with suppress(Exception):
                self._sites.stop()
        self._own_s += thread_time() - began

    def _on_step(self, frame: FrameType, now: float) -> None:
        if self._sites.active:
            self._own_s += self._sites.stop()
        trace = self._trace
        if trace is not None and (self._step >= trace.until or trace.lines is None or all(trace.lines.grew)):
            self._settle()
        self._sample()
        if self.looking and self._step >= self._next_look and self._trace is None:
            # those that a verdict needs are taken on a slow machine, too
            looked_s, granted_s = self._own_s - self._counted_s, self._credit_s + SHARE * (now - self._began_cpu_s)
            if self._n_looks < MIN_LOOKS or looked_s <= granted_s:
                self._look(frame)
            self._next_look = self._step + min(max(LOOK_STEPS, self._step // 10), MAX_LOOK_STEPS, self._patience)
        if self._history_until is not None and self._step >= self._history_until:
            self._dump_history()
        if self._sites.active or self._trace is not None:
            self._due = self._step + 1
        else:
            next_look = self._next_look if self.looking else sys.maxsize
            every = self._rss.every_steps
            self._due = min(next_look, (self._step // every + 1) * every)

    def _sample(self) -> None:
        if not self._rss.due(self._step):
            return
        self._rss.add(self._step, process.rss_bytes())
        if self._blocks.due(self._step):
            self._count_objects()
        cuda = _cuda()
        if cuda is not None:
            self._device.add(self._step, cuda.memory_allocated(), cuda.memory_reserved())

    def _count_objects(self) -> None:
        """Note how many objects Python has; less and less often where that is slow.

        It reads every page of them: 1 ms in a warm cache, a hundred where the system takes back pages that rest.
        """
        began = thread_time()
        self._blocks.add(self._step, sys.getallocatedblocks())
        self._counted_s += thread_time() - began
        if self._counted_s > CREDIT_S + SHARE * (began - self._began_cpu_s):
            self._blocks.every_steps *= 2

    def _look(self, frame: FrameType) -> None:
        self._n_looks += 1
        note_generators()
        began = thread_time()
        now = walk(frame, WALK_S)
        if thread_time() - began > WALK_S:
            self._notes["not all names could be walked in time"] = None
        for held in (*compiled_graphs(), *child_processes()):
            now[held.key] = held
        self._growth.follow(now, self._step)
        self._light = {key: growth for key, growth in self._light.items() if key in self._growth.growing}
        self._sites.look()
        suspects = [
            track
            for track in self._growth.steady(self._step, self._patience)
            if track.held.key not in self._reported
            # what was light may have become heavy since
            and self._step - self._light.get(track.held.key, (-self._patience,))[0] >= self._patience
        ]
        if suspects:
            self._suspect(suspects, frame)
        if self._trace is None and not self._leaks and self._n_looks >= MIN_LOOKS:
            self._unnamed()
        if self._trace is None:
            # torch may have been imported since; imports are on nobody's budget
            began = thread_time()
            self._sites.warm()
            self._credit_s += thread_time() - began
            if unsafe := self._sites.start(self._step):
                self._notes[f"tensors were not followed to the lines that make them: {unsafe}"] = None

    def _suspect(self, suspects: list[SizeTrack], frame: FrameType) -> None:
        chosen: list[LeakCandidate] = []
        for track in suspects[:MAX_LEAKS]:
            suspect = weigh(track, frame)
            if suspect is not None and suspect.worth:
                self._reported.add(track.held.key)
                chosen.append(suspect)
            elif suspect is not None:
                self._light[track.held.key] = self._step, suspect.bytes_per_step, suspect.n_objects_per_step
        # a graph that grows behind a growing list is the list's
        if any(leak.kind in ("growing list", "growing cache") and leak.graph for leak in chosen):
            chosen = [leak for leak in chosen if leak.track.held.unit != "nodes"]
        if not chosen:
            return
        try:
            lines = LineWatch([leak.measure for leak in chosen], frame)
        except RuntimeError as error:
            self._notes[f"the adding line is not known: {error}"] = None
            lines = None
        self._trace = _Trace(chosen, lines, self._step + TRACE_STEPS)
        if lines is None:
            self._settle()

    def _settle(self) -> None:
        trace, self._trace = self._trace, None
        if trace is None:
            return
        grew: list[dict[CodeLine, int]] = [{} for _ in trace.suspects]
        if trace.lines is not None:
            grew = trace.lines.grew
            trace.lines.stop()
            self._own_s += trace.lines.own_s
        growing = self._sites.growing(self._step - 2 * self._patience)
        for suspect, lines in zip(trace.suspects, grew, strict=True):
            track, size = suspect.track, suspect.bytes_per_step
            if suspect.graph:
                size = max(size, sum(growing.values()))
            held = track.held
            self._report(
                self._leak(
                    suspect.kind,
                    size,
                    track.points[0][0],
                    _most(lines) or suspect.place,
                    _most(growing),
                    what=suspect.what,
                    holder=held.name,
                    root=held.root,
                    unit=held.unit,
                    per_step=round(track.rate, 4),
                )
            )

    def _unnamed(self) -> None:
        """Report growth that no name was found for: tensors by line, the device, the process."""
        if self._step < self._patience + LOOK_STEPS:
            return
        growing = self._sites.growing(self._step - self._patience, MIN_LOOKS)
        first = self._sites.sampled[0][0] if self._sites.sampled else self._step
        logged = LOGS * sum(size for _, size, _ in self._light.values())
        total = sum(growing.values())
        if total - logged >= FLOOR["tensors"] and self._step - first >= self._patience and not self._was_garbage():
            made = _most(growing)
            self._report(self._leak("tensors kept", total, first, made, made))
            return
        if len(self._device):
            device = judge_device(*self._device.columns)
            if device.leak:
                self._report(self._leak("device memory", device.slope, device.onset_step or 0))
                return
        rss = self._rss.columns[1]
        grown = min(rss[-(len(rss) // 8) or -1 :]) - min(rss)
        if self._step < NATIVE_PATIENCE_STEPS or grown < FLOOR_BYTES:
            return  # no need to ask further
        native = self._new_objects() - LOGS * sum(n for _, _, n in self._light.values()) < LEVEL
        verdict = judge(*self._rss.columns)
        if native and not verdict.leak:
            verdict = judge(*self._rss.columns, patience_steps=NATIVE_PATIENCE_STEPS, floor_bytes=NATIVE_BYTES)
        if verdict.leak and verdict.slope_low - logged >= MIN_SLOPE:
            self._report(self._leak("resident memory", verdict.slope, verdict.onset_step or 0))

    def _new_objects(self) -> float:
        """Return by how many objects per step Python has more and more, in the latest steps; a jump does not count."""
        at, count = (np.asarray(column, float) for column in self._blocks.columns)
        # in long loops the counts are further apart
        recent = at >= self._step - max(NATIVE_PATIENCE_STEPS, 2 * BLOCKS * self._blocks.every_steps)
        middle, lowest = block_minima(at[recent], count[recent], BLOCKS)
        return float(np.median(np.diff(lowest) / np.diff(middle))) if len(lowest) >= BLOCKS - 1 else np.inf

    def _was_garbage(self) -> bool:
        """Return whether what seems kept only waits for the garbage collector, which then runs.

        Tensors in cycles live until the next collection of their generation; that may be long.
        """
        if not gc.isenabled():
            return False  # nobody will collect them
        gc.collect()
        self._sites.look()
        return sum(self._sites.growing(self._step - self._patience, MIN_LOOKS).values()) < FLOOR["tensors"]

    def _leak(
        self,
        kind: Kind,
        bytes_per_step: float,
        since_step: int,
        adding: CodeLine | None = None,
        made: CodeLine | None = None,
        **holder: Any,
    ) -> Leak:
        size = round(bytes_per_step, 1)
        where = asdict(adding) if adding else {"file": None, "line": None, "function": None}
        made_by = {f"made_{name}": value for name, value in asdict(made).items()} if made else {}
        return Leak(
            kind=kind,
            bytes_per_step=size,
            since_step=since_step,
            found_step=self._step,
            made_shape=self._sites.shapes.get(made, "") if made else "",
            **{"holder": "", "root": "", "unit": "bytes", "per_step": size, **where, **made_by, **holder},
        )

    def _report(self, leak: Leak) -> None:
        if len(self._leaks) >= MAX_LEAKS:
            return
        self._leaks.append(leak)
        self.record_history(ALARM_STEPS)
        with suppress(Exception):
            self.save()
        try:
            if self._on_alarm is not None:
                self._on_alarm(leak)
            else:
                with warnings.catch_warnings():
                    # a warning made an error must not stop the loop
                    warnings.simplefilter("always", LeakWarning)
                    file, line = leak.file or __file__, leak.line or 1
                    warnings.warn_explicit(leak.sentence, LeakWarning, file, line)
        except Exception as error:
            self._notes[f"on_alarm failed: {type(error).__name__}"] = None

    def record_history(self, n_steps: int) -> None:
        """Leave a snapshot of the next steps of CUDA's allocator beside the report.

        Does nothing without an ``out_dir``, before CUDA is in use, or where the program records its own history.
        """
        cuda = _cuda()
        if self._out is None or cuda is None:
            return
        with suppress(Exception):
            recording = getattr(getattr(sys.modules["torch"], "_C", None), "_cuda_isHistoryEnabled", None)
            if self._history_until is None and recording is not None and recording():
                self._notes["no snapshot: the program records the allocator's history itself"] = None
                return
            cuda.memory._record_memory_history(max_entries=100_000)
            self._history_until = self._step + n_steps

    def _dump_history(self) -> None:
        self._history_until = None
        torch: Any = sys.modules.get("torch")
        if self._out is not None and torch is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(self._out / SNAPSHOT))
            torch.cuda.memory._record_memory_history(enabled=None)

    def save(self) -> None:
        """Write the report as it is now, if there is an ``out_dir``."""
        if self._out is None:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        written = self._out / f".{REPORT}.{os.getpid()}"
        written.write_text(json.dumps(asdict(self.report())), encoding="utf-8")
        written.replace(self._out / REPORT)


def _thinned(names: Sequence[str], samples: Samples) -> Iterator[MemorySeries]:
    if len(samples):
        apart = -(-len(samples) // MAX_POINTS)
        steps, *columns = (tuple(column[::-1][::apart][::-1]) for column in samples.columns)
        for name, column in zip(names, columns, strict=True):
            yield MemorySeries(name, steps, column)


def _cuda() -> Any:
    """Return ``torch.cuda`` where the program uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _device_peaks() -> dict[str, Any]:
    with suppress(Exception):
        if (cuda := _cuda()) is not None:
            return {
                "allocated_peak_bytes": int(cuda.max_memory_allocated()),
                "reserved_peak_bytes": int(cuda.max_memory_reserved()),
            }
    return {}


def _most(sizes: Mapping[CodeLine, float]) -> CodeLine | None:
    return max(sizes, key=sizes.__getitem__, default=None)


def watch(
    *,
    out_dir: str | Path | None = None,
    on_alarm: Callable[[Leak], object] | None = None,
    patience_steps: int = PATIENCE_STEPS,
) -> Watch:
    """Watch a loop for leaks: use it as a context, and call its ``step()`` once per step.

    >>> with tt.memory.watch() as watch:
    ...     for batch in loader:
    ...         train(batch)
    ...         watch.step()
    >>> print(watch.report())

    Parameters
    ----------
    out_dir : path, optional
        Where ``memory_watch.json`` is written, at an alarm and at the end, and on CUDA a snapshot
        of the steps after an alarm.
    on_alarm : callable, optional
        Gets each :class:`Leak` once; without it a :class:`LeakWarning` is issued.
    patience_steps : int
        How long something must grow to be called a leak. Raise it where caches fill slowly.
    """
    made = Watch(out_dir=out_dir, on_alarm=on_alarm, patience_steps=patience_steps)
    watch_children()
    return made


def start(out_dir: str | Path) -> Watch:
    """Watch this process, one step per ``optimizer.step()``, and leave a report at its end.

    For recorders that cannot change the loop. Needs torch; returns the watch, whose ``step()`` may
    be called too where there is no optimizer.
    """
    import atexit

    from torch.optim.optimizer import register_optimizer_step_post_hook

    made = watch(out_dir=out_dir)
    first: list[int] = []

    def on_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        # several optimizers in one step count once
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            made.step()

    register_optimizer_step_post_hook(on_step)
    atexit.register(made.close)
    return made
