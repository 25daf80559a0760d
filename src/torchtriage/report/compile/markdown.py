"""A compile result as a comment for a pull request, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.compile.result import CompileResult
from torchtriage.report.compile import words
from torchtriage.report.markdown import code, prose
from torchtriage.units import format_ms, format_share

__all__ = ["render"]

N_ROWS = 20


def render(result: CompileResult) -> str:
    """Return GitHub Markdown: the verdict, breaks and recompilations, where the time went."""
    return "\n\n".join(_blocks(result)) + "\n"


def _blocks(result: CompileResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    if result.breaks:
        joined = any(one.trace for one in result.breaks)
        rows = ["| graph break | where | times | fix |" + (" in the trace |" if joined else "")]
        rows.append("|:--|:--|--:|:--|" + (":--|" if joined else ""))
        for one in result.breaks[:N_ROWS]:
            told = f"{code(one.id)} {prose(one.type)}" if one.id else prose(one.type)
            cost = f" {prose(words.joined(one.trace))} |" if joined else ""
            where, fix = prose(words.graph_break(one)), prose(one.fix.text)
            rows.append(f"| {told} | {where} | {one.count} | {fix} |{cost}")
        yield "\n".join(rows)
        yield from _more(len(result.breaks), "graph breaks")
    if result.recompiles:
        rows = ["| compiled again | for | saw | times | took | cure |", "|:--|:--|:--|--:|--:|:--|"]
        for again in result.recompiles[:N_ROWS]:
            limit = " **limit reached**" if again.limit else ""
            rows.append(
                f"| {prose(words.place(again.function))} | {prose(words.recompile(again))}{limit} |"
                f" {prose(words.values(again))} | {again.count} |"
                f" {prose(words.seconds(again.total_ms))} |"
                f" {prose(words.cures(again))}: {prose(again.fix.text)} |"
            )
        yield "\n".join(rows)
        yield from _more(len(result.recompiles), "kinds of recompilation")
    rest = words.other_findings(result)
    if rest:
        yield "\n".join(
            f"- **{one.severity}** {code(one.code)} {prose(one.title)}: {prose(one.message)}."
            f" {prose(one.fix.text)}"
            for one in rest[:N_ROWS]
        )
        yield from _more(len(rest), "findings")
    if result.phases:
        rows = ["| compile time | | of all |", "|:--|--:|--:|"]
        for phase in sorted(result.phases, key=lambda one: -one.self_ms)[:8]:
            rows.append(
                f"| {prose(phase.name)} | {format_ms(phase.self_ms)} |"
                f" {format_share(phase.share)} |"
            )
        yield "\n".join(rows)
    if result.divergence:
        yield "\n".join(f"- Ranks differ: {prose(line)}" for line in result.divergence)
    if result.payback:
        yield prose(result.payback)
    for note in result.notes:
        yield f"- {note.level}: {prose(note.message)}"
    yield (
        f"<sub>{prose(words.facts(result))}. {prose(words.books(result))}. torchtriage"
        f" {prose(result.version)}</sub>"
    )


def _more(number: int, what: str) -> Iterable[str]:
    if number > N_ROWS:
        yield f"{number - N_ROWS} more {what} are in the JSON."
