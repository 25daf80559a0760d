"""What one process's compile log tells, whichever reader filled it; bounded by what is distinct.

Every entry is used, or skipped with a reason; :class:`Tally` holds the books.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from torchtriage.compile.logs.breaks import Break
from torchtriage.compile.logs.guards import GuardTree
from torchtriage.compile.logs.locations import resumed, whole_name
from torchtriage.compile.logs.phases import Phases
from torchtriage.compile.logs.recompiles import TENSOR_CAUSES, GuardFailure
from torchtriage.core.finding import Frame

__all__ = ["BreakGroup", "CacheCounts", "Compilation", "FunctionKey", "ProcessLog", "RecompileGroup", "StageCounts"]

MAX_IDS = 50
FunctionKey = tuple[str, str, int]
"""Name, file and first line."""


@dataclass
class EntryTally:
    """The books of a file: ``n_read`` is ``n_used`` and all of ``skipped`` together.

    ``damaged`` : payloads that are not those whose checksum the header names; used where they could be read.
    ``kinds`` : entries by kind.
    """

    n_read: int = 0
    n_used: int = 0
    n_damaged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)


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
    def total_ns(self) -> int:
        """Return the time of its forward and backward together, as far as it is known."""
        return (self.dur_ns or 0) + self.backward_ns

    @property
    def resumed_at(self) -> int | None:
        """Return the line of the break after which this part goes on, None for the whole."""
        return resumed(self.name)


@dataclass
class BreakGroup:
    """Breaks of one cause at one line."""

    first: Break
    count: int = 0
    ids: list[str] = field(default_factory=list)
    records: list[tuple[Compilation, FunctionKey]] = field(default_factory=list)
    functions: Counter[FunctionKey] = field(default_factory=Counter)


@dataclass
class RecompileGroup:
    """Recompilations of one function for one kind of guard, in order."""

    function: FunctionKey
    first: GuardFailure
    count: int = 0
    compilations: list[Compilation] = field(default_factory=list)
    failures: list[GuardFailure] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)


@dataclass
class CacheCounts:
    """One cache: how often it had what was asked for."""

    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    saved_ns: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: CacheCounts) -> None:
        """Count another process's use of the same cache too."""
        self.hits += other.hits
        self.misses += other.misses
        self.bypasses += other.bypasses
        self.saved_ns += other.saved_ns
        self.reasons.update(other.reasons)


@dataclass
class StageCounts:
    """What a group of passes did to all graphs together."""

    n_graphs: int = 0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)

    def add(self, before: Counter[str], after: Counter[str], n_graphs: int = 1) -> None:
        """Count more graphs."""
        self.n_graphs += n_graphs
        self.before.update(before)
        self.after.update(after)


@dataclass
class ProcessLog:
    """What one process's log tells."""

    path: str
    size_bytes: int = 0
    form: str = "structured"
    rank: int | None = None
    named_rank: int | None = None
    torch: str = ""
    started: str = ""
    tally: EntryTally = field(default_factory=EntryTally)
    compilations: list[Compilation] = field(default_factory=list)
    breaks: dict[tuple[Any, ...], BreakGroup] = field(default_factory=dict)
    recompiles: dict[tuple[Any, ...], RecompileGroup] = field(default_factory=dict)
    reasons: list[tuple[Compilation, GuardFailure, tuple[str, ...]]] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)
    caches: dict[str, CacheCounts] = field(default_factory=lambda: defaultdict(CacheCounts))
    stages: dict[str, StageCounts] = field(default_factory=lambda: defaultdict(StageCounts))
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
    def told_rank(self) -> int | None:
        """Return the rank that the file's name tells, else its records; None where none does."""
        return self.named_rank if self.named_rank is not None else self.rank

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
        seen.count += 1
        seen.records.append((where, function))
        if where.id and len(seen.ids) < MAX_IDS:
            seen.ids.append(where.id)

    def saw_recompile(self, failures: list[GuardFailure], where: Compilation) -> None:
        """Note a recompilation for the guard of the nearest graph that failed.

        Tensors are compared first: a graph that fails on something else had the right tensors. Else it is the newest.
        """
        first = next((failure for failure in failures if failure.cause not in TENSOR_CAUSES), failures[0])
        others = tuple(failure.cause for failure in failures if failure.key != first.key)
        self.n_recompile_records += 1
        self.reasons.append((where, first, others))

    def finish(self) -> None:
        """Give breaks and recompilations their functions, which are named after them."""
        self._name_compilations()
        for where, first, others in self.reasons:
            named = where if where.name else self._now.get(first.graph, where)
            seen = self.recompiles.setdefault((named.part, *first.key), RecompileGroup(named.part, first))
            seen.count += 1
            seen.others.update(others)
            seen.compilations.append(where)
            seen.failures.append(first)
        self.reasons.clear()
        for broken in self.breaks.values():
            for where, function in broken.records:
                broken.functions[where.function if where.name else function] += 1
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
