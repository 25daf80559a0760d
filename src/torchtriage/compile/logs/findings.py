"""What of a result is a finding: graph breaks, recompilations, what was not compiled, guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchtriage.compile.logs.locations import part_name
from torchtriage.compile.logs.result import CompiledFunction, GraphBreak, Guards, Inductor, Recompile
from torchtriage.core.finding import Finding, Fix, Frame, Place, Severity
from torchtriage.core.names import file_name
from torchtriage.core.units import format_count, format_ms

# The trace's patterns of the same things; theirs are not imported, for numpy is not needed here.
BREAK = ("CMP030", "compile-graph-break")
RECOMPILE = ("CMP031", "compile-recompile")
OVERHEAD = ("CMP032", "compile-overhead")
CUDAGRAPH = ("CMP033", "cudagraph-skip")
FAMILY = "compile"
MAX_LATENCY_US = 300.0
"""Guards that take longer are a finding: 0.3 ms is what a large model takes (CMP032)."""
NOT_COMPILED = Fix(
    "Read the error with fullgraph=True; keep what cannot be compiled out of the function.", "@torch.compiler.disable"
)
SLOW_GUARDS = Fix(
    "Drop guards on modules that never change, or compile the caller of many small functions.",
    'torch.compile(model, options={"guard_filter_fn": torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe})',
    "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)
NO_CUDAGRAPH = Fix("Remove the reason: no CPU tensors, no mutation of inputs inside the function, static shapes.")


def findings_of(
    breaks: Sequence[GraphBreak],
    recompiles: Sequence[Recompile],
    functions: Sequence[CompiledFunction],
    guards: Guards,
    inductor: Inductor,
) -> Iterator[Finding]:
    """Yield the findings, those of each table in its order."""
    yield from map(_of_break, breaks)
    yield from map(_of_recompile, recompiles)
    for function in functions:
        if function.outcome == "failed" and not function.n_breaks:  # a break says it better
            yield _finding(
                BREAK,
                f"{part_name(function.frame.function)} was not compiled",
                "high" if function.n_ops else "medium",
                " ".join(function.why.split())[:400] or "the compiler gave up on it",
                {"n_compiles": function.n_compiles},
                NOT_COMPILED,
                place=Place(frame=function.frame if function.frame.file else None),
                n_events=function.n_compiles,
            )
    if guards.latency_us is not None and guards.latency_us > MAX_LATENCY_US:
        yield _finding(
            OVERHEAD,
            "Guard checks are slow",
            "low",
            f"a check of {guards.slowest} took {guards.latency_us:.0f} µs when it was compiled, and it runs at"
            f" every call; {format_count(guards.n_guards, 'guard')} in {format_count(guards.n_graphs, 'graph')}",
            {"latency_us": guards.latency_us},
            SLOW_GUARDS,
        )
    for skip in inductor.cudagraph_skips:
        yield _finding(
            CUDAGRAPH,
            "CUDA graphs were requested but skipped",
            "medium",
            f"{format_count(skip.count, 'time')}: {' '.join(skip.name.split())[:400]}",
            {"n_records": skip.count},
            NO_CUDAGRAPH,
            n_events=skip.count,
        )


def _finding(
    code: tuple[str, str],
    title: str,
    severity: Severity,
    message: str,
    evidence: Mapping[str, Any],
    fix: Fix,
    *,
    place: Place | None = None,
    n_events: int = 0,
) -> Finding:
    return Finding(
        code=code[0],
        name=code[1],
        family=FAMILY,
        title=title[:200],
        severity=severity,
        certainty="certain",
        message=message,
        place=place or Place(),
        cost=None,
        evidence=dict(evidence),
        fix=fix,
        n_events=n_events,
    )


def _at(frame: Frame) -> str:
    name = file_name(frame.file)
    return f"{name}:{frame.line}" if frame.line else name


def _of_break(row: GraphBreak) -> Finding:
    of = f" in {row.functions[0].function}" if row.functions else ""
    at = f" at {_at(row.frame)}" if row.frame else ""
    if row.caller is not None:
        at += f", from {_at(row.caller)}"
    return _finding(
        BREAK,
        f"Graph break{at}: {row.type}",
        "medium",
        f"{format_count(row.count, 'graph break')}{of}: {' '.join(row.explanation.split())[:400] or row.type}",
        {"id": row.id, "n_records": row.count, "compile_ids": list(row.compile_ids)},
        row.fix,
        place=Place(frame=row.caller or row.frame, stack=row.stack),
        n_events=row.count,
    )


def _of_recompile(row: Recompile) -> Finding:
    what = row.cause
    if row.source.startswith("___stack"):
        what += " read at a graph break"
    elif row.source and row.cause != "shape guard":
        what += f" of {row.source}"
    if row.dim >= 0:
        what += f" (dimension {row.dim})"
    if row.also:
        what += f" and {format_count(len(row.also), 'more cause')}"
    spent = f", {format_ms(row.total_ms)} in all" if row.total_ms else ""
    values = f"; seen: {', '.join(row.values[:12])}" if row.values else ""
    values += "".join(f"; {row.source or row.cause} too: {' → '.join(row.values[:12])}" for row in row.also[:4])
    limit = "; the recompile limit is reached: later calls run uncompiled" if row.limit else ""
    return _finding(
        RECOMPILE,
        f"{part_name(row.function.function)} is compiled again: {what}",
        "high" if row.limit else "medium" if row.count > 1 else "low",
        f"{format_count(row.count, 'time')}{spent}{values}{limit}",
        {"guard": row.guard, "n_records": row.count, "compile_ids": list(row.compile_ids), "total_ms": row.total_ms},
        row.fix,
        place=Place(frame=row.frame or row.caller or (row.function if row.function.file else None)),
        n_events=row.count,
    )
