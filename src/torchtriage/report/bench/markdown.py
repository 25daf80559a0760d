"""A benchmark as a comment for a pull request, in GitHub's dialect."""

from __future__ import annotations

from collections.abc import Iterable

from torchtriage.bench.result import BenchResult
from torchtriage.report.bench import words
from torchtriage.report.markdown import code, prose

__all__ = ["render"]


def render(result: BenchResult) -> str:
    """Return GitHub Markdown: the verdict, the table, what to deploy."""
    return "\n\n".join(_blocks(result)) + "\n"


def _blocks(result: BenchResult) -> Iterable[str]:
    first, *others = result.verdict
    yield f"### {prose(first)}"
    if any(others):
        yield "  \n".join(prose(line) for line in others if line)
    rows = [
        "| " + " | ".join(words.COLUMNS) + " |",
        "|:--" + "|--:" * (len(words.COLUMNS) - 1) + "|",
    ]
    rows += [
        "| " + " | ".join(prose(cell) for cell in words.cells(row)) + " |" for row in result.rows
    ]
    yield "\n".join(rows)
    failed = [f"- {prose(words.setting(row))} {prose(words.failure(row))}"
              for row in result.rows if row.failure is not None]  # fmt: skip
    if failed:
        yield "\n".join(failed)
    advice = []
    for one in result.advice:
        at = f", batch {one.batch_size}" if one.batch_size else ""
        advice.append(f"- **{one.need}{at}**: {code(one.line)} ({prose(one.why)})")
    yield "\n".join(advice)
    if result.notes:
        yield "\n".join(f"- {note.level}: {prose(note.message)}" for note in result.notes)
    basis = prose(words.basis(result))
    yield f"<sub>{prose(result.target)}: {basis}, torchtriage {prose(result.version)}</sub>"
