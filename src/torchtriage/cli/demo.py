"""``torchtriage demo``."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("demo")
@click.option("--html", metavar="FILE", help="Also write the page.")
def command(html: str | None) -> None:
    """Analyse the bundled recording of a small training script."""
    from pathlib import Path

    from rich.console import Console

    from torchtriage import api
    from torchtriage.report import terminal

    path = api.sample_path()
    click.echo(f"torchtriage analyze {path.name}   (recorded by examples/record_sample.py)\n")
    result = api.analyze(path)
    terminal.write([result], Console())
    if html:
        Path(html).write_text(result.to_html(), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    click.echo("\nNow your own: torchtriage analyze TRACE")
