"""Which profiler a database is from, and its rows as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace.column_builder import ColumnBuilder
from torchtriage.core.trace.events import Loss
from torchtriage.core.trace.formats import nsys, rocpd
from torchtriage.core.trace.formats.sqlite_rows import Database, open_database
from torchtriage.core.trace.input import EXPORT, Input, Source


class Format(NamedTuple):
    """A profiler, how to know its tables, read them, and read one row again (its table's number, its place there)."""

    recorder: str
    fits: Callable[[Database], bool]
    read: Callable[[Database, ColumnBuilder], dict[str, Any]]
    row: Callable[[Database, int, int], dict[str, object]]


FORMATS = (
    Format(nsys.RECORDER, nsys.is_export, nsys.read_export, nsys.row_of),
    Format(rocpd.RECORDER, rocpd.is_rocpd, rocpd.read_rocpd, lambda *_: {}),
)
_OTHERS = {
    "rocpd_": (
        "a database of ROCm's profilers (rocpd) without calls or work",
        "record with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace -- python train.py",
    ),
    "StringTable": ("an export of nvprof", "record with Nsight Systems or torch.profiler; nvprof's files are not read"),
}
"""Databases that are known and not read, by what the name of a table begins with."""


def read_database(source: Source, path: Input, builder: ColumnBuilder) -> tuple[str, dict[str, Any], Loss]:
    """Append the rows of an opened database; return whose it is, its metadata, and what could not be read.

    Raises TraceFormatError: it cannot be read, or is another program's.
    """
    with _opened(source, path) as (database, found):
        meta = found.read(database, builder)
        if source.truncated:
            database.loss.say(source.truncated)
        return found.recorder, meta, database.loss


def read_row(source: Source, path: Input, table: int, index: int) -> dict[str, object]:
    """Return what an opened database holds of one row, by the names of its columns."""
    with _opened(source, path) as (database, found):
        return found.row(database, table, index)


@contextmanager
def _opened(source: Source, path: Input) -> Iterator[tuple[Database, Format]]:
    with source.as_file(path) as file, open_database(file, source.name) as database:
        for known in FORMATS:
            if known.fits(database):
                yield database, known
                return
        what, hint = next(
            (other for start, other in _OTHERS.items() if any(table.startswith(start) for table in database.tables)),
            ("an SQLite database", EXPORT),
        )
        raise TraceFormatError(f"expected a profiler trace, found {what}", where=source.name, hint=hint)
