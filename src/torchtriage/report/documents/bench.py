"""A benchmark: the verdict, all settings, what to deploy, and each setting's details."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchtriage.core.units import format_bytes, format_count, format_ms, format_share
from torchtriage.measure.bench.result import (
    BenchResult,
    CompileCost,
    Misses,
    Numerics,
    SettingComparison,
    SettingRow,
    Start,
)
from torchtriage.report import blocks as b
from torchtriage.report.page import text

NONE = "-"
COLUMNS = ("way", "cold", "warm", "P50", "P95", "P99", "rate", "memory", "answers", "pays after")
DROPPED = (6, 7, 4, 2)
"""Columns that give way where they do not fit: rate and memory are in the JSON and the page too."""
N_BARS, N_PAIRS = 30, 12
WIDTH, HEIGHT = 600, 80
"""Of a warm-up curve on the page, in its own units."""


def document(result: BenchResult) -> b.Document:
    """Return the report of ``torchtriage bench``."""
    basis = _basis(result)
    facts = [("target", result.target), ("measured", basis), *result.facts, ("machine", str(result.noise))]
    failed = [(b.Span(f"{row.label} ", "bold red"), failure(row)) for row in result.rows if row.failure is not None]
    table = [cells(row) for row in result.rows]
    settings = [_setting(row) for row in result.rows]
    styles = ["red" if row.failure is not None else "" for row in result.rows]
    pairs = [
        comparison(pair) if not pair.tie or pair.resolved else b.dim(comparison(pair))
        for pair in result.comparisons[:N_PAIRS]
    ]
    blocks: list[b.Block] = [
        b.Head("torchtriage bench", result.verdict, facts=facts),
        b.Lines([b.dim(result.target)], fit=True, on=b.TERMINAL),
        b.Lines([b.dim(basis)], tight=True, on=b.TERMINAL),
        b.Table(COLUMNS, table, styles=styles, drop=DROPPED, on=b.TERMINAL + b.MARKDOWN),
        b.Lines(failed, hang=4, tight=True, on=b.TERMINAL),
        b.Lines(failed, bullets=True, on=b.MARKDOWN),
        b.Section("What to deploy", list(_advice(result))),
        b.Section(
            "Step times",
            [b.Markup(_times(result.rows))],
            "P50 of steady steps; the mark is P95 where it is known.",
            on=b.PAGE,
        ),
        b.Section(
            "All settings",
            [b.Table(COLUMNS, table, kind="settings"), b.Lines([comparison(pair) for pair in result.comparisons])],
            on=b.PAGE,
        ),
        b.Rows(b.labelled("order", pairs), on=b.TERMINAL),
        b.Section("", settings, on=b.TERMINAL),
        b.Section("Setting by setting", settings, on=b.PAGE),
        b.Notes(result.notes),
        b.Foot(f"{result.target}: {basis}, torchtriage {result.version}"),
    ]
    remark = "A session is one fresh process; a step is one call. Intervals are 95 % over sessions."
    return b.Document(result.target, result.version, result.schema, blocks, "bench.css", remark)


def _advice(result: BenchResult) -> Iterator[b.Block]:
    lines: list[b.Text] = []
    for advice in result.advice:
        title = f"{advice.need}, batch {advice.batch_size}" if advice.batch_size else advice.need
        lines.append((b.bold(title), ": ", b.code(advice.line), f" ({advice.why})"))
        line = b.Lines([b.Span(advice.line, "green"), advice.why], hang=0, on=b.TERMINAL)
        rows: list[b.Block] = [line, b.Code([(advice.line, "")], on=b.PAGE), b.Lines([advice.why], on=b.PAGE)]
        yield b.Entry(title, rows, indent=2, kind="advice", on=b.TERMINAL + b.PAGE)
    yield b.Lines(lines, bullets=True, on=b.MARKDOWN)


def _setting(row: SettingRow) -> b.Entry:
    rows: list[b.Row] = []
    for quantile in row.quantiles:
        if quantile.low_ms is not None and quantile.high_ms is not None:
            steps = f"{format_count(row.n_steps, 'step')} in {format_count(row.n_sessions, 'session')}"
            interval = f"{format_ms(quantile.low_ms)} to {format_ms(quantile.high_ms)}"
            rows.append(b.Row(quantile.name, f"{interval}, {steps}" if quantile.name == "P50" else interval))
    if row.compilation is not None:
        rows.append(b.Row("compile", compilation(row.compilation)))
    if row.misses is not None:
        rows.append(b.Row("deadline", misses(row.misses)))
    if row.numerics is not None and (row.setting.mode != "eager" or row.numerics.reason):
        style = "bold red" if row.numerics.verdict == "wrong" else ""
        rows.append(b.Row("answers", b.Span(_errors(row.numerics), style)))
    warm_up = len(row.warm_up_ms) > 1
    bars = [b.Row("warm-up", (b.dim(_bars(row.warm_up_ms)), f"  {_steady(row)}"))] if warm_up and row.n_sessions else []
    reasons = row.compilation.reasons if row.compilation is not None else ()
    blocks = [
        b.Code([(row.setting.line, "")], on=b.PAGE),
        b.Lines([failure(row)], on=b.PAGE),
        b.Markup(_curve(row) if warm_up else ""),
        b.Rows(bars, indent=0, on=b.TERMINAL),
        b.Rows(rows, indent=0),
        b.Lines(["Graph breaks:"] if reasons else [], on=b.PAGE),
        b.Lines([f"{reason} ({number})" for reason, number in reasons], bullets=True, on=b.PAGE),
    ]
    detailed = bool(bars or rows) and (row.failure is None or row.compilation is not None)
    return b.Entry(row.label, blocks, indent=2, on=b.PAGE + b.TERMINAL * detailed)


# -- what the parts say ----------------------------------------------------------------------------


def _basis(result: BenchResult) -> str:
    how = "in turns" if result.interleaved else "one after the other"
    step = "forward and backward" if result.train else "forward"
    return f"{format_count(result.n_rounds, 'round')}, {how}, on {result.device}; a step is {step}"


def _ms(value: float | None) -> str:
    return NONE if value is None else format_ms(value)


def _first_call(start: Start | None) -> str:
    return NONE if start is None else format_ms(start.first_call_s * 1e3)


def _steady(row: SettingRow) -> str:
    if row.steady_from is not None:
        return f"steady from step {row.steady_from:,} on"
    return f"steady in {row.n_steady} of {format_count(row.n_sessions, 'session')}"


def cells(row: SettingRow) -> tuple[str, ...]:
    """Return a row of the table, one cell for each of ``COLUMNS``."""
    if row.failure is not None:
        return (row.label, _first_call(row.cold), *(NONE,) * (len(COLUMNS) - 2))
    rate, memory = row.throughput, row.memory
    peak = memory.host_peak_bytes if memory is not None else None
    if memory is not None and memory.device_reserved_bytes:
        peak = (peak or 0) + memory.device_reserved_bytes
    return (
        row.label,
        _first_call(row.cold),
        _first_call(row.warm),
        *(_ms(row.quantile(name)) for name in ("P50", "P95", "P99")),
        NONE if rate is None else f"{rate.value:,.3g}/s" if rate.value < 1000 else f"{rate.value:,.0f}/s",
        format_bytes(peak) if peak is not None else NONE,
        row.numerics.verdict if row.numerics is not None else NONE,
        _pays_after(row),
    )


def _pays_after(row: SettingRow) -> str:
    if row.setting.mode == "eager":
        return ""
    if row.numerics is not None and row.numerics.verdict == "wrong":
        return NONE
    calls = row.break_even_cold
    return format_count(calls, "call") if calls is not None else row.pays


def failure(row: SettingRow) -> str:
    """Return why a row has no numbers: what happened, when, in which stage."""
    reason = row.failure
    if reason is None:
        return ""
    kinds = {"crash": "crashed", "timeout": "timed out", "error": "failed"}
    stages = {"start": "while starting", "compile": "in its first call", "steps": "while running"}
    return (
        f"{kinds.get(reason.kind, reason.kind)} {stages.get(reason.stage, reason.stage)}"
        f" ({reason.session}, after {format_ms(reason.after_s * 1e3)}): {reason.message}"
    )


def compilation(row: CompileCost) -> str:
    """Return what was compiled, and the phases of the cold start."""
    counts = ((row.graphs, "graph"), (row.graph_breaks, "graph break"), (row.recompiles, "recompile"))
    line = ", ".join(format_count(number, noun) for number, noun in counts)
    phases = [f"{phase.name} {format_ms(phase.cold_s * 1e3)}" for phase in row.phases if phase.cold_s]
    if phases:
        line += f"; cold: {', '.join(phases)}"
    if (other := row.other_size) is not None:
        line += (
            f"; then batch {other.batch_size}: {format_ms(other.first_call_s * 1e3)} once,"
            f" {format_count(other.recompiles, 'recompile')}"
        )
    return f"{line}; first break: {row.reasons[0][0]}" if row.reasons else line


def _tiny(share: float | None) -> str:
    """Return a relative error: ``2e-7``, ``0.4 %``, ``0``."""
    if share is None:
        return "not finite"
    if not share:
        return "0"
    return format_share(share) if share >= 1e-3 else f"{share:.0e}".replace("e-0", "e-")


def _errors(numerics: Numerics) -> str:
    if numerics.verdict == "not checked":
        beside = f"; {_tiny(numerics.error)} from eager" if numerics.error is not None else ""
        return f"not checked: {numerics.reason}{beside}"
    if numerics.reference == "eager":
        return f"{numerics.verdict}: {numerics.reason}"
    parts = [f"relative error {_tiny(numerics.error)}, eager's own {_tiny(numerics.eager_error)}"]
    if numerics.low_error is not None:
        parts.append(f"in bfloat16 {_tiny(numerics.low_error)}")
    parts.append(f"worst element {_tiny(numerics.worst)} (eager {_tiny(numerics.eager_worst)}) at {numerics.worst_at}")
    if numerics.cosine is not None:
        away = max(1 - numerics.cosine, 0.0)
        parts.append("cosine 1" if away < 1e-9 else f"cosine 1 - 1e{math.ceil(math.log10(away))}")
    if numerics.reason:
        parts.append(numerics.reason)
    return f"{numerics.verdict}: {', '.join(parts)}"


def comparison(pair: SettingComparison) -> str:
    """Return how two settings compare, in a few words."""
    if pair.low is None or pair.high is None:
        few = f"{format_count(pair.n_rounds, 'round')} {'is' if pair.n_rounds == 1 else 'are'} too few"
        return f"{pair.faster} and {pair.slower}: not compared ({few})"
    if pair.tie:
        ends = f"{format_share(pair.low - 1)} to {format_share(pair.high - 1)}"
        how = "a tie" if pair.resolved else "a tie, not resolved"
        return f"{pair.faster} and {pair.slower}: {how} ({format_share(pair.ratio - 1)}; {ends})"
    return f"{pair.faster} is {pair.ratio:.3g} ({pair.low:.3g}-{pair.high:.3g}) times as fast as {pair.slower}"


def misses(row: Misses) -> str:
    """Return how many steps missed the deadline."""
    share = format_share(row.share)
    if row.low is not None and row.high is not None:
        share += f", {format_share(row.low)} to {format_share(row.high)}"
    steps = f"{row.n_missed:,} of {row.n_steps:,} steps"
    return f"{steps} took longer than {format_ms(row.deadline_ms)} ({share})"


# -- pictures --------------------------------------------------------------------------------------


def _bars(times: Sequence[float]) -> str:
    logs = [math.log(max(time, 1e-9)) for time in times[:N_BARS]]
    return b.bars(logs, min(logs))


def _times(rows: Sequence[SettingRow]) -> str:
    """Return bars; drawings, as the page's policy allows an element no style of its own."""
    longest = max(
        (row.quantile("P95") or row.quantile("P50") or 0.0 for row in rows if row.quantile("P50")), default=0.0
    )
    parts = ['<div class="times">']
    for row in rows:
        p50, p95 = row.quantile("P50"), row.quantile("P95")
        parts.append(f"<span>{text(row.label)}</span>")
        if p50 is None or not longest:
            parts.append(f'<span class="failed">{text(failure(row) or "no sessions")}</span>')
            continue
        mark = f'<rect x="{p95 / longest * 998:.1f}" width="2" height="16"/>' if p95 else ""
        parts.append(
            f'<svg class="track" viewBox="0 0 1000 16" preserveAspectRatio="none" role="img"'
            f' aria-label="{text(format_ms(p50))}"><rect class="bar" width="{p50 / longest * 998:.1f}" height="16"/>'
            f"{mark}</svg><span>{text(format_ms(p50))}</span>"
        )
    return "".join([*parts, "</div>"])


def _curve(row: SettingRow) -> str:
    logs = [math.log10(max(time, 1e-9)) for time in row.warm_up_ms]
    low, span = min(logs), max(max(logs) - min(logs), 0.05)
    across, room = WIDTH / max(len(logs) - 1, 1), HEIGHT - 8
    points = [f"{at * across:.1f} {HEIGHT - 4 - (log - low) / span * room:.1f}" for at, log in enumerate(logs)]
    mark = ""
    if row.steady_from is not None and row.steady_from < len(logs):
        x = row.steady_from * across
        mark = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>'
    slowest, fastest = format_ms(max(row.warm_up_ms)), format_ms(min(row.warm_up_ms))
    return (
        f'<figure><svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{text(_steady(row))}"><path d="M{" L".join(points)}"/>{mark}</svg>'
        f"<figcaption>First {len(logs)} steps of one session, {text(slowest)} to {text(fastest)}, logarithmic;"
        f" {text(_steady(row))}.</figcaption></figure>"
    )
