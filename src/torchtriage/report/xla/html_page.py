"""An XLA result as one page without scripts that asks no server."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import partial

from torchtriage.report.page import document, head, notes, text
from torchtriage.report.xla import words
from torchtriage.xla.result import HloGraph, Model, Program, XlaResult

__all__ = ["render"]


def render(result: XlaResult) -> str:
    """Return one self-contained HTML page."""
    named = [one.target for one in result.models] + [one.name for one in result.programs]
    return document(
        "xla.css",
        title=f"{named[0] if len(named) == 1 else f'{len(named)} models'} · torchtriage",
        version=result.version,
        schema=result.schema,
        note="Counts are those of torch_xla's metrics; extra is every HLO graph but one for a step"
        " (LazyTensor) or for an FX graph (dynamo).",
        body="\n".join(_body(result)),
    )


_text = partial(text, unit=None)


def _body(result: XlaResult) -> Iterable[str]:
    yield from head("torchtriage xla", result.verdict, shown=_text)
    yield "</header>"
    for model in result.models:
        yield from _model(model)
    for program in result.programs:
        yield from _program(program)
    if result.correlations:
        yield "<section><h2>Graphs and time</h2><ul>"
        yield from (f"<li>{_text(words.correlation(one))}</li>" for one in result.correlations)
        yield "</ul></section>"
    if result.fixes:
        yield "<section><h2>What to change</h2>"
        for cause, fix in result.fixes:
            link = f' <a href="{html.escape(fix.link)}">more</a>' if fix.link else ""
            yield f"<p><b>{_text(cause)}</b>: {_text(fix.text)}{link}</p>"
        yield "</section>"
    yield from notes(result.notes, shown=_text)


def _model(model: Model) -> Iterable[str]:
    yield f"<section><h2>{_text(model.target)}, {words.mode(model)}</h2>"
    facts = ", ".join(f"{name} {value}" for name, value in model.facts)
    yield f'<p class="sub">{_text(facts)}</p>'
    yield _table(words.COLUMNS, [words.cells(one) for one in model.routes], "settings")
    for one in model.routes:
        if one.failure:
            yield f'<p class="failed">{_text(words.TITLES[one.name])} {_text(one.failure)}</p>'
    if model.breaks:
        rows = [(one.type, words.place(one.caller or one.frame), str(one.count), one.fix.text)
                for one in model.breaks]  # fmt: skip
        yield _table(("graph break", "where", "times", "fix"), rows)
    if model.recompiles:
        rows = [(words.place(one.function), one.guard, str(one.count)) for one in model.recompiles]  # type: ignore[misc]
        yield _table(("compiled again by dynamo", "guard", "times"), rows)
    dynamo = next((one for one in model.routes if one.name == "openxla"), None)
    if model.fx:
        graphs = dynamo.graphs if dynamo else ()
        yield _table(("FX graph", "became"), [(one.id, words.fx(one, graphs)) for one in model.fx])
    for route in model.routes:
        if not route.steps:
            continue
        yield f"<h3>{_text(words.TITLES[route.name])}</h3>"
        said = [words.route(route), words.times(route)]
        if route.answers is not None:
            said.append(f"answers {words.answers(route.answers)}")
        yield from (f"<p>{_text(one)}</p>" for one in said if one)
        yield _graphs(route.graphs)
        if route.fallbacks:
            yield "<ul>"
            yield from (f"<li>{_text(words.fallback(one))}</li>" for one in route.fallbacks)
            yield "</ul>"
    yield "</section>"


def _graphs(graphs: Sequence[HloGraph]) -> str:
    if not graphs:
        return ""
    rows = "".join(
        f'<tr class="{"extra" if one.extra else "by-right"}"><td>{one.number + 1}</td>'
        f"<td>{_text(one.cause)}</td>"
        f"<td>{_text(words.graph(one))}</td></tr>"
        for one in graphs
    )
    return ('<div class="scroll"><table class="graphs"><thead><tr><th>HLO</th><th>cause</th>'
            f"<th>reason</th></tr></thead><tbody>{rows}</tbody></table></div>")  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "graphs") -> str:
    top = "".join(f"<th>{_text(one)}</th>" for one in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(one)}</td>" for one in row) + "</tr>" for row in rows
    )
    return (f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>")  # fmt: skip


def _program(program: Program) -> Iterable[str]:
    yield f"<section><h2>{_text(program.name)}</h2>"
    yield '<dl class="facts">'
    for label, value in words.program(program):
        yield f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>"
    yield "</dl>"
    yield _graphs(program.graphs)
    if program.fallbacks:
        rows = [(one.name, one.kind, str(one.first_step)) for one in program.fallbacks]
        yield _table(("operator on the host", "why", "calls"), rows)
    for note in program.notes:
        yield f"<p>{_text(note.level)}: {_text(note.message)}</p>"
    yield "</section>"
