"""Tables of traces and of their findings, a folder's ranks in one: read, written to files, and asked in SQL."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from torchtriage.core.errors import MissingExtraError, TraceFormatError, UsageError
from torchtriage.core.finding import Finding
from torchtriage.core.selection import Selection
from torchtriage.core.table import Column, Table, union
from torchtriage.core.trace import Trace
from torchtriage.core.trace.memory_limit import spill_folder, within
from torchtriage.core.trace.merged_ranks import split_ranks
from torchtriage.core.trace.select import select_each
from torchtriage.core.trace.tables import RANK, TABLES, TableKind, find_table
from torchtriage.core.units import DEFAULT_MAX_BYTES
from torchtriage.core.whole_files import replacing

TracePath = str | os.PathLike[str]
FORMS = ("csv", "parquet", "arrow")
"""Forms of a file with a table."""
BATCH_ROWS = 10_000
DUCKDB_SHARE = 0.25
"""Of a bound on memory, what DuckDB may use for itself."""


# -- findings ------------------------------------------------------------------------------------


def _finding(name: str, kind: str, meaning: str, of: Callable[[Finding], Any] | None = None) -> Column:
    get = of or (lambda finding: getattr(finding, name))
    return Column(name, kind, meaning, lambda rows: list(map(get, rows.findings)))


def _cost(name: str, kind: str, meaning: str, field: str) -> Column:
    return _finding(name, kind, meaning, lambda finding: getattr(finding.cost, field, None))


def _frame(name: str, kind: str, meaning: str) -> Column:
    return _finding(name, kind, meaning, lambda finding: getattr(finding.place.frame, name, None))


class _FindingRows(NamedTuple):
    rank: int | None
    findings: tuple[Finding, ...]

    def __len__(self) -> int:
        return len(self.findings)


def _findings(trace: Trace) -> _FindingRows:
    from torchtriage.api.traces import analyze

    result = analyze(trace, selection=trace.selection)
    if result.refused:  # no rows would look like nothing found
        reason = result.notes[0]
        raise TraceFormatError(f"cannot be analysed: {reason.message}", where=result.trace.path, hint=reason.fix)
    return _FindingRows(trace.origin.rank, result.findings)


def _doubted(find: Callable[[Trace], Any]) -> Callable[[Trace], Any]:
    """Return what finds the rows of a table, and whether they can be judged: as ``analyze`` does."""

    def rows(trace: Trace) -> Any:
        from torchtriage.diagnose.verdict.doctor import examine, missing_rows

        notes = examine(trace)
        refused = any(note.level == "refuse" for note in notes)
        return replace(find(trace), refused=refused, lacks_rows=missing_rows(notes) is not None)

    return rows


for _name in ("steps", "ranks"):
    TABLES[_name] = TABLES[_name]._replace(rows=_doubted(TABLES[_name].rows))


TABLES["findings"] = TableKind(
    "Findings of `analyze`, the largest certain saving first.",
    _findings,
    (
        RANK,
        _finding("code", "text", "code of the pattern"),
        _finding("name", "text", "name of the pattern"),
        _finding("family", "text", "family of patterns"),
        _finding("severity", "text", "`high`, `medium`, `low` or `note`"),
        _finding("certainty", "text", "`certain`, `likely` or `hint`"),
        _finding("title", "text", "what is wrong"),
        _finding("message", "text", "the same with its numbers"),
        _cost("saves_low_ms", "float64", "what a fix saves at least; null where not costed", "low_ms"),
        _cost("saves_high_ms", "float64", "what it saves at most; null likewise", "high_ms"),
        _cost("of_ms", "float64", "of how long a step or window; null likewise", "of_ms"),
        _cost("per", "text", "`step` or `window`; null likewise", "per"),
        _frame("file", "text", "source file; null where no frame is recorded"),
        _frame("line", "int64", "line in it; null likewise"),
        _frame("function", "text", "function there; null likewise"),
        _finding("n_events", "int64", "events that are the evidence"),
        _finding("fix", "text", "what to change", lambda finding: finding.fix.text),
    ),
)


# -- reading ---------------------------------------------------------------------------------------


def _raise(error: TraceFormatError) -> None:
    raise error


def load_tables(
    paths: Collection[TracePath],
    names: Collection[str],
    *,
    selection: Selection | None = None,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
    left_out: Callable[[TraceFormatError], None] | None = None,
) -> dict[str, Table]:
    """Return tables of traces by name; those of several files or merged ranks one after the other, with their ``rank``.

    ``paths`` : files, folders searched below, patterns, URLs. ``left_out`` : told of each trace whose findings
    are not in the table, as it cannot be analysed; without it that is raised. The others are as in
    :func:`torchtriage.load`.

    Raises TraceFormatError: there is no trace, one cannot be read, or findings are asked for where none can be
    analysed; UsageError: there is no such table, or nothing that is selected.
    """
    from torchtriage.api.traces import find_traces, load, load_rank

    for name in names:
        find_table(name)
    files = find_traces(paths)
    options: dict[str, Any] = {"cache": cache, "max_bytes": max_bytes, "progress": progress}
    traces: Iterator[Trace]
    if selection is not None and selection.rank is not None:
        traces = iter([load_rank(files, selection.rank, **options)])
    else:
        traces = (rank for file in files for rank in split_ranks(load(file, **options)))
    parts: dict[str, list[Table]] = {name: [] for name in names}
    refused: list[TraceFormatError] = []
    for chosen in select_each(traces, selection):
        for name in names:
            try:
                table = chosen.table(name)
            except TraceFormatError as error:
                refused.append(error)
                continue
            # of several files one trace at a time is in memory
            parts[name].append(table if len(files) == 1 else table.computed())
    if left_out is None or not all(parts.values()):
        left_out = _raise
    for reason in refused:
        left_out(reason)
    return {name: union(tables) for name, tables in parts.items()}


# -- files -----------------------------------------------------------------------------------------


def write_table(table: Table, path: TracePath, form: str) -> None:
    """Write a table to a file: ``csv``, ``parquet`` or ``arrow`` (the IPC format, as Feather 2).

    Raises MissingExtraError: pyarrow is needed and not installed; UsageError: the file cannot be written.
    """
    if form != "csv" and find_spec("pyarrow") is None:
        raise MissingExtraError(
            f"writing {form} needs pyarrow, not installed here", hint="pip install 'torchtriage[parquet]', or --csv"
        )
    with writing(path) as partial:
        if form == "csv":
            with partial.open("w", newline="", encoding="utf-8") as file:
                write_csv(file, table.columns, (zip(*batch, strict=True) for batch in table.batches()))
        else:
            _write_arrow(table, partial, form)


@contextmanager
def writing(path: TracePath) -> Iterator[Path]:
    """Give a file beside this one to write to, which takes its place at the end.

    Raises UsageError: the file cannot be written.
    """
    try:
        with replacing(Path(path)) as partial:
            yield partial
    except OSError as error:
        raise UsageError(f"cannot be written: {error}", where=str(path)) from error


def write_csv(file: IO[str], columns: Sequence[str], batches: Iterable[Iterable[Sequence[Any]]]) -> None:
    """Write a line of names, then the rows; null is empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for rows in batches:
        writer.writerows(rows)


def _write_arrow(table: Table, path: Path, form: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    batches = pa.RecordBatchReader.from_stream(table)
    if form == "parquet":
        writer = parquet.ParquetWriter(path, batches.schema, compression="zstd")
    else:
        writer = pa.ipc.new_file(path, batches.schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)


# -- SQL -------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """The rows that a query gave: names of columns, and the rows some at a time."""

    columns: tuple[str, ...]
    batches: Iterator[list[tuple[Any, ...]]]


@contextmanager
def query(paths: Collection[TracePath], sql: str, *, max_memory: int | None = None, **options: Any) -> Iterator[Answer]:
    """Ask tables of traces in DuckDB's SQL; ``options`` : of :func:`load_tables`.

    ``max_memory`` : keep this process within so many bytes, of which DuckDB has a share for itself.

    Raises MissingExtraError: DuckDB is not installed; UsageError: the query cannot be answered, or the bound kept.
    """
    if find_spec("duckdb") is None:
        raise MissingExtraError("a query needs DuckDB, not installed here", hint="pip install 'torchtriage[query]'")
    import duckdb

    asked = [name for name in TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    with within(max_memory), duckdb.connect() as connection:
        if max_memory is not None:
            connection.execute("set memory_limit = ?", [f"{int(max_memory * DUCKDB_SHARE)}B"])
            connection.execute("set temp_directory = ?", [str(spill_folder())])
            connection.execute("set threads = 1")
        for name, table in load_tables(paths, asked, **options).items():
            connection.register(name, table)
        try:
            cursor = connection.execute(sql)
            if cursor is None:
                raise UsageError("expected a query, found no statement", hint='torchtriage query TRACE "select …"')
            columns = tuple(column[0] for column in cursor.description or ())
            yield Answer(columns, iter(lambda: cursor.fetchmany(BATCH_ROWS), []))
        except duckdb.Error as error:
            raise UsageError(
                f"DuckDB cannot answer: {error}",
                hint=f"the tables are {', '.join(TABLES)}; docs/tables.md lists columns",
            ) from error
