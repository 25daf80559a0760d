"""A rollout or an experiment: where it stands, how versions compare, and what happened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from torchtriage.core.units import format_count
from torchtriage.operate.experiment.result import ExperimentResult
from torchtriage.operate.experiment.result import ExperimentRow as Metric
from torchtriage.operate.rollout.result import RolloutEvent, RolloutResult
from torchtriage.operate.rollout.summary import percent
from torchtriage.report import blocks as b
from torchtriage.report.page import text, whisker

N_ON_TERMINAL, N_IN_MARKDOWN = 20, 50
MIN_SPAN, MAX_SPAN = math.log(1.05), math.log(10)
"""The axis of ratios reaches from 5 % to ten-fold; what lies beyond is cut, its numbers are not."""
_MARK = {"worse": "🔴", "better": "🟢", "undecided": "⚪", "no data": "🟡"}
_STYLE = {"worse": "bold red", "better": "green", "undecided": "dim", "no data": "yellow"}
_HEAD = {
    "rolled back": "bold red",
    "worse": "bold red",
    "broken": "bold red",
    "done": "bold green",
    "better": "bold green",
}


def document(result: RolloutResult | ExperimentResult) -> b.Document:
    """Return the report of ``torchtriage rollout report``, or of an experiment."""
    rollout = result if isinstance(result, RolloutResult) else None
    what, word = ("rollout", rollout.status) if rollout else ("experiment", result.decision)  # type: ignore[union-attr]
    facts = [(what, result.name)]
    if rollout:
        facts += [("candidate", rollout.candidate), ("owner", rollout.owner or "nobody")]
    cells = [(f"{_MARK[row.verdict]} {_label(row)}", row.name, row.sentence) for row in result.rows]
    mark = (word, "good" if word in ("done", "better") else "")
    blocks: list[b.Block] = [
        b.Head(f"torchtriage {what}", result.verdict, (_HEAD.get(word, "bold"), ""), facts, mark),
        *(_stages(rollout) if rollout else ()),
        b.Rows([b.Row(row.role, _line(row)) for row in result.rows], on=b.TERMINAL),
        b.Table(("", "metric", ""), cells, align="lll", on=b.MARKDOWN),
        b.Markup("\n".join(_metrics(result.rows)), on=b.PAGE),
        *(_history(rollout.events) if rollout else ()),
        b.Notes(result.notes, style="dim"),
        b.Foot(f"torchtriage {result.version}"),
    ]
    remark = "Ratios are candidate over control; intervals hold at all looks together."
    return b.Document(result.verdict[0], result.version, result.schema, blocks, "rollout.css", remark)


def _label(row: Metric) -> str:
    # what an interval excludes is no regression; what is not known yet is not called one
    worst = row.high if row.better == "lower" else 1 / row.low if row.low else None
    if row.verdict == "undecided" and worst is not None and worst <= row.worse_than:
        return "no regression"
    return row.verdict


def _line(row: Metric) -> b.Text:
    return b.bold(f"{row.name}: "), b.Span(f"{_label(row)}, ", _STYLE[row.verdict]), row.sentence


def _stages(result: RolloutResult) -> Iterator[b.Block]:
    marks = {"now": "[{}]", "left": "✗ {}", "passed": "✓ {}"}
    path = "   ".join(marks.get(stage.state, "{}").format(percent(stage.share)) for stage in result.stages)
    owner = [b.Row("owner", b.dim(result.owner))] if result.owner and result.status == "running" else []
    yield b.Rows([b.Row("rollout", result.name), b.Row("steps", path), *owner], on=b.TERMINAL)
    yield b.Lines([path], on=b.MARKDOWN)
    stages = "".join(
        f'<li class="{stage.state}"><b>{percent(stage.share)}</b> {stage.state}</li>' for stage in result.stages
    )
    yield b.Markup(f'<section><h2>Steps</h2><ol class="stages">{stages}</ol></section>', on=b.PAGE)


def _history(events: Sequence[RolloutEvent]) -> Iterator[b.Block]:
    hidden = len(events) - N_ON_TERMINAL
    rows = [b.Row("", (b.dim(f"{_when(event.at_s)}  "), _event(event))) for event in events[-N_ON_TERMINAL:]]
    if hidden > 0:
        rows.insert(
            0, b.Row("history", b.dim(f"{format_count(hidden, 'earlier entry', 'earlier entries')} in the JSON"))
        )
    elif rows:
        rows[0] = b.Row("history", rows[0].text)
    yield b.Rows(rows, on=b.TERMINAL)
    yield b.Lines(
        [f"{_when(event.at_s)}: {_event(event)}" for event in events[-N_IN_MARKDOWN:]], bullets=True, on=b.MARKDOWN
    )
    items = "\n".join(map(_entry, reversed(events)))
    yield b.Markup(f'<section><h2>History</h2><ol class="history">{items}</ol></section>', on=b.PAGE)


def _when(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _event(event: RolloutEvent) -> str:
    shares = f" {percent(event.share_before)} → {percent(event.share_after)}"
    reason = f": {event.reason}" if event.reason else ""
    return f"{event.kind}{shares if event.share_before != event.share_after else ''} by {event.actor}{reason}"


# -- the page ------------------------------------------------------------------------------------


def _entry(event: RolloutEvent) -> str:
    known = "".join(f"<li>{text(row.name)}: {_label(row)}, {text(row.sentence)}</li>" for row in event.rows)
    details = f"<details><summary>metrics at the time</summary><ul>{known}</ul></details>" if known else ""
    kind = event.kind.replace(" ", "-")
    return f'<li class="{kind}"><time>{_when(event.at_s)}</time><p>{text(_event(event))}</p>{details}</li>'


def _metrics(rows: Sequence[Metric]) -> Iterator[str]:
    if not rows:
        return
    reach = [MIN_SPAN, *(abs(math.log(end)) for row in rows for end in (row.low, row.high, row.worse_than) if end)]
    span = min(1.08 * max(reach), MAX_SPAN)
    yield '<section><h2>Metrics</h2><ol class="metrics">'
    for row in rows:
        mark = row.verdict.replace(" ", "-")
        yield (
            f'<li><span class="name"><span class="mark {mark}">{_label(row)}</span>'
            f'{text(row.name)}</span>{_whisker(row, span)}<p class="what">{text(row.sentence)}</p></li>'
        )
    yield "</ol></section>"


def _whisker(row: Metric, span: float) -> str:
    def share(ratio: float) -> float:
        return math.log(ratio) / span if ratio > 0 else -1.0

    return whisker(
        "",
        f"{row.name}: {row.sentence}",
        row.verdict,
        limit=share(row.worse_than if row.better == "lower" else 1 / row.worse_than),
        low=share(row.low) if row.low is not None else None,
        high=share(row.high) if row.high is not None else 1.0,
        centre=share(row.ratio) if row.ratio else None,
    )
