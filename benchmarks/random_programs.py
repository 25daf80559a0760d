"""Random training steps for the emulated device, each with the fixes that apply to it.

A fix is two things that must agree: the changed program, which is run, and the edits to the
recorded rows, which are replayed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from emulator import (
    COMM,
    COMPUTE,
    COPY,
    SIDE,
    Backward,
    Copy,
    Fetch,
    Graph,
    Host,
    Instruction,
    Join,
    Launch,
    Machine,
    Program,
    Sync,
)

from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.replay import Edit, parse_what_if

LOADED = 8
"""How much longer a step with a loader lasts than one without."""

Swap = Callable[[Instruction], Sequence[Instruction]]


@dataclass(frozen=True)
class Fix:
    """A change to a program, and what it does to the rows of its recording."""

    name: str
    kind: str
    program: Program
    edits: Callable[[Trace], list[Edit]]


def random_program(seed: int) -> Program:
    """Return a training step that is host-bound, device-bound or in between."""
    draw = random.Random(f"program {seed}")

    def between(low: float, high: float) -> int:
        """Return a duration in ns, drawn evenly over the orders of magnitude; bounds in us."""
        return round(1e3 * math.exp(draw.uniform(math.log(low), math.log(high))))

    def chance(share: float) -> bool:
        return draw.random() < share

    host_us, kernel_us = between(4, 120) / 1e3, between(5, 120) / 1e3
    # an eager operator takes 4 us on the host, one behind many Python frames 30
    machine = Machine(op_ns=between(4, 30))
    n_layers = draw.randint(4, 12)
    step: list[Instruction] = []
    loader = draw.choice(["none", "none", "main", "main", "workers"])
    upload = Copy("upload", between(20, 300), "device", chance(0.6))
    if chance(0.2):
        upload = replace(upload, stream=COPY, blocks=False)

    forward: list[Instruction] = []
    for layer in range(n_layers):
        if chance(0.7):
            forward.append(Host(f"prepare_{layer}", between(host_us / 2, host_us * 2), chance(0.8)))
        forward.append(Launch(f"layer_{layer}", between(kernel_us / 3, kernel_us * 3)))
    for index in range(draw.choice([0, 0, 1, 1, 2, 4])):
        at = draw.randrange(len(forward) + 1)
        forward.insert(at, Copy(f"read_{index}", 2_000, "host", True))
    if chance(0.3):
        kind = draw.choice(["stream", "device", "event"])
        forward.insert(draw.randrange(len(forward) + 1), Sync("wait_forward", kind))

    backward: list[Instruction] = []
    every = draw.choice([0, 0, 2, 3])
    waits_at_once = chance(0.6)
    for layer in reversed(range(n_layers)):
        if chance(0.3):
            backward.append(Host(f"hook_{layer}", between(host_us / 2, host_us)))
        backward.append(Launch(f"grad_{layer}", between(kernel_us / 2, kernel_us * 5)))
        if every and layer % every == 0:
            backward.append(Join(COMPUTE, COMM))
            name = f"ncclDevKernel_AllReduce_Sum_f32_RING_LL_{layer}"
            backward.append(Launch(name, between(kernel_us, kernel_us * 6), COMM))
            if waits_at_once:
                backward.append(Join(COMM, COMPUTE))
    if every and not waits_at_once:
        backward.append(Join(COMM, COMPUTE))

    step.append(upload)
    if upload.stream == COPY:
        step.append(Join(COPY, COMPUTE))
    step += forward
    if chance(0.75):
        step.append(Backward(tuple(backward)))
    else:
        step += backward
    step += [Launch(f"step_{index}", between(2, 6)) for index in range(draw.choice([2, 10, 30]))]
    if chance(0.35):
        step.append(Copy("read_loss", 2_000, "host", True))
    if chance(0.25):
        step.append(Sync("wait_end", draw.choice(["stream", "device", "event"])))
    if chance(0.4):
        step.append(Host("log", between(20, 200), chance(0.5)))

    n_warm = draw.choice([0, 0, 1, 2])
    program = Program(tuple(step), n_steps=8, n_warm=n_warm, machine=machine)
    if loader == "none":
        return program
    # steps that wait for batches last milliseconds: handing one over takes 0.2 alone
    slower = program.change(lambda one: [one if isinstance(one, Join | Sync | Fetch) else _times(one, LOADED)])
    busy_ns = LOADED * max(sum(one.ns for one in step if isinstance(one, Launch | Copy)), 10_000 * len(step), 300_000)
    workers = draw.choice([1, 2]) if loader == "workers" else 0
    share = draw.uniform(0.8, 3.0) * workers if workers else draw.uniform(0.1, 1.0)
    fetch = Fetch(round(busy_ns * share), workers)
    return replace(slower, step=(fetch, *slower.step), stretch=program.stretch // LOADED * 2)


def mixed_program(seed: int) -> Program:
    """Return a step of what random ones lack.

    Graph launches, a second stream that computes, memory freed on the way, and a wait for the step
    before, as a readback without stalls does it.
    """
    draw = random.Random(f"mixed {seed}")
    step: list[Instruction] = [Copy("upload", draw.randint(20_000, 200_000), "device", False, COPY)]
    step.append(Join(COPY, COMPUTE))
    kernel_ns = draw.choice([8_000, 30_000, 90_000])
    for layer in range(draw.randint(3, 6)):
        step.append(Host(f"prepare_{layer}", draw.randint(5_000, 80_000)))
        if draw.random() < 0.4:
            each_ns = tuple(draw.randint(3_000, kernel_ns) for _ in range(draw.randint(5, 40)))
            step.append(Graph(f"graph_{layer}", each_ns))
        if draw.random() < 0.6:
            step.append(Join(COMPUTE, SIDE))
            step.append(Launch(f"side_{layer}", draw.randint(kernel_ns, 8 * kernel_ns), SIDE))
            step += [
                Launch(f"layer_{layer}_{index}", draw.randint(kernel_ns // 2, 3 * kernel_ns))
                for index in range(draw.randint(1, 4))
            ]
            step.append(Join(SIDE, COMPUTE))
        step.append(Launch(f"join_{layer}", draw.randint(kernel_ns // 2, 2 * kernel_ns)))
        if draw.random() < 0.25:
            step.append(Sync(f"free_{layer}", "free"))
    if draw.random() < 0.5:
        step.append(Sync("read_last", "last"))
    if draw.random() < 0.4:
        step.append(Copy("read_loss", 2_000, "host", True))
    return Program(tuple(step), n_steps=8, n_warm=draw.choice([0, 1]))


def deep_program(seed: int) -> Program:
    """Return a device-bound step whose host runs ahead until the launch queue is full."""
    draw = random.Random(f"deep {seed}")
    n_layers = draw.randint(250, 400)
    body = [Launch(f"layer_{i % 50}", draw.randint(20_000, 60_000)) for i in range(n_layers)]
    return Program((Host("prepare_0", 100_000), *body), n_steps=10, n_warm=0)


def fixes(program: Program, seed: int) -> list[Fix]:
    """Return the fixes that apply: of each kind at most one, one of the kernels and one of ops."""
    draw = random.Random(f"fixes {seed}")
    instructions = program.instructions()
    out: list[Fix] = []

    def add(name: str, kind: str, swap: Swap, edits: Callable[[Trace], list[Edit]]) -> None:
        out.append(Fix(name, kind, program.change(swap), edits))

    def those(kind: type) -> list[Instruction]:
        return [one for one in instructions if isinstance(one, kind)]

    reads = [one for one in those(Copy) if isinstance(one, Copy) and one.to == "host"]
    for one in reads[:1] if len(reads) == 1 else []:
        add(f"without {one.name}", "sync", _without({one.name}), _dropping({one.name}))
    if len(reads) > 1:
        names = {one.name for one in reads}
        one_name = draw.choice(sorted(names))
        add(f"without {one_name}", "sync", _without({one_name}), _dropping({one_name}))
        add("without any readback", "sync", _without(names), _dropping(names))
    for one in those(Sync):
        assert isinstance(one, Sync)
        add(f"without {one.name}", "sync", _without({one.name}), _dropping({one.name}))
    for one in those(Copy):
        if isinstance(one, Copy) and one.to == "device" and one.blocks:
            add(f"{one.name} asynchronous", "copy", _asynchronous(one.name), _unblock(one.name))
    kernels = [one for one in those(Launch) if isinstance(one, Launch) and one.stream != COMM]
    top = max(kernels, key=lambda one: one.ns)
    for kernel in {top.name: top, (other := draw.choice(kernels)).name: other}.values():
        add(
            f"{kernel.name} twice as fast",
            "kernel",
            _scaled({kernel.name}, 0.5),
            _shrinking({f"{kernel.name}_kernel"}, 0.5),
        )
    if side := {one.name for one in kernels if one.stream == SIDE}:
        shrink = _shrinking({f"{name}_kernel" for name in side}, 0.5)
        add("side kernels twice as fast", "kernel", _scaled(side, 0.5), shrink)
    graphs = [one for one in those(Graph) if isinstance(one, Graph)]
    if graphs:
        names = {one.name for one in graphs}
        inside = {f"{one.name}_kernel_{i}" for one in graphs for i in range(len(one.each_ns))}
        add("graphs twice as fast", "kernel", _scaled(names, 0.5), _shrinking(inside, 0.5))
    ops = [one for one in those(Host) if isinstance(one, Host) and one.traced]
    if ops:
        names = {one.name for one in ops}
        add("host ops twice as fast", "host", _scaled(names, 0.5), _shrinking(names, 0.5))
        name = draw.choice(sorted(names))
        add(f"{name} twice as fast", "host", _scaled({name}, 0.5), _shrinking({name}, 0.5))
    comm = {one.name for one in those(Launch) if isinstance(one, Launch) and one.stream == COMM}
    if comm:
        add("perfect network", "comm", _scaled(comm, 0.0), _shrinking(comm, 0.0))
        add("communication overlapped", "comm", _never_waited_for, _overlapped(comm))
    for one in those(Fetch):
        assert isinstance(one, Fetch)
        many = 8 * max(one.workers, 2)
        add(f"{many} workers", "loader", _loaded_by(many), _fetches_elsewhere(many))
    small = [one for one in kernels if one.name.startswith("step_")]
    if len(small) >= 10:
        names = {one.name for one in small[1:]}
        add("one optimizer kernel", "launch", _without(names), _dropping(names))
    return out


def questions(program: Program) -> list[Fix]:
    """Return what a user may ask by hand, with the program in which it is so."""
    machine = program.machine
    quick_host = replace(
        machine,
        **{
            name: getattr(machine, name) // 2
            for name in ("launch_ns", "op_ns", "call_ns", "graph_ns", "free_ns", "batch_ns")
        },
    )

    def scaled(factor: float, which: Callable[[Instruction], bool]) -> Program:
        return program.change(lambda one: [_times(one, factor) if which(one) else one])

    def computes(one: Instruction) -> bool:
        return isinstance(one, Graph) or (isinstance(one, Launch) and one.stream != COMM)

    def communicates(one: Instruction) -> bool:
        return isinstance(one, Launch) and one.stream == COMM

    def keeps_the_host(one: Instruction) -> bool:
        return isinstance(one, Host) or (isinstance(one, Fetch) and not one.workers)

    asked = (
        ("gpu*0.5", scaled(0.5, computes)),
        ("cpu*0.5", replace(scaled(0.5, keeps_the_host), machine=quick_host)),
        ("launch=0", replace(program, machine=replace(machine, launch_ns=0, graph_ns=0))),
        ("comm=0", scaled(0.0, communicates)),
        ("copy*0.5", scaled(0.5, lambda one: isinstance(one, Copy))),
        ("loader=0", program.change(_unloaded)),
        ("no-sync", program.change(_unblocked)),
    )
    return [Fix(text, "question", after, parse_what_if(text).edits) for text, after in asked if after != program]


# -- what a fix does to the program ------------------------------------------------------------


def _without(names: set[str]) -> Swap:
    return lambda one: [] if getattr(one, "name", None) in names else [one]


def _times(one: Instruction, factor: float) -> Instruction:
    if isinstance(one, Graph):
        return replace(one, each_ns=tuple(round(ns * factor) for ns in one.each_ns))
    assert isinstance(one, Host | Launch | Copy | Fetch)
    return replace(one, ns=round(one.ns * factor))


def _scaled(names: set[str], factor: float) -> Swap:
    def swap(one: Instruction) -> Sequence[Instruction]:
        if isinstance(one, Host | Launch | Graph) and one.name in names:
            return [_times(one, factor)]
        return [one]

    return swap


def _asynchronous(name: str) -> Swap:
    def swap(one: Instruction) -> Sequence[Instruction]:
        return [replace(one, blocks=False)] if isinstance(one, Copy) and one.name == name else [one]

    return swap


def _loaded_by(workers: int) -> Swap:
    return lambda one: [replace(one, workers=workers) if isinstance(one, Fetch) else one]


def _unloaded(one: Instruction) -> Sequence[Instruction]:
    return [] if isinstance(one, Fetch) else [one]


def _unblocked(one: Instruction) -> Sequence[Instruction]:
    if isinstance(one, Sync) and one.on != "free":
        return []
    return [replace(one, blocks=False)] if isinstance(one, Copy) else [one]


def _never_waited_for(one: Instruction) -> Sequence[Instruction]:
    return [] if isinstance(one, Join) and one.first == COMM else [one]


# -- what it does to the rows ------------------------------------------------------------------


def _rows(trace: Trace, names: set[str]) -> np.ndarray:
    """Return these ops with everything inside, and the work they launched."""
    host = trace.named(*names) & trace.hosts
    host = host | trace.tree.under(host)
    return np.union1d(np.flatnonzero(host), trace.links.work_under(host))


def _dropping(names: set[str]) -> Callable[[Trace], list[Edit]]:
    return lambda trace: [Edit("drop", _rows(trace, names))]


def _shrinking(names: set[str], factor: float) -> Callable[[Trace], list[Edit]]:
    def edits(trace: Trace) -> list[Edit]:
        rows = trace.named(*names) & (trace.works | (trace.kind == Kind.OP))
        # a collective shares its name with the operator that launches it
        if (trace.works & rows).any():
            rows &= trace.works
        return [Edit("shrink", np.flatnonzero(rows), factor)]

    return edits


def _unblock(name: str) -> Callable[[Trace], list[Edit]]:
    def edits(trace: Trace) -> list[Edit]:
        inside = trace.tree.under(trace.named(name))
        return [Edit("unblock", np.flatnonzero(inside & trace.named("cudaStreamSynchronize")))]

    return edits


def _overlapped(names: set[str]) -> Callable[[Trace], list[Edit]]:
    return lambda trace: [Edit("overlap", np.flatnonzero(trace.named(*names) & trace.works))]


def _fetches_elsewhere(workers: int) -> Callable[[Trace], list[Edit]]:
    def edits(trace: Trace) -> list[Edit]:
        here = np.flatnonzero(trace.matching(r"_SingleProcessDataLoaderIter\.__next__$"))
        waits = np.flatnonzero(trace.matching(r"_MultiProcessingDataLoaderIter\.__next__$"))
        # how long a worker takes is not recorded: enough of them, and nobody waits
        return [Edit("parallel", here, 1 / workers)] if len(here) else [Edit("drop", waits)]

    return edits
