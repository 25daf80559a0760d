"""How the parts of an XLA result read, whichever page they are on."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.compile.places import part_name
from torchtriage.finding import Frame
from torchtriage.names import visible
from torchtriage.units import format_bytes, format_count, format_ms
from torchtriage.xla.result import (
    Answers,
    Correlation,
    Fallback,
    FxGraph,
    HloGraph,
    Model,
    Program,
    Route,
)

__all__ = [
    "COLUMNS",
    "TITLES",
    "answers",
    "cells",
    "correlation",
    "fallback",
    "fx",
    "graph",
    "mode",
    "number",
    "place",
    "program",
    "route",
    "times",
]

NONE = "-"
TITLES = {"eager": "eager, processor", "lazy": "LazyTensor", "openxla": "dynamo openxla"}
COLUMNS = ("route", "compiled", "extra", "per step", "host ops", "to / from", "first", "steady",
           "queued", "answers")  # fmt: skip


def mode(model: Model) -> str:
    """Return ``training`` or ``inference``."""
    return "training" if model.train else "inference"


def number(value: float | None) -> str:
    """Return a count or a mean of counts, or a dash."""
    return NONE if value is None else f"{value:.3g}"


def place(frame: Frame | None) -> str:
    """Return ``models.py:12 in forward``, empty without a frame."""
    if frame is None:
        return ""
    name = visible(frame.file.replace("\\", "/").rpartition("/")[2])
    return f"{name}:{frame.line} in {visible(part_name(frame.function))}"


def cells(one: Route) -> tuple[str, ...]:
    """Return a row of the table, one cell for each of ``COLUMNS``."""
    counted = bool(one.steps)
    steady = one.steps[len(one.steps) - one.n_steady :] if one.n_steady else ()
    host = sum(each.per_step or 0 for each in one.fallbacks)
    moved = [sum(getattr(step, name) for step in steady) / len(steady) if steady else None
             for name in ("to_device", "from_device")]  # fmt: skip
    times = one.times
    return (
        TITLES[one.name],
        f"{one.n_compiled}" if counted else NONE,
        f"{one.n_extra}" if counted else NONE,
        number(one.executed_per_step),
        number(host) if steady else NONE,
        " / ".join(map(number, moved)) if steady else NONE,
        format_ms(times.first_ms) if times else NONE,
        format_ms(times.steady_ms) if times else NONE,
        format_ms(times.queued_ms) if times and times.queued_ms is not None else NONE,
        one.answers.verdict if one.answers else NONE,
    )


def route(one: Route) -> str:
    """Return what torch_xla's metrics counted, step by step."""
    compiled = ", ".join(str(step.compiled) for step in one.steps)
    executed = ", ".join(str(step.executed) for step in one.steps)
    text = f"compiled {compiled} and executed {executed} HLO graphs in steps 1 to {len(one.steps)}"
    spent = sum(step.compile_ms for step in one.steps)
    text += f"; compiling took {format_ms(spent)}"
    if one.execute_ms_per_step is not None:
        text += f", executing {format_ms(one.execute_ms_per_step)} per steady step"
    return text


def times(one: Route) -> str:
    """Return the interval behind a route's times."""
    found = one.times
    if found is None:
        return ""
    text = (
        f"steady {format_ms(found.steady_ms)},"
        f" {format_ms(found.low_ms)} to {format_ms(found.high_ms)}"
        f" over {format_count(found.n_processes, 'process', 'processes')}"
        f" ({format_count(found.n_steps, 'step')}); first {format_ms(found.first_ms)},"
        f" {format_ms(found.first_low_ms)} to {format_ms(found.first_high_ms)}"
    )
    if found.queued_ms is not None:
        text += f"; {format_ms(found.queued_ms)} each when {found.n_queued} are waited for at once"
    return text


def graph(one: HloGraph) -> str:
    """Return one HLO graph on a line: why, where from, how large, how often."""
    parts = [visible(one.reason)]
    where = place(one.frame)
    if where:
        parts.append(where)
    if one.n_ops is not None:
        parts.append(f"{format_count(one.n_ops, 'instruction')}")
    if one.n_aliased:
        parts.append(f"{one.n_aliased} of its outputs in place of inputs")
    if one.compile_ms is not None:
        parts.append(f"compiled in {format_ms(one.compile_ms)}")
    if one.per_step is not None:
        times_run = format_count(one.per_step, "time")
        parts.append(f"run {times_run} per steady step")
    elif one.first_step:
        parts.append(f"run {format_count(one.first_step, 'time')}")
    return "; ".join(parts)


def fx(one: FxGraph, graphs: tuple[HloGraph, ...]) -> str:
    """Return what became of an FX graph."""
    size = format_count(one.n_ops, "operator") if one.n_ops is not None else "of unknown size"
    cut = ""
    if one.not_lowered:
        names = ", ".join(f"{visible(each.name)}" for each in one.not_lowered[:4])
        cut = f", cut at {names}"
    if one.hlo:
        listed = ", ".join(f"#{number + 1}" for number in one.hlo)
        equal = len(one.parts) - len(one.hlo)
        rest = f"; {equal} of {len(one.parts)} parts equal graphs compiled before" if equal else ""
        return f"{size}{cut}: HLO {listed}{rest}"
    if one.parts:
        return f"{size}{cut}: no HLO of its own, XLA had equal ones"
    return f"{size}{cut}: nothing that XLA could be given"


def fallback(one: Fallback) -> str:
    """Return an operator on the host and how often."""
    per = f", {number(one.per_step)} per steady step" if one.per_step is not None else ""
    kind = {"read": "asks for a value", "shape": "has a size that depends on values",
            "not lowered": "is not lowered"}[one.kind]  # fmt: skip
    return (
        f"{visible(one.name)} {kind}: {format_count(one.first_step, 'call')} in the first step{per}"
    )


def answers(one: Answers) -> str:
    """Return the verdict on a route's answers."""
    text = one.verdict
    if one.error is not None and one.eager_error is not None:
        text += f": relative error {one.error:.1e}, eager's own {one.eager_error:.1e}"
    return f"{text}; {visible(one.reason)}" if one.reason else text


def correlation(one: Correlation) -> str:
    """Return a correlation in a sentence."""
    head = f"{one.of} with {one.with_}"
    if one.rho is None or one.low is None or one.high is None:
        return f"{head}: not told ({one.why_not})"
    return f"{head}: rho {one.rho:.2f} ({one.low:.2f} to {one.high:.2f}), n = {one.n}"


def program(one: Program) -> Iterable[tuple[str, str]]:
    """Yield what the dumps of a program count, each with its source."""
    if one.n_compiled is not None:
        spent = f", {format_ms(one.compile_ms)} in all" if one.compile_ms is not None else ""
        yield "compiled", f"{one.n_compiled:,} (CompileTime){spent}"
    if one.n_executed is not None:
        spent = f", {format_ms(one.execute_ms)} in all" if one.execute_ms is not None else ""
        yield "executed", f"{one.n_executed:,} (ExecuteTime){spent}"
    if one.n_compiled_told is not None:
        yield (
            "told",
            (
                f"{format_count(one.n_compiled_told, 'compilation')} and"
                f" {format_count(one.n_executed_told or 0, 'execution')} (PT_XLA_DEBUG)"
            ),
        )
    if one.n_saved is not None:
        yield "saved", f"{format_count(one.n_saved, 'distinct graph')} (XLA_SAVE_TENSORS_FILE)"
    if one.n_modules is not None:
        yield "modules", f"{one.n_modules:,} (--xla_dump_to)"
    for name, count, size in (("to device", one.to_device, one.to_device_bytes),
                              ("from device", one.from_device, one.from_device_bytes)):  # fmt: skip
        if count is not None:
            sized = f", {format_bytes(size)}" if size is not None else ""
            yield name, f"{format_count(count, 'transfer')}{sized}"
