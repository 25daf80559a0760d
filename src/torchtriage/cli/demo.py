"""``torchtriage demo``."""

from __future__ import annotations

import click

from torchtriage.cli.output import check_outputs, save

__all__ = ["command"]


@click.command("demo")
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False), help="Also write the page."
)
def command(html: str | None) -> None:
    """Analyse the bundled recording of a small training script."""
    from rich.console import Console

    from torchtriage import api
    from torchtriage.report import terminal

    path = api.sample_path()
    check_outputs([html], [path])
    click.echo(f"torchtriage analyze {path.name}   (recorded by examples/record_sample.py)\n")
    result = api.analyze(path)
    terminal.write([result], Console())
    if html:
        save(html, result.to_html().encode())
    click.echo("\nNow your own: torchtriage analyze TRACE")
