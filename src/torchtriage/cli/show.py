"""``torchtriage show``."""

from __future__ import annotations

import os
from typing import Any

import click

from torchtriage.cli.options import top_option, verbose_option
from torchtriage.cli.output import check_outputs, present, read_input, save
from torchtriage.core.errors import TraceFormatError, UsageError


@click.command("show")
@click.argument("path", metavar="RESULT.json", type=click.Path())
@click.option("--html", metavar="FILE", type=click.Path(), help="Write the page instead of printing.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@top_option
@verbose_option
def command(path: str, html: str | None, markdown: bool, top: int | None, verbose: bool) -> None:
    """Render a result saved with --json again: on the terminal, as a page, or as Markdown.

    Works for analyze, bench, compare, compile, gate, lint, memory, review, verify and xla; --top
    and --verbose are for analyze only.
    """
    from torchtriage.report import formats, json_report

    check_outputs([html], [path])
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - no name makes these raise
        raise UsageError("expected a result file, found a folder, pipe or device", where=path)
    data = read_input(path)
    schema = json_report.schema_name(data)
    of_traces = schema == json_report.TRACES.name
    if (top or verbose) and schema in formats.FORMATS and not of_traces:
        raise UsageError("--top and --verbose are for results of analyze", where=path)
    try:
        result = formats.decode(data)
    except TraceFormatError as error:
        where = ", ".join(filter(None, (path, error.where)))
        raise TraceFormatError(error.message, where=where, hint=error.hint) from None
    if html:
        save(html, formats.page(result).encode())
    if markdown or not html:
        given = {"form": "markdown" if markdown else None, "output": None}
        options: dict[str, Any] = {"top": top} if top else {}
        present(result, given | ({"verbose": verbose} if of_traces else {}), **options)
