"""The profiler records more than it needs to, or never stops.

Looks like: more than 20 recorded steps, more than 60 s or more than five million events; a recording that starts with
    ``ProfilerStep#0`` and has no warm-up; shapes, stacks and memory all switched on; the profiler's own ``overhead``
    rows in 1 % of the judged time; or monitoring calls (``memory_stats``, psutil, pynvml) in most of the steps.
Slow because: every recorded operator adds host time: 1.5 times as much without options, 2.2 times with shapes and
    stacks (measured on small operators).
Cost: none is claimed; it is an artefact of measuring, and the low ends of host-bound findings are divided by it.
Fix: a short schedule, and only the options a question needs.
Leave it when: the recording is a one-off and its main findings are not host-bound.
Source: PyTorch documentation, torch.profiler.schedule; catalogue 45.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "MSR045", "The profiler is set heavier than needed", order=210, needs="")
FIX = Fix(
    text="Record three to five steps after a warm-up; switch shapes, stacks and memory on one at a time, when a"
    " question needs them.",
    code="""schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
with torch.profiler.profile(schedule=schedule) as prof:
    ...  # prof.step() after each iteration""",
    link="https://docs.pytorch.org/docs/stable/profiler.html#torch.profiler.schedule",
)

MAX_STEPS = 20
MAX_WINDOW_NS = 60_000_000_000
MAX_EVENTS = 5_000_000
MIN_OVERHEAD = 0.01  # share of the judged time in the profiler's own rows (catalogue 45)
ALL_FLAGS = {"record_shapes", "with_stack", "profile_memory"}
MIN_MONITORED = 0.5
_MONITOR = r": memory_stats$|(^|/)psutil/|pynvml|nvidia_smi"
_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")


def find(trace: Trace) -> Claims:
    """Yield one claim when any sign of a heavy recording is there."""
    evidence: dict[str, Any] = {}
    reasons = list(_reasons(trace, evidence))
    if not reasons:
        return
    if trace.origin.flags:
        evidence["flags"] = list(trace.origin.flags)
    evidence["profiler_inflation"] = trace.origin.inflation
    yield Claim(
        message=f"the recording is heavier than it has to be: {'; '.join(reasons)}",
        certainty="certain",
        rows=np.flatnonzero(trace.kind == Kind.OVERHEAD),
        evidence=evidence,
        always=True,
    )


def _reasons(trace: Trace, evidence: dict[str, Any]) -> Iterator[str]:
    steps, window = trace.steps, trace.window
    marks = [match for name in steps.names if (match := _PROFILER_STEP.match(name))]
    if len(marks) > MAX_STEPS:
        evidence["n_recorded_steps"] = len(marks)
        yield f"{len(marks):,} steps"
    elif len(marks) > 1 and marks[0][1] == "0":
        evidence["first_recorded_step"] = 0
        yield "recorded from step 0, without a warm-up"
    if window.wall_ns > MAX_WINDOW_NS:
        evidence["window_ms"] = ms(window.wall_ns)
        yield format_ns(window.wall_ns)
    if trace.report.n_events > MAX_EVENTS:
        evidence["n_events"] = trace.report.n_events
        yield f"{trace.report.n_events:,} events"
    if set(trace.origin.flags) >= ALL_FLAGS:
        yield "shapes, stacks and memory at once"
    rows = np.flatnonzero(trace.kind == Kind.OVERHEAD)
    own = trace.time_of(rows)
    own_ns = steps.judged_ns(own)
    if own_ns and own_ns >= MIN_OVERHEAD * intervals.length(steps.judged):
        evidence["profiler_overhead_ms_per_step"] = ms(own_ns / steps.n_steady)
        yield f"{format_ns(own_ns / steps.n_steady)} of the profiler's own work {steps.per}"
    calls = np.flatnonzero((trace.kind == Kind.PYTHON) & trace.matching(_MONITOR))
    step_of = steps.of_host(calls)
    if len(steps) > 1 and len(calls) and steps.share_of_steps(step_of) >= MIN_MONITORED:
        evidence["n_monitor_calls_per_step"] = steps.median_count(step_of)
        yield f"{format_count(steps.median_count(step_of), 'monitoring call')} {steps.per}"
