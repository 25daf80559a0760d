"""What a counting session observed, put together: which graph was compiled when, why, and from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtriage.compile.xla.causes import CauseReason, again, from_profile, is_lowering, kind_of, user_line
from torchtriage.compile.xla.dumps import Analysis, HloModule, SavedGraph
from torchtriage.compile.xla.result import CountedStep, Fallback, FxGraph, HloGraph, NamedCount, RouteName
from torchtriage.core.finding import Frame

__all__ = ["RouteCounts", "count", "fallbacks_of"]


@dataclass(frozen=True)
class RouteCounts:
    """The counting session of one route."""

    steps: tuple[CountedStep, ...] = ()
    n_steady: int = 0
    graphs: tuple[HloGraph, ...] = ()
    fx: tuple[FxGraph, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()


@dataclass
class _CompiledGraph:
    """A compilation, as all sources together tell it."""

    step: int
    ns: float
    stack: list[str]
    aliased: int | None
    hash: str = ""
    frames: tuple[Frame, ...] = ()
    module: HloModule | None = None
    asked: CauseReason = field(default_factory=lambda: CauseReason("unknown", ""))
    cause: Any = "unknown"
    reason: str = ""
    extra: bool = True
    sent_before: bool = False


def count(
    route: RouteName,
    steps: Sequence[dict[str, Any]],
    graphs: Sequence[dict[str, Any]],
    analyses: Sequence[Sequence[Analysis]],
    saved: Sequence[Sequence[SavedGraph]],
    *,
    train: bool,
) -> RouteCounts:
    """Return counts and causes.

    ``steps`` : what ``XlaSession.step`` returned. ``graphs`` : FX graphs, as ``XlaSession.graphs`` returned them at
    the end. ``analyses`` : of ``PT_XLA_DEBUG``, for each step. ``saved`` : for each step, graphs that LazyTensor
    was about to run, or dynamo to compile.
    """
    compiled = [
        _CompiledGraph(at, compilation["ns"], compilation["stack"], compilation["aliased"])
        for at, step in enumerate(steps)
        for compilation in step["compiles"]
    ]
    _name(compiled, analyses, saved)
    for compilation in compiled:
        compilation.asked = from_profile(
            compilation.stack, compilation.frames, route, steps[compilation.step]["fallbacks"]
        )
        compilation.cause, compilation.extra = compilation.asked.cause, not compilation.asked.expected
    _find_repeats(compiled)
    for compilation in compiled:
        compilation.reason = _reason(compilation, graphs, train)
    runs = [_runs(*both) for both in zip(analyses, saved, strict=True)]
    rows = tuple(_step(step, run) for step, run in zip(steps, runs, strict=True))
    last = max((at for at, row in enumerate(rows) if row.compiled), default=-1)
    n_steady = len(rows) - 1 - last
    return RouteCounts(
        rows,
        n_steady,
        _graphs(compiled, graphs, analyses, runs, n_steady),
        _fx(compiled, graphs),
        fallbacks_of([step["fallbacks"] for step in steps], n_steady),
    )


def _name(
    compiled: Sequence[_CompiledGraph], analyses: Sequence[Sequence[Analysis]], saved: Sequence[Sequence[SavedGraph]]
) -> None:
    """Give each compilation its hash, frames and module: sources agree on the order."""
    first: dict[str, SavedGraph] = {}
    for graph in (entry for step in saved for entry in step):
        first.setdefault(graph.hash, graph)
    reported = [entry for step in analyses for entry in step if entry.kind == "compilation"]
    names = list(first)
    if len(names) != len(compiled):  # what was dumped before or after the steps
        names = [analysis.hash for analysis in reported]
    if len(names) != len(compiled):
        return
    frames = {analysis.hash: analysis.frames for analysis in reported}
    for compilation, name in zip(compiled, names, strict=True):
        compilation.hash = name
        if name in first:
            compilation.frames, compilation.module = first[name].frames, first[name].module
        compilation.frames = compilation.frames or frames.get(name, ())


def _place(compilation: _CompiledGraph) -> tuple[Any, ...]:
    line = user_line(compilation.frames)
    return (
        compilation.asked.cause,
        compilation.asked.op,
        compilation.asked.fx,
        compilation.asked.part,
        line and (line.file, line.line),
    )


def _find_repeats(compiled: Sequence[_CompiledGraph]) -> None:
    """Mark graphs of later steps whose place had one in an earlier step: what differs is why."""
    before: dict[tuple[Any, ...], _CompiledGraph] = {}
    lowered = {compilation.step for compilation in compiled if compilation.asked.cause == "pending"}
    for compilation in compiled:
        place = _place(compilation)
        earlier = before.get(place)
        if earlier is not None and earlier.step < compilation.step and compilation.cause != "new sizes":
            compilation.cause = again(earlier.module, compilation.module, (earlier.aliased, compilation.aliased))
            compilation.extra = True
            compilation.sent_before = compilation.cause == "new operations" and earlier.step in lowered
        before[place] = compilation


_OF_STEP = {
    "step": "the step",
    "outside": "what is outside every FX graph",
    "fx graph": "an FX graph",
    "read": "the operations before {op}",
    "dynamic shape": "the operations before {op}",
    "fallback": "the operations before {op}",
    "input": "an input of an FX graph",
}


def _reason(compilation: _CompiledGraph, graphs: Sequence[dict[str, Any]], train: bool) -> str:
    asked = compilation.asked
    fx = _fx_name(graphs, asked.fx)
    if compilation.cause != asked.cause:
        what = _OF_STEP.get(asked.cause, "the same place").format(op=asked.op)
        how = {
            "new sizes": "with tensors of other sizes",
            "aliasing": "with other inputs donated to outputs",
            "new constants": "with the same operations and sizes: a constant in it changed",
            "new operations": "with other operations",
        }.get(compilation.cause, "differing in an unknown way")
        if compilation.sent_before:
            how += f": in step {compilation.step}, lowering had sent some of them off before"
        return f"{what} again in step {compilation.step + 1}, {how}"
    names = list(dict.fromkeys(graphs[asked.fx]["unsupported"])) if asked.fx is not None else []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    cuts = (", ".join(names[:3]) + more) or "an unknown operator"
    such = " (the loss, gradients between graphs)" if fx.endswith("backward") else ""
    known = {
        "fx graph": f"FX graph {fx}",
        "step": "the step",
        "part": f"part {asked.part} of FX graph {fx}, which is cut at {cuts}",
        "probe": f"{asked.op} needs its input while dynamo's bridge tries out FX graph {fx}",
        "input": f"computed outside every FX graph, needed as an input of FX graph {fx}",
        "pending": f"outside every FX graph{such}, pending when FX graph {fx} is lowered",
        "outside": "outside every FX graph: "
        + ("the optimizer's update and what is left of the step" if train else "what is left of the step"),
        "read": f"{asked.op} asks for a value",
        "dynamic shape": f"{asked.op} has a result whose size depends on values",
        "fallback": f"{asked.op} is not lowered: it runs on the host and needs its input",
        "copy": "a tensor is copied to the host",
        "sync": "the program calls torch_xla.sync()",
        "new sizes": f"FX graph {fx} called with sizes that it was not lowered for",
    }
    at = f" ({asked.op})" if asked.op else ""
    return known.get(compilation.cause, f"unknown: neither a mark nor an operator around it tells{at}")


def _fx_name(graphs: Sequence[dict[str, Any]], number: int | None) -> str:
    if number is None:
        return ""
    fx_graph = graphs[number]
    keys = [(other["compile_id"], other["kind"]) for other in graphs]
    same = [at for at, key in enumerate(keys) if key == keys[number]]
    name = " ".join(filter(None, (fx_graph["compile_id"], fx_graph["kind"]))) or f"number {number + 1}"
    return f"{name} ({same.index(number) + 1})" if len(same) > 1 else name


def _runs(analyses: Sequence[Analysis], saved: Sequence[SavedGraph]) -> Counter[str]:
    """Return how often each graph was executed in a step.

    LazyTensor saves a graph before it runs it, whatever thread that is; dynamo when it compiles it, and
    ``PT_XLA_DEBUG`` tells when it runs.
    """
    lazy = (entry.hash for entry in saved if not is_lowering(entry.frames))
    dynamo = (
        analysis.hash
        for analysis in analyses
        if analysis.kind == "execution" and "dynamo is executing" in analysis.cause
    )
    return Counter(lazy) + Counter(dynamo)


def _step(step: dict[str, Any], run: Counter[str]) -> CountedStep:
    counts = step["counts"]
    return CountedStep(
        compiled=int(counts["CompileTime"][0]),
        executed=int(counts["ExecuteTime"][0]),
        executed_told=run.total(),
        compile_ms=counts["CompileTime"][1] / 1e6,
        execute_ms=counts["ExecuteTime"][1] / 1e6,
        to_device=int(counts["TransferToDeviceTime"][0]),
        from_device=int(counts["TransferFromDeviceTime"][0]),
        to_device_bytes=counts["OutboundData"][1],
        from_device_bytes=counts["InboundData"][1],
    )


def _graphs(
    compiled: Sequence[_CompiledGraph],
    graphs: Sequence[dict[str, Any]],
    analyses: Sequence[Sequence[Analysis]],
    runs: Sequence[Counter[str]],
    n_steady: int,
) -> tuple[HloGraph, ...]:
    sizes = {entry.hash: entry for step in analyses for entry in step}
    found = []
    for number, compilation in enumerate(compiled):
        size = sizes.get(compilation.hash)
        module = compilation.module
        steady = sum(run[compilation.hash] for run in runs[len(runs) - n_steady :]) if n_steady else 0
        found.append(
            HloGraph(
                number=number,
                hash=compilation.hash,
                cause=compilation.cause,
                reason=compilation.reason,
                extra=compilation.extra,
                op=compilation.asked.op,
                fx=_fx_name(graphs, compilation.asked.fx),
                frame=user_line(compilation.frames),
                step=compilation.step,
                n_inputs=size.n_inputs if size else len(module.inputs) if module else None,
                n_outputs=size.n_outputs if size else len(module.outputs) if module else None,
                n_aliased=compilation.aliased,
                n_ops=module.n_ops if module else None,
                compile_ms=compilation.ns / 1e6,
                first_step=runs[0][compilation.hash] if compilation.hash else 0,
                per_step=steady / n_steady if n_steady and compilation.hash else None,
            )
        )
    return tuple(found)


def _fx(compiled: Sequence[_CompiledGraph], graphs: Sequence[dict[str, Any]]) -> tuple[FxGraph, ...]:
    return tuple(
        FxGraph(
            id=_fx_name(graphs, number),
            compile_id=fx_graph["compile_id"],
            kind=fx_graph["kind"],
            n_ops=fx_graph["n_ops"],
            parts=tuple(fx_graph["parts"]),
            not_lowered=tuple(NamedCount(*each) for each in Counter(fx_graph["unsupported"]).items()),
            hlo=tuple(
                n
                for n, graph in enumerate(compiled)
                if graph.asked.fx == number and graph.asked.cause in ("fx graph", "part")
            ),
            step=fx_graph["step"],
        )
        for number, fx_graph in enumerate(graphs)
    )


def fallbacks_of(steps: Sequence[dict[str, int]], n_steady: int) -> tuple[Fallback, ...]:
    """Return operators that ran on the host, most often first; counts of each step."""
    names = sorted({name for step in steps for name in step})
    steady = steps[len(steps) - n_steady :] if n_steady else []
    rows = [
        Fallback(
            name,
            kind_of(name),
            steps[0].get(name, 0) if steps else 0,
            sum(step.get(name, 0) for step in steady) / n_steady if n_steady else None,
        )
        for name in names
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.per_step or 0), -row.first_step, row.name)))
