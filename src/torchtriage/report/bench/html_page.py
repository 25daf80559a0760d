"""A benchmark as one page without scripts that asks no server: advice, table, curves, answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

from torchtriage.bench.result import BenchResult, Row
from torchtriage.report.bench import words
from torchtriage.report.page import document, head, notes, text
from torchtriage.units import format_count, format_ms

__all__ = ["render"]

WIDTH, HEIGHT = 600, 80
"""Of a warm-up curve, in its own units."""


def render(result: BenchResult) -> str:
    """Return one self-contained HTML page."""
    return document(
        "bench.css",
        title=f"{result.target} · torchtriage",
        version=result.version,
        schema=result.schema,
        note="A session is one fresh process; a step is one call."
        " Intervals are 95 % over sessions.",
        body="\n".join(_body(result)),
    )


_text = partial(text, unit=None)


def _body(result: BenchResult) -> Iterable[str]:
    yield from head("torchtriage bench", result.verdict, shown=_text)
    yield '<dl class="facts">'
    for label, value in (("target", result.target), ("measured", words.basis(result)),
                         *result.facts, ("machine", str(result.noise))):  # fmt: skip
        yield f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>"
    yield "</dl></header>"
    yield "<section><h2>What to deploy</h2>"
    for one in result.advice:
        at = f", batch {one.batch_size}" if one.batch_size else ""
        yield f'<div class="advice"><h3>{_text(one.need + at)}</h3><pre>{_text(one.line)}</pre>'
        yield f"<p>{_text(one.why)}</p></div>"
    yield "</section><section><h2>Step times</h2>"
    yield '<p class="sub">P50 of steady steps; the mark is P95 where it could be told.</p>'
    yield _times(result.rows)
    yield "</section><section><h2>All settings</h2>" + _table(result.rows)
    yield from (f"<p>{_text(words.comparison(one))}</p>" for one in result.comparisons)
    yield "</section><section><h2>Setting by setting</h2>"
    for row in result.rows:
        yield from _row(row)
    yield "</section>"
    yield from notes(result.notes, shown=_text)


def _times(rows: Sequence[Row]) -> str:
    """Return bars; drawings, as the page's policy allows an element no style of its own."""
    known = [row for row in rows if row.quantile("P50") is not None]
    most = max((row.quantile("P95") or row.quantile("P50") or 0.0 for row in known), default=0.0)
    lines = ['<div class="times">']
    for row in rows:
        p50, p95 = row.quantile("P50"), row.quantile("P95")
        lines.append(f"<span>{_text(row.label)}</span>")
        if p50 is None or not most:
            lines.append(
                f'<span class="failed">{_text(words.failure(row) or "no sessions")}</span>'
            )
            continue
        mark = f'<rect x="{p95 / most * 998:.1f}" width="2" height="16"/>' if p95 else ""
        lines.append(
            f'<svg class="track" viewBox="0 0 1000 16" preserveAspectRatio="none" role="img"'
            f' aria-label="{_text(format_ms(p50))}"><rect class="bar" width="'
            f'{p50 / most * 998:.1f}" height="16"/>{mark}</svg><span>{_text(format_ms(p50))}</span>'
        )
    return "".join([*lines, "</div>"])


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in words.COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in words.cells(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="settings"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(row: Row) -> Iterable[str]:
    yield f"<h3>{_text(row.label)}</h3><pre>{_text(row.setting.line)}</pre>"
    if row.failure is not None:
        yield f"<p>{_text(words.failure(row))}</p>"
    if len(row.warm_up_ms) > 1:
        yield _curve(row)
    for one in row.quantiles:
        if one.low_ms is not None and one.high_ms is not None:
            ends = f"{format_ms(one.low_ms)} to {format_ms(one.high_ms)}"
            yield f"<p>{one.name}: {_text(words.ms(one.value_ms))}, 95 % interval {_text(ends)}</p>"
    if row.compilation is not None:
        yield f"<p>{_text(words.compilation(row.compilation))}</p>"
        if row.compilation.reasons:
            yield "<p>Graph breaks:</p><ul>"
            yield "".join(f"<li>{_text(text)} ({n})</li>" for text, n in row.compilation.reasons)
            yield "</ul>"
    if row.misses is not None:
        yield f"<p>{_text(words.misses(row.misses))}</p>"
    if row.numerics is not None:
        yield f"<p>Answers: {_text(words.errors(row.numerics))}</p>"


def _curve(row: Row) -> str:
    """Return the first steps as a line over a logarithmic axis, and where they become steady."""
    logs = [math.log10(max(one, 1e-9)) for one in row.warm_up_ms]
    low, span = min(logs), max(max(logs) - min(logs), 0.05)
    across, room = WIDTH / max(len(logs) - 1, 1), HEIGHT - 8
    points = [
        f"{at * across:.1f} {HEIGHT - 4 - (one - low) / span * room:.1f}"
        for at, one in enumerate(logs)
    ]
    mark, where = "", f"steady in {row.n_steady} of {format_count(row.n_sessions, 'session')}"
    if row.steady_from is not None:
        where = f"steady from step {row.steady_from:,} on"
        if row.steady_from < len(logs):
            x = row.steady_from * across
            mark = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>'
    slowest, fastest = (format_ms(one) for one in (max(row.warm_up_ms), min(row.warm_up_ms)))
    return (
        f'<figure><svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
        f' role="img" aria-label="{_text(where)}"><path d="M{" L".join(points)}"/>{mark}</svg>'
        f"<figcaption>First {len(logs)} steps of one session, {_text(slowest)} to"
        f" {_text(fastest)}, logarithmic; {_text(where)}.</figcaption></figure>"
    )
