"""``[memory]`` events of a profiler trace, analysed like a snapshot's history.

A trace records what was allocated and freed, and the allocator's totals beside it, but no segments:
the peak and its holders can be found, why memory is free cannot. Who asked is what was open on the
thread then: the operators, and the Python frames where ``with_stack=True`` recorded them.
Source: ``profile_memory=True`` writes an instant for each with ``Addr``, ``Bytes``,
``Total Allocated``, ``Total Reserved``, ``Device Type`` and ``Device Id``; old ones (torch 1.9)
record neither addresses nor totals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import parse_frame
from torchtriage.memory.allocator.settings import Settings
from torchtriage.memory.snapshot.attribution import Owners
from torchtriage.memory.snapshot.snapshot import (
    NONE,
    Action,
    Annotations,
    Blocks,
    Codes,
    History,
    Segments,
    Snapshot,
    Stacks,
    StackTable,
)
from torchtriage.memory.snapshot.timeline import BlockLives, Timeline, allocated, paired

HOST = 0
"""The profiler's device type of the host; 1 is CUDA, 6 HIP."""


@dataclass(frozen=True)
class RecordedEvents:
    """One memory of a trace: its name, what happened in it, and who asked.

    ``has_reserved`` : whether the allocator's total stands beside the events; where it does not, the timeline's is 0.
    """

    name: str
    has_reserved: bool
    timeline: Timeline
    owners: Owners


def recorded_memory(trace: Trace) -> list[RecordedEvents]:
    """Return what each memory of a trace went through, devices first; none without events."""
    memory = trace.memory
    places = sorted(
        set(zip(memory.device_type.tolist(), memory.device.tolist(), strict=True)),
        key=lambda place: (place[0] == HOST, place),
    )
    return [_recorded(trace, kind, device) for kind, device in places]


def _recorded(trace: Trace, kind: int, device: int) -> RecordedEvents:
    memory = trace.memory
    mine = np.flatnonzero((memory.device_type == kind) & (memory.device == device))
    mine = mine[np.argsort(memory.at_ns[mine], kind="stable")]
    size = memory.size_bytes[mine]
    n_rows = len(mine)
    address = memory.addr[mine]
    stack, stacks = _stacks(trace, memory.at_ns[mine], size > 0)
    if not address.any():  # who is freed can only be guessed from its size: nobody's name then
        address = _like_sizes(size)
        stack = np.full(n_rows, NONE, np.int32)
    none = np.full(n_rows, NONE, np.int32)
    zero = np.zeros(n_rows, np.int64)
    history = History(
        device=np.full(n_rows, device, np.int32),
        action=np.where(size > 0, Action.ALLOC, Action.FREE_REQUESTED).astype(np.int8),
        address=address,
        size_bytes=np.abs(size),
        stream=zero,
        time_us=memory.at_ns[mine] // 1000,
        stack=stack,
        pool=none,
        device_free_bytes=none.astype(np.int64),
    )
    is_host = kind == HOST
    totals = memory.allocated_bytes[mine]
    reserved = totals if is_host else memory.reserved_bytes[mine]  # nothing is cached on the host
    return RecordedEvents(
        name="host" if is_host else f"device {device}",
        has_reserved=not is_host and bool((reserved >= 0).any()),
        timeline=_timeline(history, device, totals, np.maximum(reserved, 0)),
        owners=Owners.of(_snapshot(trace, history, stacks)),
    )


def _like_sizes(size: Ints) -> Ints:
    """Return a stand-in for each address: equal where a free (of negative size) takes the last one of its size."""
    order = np.argsort(np.abs(size), kind="stable")
    grouped = np.abs(size[order])
    first = np.append(True, grouped[1:] != grouped[:-1])
    group = np.cumsum(first) - 1
    change = np.where(size[order] > 0, 1, -1)
    alive = np.cumsum(change)
    alive -= (alive - change)[first][group]
    # the height of the pile that an allocation makes and its free finds
    height = np.where(change > 0, alive, alive + 1)
    address: Ints = np.empty(len(size), np.int64)
    address[order] = group * (2 * len(size) + 1) + len(size) + height
    return address


def _timeline(history: History, device: int, totals: Ints, reserved: Ints) -> Timeline:
    end = len(history)
    is_alloc = history.action == Action.ALLOC
    born, freed, by_free, old_born, old_freed = paired(np.arange(end), history.address, is_alloc, end)
    size = history.size_bytes
    # what was there before and stays has no event: the total beside the first event includes it
    start = int(totals[0] - (size[0] if is_alloc[0] else -size[0])) if totals[0] >= 0 else 0
    rest = max(start - int(size[old_freed[old_born < 0]].sum()), 0)
    extra = np.array([rest] if rest else [], np.int64)
    n_extra = len(extra)
    none = np.full(len(old_born) + n_extra, NONE, np.int32)
    free_stack = np.full(len(born), NONE, np.int32)
    free_stack[by_free] = history.stack[freed[by_free]]
    lives = BlockLives(
        address=np.concatenate([history.address[born], history.address[old_freed], 0 * extra]),
        size_bytes=np.concatenate([size[born], size[old_freed], extra]),
        stack=np.concatenate([history.stack[born], none]),
        free_stack=np.concatenate([free_stack, none]),
        born=np.concatenate([born, old_born, np.full(n_extra, NONE)]),
        freed=np.concatenate([freed, old_freed, np.full(n_extra, end)]),
    )
    return Timeline(
        device=device,
        start=0,
        end=end,
        lives=lives,
        allocated_bytes=allocated(lives, 0, end),
        reserved_bytes=np.append(reserved[:1], reserved),
        n_unmatched=0,
        settings=Settings(),
    )


def _stacks(trace: Trace, at_ns: Ints, wanted: Mask) -> tuple[Codes, Stacks]:
    inner_op = np.full(len(at_ns), NONE, np.int64)
    inner_frame = np.full(len(at_ns), NONE, np.int64)
    lanes = distinct(trace.lane[trace.kind == Kind.OP]).tolist()
    for lane in sorted(lanes, key=lambda lane: lane != trace.steps.lane):
        todo = np.flatnonzero((inner_op < 0) & wanted)
        here = np.full(len(todo), lane)
        inner_op[todo] = trace.tree.at(here, at_ns[todo])
        if trace.has_stacks:
            frame = trace.frames.at(here, at_ns[todo])
            # a frame without an operator is a thread that waits
            runs = (inner_op[todo] >= 0) | (lane == trace.steps.lane)
            inner_frame[todo[runs]] = frame[runs]
    table = StackTable()
    stack = np.full(len(at_ns), NONE, np.int32)
    codes: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(wanted & ((inner_op >= 0) | (inner_frame >= 0))).tolist():
        pair = int(inner_op[row]), int(inner_frame[row])
        code = codes.get(pair)
        if code is None:
            frames = [table.frame(*frame) for frame in _frames(trace, *pair)]
            code = codes[pair] = table.stack(frames) if frames else NONE
        stack[row] = code
    return stack, table.stacks(is_exact=False)  # a trace names the first line of a function


def _frames(trace: Trace, op: int, frame: int) -> list[tuple[str, int, str]]:
    """Return operators as C++ names their frames, then Python frames, innermost first."""
    out = []
    for row in [op, *trace.tree.chain(op)] if op >= 0 else []:
        name = trace.name_of(row)
        _, _, node = name.partition("autograd::engine::evaluate_function: ")
        if node:
            out.append(("", 0, f"torch::autograd::Engine::evaluate_function {node}::apply"))
        elif name.startswith("aten::"):
            out.append(("", 0, f"at::_ops::{name[6:]}::call"))
        elif name.startswith("Optimizer.step#"):
            out.append(("torch/optim/optimizer.py", 0, name))
        elif trace.kind[row] == Kind.OP:
            out.append(("", 0, name))
    for row in [frame, *trace.frames.chain(frame)] if frame >= 0 else []:
        parsed = parse_frame(trace.name_of(row))
        if parsed is not None:
            out.append((parsed.file, parsed.line, parsed.function))
    return out


def _snapshot(trace: Trace, history: History, stacks: Stacks) -> Snapshot:
    ints, codes, flags = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_)
    return Snapshot(
        path=trace.report.path,
        size_bytes=trace.report.size_bytes,
        segments=Segments(ints, ints, ints, ints, ints, ints, ints, codes, flags, flags, codes),
        blocks=Blocks(ints, ints, ints, ints, codes.astype(np.int8), codes),
        history=history,
        stacks=stacks,
        annotations=Annotations(codes, codes, ints, ints),
        pools=(),
        texts=("",),
        settings={},
        n_devices=1,
    )
