"""How the parts of a compile result read, whichever page they are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.compile.places import part_name
from torchtriage.compile.result import (
    CompileResult,
    Count,
    Function,
    GraphBreak,
    Joined,
    Process,
    Recompile,
)
from torchtriage.finding import Finding, Frame
from torchtriage.names import elide, visible
from torchtriage.units import format_bytes, format_count, format_ms

__all__ = [
    "books",
    "cache",
    "counts",
    "cures",
    "cut",
    "facts",
    "file_name",
    "function",
    "graph_break",
    "joined",
    "other_findings",
    "place",
    "process",
    "recompile",
    "seconds",
    "values",
]


def file_name(path: str) -> str:
    """Return the last part of a path, safe to print."""
    return visible(path.replace("\\", "/").rstrip("/").split("/")[-1] or path)


def place(frame: Frame | None) -> str:
    """Return ``train.py:12 in step``, empty without a frame."""
    if frame is None:
        return ""
    line = f":{frame.line}" if frame.line else ""
    name = f" in {visible(part_name(frame.function))}" if frame.function else ""
    return f"{file_name(frame.file)}{line}{name}"


def seconds(value_ms: float) -> str:
    """Return a duration; empty where there is none."""
    return format_ms(value_ms) if value_ms else ""


def counts(rows: Iterable[Count], limit: int = 6) -> str:
    """Return ``3 triton, 1 cpp``; what is left out is said."""
    shown = list(rows)
    said = [f"{one.count:,} {visible(one.name)}" for one in shown[:limit]]
    rest = sum(one.count for one in shown[limit:])
    return ", ".join([*said, *([f"{rest:,} others"] if rest else [])])


def facts(result: CompileResult) -> str:
    """Return what was read, on one line."""
    size = sum(one.size_bytes for one in result.processes)
    parts = [
        format_count(len(result.processes), "log"),
        *([format_bytes(size)] if size else []),
        *([f"torch {', '.join(map(visible, result.torch))}"] if result.torch else []),
        *([f"trace {file_name(result.trace_path)}"] if result.trace_path else []),
    ]
    return ", ".join(parts)


def books(result: CompileResult) -> str:
    """Return where every entry went."""
    told = result.books
    reasons: dict[str, int] = {}
    for one in told.skipped:
        reason = one.name.partition(":")[0]
        reasons[reason] = reasons.get(reason, 0) + one.count
    rows = [
        Count(name, count) for name, count in sorted(reasons.items(), key=lambda item: -item[1])
    ]
    left = f": {counts(rows, 8)}" if rows else ""
    return (
        f"{told.n_read:,} entries read = {told.n_used:,} used + {told.n_skipped:,} left out{left};"
        f" {format_count(told.n_breaks, 'graph break')} in"
        f" {format_count(len(result.breaks), 'row')},"
        f" {format_count(told.n_recompiles, 'recompilation')} in"
        f" {format_count(len(result.recompiles), 'row')}"
    )


def graph_break(one: GraphBreak) -> str:
    """Return a break's place, with the user's line where it is inside of a library."""
    where = place(one.frame) or "no line in the log"
    return f"{where}, from {place(one.caller)}" if one.caller else where


def other_findings(result: CompileResult) -> list[Finding]:
    """Return the findings that are neither a break nor a recompilation."""
    told = {one.fix for one in result.breaks} | {one.fix for one in result.recompiles}
    return [one for one in result.findings if one.fix not in told]


def cut(text: str, room: int) -> str:
    """Return the beginning of a text, on one line."""
    shown = visible(" ".join(text.split()))
    return shown if len(shown) <= room else shown[: room - 1].rstrip() + "…"


def values(one: Recompile) -> str:
    """Return what the guard saw, in order."""
    return " → ".join(elide(visible(value), 60) for value in one.values[:12])


def recompile(one: Recompile) -> str:
    """Return what a guard looks at: ``size 0 of x``."""
    source = visible(one.source)
    if source.startswith("___stack"):
        return f"{one.cause} read at a graph break"
    if one.cause in ("size", "stride") and one.dim >= 0:
        return f"{one.cause} {one.dim} of {source}"
    if one.cause == "shape guard" or not source:
        return one.cause
    return f"{one.cause} of {source}" if one.cause not in ("other",) else source


def cures(one: Recompile) -> str:
    """Return what would end the recompilations."""
    told = (
        ("mark_dynamic", one.mark_dynamic),
        ("dynamic=True", one.dynamic),
        ("bucketing", one.bucketing),
    )
    yes = [name for name, answer in told if answer == "yes"]
    once = [name for name, answer in told if answer == "once"]
    if yes:
        return f"{', '.join(yes)} would end it"
    if once:
        return f"{', '.join(once)} would save this one"
    return "no dynamic shape would end it"


def function(one: Function) -> str:
    """Return what became of a function."""
    parts = [one.outcome if one.outcome != "limit" else "recompile limit reached"]
    if one.n_ops:
        parts.append(format_count(one.n_ops, "op"))
    if one.n_guards:
        parts.append(format_count(one.n_guards, "guard"))
    if one.n_breaks:
        parts.append(format_count(one.n_breaks, "break"))
    return ", ".join(parts)


def process(one: Process) -> str:
    """Return what one process did, cold and warm."""
    name = "" if one.rank is None else f"rank {one.rank}"
    again = f"restart {one.restart}" if one.restart else ""
    parts = [
        *filter(None, (name, again)),
        *([] if one.n_compiles is None else [format_count(one.n_compiles, "compilation")]),
        *(["text"] if one.form == "text" else []),
        *([format_ms(one.compile_ms)] if one.compile_ms else []),
        *([f"{one.n_cold} cold {format_ms(one.cold_ms)}"] if one.n_cold else []),
        *([f"{one.n_warm} warm {format_ms(one.warm_ms)}"] if one.n_warm else []),
    ]
    return ", ".join(parts)


def cache(rows: Sequence[Count]) -> str:
    """Return why a cache was passed by."""
    return f"; passed by: {counts(rows, 2)}" if rows else ""


def joined(one: Joined | None) -> str:
    """Return what a trace adds, empty without one."""
    if one is None:
        return ""
    most = "at most " if one.at_most else ""
    times = f"{format_count(one.n_seams, 'time')} {one.per}"
    parts = [times, f"host {most}{format_ms(one.host_ms)}"]
    if one.idle_ms is not None:
        parts.append(f"device idle {most}{format_ms(one.idle_ms)}")
    if one.n_launches is not None:
        parts.append(format_count(one.n_launches, "launch", "launches"))
    if one.n_kernels is not None:
        parts.append(f"{format_count(one.n_kernels, 'kernel')} outside of graphs")
    return f"{', '.join(parts)}; of {format_ms(one.of_ms)}"
