"""``torchtriage demo``."""

from __future__ import annotations

from dataclasses import replace

import click

from torchtriage.cli.output import check_outputs, print_report, save

__all__ = ["command"]


@click.command("demo")
@click.option("--html", metavar="FILE", type=click.Path(), help="Also write the page.")
def command(html: str | None) -> None:
    """Analyse the bundled recording of a small training script."""
    from torchtriage import api

    path = api.sample_path()
    check_outputs([html], [path])
    click.echo(f"torchtriage analyze {path.name}   (recorded by examples/record_sample.py)\n")
    result = api.analyze(path, sources=None)
    # where the package is installed is no news
    result = replace(result, trace=replace(result.trace, path=path.name))
    print_report([result])
    if html:
        save(html, result.to_html().encode())
    click.echo("\nNow your own: torchtriage analyze TRACE")
