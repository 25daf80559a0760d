"""What a counting session saw, put together: which graph was compiled when, why, and from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtriage.finding import Frame
from torchtriage.xla.causes import Told, again, from_profile, is_lowering, kind_of, user_line
from torchtriage.xla.dumps import Analysis, Module, Saved
from torchtriage.xla.result import Amount, Fallback, FxGraph, HloGraph, RouteName, Step

__all__ = ["Counted", "count", "fallbacks_of"]


@dataclass(frozen=True)
class Counted:
    """The counting session of one route."""

    steps: tuple[Step, ...]
    n_steady: int
    graphs: tuple[HloGraph, ...]
    fx: tuple[FxGraph, ...]
    fallbacks: tuple[Fallback, ...]


@dataclass
class _Seen:
    """A compilation, as all sources together tell it."""

    step: int
    ns: float
    stack: list[str]
    aliased: int | None
    hash: str = ""
    frames: tuple[Frame, ...] = ()
    module: Module | None = None
    told: Told = field(default_factory=lambda: Told("unknown", ""))
    cause: Any = "unknown"
    reason: str = ""
    extra: bool = True
    sent_before: bool = False


def count(
    route: RouteName,
    steps: Sequence[dict[str, Any]],
    graphs: Sequence[dict[str, Any]],
    analyses: Sequence[Sequence[Analysis]],
    saved: Sequence[Sequence[Saved]],
    *,
    train: bool,
) -> Counted:
    """Return counts and causes.

    Parameters
    ----------
    steps : sequence of dict
        What ``XlaSession.step`` returned.
    graphs : sequence of dict
        FX graphs, as ``XlaSession.graphs`` returned them at the end.
    analyses : sequence of sequence of Analysis
        Of ``PT_XLA_DEBUG``, for each step.
    saved : sequence of sequence of Saved
        For each step, graphs that LazyTensor was about to run, or dynamo to compile.
    """
    seen = [_Seen(at, one["ns"], one["stack"], one["aliased"])
            for at, step in enumerate(steps) for one in step["compiles"]]  # fmt: skip
    _name(seen, analyses, saved)
    for one in seen:
        one.told = from_profile(one.stack, one.frames, route, steps[one.step]["fallbacks"])
        one.cause, one.extra = one.told.cause, not one.told.expected
    _find_repeats(seen)
    for one in seen:
        one.reason = _reason(one, graphs, train)
    runs = [_runs(*both) for both in zip(analyses, saved, strict=True)]
    rows = tuple(_step(step, run) for step, run in zip(steps, runs, strict=True))
    last = max((at for at, one in enumerate(rows) if one.compiled), default=-1)
    n_steady = len(rows) - 1 - last
    return Counted(
        rows, n_steady, _graphs(seen, graphs, analyses, runs, n_steady), _fx(seen, graphs),
        fallbacks_of([step["fallbacks"] for step in steps], n_steady),
    )  # fmt: skip


def _name(
    seen: Sequence[_Seen],
    analyses: Sequence[Sequence[Analysis]],
    saved: Sequence[Sequence[Saved]],
) -> None:
    """Give each compilation its hash, frames and module: sources agree on the order."""
    first: dict[str, Saved] = {}
    for graph in (one for step in saved for one in step):
        first.setdefault(graph.hash, graph)
    told = [one for step in analyses for one in step if one.kind == "compilation"]
    names = list(first)
    if len(names) != len(seen):  # what was dumped before or after the steps
        names = [one.hash for one in told]
    if len(names) != len(seen):
        return
    for one, name in zip(seen, names, strict=True):
        one.hash = name
        if name in first:
            one.frames, one.module = first[name].frames, first[name].module
    by_hash = {one.hash: one for one in told}
    for one in seen:
        if not one.frames and one.hash in by_hash:
            one.frames = by_hash[one.hash].frames


def _place(one: _Seen) -> tuple[Any, ...]:
    line = user_line(one.frames)
    return (
        one.told.cause,
        one.told.op,
        one.told.fx,
        one.told.part,
        line and (line.file, line.line),
    )


def _find_repeats(seen: Sequence[_Seen]) -> None:
    """Mark graphs of later steps whose place had one in an earlier step: what differs is why."""
    before: dict[tuple[Any, ...], _Seen] = {}
    lowered = {one.step for one in seen if one.told.cause == "pending"}
    for one in seen:
        place = _place(one)
        earlier = before.get(place)
        if earlier is not None and earlier.step < one.step and one.cause != "new sizes":
            one.cause = again(earlier.module, one.module, (earlier.aliased, one.aliased))
            one.extra = True
            one.sent_before = one.cause == "new operations" and earlier.step in lowered
        before[place] = one


_OF_STEP = {
    "step": "the step", "outside": "what is outside every FX graph", "fx graph": "an FX graph",
    "read": "the operations before {op}", "dynamic shape": "the operations before {op}",
    "fallback": "the operations before {op}", "input": "an input of an FX graph",
}  # fmt: skip


def _reason(one: _Seen, graphs: Sequence[dict[str, Any]], train: bool) -> str:
    told = one.told
    fx = _fx_name(graphs, told.fx) if told.fx is not None else ""
    if one.cause != told.cause:
        what = _OF_STEP.get(told.cause, "the same place").format(op=told.op)
        how = {
            "new sizes": "with tensors of other sizes",
            "aliasing": "with other inputs donated to outputs",
            "new constants": "with the same operations and sizes: a constant in it changed",
            "new operations": "with other operations",
        }.get(one.cause, "differing in an unknown way")
        if one.sent_before:
            how += f": in step {one.step}, lowering had sent some of them off before"
        return f"{what} again in step {one.step + 1}, {how}"
    such = " (the loss, gradients between graphs)" if fx.endswith("backward") else ""
    known = {
        "fx graph": f"FX graph {fx}",
        "step": "the step",
        "part": f"part {told.part} of FX graph {fx}, which is cut at {_cuts(graphs, told.fx)}",
        "probe": f"{told.op} needs its input while dynamo's bridge tries out FX graph {fx}",
        "input": f"computed outside every FX graph, needed as an input of FX graph {fx}",
        "pending": f"outside every FX graph{such}, pending when FX graph {fx} is lowered",
        "outside": "outside every FX graph: "
        + (
            "the optimizer's update and what is left of the step"
            if train
            else "what is left of the step"
        ),
        "read": f"{told.op} asks for a value",
        "dynamic shape": f"{told.op} has a result whose size depends on values",
        "fallback": f"{told.op} is not lowered: it runs on the host and needs its input",
        "copy": "a tensor is copied to the host",
        "sync": "the program calls torch_xla.sync()",
        "new sizes": f"FX graph {fx} called with sizes that it was not lowered for",
    }
    at = f" ({told.op})" if told.op else ""
    return known.get(one.cause, f"unknown: neither a mark nor an operator around it tells{at}")


def _fx_name(graphs: Sequence[dict[str, Any]], number: int) -> str:
    one = graphs[number]
    keys = [(other["compile_id"], other["kind"]) for other in graphs]
    same = [at for at, key in enumerate(keys) if key == keys[number]]
    name = " ".join(filter(None, (one["compile_id"], one["kind"]))) or f"number {number + 1}"
    return f"{name} ({same.index(number) + 1})" if len(same) > 1 else name


def _cuts(graphs: Sequence[dict[str, Any]], number: int | None) -> str:
    names = list(dict.fromkeys(graphs[number]["unsupported"])) if number is not None else []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) + more) or "an unknown operator"


def _runs(analyses: Sequence[Analysis], saved: Sequence[Saved]) -> Counter[str]:
    """Return how often each graph was executed in a step.

    LazyTensor saves a graph before it runs it, whatever thread that is; dynamo when it compiles it,
    and ``PT_XLA_DEBUG`` tells when it runs.
    """
    lazy = (one.hash for one in saved if not is_lowering(one.frames))
    dynamo = (one.hash for one in analyses
              if one.kind == "execution" and "dynamo is executing" in one.cause)  # fmt: skip
    return Counter(lazy) + Counter(dynamo)


def _step(step: dict[str, Any], run: Counter[str]) -> Step:
    counts = step["counts"]
    return Step(
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
    seen: Sequence[_Seen],
    graphs: Sequence[dict[str, Any]],
    analyses: Sequence[Sequence[Analysis]],
    runs: Sequence[Counter[str]],
    n_steady: int,
) -> tuple[HloGraph, ...]:
    sizes = {one.hash: one for step in analyses for one in step}
    found = []
    for number, one in enumerate(seen):
        size = sizes.get(one.hash)
        module = one.module
        steady = sum(run[one.hash] for run in runs[len(runs) - n_steady :]) if n_steady else 0
        found.append(HloGraph(
            number=number, hash=one.hash, cause=one.cause, reason=one.reason, extra=one.extra,
            op=one.told.op, fx=_fx_name(graphs, one.told.fx) if one.told.fx is not None else "",
            frame=user_line(one.frames), step=one.step,
            n_inputs=size.n_inputs if size else len(module.inputs) if module else None,
            n_outputs=size.n_outputs if size else len(module.outputs) if module else None,
            n_aliased=one.aliased, n_ops=module.n_ops if module else None,
            compile_ms=one.ns / 1e6, first_step=runs[0][one.hash] if one.hash else 0,
            per_step=steady / n_steady if n_steady and one.hash else None,
        ))  # fmt: skip
    return tuple(found)


def _fx(seen: Sequence[_Seen], graphs: Sequence[dict[str, Any]]) -> tuple[FxGraph, ...]:
    return tuple(
        FxGraph(
            id=_fx_name(graphs, number),
            compile_id=one["compile_id"],
            kind=one["kind"],
            n_ops=one["n_ops"],
            parts=tuple(one["parts"]),
            not_lowered=tuple(Amount(*each) for each in Counter(one["unsupported"]).items()),
            hlo=tuple(n for n, graph in enumerate(seen)
                      if graph.told.fx == number and graph.told.cause in ("fx graph", "part")),
            step=one["step"],
        )
        for number, one in enumerate(graphs)
    )  # fmt: skip


def fallbacks_of(steps: Sequence[dict[str, int]], n_steady: int) -> tuple[Fallback, ...]:
    """Return operators that ran on the host, most often first; counts of each step."""
    names = sorted({name for step in steps for name in step})
    steady = steps[len(steps) - n_steady :] if n_steady else []
    found = [
        Fallback(
            name,
            kind_of(name),  # type: ignore[arg-type]
            steps[0].get(name, 0) if steps else 0,
            sum(step.get(name, 0) for step in steady) / n_steady if n_steady else None,
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda one: (-(one.per_step or 0), -one.first_step, one.name)))
