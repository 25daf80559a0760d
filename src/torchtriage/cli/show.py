"""``torchtriage show``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from torchtriage.cli.output import check_outputs, print_report, put, report_part, save
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
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown.

    Of analyze, bench, compare, compile, gate, lint, memory, review, verify or xla; --top is for
    those of analyze.
    """
    from torchtriage.report import json_report

    check_outputs([html], [path])
    data = _read(path)
    room = ROOMS.get(json_report.schema_name(data).partition("/")[0])
    if room is not None:
        if top:
            raise UsageError("--top is for results of analyze", where=path)
        _show(room, data, path, html, markdown=markdown)
        return
    saved = json_report.read(data)
    results, jobs = saved.results, saved.jobs
    if html:
        from torchtriage.report import html_page

        save(html, html_page.render(results, jobs).encode())
    elif markdown:
        from torchtriage.report import markdown as report

        click.echo(report.render(results, jobs=jobs, top=top))
    else:
        print_report(results, jobs=jobs, top=top)


ROOMS = {
    "torchtriage-bench": "bench",
    "torchtriage-comparison": "comparison",
    "torchtriage-compile": "compile",
    "torchtriage-gate": "gate",
    "torchtriage-gate-history": "gate",
    "torchtriage-experiment": "rollout",
    "torchtriage-lint": "lint",
    "torchtriage-memory": "memory",
    "torchtriage-review": "review",
    "torchtriage-rollout": "rollout",
    "torchtriage-verification": "verification",
    "torchtriage-xla": "xla",
}
"""The folder of ``report`` for each kind of document; analyze has ``report`` itself."""
ONLY = {
    "lint": ("terminal", "markdown"), "review": ("terminal",), "verification": ("terminal",),
}  # fmt: skip
"""The forms of a room that does not have all of them."""


def _show(room: str, data: bytes, path: str, html: str | None, *, markdown: bool) -> None:
    reader = report_part(room, "json_report")
    result = (reader.decode_any if room == "gate" else reader.decode)(data)
    form = "html_page" if html else "markdown" if markdown else "terminal"
    if form not in ONLY.get(room, (form,)):
        name = "page" if html else "Markdown"
        raise UsageError(f"a result of this command has no {name}", where=path)
    render = report_part(room, form).render
    if html:
        save(html, render(result).encode())
    elif markdown:
        click.echo(render(result).rstrip("\n"))
    else:
        put(partial(render, result))


def _read(path: str) -> bytes:
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UsageError("expected a result file, found a folder, pipe or device", where=path)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=path) from error
