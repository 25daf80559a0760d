"""The recording contains first use, compilation, or a clock that was read too early.

Looks like: context creation, module loading, lazy kernel loading or compilation in at least 5 % of the window; a
    first step that lasts five times the others; without operators, a device that stands idle for a quarter of the
    window before kernels that run for the first time, with a launch of a millisecond or more among theirs; or two
    readings of a Python clock in one user function with launches and no wait between them, after which the device
    still works for more than 10 % of the interval.
Slow because: it is not slow; it is not the program itself: these things happen once, and launches return before their
    work is done.
Cost: none is claimed. Steps that contain them are left out of all costs; where there are no steps, costs are shares of
    a window that contains them, and are not reliable: from a quarter of it on, this is the first finding. Calls that
    most steps repeat are part of the program.
Fix: warm up before recording; wait for the device around clocks.
Leave it when: the start-up or the compilation itself is what you want to look at.
Source: PyTorch documentation, torch.profiler.schedule and torch.utils.benchmark.Timer; measured: 43 of 43.4 s in an
    AlexNet recording.
"""

from dataclasses import replace

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.device import HOST_LATE
from torchtriage.core.trace.frames import frame_label, is_user_frame
from torchtriage.core.trace.steps import HABIT_STEPS
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "MSR034", "The recording measures start-up, not the program", order=100, needs="")
FIX = Fix(
    text="Warm up before recording: let the schedule skip the first steps, compilation included.",
    code="""schedule = torch.profiler.schedule(wait=1, warmup=3, active=5, repeat=1)
with torch.profiler.profile(schedule=schedule) as prof:
    ...  # prof.step() after each iteration""",
    link="https://docs.pytorch.org/docs/stable/profiler.html#torch.profiler.schedule",
)

CLOCK_FIX = Fix(
    text="Wait for the device before reading the clock, or use a timer that does.",
    code="""torch.cuda.synchronize()  # before each reading of the clock
elapsed_s = time.perf_counter() - start
# or: torch.utils.benchmark.Timer("train_step(batch)", globals=globals()).timeit(10)""",
    link="https://docs.pytorch.org/docs/stable/benchmark_utils.html",
)

MIN_SHARE = 0.05  # share of the window; the same line keeps a step out of the steady ones
FIRST_STEP_RATIO = 5.0  # of a first step to the median of the others (catalogue 34)
CLOCK_ERROR = 0.10
VOID_SHARE = 0.25
"""Share of the judged time in first use or compilation from which the rest says little about the program."""
LOAD_NS = 1_000_000
"""A launch on an idle device takes 3-300 us, unless it loads the kernel; shorter pauses are any host's."""
_CLOCK = r"^<built-in function (perf_counter|time|monotonic|process_time)(_ns)?>$"


def find(trace: Trace) -> Claims:
    """Yield at most one claim each for first use, a slow first step or first runs, and early clocks."""
    yield from filter(None, (_first_use(trace) or _first_step(trace) or _first_runs(trace), _early_clock(trace)))


def _first_use(trace: Trace) -> Claim | None:
    rows = trace.first_use
    window = trace.window
    spans = trace.time_of(rows)
    inside = intervals.clip(spans, window.start_ns, window.end_ns)
    lost_ns = intervals.length(inside)
    if not lost_ns or lost_ns < MIN_SHARE * window.wall_ns:
        return None
    by_name = np.bincount(trace.name[rows], weights=trace.dur_ns[rows])
    best = np.argsort(-by_name, kind="stable")[:5]
    steps = trace.steps
    calls = trace.kind[rows] == Kind.RUNTIME
    # a call that most of several steps make again is the program's
    habit = steps.n_steady > HABIT_STEPS and steps.share_of_steps(steps.of_host(rows[calls])) > 1 / 2
    left = steps.judged_ns(trace.time_of(rows[~calls]) if habit else inside)
    claim = _claim(
        trace,
        f"first use or compilation takes {format_ns(lost_ns)} of the {format_ns(window.wall_ns)} window"
        f" ({format_share(lost_ns / window.wall_ns)})",
        rows,
        {
            "first_use_ms": ms(lost_ns),
            "share_of_window": round(lost_ns / window.wall_ns, 6),
            "first_use_in_judged_time_ms": ms(left),
            "n_first_uses": len(rows),
            "top_first_uses_ms": {
                frame_label(trace.names[code]): ms(float(by_name[code])) for code in best.tolist() if by_name[code]
            },
        },
    )
    return replace(claim, voids=left >= VOID_SHARE * intervals.length(steps.judged))


def _first_step(trace: Trace) -> Claim | None:
    steps = trace.steps
    if len(steps) < 3:
        return None
    wall = steps.end_ns - steps.start_ns
    usual = float(np.median(wall[1:]))
    if wall[0] <= FIRST_STEP_RATIO * usual:
        return None
    inside = (trace.start_ns >= steps.host_start_ns[0]) & (trace.end_ns <= steps.host_end_ns[0])
    rows = np.flatnonzero(inside & trace.is_kind(Kind.OP, Kind.RUNTIME))
    rows = rows[np.argsort(-trace.dur_ns[rows], kind="stable")][:5]
    return _claim(
        trace,
        f"the first step takes {format_ns(int(wall[0]))}, the others {format_ns(usual)}: a warm-up was recorded",
        np.sort(rows),
        {"first_step_ms": ms(int(wall[0])), "median_other_step_ms": ms(usual)},
    )


def _first_runs(trace: Trace) -> Claim | None:
    """Compiling and loading have no rows without operators: what is left are pauses before what did not run yet."""
    if not trace.has_calls_alone or not trace.devices:
        return None
    device, wall_ns = trace.devices[0], trace.window.wall_ns
    kernels = device.rows[trace.kind[device.rows] == Kind.KERNEL]
    first = trace.mask_of(kernels[np.unique(trace.name[kernels], return_index=True)[1]])
    gaps = device.gaps
    late = (gaps.blame == HOST_LATE) & first[gaps.next_row] & (gaps.spans[:, 1] - gaps.spans[:, 0] >= LOAD_NS)
    idle_ns = intervals.length(gaps.spans[late])
    calls = distinct(trace.links.call[gaps.next_row[late]])
    # a graph of many kernels takes as long each time
    load_ns = int(trace.dur_ns[calls[~trace.matches(calls, "GraphLaunch")]].max(initial=0))
    if load_ns < LOAD_NS or idle_ns < VOID_SHARE * wall_ns:
        return None
    claim = _claim(
        trace,
        f"the GPU stands idle for {format_ns(idle_ns)} of the {format_ns(wall_ns)} window"
        f" ({format_share(idle_ns / wall_ns)}) before kernels that run for the first time, and a launch takes"
        f" {format_ns(load_ns)}: loading or compilation, as far as a recording without operators can show",
        calls,
        {
            "idle_before_first_runs_ms": ms(idle_ns),
            "share_of_window": round(idle_ns / wall_ns, 6),
            "n_first_runs": int(late.sum()),
            "longest_launch_ms": ms(load_ns),
        },
    )
    return replace(claim, certainty="hint", voids=True)


def _claim(trace: Trace, message: str, rows: Ints, evidence: dict[str, object]) -> Claim:
    # none of it is in a steady step, where examples are looked for
    longest = tuple(rows[np.argsort(-trace.dur_ns[rows], kind="stable")[:3]].tolist())
    return Claim(
        message, "certain", rows, evidence=evidence, anchor=longest[0] if longest else -1, examples=longest, always=True
    )


def _early_clock(trace: Trace) -> Claim | None:
    reads = np.flatnonzero(trace.matching(_CLOCK, Kind.PYTHON))
    if len(reads) < 2 or not trace.links.launches.any():
        return None
    parent = trace.frames.parent[reads]
    mine = (parent >= 0) & trace.rows_where(parent, is_user_frame)
    reads, parent = reads[mine], parent[mine]
    order = np.lexsort((trace.start_ns[reads], parent))
    reads, parent = reads[order], parent[order]
    pair = np.flatnonzero(parent[1:] == parent[:-1])
    first, second = reads[pair], reads[pair + 1]
    start, end = trace.end_ns[first], trace.start_ns[second]
    done = _device_done(trace, start, end)
    error = (done - end) / np.maximum(end - start, 1)
    wrong = error > CLOCK_ERROR
    if not wrong.any() or 2 * wrong.sum() < len(pair):
        return None
    worst = int(second[np.argmax(np.where(wrong, done - end, 0))])
    return Claim(
        message=f"the device still works at the end of {int(wrong.sum()):,} of"
        f" {format_count(len(pair), 'clock interval')}, for another {format_share(float(np.median(error[wrong])))} of"
        " the interval",
        certainty="hint",
        rows=distinct(np.concatenate([first[wrong], second[wrong]])),
        evidence={
            "median_missed_ms": ms(float(np.median((done - end)[wrong]))),
            "median_missed_share_of_interval": round(float(np.median(error[wrong])), 6),
            "n_early_intervals": int(wrong.sum()),
            "n_clock_intervals": len(pair),
        },
        anchor=worst,
        fix=CLOCK_FIX,
        always=True,
    )


def _device_done(trace: Trace, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return when the work launched inside each interval ended; its own end after a wait."""
    calls = np.flatnonzero(trace.links.launches)
    calls = calls[np.argsort(trace.start_ns[calls], kind="stable")]
    begin = trace.start_ns[calls]
    lo, hi = np.searchsorted(begin, start_ns), np.searchsorted(begin, end_ns)
    reach = np.maximum.accumulate(trace.links.device_end_ns(calls))
    # work ends in the order of launches but for side streams: the latest launch is enough
    done = np.where(hi > lo, reach[np.maximum(hi - 1, 0)], end_ns)
    waits = trace.waits
    starts = np.sort(waits.start_ns)
    waited = np.searchsorted(starts, end_ns) > np.searchsorted(starts, start_ns)
    return np.where(waited, end_ns, done)
