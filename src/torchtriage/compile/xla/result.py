"""The result of a model on PyTorch/XLA: the dataclasses are the JSON document.

Counts of HLO graphs are those of torch_xla's own metrics: ``CompileTime`` has a sample for each graph compiled,
``ExecuteTime`` one for each executed. Times are ``_ms``, of one step unless said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.compile.logs.result import Count, GraphBreak, Recompile
from torchtriage.core.finding import Fix, Frame, Note

XLA_SCHEMA = "torchtriage-xla/1"

RouteName = Literal["eager", "lazy", "openxla"]
RouteVerdict = Literal["faster", "slower", "equal", "undecided"]
FallbackKind = Literal["read", "shape", "not lowered"]
Cause = Literal[
    "fx graph",
    "step",
    "part",
    "probe",
    "input",
    "pending",
    "outside",
    "read",
    "dynamic shape",
    "fallback",
    "copy",
    "sync",
    "aliasing",
    "new sizes",
    "new constants",
    "new operations",
    "unknown",
]
"""Why an HLO graph was compiled; ``docs/xla.md`` says how each is recognised."""


@dataclass(frozen=True)
class Fallback:
    """An operator that ran on the host: ``aten::`` counters of torch_xla.

    ``kind`` : ``read`` asks for a value, ``shape`` has results of a size that depends on values, ``not lowered`` is
    one that XLA does not know. ``first_step`` : calls in the first step, those of dynamo's bridge trying operators
    out included; ``per_step`` : calls per steady step, None where no step was steady.
    """

    name: str
    kind: FallbackKind
    first_step: int
    per_step: float | None


@dataclass(frozen=True)
class FxGraph:
    """One FX graph as AOTAutograd hands it to the ``openxla`` backend.

    ``compile_id`` : of the dynamo graph that it is the forward, backward or inference graph of. ``n_ops`` : calls
    in it; ``parts`` : calls in each part that was lowered; ``not_lowered`` : operators it was cut at; ``hlo`` :
    numbers of the HLO graphs compiled for it, none where XLA had equal ones already. ``step`` : in which counted
    step dynamo captured it, from 0.
    """

    id: str
    compile_id: str
    kind: str
    n_ops: int | None
    parts: tuple[int, ...]
    not_lowered: tuple[Count, ...]
    hlo: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class HloGraph:
    """One HLO graph, in order of compilation.

    ``extra`` : not the one graph that this route has by right (lazy: one for a step; openxla: one for each FX
    graph). ``op`` : the PyTorch operator that asked for it. ``first_step`` and ``per_step`` : executions, as
    torch_xla's dumps tell. None is what was not told.
    """

    number: int
    hash: str
    cause: Cause
    reason: str
    extra: bool
    op: str
    fx: str
    frame: Frame | None
    step: int | None
    n_inputs: int | None
    n_outputs: int | None
    n_aliased: int | None
    n_ops: int | None
    compile_ms: float | None
    first_step: int
    per_step: float | None


@dataclass(frozen=True)
class CountedStep:
    """What torch_xla's metrics counted in one step of the counting process."""

    compiled: int
    executed: int
    executed_told: int
    compile_ms: float
    execute_ms: float
    to_device: int
    from_device: int
    to_device_bytes: float
    from_device_bytes: float


@dataclass(frozen=True)
class RouteTimes:
    """Wall times without counting, each step waited for; medians over processes.

    ``low_ms``/``high_ms`` : fastest and slowest process' median steady step. ``queued_ms`` : of a step among
    ``n_queued`` that were waited for once, at their end.
    """

    first_ms: float
    first_low_ms: float
    first_high_ms: float
    steady_ms: float
    low_ms: float
    high_ms: float
    queued_ms: float | None
    n_queued: int
    n_steps: int
    n_processes: int


@dataclass(frozen=True)
class RouteComparison:
    """Dynamo's steady step over LazyTensor's: geometric mean over rounds, and the interval that holds it in 95 %.

    Steps are the fastest tenth of each session.
    ``low``/``high`` : None below three rounds. ``verdict`` : of dynamo; ``equal`` within 5 %; below three rounds only
    a factor of ten is decided.
    """

    ratio: float
    low: float | None
    high: float | None
    n_rounds: int
    verdict: RouteVerdict


@dataclass(frozen=True)
class AnswerCheck:
    """Outputs, and gradients in training, of the first step against eager in float64."""

    verdict: str
    of: str
    error: float | None
    eager_error: float | None
    worst_at: str
    reason: str


@dataclass(frozen=True)
class Route:
    """One way to run a model.

    ``n_compiled`` : HLO graphs over all counted steps. ``executed_per_step``, ``compiled_per_step`` : means over
    the ``n_steady`` counted steps after the last that compiled; None where the last one still did.
    ``first_compiled_unwatched`` : of the first step in the timed processes; the same number where watching changed
    nothing.
    """

    name: RouteName
    failure: str
    steps: tuple[CountedStep, ...]
    n_compiled: int
    n_steady: int
    executed_per_step: float | None
    execute_ms_per_step: float | None
    first_compiled_unwatched: int | None
    graphs: tuple[HloGraph, ...]
    fallbacks: tuple[Fallback, ...]
    times: RouteTimes | None
    answers: AnswerCheck | None

    @property
    def n_extra(self) -> int:
        """Return how many of the compiled graphs are extra."""
        return sum(graph.extra for graph in self.graphs)


@dataclass(frozen=True)
class XlaModel:
    """One model, inference or training.

    ``n_dynamo_graphs`` : graphs that dynamo captured in the first step, ``n_breaks`` : distinct graph breaks; None
    where dynamo failed or its log could not be read. ``recompiles`` : kinds of recompilation by dynamo, which need
    not compile any HLO.
    """

    target: str
    train: bool
    n_dynamo_graphs: int | None
    n_breaks: int | None
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    fx: tuple[FxGraph, ...]
    routes: tuple[Route, ...]
    facts: tuple[tuple[str, str], ...]
    dynamo_over_lazy: RouteComparison | None = None
    """None where one of them was not timed."""

    def route(self, name: RouteName) -> Route | None:
        """Return one of the routes; None where it was not asked for or has failed."""
        return next((route for route in self.routes if route.name == name and not route.failure), None)


@dataclass(frozen=True)
class XlaProgram:
    """What the dumps of one program say, read without running it.

    ``n_compiled``/``n_executed`` : of its metrics report; ``n_compiled_told`` and ``n_executed_told`` : blocks of
    ``PT_XLA_DEBUG``; ``n_modules`` : HLO modules in dump folders; ``n_saved`` : distinct graphs among saved
    tensors. None where there is no such dump.
    """

    name: str
    paths: tuple[str, ...]
    n_compiled: int | None
    n_executed: int | None
    n_compiled_told: int | None
    n_executed_told: int | None
    n_modules: int | None
    n_saved: int | None
    compile_ms: float | None
    execute_ms: float | None
    to_device: int | None
    from_device: int | None
    to_device_bytes: float | None
    from_device_bytes: float | None
    fallbacks: tuple[Fallback, ...]
    graphs: tuple[HloGraph, ...]
    counters: tuple[Count, ...]
    skipped: tuple[Count, ...]
    notes: tuple[Note, ...]
    breaks: tuple[GraphBreak, ...] = ()
    """Of a script that was run: dynamo's graph breaks."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over ``n`` pairs of model and mode, with a 95 % interval.

    ``why_not`` : why there is none, empty where there is.
    """

    of: str
    with_: str
    n: int
    rho: float | None
    low: float | None
    high: float | None
    why_not: str


@dataclass(frozen=True)
class XlaResult:
    """Everything said about models that were run, or about dumps that were read."""

    schema: str
    version: str
    verdict: tuple[str, str, str]
    models: tuple[XlaModel, ...]
    programs: tuple[XlaProgram, ...]
    correlations: tuple[Correlation, ...]
    fixes: tuple[tuple[str, Fix], ...]
    """For each cause that was found."""
    notes: tuple[Note, ...]
