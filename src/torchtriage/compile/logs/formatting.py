"""How the parts of a compile result read, whichever page they are on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchtriage.compile.logs.locations import part_name
from torchtriage.compile.logs.result import (
    AlsoChanged,
    CompiledFunction,
    CompileResult,
    Count,
    GraphBreak,
    Joined,
    Process,
    Recompile,
)
from torchtriage.core.finding import Finding, Frame
from torchtriage.core.names import elide, file_name, visible
from torchtriage.core.units import format_bytes, format_count, format_ms

N_NAMED = 4
"""Causes of one recompilation beside the one that the log names."""


def place(frame: Frame | None) -> str:
    """Return ``train.py:12 in step``, empty without a frame."""
    if frame is None:
        return ""
    line = f":{frame.line}" if frame.line else ""
    name = f" in {visible(part_name(frame.function))}" if frame.function else ""
    return f"{visible(file_name(frame.file))}{line}{name}"


def seconds(value_ms: float) -> str:
    """Return a duration; empty where there is none."""
    return format_ms(value_ms) if value_ms else ""


def counts(rows: Sequence[Count], limit: int = 6) -> str:
    """Return ``3 triton, 1 cpp``, and the sum of what is left out."""
    parts = [f"{row.count:,} {visible(row.name)}" for row in rows[:limit]]
    rest = sum(row.count for row in rows[limit:])
    return ", ".join([*parts, *([f"{rest:,} others"] if rest else [])])


def facts(result: CompileResult) -> str:
    """Return what was read, on one line."""
    size = sum(process.size_bytes for process in result.processes)
    parts = [
        format_count(len(result.processes), "log"),
        format_bytes(size) if size else "",
        f"torch {', '.join(map(visible, result.torch))}" if result.torch else "",
        f"trace {visible(file_name(result.trace_path))}" if result.trace_path else "",
    ]
    return ", ".join(filter(None, parts))


def books(result: CompileResult) -> str:
    """Return where every entry went."""
    totals = result.books
    reasons: Counter[str] = Counter()
    for row in totals.skipped:
        reasons[row.name.partition(":")[0]] += row.count
    rows = [Count(name, count) for name, count in reasons.most_common()]
    left = f": {counts(rows, 8)}" if rows else ""
    return (
        f"{totals.n_read:,} entries read = {totals.n_used:,} used + {totals.n_skipped:,} left out{left};"
        f" {format_count(totals.n_breaks, 'graph break')} in {format_count(len(result.breaks), 'row')},"
        f" {format_count(totals.n_recompiles, 'recompilation')} in {format_count(len(result.recompiles), 'row')}"
    )


def graph_break(row: GraphBreak) -> str:
    """Return a break's place, with the user's line where it is inside of a library."""
    where = place(row.frame) or "no line in the log"
    return f"{where}, from {place(row.caller)}" if row.caller else where


def other_findings(result: CompileResult) -> list[Finding]:
    """Return the findings that are neither a break nor a recompilation."""
    reported = {row.fix for row in result.breaks} | {row.fix for row in result.recompiles}
    return [finding for finding in result.findings if finding.fix not in reported]


def cut(text: str, room: int) -> str:
    """Return the beginning of a text, on one line."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= room else line[: room - 1].rstrip() + "…"


def values(row: Recompile | AlsoChanged) -> str:
    """Return the values the guard checked, in order."""
    return " → ".join(elide(visible(value), 60) for value in row.values[:12])


def recompile(row: Recompile) -> str:
    """Return what guards look at: ``size 0 of x``, ``dtype of x, number of self.k``."""
    more = f", {len(row.also) - N_NAMED} more" if len(row.also) > N_NAMED else ""
    return ", ".join([looked_at(row), *map(looked_at, row.also[:N_NAMED])]) + more


def looked_at(row: Recompile | AlsoChanged) -> str:
    """Return what one guard looks at."""
    source = visible(row.source)
    if source.startswith("___stack"):
        return f"{row.cause} read at a graph break"
    if row.cause in ("size", "stride") and row.dim >= 0:
        return f"{row.cause} {row.dim} of {source}"
    if row.cause == "shape guard" or not source:
        return row.cause
    return f"{row.cause} of {source}" if row.cause != "other" else source


def cures(row: Recompile) -> str:
    """Return what would end the recompilations."""
    answers = (("mark_dynamic", row.mark_dynamic), ("dynamic=True", row.dynamic), ("bucketing", row.bucketing))
    yes = [name for name, answer in answers if answer == "yes"]
    once = [name for name, answer in answers if answer == "once"]
    if yes:
        return f"{', '.join(yes)} would fix it"
    if once:
        return f"{', '.join(once)} would save this one"
    return "no dynamic shape would fix it"


def function(row: CompiledFunction) -> str:
    """Return what became of a function."""
    outcome = row.outcome if row.outcome != "limit" else "recompile limit reached"
    numbers = ((row.n_ops, "op"), (row.n_guards, "guard"), (row.n_breaks, "break"))
    return ", ".join([outcome, *(format_count(number, noun) for number, noun in numbers if number)])


def process(row: Process) -> str:
    """Return what one process did, cold and warm."""
    parts = [
        "" if row.rank is None else f"rank {row.rank}",
        f"restart {row.restart}" if row.restart else "",
        "" if row.n_compiles is None else format_count(row.n_compiles, "compilation"),
        "text" if row.form == "text" else "",
        seconds(row.compile_ms),
        f"{row.n_cold} cold {format_ms(row.cold_ms)}" if row.n_cold else "",
        f"{row.n_warm} warm {format_ms(row.warm_ms)}" if row.n_warm else "",
    ]
    return ", ".join(filter(None, parts))


def cache(rows: Sequence[Count]) -> str:
    """Return why a cache was passed by."""
    return f"; bypassed for: {counts(rows, 2)}" if rows else ""


def joined(row: Joined | None) -> str:
    """Return what a trace adds, empty without one."""
    if row is None:
        return ""
    most = "at most " if row.at_most else ""
    times = f"{format_count(row.n_seams, 'time')} {row.per}"
    parts = [times, f"host {most}{format_ms(row.host_ms)}"]
    if row.idle_ms is not None:
        parts.append(f"device idle {most}{format_ms(row.idle_ms)}")
    if row.n_launches is not None:
        parts.append(format_count(row.n_launches, "launch", "launches"))
    if row.n_kernels is not None:
        parts.append(f"{format_count(row.n_kernels, 'kernel')} outside of graphs")
    return f"{', '.join(parts)}; of {format_ms(row.of_ms)}"
