"""Can this recording be trusted, what can it not answer, and how to record a better one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.finding import Note
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.merged_ranks import find_merged_ranks
from torchtriage.core.trace.producer import ACCELERATORS
from torchtriage.core.trace.recorders import ROCPD, WAYS, XLA
from torchtriage.core.trace.schema import LOADER_NAME, WORK_KINDS
from torchtriage.core.trace.steps import CAPTURES, LOST_SHARE, MIN_LAUNCHES, TAIL_SHARE
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.verdict.left_out_steps import left_out_steps
from torchtriage.diagnose.verdict.recorder_advice import other_recorder, recorder_of
from torchtriage.diagnose.verdict.result import MISSING_ROWS

MANY_ORPHANS = 0.30
"""Above this share of GPU work without a launch, idle time cannot be explained (catalogue 3.1)."""
BLIND_SHARE = 0.02
"""Waits over an idle device above this share of the window: GPU rows are missing (DQ-1)."""
DAMAGED_SHARE = 0.01
"""Events lost, or without a time: above this share of all, work cannot be distinguished from idleness."""
SLICED_SHARE = 0.01
"""Less of the window under any event: a slice. 0.01-0.04 % in slices, 7 % and more in the
sparsest whole recordings (measured)."""
COLD_SHARE, COMPILE_SHARE = 0.10, 0.05
"""Of the window, before start-up is worth a warning."""
STALL_NS, STALL_RATIO = 1_000_000, 20.0
"""A launch call this long, and this many medians, over an idle device: it loads its module."""
MAX_STEPS, MAX_WINDOW_NS, MAX_EVENTS = 20, 60_000_000_000, 5_000_000
"""More says no more about a loop (catalogue 45)."""
MIN_OVERHEAD = 0.01
"""Of the judged time, in the profiler's own rows."""
MIN_MONITORED = 0.5
"""Of the steps, with a call that monitors."""
ALL_FLAGS = {"record_shapes", "with_stack", "profile_memory"}
_MONITOR = r": memory_stats$|psutil(?<![^/]psutil)/|pynvml|nvidia_smi"

_OF_CUDA = r"^Command Buffer Full|Function Loading|Module Loading|Driver Compiler"
"""What CUPTI files under overhead and is there without a profiler: launches that wait for room in the queue, and code
that is loaded or compiled."""

_ROCPROF_PROCESSES = {"CPU HIP API", "CPU HSA API", "Markers and Ranges"}
"""What the first two versions of rocprof call the processes of their ``results.json``."""
_LIGHT = (
    "with profile(activities=[CPU, {}], schedule=schedule(wait=1, warmup=3, active=5),"
    " on_trace_ready=...) as prof: … prof.step()"
)
HEAVY = "a second, short recording with record_shapes=True, with_stack=True (2-3 steps)"


def _light(trace: Trace) -> str:
    device = trace.origin.accelerator or "CUDA"
    return _LIGHT.format("PrivateUse1" if device == ACCELERATORS["other"] else device)


def examine(trace: Trace) -> tuple[Note, ...]:
    """Return everything a reader must know about the recording, refusals first."""
    notes = [note for check in _CHECKS for note in check(trace)]
    order = {"refuse": 0, "warn": 1, "info": 2}
    return tuple(sorted(notes, key=lambda note: order[note.level]))


def missing_rows(notes: Iterable[Note]) -> Note | None:
    """Return the note that says why rows of the devices are missing: how busy they are is not known then."""
    return next((note for note in notes if note.code in MISSING_ROWS), None)


def _content(trace: Trace) -> Iterator[Note]:
    judged = trace.is_kind(Kind.OP, Kind.RUNTIME, Kind.PYTHON, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.ANNOTATION)
    n = int(judged.sum())
    if not len(trace):
        yield Note(
            "empty",
            "refuse",
            "the file holds metadata but no timed event",
            "export inside on_trace_ready, or before the profiler's schedule has ended",
        )
    elif not n and trace.origin.vendor in ("cpu", "other"):
        cats = ", ".join(sorted(filter(None, trace.cats))[:5]) or "none"
        found = f"no event of {recorder_of(trace)} (categories here: {cats})"
        fix = "pass the file written by prof.export_chrome_trace(...)"
        if not _ROCPROF_PROCESSES.isdisjoint(trace.labels.values()):
            found = "results.json of rocprof (version 1 or 2), which rounds times down to whole microseconds"
            fix = f"record with its successor: {WAYS[ROCPD]}"
        yield Note("not-pytorch", "refuse", found, fix)
    elif n < 3:
        yield Note(
            "too-few-events",
            "refuse",
            f"only {n} event{'s' * (n != 1)} of {recorder_of(trace)}: nothing can be analysed",
            f"record whole steps: {_light(trace)}",
        )


def _losses(trace: Trace) -> Iterator[Note]:
    report = trace.report
    salvaged = report.tier == "salvaged"
    again = "record again, and let the export finish before the process ends"
    if report.tier != "strict":
        parts = []
        if report.n_lost:
            parts.append(f"{report.n_lost} event{'s' * (report.n_lost > 1)} lost")
        if report.n_repaired:
            parts.append(f"{report.n_repaired} repaired")
        what = f"{' and '.join(parts) or 'metadata damaged'} of {report.n_events + report.n_lost}"
        if salvaged and not parts:  # how many events are in what is missing, nobody knows
            what = report.loss[0]
        yield Note(
            "salvaged" if salvaged else "repaired",
            "warn" if salvaged else "info",
            f"damaged file: {what}",
            again,
            {"loss": list(report.loss), "n_lost": report.n_lost, "n_repaired": report.n_repaired},
        )
    n_bad = report.n_no_dur + report.n_negative_dur
    if n_bad:
        yield Note(
            "no-duration",
            "warn",
            f"{n_bad} of {len(trace)} timed events have no duration or a negative one and count"
            " as points: busy and self times are too low",
            "record again; do not edit the file",
            {"n_no_dur": report.n_no_dur, "n_negative_dur": report.n_negative_dur},
        )
    if report.n_no_time:
        yield Note(
            "no-time",
            "warn",
            f"{report.n_no_time} of {len(trace)} events have no readable time and are left out of every figure",
            "record again; do not edit the file",
            {"n_no_time": report.n_no_time},
        )
    n_nameless = int(trace.named("").sum())
    if n_nameless:
        yield Note(
            "no-name",
            "warn",
            f"{n_nameless} of {len(trace)} timed events have no name: patterns cannot recognise them",
            again if salvaged else "record again; do not edit the file",
            {"n_nameless": n_nameless},
        )
    if report.n_unpaired:
        yield Note("unpaired", "info", f"{report.n_unpaired} begin or end marks have no partner and count as points")


def _device_rows(trace: Trace) -> Iterator[Note]:
    """No work of a GPU, and why: the three cases must not be taken for each other."""
    device = trace.origin.accelerator
    if trace.devices:
        if not any(intervals.length(_in_window(trace, at_work.busy)) for at_work in trace.devices):
            yield Note(
                "missing-kernels",
                "refuse",
                f"no {device or 'GPU'} work inside the steps, only outside them",
                "record whole steps: " + _light(trace),
            )
        elif device:
            yield Note(
                "other-device",
                "warn",
                f"on a device such as this {device}, only busy time, idle time and late launches are judged: patterns"
                " about kernels, copies and runtime calls are for NVIDIA and AMD GPUs",
            )
        return
    if device:
        n_rows = int((trace.kind == Kind.DEVICE_OTHER).sum())
        seen = f"{n_rows} rows of its own, of an unknown kind" if n_rows else "no row of its own"
        yield Note(
            "other-device",
            "warn",
            f"the {device} is not judged: the recording has {seen}",
            "" if n_rows else f"record the device as well: {_light(trace)}",
        )
        return
    calls = trace.kind == Kind.RUNTIME
    launches = calls & trace.matching(r"(?i)launch|memcpy")
    other = trace.kind == Kind.DEVICE_OTHER
    listed = trace.meta.get("deviceProperties")
    nccl = trace.matching(r"^nccl:", Kind.ANNOTATION)
    if other.any():
        yield Note(
            "other-device",
            "warn",
            f"{int(other.sum())} device rows of a kind that is read but not analysed: idle time and kernels are not"
            " checked",
        )
    elif launches.any():
        yield Note(
            "missing-kernels",
            "refuse",
            f"{int(launches.sum())} launches and copies, but no GPU row: the device side is missing",
            "check that no other profiler was attached (CUPTI and roctracer serve one at a time),"
            " and that the file was not filtered",
        )
    elif _is_cut(trace) and listed != []:
        # host rows come first in a file: what is missing may be all of the device's
        yield Note(
            "missing-kernels",
            "refuse",
            "the file is cut short and holds no GPU row: whether a GPU was in use is unknown",
            "record again, and let the export finish before the process ends",
        )
    elif calls.any() or listed or nccl.any():
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


def _is_cut(trace: Trace) -> bool:
    report = trace.report
    uncounted = report.tier == "salvaged" and not report.n_lost
    return uncounted or any("ends" in message for message in report.loss)


def _merged(trace: Trace) -> Iterator[Note]:
    """Ranks in one file are no process; pasted together, even their correlation ids collide."""
    ranks = find_merged_ranks(trace)
    if ranks is not None:
        mixed = f", and share device {', '.join(ranks.shared)}: which rank's work is which is unknown" * bool(
            ranks.shared
        )
        yield Note(
            "merged-ranks",
            "refuse",
            f"{len(ranks.numbers)} ranks are in one file, which is judged as a job, not as a process{mixed}",
            "pass each rank's own file: torchtriage analyze FOLDER"
            if ranks.shared
            else "judge the ranks together: torchtriage analyze FILE",
            {"ranks": list(ranks.numbers), "shared": list(ranks.shared)},
        )
        return
    devices = {lane.pid for lane in trace.lanes if lane.kind == "stream"}
    # some devices write calls of their own
    on_host = np.array([lane.pid not in devices for lane in trace.lanes], bool)
    calls = np.flatnonzero((trace.kind == Kind.RUNTIME) & (trace.key > 0))
    calls = calls[on_host[trace.lane[calls]]]
    if not len(calls):
        return
    processes = {pid: code for code, pid in enumerate(sorted({lane.pid for lane in trace.lanes}))}
    process = np.array([processes[lane.pid] for lane in trace.lanes])[trace.lane[calls]]
    if len(distinct(process)) < 2:
        return
    order = np.lexsort((process, trace.key[calls]))
    key, process = trace.key[calls][order], process[order]
    shared = int(((key[1:] == key[:-1]) & (process[1:] != process[:-1])).sum())
    if shared > 0.05 * len(calls):
        yield Note(
            "merged",
            "refuse",
            f"several processes in one file share {format_count(shared, 'correlation id')}:"
            " launches cannot be matched to GPU work",
            "pass each rank's own file: torchtriage analyze FOLDER",
            {"n_shared": shared, "n_processes": len(distinct(process))},
        )


def _host_rows(trace: Trace) -> Iterator[Note]:
    if trace.report.recorder in XLA and trace.is_kind(Kind.ANNOTATION, Kind.PYTHON).any():
        return  # its host rows are those of XLA, which the note on its recorder says
    if not trace.has_operators and (trace.works | (trace.kind == Kind.RUNTIME)).any():
        yield Note(
            "no-host-rows",
            "warn",
            "the recording holds no operators: what launched the GPU work, and why the host was late, is unknown",
            "add ProfilerActivity.CPU to activities=",
        )


def _missing_kernels(trace: Trace) -> Iterator[Note]:
    """DQ-1: a long wait over an idle device means that its work was not recorded; so does a damaged file."""
    waits, report = trace.waits, trace.report
    n_bad = report.n_lost + report.n_no_dur + report.n_negative_dur + report.n_no_time
    if trace.devices and (_is_cut(trace) or n_bad > DAMAGED_SHARE * report.n_events):
        yield Note(
            "missing-kernels",
            "warn",
            "the file is cut short or damaged: GPU rows may be missing, so idle time here proves nothing",
            "record again, and let the export finish before the process ends",
        )
        return
    if trace.devices and not trace.is_kind(Kind.OP, Kind.RUNTIME).any() and communicates(trace)[trace.works].all():
        yield Note(
            "missing-kernels",
            "warn",
            "the file shows only communication, on GPU and host: the rest was filtered out, so idle time here"
            " proves nothing",
            "pass the file as it was written",
        )
        return
    blind = waits.blind & ~waits.profiler
    if not trace.devices or not blind.any():
        return
    spans = _in_window(trace, intervals.spans(waits.start_ns, waits.end_ns)[blind])
    wait = intervals.length(spans)
    if wait <= BLIND_SHARE * trace.window.wall_ns:
        return
    share = int(intervals.covered(spans, trace.devices[0].busy).sum()) / wait
    or_peers = ", or the GPU waits for other ranks" if (trace.origin.world_size or 1) > 1 else ""
    launches = trace.links.launch_calls
    graphs = (launches & trace.matching("GraphLaunch")).any()
    if launches.sum() >= MIN_LAUNCHES and not graphs and not trace.links.lost.any():
        why = ", and every launch has its row: something else keeps the GPU or the call busy"
        fix = "record after a warm-up, while no other process uses the GPU"
    else:
        why = ": rows are missing"
        fix = "record whole steps without filtering"
        fix += "; graph kernels need CUPTI's graph support (torch 2.1 or newer)" * (trace.origin.vendor == "cuda")
    yield Note(
        "missing-kernels",
        "warn",
        f"the host waits {format_ns(wait)} for the GPU while only {format_share(share)} of that"
        f" shows GPU work{why}{or_peers}, so idle time here proves nothing",
        fix,
        {"wait_ns": wait, "busy_share": round(share, 4)},
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
    device = trace.origin.accelerator
    linked = works & ~orphans
    # a queue that was full before runs out first
    before = not linked.any() or 2 * (trace.start_ns[orphans] < trace.start_ns[linked].min()).sum() > n
    why = "they were enqueued before it" if before else "the profiler does not see what launches them"
    if device:
        why = f"the {device}'s profiler does not link all of it"
    yield Note(
        "orphans",
        "warn" if share > MANY_ORPHANS else "info",
        f"{n} of {total} pieces of {device or 'GPU'} work ({format_ns(time)}) have no launch in the recording:"
        f" {why}, so no code is held responsible for them, nor for idle time just before them",
        "use schedule(wait=…, warmup=1 or more, …), so that recording starts with an empty queue"
        if before and not device
        else "",
        {"n_orphans": n, "n_work": total, "orphan_ns": time, "share": round(share, 4)},
    )


def _cut(trace: Trace) -> Iterator[Note]:
    window = trace.window
    inside = trace.is_kind(Kind.OP, Kind.RUNTIME, Kind.PYTHON, Kind.DEVICE_OTHER, Kind.OTHER, *WORK_KINDS)
    # a loader that keeps the loop waiting is what there was, not what a slice left
    inside |= trace.matching(LOADER_NAME, Kind.ANNOTATION)
    enough_ns, covered = SLICED_SHARE * window.wall_ns, 0
    # the long ones first: where they are enough, the others need no look
    for some in (inside & (trace.dur_ns >= SLICED_SHARE * enough_ns), inside):
        covered = _time_of(trace, np.flatnonzero(some))
        # most of what a host does has no row where calls alone are recorded
        if covered >= enough_ns or trace.has_calls_alone:
            break
    else:
        yield Note(
            "cut-window",
            "refuse",
            f"all events together cover {format_ns(covered)} of the {format_ns(window.wall_ns)}"
            " window: a slice, in which nothing can be analysed",
            f"record whole steps, and pass the file as it was written: {_light(trace)}",
            {"covered_ns": covered, "window_ns": window.wall_ns},
        )
    for device in trace.devices:
        if device.backlog:
            lag_ns = device.backlog.lag_ns
            yield Note(
                "backlog",
                "warn",
                f"the first work of a stream on GPU {device.index} waits {format_ns(lag_ns)} after its launch: earlier"
                f" work, not in the file, was still running, so the window is the {format_ns(window.wall_ns)} from"
                " then on",
                "synchronise before the recording starts, or use schedule(warmup=1, …)",
                {"lag_ns": lag_ns, "device": device.index},
            )
    lost = trace.links.lost
    if not trace.devices or not lost.any():
        return
    n, n_lost, end = int(trace.links.launch_calls.sum()), int(lost.sum()), trace.steps.rows_end
    last_ns = int(trace.links.launched_ns(np.flatnonzero(trace.works)).max())
    idle_ns = window.end_ns - max(int(trace.end_ns[device.rows].max()) for device in trace.devices)
    # what was launched last ran after the last row of the file
    after = (trace.start_ns[lost] > last_ns).any() and idle_ns > TAIL_SHARE * window.wall_ns
    if end is None and not after and (n < MIN_LAUNCHES or n_lost < LOST_SHARE * n):
        return
    share = round(n_lost / n, 4)
    what = f"{n_lost} of {n} launches have no GPU work in the file"
    if trace.matching(CAPTURES).any():
        message = f"{what}: they were captured into a graph, not run"
        yield Note("graph-capture", "info", message, evidence={"share": share})
    elif end is not None:
        launch_ns, end_ns = (at - trace.file_start_ns for at in end)
        n_late = int((trace.start_ns[lost] >= end.launch_ns).sum())
        yield Note(
            "early-end",
            "warn",
            f"{n_late} of {n} launches, those from {format_ns(launch_ns)} on, have no GPU work in the file: what comes"
            f" after its last GPU row, at {format_ns(end_ns)}, is not judged",
            "end the recording with torch.cuda.synchronize(), and record fewer steps",
            {"share": round(n_late / n, 4), "launch_ms": ms(launch_ns), "end_ms": ms(end_ns)},
        )
    else:
        yield Note(
            "cut-window",
            "warn",
            f"{what}: the window was cut",
            "end the recording with torch.cuda.synchronize(), and do not slice it",
            {"share": share},
        )


def _steps(trace: Trace) -> Iterator[Note]:
    n = len(trace.steps)
    marked = trace.steps.by_clock or re.search("ProfilerStep|StepTraceAnnotation", trace.window.basis)
    if not n or (trace.serving is None and not marked):
        yield Note(
            "no-steps",
            "info",
            f"no ProfilerStep marks; {trace.window.basis}",
            f"call prof.step() once per iteration: {_light(trace)}",
        )
    elif n == 1:
        yield Note(
            "one-step",
            "info",
            "one step only: nothing can be said about step-to-step variation, and the first step"
            " after the profiler starts may not be typical",
            f"record 5 or more: {_light(trace)}",
        )
    pace = trace.steps.pace
    if pace is not None:
        yield Note(
            "paced-loop",
            "info",
            f"the loop is paced: a step every {format_ns(pace.period_ns)}, evenly to"
            f" {format_ns(pace.jitter_ns)} (95th percentile), of which it waits {format_ns(pace.wait_ns)} at the median"
            f" and {format_ns(pace.slack_ns)} at least",
            "judge it by slack and jitter: with less work the wait gets longer, not the step shorter",
            {
                "period_ms": ms(pace.period_ns),
                "jitter_ms": ms(pace.jitter_ns),
                "median_wait_ms": ms(pace.wait_ns),
                "slack_ms": ms(pace.slack_ns),
            },
        )


def _inputs(trace: Trace) -> Iterator[Note]:
    ops = trace.has_operators
    if ops and not trace.has_shapes:
        yield Note("no-shapes", "info", "no input shapes: compute patterns that need sizes are not checked", HEAVY)
    if ops and not trace.has_stacks:
        yield Note("no-stacks", "info", "no Python stacks: findings name operators, not source lines", HEAVY)
    if trace.report.inputs:
        yield Note("joined-inputs", "info", trace.report.inputs)
    if trace.has_shapes and trace.has_stacks:
        yield Note(
            "heavy-flags",
            "info",
            f"recorded with {', '.join(trace.origin.flags)}: host time looks about"
            f" {trace.origin.inflation:.1f}x longer than it is; low ends of host time that is not replayed"
            " are divided by that",
            "for cost, record once without these flags; for location, as here",
            {"profiler_inflation": trace.origin.inflation},
        )


def _heavy(trace: Trace) -> Iterator[Note]:
    """Yield one note where the profiler records more than a question needs.

    A warning where that is part of the judged time, not of the recording's size alone.
    """
    evidence: dict[str, Any] = {}
    reasons = list(_reasons(trace, evidence))
    if reasons:
        yield Note(
            "heavy-recording",
            "warn" if evidence.keys() & {"profiler_overhead_ms_per_step", "n_monitor_calls_per_step"} else "info",
            f"the recording is heavier than necessary: {'; '.join(reasons)}",
            "record three to five steps after a warm-up; switch shapes, stacks and memory on one at a time",
            {**evidence, "profiler_inflation": trace.origin.inflation},
        )


def _reasons(trace: Trace, evidence: dict[str, Any]) -> Iterator[str]:
    steps, wall_ns = trace.steps, trace.window.wall_ns
    marks = [name for name in steps.names if name.startswith("ProfilerStep#")]
    if len(marks) > MAX_STEPS:
        evidence["n_recorded_steps"] = len(marks)
        yield f"{len(marks):,} steps"
    elif len(marks) > 1 and marks[0] == "ProfilerStep#0":
        evidence["first_recorded_step"] = 0
        yield "recorded from step 0, without a warm-up"
    if wall_ns > MAX_WINDOW_NS:
        evidence["window_ms"] = ms(wall_ns)
        yield f"a window of {format_ns(wall_ns)}"
    if trace.report.n_events > MAX_EVENTS:
        evidence["n_events"] = trace.report.n_events
        yield f"{trace.report.n_events:,} events"
    if set(trace.origin.flags) >= ALL_FLAGS:
        yield "shapes, stacks and memory at once"
    own = (trace.kind == Kind.OVERHEAD) & ~trace.matching(_OF_CUDA, Kind.OVERHEAD)
    own_ns = steps.judged_ns(trace.spans_of(np.flatnonzero(own)))
    if own_ns and own_ns >= MIN_OVERHEAD * intervals.length(steps.judged):
        evidence["profiler_overhead_ms_per_step"] = ms(own_ns / steps.n_steady)
        yield f"{format_ns(own_ns / steps.n_steady)} of the profiler's own work {steps.per}"
    calls = np.flatnonzero(trace.matching(_MONITOR, Kind.PYTHON))
    step_of = steps.of_host(calls)
    if len(steps) > 1 and len(calls) and steps.share_of_steps(step_of) >= MIN_MONITORED:
        evidence["n_monitor_calls_per_step"] = steps.median_count(step_of)
        yield f"{format_count(steps.median_count(step_of), 'monitoring call')} {steps.per}"


def _start_up(trace: Trace) -> Iterator[Note]:
    rows = trace.first_use
    compiles = trace.is_kind(Kind.ANNOTATION, Kind.OP)[rows]
    cold = distinct(np.concatenate([rows[~compiles], _stalled_launches(trace)]))
    wall = trace.window.wall_ns
    cost = _time_of(trace, cold)
    if cost and cost >= COLD_SHARE * wall:
        top = trace.name_of(int(cold[np.argmax(trace.dur_ns[cold])]))
        yield Note(
            "cold-start",
            "warn",
            f"the recording holds the process's first use of the GPU: {format_ns(cost)} of the"
            f" {format_ns(wall)} window in calls such as {top}",
            f"warm up first: {_light(trace)}",
            {"cold_ns": cost, "call": top},
        )
    cost = _time_of(trace, rows[compiles])
    if cost and cost >= COMPILE_SHARE * wall:
        yield Note(
            "compiling",
            "warn",
            f"torch.compile was compiling for {format_ns(cost)} of the {format_ns(wall)}"
            " window; steps with compilation are left out of costs where others exist",
            "run a few iterations before the profiler starts: schedule(wait=5, warmup=3, active=5)",
            {"compile_ns": cost},
        )


def _stalled_launches(trace: Trace) -> NDArray[np.int64]:
    launches = np.flatnonzero(trace.matching(r"Launch\w*Kernel", Kind.RUNTIME))
    if not len(launches) or not trace.devices:
        return launches[:0]
    bar = max(STALL_NS, STALL_RATIO * float(np.median(trace.dur_ns[launches])))
    slow = launches[trace.dur_ns[launches] > bar]
    spans = trace.spans_of(slow)
    busy = intervals.covered(spans, trace.devices[0].busy)
    return slow[2 * busy < trace.dur_ns[slow]]


def _clocks(trace: Trace) -> Iterator[Note]:
    """Yield what the recording's times are too coarse for, or too far apart."""
    if trace.resolution_ns >= 1000 and len(trace):
        yield _coarse(trace)
    for device in trace.devices:
        if device.early_ns > trace.resolution_ns:
            yield Note(
                "early-clock",
                "info",
                f"work on GPU {device.index} begins up to {format_ns(device.early_ns)} before its own launch: the"
                " clocks of host and device are apart, and waits between them are known no closer than that",
                "record with a newer profiler and driver",
                {"early_ns": device.early_ns, "device": device.index},
            )


def _coarse(trace: Trace) -> Note:
    timed = ~trace.is_kind(Kind.INSTANT)
    zero = float((trace.dur_ns[timed] == 0).mean()) if timed.any() else 0.0
    return Note(
        "coarse-clock",
        "info",
        f"times are whole microseconds (torch before 2024-04): {format_share(zero)} of the events"
        " last 0, taken as shorter than the resolution",
        "record with a newer PyTorch for nanosecond times",
        {"zero_duration_share": round(zero, 4)},
    )


def _time_of(trace: Trace, rows: NDArray[np.int64]) -> int:
    spans = trace.spans_of(rows)
    return intervals.length(_in_window(trace, spans))


def _in_window(trace: Trace, spans: intervals.Spans) -> intervals.Spans:
    window = trace.window
    return intervals.clip(intervals.union(spans), window.start_ns, window.end_ns)


_CHECKS = (
    _content,
    other_recorder,
    _losses,
    _device_rows,
    _merged,
    _host_rows,
    _missing_kernels,
    _orphans,
    _cut,
    _start_up,
    _steps,
    left_out_steps,
    _inputs,
    _heavy,
    _clocks,
)
