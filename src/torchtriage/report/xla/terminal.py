"""An XLA result as text: the verdict, a table of routes, every HLO graph with its reason."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from torchtriage.compile.result import GraphBreak
from torchtriage.names import elide, visible
from torchtriage.report.terminal import Page
from torchtriage.report.xla import words
from torchtriage.units import format_count
from torchtriage.xla.result import HloGraph, Model, Program, XlaResult

__all__ = ["render"]

N_GRAPHS = 24
N_ROWS = 12


def render(result: XlaResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    for index, line in enumerate(filter(None, result.verdict)):
        page.line((visible(line), "bold" if index == 0 else ""), hang=2)
    for model in result.models:
        _model(page, model)
    for program in result.programs:
        _program(page, program)
    for rank, one in enumerate(result.correlations):
        page.blank(rank == 0)
        page.labelled("" if rank else "together", (words.correlation(one), ""))
    for rank, (cause, fix) in enumerate(result.fixes):
        page.blank(rank == 0)
        page.labelled("" if rank else "fixes", (f"{cause}: ", "bold"), (fix.text, "green"))
    page.notes(result.notes)
    return page.text


def _model(page: Page, model: Model) -> None:
    page.blank()
    page.line((visible(model.target), "bold"), (f"  {words.mode(model)}", "dim"))
    facts = ", ".join(f"{name} {value}" for name, value in model.facts)
    page.line((facts, "dim"), indent=2, hang=2)
    table = [words.COLUMNS, *(words.cells(route) for route in model.routes)]
    widths = [max(len(row[at]) for row in table) for at in range(len(words.COLUMNS))]
    for index, row in enumerate(table):
        first = f"{row[0]:{widths[0]}}"
        rest = "".join(
            f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        page.text.append(f"  {first}{rest}\n", "" if index else "dim")
    _breaks(page, model.breaks)
    for again in model.recompiles[:N_ROWS]:
        page.labelled("recompile", (f"{words.place(again.function)}: {visible(again.guard)}", ""),
                      (f", {again.count}x", "dim"))  # fmt: skip
    by_name = {route.name: route for route in model.routes}
    dynamo = by_name.get("openxla")
    for one in model.fx[:N_ROWS]:
        page.labelled("FX graph", (f"{visible(one.id)} ", "bold"),
                      (words.fx(one, dynamo.graphs if dynamo else ()), ""))  # fmt: skip
    _more(page, len(model.fx) - N_ROWS, "FX graph")
    for route in model.routes:
        if route.failure:
            page.labelled("failed", (f"{words.TITLES[route.name]} {visible(route.failure)}", "red"))
        if not route.steps:
            continue
        page.blank()
        page.line((words.TITLES[route.name], "bold"), indent=2)
        page.line((words.route(route), ""), indent=4, hang=2)
        if route.times:
            page.line((words.times(route), ""), indent=4, hang=2)
        if route.answers is not None:
            style = "bold red" if route.answers.verdict == "wrong" else ""
            page.line((f"answers {words.answers(route.answers)}", style), indent=4, hang=2)
        _graphs(page, route.graphs)
        for fallback in route.fallbacks[:N_ROWS]:
            page.labelled("host", (words.fallback(fallback), ""), indent=4)
        _more(page, len(route.fallbacks) - N_ROWS, "operator")


def _breaks(page: Page, breaks: tuple[GraphBreak, ...]) -> None:
    for one in breaks[:N_ROWS]:
        where = f" at {words.place(one.caller or one.frame)}, {one.count}x"
        page.labelled("break", (visible(one.type), "bold"), (where, ""))
        page.labelled("", (visible(one.fix.text), "green"))
    _more(page, len(breaks) - N_ROWS, "graph break")


def _graphs(page: Page, graphs: tuple[HloGraph, ...]) -> None:
    for one in graphs[:N_GRAPHS]:
        style = "yellow" if one.extra else "dim"
        page.labelled(f"HLO #{one.number + 1}", (f"{one.cause}: ", style), (words.graph(one), ""),
                      indent=4, style=style)  # fmt: skip
    rest = graphs[N_GRAPHS:]
    if rest:
        causes = Counter(one.cause for one in rest).most_common()
        listed = ", ".join(f"{count} {cause}" for cause, count in causes)
        page.line((f"{len(rest)} more in --json and --html: {listed}", "dim"), indent=4)


def _program(page: Page, program: Program) -> None:
    page.blank()
    page.line((elide(visible(program.name), page.width), "bold"))
    for label, text in words.program(program):
        page.labelled(label, (text, ""))
    _breaks(page, program.breaks)
    _graphs(page, program.graphs)
    for fallback in program.fallbacks[:N_ROWS]:
        page.labelled("host", (f"{visible(fallback.name)}, ", ""),
                      (format_count(fallback.first_step, "call"), ""))  # fmt: skip
    _more(page, len(program.fallbacks) - N_ROWS, "operator")
    for one in program.skipped:
        page.labelled("left out", (f"{one.count:,} {visible(one.name)}", "dim"))
    for note in program.notes:
        page.note(note.level, note.message, note.fix)


def _more(page: Page, number: int, noun: str) -> None:
    if number > 0:
        page.line((f"{format_count(number, noun)} more in --json and --html", "dim"), indent=2)
