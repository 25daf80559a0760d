"""The launching thread stalls inside calls that usually take microseconds.

Looks like: gaps of at least 1 ms in which the device is idle because the next launch is late, and in which one operator
    or call of the launching thread lasted at least 1 ms by itself although it is short elsewhere: at different calls,
    not in the same place of each step; together 5 % of the step.
Slow because: the thread does not run. The system gave its core to another process, the container's CPU quota was used
    up, another thread holds the interpreter's lock, or memory was swapped out. A first use looks the same, once.
Cost: the device idle time of these calls; low counts half of it, divided by the profiler's inflation. Fewer than five
    stalls, or at fewer than three different calls, promise nothing, nor do first calls of their name and those before
    the first run of a kernel: what happens once is gone in steady state.
Fix: give the process cores of its own, and look for throttling.
Leave it when: the machine is shared and will not be where it counts, or the stall is a first use.
Source: Linux kernel documentation, "Control Group v2", ``cpu.stat`` (nr_throttled); PyTorch performance tuning guide,
    "Utilize Non-Uniform Memory Access (NUMA) Controls"; measured: two of eight ranks of one job, 28 and 17 stalls of
    1-19 ms in a step of 0.6 s.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_gaps import MIN_SHARE
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._late_launches import idle_during, stalls
from torchtriage.diagnose.patterns.base import (
    Claim,
    Claims,
    Edit,
    Fix,
    Ints,
    Mask,
    Pattern,
    Trace,
    given,
    longest_names,
)

PATTERN = Pattern.of(
    __name__, "HST054", "The host thread stalls between launches", order=374, needs="device runtime ops"
)

FIX = Fix(
    text="Give each process cores of its own, no more threads than cores, and look for throttling"
    " (nr_throttled in /sys/fs/cgroup/cpu.stat).",
    code="""os.sched_setaffinity(0, cores_of[local_rank])  # shared with no other process
torch.set_num_threads(len(cores_of[local_rank]))""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#utilize-non-uniform-memory-access-numa-controls",
)
ONCE = Fix(
    text="Record several steps after a warm-up: stalls that remain are worth a look.",
    code="schedule = torch.profiler.schedule(wait=1, warmup=3, active=5, repeat=1)",
    link="https://docs.pytorch.org/docs/stable/profiler.html#torch.profiler.schedule",
)

MIN_STALLS, MIN_CALLS = 5, 3
"""Stalls, and different names among them, before they are a state of the machine and not an event."""


def find(trace: Trace) -> Claims:
    """Yield one claim for the stalls of the launching threads."""
    steps, stalled = trace.steps, stalls(trace)
    rows = stalled.row
    spans = idle_during(trace, rows, own=True)
    idle_ns = intervals.length(spans)
    if not idle_ns or idle_ns < MIN_SHARE * intervals.length(steps.judged):
        return
    again = rows[~_first_of_its_kind(trace, rows)]
    lasting = len(again) >= MIN_STALLS and len(distinct(trace.name[again])) >= MIN_CALLS
    known = stalled.usual_ns[stalled.usual_ns >= 0]
    usual_ns = int(np.median(known)) if len(known) else 0
    names = longest_names(trace, rows)
    where = f"{', '.join(names)}{f' (usually {format_ns(usual_ns)})' if usual_ns else ''}"
    worst = int(rows[np.argmax(stalled.idle_ns)])
    evidence = {
        "gpu_idle_ms_per_step": ms(idle_ns / steps.n_steady),
        "share_of_step": round(idle_ns / intervals.length(steps.judged), 6),
        "n_stalls_per_step": round(len(rows) / steps.n_steady, 2),
        "n_different_calls": len(distinct(trace.name[rows])),
        "n_first_of_their_kind": len(rows) - len(again),
        "longest_stall_ms": ms(int(stalled.idle_ns.max())),
        **given(usual_us=round(usual_ns / 1e3, 2)),
        "calls_ms": {name: ms(int(stalled.idle_ns[trace.named(name)[rows]].sum())) for name in names},
    }
    if not lasting:
        yield Claim(
            f"the GPU stands idle for {format_ns(idle_ns)} in {format_count(len(rows), 'stall')} of the host, inside"
            f" {where}: first use or an interrupted thread, gone in steady state, so no saving is claimed",
            "hint",
            rows,
            anchor=worst,
            evidence=evidence,
            fix=ONCE,
            always=True,
        )
        return
    yield host_claim(
        trace,
        f"the GPU stands idle for {format_ns(idle_ns / steps.n_steady)} of {format_ns(steps.wall_ns)} {steps.per} in"
        f" {format_count(len(rows) / steps.n_steady, 'stall')} of the host, inside unrelated calls: {where}",
        rows,
        spans,
        gain=0.5,
        method="idle time of the device in calls that are short elsewhere",
        evidence=evidence,
        anchor=worst,
        edits=(Edit("threads", factor=0.5, best=0.0, spans=spans),),
    )


def _first_of_its_kind(trace: Trace, rows: Ints) -> Mask:
    """Return bool[k]: the first call of its name, or the last before a kernel runs for the first time."""
    work = trace.devices[0].rows
    _, once = np.unique(trace.name[work], return_index=True)
    begins = np.zeros(len(work) + 1, dtype=bool)
    begins[once] = True
    launched = np.argsort(trace.links.launched_ns(work), kind="stable")
    following = np.searchsorted(trace.links.launched_ns(work)[launched], trace.start_ns[rows])
    first_kernel: Mask = begins[np.append(launched, len(work))[following]]
    _, first = np.unique(trace.name, return_index=True)
    starts = np.full(len(trace.names), -1, np.int64)
    starts[trace.name[first]] = first
    first_call: Mask = starts[trace.name[rows]] == rows
    return first_kernel | first_call
