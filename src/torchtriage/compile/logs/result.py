"""The result of analysing compile logs: the dataclasses are the JSON document.

Times are ``_ms`` floats, of one process where the owner of the field says nothing else; ``share`` is of the compile
time of its owner. Compile ids are PyTorch's own, ``0/1``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.core.finding import Crash, Finding, Fix, Frame, NotChecked, Note

COMPILE_SCHEMA = "torchtriage-compile/1"


@dataclass(frozen=True)
class Count:
    """A name and how often."""

    name: str
    count: int


@dataclass(frozen=True)
class LogCoverage:
    """Every entry of the logs accounted for: ``n_read`` is ``n_used`` and ``skipped`` together.

    ``n_damaged`` : payloads that are not those whose checksum their header names; what could be read of them was
    used. ``n_breaks``/``n_recompiles`` : records, which the rows of the result add up to.
    """

    n_read: int
    n_used: int
    n_skipped: int
    n_damaged: int
    n_breaks: int
    n_recompiles: int
    skipped: tuple[Count, ...]
    kinds: tuple[Count, ...]


@dataclass(frozen=True)
class Joined:
    """What a trace adds, per step, of the trace's main device.

    ``n_seams`` : calls of compiled code that a break ended or a recompilation stalled. ``idle_ms`` : the device
    idle meanwhile; ``n_launches`` : kernels launched there outside of graphs. ``at_most`` : the trace does not show
    where a graph ends (backends other than Inductor), so that times are bounds that hold the graph too, and
    launches are not told.
    """

    per: str
    of_ms: float
    n_seams: float
    host_ms: float
    idle_ms: float | None
    n_launches: float | None
    n_kernels: float | None
    at_most: bool = False


@dataclass(frozen=True)
class GraphBreak:
    """Breaks of one cause at one line.

    ``id`` : PyTorch's; empty where neither the log nor the installed torch tells. ``frame`` : the line as PyTorch
    names it; ``caller`` : the innermost line that is no library's, where it is another. ``functions`` : whose
    graphs it ended. ``count`` : records; ``ranks`` : where.
    """

    id: str
    type: str
    explanation: str
    hints: tuple[str, ...]
    context: str
    trying: str
    frame: Frame | None
    caller: Frame | None
    stack: tuple[Frame, ...]
    functions: tuple[Frame, ...]
    count: int
    compile_ids: tuple[str, ...]
    ranks: tuple[int, ...]
    fix: Fix
    trace: Joined | None = None


@dataclass(frozen=True)
class AlsoChanged:
    """What changed beside the guard that the log names, as guards of the two graphs tell.

    ``cause``, ``source``, ``dim``, ``values`` : as of :class:`Recompile`. ``count`` : in how many recompilations.
    """

    cause: str
    source: str
    dim: int
    values: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Recompile:
    """Recompilations of one function for one kind of guard.

    ``caller`` : the innermost line that is no library's, where the function is a library's. ``cause`` : the class
    of guard; ``source`` : what it looks at. ``frame`` : the line that made it a guard. ``values`` : what it saw, in
    order. ``also`` : what else changed, so that a cure of this alone is not enough. ``mark_dynamic``/``bucketing``/
    ``dynamic`` : would that end them: ``yes``, ``no``, or ``once`` for one less. ``total_ms`` : what they took; a part
    may be unknown. ``limit`` : the recompile limit ended them: later calls run uncompiled.
    """

    function: Frame
    caller: Frame | None
    cause: str
    source: str
    dim: int
    guard: str
    frame: Frame | None
    code: str
    hint: str
    values: tuple[str, ...]
    count: int
    compile_ids: tuple[str, ...]
    ranks: tuple[int, ...]
    total_ms: float
    limit: bool
    others: tuple[Count, ...]
    mark_dynamic: str
    bucketing: str
    dynamic: str
    fix: Fix
    trace: Joined | None = None
    also: tuple[AlsoChanged, ...] = ()


@dataclass(frozen=True)
class Guards:
    """Guards of all graphs together, as installed.

    ``latency_us`` : of one evaluation, the slowest graph's, as dynamo measured it once; ``slowest`` : its compile
    id and function. ``places`` : lines that asked for most, ``sources`` : variables. ``n_python`` : those that run
    Python.
    """

    n_guards: int
    n_graphs: int
    n_python: int
    latency_us: float | None
    slowest: str
    kinds: tuple[Count, ...]
    places: tuple[Count, ...]
    sources: tuple[Count, ...]


@dataclass(frozen=True)
class CompiledFunction:
    """One function, or its rest after a break, over all its compilations.

    ``outcome`` : ``captured``, ``empty`` (nothing to compile), ``failed``, ``limit`` (runs uncompiled from then
    on), ``skipped``, ``unfinished`` (the log ends first). ``why`` : of the last three. ``n_ops`` : of its largest
    graph.
    """

    frame: Frame
    outcome: str
    why: str
    n_compiles: int
    n_attempts: int
    n_breaks: int
    n_ops: int | None
    n_guards: int | None
    total_ms: float
    backward_ms: float
    compile_ids: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LogPhase:
    """Compile time by what it was for; ``self_ms`` of all phases add up to all marks' time."""

    name: str
    self_ms: float
    share: float
    marks: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True)
class PhaseSpan:
    """One piece of the waterfall, from the process's first mark on."""

    start_ms: float
    dur_ms: float
    depth: int
    name: str
    phase: str
    compile_id: str


@dataclass(frozen=True)
class PassStage:
    """What a group of passes changed, over all graphs that are in the log before and after it."""

    name: str
    n_graphs: int
    n_before: int
    n_after: int
    gone: tuple[Count, ...]
    came: tuple[Count, ...]


@dataclass(frozen=True)
class Cache:
    """One cache; ``saved_ms`` : what its hits saved, where the log records it."""

    name: str
    n_hits: int
    n_misses: int
    n_bypasses: int
    saved_ms: float
    bypass_reasons: tuple[Count, ...]


@dataclass(frozen=True)
class Inductor:
    """What Inductor made of the graphs.

    ``generated`` : kernels it wrote, by language; ``library``/``fallback`` : calls of libraries and of operators
    left as they are. ``n_fused_ops`` operators are in the ``n_fused_kernels`` kernels whose operators are told.
    """

    n_modules: int
    generated: tuple[Count, ...]
    library: tuple[Count, ...]
    fallback: tuple[Count, ...]
    n_fused_ops: int
    n_fused_kernels: int
    autotune_ms: float
    stages: tuple[PassStage, ...]
    passes: tuple[tuple[str, int, float], ...]
    caches: tuple[Cache, ...]
    cudagraph_skips: tuple[Count, ...]


@dataclass(frozen=True)
class Process:
    """One log: one process of one rank.

    ``restart`` : 0 for the rank's first process. ``cold_ms`` : compilations for which a cache was asked and had
    nothing; ``warm_ms`` : all caches that were asked had it. ``n_compiles`` and ``n_graphs`` are None for a text
    log, which does not tell.
    """

    path: str
    size_bytes: int
    form: str
    rank: int | None
    restart: int
    torch: str
    started: str
    n_compiles: int | None
    n_graphs: int | None
    n_breaks: int
    n_recompiles: int
    compile_ms: float
    marked_ms: float
    cold_ms: float
    warm_ms: float
    n_cold: int
    n_warm: int
    spans: tuple[PhaseSpan, ...]
    books: LogCoverage
    end: str


@dataclass(frozen=True)
class Drawing:
    """One FX graph, placed for the page, in pixels.

    ``nodes`` rows are (label, kind, what is said of it, x and y of its centre, width, height); kind is ``input``,
    ``op``, ``group`` (several nodes) or ``output``. ``edges`` rows are places of nodes. ``end`` : the graph break
    that ended the graph, empty where none did. ``processes`` : which of several have it, ``rank 0``.
    """

    title: str
    kind: str
    compile_id: str
    n_nodes: int
    width: float
    height: float
    nodes: tuple[tuple[str, str, str, float, float, float, float], ...]
    edges: tuple[tuple[int, int], ...]
    end: str = ""
    processes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileResult:
    """Everything said about the logs.

    ``healthy`` : no finding, ranks did the same, and all was logged that there is to find. ``compile_ms`` : wall
    time of all compilations, summed over processes.
    """

    schema: str
    version: str
    paths: tuple[str, ...]
    verdict: tuple[str, str, str]
    healthy: bool
    torch: tuple[str, ...]
    compile_ms: float
    books: LogCoverage
    processes: tuple[Process, ...]
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    functions: tuple[CompiledFunction, ...]
    n_inlined: int
    inlined: tuple[Frame, ...]
    guards: Guards
    phases: tuple[LogPhase, ...]
    inductor: Inductor
    divergence: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    not_checked: tuple[NotChecked, ...]
    crashes: tuple[Crash, ...] = ()
    trace_path: str = ""
    payback: str = ""
    drawings: tuple[Drawing, ...] = ()
