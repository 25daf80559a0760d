"""A rollout or an experiment as text: where it stands, why, and what happened."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from torchtriage.experiment.result import ExperimentResult, Row
from torchtriage.names import visible
from torchtriage.report.rollout import words
from torchtriage.report.terminal import Page
from torchtriage.rollout.result import RolloutResult
from torchtriage.units import format_count

__all__ = ["render"]

N_EVENTS = 20
_STYLE = {
    "rolled back": "bold red", "worse": "bold red", "broken": "bold red", "done": "bold green",
    "better": "bold green", "running": "bold", "undecided": "bold",
}  # fmt: skip
_ROW = {"worse": "bold red", "better": "green", "undecided": "dim", "no data": "yellow"}


def render(result: RolloutResult | ExperimentResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    word = result.status if isinstance(result, RolloutResult) else result.decision
    for index, line in enumerate(result.verdict):
        page.line((visible(line), _STYLE[word] if index == 0 else ""), hang=2)
    if isinstance(result, RolloutResult):
        page.blank()
        page.labelled("rollout", (visible(result.name), ""))
        page.labelled("steps", (words.path(result), ""))
        if result.owner and result.status == "running":
            page.labelled("watched by", (visible(result.owner), "dim"))
    _rows(page, result.rows)
    if isinstance(result, RolloutResult):
        page.blank()
        hidden = len(result.events) - N_EVENTS
        if hidden > 0:
            page.labelled(
                "history",
                (f"{format_count(hidden, 'earlier entry', 'earlier entries')} in the JSON", "dim"),
            )
        for index, one in enumerate(result.events[-N_EVENTS:]):
            label = "history" if index == 0 and hidden <= 0 else ""
            page.labelled(label, (f"{words.when(one.at_s)}  ", "dim"), (words.event(one), ""))
    for note in result.notes:
        page.blank()
        page.note(note.level, note.message, note.fix, style="dim")
    return page.text


def _rows(page: Page, rows: Sequence[Row]) -> None:
    page.blank(bool(rows))
    for one in rows:
        label = words.LABEL[one.verdict]
        page.labelled(
            one.role,
            (f"{visible(one.name)}: ", "bold"),
            (f"{label}, ", _ROW[one.verdict]),
            (words.row(one), ""),
        )
