"""``torchtriage show``."""

from __future__ import annotations

from pathlib import Path

import click

from torchtriage.cli.output import check_outputs, present, print_report, save
from torchtriage.core.errors import UsageError

__all__ = ["command"]


@click.command("show")
@click.argument("path", metavar="RESULT.json", type=click.Path())
@click.option("--html", metavar="FILE", type=click.Path(), help="Write the page instead of printing.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N findings that save most.")
def command(path: str, html: str | None, markdown: bool, top: int | None) -> None:
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown.

    Works for analyze, bench, compare, compile, gate, lint, memory, review, verify and xla; --top
    is for analyze only.
    """
    from torchtriage.report import formats, json_report

    check_outputs([html], [path])
    data = _read(path)
    if json_report.schema_name(data) in formats.FORMATS:
        if top:
            raise UsageError("--top is for results of analyze", where=path)
        result = formats.decode(data)
        if html:
            save(html, formats.page(result).encode())
        else:
            present(result, {"form": "markdown" if markdown else None, "output": None})
        return
    saved = json_report.read(data)
    results, jobs = saved.results, saved.jobs
    if html:
        from torchtriage.report.pages import trace

        save(html, trace.render(results, jobs).encode())
    elif markdown:
        from torchtriage.report import markdown as markdown_report
        from torchtriage.report.documents import trace as trace_document

        click.echo(markdown_report.render(trace_document.document(results, jobs, top=top)))
    else:
        print_report(results, jobs=jobs, top=top)


def _read(path: str) -> bytes:
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UsageError("expected a result file, found a folder, pipe or device", where=path)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=path) from error
