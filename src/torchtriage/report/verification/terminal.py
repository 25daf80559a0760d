"""A fix on trial as text: the verdict in three lines, the rounds of both programs, findings."""

from __future__ import annotations

from rich.text import Text

from torchtriage.finding import Verification
from torchtriage.names import elide, visible
from torchtriage.report.comparison.terminal import add_changes
from torchtriage.report.terminal import Page
from torchtriage.report.words import count
from torchtriage.units import format_ms

__all__ = ["render"]

CELLS = 40


def render(result: Verification, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    for line, style in zip(result.verdict, _styles(result), strict=True):
        page.line((visible(line), style))
    page.blank()
    for label, command in (("before", result.before), ("after", result.after)):
        page.labelled(label, (elide(visible(command), page.width - 14), ""))
    steps = f", {count(result.n_steps, 'timed step')} each" if result.per == "step" else ""
    page.labelled("rounds", (f"{len(result.rounds)}, in turns, no profiler{steps}", "dim"))
    page.blank()
    page.verbatim(_picture(result), indent=2)
    page.blank(bool(result.findings))
    add_changes(page, result.findings)
    for note in result.notes:
        page.blank()
        page.note(note.level, note.message, label="limit")
    return page.text


def _styles(result: Verification) -> tuple[str, str, str]:
    speed = "bold" if not result.told else "bold green" if result.ratio < 1 else "bold red"
    agree = "bold red" if result.answers.status == "differ" else ""
    return speed, agree, ""


def _picture(result: Verification) -> list[tuple[str, str]]:
    """Return each program's rounds as dots on one axis of time, from nothing on."""
    rounds = result.rounds
    most = max(max(one.before_ms, one.after_ms) for one in rounds)
    lines = []
    for label, times, mean in (
        ("before", [one.before_ms for one in rounds], result.before_ms),
        ("after", [one.after_ms for one in rounds], result.after_ms),
    ):
        cells = ["·"] * (CELLS + 1)
        for one in times:
            cells[round(one / most * CELLS)] = "●"
        lines.append((f"{label:7}{''.join(cells)}  {format_ms(mean)}", ""))
    lines.append((f"{'':7}0{format_ms(most):>{CELLS}}  per {result.per}", "dim"))
    return lines
