"""``torchtriage export``."""

from __future__ import annotations

from typing import Any

import click

from torchtriage.cli.options import (
    file_option,
    quiet_option,
    reading_options,
    selection_of,
    selection_options,
    value_option,
)
from torchtriage.cli.output import check_outputs, complain
from torchtriage.cli.progress import reading
from torchtriage.core.errors import TraceFormatError, UsageError


@click.command("export")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path())
@value_option("--table", str, "NAME", "kernels", "kernels, ops, copies, steps, ranks, collectives, memory or findings.")
@file_option("--parquet", "Write it as Parquet; needs pyarrow.")
@file_option("--csv", "Write it as CSV.")
@file_option("--arrow", "Write it in Arrow's IPC format (Feather 2); needs pyarrow.")
@selection_options
@reading_options
@quiet_option
def command(paths: tuple[str, ...], **given: Any) -> None:
    """Write a table of a trace to a file, for data frames.

    PATH is a trace, a folder of ranks, a pattern or a URL, as for analyze; all ranks are in one table, with a
    column rank. Tables and columns: docs/tables.md.

    \b
    torchtriage export trace.json.gz --table kernels --parquet kernels.parquet
    torchtriage export ranks/ --table collectives --csv collectives.csv
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.api import tables
    from torchtriage.core.trace.memory_limit import within

    outputs = {form: given[form] for form in tables.FORMS if given[form]}
    if not outputs:
        raise UsageError("expected a file to write, found none", hint="add --csv FILE, --parquet FILE or --arrow FILE")
    check_outputs(outputs.values(), paths)
    name = given["table"]
    left_out: list[TraceFormatError] = []
    with within(given["max_memory"]):
        with reading(", ".join(paths), quiet=given["quiet"]) as progress:
            table = tables.load_tables(
                paths,
                [name],
                selection=selection_of(given),
                cache=given["cache"],
                max_bytes=given["max_bytes"],
                progress=progress,
                left_out=left_out.append,
            )[name]
        for error in left_out:
            complain(f"left out: {error}")
        for form, path in outputs.items():
            tables.write_table(table, path, form)
            click.echo(f"wrote {path}", err=True)
