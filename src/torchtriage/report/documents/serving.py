"""The steps of an inference engine by phase: what they hold, what they take, and how they are launched."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.verdict.result import PhaseTime, ServingTime
from torchtriage.report import blocks as b

COLUMNS = (
    *("phase", "steps", "requests", "tokens", "per step", "busy", "between", "kernels", "launches", "tokens/s"),
    "graphs",
)
_GRAPHS = {"full": "full", "piecewise": "piecewise", "some": "replayed", "eager": "none", "unknown": "not known"}


def account(serving: ServingTime | None) -> Iterator[b.Block]:
    """Return a row per phase and what its columns are means over; nothing without an engine."""
    if serving is None:
        return
    yield b.Table(COLUMNS, rows(serving), align="lrrrrrrrrrl", drop=(7, 8, 6, 2, 10, 5))
    yield b.Lines([b.dim(line) for line in words(serving)], tight=bool(serving.phases))


def words(serving: ServingTime) -> list[str]:
    """Return what the amounts of the table are taken over."""
    engine = visible(serving.engine)
    ranges = ", ".join(map(visible, serving.captures))
    captures = [f"{engine} captures graphs here: {ranges}."] * bool(ranges)
    if not serving.phases:
        return [*captures, f"The recording holds no step of {engine}."]
    n_steps = sum(phase.n_steps for phase in serving.phases)
    n_steady = sum(phase.n_steady for phase in serving.phases)
    wall_ns = sum(phase.wall_ns for phase in serving.phases)
    of = f" of {n_steps:,}" if n_steady < n_steps else ""
    lines = [
        f"{engine}, means over {format_count(n_steady, 'steady step')}{of}, {format_ns(wall_ns)} in all as recorded;"
        " requests and tokens: prefill + decode."
    ]
    if serving.basis == "frames":
        lines.append("No range says what a step holds; steps with their attention in a graph are taken as decode.")
    return [*lines, *captures]


def rows(serving: ServingTime) -> list[tuple[str, ...]]:
    """Return the cells of each phase, in the order of ``COLUMNS``."""
    return [_row(phase) for phase in serving.phases]


def _row(phase: PhaseTime) -> tuple[str, ...]:
    n = phase.n_steady

    def time(ns: int | None) -> str:
        return format_ns(round(ns / n)) if n and ns is not None else ""

    def count(number: int | None) -> str:
        return format_count(number / n) if n and number is not None else ""

    def both(context: int | None, generation: int | None) -> str:
        if not n or (context is None and generation is None):
            return "not known" if n else ""
        return " + ".join(count(number) or "?" for number in (context, generation) if number != 0) or "0"

    several = len(phase.graphs) > 1
    return (
        phase.phase if phase.phase != "unknown" else "not known",
        f"{n:,}" if n == phase.n_steps else f"{n:,} of {phase.n_steps:,}",
        both(phase.n_context, phase.n_generation),
        both(phase.context_tokens, phase.generation_tokens),
        time(phase.wall_ns),
        format_share(phase.busy_ns / phase.wall_ns) if phase.busy_ns is not None and phase.wall_ns else "",
        time(phase.between_ns),
        count(phase.n_work),
        count(phase.n_launches),
        f"{phase.tokens_per_s:,.0f}" if phase.tokens_per_s is not None else "",
        ", ".join(f"{_GRAPHS[use]}{f' ({number:,})' * several}" for use, number in phase.graphs.items()),
    )
