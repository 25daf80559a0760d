"""``torchtriage show``."""

from __future__ import annotations

from pathlib import Path

import click

from torchtriage.errors import UsageError

__all__ = ["command"]


@click.command("show")
@click.argument("path", metavar="RESULT.json")
@click.option("--html", metavar="FILE", help="Write the page instead of printing.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show the N costliest findings.")
def command(path: str, html: str | None, markdown: bool, top: int | None) -> None:
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown."""
    from torchtriage.report import json_report

    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=path) from error
    results = json_report.decode(data)
    if html:
        from torchtriage.report import html_page

        Path(html).write_text(html_page.render(results), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    elif markdown:
        from torchtriage.report import markdown as report

        click.echo(report.render(results, top=top))
    else:
        from rich.console import Console

        from torchtriage.report import terminal

        terminal.write(results, Console(), top=top)
