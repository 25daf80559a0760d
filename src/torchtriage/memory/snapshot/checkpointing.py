"""What checkpointing the activations of a module would save at the peak, and cost in time.

A *unit* is a module's ``forward`` called from one line: the place where
``torch.utils.checkpoint.checkpoint(module, x)`` would be written. Its activations are what was
allocated inside it before the peak and is freed by the backward pass after it.

Checkpointed, a unit keeps its inputs, and one call at a time is computed again. So the saving is
at most everything but the largest call, and at least that less one input per call, an input being
taken as large as the largest activation of its call. A new call is assumed to begin where the line
inside ``forward`` goes back to that of the first activation or before; a module whose ``forward``
is one loop reads as several calls. Dropout and communication
inside a unit are computed again too; the saving is at this peak, another moment may become the
peak. The time is one more forward of the unit.
Source: documentation of ``torch.utils.checkpoint``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.finding import Frame, Note
from torchtriage.core.names import file_name
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import call_name
from torchtriage.core.units import format_bytes, format_count, format_ms, format_share
from torchtriage.memory.snapshot.attribution import Category, MemoryPhase, Owners
from torchtriage.memory.snapshot.peak_usage import by_stack, categories, phases
from torchtriage.memory.snapshot.snapshot import Snapshot
from torchtriage.memory.snapshot.timeline import Timeline, timeline

_TORCH = re.compile(r"(^|/)torch/(nn|utils|autograd|optim|distributed|fx|jit|cuda|amp|_\w+)(/|\.py)")
_WRAPPERS = {"new_forward", "wrapper", "__call__"}
"""Between a module and its caller in accelerate and transformers."""
MIN_SHARE = 0.03
"""Of the allocated bytes at the peak: units that save less at best are left out."""


@dataclass(frozen=True)
class Unit:
    """One place to checkpoint.

    ``caller`` : the line that calls the module; ``forward`` : the module's function, at the lowest
    line seen. ``activation_bytes`` : alive at the peak; ``share`` : of all allocated bytes then.
    ``low_bytes``, ``high_bytes`` : what checkpointing saves. ``added_ms`` : per step, None without
    a trace that shows this function; ``time_of`` : ``device`` or ``host``.
    """

    caller: Frame
    forward: Frame
    n_calls: int
    activation_bytes: int
    share: float
    low_bytes: int
    high_bytes: int
    added_ms: float | None = None
    time_of: str = ""


def units(
    snapshot: Snapshot, *, trace: Trace | None = None, owners: Owners | None = None, memory: Timeline | None = None
) -> tuple[Unit, ...]:
    """Return the units worth checkpointing, largest saving first; none without stacks.

    ``memory`` : of the device whose peak is asked for, by default the first with history. ``trace`` : of the
    same program, recorded ``with_stack``; gives what computing again costs. ``owners`` : ``Owners.of(snapshot)``,
    where it is there already.
    """
    memory = memory or timeline(snapshot, next(iter(distinct(snapshot.history.device).tolist()), 0))
    owners = owners or Owners.of(snapshot)
    if memory.end == memory.start or not len(snapshot.stacks):
        return ()
    groups = _groups(memory, owners, _activations(memory, owners))
    total = max(memory.peak_bytes, 1)
    worthwhile = []
    for (caller, _), members in groups.items():
        life = np.array([row for row, _ in members])
        line = np.array([snapshot.stacks.lines[frame] for _, frame in members])
        size = memory.lives.size_bytes[life]
        # back to where the first call began, not merely back: that may be a loop inside
        call = np.cumsum((np.diff(line, prepend=line[0]) < 0) & (line <= line[0]))
        per_call = np.bincount(call, weights=size).astype(np.int64)
        largest = np.zeros(len(per_call), np.int64)
        np.maximum.at(largest, call, size)
        high = int(size.sum() - per_call.max())
        if high < MIN_SHARE * total:
            continue
        low = max(high - int(largest.sum() - largest[np.argmax(per_call)]), 0)
        worthwhile.append(
            Unit(
                caller=owners.frame(caller),
                forward=owners.frame(members[int(np.argmin(line))][1]),
                n_calls=len(per_call),
                activation_bytes=int(size.sum()),
                share=float(size.sum() / total),
                low_bytes=low,
                high_bytes=high,
            )
        )
    worthwhile.sort(key=lambda unit: (-unit.low_bytes - unit.high_bytes, unit.caller.line))
    return tuple(worthwhile if trace is None else (_with_time(unit, trace) for unit in worthwhile))


def notes(worthwhile: tuple[Unit, ...], *, traced: bool = False) -> tuple[Note, ...]:
    """Return the unit that saves most as a note on a snapshot; others overlap with it.

    ``traced`` : a trace was asked for the time, so that it is said if it does not show it.
    """
    return tuple(
        Note(
            code="checkpointing",
            level="info",
            message=f"{_where(unit.forward)} {unit.forward.function}, called"
            f" {format_count(unit.n_calls, 'time')} from {_where(unit.caller)}, holds"
            f" {format_bytes(unit.activation_bytes)} of activations at the peak"
            f" ({format_share(unit.share)}); checkpointing it saves {format_bytes(unit.low_bytes)}"
            f" to {format_bytes(unit.high_bytes)} there at the cost of one more forward pass of it per step"
            + _time(unit, traced),
            fix="model.gradient_checkpointing_enable()"
            if "/transformers/" in unit.forward.file.replace("\\", "/")
            else "x = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)",
            evidence={
                "low_bytes": unit.low_bytes,
                "high_bytes": unit.high_bytes,
                "activation_bytes": unit.activation_bytes,
                "n_calls": unit.n_calls,
                "added_ms": unit.added_ms,
                "time_of": unit.time_of,
            },
        )
        for unit in worthwhile[:1]
    )


def _time(unit: Unit, traced: bool) -> str:
    if unit.added_ms is None:
        return ", which the trace does not show (was it recorded with_stack=True?)" * traced
    return f", which takes {format_ms(unit.added_ms)} of {unit.time_of} time"


def _where(frame: Frame) -> str:
    return f"{file_name(frame.file)}:{frame.line}"


def _activations(memory: Timeline, owners: Owners) -> Ints:
    """Return the lives that were alive at the peak for the backward pass, in order of birth."""
    category = categories(memory, owners, phases(memory, owners))
    lives = memory.lives
    saved = memory.alive(memory.peak) & (category == Category.ACTIVATIONS) & (lives.born >= 0) & (lives.stack >= 0)
    # stacks of frees are recorded with stacks of everything alone; without, take them as saved
    freed_in = by_stack(owners.phase, lives.free_stack)
    rows = np.flatnonzero(saved & ~np.isin(freed_in, (MemoryPhase.FORWARD, MemoryPhase.OPTIMIZER)))
    return rows[np.argsort(lives.born[rows], kind="stable")]


def _groups(memory: Timeline, owners: Owners, lives: Ints) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """Return for each (calling frame, file of the module) its lives and their frame inside it."""
    stacks = owners.snapshot.stacks
    files = [file.replace("\\", "/") for file in stacks.files]
    library = [
        _TORCH.search(file) is not None or not file.endswith(".py") or name in _WRAPPERS
        for file, name in zip(files, stacks.functions, strict=True)
    ]
    forward = [name == "forward" for name in stacks.functions]
    calls: dict[int, dict[tuple[int, str], int]] = {}
    groups: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for life, stack in zip(lives.tolist(), memory.lives.stack[lives].tolist(), strict=True):
        if stack not in calls:
            frames = [frame for frame in stacks.frames_of(stack) if not library[frame]]
            # of a function that calls itself, the outermost call
            calls[stack] = {(caller, files[callee]): callee for callee, caller in pairwise(frames) if forward[callee]}
        for key, callee in calls[stack].items():
            groups.setdefault(key, []).append((life, callee))
    return groups


def _with_time(unit: Unit, trace: Trace) -> Unit:
    lines: dict[str, int] = {}

    def is_it(text: str) -> bool:
        kind, name, file, line = call_name(text)
        if kind == "python" and name == "forward" and line <= unit.forward.line and _same_file(file, unit.forward.file):
            lines[text] = line
        return text in lines

    at = np.flatnonzero((trace.kind == Kind.PYTHON) & trace.where_name(is_it))
    if not len(at):
        return unit
    # of several classes in one file, the one that begins last before the line
    begins = max(lines[trace.names[code]] for code in distinct(trace.name[at]).tolist())
    at = at[[lines[trace.name_of(row)] == begins for row in at.tolist()]]
    steps = trace.steps
    n_steps = max(steps.n_steady, 1)
    if len(steps):
        at = at[steps.in_steady(steps.of_host(at))]
    inside = np.zeros(len(trace), np.bool_)
    for lane in distinct(trace.lane[at]).tolist():
        mine = at[trace.lane[at] == lane]
        spans = intervals.union(intervals.spans(trace.start_ns[mine], trace.end_ns[mine]))
        there = np.flatnonzero(trace.lane == lane)
        place = np.searchsorted(spans[:, 0], trace.start_ns[there], side="right") - 1
        inside[there] = (place >= 0) & (trace.start_ns[there] < spans[np.maximum(place, 0), 1])
    time_of = "device" if trace.devices else "host"
    rows = trace.links.work_under(inside) if trace.devices else at
    busy = intervals.union(intervals.spans(trace.start_ns[rows], trace.end_ns[rows]))
    total_ns = int((busy[:, 1] - busy[:, 0]).sum())
    return replace(unit, added_ms=round(total_ns / n_steps / 1e6, 6), time_of=time_of)


def _same_file(*paths: str) -> bool:
    parts = [PurePosixPath(path.replace("\\", "/")).parts[-2:] for path in paths]
    shared = min(len(parts[0]), len(parts[1]))
    return shared > 0 and parts[0][-shared:] == parts[1][-shared:]
