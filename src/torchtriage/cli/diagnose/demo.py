"""``torchtriage demo``."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from dataclasses import replace
from pathlib import Path

import click

from torchtriage.cli.options import verbose_option
from torchtriage.cli.output import check_outputs, put_document, save

FIX_MEASURED = """\
The fix was measured: pytorch/kineto also recorded the same script with
num_workers=4, and there a step takes 133 ms instead of 176 ms, 24 % less."""


@click.command("demo")
@click.option("--cpu", is_flag=True, help="A small script on the CPU instead, with its source lines.")
@click.option("--html", metavar="FILE", type=click.Path(), help="Write the page to FILE.  [default: a temporary file]")
@click.option("--no-open", is_flag=True, help="Do not open the page in the browser.")
@verbose_option
def command(cpu: bool, html: str | None, no_open: bool, verbose: bool) -> None:
    """Analyse the bundled recording of a training on a GPU.

    Its page opens in the browser where there is a display.
    """
    from torchtriage.api import traces
    from torchtriage.core.source.files import Sources
    from torchtriage.report.documents.trace import document
    from torchtriage.report.pages import trace as trace_page

    path = traces.sample_path("cpu" if cpu else "gpu")
    check_outputs([html], [path])
    origin = "recorded by record_sample.py beside it" if cpu else "recorded by pytorch/kineto"
    click.echo(f"torchtriage analyze {path.name}   ({origin})\n")
    result = traces.analyze(path, sources=[path.parent])
    # where the package is installed is no news
    result = replace(result, trace=replace(result.trace, path=path.name))
    quote = Sources([path.parent]).quote
    put_document(document([result], quote=quote, short=not verbose))
    if not cpu:
        click.echo(f"\n{FIX_MEASURED}")
    click.echo("\nNow your own: torchtriage analyze TRACE")

    if html is None:
        opened, html = tempfile.mkstemp(prefix="torchtriage-demo-", suffix=".html")
        os.close(opened)
    save(html, trace_page.render([result], quote=quote).encode())
    if has_display() and not no_open:
        webbrowser.open(Path(html).resolve().as_uri())


def has_display() -> bool:
    """Say whether somebody sits before a terminal with a screen beside it."""
    if not sys.stdout.isatty():
        return False
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ  # it would open on the other machine
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
