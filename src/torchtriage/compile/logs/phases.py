"""Where compile time went: the compiler's own begin and end marks, nested."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

PHASES = (
    (
        "Dynamo: tracing Python",
        r"^(?:dynamo|entire_frame_compile|_compile\.|compile_attempt_\d+|bytecode_tracing|compile_inner|convert_frame)",
    ),
    ("Backend, where it has no marks", r"^(?:OutputGraph\.call_user_compiler|backend_compile)"),
    ("Guards", r"guard"),
    ("Caches: look up, load, store", r"[Cc]ache|PyCodeCache|TritonBundler|pgo\."),
    (
        "AOTAutograd",
        r"aot_|AOT|create_aot|functionalize|min_cut|partition|backward_compile"
        r"|compiled_autograd|(?:fw|bw|inference)_compiler",
    ),
    ("Pass over the graph before autograd", r"pre_grad"),
    ("Pass over the joint graph", r"joint_graph"),
    ("Pass over the graph after autograd", r"post_grad|additional_fake_tensor_prop"),
    ("Autotuning", r"autotun|benchmark|precompil"),
    ("Compiling kernels: C++, Triton", r"compile_file|async_compile|triton|AsyncCompile|cuda_compile|nvcc"),
    (
        "Inductor: lowering, fusing, writing code",
        r"inductor|GraphLowering|Scheduler|code_gen|codegen|Wrapper|fx_codegen|compile_fx|pass\.",
    ),
    ("Garbage collection", r"^gc$"),
)
"""Name and pattern, first match counts."""
OTHER = "Other"
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in PHASES)
MAX_SPANS = 400
MAX_DEPTH = 6


def phase_of(name: str) -> str:
    """Return the phase that a mark belongs to."""
    return next((phase for phase, pattern in _PATTERNS if pattern.search(name)), OTHER)


class _Args(msgspec.Struct):
    compile_id: str | None = None


class _Event(msgspec.Struct):
    name: str
    ph: str
    ts: Annotated[float, msgspec.Meta(ge=0, lt=1e16)]
    args: _Args | None = None
    tid: int | str = 0
    pid: int | str = 0


@dataclass(slots=True)
class _Open:
    name: str
    start_ns: int
    compile_id: str
    inside_ns: int = 0


@dataclass
class Phases:
    """Marks of one process, closed as they come.

    By name: ``n_marks``, ``total_ns`` of the outermost of them, ``self_ns`` without marks inside.
    ``spans`` : the longest (dur_ns, start_ns, depth, name, compile id). ``outer_ns`` : what the outermost marks
    took together, so what all ``self_ns`` add up to. ``n_unended`` : marks that were taken to end with the last
    that the log tells of their compilation.
    """

    n_marks: Counter[str] = field(default_factory=Counter)
    total_ns: Counter[str] = field(default_factory=Counter)
    self_ns: Counter[str] = field(default_factory=Counter)
    spans: list[tuple[int, int, int, str, str]] = field(default_factory=list)
    by_compile_ns: Counter[str] = field(default_factory=Counter)
    outer_ns: int = 0
    n_unended: int = 0
    _open: dict[tuple[object, object], list[_Open]] = field(default_factory=lambda: defaultdict(list))
    _last_ns: dict[tuple[object, object, str], int] = field(default_factory=dict)
    _forced: Counter[str] = field(default_factory=Counter)
    _decoder: msgspec.json.Decoder[_Event] = field(default_factory=lambda: msgspec.json.Decoder(_Event, strict=False))

    def add(self, payload: bytes) -> str | None:
        """Take one ``chromium_event``; return why it cannot be used, if so.

        Raises msgspec.DecodeError: it is no such event.
        """
        event = self._decoder.decode(payload)
        compile_id = (event.args.compile_id if event.args else None) or ""
        whole_us = int(event.ts)
        time_ns = whole_us * 1000 + round((event.ts - whole_us) * 1000)
        if event.ph in ("B", "E"):
            self._last_ns[event.pid, event.tid, compile_id] = time_ns
        if event.ph == "B":
            self._open[event.pid, event.tid].append(_Open(event.name, time_ns, compile_id))
            return None
        if event.ph != "E":
            return None
        stack = self._open[event.pid, event.tid]
        depth = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].name == event.name), -1)
        if depth < 0:
            if self._forced[event.name]:
                self._forced[event.name] -= 1
                return None
            return "an end without a beginning"
        while len(stack) > depth + 1:  # ends later, or an exception went through it
            self._forced[stack[-1].name] += 1
            self._close(stack, time_ns)
        self._close(stack, time_ns)
        return None

    def finish(self) -> None:
        """End what is open, where the log was cut or an end was lost.

        It may be open still when another compilation begins: it ends with its own.
        """
        for (pid, tid), stack in self._open.items():
            self.n_unended += len(stack)
            while stack:
                self._close(stack, self._last_ns[pid, tid, stack[-1].compile_id])
        self._open.clear()

    def _close(self, stack: list[_Open], end_ns: int) -> None:
        mark = stack.pop()
        dur_ns = max(end_ns - mark.start_ns, 0)
        self.n_marks[mark.name] += 1
        self.self_ns[mark.name] += max(dur_ns - mark.inside_ns, 0)
        if not any(above.name == mark.name for above in stack):
            self.total_ns[mark.name] += dur_ns
        depth = len(stack)
        # marks inside are longer than what holds them where an end was lost
        spent_ns = max(dur_ns, mark.inside_ns)
        if stack:
            stack[-1].inside_ns += spent_ns
        else:
            self.outer_ns += spent_ns
            if mark.compile_id and mark.compile_id != "None":
                self.by_compile_ns[mark.compile_id] += dur_ns
        if depth < MAX_DEPTH:
            push = heapq.heappush if len(self.spans) < MAX_SPANS else heapq.heappushpop
            push(self.spans, (dur_ns, mark.start_ns, depth, mark.name, mark.compile_id))
