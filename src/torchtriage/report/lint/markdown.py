"""What lint found as Markdown, for a pull request."""

from __future__ import annotations

from torchtriage.lint.result import LintResult
from torchtriage.report import words
from torchtriage.report.lint.words import place, summary, traced
from torchtriage.report.markdown import code, prose

__all__ = ["render"]


def render(result: LintResult) -> str:
    """Return a table of findings, and what was left out."""
    first, *rest = summary(result)
    lines = [f"**torchtriage lint**: {first}", ""]
    if result.findings:
        lines += ["| where | code | what | fix |", "|:--|:--|:--|:--|"]
    for one in result.findings:
        what = prose(one.message)
        if one.cost is not None:
            what += f"<br>saves {prose(words.saving(one.cost))}"
        if said := traced(one):
            what += f"<br>trace: {prose(said)}"
        link = f" ([more]({one.fix.link}))" if one.fix.link.startswith("https://") else ""
        cells = (code(place(one), in_table=True), one.code, what, f"{prose(one.fix.text)}{link}")
        lines.append(f"| {' | '.join(cells)} |")
    for finding in result.trace_only:
        lines.append(f"\nIn the trace only: {finding.code} {prose(finding.title)}")
    for odd in result.odd:
        where = f"{odd.file}:{odd.line}" if odd.line else odd.file
        lines.append(f"\n{code(where)}: {prose(odd.message)}")
    for unused in result.unused:
        lines.append(f"\n{code(f'{unused.file}:{unused.line}')}: {prose(unused.message)}")
    return "\n".join([*lines, "", *rest]) + "\n"
