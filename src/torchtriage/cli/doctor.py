"""``torchtriage doctor``."""

from __future__ import annotations

import click

from torchtriage.cli.output import print_report
from torchtriage.cli.progress import reading

__all__ = ["command"]


@click.command("doctor")
@click.argument("path", metavar="PATH", type=click.Path())
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def command(ctx: click.Context, /, path: str, quiet: bool) -> None:
    """Say whether a trace can be trusted, what it cannot answer, and how to re-record it.

    Exit code 2 when no verdict can be given on it.
    """
    from torchtriage import api

    with reading(path, quiet=quiet) as progress:
        result = api.analyze(path, progress=progress)
    print_report([result], view="doctor")
    if result.refused:
        ctx.exit(2)
