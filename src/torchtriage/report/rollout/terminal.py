"""A rollout or an experiment as text: where it stands, why, and what happened."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from torchtriage.experiment.result import ExperimentResult, Row
from torchtriage.finding import Note
from torchtriage.names import visible
from torchtriage.report.rollout import words
from torchtriage.report.terminal import Page, fitting
from torchtriage.rollout.result import RolloutResult
from torchtriage.units import format_count

__all__ = ["render", "write"]

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
    _notes(page, result.notes)
    return page.text


def write(result: RolloutResult | ExperimentResult, console: Console) -> None:
    """Print the report in the console's width and colours."""
    text = render(result, width=console.width if console.is_terminal else None)
    console.print(fitting(text, console.encoding), soft_wrap=True, highlight=False)


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


def _notes(page: Page, notes: Sequence[Note]) -> None:
    for note in notes:
        page.blank()
        page.labelled(note.level, (visible(note.message), ""))
        if note.fix:
            page.labelled("", ("try: ", "dim"), (visible(note.fix), "green"))
