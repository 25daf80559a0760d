"""``torchtriage query``."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from torchtriage.cli.options import output_option, quiet_option, reading_options, selection_of, selection_options
from torchtriage.cli.output import check_outputs, complain, put_document
from torchtriage.cli.progress import reading
from torchtriage.core.errors import TraceFormatError, UsageError

if TYPE_CHECKING:
    from torchtriage.api.tables import Answer

SHOWN = 1000
"""Rows that a person is shown."""


@click.command("query")
@click.argument("paths", nargs=-1, required=True, metavar="PATH… SQL", type=click.Path())
@click.option("--json", "form", flag_value="json", help="Print a JSON array with an object for each row.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@output_option
@selection_options
@reading_options
@quiet_option
def command(paths: tuple[str, ...], **given: Any) -> None:
    """Query the tables of a trace in SQL; needs DuckDB (pip install 'torchtriage[query]').

    PATH is a trace, a folder of ranks, a pattern or a URL, as for analyze. The last argument is the query, over the
    tables kernels, ops, copies, steps, ranks, collectives, memory and findings. Their columns, and questions to
    begin with: docs/tables.md.

    \b
    torchtriage query trace.json.gz "select name, sum(dur_ns) / 1e6 as ms from kernels group by name order by ms desc"
    """  # noqa: D301 - \b keeps click from joining lines
    from torchtriage.api import tables

    *files, sql = paths
    if not files:
        raise UsageError("expected a trace and a query, found one argument", hint='torchtriage query TRACE "select …"')
    check_outputs([given["output"]], files)
    left_out: list[TraceFormatError] = []
    with (
        reading(", ".join(files), quiet=given["quiet"]) as progress,
        tables.query(
            files,
            sql,
            selection=selection_of(given),
            cache=given["cache"],
            max_bytes=given["max_bytes"],
            max_memory=given["max_memory"],
            progress=progress,
            left_out=left_out.append,
        ) as answer,
    ):
        if given["form"] == "csv":
            with _open(given["output"]) as file:
                tables.write_csv(file, answer.columns, answer.batches)
        elif given["form"] == "json":
            with _open(given["output"]) as file:
                _write_json(file, answer)
        else:
            _put(answer, given["output"])
    for error in left_out:
        complain(f"left out: {error}")


@contextmanager
def _open(name: str | None) -> Iterator[IO[str]]:
    if name is None:
        stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
        try:
            yield stdout
        finally:
            stdout.detach()
        return
    from torchtriage.api.tables import writing

    with writing(name) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_json(file: IO[str], answer: Answer) -> None:
    between = "[\n"
    for row in chain.from_iterable(answer.batches):
        # what is no number is null there
        document = msgspec.json.encode(dict(zip(answer.columns, row, strict=True)), enc_hook=str)
        file.write(between + document.decode())
        between = ",\n"
    file.write("[]\n" if between == "[\n" else "\n]\n")


def _cell(value: Any) -> str:
    from torchtriage.core.names import elide

    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else elide(str(value))


def _put(answer: Answer, name: str | None) -> None:
    from torchtriage.report import blocks as b

    rows = list(islice(chain.from_iterable(answer.batches), SHOWN + 1))
    numbers = [all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(answer.columns))]
    cells = [tuple(map(_cell, row)) for row in rows[:SHOWN]]
    blocks: list[b.Block] = [b.Table(answer.columns, cells, align="".join("lr"[number] for number in numbers))]
    if not rows:
        blocks = [b.Lines(["No rows."])]
    if len(rows) > SHOWN:
        blocks.append(b.Lines([f"Only the first {SHOWN:,} rows are shown: --csv and --json have all."]))
    put_document(b.Document("Query", "", "", blocks), name)
