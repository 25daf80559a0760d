"""What one process's compile log records, whichever reader filled it; bounded by what is distinct."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from torchtriage.compile.logs.breaks import Break
from torchtriage.compile.logs.guard_changes import besides
from torchtriage.compile.logs.guards import GuardTree
from torchtriage.compile.logs.locations import resumed, whole_name
from torchtriage.compile.logs.phases import Phases
from torchtriage.compile.logs.recompiles import TENSOR_CAUSES, GuardFailure
from torchtriage.core.finding import Frame

FunctionKey = tuple[str, str, int]
"""Name, file and first line."""


@dataclass
class Compilation:
    """One function compiled, or tried to be, once.

    ``id`` : PyTorch's; after ``torch._dynamo.reset()`` it is given again.
    """

    id: str
    name: str = ""
    file: str = ""
    line: int = 0
    stack: tuple[Frame, ...] = ()
    n_attempts: int = 1
    dur_ns: int | None = None
    backward_ns: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    has_metrics: bool = False
    has_graph: bool = False
    is_started: bool = False
    limit: str = ""
    error: str = ""
    cache: Counter[str] = field(default_factory=Counter)
    n_breaks: int = 0
    guards: GuardTree | None = None

    @property
    def function(self) -> FunctionKey:
        """Return the function; its rest after a break counts as it."""
        return whole_name(self.name), self.file, self.line

    @property
    def part(self) -> FunctionKey:
        """Return what was compiled: the function, or its rest after a break."""
        return self.name, self.file, self.line

    @property
    def number(self) -> int:
        """Return which compilation of its function it is, from 0; -1 where the id does not say."""
        number = self.id.rpartition("/")[2]
        return int(number) if number.isdecimal() and len(number) < 10 else -1

    @property
    def total_ns(self) -> int:
        """Return the time of its forward and backward together, as far as it is known."""
        return (self.dur_ns or 0) + self.backward_ns

    @property
    def resumed_at(self) -> int | None:
        """Return the line of the break after which this part goes on, None for the whole."""
        return resumed(self.name)


@dataclass
class BreakGroup:
    """Breaks of one cause at one line, each with its compilation and the function that its stack names."""

    first: Break
    records: list[tuple[Compilation, FunctionKey]] = field(default_factory=list)


@dataclass
class RecompileGroup:
    """Recompilations of one function for one kind of guard, in order.

    ``others`` : causes that failed of other graphs. ``besides`` : of each, what else changed since the same graph.
    """

    function: FunctionKey
    compilations: list[Compilation] = field(default_factory=list)
    failures: list[GuardFailure] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    besides: list[list[GuardFailure]] = field(default_factory=list)


@dataclass
class ProcessLog:
    """What one process's log records.

    Entries: ``n_read`` is ``n_used`` and all of ``skipped`` (by reason) together; ``n_damaged`` : payloads used though
    their checksum is not the header's. ``caches`` : by name and ``hit``, ``miss`` or ``bypass``, and ``bypasses`` by
    name and reason. ``n_staged`` : graphs before and after a group of passes; their operators by group and name.
    """

    path: str
    size_bytes: int = 0
    form: str = "structured"
    logged_rank: int | None = None
    named_rank: int | None = None
    torch: str = ""
    started: str = ""
    n_read: int = 0
    n_used: int = 0
    n_damaged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    compilations: list[Compilation] = field(default_factory=list)
    breaks: dict[tuple[Any, ...], BreakGroup] = field(default_factory=dict)
    recompiles: dict[tuple[Any, ...], RecompileGroup] = field(default_factory=dict)
    reasons: list[tuple[Compilation, Compilation | None, GuardFailure, tuple[str, ...]]] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)
    caches: Counter[tuple[str, str]] = field(default_factory=Counter)
    bypasses: Counter[tuple[str, str]] = field(default_factory=Counter)
    cache_saved_ns: Counter[str] = field(default_factory=Counter)
    n_staged: Counter[str] = field(default_factory=Counter)
    ops_before: Counter[tuple[str, str]] = field(default_factory=Counter)
    ops_after: Counter[tuple[str, str]] = field(default_factory=Counter)
    n_output_codes: int = 0
    n_generated: Counter[str] = field(default_factory=Counter)
    n_fused: int = 0
    n_fused_into: int = 0
    library: Counter[str] = field(default_factory=Counter)
    fallback: Counter[str] = field(default_factory=Counter)
    cudagraph_skips: Counter[str] = field(default_factory=Counter)
    inlined: set[tuple[str, str]] = field(default_factory=set)
    specialized: Counter[str] = field(default_factory=Counter)
    graphs: list[tuple[str, str, str]] = field(default_factory=list)
    n_graphs: Counter[str] = field(default_factory=Counter)
    schedules: dict[str, str] = field(default_factory=dict)
    n_break_records: int = 0
    n_recompile_records: int = 0
    automatic_dynamic: bool = True
    end: str = ""
    _now: dict[str, Compilation] = field(default_factory=dict)
    _shown: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """Return the rank that the file's name has, else its records; None where none does."""
        return self.named_rank if self.named_rank is not None else self.logged_rank

    def compilation(self, compile_id: str) -> Compilation:
        """Return the latest compilation with this id; it is made when it is first named."""
        return self._now.get(compile_id) or self.begin(compile_id)

    def begin(self, compile_id: str) -> Compilation:
        """Return a new compilation with this id."""
        new = self._now[compile_id] = Compilation(compile_id)
        if compile_id:  # what is logged outside of any is no compilation
            self.compilations.append(new)
        return new

    def saw_break(self, graph_break: Break, where: Compilation) -> None:
        """Count a break under its cause and line."""
        self.n_break_records += 1
        where.n_breaks += 1
        function = where.function
        if self.form == "text":  # which does not name what is compiled
            inner = graph_break.stack[0] if graph_break.stack else graph_break.frame
            function = (inner.function, inner.file, 0) if inner else ("", "", 0)
        place = (graph_break.frame.file, graph_break.frame.line) if graph_break.frame else (*function, 0)
        key = (graph_break.id or graph_break.type, *place)
        if graph_break.caller is not None and graph_break.caller != graph_break.frame:
            key = (*key, graph_break.caller.file, graph_break.caller.line)
        elif graph_break.is_repeat:  # its stack was shown before
            key = self._shown.get(key, key)
        seen = self.breaks.get(key)
        if seen is None:
            seen = self.breaks[key] = BreakGroup(graph_break)
            self._shown.setdefault(key[: 1 + len(place)], key)
        elif not seen.first.stack and graph_break.stack:
            seen.first = graph_break
        seen.records.append((where, function))

    def saw_recompile(self, failures: list[GuardFailure], where: Compilation) -> None:
        """Note a recompilation for the guard of the nearest graph that failed.

        Tensors are compared first: a graph that fails on something else had the right tensors. Else it is the newest.
        """
        first = next((failure for failure in failures if failure.cause not in TENSOR_CAUSES), failures[0])
        others = tuple(failure.cause for failure in failures if failure.key != first.key)
        self.n_recompile_records += 1
        self.reasons.append((where, self._now.get(first.graph), first, others))

    def finish(self) -> None:
        """Group recompilations by their function, and place breaks: both are named after them."""
        self._name_compilations()
        for where, cached, first, others in self.reasons:
            named = where if where.name else cached or where
            seen = self.recompiles.setdefault((named.part, *first.key), RecompileGroup(named.part))
            seen.others.update(others)
            seen.compilations.append(where)
            seen.failures.append(first)
            next_ = cached is not None and where.number == cached.number + 1
            seen.besides.append(besides(first, cached.guards if cached else None, where.guards, next_=next_))
        self.reasons.clear()
        self._place_breaks()

    def _name_compilations(self) -> None:
        """Name those that ended before they said what of: an id begins with the function's number.

        So does the call that hits the recompile limit.
        """
        last: dict[str, Compilation] = {}
        for compilation in self.compilations:
            frame = compilation.id.rpartition("/")[0]
            if compilation.name:
                last[frame] = compilation
            elif frame in last:
                named = last[frame]
                compilation.name, compilation.file, compilation.line = named.name, named.file, named.line

    def _place_breaks(self) -> None:
        """Name the line of breaks whose record names none: where the function goes on after it."""
        rests = sorted(
            (compilation.line or compilation.resumed_at, compilation.function[:2])
            for compilation in self.compilations
            if compilation.resumed_at is not None
        )
        for seen in self.breaks.values():
            if seen.first.frame is not None:
                continue
            ended = seen.records[0][0]
            after = ended.line if ended.resumed_at is not None else 0
            line = next((at for at, of in rests if at > after and of == ended.function[:2]), None)
            if line is not None:
                frame = Frame(ended.file, line, ended.function[0])
                seen.first = replace(seen.first, frame=frame, caller=frame)
