"""The steps of the loop and the window that is judged.

A step's wall boundaries: the host begins it, and the device has finished what was enqueued before. While the queue
fills, host steps are shorter than device steps; this boundary is right for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, among, distinct
from torchtriage.core.trace.pacing import Pace, find_pace
from torchtriage.core.trace.recorders import PROGRAMS_LINE, STEPS_LINE, XLA
from torchtriage.core.trace.schema import Kind
from torchtriage.core.units import format_count, format_ns

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

COMPILES = (
    r"_compile\.compile_inner|entire_frame_compile|compile_fx_inner|CUDAGraphNode\.record"
    r"|^bytecode_tracing|^backend_compile|^inductor_compile|compile_file|^async_compile"
)
_FIRST_USE = r"Lazy Function Loading|Runtime Triggered Module Loading"
_LOADS = r"^(cu|cuda|hip)(Module|Library)Load"
_FLUSH = r"^CUDA profiling data flush"
"""What Nsight Systems does as it stops, and the calls that it makes meanwhile."""
_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_COUNTED = re.compile(r"(?i)^(.*(?:step|iter|iteration|batch))[ _#:=-]*\d+$", re.DOTALL)
_PROFILER_START = (
    r"torch[/\\](?:profiler[/\\]profiler\.py\(\d+\): (?:__enter__|start|start_trace)"
    r"|autograd[/\\]profiler\.py\(\d+\): _start_trace)$"
)
_DEVICE_SYNC = re.compile(r"^(cuda|hip|mtia|xpu)?\w*DeviceSynchronize$")
_GPU_CALL = r"^(cuda|hip|cu[A-Z])"
_WAITS = r"Synchronize|Memcpy|Memset|StreamWait|EventQuery"
_GIVES_BACK = r"^(cuda|hip|cu)\w*(Unload|Destroy|Unmap|Release|Reset)"
_FREES = r"^(cuda|hip|cu(?=[A-Z]))\w*Free"
"""What the first use of a device may be, too: ``cudaFree(0)``."""
FIRST_USE_NS = 10_000_000
"""A call that enqueues, allocates or asks takes 3-300 us; where it creates the context or loads modules it takes 10 ms
- 30 s (measured)."""
FIRST_USE_RATIO = 20.0
"""... and this many medians of the ordinary calls of its name."""
FIRST_USES = 8
"""More calls that slow are a habit: hipFree without a caching allocator, 83 of 10 ms (measured)."""
GIVEN_BACK_NS = 1_000_000
"""Less at the end of a process, or while the profiler starts, is not worth a word."""
COMPILE_SHARE = 0.05
"""A step that spends more than this compiling or loading kernels is not steady."""
HABIT_STEPS = 2
"""So many of the later half, and most of them: compiling is what this loop does."""
OUTLIER = 3.0
"""A step longer than this many medians is not steady (catalogue 1.5)."""
MIN_LAUNCHES, LOST_SHARE = 20, 0.05
"""Launches whose work is not in the file, out of at least so many."""
TAIL_SHARE = 0.01
"""Of the recording, after the last row of a device: its work at the end is missing if the last launches have none."""
LATE_SHARE = 0.75
"""Of the launches, after the last one that has work: where more have none, what is there shows little."""
CAPTURES = r"StreamBeginCapture|StreamEndCapture|GraphInstantiate"
"""What is launched meanwhile does not run."""
MIN_PROGRAMS = 3
"""Fewer runs of a program are no loop."""
WARM_UP_RATIO = 1.2
"""Times as long as those after them, with no more work for the device, steps before the last capture of a graph warm
up; at least half come after it."""
FIRST, COMPILING, WARM_UP, LONG, NO_WORK = (
    "as the first",
    "for compiling or loading kernels",
    "as the warm-up of a graph",
    "as over three medians long",
    "as empty",
)
"""Why a step is left out."""
NOT_SELECTED = "as not selected"


class Window(NamedTuple):
    """The judged part of the recording: ``[start_ns, end_ns)`` and why that part.

    ``host_start_ns`` : where the host's part begins, earlier where a device first worked off what is not recorded.
    """

    start_ns: int
    end_ns: int
    basis: str
    host_start_ns: int

    @property
    def wall_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns


class RowsEnd(NamedTuple):
    """Where the rows of the devices end while the host still launches.

    ``launch_ns`` : the first launch that has none. ``end_ns`` : the end of the last row.
    """

    launch_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps, possibly none; arrays have one element per step.

    ``start_ns``/``end_ns`` : wall boundaries (see the module). ``host_start_ns``/``host_end_ns`` : where the host was.
    ``left_out`` : why no number is taken from a step, empty for the steady ones. ``lane`` : the main thread, which
    holds the steps (without steps: the one with the most op time; -1 without ops). ``by_clock`` : device work
    belongs to the step it starts in, not to the one it was enqueued in. ``rows_end`` : what ends the window early.
    """

    trace: Trace
    window: Window
    names: tuple[str, ...]
    host_start_ns: Ints
    host_end_ns: Ints
    start_ns: Ints
    end_ns: Ints
    left_out: tuple[str, ...]
    lane: int
    by_clock: bool = False
    rows_end: RowsEnd | None = None

    @cached_property
    def steady(self) -> NDArray[np.bool_]:
        """bool[steps]: not first, not compiling, not an outlier."""
        return np.array([not why for why in self.left_out], bool)

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.start_ns)

    @property
    def per(self) -> str:
        """What amounts are given over, as it reads: ``per step`` or ``in the window``."""
        return "per step" if len(self) else "in the window"

    @property
    def n_steady(self) -> int:
        """Number of steps costs are averaged over; 1 (the window) without steps."""
        return int(self.steady.sum()) if len(self) else 1

    @property
    def wall_ns(self) -> int:
        """Mean wall time of the steady steps; the window's without steps. The denominator.

        The mean, because what is lost per step is a mean too: with a median, a skewed loop could lose more than its
        step.
        """
        if not len(self):
            return self.window.wall_ns
        return int((self.end_ns - self.start_ns)[self.steady].mean())

    @property
    def judged(self) -> intervals.Spans:
        """Wall time that costs are taken from: the steady steps, or the window."""
        if not len(self):
            return np.array([[self.window.start_ns, self.window.end_ns]], np.int64)
        return intervals.union(intervals.spans(self.start_ns, self.end_ns)[self.steady])

    @property
    def host_judged(self) -> intervals.Spans:
        """Where the host was in the judged steps: it runs ahead of the device."""
        if not len(self):
            return np.array([[self.window.host_start_ns, self.window.end_ns]], np.int64)
        return intervals.union(intervals.spans(self.host_start_ns, self.host_end_ns)[self.steady])

    @cached_property
    def pace(self) -> Pace | None:
        """The pace of its own that the loop keeps; None where steps are as long as their work."""
        return find_pace(self.trace)

    def of_host(self, rows: NDArray[np.integer]) -> Ints:
        """Return the step each host row starts in (-1: none); 0 for all without steps."""
        return self.of_time(self.trace.start_ns[rows])

    def of_work(self, rows: NDArray[np.integer]) -> Ints:
        """Return the step each device row was enqueued in (-1: none); without steps, 0 for those of the window."""
        by_clock = self.by_clock or not len(self)
        return self.of_time(self.trace.start_ns[rows] if by_clock else self.trace.links.launched_ns(rows))

    def of_time(self, times_ns: Ints) -> Ints:
        """Return the step that the host is in at each moment (-1: none); 0 for all without steps."""
        if not len(self):
            inside = (times_ns >= self.window.host_start_ns) & (times_ns < self.window.end_ns)
            return np.where(inside, 0, -1)
        return intervals.owner(intervals.spans(self.host_start_ns, self.host_end_ns), times_ns)

    def per_step(self, step_of: Ints) -> Ints:
        """Return how many entries of ``step_of`` fall in each steady step (one window: one)."""
        counts = np.bincount(step_of[step_of >= 0], minlength=max(len(self), 1))
        return counts[self.steady] if len(self) else counts[:1]

    def median_count(self, step_of: Ints) -> float:
        """Return the median count per steady step."""
        counts = self.per_step(step_of)
        return float(np.median(counts)) if len(counts) else 0.0

    def mean_count(self, step_of: Ints) -> float:
        """Return the mean count per steady step, rounded for display."""
        return round(int(self.in_steady(step_of).sum()) / self.n_steady, 2)

    def judged_ns(self, spans: intervals.Spans) -> int:
        """Return how much of some time, in any order, lies in the judged steps."""
        return intervals.length(intervals.intersect(intervals.union(spans), self.judged))

    def share_of_steps(self, step_of: Ints) -> float:
        """Return the share of steady steps with at least one entry."""
        counts = self.per_step(step_of)
        return float((counts > 0).mean()) if len(counts) else 0.0

    def in_steady(self, step_of: Ints) -> NDArray[np.bool_]:
        """Return bool[k]: entries that fall in a steady step (or in the window without steps)."""
        if not len(self):
            return step_of >= 0
        return np.append(self.steady, False)[step_of]


def find_steps(trace: Trace) -> Steps:
    """Find steps by an engine's ranges, ProfilerStep marks, a repeated program or annotation, or the optimizer."""
    for finder in (_by_engine, _by_profiler, _by_program, _by_annotation, _by_optimizer):
        found = finder(trace)
        if found is not None:
            return build_steps(trace, found, marked=finder in (_by_engine, _by_profiler))
    none = np.empty(0, np.int64)
    end = _rows_end(trace)
    window = _without_start(trace, _whole(trace, "no steps found: the recording is one window", end))
    return Steps(trace, window, (), none, none, none, none, (), _busiest_lane(trace), rows_end=end)


def first_use(trace: Trace) -> Ints:
    """Return the host rows that compile, load modules or create contexts, in row order.

    They happen once per process or shape, so a window that holds them measures no steady state.
    """
    marked = trace.matching(f"{COMPILES}|{_FIRST_USE}", Kind.ANNOTATION, Kind.OP, Kind.OVERHEAD)
    marked |= trace.matching(_LOADS, Kind.RUNTIME)
    marked[slow_calls(trace)] = True
    rows = np.flatnonzero(marked)
    # a call over a busy device waits for it
    busy = intervals.covered(trace.spans_of(rows), trace.time_of(np.flatnonzero(trace.works)))
    return rows[(trace.kind[rows] != Kind.RUNTIME) | (2 * busy < trace.dur_ns[rows])]


def slow_calls(trace: Trace) -> Ints:
    """Return the calls that are rarely as slow: they load code, or wait for a device while they do."""
    calls = trace.matching(_GPU_CALL, Kind.RUNTIME) & ~trace.matching(f"{_WAITS}|{_GIVES_BACK}", Kind.RUNTIME)
    slow = np.flatnonzero(calls & (trace.dur_ns >= FIRST_USE_NS))
    n_slow = np.bincount(trace.name[slow], minlength=len(trace.names))
    slow = slow[n_slow[trace.name[slow]] <= FIRST_USES]
    usual = np.flatnonzero(calls & (trace.dur_ns < FIRST_USE_NS))
    usual = usual[n_slow[trace.name[usual]] > 0]
    return slow[trace.dur_ns[slow] >= FIRST_USE_RATIO * _medians(trace, usual)[trace.name[slow]]]


def _medians(trace: Trace, rows: Ints) -> NDArray[np.float64]:
    """Return float64[names], ns: the median duration of these rows by name, 0 without any."""
    out = np.zeros(len(trace.names))
    rows = rows[np.lexsort((trace.dur_ns[rows], trace.name[rows]))]
    codes, first, count = np.unique(trace.name[rows], return_index=True, return_counts=True)
    middle = trace.dur_ns[rows[first + (count - 1) // 2]], trace.dur_ns[rows[first + count // 2]]
    out[codes] = np.mean(middle, axis=0)
    return out


class Found(NamedTuple):
    """Where the host begins and ends each step, and how that is known."""

    names: list[str]
    start_ns: Ints
    end_ns: Ints
    basis: str
    lane: int
    alike: tuple[str, ...] = ()
    """What each step does, where they differ by design: a step is an outlier among those alike."""
    by_clock: bool = False
    """Whether a device marked the steps: its work is a step's by when it ran; where the host was is not known."""


def _by_engine(trace: Trace) -> Found | None:
    """Take what an inference engine runs as one step, from its start to the next one's: it samples in between."""
    serving = trace.serving
    if serving is None or not len(serving.rows):
        return None
    rows = serving.rows
    phases = tuple(batch.phase for batch in serving.batches)
    start = trace.start_ns[rows]
    return Found(
        [f"{phase if phase != 'unknown' else 'step'} {index}" for index, phase in enumerate(phases)],
        start,
        np.append(start[1:], trace.end_ns[rows[-1]]),
        f"{format_count(len(rows), 'step')} of {serving.engine}",
        int(trace.lane[rows[0]]),
        phases,
    )


def _by_profiler(trace: Trace) -> Found | None:
    mask = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.where_name(
        lambda name: _PROFILER_STEP.match(name) is not None
    )
    rows = one_lane(trace, np.flatnonzero(mask))
    if not len(rows):
        return None
    names = [trace.name_of(row) for row in rows.tolist()]
    n_more = int(mask.sum()) - len(rows)
    more = f" of the main loop, {n_more} more on other threads or overlapping" if n_more else ""
    mark = "StepTraceAnnotation" if trace.report.recorder in XLA else "ProfilerStep#"
    return Found(
        names,
        trace.start_ns[rows],
        trace.end_ns[rows],
        f"{len(rows)} {mark} mark{'s' if len(rows) > 1 else ''}{more}",
        int(trace.lane[rows[0]]),
    )


def _by_program(trace: Trace) -> Found | None:
    """Take the steps that the profiler of an XLA device has found there, or each run of its longest program."""
    if not trace.devices:
        return None
    notes = np.flatnonzero(trace.kind == Kind.GPU_ANNOTATION)
    for line in (STEPS_LINE, PROGRAMS_LINE):
        lanes = [code for code, lane in enumerate(trace.lanes) if lane.kind == "stream" and lane.tid == line]
        lanes = [code for code in lanes if trace.lanes[code].device == trace.devices[0].index]
        rows = one_lane(trace, notes[among(trace.lane[notes].astype(np.int64), np.array(lanes))])
        name = "step"
        if line == PROGRAMS_LINE and len(rows):
            code = int(np.bincount(trace.name[rows], weights=trace.dur_ns[rows]).argmax())
            rows, name = rows[trace.name[rows] == code], trace.names[code]
        start, end = trace.start_ns[rows], trace.end_ns[rows]
        if len(rows) < MIN_PROGRAMS or 2 * (end - start).sum() < end[-1] - start[0]:
            continue
        labels = [trace.name_of(row) if line == STEPS_LINE else str(i) for i, row in enumerate(rows.tolist())]
        calls = trace.links.call[trace.devices[0].rows]
        lane = int(np.bincount(trace.lane[calls[calls >= 0]]).argmax()) if (calls >= 0).any() else -1
        return Found(
            [f"{name} {label}" for label in labels],
            start,
            np.append(start[1:], end[-1]),
            f"runs of {name!r} on the device" if line == PROGRAMS_LINE else "the device's own steps",
            lane,
            by_clock=True,
        )
    return None


def _by_annotation(trace: Trace) -> Found | None:
    """Take a top-level annotation that repeats, with or without a number, and covers most of the window."""
    rows = np.flatnonzero(trace.kind == Kind.ANNOTATION)
    # in an XPlane they are the runtime's own, such as waits for a buffer, and no part of a loop
    if len(rows) < 3 or trace.report.recorder in XLA:
        return None
    rows = rows[trace.tree.parent[rows] < 0]
    rows = rows[~trace.matching(COMPILES + r"|^nccl:|^gloo:|Optimizer\.|DataLoader|_data:")[rows]]
    window = _whole(trace, "")
    # a loop that numbers its steps means one thing by all of them
    codes, which = np.unique(trace.name[rows], return_inverse=True)
    number: dict[str, int] = {}
    stems = [_COUNTED.sub(r"\1", trace.names[code]) for code in codes.tolist()]
    stem_of = np.array([number.setdefault(stem, len(number)) for stem in stems], np.int64)[which]
    # all threads together first: few names get any further, and files can hold many names
    often = np.bincount(stem_of) >= 3
    often &= np.bincount(stem_of, weights=trace.dur_ns[rows]) >= 0.5 * window.wall_ns
    for code in np.flatnonzero(often).tolist():
        same = one_lane(trace, rows[stem_of == code])
        start, end = trace.start_ns[same], trace.end_ns[same]
        if len(same) < 3 or (end - start).sum() < 0.5 * window.wall_ns:
            continue
        labels = [trace.name_of(row) for row in same.tolist()]
        basis = f"annotation{'s like' * (len(set(labels)) > 1)} {labels[0]!r}"
        if len(set(labels)) < len(labels):
            labels = [f"{label} {i}" for i, label in enumerate(labels)]
        return Found(labels, start, end, basis, int(trace.lane[same[0]]))
    return None


def _by_optimizer(trace: Trace) -> Found | None:
    rows = np.flatnonzero(trace.matching(r"^Optimizer\.step#", Kind.ANNOTATION, Kind.OP))
    if len(rows) < 3:
        return None
    # several optimizers (a GAN) step together: one name's calls mark the loop
    code = np.bincount(trace.name[rows]).argmax()
    rows = one_lane(trace, rows[trace.name[rows] == code])
    if len(rows) < 3:
        return None
    end = trace.end_ns[rows]
    return Found(
        [f"step {i}" for i in range(len(rows) - 1)],
        end[:-1],
        end[1:],
        f"what lies between {len(rows)} calls of {trace.names[code]}",
        int(trace.lane[rows[0]]),
    )


def _busiest_lane(trace: Trace) -> int:
    is_op = trace.kind == Kind.OP
    rows = np.flatnonzero(is_op & ~trace.tree.under(is_op))  # a range of the user may hold them all
    if not len(rows):
        return -1
    return int(np.bincount(trace.lane[rows], weights=trace.dur_ns[rows]).argmax())


def one_lane(trace: Trace, rows: Ints) -> Ints:
    """Return the rows of the lane that holds most of them, in time order, without overlaps."""
    if not len(rows):
        return rows
    lane = np.bincount(trace.lane[rows]).argmax()
    rows = rows[trace.lane[rows] == lane]
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    keep = np.ones(len(rows), dtype=bool)
    keep[1:] = trace.start_ns[rows][1:] >= np.maximum.accumulate(trace.end_ns[rows])[:-1] - 1000
    return rows[keep]


def build_steps(trace: Trace, found: Found, *, marked: bool) -> Steps:
    """Return the steps with their wall boundaries; ``marked`` : the window is theirs, else the whole recording."""
    names, start, end, basis, lane, alike, by_clock = found
    work = np.flatnonzero(trace.works)
    launched = trace.links.launched_ns(work)
    backlog = enqueued_before(trace, work, int(end[0]))
    if not backlog.all():
        launched = np.where(backlog, np.minimum(launched, start[0] - 1), launched)
    order = np.argsort(launched, kind="stable")
    reach = np.maximum.accumulate(trace.end_ns[work][order]) if len(work) else work

    def device_done(times_ns: Ints) -> Ints:
        index = np.searchsorted(launched[order], times_ns, side="left") - 1
        if not len(work):
            return times_ns
        return np.where(index >= 0, reach[np.maximum(index, 0)], times_ns)

    end = np.maximum(end, start)
    edges = np.append(start, end[-1])
    edges = np.maximum.accumulate(edges if by_clock else np.maximum(edges, device_done(edges)))
    host_ns = int(edges[0])
    begin_ns, why = device_begin(trace, host_ns, int(edges[-1]))
    edges = np.maximum(edges, begin_ns)
    wall_start, wall_end = edges[:-1], edges[1:]
    window = (
        Window(begin_ns, int(edges[-1]), f"{why}{basis}", host_ns)
        if marked
        else _whole(trace, f"the whole recording; steps by {basis}")
    )
    return Steps(
        trace,
        window,
        tuple(names),
        start,
        end,
        wall_start,
        wall_end,
        _left_out(trace, start, end, wall_end - wall_start, alike),
        lane,
        by_clock,
    )


def enqueued_before(trace: Trace, work: Ints, until_ns: int) -> NDArray[np.bool_]:
    """Return bool[k]: work without a launch that is the backlog from before the recording, never the first step's.

    A stream works in order: what runs ahead of work that the first step enqueued is backlog, however late it runs, and
    what runs behind work with a launch is none. Else it is what begins before the host ends the first step, at
    ``until_ns``.
    """
    lane, linked, start = trace.lane[work], ~trace.links.orphans[work], trace.start_ns[work]
    never = np.iinfo(np.int64).max
    first = np.full(len(trace.lanes), never)
    np.minimum.at(first, lane[linked], start[linked])
    first[first == never] = start[linked].min(initial=never)
    first = np.minimum(first, until_ns)
    early = linked & (trace.links.launched_ns(work) < until_ns)
    own = np.full(len(trace.lanes), never)
    np.minimum.at(own, lane[early], start[early])
    return ~linked & (start < np.where(own < never, own, first)[lane])


def _left_out(trace: Trace, start: Ints, end: Ints, wall: Ints, alike: tuple[str, ...]) -> tuple[str, ...]:
    why = np.where(wall > 0, "", NO_WORK).astype(object)
    ops = np.sort(trace.start_ns[trace.kind == Kind.OP])
    filled = np.searchsorted(ops, end) > np.searchsorted(ops, start)
    # prof.step() after the last iteration opens a step in which nothing happens any more
    if filled[:-1].all():
        why[~filled] = NO_WORK
    if len(wall) >= 3:
        why[0] = FIRST
    rows = trace.first_use
    if len(rows):
        cover = trace.time_of(rows)
        busy = intervals.covered(intervals.spans(start, end), cover)
        late = busy > COMPILE_SHARE * np.maximum(end - start, 1)
        # a loop that compiles to the end (another shape in every step) has no other steps
        last = late[len(late) // 2 :]
        if not (last.sum() >= HABIT_STEPS and 2 * last.sum() > len(last)):
            why[late & (why == "")] = COMPILING
    captures = trace.start_ns[trace.matching(CAPTURES, Kind.RUNTIME)]
    before = start <= captures.max(initial=-1)
    work = np.zeros(len(wall), np.int64)
    if before.any():
        work = intervals.covered(intervals.spans(start, end), trace.time_of(np.flatnonzero(trace.works)))
    kinds = np.array(alike or [""] * len(wall))
    for kind in distinct(kinds[why == ""]).tolist():
        mine = (kinds == kind) & (why == "")
        warm, after = mine & before, mine & ~before
        if not warm.any() or 2 * after.sum() < (kinds == kind).sum():
            continue
        slower, more = (np.median(of[warm]) > WARM_UP_RATIO * np.median(of[after]) for of in (wall, work))
        if slower and not more:
            why[warm] = WARM_UP
    for kind in distinct(kinds[why == ""]).tolist():
        mine = (kinds == kind) & (why == "")
        why[mine & (wall > OUTLIER * np.median(wall[mine]))] = LONG
    return tuple(why.tolist()) if (why == "").any() else ("",) * len(wall)


def _whole(trace: Trace, basis: str, end: RowsEnd | None = None) -> Window:
    starts = ~trace.is_kind(Kind.RECORDING, Kind.OVERHEAD, Kind.INSTANT, Kind.GPU_ANNOTATION)
    ends = _ends(trace)
    if not ends.any():
        ends = starts
    if not starts.any():
        starts = ends = np.ones(len(trace), dtype=bool)
    if not len(trace):
        return Window(0, 0, basis, 0)
    first = int(trace.start_ns[starts].min())
    last = max(int(trace.end_ns[ends].max()), first)
    if end is not None:
        last = max(min(last, end.end_ns), first)
    ready_ns = min(_profiler_ready(trace, starts), last)
    begin_ns, why = device_begin(trace, ready_ns, last)
    if ready_ns - first > GIVEN_BACK_NS:
        why = f"after {format_ns(ready_ns - first)} in which the profiler started; {why}"
    behind = int(trace.dur_ns[given_back(trace)].sum())
    if end is None and behind > GIVEN_BACK_NS:
        basis += f"; after it the process spends {format_ns(behind)} freeing what it held"
    return Window(begin_ns, last, f"{why}{basis}", ready_ns)


def _ends(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: rows that the program is not over before."""
    return (trace.hosts | trace.works) & ~profiler_stop(trace) & ~given_back(trace)


def _rows_end(trace: Trace) -> RowsEnd | None:
    """Return where the rows of the devices end before the launches do; None where they do not.

    The profiler's buffer was full, or it stopped before the device was done. Up to there all is known, unless rows are
    missing here and there before, or those of graph replays: a profiler that records none has none at the end, too.
    """
    links, work = trace.links, np.flatnonzero(trace.works)
    if not len(work) or not links.lost.any() or trace.report.tier == "salvaged" or trace.matching(CAPTURES).any():
        return None
    late = links.lost & (trace.start_ns > links.launched_ns(work).max())
    n, n_late = int(links.launch_calls.sum()), int(late.sum())
    n_before = int(links.lost.sum()) - n_late
    if not n_late or n_late > LATE_SHARE * n or (n_before > 1 and n_before >= LOST_SHARE * (n - n_late)):
        return None
    if trace.matching("GraphLaunch", Kind.RUNTIME)[late].any():
        return None
    ends = _ends(trace)
    end_ns, last_ns = int(trace.end_ns[work].max()), int(trace.end_ns[ends].max())
    few = n < MIN_LAUNCHES or n_late < LOST_SHARE * n
    if few and last_ns - end_ns <= TAIL_SHARE * (last_ns - int(trace.start_ns[ends].min())):
        return None
    return RowsEnd(int(trace.start_ns[late].min()), end_ns)


def _without_start(trace: Trace, window: Window) -> Window:
    """Return a window from the first work of a device on.

    What the host did before is start-up, as far as anybody can tell, unless the file was cut at an annotation.
    """
    starts = trace.start_ns[~trace.is_kind(Kind.RECORDING, Kind.OVERHEAD, Kind.INSTANT, Kind.GPU_ANNOTATION)]
    if not trace.works.any() or window.start_ns != window.host_start_ns:
        return window
    work_ns = min(int(trace.start_ns[trace.works].min()), window.end_ns)
    cut = (trace.kind == Kind.ANNOTATION) & (trace.start_ns <= starts.min()) & (trace.end_ns > work_ns)
    before_ns = work_ns - window.start_ns
    # a long wait for the device says that work is missing from the file
    waits = trace.matching(_DEVICE_SYNC, Kind.RUNTIME) & (trace.dur_ns > GIVEN_BACK_NS) & (trace.start_ns < work_ns)
    if before_ns <= GIVEN_BACK_NS or cut.any() or waits.any():
        return window
    basis = f"after {format_ns(before_ns)} before the device's first work; {window.basis}"
    return Window(work_ns, window.end_ns, basis, work_ns)


def _profiler_ready(trace: Trace, starts: NDArray[np.bool_]) -> int:
    """Return when the first of these rows begins, or the profiler's own start ends where stacks show it ahead of all.

    It imports modules and asks drivers; the frames around it begin no earlier with the program's work.
    """
    first = int(trace.start_ns[starts].min())
    frames = np.flatnonzero(trace.matching(_PROFILER_START, Kind.PYTHON))
    works = starts & ~trace.is_kind(Kind.PYTHON)
    if not len(frames) or not works.any():
        return first
    work_ns = int(trace.start_ns[works].min())
    began = frames[trace.start_ns[frames] < work_ns]
    return max(first, min(int(trace.end_ns[began].max(initial=first)), work_ns))


def given_back(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: calls outside every operator with which a process that ends gives back what it had."""
    out = np.zeros(len(trace), dtype=bool)
    if trace.works.any():
        done_ns = trace.end_ns[trace.works].max()
        calls = trace.matching(f"{_GIVES_BACK}|{_FREES}", Kind.RUNTIME) & (trace.start_ns >= done_ns)
        rows = np.flatnonzero(calls)
        out[rows[trace.tree.nearest(rows, trace.kind == Kind.OP) < 0]] = True
    return out


def device_begin(trace: Trace, start_ns: int, end_ns: int) -> tuple[int, str]:
    """Return from when on the recording holds all work of the devices, and why it is not from the start."""
    backlogs = [device.backlog for device in trace.devices]
    begin_ns = max((int(trace.start_ns[backlog.row]) for backlog in backlogs if backlog), default=start_ns)
    if not start_ns < begin_ns < end_ns:
        return start_ns, ""
    return begin_ns, f"after {format_ns(begin_ns - start_ns)} of work that was enqueued before the recording; "


def profiler_stop(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: the profiler's own calls as it stops: the last device sync, outside every op, and its flush's."""
    out = np.zeros(len(trace), dtype=bool)
    rows = np.flatnonzero(trace.matching(_DEVICE_SYNC, Kind.RUNTIME))
    if len(rows):
        last = rows[np.argmax(trace.start_ns[rows])]
        inside = trace.tree.nearest(np.array([last]), trace.kind == Kind.OP)[0] >= 0
        out[last] = not inside
    for flush in np.flatnonzero(trace.matching(_FLUSH, Kind.OVERHEAD)).tolist():
        during = (trace.start_ns >= trace.start_ns[flush]) & (trace.end_ns <= trace.end_ns[flush])
        out |= during & (trace.lane == trace.lane[flush]) & (trace.kind == Kind.RUNTIME)
    return out
