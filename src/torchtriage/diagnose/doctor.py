"""Can this recording be trusted, what can it not answer, and how to record a better one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtriage import intervals
from torchtriage.finding import Note
from torchtriage.trace import Kind, Trace
from torchtriage.trace.steps import COMPILES
from torchtriage.units import format_ns, format_share

__all__ = ["examine", "idle_is_doubtful"]

MANY_ORPHANS = 0.30
"""Above this share of GPU work without a launch, idle time cannot be explained (catalogue 3.1)."""
LONG_SYNC_NS = 1_000_000
BUSY_INSIDE = 0.5
"""A wait longer than 1 ms with the GPU less busy than this: GPU rows are missing (DQ-1).
Complete recordings show 95-100 % (catalogue 1.5, measured)."""
COLD_CALL_NS = 10_000_000
SHORT_EVENTS = 0.05

LIGHT = (
    "with profile(activities=[CPU, CUDA], schedule=schedule(wait=1, warmup=3, active=5),"
    " on_trace_ready=...) as prof: … prof.step()"
)
HEAVY = "a second, short recording with record_shapes=True, with_stack=True (2-3 steps)"


def examine(trace: Trace) -> tuple[Note, ...]:
    """Return everything a reader must know about the recording, refusals first."""
    notes = [note for check in _CHECKS for note in check(trace)]
    order = {"refuse": 0, "warn": 1, "info": 2}
    return tuple(sorted(notes, key=lambda note: order[note.level]))


def idle_is_doubtful(notes: tuple[Note, ...]) -> bool:
    """Return whether idle time in this recording may be an artefact of missing rows."""
    return any(note.code in ("missing-kernels", "orphans", "cut-window") for note in notes)


def _content(trace: Trace) -> Iterator[Note]:
    """No PyTorch events at all, or none that can be judged."""
    judged = trace.is_kind(
        Kind.OP, Kind.RUNTIME, Kind.PYTHON, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.ANNOTATION
    )
    if trace.report.n_events and not len(trace):
        yield Note(
            "empty",
            "refuse",
            "the file holds metadata but no timed event",
            "export inside on_trace_ready, or before the profiler's schedule has ended",
        )
    elif not judged.any() and trace.origin.vendor in ("cpu", "other"):
        cats = ", ".join(sorted(trace.cats)[:5]) or "none"
        yield Note(
            "not-pytorch",
            "refuse",
            f"no event of the PyTorch profiler (categories here: {cats})",
            "pass the file written by prof.export_chrome_trace(...)",
        )
    elif judged.sum() < 3:
        yield Note(
            "too-few-events",
            "refuse",
            f"only {int(judged.sum())} events of the PyTorch profiler: nothing can be judged",
            f"record whole steps: {LIGHT}",
        )


def _losses(trace: Trace) -> Iterator[Note]:
    report = trace.report
    if report.tier != "strict":
        parts = []
        if report.n_lost:
            parts.append(f"{report.n_lost} event{'s' * (report.n_lost > 1)} lost")
        if report.n_repaired:
            parts.append(f"{report.n_repaired} repaired")
        what = " and ".join(parts) or "metadata damaged"
        yield Note(
            "salvaged" if report.n_lost else "repaired",
            "warn" if report.n_lost else "info",
            f"damaged file: {what} of {report.n_events + report.n_lost}",
            "record again, and let the export finish before the process ends",
            {"loss": list(report.loss), "n_lost": report.n_lost, "n_repaired": report.n_repaired},
        )
    if report.n_unpaired:
        yield Note(
            "unpaired",
            "info",
            f"{report.n_unpaired} begin or end marks have no partner and count as points",
        )


def _device_rows(trace: Trace) -> Iterator[Note]:
    if trace.devices:
        return
    calls = trace.kind == Kind.RUNTIME
    launches = calls & trace.matching(r"(?i)launch|memcpy")
    names = [name for name in trace.origin.device_names if name]
    other = trace.kind == Kind.DEVICE_OTHER
    if other.any():
        yield Note(
            "other-device",
            "warn",
            f"{int(other.sum())} events of an accelerator ({trace.origin.vendor}) whose work is"
            " read but not judged: device idle and kernels are not checked",
        )
    elif launches.any():
        yield Note(
            "missing-kernels",
            "refuse",
            f"{int(launches.sum())} launches and copies, but no GPU row: the device side is"
            " missing",
            "check that no other profiler was attached (CUPTI and roctracer serve one at a time),"
            " and that the file was not filtered",
        )
    elif calls.any() or names:
        yield Note(
            "no-gpu-rows",
            "warn",
            "no GPU row although a GPU was present: GPU time and idle are not checked",
            "add ProfilerActivity.CUDA to activities=",
        )
    else:
        yield Note(
            "no-gpu-rows",
            "info",
            "recorded on the CPU only: costs are host time, GPU patterns are not checked",
            "if the script uses a GPU, add ProfilerActivity.CUDA to activities=",
        )


def _host_rows(trace: Trace) -> Iterator[Note]:
    if not (trace.kind == Kind.OP).any() and (trace.works.any() or (trace.kind == 3).any()):
        yield Note(
            "no-host-rows",
            "warn",
            "no operator rows: what launched the GPU work, and why the host was late, is unknown",
            "add ProfilerActivity.CPU to activities=",
        )


def _missing_kernels(trace: Trace) -> Iterator[Note]:
    """DQ-1: a long wait over an idle device means that its work was not recorded."""
    if not trace.devices:
        return
    waits = trace.waits
    pure = (waits.end_ns - waits.start_ns > LONG_SYNC_NS) & trace.is_kind(Kind.RUNTIME)[waits.row]
    # copies wait for host memory too, and allocation calls for the driver: only real syncs count
    pure &= (waits.copy < 0) & (waits.sync_row == waits.row)
    pure &= waits.start_ns >= trace.window.start_ns
    if not pure.any():
        return
    spans = intervals.spans(waits.start_ns, waits.end_ns)[pure]
    busy = intervals.covered(spans, _all_busy(trace))
    wall = int((spans[:, 1] - spans[:, 0]).sum())
    share = int(busy.sum()) / wall
    if share < BUSY_INSIDE and wall > 0.02 * trace.window.wall_ns:
        yield Note(
            "missing-kernels",
            "warn",
            f"the host waits {format_ns(wall)} for the GPU while only {format_share(share)} of that"
            " shows GPU work: rows are missing, so idle time here proves nothing",
            "record whole steps without filtering; graph kernels need CUPTI's graph support"
            " (torch 2.1 or newer)",
            {"wait_ns": wall, "busy_share": round(share, 4)},
        )


def _orphans(trace: Trace) -> Iterator[Note]:
    if not trace.devices or not (trace.kind == Kind.RUNTIME).any():
        return
    orphans, works = trace.links.orphans, trace.works
    n, total = int(orphans.sum()), int(works.sum())
    if not n:
        return
    time = int(trace.dur_ns[orphans].sum())
    share = max(n / total, time / max(int(trace.dur_ns[works].sum()), 1))
    yield Note(
        "orphans",
        "warn" if share > MANY_ORPHANS else "info",
        f"{n} of {total} pieces of GPU work ({format_ns(time)}) have no launch in the recording:"
        " they were enqueued before it, and no code here is blamed for them",
        "use schedule(wait=…, warmup=1 or more, …), so that recording starts with an empty queue",
        {"n_orphans": n, "n_work": total, "orphan_ns": time, "share": round(share, 4)},
    )


def _cut(trace: Trace) -> Iterator[Note]:
    """Work that was launched inside the recording and never seen to run."""
    if not trace.devices:
        return
    launches = (trace.kind == Kind.RUNTIME) & trace.matching(
        r"^(cuda|hip|cu)\w*Launch\w*Kernel|^(cuda|hip)GraphLaunch|^cuLaunchKernel"
    )
    n = int(launches.sum())
    dangling = launches & ~trace.links.launches
    if n < 20 or dangling.sum() < 0.05 * n:
        return
    captured = trace.matching(r"StreamBeginCapture|StreamEndCapture|GraphInstantiate").any()
    share = int(dangling.sum()) / n
    yield Note(
        "graph-capture" if captured else "cut-window",
        "info" if captured else "warn",
        f"{int(dangling.sum())} of {n} launches have no GPU work in the file"
        + (": they were captured into a graph, not run" if captured else ": the window was cut"),
        "" if captured else "end the recording with torch.cuda.synchronize(), and do not slice it",
        {"share": round(share, 4)},
    )


def _steps(trace: Trace) -> Iterator[Note]:
    n = len(trace.steps)
    if "ProfilerStep" not in trace.window.basis:
        yield Note(
            "no-steps",
            "info",
            f"no ProfilerStep marks; {trace.window.basis}",
            f"call prof.step() once per iteration: {LIGHT}",
        )
    elif n == 1:
        yield Note(
            "one-step",
            "info",
            "one step only: nothing can be said about step-to-step variation, and the first step"
            " after the profiler starts may not be typical",
            f"record 5 or more: {LIGHT}",
        )


def _inputs(trace: Trace) -> Iterator[Note]:
    ops = (trace.kind == Kind.OP).any()
    if ops and not trace.has_shapes:
        yield Note(
            "no-shapes",
            "info",
            "no input shapes: compute patterns that need sizes are not checked",
            HEAVY,
        )
    if ops and not trace.has_stacks:
        yield Note(
            "no-stacks",
            "info",
            "no Python stacks: findings name operators, not source lines",
            HEAVY,
        )
    if trace.has_shapes and trace.has_stacks:
        yield Note(
            "heavy-flags",
            "info",
            f"recorded with {', '.join(trace.origin.flags)}: host time looks about"
            f" {trace.origin.inflation:.1f}x longer than it is; low ends are divided by it",
            "for cost, record once without these flags; for location, as here",
            {"inflation": trace.origin.inflation},
        )


def _clock(trace: Trace) -> Iterator[Note]:
    if trace.resolution_ns < 1000 or not len(trace):
        return
    timed = ~trace.is_kind(Kind.INSTANT)
    zero = float((trace.dur_ns[timed] == 0).mean()) if timed.any() else 0.0
    yield Note(
        "coarse-clock",
        "info",
        f"times are whole microseconds (torch before 2024-04): {format_share(zero)} of the events"
        " last 0, read as below the resolution",
        "record with a newer PyTorch for nanosecond times",
        {"zero_duration_share": round(zero, 4)},
    )


def _cold(trace: Trace) -> Iterator[Note]:
    """First use inside the window: context creation, module loading, first allocation."""
    window = trace.window
    inside = (trace.start_ns >= window.start_ns) & (trace.start_ns < window.end_ns)
    calls = (
        inside
        & (trace.kind == Kind.RUNTIME)
        & trace.matching(
            r"^(cuda|hip)(Free|Malloc|HostAlloc|DeviceGetStreamPriorityRange|ModuleLoad\w*|StreamCreate\w*"
            r"|FuncGetAttributes|GetDeviceCount|SetDevice|EventCreate\w*|DeviceSetLimit)$|^cu(Library|Module)Load"
        )
    )
    slow = np.flatnonzero(calls & (trace.dur_ns > COLD_CALL_NS))
    # the caching allocator switched off frees all the time: only a few calls are a start
    if not 0 < len(slow) <= 30:
        return
    cost = int(trace.dur_ns[slow].sum())
    if cost < 0.1 * window.wall_ns:
        return
    top = trace.name_of(int(slow[np.argmax(trace.dur_ns[slow])]))
    yield Note(
        "cold-start",
        "warn",
        f"the recording holds the process's first use of the GPU: {format_ns(cost)} of"
        f" {format_ns(window.wall_ns)} in calls such as {top}",
        f"warm up first: {LIGHT}",
        {"cold_ns": cost, "call": top},
    )


def _compiling(trace: Trace) -> Iterator[Note]:
    rows = np.flatnonzero(trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(COMPILES))
    if not len(rows):
        return
    window = trace.window
    cover = intervals.clip(
        intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows])),
        window.start_ns,
        window.end_ns,
    )
    cost = intervals.length(cover)
    if cost > 0.05 * window.wall_ns:
        yield Note(
            "compiling",
            "warn",
            f"torch.compile was compiling for {format_ns(cost)} of the {format_ns(window.wall_ns)}"
            " window; steps with compilation are left out of costs where others exist",
            "run a few iterations before the profiler starts: schedule(wait=5, warmup=3, active=5)",
            {"compile_ns": cost},
        )


def _all_busy(trace: Trace) -> intervals.Spans:
    return intervals.union(np.concatenate([device.busy for device in trace.devices]))


_CHECKS = (
    _content,
    _losses,
    _device_rows,
    _host_rows,
    _missing_kernels,
    _orphans,
    _cut,
    _cold,
    _compiling,
    _steps,
    _inputs,
    _clock,
)
