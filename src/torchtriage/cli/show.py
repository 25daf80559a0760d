"""``torchtriage show``."""

from __future__ import annotations

from pathlib import Path

import click

from torchtriage.cli.output import check_outputs, print_report, save
from torchtriage.errors import UsageError

__all__ = ["command"]


@click.command("show")
@click.argument("path", metavar="RESULT.json", type=click.Path())
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(),
    help="Write the page instead of printing.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N costliest findings.")
def command(path: str, html: str | None, markdown: bool, top: int | None) -> None:
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown."""
    from torchtriage.report import json_report

    check_outputs([html], [path])
    saved = json_report.read(_read(path))
    results, jobs = saved.results, saved.jobs
    if html:
        from torchtriage.report import html_page

        save(html, html_page.render(results, jobs).encode())
    elif markdown:
        from torchtriage.report import markdown as report

        click.echo(report.render(results, jobs=jobs, top=top))
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
