"""What the stack sampler of a run saw, read: where each thread was, and for how long."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

_STANDARD = re.compile(r"/lib(?:64)?/python3[.\d]*/")
_OURS = ("/torchtriage/core/record/", "/torchtriage/memory/leaks/")
FEWEST_STEPS = 3
OUTLIER = 3.0
"""A step longer than this many medians is not steady: it compiled, evaluated or saved."""
RECURS, RECURRING_SHARE = 3, 0.1
"""How often steps are that long, and what part of all steps' time, where they belong to the loop: its every tenth."""
FEWEST_BARE = 2
"""So many of them without the profiler: one may be anything."""
AUTOGRAD = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
"""Where a backward pass is begun, in new and in old versions of torch."""
CAPTURED = ("early light", "early heavy", "calls", "light", "heavy")
"""States of the recorder in which a step has the profiler in it, or a look at its calls."""


@dataclass(frozen=True)
class Position:
    """Where a frame is: its function, and the instruction that it executes."""

    file: str
    function: str
    first_line: int
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None

    @cached_property
    def library(self) -> str:
        """The path below the folder of installed or standard modules; empty for the user's own code."""
        path = self.file.replace("\\", "/")
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in path:
                return path.rpartition(folder)[2]
        if (found := _STANDARD.search(path)) is not None:
            return path[found.end() :]
        if "/torchinductor_" in path:
            return "torchinductor/generated.py"
        if any(folder in path for folder in _OURS):
            return "torchtriage/record.py"
        return self.file if self.file.startswith("<") and not self.file.startswith("<ipython") else ""

    @property
    def name(self) -> str:
        """The function's own name, without those around it."""
        return self.function.rpartition(".")[2]

    @property
    def of_module(self) -> str:
        """The function's own name behind that of its library's module."""
        module = self.library.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"{module}.{self.name}"


Stack: TypeAlias = tuple[Position, ...]
"""Frames of one thread, innermost first."""


@dataclass(frozen=True, eq=False)
class Look:
    """One thread's stack, and the time it stands for; ``collects``: in the collector."""

    begin_ns: int
    end_ns: int
    stack: Stack
    collects: bool = False

    @property
    def ns(self) -> int:
        """The time it stands for."""
        return self.end_ns - self.begin_ns

    @cached_property
    def user(self) -> tuple[int, ...]:
        """Where in the stack the user's own frames are, innermost first."""
        return tuple(at for at, position in enumerate(self.stack) if not position.library)

    @cached_property
    def below(self) -> tuple[Position, ...]:
        """The library frames that the innermost frame of the user's has called, innermost first."""
        return self.stack[: self.user[0]] if self.user else self.stack


@dataclass(frozen=True)
class Step:
    """One step between two boundaries; ``recorded``: the profiler ran in it."""

    begin_ns: int
    end_ns: int
    recorded: bool

    @property
    def ns(self) -> int:
        """Its wall time."""
        return self.end_ns - self.begin_ns


class MemoryLook(NamedTuple):
    """The resident set at a time, and the system time and page faults of the process until then."""

    at_ns: int
    resident: int
    system_ns: int
    faults: int


@dataclass(frozen=True, eq=False)
class Samples:
    """Everything the sampler of one process saw; times in ns of one clock."""

    process_started_ns: int
    started_ns: int
    ended_ns: int
    looks: tuple[Look, ...]
    """Of the loop's thread, without gaps."""
    others: dict[int, tuple[Look, ...]]
    """Of the other threads, by their identity."""
    steps: tuple[Step, ...]
    own: tuple[tuple[int, int], ...]
    """When the recorder worked at a step boundary."""
    collections: tuple[tuple[int, int, int], ...]
    memory: tuple[MemoryLook, ...]
    torch: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    problem: str = ""
    """What ended the sampling early, or could not be written."""

    @cached_property
    def files(self) -> list[str]:
        """The user's files that the looks went through, by name."""
        return sorted({position.file for look in self.looks for position in look.stack if not position.library})

    @cached_property
    def steady(self) -> tuple[Step, ...]:
        """The steps to judge by: without the profiler, and without the first of a longer loop."""
        bare = [step for step in self.steps if not step.recorded]
        some = bare if len(bare) >= FEWEST_STEPS else list(self.steps)
        if len(some) <= FEWEST_STEPS:
            return tuple(some)
        some = some[1:]
        limit = OUTLIER * median(step.ns for step in some)
        recurring = self.recurring if some[0] in bare else ()
        return tuple(step for step in some if step.ns <= limit or step in recurring)

    @cached_property
    def recurring(self) -> tuple[Step, ...]:
        """Long steps that come again and again, and are no compilation: loaders that start anew, saving, evaluation.

        Those under the profiler count, where they are long among their own, but are not among what is returned.
        """
        compiling = [
            look.begin_ns
            for look in self.looks
            if any(position.library.startswith("torch/_dynamo/convert_frame") for position in look.stack)
        ]
        some = self.steps[1:]
        long: list[Step] = []
        for recorded in (False, True):
            mine = [step for step in some if step.recorded == recorded]
            limit = OUTLIER * median(step.ns for step in mine) if mine else 0.0
            long += (
                step
                for step in mine
                if step.ns > limit and bisect_left(compiling, step.begin_ns) == bisect_left(compiling, step.end_ns)
            )
        halves = {step.begin_ns < some[len(some) // 2].begin_ns for step in long}
        enough = len(long) >= RECURS and sum(step.ns for step in long) >= RECURRING_SHARE * sum(
            step.ns for step in some
        )
        bare = tuple(step for step in long if not step.recorded)
        return bare if enough and len(halves) == 2 and len(bare) >= FEWEST_BARE else ()


def read_samples(path: Path, roots: Sequence[str] = ()) -> Samples | None:
    """Return what a sampler wrote; None where there is no such file or it is damaged.

    ``roots`` : folders of the script, below which files are named as recordings name them.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
        return _samples(facts, roots)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def shortened(file: str, roots: Sequence[str]) -> str:
    """Return a path below one of the roots without it."""
    for root in sorted(roots, key=len, reverse=True):
        if root and file.startswith(root.rstrip("/\\") + os.sep):
            return file[len(root.rstrip("/\\")) + 1 :]
    return file


def _samples(facts: dict[str, Any], roots: Sequence[str]) -> Samples:
    frames = [Position(*frame) for frame in facts["frames"]]
    frames = [frame if frame.library else replace(frame, file=shortened(frame.file, roots)) for frame in frames]
    stacks = [tuple(frames[at] for at in stack) for stack in facts["stacks"]]
    begins, ends, steppers = facts["marks"]
    thread = max(set(steppers), key=steppers.count) if steppers else facts["main_thread"]
    looks: dict[int, list[Look]] = {}
    last_ns, before_ns = facts["started_ns"], facts["started_ns"]
    for at_ns, together in groupby(zip(*facts["looks"], strict=True), key=itemgetter(0)):
        seen = _with_autograd({of_thread: stacks[stack] for _, of_thread, stack in together}, thread)
        for of_thread, stack in seen.items():
            # a collection lets nobody look until it calls the sampler back
            collects = bool(stack) and stack[0].library.startswith("torchtriage/") and stack[0].name == "_collected"
            # a thread that was not there before has just begun to run Python
            begin_ns = last_ns if of_thread == thread else before_ns
            looks.setdefault(of_thread, []).append(Look(begin_ns, at_ns, stack[collects:], collects))
        last_ns, before_ns = at_ns if thread in seen else last_ns, at_ns
    marks = [(begin, end) for begin, end, stepper in zip(begins, ends, steppers, strict=True) if stepper == thread]
    return Samples(
        process_started_ns=facts["process_started_ns"],
        started_ns=facts["started_ns"],
        ended_ns=facts["ended_ns"],
        looks=tuple(looks.pop(thread, ())),
        others={other: tuple(seen) for other, seen in looks.items()},
        steps=tuple(_steps(marks, facts["states"])),
        own=tuple(marks),
        collections=tuple(tuple(collection) for collection in facts["collections"]),
        memory=tuple(MemoryLook(*look) for look in zip(*facts["rss"], strict=True)),
        torch=facts.get("torch") or {},
        names={int(ident): name for ident, name in (facts.get("threads") or {}).items()},
        problem=str(facts.get("problem") or ""),
    )


def _with_autograd(seen: dict[int, Stack], loop_thread: int) -> dict[int, Stack]:
    """Return one look at all threads, with the Python of a backward pass in the thread that waits for the pass.

    On a device autograd calls functions, hooks and what is computed again from threads of its own, which no Python
    has started. On the CPU it calls them from the thread that began the pass.
    """
    waiting = seen.get(loop_thread, ())
    if not waiting or waiting[0].library not in AUTOGRAD:
        return seen
    own = next((other for other, stack in seen.items() if other != loop_thread and _begun_outside(stack)), None)
    if own is None:
        return seen
    return {**{other: stack for other, stack in seen.items() if other != own}, loop_thread: seen[own] + waiting}


def _begun_outside(stack: Stack) -> bool:
    """Whether a thread was not begun by Python, and is not the sampler's."""
    return bool(stack) and not stack[-1].library.startswith(("threading.py", "torchtriage/"))


def _steps(marks: Sequence[tuple[int, int]], states: Sequence[tuple[int, str]]) -> list[Step]:
    steps, state, at = [], "", 0
    for (begun, ended), (next_begun, _) in pairwise(marks):
        while at < len(states) and states[at][0] <= begun:
            state, at = states[at][1], at + 1
        steps.append(Step(ended, next_begun, state in CAPTURED))
    return steps
