"""``torchtriage demo``."""

from __future__ import annotations

from dataclasses import replace

import click

from torchtriage.cli.options import html_option, verbose_option
from torchtriage.cli.output import check_outputs, put_document, save

__all__ = ["command"]


@click.command("demo")
@html_option
@verbose_option
def command(html: str | None, verbose: bool) -> None:
    """Analyse the bundled recording of a small training script."""
    from torchtriage.api import traces
    from torchtriage.core.source import Sources
    from torchtriage.report.documents.trace import document

    path = traces.sample_path()
    check_outputs([html], [path])
    click.echo(f"torchtriage analyze {path.name}   (recorded by record_sample.py beside it)\n")
    result = traces.analyze(path, sources=[path.parent])
    # where the package is installed is no news
    result = replace(result, trace=replace(result.trace, path=path.name))
    quote = Sources([path.parent]).quote
    put_document(document([result], quote=quote, short=not verbose))
    if html:
        from torchtriage.report.pages import trace as trace_page

        save(html, trace_page.render([result], quote=quote).encode())
    click.echo("\nNow your own: torchtriage analyze TRACE")
