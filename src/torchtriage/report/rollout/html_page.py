"""A rollout or an experiment as one page that asks no server and runs no script."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from torchtriage.experiment.result import ExperimentResult, Row
from torchtriage.report.page import document, notes, text
from torchtriage.report.rollout import words
from torchtriage.rollout.result import Event, RolloutResult
from torchtriage.rollout.summary import percent

__all__ = ["render"]

WIDE, HIGH = 1000.0, 100.0
LEAST_SPAN, MOST_SPAN = math.log(1.05), math.log(10)
"""The axis of ratios reaches from 5 % to ten-fold; what lies beyond is cut, its numbers are not."""
_GOOD = {"done": "good", "better": "good"}


def render(result: RolloutResult | ExperimentResult) -> str:
    """Return one self-contained HTML page."""
    return document(
        "rollout.css",
        title=f"{result.verdict[0]} · torchtriage",
        version=result.version,
        schema=result.schema,
        note="Ratios are candidate over control; intervals hold at all looks together.",
        body="\n".join(_sections(result)),
    )


_text = partial(text, unit=re.compile(" (?=%)"))


def _sections(result: RolloutResult | ExperimentResult) -> Iterator[str]:
    is_rollout = isinstance(result, RolloutResult)
    word = result.status if isinstance(result, RolloutResult) else result.decision
    what = "rollout" if is_rollout else "experiment"
    first, *others = result.verdict
    yield '<header class="head">'
    yield f'<p class="kicker">torchtriage {what} <b class="{_GOOD.get(word, "")}">{word}</b></p>'
    yield f"<h1>{_text(first)}</h1>"
    yield from (f'<p class="lede">{_text(line)}</p>' for line in others)
    yield f'<dl class="facts"><div><dt>{what}</dt><dd>{_text(result.name)}</dd></div>'
    if isinstance(result, RolloutResult):
        owner = result.owner or "nobody"
        yield f"<div><dt>candidate</dt><dd>{_text(result.candidate)}</dd></div>"
        yield f"<div><dt>watched by</dt><dd>{_text(owner)}</dd></div>"
    yield "</dl></header>"
    if isinstance(result, RolloutResult):
        yield '<section><h2>Steps</h2><ol class="stages">'
        for stage in result.stages:
            yield f'<li class="{stage.state}"><b>{percent(stage.share)}</b> {stage.state}</li>'
        yield "</ol></section>"
    if result.rows:
        yield "<section><h2>Metrics</h2>"
        yield from _rows(result.rows)
        yield "</section>"
    if isinstance(result, RolloutResult):
        yield from _history(result.events)
    yield from notes(result.notes, lead="Try: ", shown=_text)


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    reach = [LEAST_SPAN]
    for row in rows:
        reach += [abs(math.log(one)) for one in (row.low, row.high, row.worse_than) if one]
    span = min(1.08 * max(reach), MOST_SPAN)
    yield '<ol class="metrics">'
    for row in rows:
        mark = row.verdict.replace(" ", "-")
        yield (
            f'<li><span class="name"><span class="mark {mark}">{words.LABEL[row.verdict]}</span>'
            f"{_text(row.name)}</span>{_whisker(row, span)}"
            f'<p class="what">{_text(row.sentence)}</p></li>'
        )
    yield "</ol>"


def _whisker(row: Row, span: float) -> str:
    def at(ratio: float) -> float:
        share = math.log(ratio) / span if ratio > 0 else -1.0
        return round((max(min(share, 1.0), -1.0) + 1) / 2 * WIDE, 1)

    limit = row.worse_than if row.better == "lower" else 1 / row.worse_than
    parts = [_line(WIDE / 2, WIDE / 2, "zero"), _line(at(limit), at(limit), "limit")]
    if row.low is not None:
        high = at(row.high) if row.high is not None else WIDE
        parts.append(_line(at(row.low), high, f"range-line {row.verdict}", HIGH / 2))
    if row.ratio:
        parts.append(_line(at(row.ratio), at(row.ratio), "centre", HIGH / 2))
    return (
        f'<svg viewBox="0 0 {WIDE:g} {HIGH:g}" preserveAspectRatio="none" role="img"'
        f' aria-label="{_text(f"{row.name}: {row.sentence}")}">{"".join(parts)}</svg>'
    )


def _line(x1: float, x2: float, kind: str, y: float | None = None) -> str:
    y1, y2 = (0.0, HIGH) if y is None else (y, y)
    return f'<line class="{html.escape(kind)}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _history(events: Sequence[Event]) -> Iterator[str]:
    yield '<section><h2>History</h2><ol class="history">'
    for one in reversed(events):
        kind = one.kind.replace(" ", "-")
        yield (
            f'<li class="{kind}"><time>{words.when(one.at_s)}</time>'
            f"<p>{_text(words.event(one))}</p>"
        )
        if one.rows:
            yield "<details><summary>what was known</summary><ul>"
            yield from (
                f"<li>{_text(row.name)}: {words.LABEL[row.verdict]}, {_text(row.sentence)}</li>"
                for row in one.rows
            )
            yield "</ul></details>"
        yield "</li>"
    yield "</ol></section>"
