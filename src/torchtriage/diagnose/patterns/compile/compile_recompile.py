"""Compiled code is recompiled again and again, or gives up and runs uncompiled.

Looks like: one frame compiled again in two or more steps after the first (``Torch-Compiled Region: 0/3``, ``0/4``,
    ...); or cache look-ups followed by neither a region nor a compilation but by plain operators: the recompile limit
    is reached.
Slow because: a guard on a shape, a type or a Python number fails, and a compilation takes 0.9-2 s where the step takes
    milliseconds.
Cost: bounded by the compilations in the analysed steps; with a device, by its idle time inside them. Low is divided by
    the profiler's inflation. One recording does not show what uncompiled calls lose.
Fix: mark varying dimensions as dynamic, pad or bucket shapes, drop the last partial batch, pass numbers as tensors. A
    run with ``TORCH_TRACE=logs`` and ``torchtriage compile logs`` name the guard that failed, the value it got, and
    the fix.
Leave it when: it happens once: the second shape makes a dimension dynamic, and no more follow.
Source: PyTorch documentation, "torch.compile programming model", recompilation; measured: 1-2 s per recompilation of a
    small model on a CPU.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.compiled_regions import Regions, find_regions
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Pattern, Trace, given

PATTERN = Pattern.of(
    __name__, "CMP031", "Compiled code is recompiled again and again", order=110, needs="ops", suppresses=("MSR034",)
)
FIX = Fix(
    text="Tell the compiler what varies, and keep the rest from varying.",
    code="""torch._dynamo.mark_dynamic(x, 0)         # this dimension varies: one graph for all
loader = DataLoader(dataset, batch_size=64, drop_last=True)
step = torch.tensor(step)                # not a Python number that changes every call
# TORCH_LOGS=recompiles python train.py  # names the guard that failed""",
    link="https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/compile/programming_model.recompilation.html",
)

MIN_STEPS = 2  # after the first step; one recompilation makes a dimension dynamic and is normal
MIN_STEPS_UNNUMBERED = 3  # where builds write no numbers, several frames compiled once look like one compiled often
MIN_VERSION = 1  # the first compilation of a frame is version 0


def find(trace: Trace) -> Claims:
    """Yield a claim for each frame compiled again, and one for calls that run uncompiled."""
    if not trace.devices and not trace.is_host_only:
        return
    regions = find_regions(trace)
    yield from _recompiled(trace, regions)
    if regions.lookups.any():
        missed = _missed(trace, regions)
        if recurs(trace, missed):
            yield _uncompiled(trace, regions, missed)


def _recompiled(trace: Trace, regions: Regions) -> Claims:
    rows = np.flatnonzero(regions.compiles)
    if not len(rows):
        return
    steps = trace.steps
    step_of = steps.of_host(rows)
    after, frame, version = regions.next_of(rows)
    # a first step may compile whatever it likes
    later = (step_of > 0) if len(steps) > 1 else (step_of >= 0)
    again = later & ((version >= MIN_VERSION) | (frame < 0))
    for item in distinct(frame[again]).tolist():
        mine = again & (frame == item)
        least = MIN_STEPS if item >= 0 else MIN_STEPS_UNNUMBERED
        # without steps to tell apart, every compilation counts for one
        times = len(distinct(step_of[mine])) if len(steps) > 1 else int(mine.sum())
        if times >= least:
            yield _again(trace, regions, rows[mine], after[mine], item, times)


def _again(trace: Trace, regions: Regions, rows: Ints, after: Ints, frame: int, times: int) -> Claim:
    steps = trace.steps
    spans = trace.time_of(rows)
    each_ns = float(np.median(trace.dur_ns[rows]))
    n_later = max(len(steps) - 1, 1)
    where = (
        f"in {times} of {format_count(n_later, 'later step')}"
        if len(steps) > 1
        else (f"{format_count(times, 'time')} in the window")
    )
    versions = regions.version[np.isin(regions.rows, after)]
    numbers = {"frame": frame, "versions": [int(versions.min()), int(versions.max())]} if frame >= 0 else {}
    judged_ns = steps.judged_ns(spans) / steps.n_steady
    shapes = _first_shapes(trace, after)
    return host_claim(
        trace,
        f"compiled code is compiled again {where}, {format_ns(each_ns)} each time",
        rows,
        spans,
        certainty="certain" if frame >= 0 else "likely",
        method="compilations in the analysed steps",
        evidence={
            "n_recompilations": len(rows),
            **({"n_steps_with_recompilation": times} if len(steps) > 1 else {}),
            "median_compilation_ms": ms(each_ns),
            "compilation_ms_per_step": ms(judged_ns),
            **numbers,
            **given(input_shapes=shapes),
        },
        anchor=trace.longest(rows),
        always=True,
        edits=(Edit("drop", rows),),
    )


def _first_shapes(trace: Trace, regions: Ints) -> list[str]:
    found = []
    for region in regions[regions >= 0][:5].tolist():
        start, end = trace.start_ns[region], trace.end_ns[region]
        inside = (trace.start_ns >= start) & (trace.end_ns <= end)
        inside &= trace.lane == trace.lane[region]
        for row in np.flatnonzero(inside & (trace.detail >= 0)).tolist():
            dims = trace.details_of("dims", [row])[0]
            if dims and any(dims):
                found.append(str([dim for dim in dims if dim]))
                break
    return found if len(set(found)) > 1 else []


def _missed(trace: Trace, regions: Regions) -> Ints:
    # builds before the regions had a name of their own write look-ups alone
    if not len(regions.rows) and trace.origin.base_time_ns is None:
        return regions.rows
    members = trace.tree.members
    here = np.flatnonzero(regions.lookups[members])
    follows = np.append(members, -1)[here + 1]
    rows = members[here]
    plain = regions.eager[follows] & (trace.lane[follows] == trace.lane[rows]) & (follows >= 0)
    plain &= trace.tree.parent[follows] == trace.tree.parent[rows]
    return rows[plain]


def _uncompiled(trace: Trace, regions: Regions, missed: Ints) -> Claim:
    steps = trace.steps
    count = steps.median_count(steps.of_host(missed))
    lookups = np.flatnonzero(regions.lookups)
    total = steps.median_count(steps.of_host(lookups))
    return Claim(
        message=f"{format_count(count)} of {format_count(total, 'call')} of compiled code {steps.per}"
        f" {'finds' if count == 1 else 'find'} no graph that fits and {'runs' if count == 1 else 'run'} uncompiled:"
        " the recompile limit is reached",
        certainty="likely",
        rows=missed,
        evidence={
            "n_uncompiled_calls_per_step": count,
            "n_calls_per_step": total,
            "share_of_steps": round(steps.share_of_steps(steps.of_host(missed)), 6),
        },
        anchor=int(missed[0]),
        always=True,
    )
