"""What a counting session observed, put together: which graph was compiled when, why, and from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchtriage.compile.logs.result import Count
from torchtriage.compile.xla.causes import CauseReason, again, from_profile, is_lowering, kind_of, user_line
from torchtriage.compile.xla.dumps import Analysis, HloModule, SavedGraph
from torchtriage.compile.xla.result import Cause, CountedStep, Fallback, FxGraph, HloGraph, Route, RouteName
from torchtriage.core.finding import Frame


def count(
    route: RouteName,
    steps: Sequence[dict[str, Any]],
    graphs: Sequence[dict[str, Any]],
    analyses: Sequence[Sequence[Analysis]],
    saved: Sequence[Sequence[SavedGraph]],
    *,
    train: bool,
) -> tuple[Route, tuple[FxGraph, ...]]:
    """Return counts and causes of a route, which is not timed yet, and its FX graphs.

    ``steps`` : what ``XlaSession.step`` returned. ``graphs`` : FX graphs, as ``XlaSession.graphs`` returned them at
    the end. ``analyses`` : of ``PT_XLA_DEBUG``, for each step. ``saved`` : for each step, graphs that LazyTensor
    was about to run, or dynamo to compile.
    """
    runs = [_runs(*both) for both in zip(analyses, saved, strict=True)]
    rows = tuple(_step(step, run) for step, run in zip(steps, runs, strict=True))
    last = max((at for at, row in enumerate(rows) if row.compiled), default=-1)
    n_steady = len(rows) - 1 - last
    steady, steady_runs = rows[last + 1 :], runs[last + 1 :]
    sizes = {analysis.hash: analysis for step in analyses for analysis in step}
    compiles = [(at, compilation) for at, step in enumerate(steps) for compilation in step["compiles"]]
    hlo, asked = [], []
    before: dict[tuple[Any, ...], tuple[int, int | None, HloModule | None]] = {}
    lowered = set()
    for number, (name, frames, module) in enumerate(_sources(len(compiles), analyses, saved)):
        at, compilation = compiles[number]
        why = from_profile(compilation["stack"], frames, route, steps[at]["fallbacks"])
        asked.append(why)
        line, aliased = user_line(frames), compilation["aliased"]
        cause, reason, extra = why.cause, _reason(why, graphs, train), not why.expected
        if cause == "pending":
            lowered.add(at)
        place = (cause, why.op, why.fx, why.part, line and (line.file, line.line))
        earlier, its_aliased, its_module = before.get(place, (at, None, None))
        before[place] = at, aliased, module
        if earlier < at and cause != "new sizes":  # what differs is why
            cause, extra = again(its_module, module, (its_aliased, aliased)), True
            if cause != why.cause:
                reason = _reason_again(why, cause, at, sent_before=earlier in lowered)
        size = sizes.get(name)
        graph = HloGraph(
            number=number,
            hash=name,
            cause=cause,
            reason=reason,
            extra=extra,
            op=why.op,
            fx=_fx_name(graphs, why.fx),
            frame=line,
            step=at,
            n_inputs=size.n_inputs if size else len(module.inputs) if module else None,
            n_outputs=size.n_outputs if size else len(module.outputs) if module else None,
            n_aliased=aliased,
            n_ops=module.n_ops if module else None,
            compile_ms=compilation["ns"] / 1e6,
            first_step=runs[0][name] if name else 0,
            per_step=sum(run[name] for run in steady_runs) / n_steady if n_steady and name else None,
        )
        hlo.append(graph)
    counted = Route(
        name=route,
        failure="",
        steps=rows,
        n_compiled=sum(row.compiled for row in rows),
        n_steady=n_steady,
        executed_per_step=sum(row.executed for row in steady) / n_steady if steady else None,
        execute_ms_per_step=sum(row.execute_ms for row in steady) / n_steady if steady else None,
        first_compiled_unwatched=None,
        graphs=tuple(hlo),
        fallbacks=fallbacks_of([step["fallbacks"] for step in steps], n_steady),
        times=None,
        answers=None,
    )
    return counted, tuple(
        FxGraph(
            id=_fx_name(graphs, number),
            compile_id=fx_graph["compile_id"],
            kind=fx_graph["kind"],
            n_ops=fx_graph["n_ops"],
            parts=tuple(fx_graph["parts"]),
            not_lowered=tuple(Count(*each) for each in Counter(fx_graph["unsupported"]).items()),
            hlo=tuple(n for n, why in enumerate(asked) if why.fx == number and why.cause in ("fx graph", "part")),
            step=fx_graph["step"],
        )
        for number, fx_graph in enumerate(graphs)
    )


def _sources(
    n: int, analyses: Sequence[Sequence[Analysis]], saved: Sequence[Sequence[SavedGraph]]
) -> list[tuple[str, tuple[Frame, ...], HloModule | None]]:
    """Return hash, frames and module of each of ``n`` compilations, whose order is the same in all sources."""
    first: dict[str, SavedGraph] = {}
    for graph in (graph for step in saved for graph in step):
        first.setdefault(graph.hash, graph)
    reported = [analysis for step in analyses for analysis in step if analysis.kind == "compilation"]
    names = list(first)
    if len(names) != n:  # what was dumped before or after the steps
        names = [analysis.hash for analysis in reported]
    if len(names) != n:
        return [("", (), None)] * n
    frames = {analysis.hash: analysis.frames for analysis in reported}
    nothing = SavedGraph("", (), None)
    graphs = [(name, first.get(name, nothing)) for name in names]
    return [(name, graph.frames or frames.get(name, ()), graph.module) for name, graph in graphs]


_OF_STEP = {
    "step": "the step",
    "outside": "what is outside every FX graph",
    "fx graph": "an FX graph",
    "read": "the operations before {op}",
    "dynamic shape": "the operations before {op}",
    "fallback": "the operations before {op}",
    "input": "an input of an FX graph",
}
_DIFFERS = {
    "new sizes": "with tensors of other sizes",
    "aliasing": "with other inputs donated to outputs",
    "new constants": "with the same operations and sizes: a constant in it changed",
    "new operations": "with other operations",
}


def _reason_again(asked: CauseReason, cause: Cause, step: int, *, sent_before: bool) -> str:
    what = _OF_STEP.get(asked.cause, "the same place").format(op=asked.op)
    how = _DIFFERS.get(cause, "differing in an unknown way")
    if sent_before and cause == "new operations":
        how += f": in step {step}, lowering had sent some of them off before"
    return f"{what} again in step {step + 1}, {how}"


def _reason(asked: CauseReason, graphs: Sequence[dict[str, Any]], train: bool) -> str:
    fx = _fx_name(graphs, asked.fx)
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
    return known.get(asked.cause, f"unknown: neither a mark nor an operator around it shows why{at}")


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
    ``PT_XLA_DEBUG`` reports when it runs.
    """
    ran = [analysis for analysis in analyses if analysis.kind == "execution"]
    dynamo = Counter(analysis.hash for analysis in ran if "dynamo is executing" in analysis.cause)
    return dynamo + Counter(graph.hash for graph in saved if not is_lowering(graph.frames))


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


def fallbacks_of(steps: Sequence[dict[str, int]], n_steady: int) -> tuple[Fallback, ...]:
    """Return operators that ran on the host, most often first; counts of each step."""
    names = sorted({name for step in steps for name in step})
    steady = steps[len(steps) - n_steady :]
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
