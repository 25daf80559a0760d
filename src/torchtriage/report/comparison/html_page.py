"""A comparison as one page without scripts: the verdict, a waterfall, and what it is made of.

The waterfall leads from the step before to the step after, a bar for each cause, so that the eye
can add up what the table adds up. Everything from a trace is escaped text; the page's own policy
lets no script run and asks no server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from torchtriage.finding import Comparison
from torchtriage.names import elide
from torchtriage.report.comparison.rows import (
    Row,
    cost,
    file_name,
    inside,
    notes,
    per,
    rows,
    run,
)
from torchtriage.report.page import document, head, note, text
from torchtriage.units import format_both_ns, format_change_ns, format_ns

__all__ = ["render"]

WIDTH, LABELS, AMOUNTS = 1000, 390, 90
BAR, GAP = 22, 10


def render(result: Comparison) -> str:
    """Return one self-contained HTML page."""
    return document(
        "comparison.css",
        title=f"{file_name(result.before)} against {file_name(result.after)} · torchtriage",
        version=result.version,
        schema=result.schema,
        note="Both traces were read and the page was made locally; it asks no server for anything.",
        body="\n".join(_sections(result)),
    )


_text = partial(text, unit=re.compile(r"(?<=\d) (?=(?:[nµm]?s|%)(?:\W|$))"))


def _sections(result: Comparison) -> Iterable[str]:
    yield from head("torchtriage compare", result.verdict, shown=_text)
    yield '<dl class="facts">'
    for label, side in (("before", result.before), ("after", result.after)):
        what = f"<b>{_text(file_name(side))}</b><br>{_text(run(side))}"
        yield f"<div><dt>{label}</dt><dd>{what}</dd></div>"
    yield "</dl></header>"
    if not result.comparable:
        yield (
            "<section><h2>Why they are not compared</h2>" + "".join(_reasons(result)) + "</section>"
        )
        return
    shown = rows(result)
    yield "<section><h2>From before to after</h2>"
    yield (
        '<p class="sub">The mean steady step. Each bar is one cause; together they are'
        " the whole change. Pale bars are within the noise.</p>"
        if result.before.per == "step"
        else '<p class="sub">One window each. Each bar is one cause; together they are the whole'
        " change. Pale bars are too small to be believed.</p>"
    )
    yield _waterfall(result, shown)
    yield "</section><section><h2>Causes</h2>"
    yield "".join(_table(result, shown))
    yield "</section>"
    if result.findings:
        yield "<section><h2>Findings</h2>" + "".join(_findings(result)) + "</section>"
    if result.limits:
        yield '<section><h2>Limits</h2><ul class="notes">'
        for level, message, fix in notes(result):
            yield note(level, message, fix, shown=_text)
        yield "</ul></section>"


def _reasons(result: Comparison) -> Iterable[str]:
    yield '<ul class="notes">'
    for one in result.reasons:
        yield (
            f'<li class="refuse"><p>{_text(one.message)}</p>'
            f'<p class="how">before: {_text(one.before or "-")}<br>'
            f"after: {_text(one.after or '-')}<br>{_text(one.fix)}</p></li>"
        )
    yield "</ul>"


# -- the picture -------------------------------------------------------------------------------


def _waterfall(result: Comparison, shown: Sequence[Row]) -> str:
    total = result.total
    assert total is not None
    levels = [total.before_ns]
    for row in shown:
        levels.append(levels[-1] + row.delta_ns)
    # from zero: a cut axis would make any change look large
    scale = (WIDTH - LABELS - AMOUNTS) / max(*levels, 1)
    bars: list[str] = []

    def bar(place: int, kind: str, low: float, high: float, label: str, amount: str) -> None:
        y = place * (BAR + GAP)
        x, width = LABELS + low * scale, max((high - low) * scale, 1.5)
        bars.append(
            f'<text class="what" x="{LABELS - 12}" y="{y + BAR - 6}">{label}</text>'
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
            f'<text class="amount" x="{x + width + 8:.1f}" y="{y + BAR - 6}">{amount}</text>'
        )

    bar(0, "whole", 0, total.before_ns, "before", format_ns(total.before_ns))
    for i, row in enumerate(shown):
        ends = sorted(levels[i : i + 2])
        kind = ("less" if row.delta_ns <= 0 else "more") + ("" if row.told else " pale")
        y = (i + 1) * (BAR + GAP)
        x = LABELS + levels[i] * scale
        bars.append(f'<path class="step-line" d="M{x:.1f} {y - GAP}V{y + BAR}"/>')
        label = _text(elide(row.label, 54))
        bar(i + 1, kind, ends[0], ends[1], label, format_change_ns(row.delta_ns))
    bar(len(shown) + 1, "whole", 0, total.after_ns, "after", format_ns(total.after_ns))
    height = (len(shown) + 2) * (BAR + GAP)
    said = "; ".join(f"{row.label} {format_change_ns(row.delta_ns)}" for row in shown)
    return (
        f'<div class="scroll"><svg class="waterfall" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{_text(said)}">{"".join(bars)}</svg></div>'
    )


def _table(result: Comparison, shown: Sequence[Row]) -> Iterable[str]:
    total = result.total
    assert total is not None
    yield '<div class="scroll"><table class="causes"><thead><tr><th>change</th><th>before</th>'
    yield f"<th>after</th><th>cause</th></tr></thead><caption>{per(result)}</caption><tbody>"
    for row in shown:
        kind = "pale" if not row.told else "less" if row.delta_ns < 0 else "more"
        parts = "".join(f"<li>{_text(part)}</li>" for part in inside(row))
        interval = ""
        if row.cause is not None and row.cause.change.low_ns is not None:
            ends = row.cause.change.low_ns, row.cause.change.high_ns or 0
            interval = (
                f'<br><span class="tag">99 %: {format_change_ns(ends[0])} to'
                f" {format_change_ns(ends[1])}</span>"
            )
        yield _tr(
            kind,
            row.delta_ns,
            row.before_ns,
            row.after_ns,
            interval,
            _text(row.label) + (f"<ul>{parts}</ul>" if parts else ""),
        )
    yield _tr("sum", total.delta_ns, total.before_ns, total.after_ns, "", "all causes together")
    yield "</tbody></table></div>"


def _tr(kind: str, delta: int, before: int, after: int, interval: str, label: str) -> str:
    one, other, unit = format_both_ns(before, after)
    return (
        f'<tr class="{kind}"><td>{format_change_ns(delta)}{interval}</td><td>{one} {unit}</td>'
        f"<td>{other} {unit}</td><td>{label}</td></tr>"
    )


def _findings(result: Comparison) -> Iterable[str]:
    promise = result.promise
    if promise is not None:
        kept = (
            "kept"
            if promise.holds
            else "kept within the noise"
            if promise.holds_within_noise
            else "not kept"
        )
        yield (
            f"<p>{_text(', '.join(promise.codes))} promised {format_ns(promise.low_ms * 1e6)} to"
            f" {format_ns(promise.high_ms * 1e6)}; {format_ns(promise.measured_ms * 1e6)} were"
            f" saved: {kept}.</p>"
        )
    yield '<div class="scroll"><table><tbody>'
    for one in result.findings:
        yield (
            f'<tr><td class="{one.status}">{one.status}</td><td><b>{_text(one.code)}</b>'
            f" {_text(one.title)}<br><span class='tag'>{_text(one.place)}</span></td>"
            f"<td>{_text(cost(one))}</td></tr>"
        )
    yield "</tbody></table></div>"
