"""An XLA result as a comment for a pull request, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.report.markdown import code, prose
from torchtriage.report.xla import words
from torchtriage.units import format_count
from torchtriage.xla.result import HloGraph, Model, Program, XlaResult

__all__ = ["render"]

N_GRAPHS = 40


def render(result: XlaResult) -> str:
    """Return GitHub Markdown: the verdict, routes, and graphs with their reasons."""
    return "\n\n".join(_blocks(result)) + "\n"


def _blocks(result: XlaResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    if any(others):
        yield "  \n".join(prose(line) for line in others if line)
    for model in result.models:
        yield from _model(model)
    for program in result.programs:
        yield from _program(program)
    if result.correlations:
        yield "\n".join(f"- {prose(words.correlation(one))}" for one in result.correlations)
    if result.fixes:
        yield "\n".join(f"- **{prose(cause)}**: {prose(fix.text)}" for cause, fix in result.fixes)
    if result.notes:
        yield "\n".join(f"- {note.level}: {prose(note.message)}" for note in result.notes)
    yield f"<sub>torchtriage {prose(result.version)}</sub>"


def _model(model: Model) -> Iterable[str]:
    yield f"**{code(model.target)}**, {words.mode(model)}"
    rows = [
        "| " + " | ".join(words.COLUMNS) + " |",
        "|:--" + "|--:" * (len(words.COLUMNS) - 1) + "|",
    ]
    rows += ["| " + " | ".join(map(prose, words.cells(route))) + " |" for route in model.routes]
    yield "\n".join(rows)
    failed = [
        f"- {words.TITLES[one.name]} {prose(one.failure)}" for one in model.routes if one.failure
    ]
    if failed:
        yield "\n".join(failed)
    for route in model.routes:
        if route.graphs:
            yield f"HLO graphs of {words.TITLES[route.name]}:"
            yield _graphs(route.graphs)


def _graphs(graphs: Sequence[HloGraph]) -> str:
    rows = ["| | cause | reason |", "|--:|:--|:--|"]
    rows += [
        f"| {one.number + 1} | {'**' + one.cause + '**' if one.extra else one.cause}"
        f" | {prose(words.graph(one))} |"
        for one in graphs[:N_GRAPHS]
    ]
    if len(graphs) > N_GRAPHS:
        rows.append(f"\n{format_count(len(graphs) - N_GRAPHS, 'graph')} more in the JSON.")
    return "\n".join(rows)


def _program(program: Program) -> Iterable[str]:
    yield f"**{code(program.name)}**"
    yield "\n".join(f"- {label}: {prose(text)}" for label, text in words.program(program))
    if program.graphs:
        yield _graphs(program.graphs)
    if program.fallbacks:
        yield "\n".join(f"- {code(one.name)} on the host: {format_count(one.first_step, 'call')}"
                        for one in program.fallbacks)  # fmt: skip
    if program.notes:
        yield "\n".join(f"- {note.level}: {prose(note.message)}" for note in program.notes)
