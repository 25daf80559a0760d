"""How the parts of a benchmark read, whichever page they are on."""

from __future__ import annotations

import math

from torchtriage.bench.result import (
    BenchResult,
    Comparison,
    Compilation,
    Misses,
    Numerics,
    Row,
    Start,
)
from torchtriage.names import visible
from torchtriage.units import format_bytes, format_count, format_ms, format_share

__all__ = [
    "COLUMNS",
    "basis",
    "cells",
    "comparison",
    "compilation",
    "errors",
    "failure",
    "misses",
    "ms",
    "seconds",
    "setting",
    "tiny",
]

NONE = "-"
COLUMNS = ("way", "cold", "warm", "P50", "P95", "P99", "rate", "memory", "answers", "pays after")


def ms(value: float | None) -> str:
    """Return a time, or a dash."""
    return NONE if value is None else format_ms(value)


def seconds(start: Start | None) -> str:
    """Return a first call, or a dash."""
    return NONE if start is None else format_ms(start.first_call_s * 1e3)


def setting(row: Row) -> str:
    """Return the setting's name, safe to print."""
    return visible(row.label)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table, one cell for each of ``COLUMNS``."""
    if row.failure is not None:
        return (setting(row), seconds(row.cold), *(NONE,) * (len(COLUMNS) - 2))
    rate = row.throughput
    memory = row.memory
    peak = memory.host_peak_bytes if memory is not None else None
    if memory is not None and memory.device_reserved_bytes:
        peak = (peak or 0) + memory.device_reserved_bytes
    return (
        setting(row),
        seconds(row.cold),
        seconds(row.warm),
        *(ms(row.quantile(name)) for name in ("P50", "P95", "P99")),
        f"{rate.value:,.3g}/s" if rate is not None and rate.value < 1000
        else f"{rate.value:,.0f}/s" if rate is not None else NONE,
        format_bytes(peak) if peak is not None else NONE,
        row.numerics.verdict if row.numerics is not None else NONE,
        _pays(row),
    )  # fmt: skip


def _pays(row: Row) -> str:
    if row.setting.mode == "eager":
        return ""
    if row.numerics is not None and row.numerics.verdict == "wrong":
        return NONE
    calls = row.break_even_cold
    return format_count(calls, "call") if calls is not None else row.pays


def failure(row: Row) -> str:
    """Return why a row has no numbers: what happened, when, in which stage."""
    one = row.failure
    if one is None:
        return ""
    kinds = {"crash": "crashed", "timeout": "timed out", "error": "failed"}
    stages = {"start": "while starting", "compile": "in its first call", "steps": "while running"}
    return (
        f"{kinds.get(one.kind, one.kind)} {stages.get(one.stage, one.stage)}"
        f" ({visible(one.session)}, after {format_ms(one.after_s * 1e3)}): {visible(one.message)}"
    )


def compilation(one: Compilation) -> str:
    """Return what was compiled, and the phases of the cold start."""
    said = [
        format_count(one.graphs, "graph"),
        format_count(one.graph_breaks, "graph break"),
        format_count(one.recompiles, "recompile"),
    ]
    phases = [f"{at.name} {format_ms(at.cold_s * 1e3)}" for at in one.phases if at.cold_s]
    text = ", ".join(said) + (f"; cold: {', '.join(phases)}" if phases else "")
    other = one.other_size
    if other is not None:
        text += (
            f"; then batch {other.batch_size}: {format_ms(other.first_call_s * 1e3)} once,"
            f" {format_count(other.recompiles, 'recompile')}"
        )
    if one.reasons:
        text += f"; first break: {visible(one.reasons[0][0])}"
    return text


def tiny(share: float | None) -> str:
    """Return a relative error: ``2e-7``, ``0.4 %``, ``0``."""
    if share is None:
        return "not finite"
    if not share:
        return "0"
    return format_share(share) if share >= 1e-3 else f"{share:.0e}".replace("e-0", "e-")


def errors(found: Numerics) -> str:
    """Return the errors behind a verdict about the answers."""
    if found.verdict == "not checked":
        beside = f"; {tiny(found.error)} from eager" if found.error is not None else ""
        return f"not checked: {visible(found.reason)}{beside}"
    if found.reference == "eager":
        return f"{found.verdict}: {visible(found.reason)}"
    said = [f"relative error {tiny(found.error)}, eager's own {tiny(found.eager_error)}"]
    if found.low_error is not None:
        said.append(f"in bfloat16 {tiny(found.low_error)}")
    said.append(
        f"worst element {tiny(found.worst)} (eager {tiny(found.eager_worst)})"
        f" at {visible(found.worst_at)}"
    )
    if found.cosine is not None:
        away = max(1 - found.cosine, 0.0)
        said.append("cosine 1" if away < 1e-9 else f"cosine 1 - 1e{math.ceil(math.log10(away))}")
    if found.reason:
        said.append(visible(found.reason))
    return f"{found.verdict}: {', '.join(said)}"


def comparison(one: Comparison) -> str:
    """Return how two settings compare, in a few words."""
    names = (visible(one.faster), visible(one.slower))
    if one.low is None or one.high is None:
        few = (
            f"{format_count(one.n_rounds, 'round')} {'is' if one.n_rounds == 1 else 'are'} too few"
        )
        return f"{names[0]} and {names[1]}: not compared ({few})"
    if one.tie:
        gap = format_share(one.ratio - 1)
        ends = f"{format_share(one.low - 1)} to {format_share(one.high - 1)}"
        how = "a tie" if one.resolved else "a tie, not resolved"
        return f"{names[0]} and {names[1]}: {how} ({gap}; {ends})"
    ends = f"{one.low:.3g}-{one.high:.3g}"
    return f"{names[0]} is {one.ratio:.3g} ({ends}) times as fast as {names[1]}"


def misses(one: Misses) -> str:
    """Return how many steps missed the deadline."""
    share = format_share(one.share)
    if one.low is not None and one.high is not None:
        share += f", {format_share(one.low)} to {format_share(one.high)}"
    steps = f"{one.n_missed:,} of {one.n_steps:,} steps"
    return f"{steps} took longer than {format_ms(one.deadline_ms)} ({share})"


def basis(result: BenchResult) -> str:
    """Return how it was measured, on one line."""
    how = "in turns" if result.interleaved else "one after the other"
    step = "forward and backward" if result.train else "forward"
    rounds = format_count(result.n_rounds, "round")
    return f"{rounds}, {how}, on {visible(result.device)}; a step is {step}"
