"""A compile log beside a trace of the same program: what breaks and recompilations cost in it.

A break is found again by the function that goes on after it: its compile id is in the log, and the trace has it in
``Torch-Compiled Region: 1/0``. A recompilation is found by the region that follows the compilation on its thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchtriage.compile.logs.locations import resumed
from torchtriage.compile.logs.result import CompiledFunction, CompileResult, GraphBreak, Joined, Recompile
from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace
from torchtriage.core.trace.compiled_regions import Regions, find_regions
from torchtriage.core.units import NS_PER_MS, format_count, format_ms, ms


def join(result: CompileResult, trace: Trace, path: str, *, eager: Trace | None = None) -> CompileResult:
    """Return the result with what the trace shows of each break and recompilation.

    ``result`` : of the logs of the same program. ``trace`` : of one rank. ``path`` : the trace's, to be named.
    ``eager`` : of the program without ``torch.compile``: tells after how many steps compiling pays off.
    """
    regions = find_regions(trace)
    breaks = tuple(replace(row, trace=_of_break(row, result.functions, regions)) for row in result.breaks)
    recompiles = tuple(replace(row, trace=_of_recompile(row, regions)) for row in result.recompiles)

    def lost_ms(row: GraphBreak) -> float:
        if row.trace is None:
            return -1.0
        return row.trace.idle_ms if row.trace.idle_ms is not None else row.trace.host_ms

    return replace(
        result,
        breaks=tuple(sorted(breaks, key=lost_ms, reverse=True)),
        recompiles=recompiles,
        trace_path=path,
        payback=_payback(result, trace, eager),
        notes=(*result.notes, *_notes(regions, breaks, recompiles)),
    )


def _of_break(row: GraphBreak, functions: Sequence[CompiledFunction], regions: Regions) -> Joined | None:
    places = {(frame.file, frame.line) for frame in (*row.stack, *filter(None, [row.frame]))}
    rests = [
        function
        for function in functions
        if (line := resumed(function.frame.function)) is not None and (function.frame.file, line) in places
    ]
    ids = (compile_id for function in rests for compile_id in function.compile_ids)
    heads = (compile_id.rpartition("/")[0].rpartition("/")[2] for compile_id in ids)
    frames = sorted({int(head) for head in heads if head.isdecimal()})
    trace = regions.trace
    inner = regions.rows[np.isin(regions.frame, frames)] if frames else regions.rows[:0]
    inner = inner[trace.steps.in_steady(trace.steps.of_host(inner))]
    if not len(inner):
        return None
    seams, at_most = _seams(regions, inner)
    between = intervals.subtract(intervals.union(seams), regions.time_of(regions.eager))
    return _joined(regions, inner, seams, between, at_most=at_most)


def _seams(regions: Regions, inner: Ints) -> tuple[intervals.Spans, bool]:
    """Return int64[k, 2]: from the last compiled code before each region to its start.

    Where the trace shows no graph inside of the region around, its begin stands for the graph's end; then True
    comes along.
    """
    trace = regions.trace
    around = trace.tree.nearest(inner, regions.mask)
    begins = np.where(around >= 0, trace.start_ns[around], trace.start_ns[inner])
    ran = np.concatenate([np.flatnonzero(regions.graphs), regions.rows])
    for lane in distinct(trace.lane[inner]).tolist():
        here = np.flatnonzero(trace.lane[inner] == lane)
        ends = np.sort(trace.end_ns[ran[trace.lane[ran] == lane]])
        before = np.searchsorted(ends, trace.start_ns[inner[here]], side="right") - 1
        last = np.where(before >= 0, ends[before], 0)
        begins[here] = np.maximum(begins[here], last)
    unseen = (around >= 0) & (begins == trace.start_ns[around])
    return np.stack([begins, trace.start_ns[inner]], axis=1), bool(unseen.any())


def _joined(regions: Regions, rows: Ints, spans: intervals.Spans, host: intervals.Spans, *, at_most: bool) -> Joined:
    trace, steps = regions.trace, regions.trace.steps
    host_ns = intervals.length(intervals.intersect(host, steps.judged)) / steps.n_steady
    idle_ms = n_launches = n_kernels = None
    if trace.devices:
        idle = trace.waits.lost(spans[:, 0], spans[:, 1])
        idle_ms = ms(intervals.length(intervals.intersect(idle, steps.judged)) / steps.n_steady)
    if trace.devices and not at_most:
        calls = np.flatnonzero(trace.links.launches)
        calls = calls[intervals.owner(intervals.union(spans), trace.start_ns[calls]) >= 0]
        n_launches = steps.median_count(steps.of_host(calls))
        n_kernels = steps.median_count(steps.of_work(trace.links.work_of(calls)))
    return Joined(
        per=steps.per,
        of_ms=ms(steps.wall_ns),
        n_seams=steps.median_count(steps.of_host(rows)),
        host_ms=ms(host_ns),
        idle_ms=idle_ms,
        n_launches=n_launches,
        n_kernels=n_kernels,
        at_most=at_most,
    )


def _of_recompile(row: Recompile, regions: Regions) -> Joined | None:
    """Return the stalls of the recompilations that the trace has, over its whole window."""
    trace = regions.trace
    rows = np.flatnonzero(regions.compiles)
    _, frames, versions = regions.next_of(rows)
    ids = [f"{frame}/{version}" for frame, version in zip(frames.tolist(), versions.tolist(), strict=True)]
    mine = rows[[compile_id in row.compile_ids for compile_id in ids]] if ids else rows
    if not len(mine):
        return None
    spans = intervals.spans(trace.start_ns[mine], trace.end_ns[mine])
    idle_ms = None
    if trace.devices:
        idle_ms = ms(intervals.length(trace.waits.lost(spans[:, 0], spans[:, 1])))
    return Joined(
        per="in the window",
        of_ms=ms(trace.steps.window.wall_ns),
        n_seams=float(len(mine)),
        host_ms=ms(intervals.length(intervals.union(spans))),
        idle_ms=idle_ms,
        n_launches=None,
        n_kernels=None,
    )


def _payback(result: CompileResult, trace: Trace, eager: Trace | None) -> str:
    """Return after how many steps compiling is won back, as far as the traces show."""
    mine = [process for process in result.processes if process.rank == trace.origin.rank] or result.processes
    spent_ms = max((process.compile_ms for process in mine), default=0.0)
    if not spent_ms or not len(trace.steps):
        return ""
    step_ms = trace.steps.wall_ns / NS_PER_MS
    took = f"compiling took {format_ms(spent_ms)}"
    if eager is None or not len(eager.steps):
        number = format_count(math.ceil(spent_ms / step_ms), "step")
        return (
            f"{took}, as long as {number} of {format_ms(step_ms)}; pass a trace without"
            " torch.compile as --eager to learn after how many steps that pays off"
        )
    eager_ms = eager.steps.wall_ns / NS_PER_MS
    both = f"a step takes {format_ms(step_ms)} compiled and {format_ms(eager_ms)} eager"
    if eager_ms <= step_ms:
        return f"never: {both}, and {took}"
    number = format_count(math.ceil(spent_ms / (eager_ms - step_ms)), "step")
    return f"after {number}: {took}; {both}"


def _notes(regions: Regions, breaks: Sequence[GraphBreak], recompiles: Sequence[Recompile]) -> list[Note]:
    if not len(regions.rows):
        return [
            Note(
                "trace-without-regions",
                "warn",
                "the trace shows no compiled code, so there was nothing to combine",
                "record steps of the same program after its first ones",
            )
        ]
    if (regions.frame < 0).all():
        return [
            Note(
                "trace-without-ids",
                "warn",
                "the trace does not number compiled code (torch before 2.5), so breaks cannot be found in it",
                "record with a newer torch",
            )
        ]
    notes = []
    missing = sum(row.trace is None for row in breaks)
    if missing:
        text = (
            f"{format_count(missing, 'graph break')} of {len(breaks)} did not happen in the steady steps of the trace,"
            " or left no function to resume"
        )
        notes.append(Note("breaks-not-in-trace", "info", text))
    absent = sum(row.trace is None for row in recompiles)
    if absent:
        text = (
            f"{format_count(absent, 'kind')} of recompilation of {len(recompiles)} happened outside of the trace; their"
            " time is from the log"
        )
        notes.append(Note("recompiles-not-in-trace", "info", text))
    return notes
