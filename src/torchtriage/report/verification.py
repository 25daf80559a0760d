"""A fix on trial as text and as the versioned JSON document."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from torchtriage.finding import VERIFICATION_SCHEMA, Verification
from torchtriage.names import elide, visible
from torchtriage.report.comparison.rows import cost
from torchtriage.report.json_report import parse, plain, schema_of
from torchtriage.report.terminal import Page, fitting
from torchtriage.report.words import count
from torchtriage.units import format_ms

__all__ = ["decode", "encode", "render", "schema", "write"]

_STATUS = {"went": "green", "came": "red", "stayed": "dim"}
CELLS = 40


def encode(result: Verification) -> bytes:
    """Return the document as UTF-8, one line, ending in a newline."""
    return msgspec.json.encode(plain(result)) + b"\n"


def decode(data: bytes) -> Verification:
    """Return the result of a document that ``encode`` made.

    Raises
    ------
    TraceFormatError
        ``data`` is no such document, or one of another schema.
    """
    command = "torchtriage verify BEFORE.py AFTER.py --json"
    return parse(data, Verification, VERIFICATION_SCHEMA, "a verification", command)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document, generated from the dataclasses."""
    title = f"A fix on trial by torchtriage, {VERIFICATION_SCHEMA}"
    return schema_of(Verification, VERIFICATION_SCHEMA, title)


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
    for change in result.findings:
        place = f" at {visible(change.place)}" if change.place else ""
        page.labelled(
            change.status,
            (f"{visible(change.code)} ", "bold"),
            (f"{visible(change.title)}{elide(place, 60)}: ", ""),
            (cost(change), "dim"),
            style=_STATUS[change.status],
        )
    for note in result.notes:
        page.blank()
        page.labelled("limit", (note.message, ""), style="yellow")
    return page.text


def write(result: Verification, console: Console) -> None:
    """Print the report in the console's width and colours."""
    text = render(result, width=console.width if console.is_terminal else None)
    console.print(fitting(text, console.encoding), soft_wrap=True, highlight=False)


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
