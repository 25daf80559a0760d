"""A comparison as a comment for a pull request, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.finding import Comparison
from torchtriage.names import visible
from torchtriage.report.comparison.rows import cost, file_name, inside, notes, per, rows, run
from torchtriage.report.markdown import code, prose
from torchtriage.units import format_both_ns, format_change_ns

__all__ = ["render"]


def render(result: Comparison) -> str:
    """Return GitHub Markdown: the verdict, the causes, findings, and what limits all this."""
    return "\n\n".join(_blocks(result)) + "\n"


def _blocks(result: Comparison) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    yield "  \n".join(prose(line) for line in others)
    if result.comparable:
        yield "\n".join(_table(result))
        if parts := "\n".join(_parts(result)):
            yield f"<details><summary>Inside the causes</summary>\n\n{parts}\n\n</details>"
        if result.findings:
            yield "\n".join(_findings(result))
    else:
        yield "\n".join(
            f"- {code(one.code)} {prose(one.message)}. {prose(one.fix[:1].upper() + one.fix[1:])}."
            for one in result.reasons
        )
    limits = [
        f"> **{'Limit' if level == 'warn' else 'Note'}** {prose(message)}  "
        for level, message, _ in notes(result)
    ]
    if limits:
        yield "\n".join(limits)
    yield (
        f"<sub>before {prose(file_name(result.before))} ({prose(run(result.before))}), after"
        f" {prose(file_name(result.after))} ({prose(run(result.after))}), torchtriage"
        f" {prose(visible(result.version))}</sub>"
    )


def _table(result: Comparison) -> Iterable[str]:
    total = result.total
    assert total is not None
    yield f"| change {per(result)} | before | after | cause |"
    yield "|--:|--:|--:|:--|"
    for row in rows(result):
        before, after, unit = format_both_ns(row.before_ns, row.after_ns)
        mark = "**" if row.told else ""
        yield (
            f"| {mark}{format_change_ns(row.delta_ns)}{mark} | {before} {unit} | {after} {unit}"
            f" | {prose(row.label)} |"
        )
    before, after, unit = format_both_ns(total.before_ns, total.after_ns)
    yield (
        f"| **{format_change_ns(total.delta_ns)}** | **{before} {unit}** | **{after} {unit}**"
        f" | **all {len(result.causes)} causes** |"
    )


def _parts(result: Comparison) -> Iterable[str]:
    for row in rows(result):
        if parts := inside(row):
            yield f"- {prose(row.label)}: {'; '.join(map(prose, parts))}"


def _findings(result: Comparison) -> Iterable[str]:
    yield "| finding | | cost |"
    yield "|:--|:--|:--|"
    for one in result.findings:
        what = f"{code(one.code, in_table=True)} {prose(one.title)}"
        yield f"| {one.status} | {what} | {prose(cost(one))} |"
