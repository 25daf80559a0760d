"""``torchtriage doctor``."""

from __future__ import annotations

import os
import platform

import click

from torchtriage.cli.anonymising import anonymise_options
from torchtriage.cli.output import put_document
from torchtriage.cli.progress import reading


@click.command("doctor")
@click.argument("path", metavar="PATH", type=click.Path(), required=False)
@click.option("--system", is_flag=True, help="Show which engine reads traces on this machine, and why.")
@anonymise_options
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@click.pass_context
def command(ctx: click.Context, /, path: str | None, system: bool, quiet: bool) -> None:
    """Check whether a trace can be trusted, what it cannot answer, and how to record it better.

    Exit code 2 if no verdict on it is possible.
    """
    from torchtriage.api import traces
    from torchtriage.report.documents.trace import doctor

    if system:
        _print_system()
    if path is None:
        if not system:
            raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
        return

    with reading(path, quiet=quiet) as progress:
        result = traces.analyze(path, progress=progress)
    put_document(doctor(result))
    if result.refused:
        ctx.exit(2)


def _print_system() -> None:
    from torchtriage.core.engine import find_engine
    from torchtriage.core.version import __version__

    engine = find_engine()
    click.echo(f"torchtriage {__version__}, Python {platform.python_version()}")
    click.echo(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    click.echo(f"Traces are read by the {engine.name} engine: {engine.reason}.")
