"""What of a result is a finding: graph breaks, recompilations, what was not compiled, guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.compile.places import part_name
from torchtriage.compile.result import Function, GraphBreak, Guards, Inductor, Recompile
from torchtriage.finding import Finding, Fix, Frame, Place
from torchtriage.units import format_count, format_ms

__all__ = ["BREAK", "OVERHEAD", "RECOMPILE", "findings_of"]

# The trace's patterns of the same things; theirs are not imported, for numpy is not needed here.
BREAK = ("CMP030", "compile-graph-break")
RECOMPILE = ("CMP031", "compile-recompile")
OVERHEAD = ("CMP032", "compile-overhead")
CUDAGRAPH = ("CMP033", "cudagraph-skip")
FAMILY = "compile"
MAX_LATENCY_US = 300.0
"""Guards that take longer are found: 0.3 ms is what a large model takes (CMP032)."""


def findings_of(
    breaks: Sequence[GraphBreak],
    recompiles: Sequence[Recompile],
    functions: Sequence[Function],
    guards: Guards,
    inductor: Inductor,
) -> Iterable[Finding]:
    """Yield the findings, those of each table in its order."""
    yield from _break_findings(breaks)
    yield from _recompile_findings(recompiles)
    yield from _failure_findings(functions)
    yield from _guard_findings(guards)
    yield from _cudagraph_findings(inductor)


def _at(frame: Frame | None) -> str:
    if frame is None:
        return ""
    name = frame.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{frame.line}" if frame.line else name


def _break_findings(breaks: Sequence[GraphBreak]) -> Iterable[Finding]:
    for one in breaks:
        frame = one.caller or one.frame
        of = f" in {one.functions[0].function}" if one.functions else ""
        at = f" at {_at(one.frame)}" if one.frame else ""
        if one.caller is not None:
            at += f", from {_at(one.caller)}"
        number = format_count(one.count, "graph break")
        yield Finding(
            code=BREAK[0],
            name=BREAK[1],
            family=FAMILY,
            title=f"Graph break{at}: {one.type}"[:200],
            severity="medium",
            certainty="certain",
            message=f"{number}{of}: {' '.join(one.explanation.split())[:400] or one.type}",
            place=Place(frame=frame, stack=one.stack),
            cost=None,
            evidence={"id": one.id, "n_records": one.count, "compile_ids": list(one.compile_ids)},
            fix=one.fix,
            n_events=one.count,
        )


def _recompile_findings(recompiles: Sequence[Recompile]) -> Iterable[Finding]:
    for one in recompiles:
        times = format_count(one.count, "time")
        spent = f", {format_ms(one.total_ms)} in all" if one.total_ms else ""
        what = one.cause
        if one.source.startswith("___stack"):
            what += " read at a graph break"
        elif one.source and one.cause != "shape guard":
            what += f" of {one.source}"
        if one.dim >= 0:
            what += f" (dimension {one.dim})"
        saw = f"; seen: {', '.join(one.values[:12])}" if one.values else ""
        limit = "; the recompile limit is reached: later calls run uncompiled" if one.limit else ""
        again = one.count > 1
        yield Finding(
            code=RECOMPILE[0],
            name=RECOMPILE[1],
            family=FAMILY,
            title=f"{part_name(one.function.function)} is compiled again: {what}"[:200],
            severity="high" if one.limit else "medium" if again else "low",
            certainty="certain",
            message=f"{times}{spent}{saw}{limit}",
            place=Place(
                frame=one.frame or one.caller or (one.function if one.function.file else None)
            ),
            cost=None,
            evidence={
                "guard": one.guard,
                "n_records": one.count,
                "compile_ids": list(one.compile_ids),
                "total_ms": one.total_ms,
            },
            fix=one.fix,
            n_events=one.count,
        )


def _failure_findings(functions: Sequence[Function]) -> Iterable[Finding]:
    for one in functions:
        if one.outcome != "failed" or one.n_breaks:
            continue  # a break says it better
        yield Finding(
            code=BREAK[0],
            name=BREAK[1],
            family=FAMILY,
            title=f"{part_name(one.frame.function)} was not compiled",
            severity="high" if one.n_ops else "medium",
            certainty="certain",
            message=" ".join(one.why.split())[:400] or "the compiler gave up on it",
            place=Place(frame=one.frame if one.frame.file else None),
            cost=None,
            evidence={"n_compiles": one.n_compiles},
            fix=Fix(
                "Read the error with fullgraph=True; keep what cannot be compiled out of the"
                " function.",
                "@torch.compiler.disable",
            ),
            n_events=one.n_compiles,
        )


def _guard_findings(guards: Guards) -> Iterable[Finding]:
    if guards.latency_us is None or guards.latency_us <= MAX_LATENCY_US:
        return
    yield Finding(
        code=OVERHEAD[0],
        name=OVERHEAD[1],
        family=FAMILY,
        title="Checking guards takes long",
        severity="low",
        certainty="certain",
        message=(
            f"a check of {guards.slowest} took {guards.latency_us:.0f} µs when it was compiled, and"
            " there is one at every call;"
            f" {format_count(guards.n_guards, 'guard')} in {format_count(guards.n_graphs, 'graph')}"
        ),
        place=Place(),
        cost=None,
        evidence={"latency_us": guards.latency_us},
        fix=Fix(
            "Drop guards on modules that never change, or compile the caller of many small"
            " functions.",
            'torch.compile(model, options={"guard_filter_fn":'
            " torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe})",
            "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        ),
    )


def _cudagraph_findings(inductor: Inductor) -> Iterable[Finding]:
    for one in inductor.cudagraph_skips:
        yield Finding(
            code=CUDAGRAPH[0],
            name=CUDAGRAPH[1],
            family=FAMILY,
            title="CUDA graphs were asked for and skipped",
            severity="medium",
            certainty="certain",
            message=f"{format_count(one.count, 'time')}: {' '.join(one.name.split())[:400]}",
            place=Place(),
            cost=None,
            evidence={"n_records": one.count},
            fix=Fix(
                "Take away the reason: no CPU tensors and no changes of inputs inside the function,"
                " static shapes.",
            ),
            n_events=one.count,
        )
