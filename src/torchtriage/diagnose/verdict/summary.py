"""What happened in the window, before any verdict: classes of time, tables, a picture, the critical path."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import TimeClasses
from torchtriage.core.names import short_name
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.frames import frame_label
from torchtriage.core.units import ms
from torchtriage.diagnose.replay import CriticalPath, critical_path
from torchtriage.diagnose.replay.critical import WHATS
from torchtriage.diagnose.verdict.result import (
    DeviceSummary,
    KernelSummary,
    OpSummary,
    PathPiece,
    PathSummary,
    StepSummary,
    Summary,
    TimelineLane,
)

N_KERNELS = 50
N_OPS = 50
N_LANES = 6
N_SPANS = 1200
"""Spans per lane of the picture: a wide screen has fewer pixels."""

N_PIECES = 200
"""Parts of a step: half a percent each."""
N_NAMES = 3


def summarise(trace: Trace, unknown: str = "") -> Summary:
    """Return the figures that reports show beside the findings; ``unknown`` : why the devices' time has no classes."""
    window, steps = trace.window, trace.steps
    main = trace.devices[0] if trace.devices else None
    spans = intervals.spans(steps.start_ns, steps.end_ns)
    classes = main.classes(spans) if main and len(steps) and not unknown else [None] * len(steps)
    kernels, n_names = _kernels(trace)
    return Summary(
        window_start_ns=window.start_ns,
        window_end_ns=window.end_ns,
        window_basis=window.basis,
        step_ms=ms(steps.wall_ns) if len(steps) else None,
        n_steady_steps=int(steps.steady.sum()),
        steps=tuple(
            StepSummary(
                index=i,
                name=steps.names[i],
                start_ns=int(spans[i, 0]),
                end_ns=int(spans[i, 1]),
                steady=bool(steps.steady[i]),
                classes=classes[i],
            )
            for i in range(len(steps))
        ),
        devices=tuple(_device(trace, device, unknown) for device in trace.devices),
        top_kernels=kernels,
        n_kernel_names=n_names,
        top_ops=_ops(trace),
        n_op_names=int(np.count_nonzero(np.bincount(trace.name[_in_window(trace, trace.kind == Kind.OP)]))),
        judged_idle_ns=None
        if unknown
        else intervals.length(intervals.intersect(main.idle, steps.judged))
        if main
        else 0,
        timeline=_timeline(trace),
    )


def _device(trace: Trace, device: Device, unknown: str) -> DeviceSummary:
    judged = trace.steps.judged
    rows = device.rows
    inside = (intervals.owner(judged, trace.start_ns[rows]) >= 0) | (trace.time_in(rows, judged) > 0)
    rows = rows[inside]
    pieces = zip(*map(astuple, device.classes(judged)), strict=True)
    return DeviceSummary(
        device=str(device.index),
        name=device.name,
        classes=None if unknown else TimeClasses(*map(sum, pieces)),
        n_kernels=int((trace.kind[rows] == Kind.KERNEL).sum()),
        n_copies=int((trace.kind[rows] == Kind.MEMCPY).sum()),
        n_orphans=int(trace.links.orphans[rows].sum()),
        n_streams=len(device.streams),
        comm_ns=intervals.length(intervals.intersect(device.communication, judged)),
        unknown=unknown,
    )


def _in_window(trace: Trace, mask: NDArray[np.bool_]) -> Ints:
    window, steps, rows = trace.window, trace.steps, np.flatnonzero(mask)
    if trace.is_part:
        works = trace.works[rows]
        step_of = np.where(works, steps.of_work(rows), steps.of_host(rows))
        return rows[steps.in_steady(step_of)]
    first_ns = np.where(trace.works[rows], window.start_ns, window.host_start_ns)
    return rows[(trace.start_ns[rows] >= first_ns) & (trace.start_ns[rows] < window.end_ns)]


def _kernels(trace: Trace) -> tuple[tuple[KernelSummary, ...], int]:
    rows = _in_window(trace, trace.kind == Kind.KERNEL)
    code, where = np.unique(trace.name[rows], return_inverse=True)
    dur = trace.dur_ns[rows]
    total = np.bincount(where, weights=dur, minlength=len(code)).astype(np.int64)
    count = np.bincount(where, minlength=len(code))
    longest = np.zeros(len(code), np.int64)
    np.maximum.at(longest, where, dur)
    whole = max(int(total.sum()), 1)
    names = [trace.names[item] for item in code.tolist()]
    order = sorted(range(len(code)), key=lambda i: (-int(total[i]), names[i]))[:N_KERNELS]
    return tuple(
        KernelSummary(
            name=names[i],
            short_name=short_name(names[i]),
            count=int(count[i]),
            total_ns=int(total[i]),
            mean_ns=round(int(total[i]) / int(count[i]), 3),
            max_ns=int(longest[i]),
            share_of_kernel_sum=round(int(total[i]) / whole, 6),
        )
        for i in order
    ), len(code)


def _ops(trace: Trace) -> tuple[OpSummary, ...]:
    rows = _in_window(trace, trace.kind == Kind.OP)
    n = len(trace.names)
    own = np.bincount(trace.name[rows], weights=trace.tree.self_ns[rows], minlength=n)
    # an op that calls itself (or is written twice) counts once: its outermost call
    parent = trace.tree.parent[rows]
    inside = np.zeros(len(trace) + 1, dtype=bool)
    inside[rows] = True
    outer = ~inside[parent] | (trace.name[parent] != trace.name[rows])
    outermost = rows[outer]
    total = np.bincount(trace.name[outermost], weights=trace.dur_ns[outermost], minlength=n)
    count = np.bincount(trace.name[outermost], minlength=n)
    work = _in_window(trace, trace.works)
    op = trace.links.op[work]
    linked = op >= 0
    device = np.bincount(trace.name[op[linked]], weights=trace.dur_ns[work[linked]], minlength=n)
    order = sorted(np.flatnonzero(count).tolist(), key=lambda i: (-max(own[i], device[i]), trace.names[i]))[:N_OPS]
    return tuple(OpSummary(trace.names[i], int(count[i]), int(own[i]), int(total[i]), int(device[i])) for i in order)


# -- the picture -------------------------------------------------------------------------------

_COMPUTE, _COMM, _COPY, _OP, _WAIT, _PYTHON, _LOADER, _STEP = range(8)
SPAN_CLASSES = ("compute", "comm", "copy", "op", "wait", "python", "loader", "step")


def _timeline(trace: Trace) -> tuple[TimelineLane, ...]:
    lanes: list[TimelineLane] = []
    steps = trace.steps
    if len(steps):
        lanes.append(
            TimelineLane(
                "steps",
                "steps",
                tuple(
                    (int(a), int(b), "step", name)
                    for a, b, name in zip(steps.start_ns, steps.end_ns, steps.names, strict=True)
                )[:N_SPANS],
            )
        )
    for device in trace.devices[:2]:
        lanes += _streams(trace, device)
    lanes += _threads(trace)
    return tuple(lanes)


def _streams(trace: Trace, device: Device) -> list[TimelineLane]:
    of_row = trace.lane[device.rows]
    code, counts = np.unique(of_row, return_counts=True)
    lanes = []
    for lane in code[np.argsort(-counts, kind="stable")][:N_LANES].tolist():
        mine = of_row == lane
        rows = device.rows[mine]
        what = np.where(device.comm[mine], _COMM, np.where(trace.kind[rows] == Kind.MEMCPY, _COPY, _COMPUTE))
        lanes.append(TimelineLane(trace.lane_label(lane), "device", _merge(trace, rows, what)))
    return lanes


def _threads(trace: Trace) -> list[TimelineLane]:
    tree = trace.tree
    inside_op = tree.under(trace.kind == Kind.OP)
    top = _in_window(
        trace,
        ((trace.kind == Kind.OP) & ~inside_op)
        | ((trace.kind == Kind.RUNTIME) & ~inside_op)
        | trace.matching(r"^enumerate\(DataLoader\)", Kind.ANNOTATION),
    )
    if not len(top):
        top = _in_window(trace, (trace.kind == Kind.PYTHON) & (trace.frames.parent < 0))
    if not len(top):
        return []
    code, where = np.unique(trace.lane[top], return_inverse=True)
    weight = np.bincount(where, weights=trace.dur_ns[top], minlength=len(code))
    waits = np.zeros(len(trace), dtype=bool)
    waits[trace.waits.row] = True
    waits[trace.waits.sync_row] = True
    lanes = []
    for i in np.argsort(-weight, kind="stable")[:N_LANES].tolist():
        lane = int(code[i])
        rows = top[where == i]
        rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        what = np.select(
            [trace.kind[rows] == Kind.ANNOTATION, waits[rows], trace.kind[rows] == Kind.PYTHON],
            [_LOADER, _WAIT, _PYTHON],
            _OP,
        )
        lanes.append(TimelineLane(trace.lane_label(lane), "thread", _merge(trace, rows, what)))
    return lanes


def _merge(trace: Trace, rows: Ints, what: NDArray[np.int64]) -> tuple[tuple[int, int, str, str], ...]:
    """Join neighbours closer than a pixel until few enough spans are left.

    Neighbours of one class first; where classes alternate faster than pixels, the class that takes
    most of a pixel's time stands for it.
    """
    window = trace.window
    start = np.maximum(trace.start_ns[rows], window.start_ns)
    end = np.minimum(trace.end_ns[rows], window.end_ns)
    keep = end > start
    rows, what, start, end = rows[keep], what[keep], start[keep], end[keep]
    if not len(rows):
        return ()
    pixel_ns = window.wall_ns // N_SPANS + 1
    # rows of a lane rarely overlap; where they do, the earlier one hides the later
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    new = np.ones(len(start), dtype=bool)
    for resolution in (0, pixel_ns // 4, pixel_ns):
        new[1:] = (what[1:] != what[:-1]) | (gap > resolution)
        if new.sum() <= N_SPANS:
            break
    else:
        cell = (start - window.start_ns) // pixel_ns
        new[1:] = cell[1:] != cell[:-1]
    head = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    time = np.bincount(group * len(SPAN_CLASSES) + what, weights=end - start, minlength=len(head) * len(SPAN_CLASSES))
    most = time.reshape(len(head), len(SPAN_CLASSES)).argmax(axis=1)
    single = np.diff(head, append=len(start)) == 1
    return tuple(
        (begin, until, SPAN_CLASSES[code], short_name(trace.name_of(row)) if item else "")
        for begin, until, code, row, item in zip(
            start[head].tolist(),
            np.maximum.reduceat(end, head).tolist(),
            most.tolist(),
            rows[head].tolist(),
            single.tolist(),
            strict=True,
        )
    )


# -- the critical path -------------------------------------------------------------------------


def summarise_path(trace: Trace) -> PathSummary | None:
    """Return the critical path of the median steady step; None where it is empty."""
    path = critical_path(trace)
    if not len(path):
        return None
    length = path.finish_ns - path.begin_ns
    whole = max(path.end_ns - path.start_ns, 1)
    kinds = np.bincount(path.kind, weights=length, minlength=len(WHATS)) / whole
    lanes = np.bincount(path.lane + 1, weights=length) / whole
    by_lane = {path.label(lane - 1): lanes[lane] for lane in np.flatnonzero(lanes).tolist()}
    return PathSummary(
        path.step,
        path.start_ns,
        path.end_ns,
        _descending({what: share for what, share in zip(WHATS, kinds, strict=True) if share}),
        _descending(by_lane),
        tuple(_shown(path)),
    )


def _descending(shares: dict[str, float]) -> dict[str, float]:
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(float(share), 6) for name, share in ordered}


def _shown(path: CriticalPath) -> list[PathPiece]:
    """Return at most ``N_PIECES`` pieces that tile the path: each part shows its longest piece."""
    if len(path) <= N_PIECES:
        return [
            _piece(path, index, *edges) for index, edges in enumerate(zip(path.begin_ns, path.finish_ns, strict=True))
        ]
    edges = np.linspace(path.start_ns, path.end_ns, N_PIECES + 1).astype(np.int64).tolist()
    out: list[tuple[int, int, int]] = []
    for a, b in pairwise(edges):
        first = int(np.searchsorted(path.finish_ns, a, side="right"))
        last = int(np.searchsorted(path.begin_ns, b))
        inside = slice(first, last)
        held = np.minimum(path.finish_ns[inside], b) - np.maximum(path.begin_ns[inside], a)
        longest = first + int(np.argmax(held))
        before = out[-1][0] if out else -1
        if before >= 0 and path.lane[before] == path.lane[longest] and path.kind[before] == path.kind[longest]:
            lengths = path.finish_ns[[before, longest]] - path.begin_ns[[before, longest]]
            out[-1] = (before if lengths[0] >= lengths[1] else longest, out[-1][1], b)
        else:
            out.append((longest, a, b))
    return [_piece(path, *item) for item in out]


def _piece(path: CriticalPath, index: int, start_ns: int, end_ns: int) -> PathPiece:
    piece = path.piece(index)
    names = dict.fromkeys(frame_label(path.trace.name_of(row)) for row in piece.rows)
    return PathPiece(piece.label, piece.what, int(start_ns), int(end_ns), piece.why, tuple(names)[:N_NAMES])
