"""SQLite files of other profilers: opened so that a hostile one does no harm, read as numpy columns.

Nothing is written, beside the file or elsewhere. Only real tables and the columns stored in them are read: views,
virtual tables, generated columns and triggers would run what the file says. Rows, texts and time are bounded by the
file's size. What is damaged costs the rest of its table, and is counted.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import LONGEST, visible
from torchtriage.core.trace.events import Loss

MISSING = -(1 << 62)
"""Stands for NULL, for what is no whole number of 62 bits, and for a column that the table does not have."""
_LARGEST = 1 << 61
_ROWS, _PIECE = 1 << 14, 1 << 11
"""Rows are handed out so many at a time, and taken so many: as Python objects they need ten times the room."""
_LEAST_ROW_BYTES = 6
"""A row of nothing but NULLs takes so much; tables whose pages are their own children claim more rows than fit."""
_TEXT_RATIO = 2
"""UTF-16 becomes at most half as long again; rows that share the pages of their texts claim more."""
_MOST_TEXTS = 1 << 21
_SECONDS, _SECONDS_PER_MB = 30.0, 0.5
"""Real files take a hundredth of it."""
_OPERATIONS = 10_000
"""SQLite asks after so many steps whether it should go on: some 500 rows."""
_SETTINGS = ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "temp_store=MEMORY", "cache_size=-4096")
_BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second where its message quotes a damaged schema."""
_NAME = re.compile(r"\w+")
_SHOWN = f"CASE typeof({{0}}) WHEN 'text' THEN substr({{0}},1,{LONGEST}) WHEN 'blob' THEN NULL ELSE {{0}} END"


class Block(NamedTuple):
    """Some rows of a table, in file order: an int64 array for each number asked for, a list for each text."""

    numbers: tuple[Ints, ...]
    texts: tuple[Sequence[bytes], ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.numbers[0]) if self.numbers else len(self.texts[0])


class Database:
    """The tables of an opened file: ``tables`` has the columns of each; ``loss`` says what could not be read."""

    def __init__(self, connection: sqlite3.Connection, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.loss = Loss()
        self._connection = connection
        self._deadline = time.monotonic() + _SECONDS + _SECONDS_PER_MB * size_bytes / 1e6
        connection.set_progress_handler(self._is_late, _OPERATIONS)
        self.tables = self._find_tables()

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table that stores these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def count(self, table: str, where: str = "") -> int:
        """Return how many rows a table has; 0 where there is none, or where it cannot be read."""
        if table not in self.tables:
            return 0
        try:
            (found,) = self._connection.execute(f"SELECT count(*) FROM {quoted(table)}{_where(where)}").fetchone()
        except _BROKEN as error:
            self._lose(table, 0, error)
            return 0
        return min(int(found), self.size_bytes // _LEAST_ROW_BYTES)

    def read(
        self, table: str, numbers: Sequence[str], texts: Sequence[str] = (), *, where: str = ""
    ) -> Iterator[Block]:
        """Yield the rows of a table; none where it does not exist.

        ``numbers``, ``texts`` : names of columns, or SQL expressions of columns that are there (:meth:`has`). A column
        that the table lacks is MISSING, or empty text. Texts are UTF-8, and cut at the length of the longest names.
        ``where`` : an SQL condition.
        """
        if table not in self.tables:
            return
        wanted = [f"ifnull({self._column(table, item)},{MISSING})" for item in numbers]
        wanted += [f"ifnull(substr({self._column(table, item)},1,{LONGEST + 1}),'')" for item in texts]
        columns: list[list[Any]] = [[] for _ in wanted]
        n_rows = n_text_bytes = 0
        trouble: object = None
        try:
            cursor = self._connection.execute(f"SELECT {','.join(wanted)} FROM {quoted(table)}{_where(where)}")
            while rows := cursor.fetchmany(_PIECE):
                piece = list(zip(*rows, strict=True))
                n_rows += len(rows)
                n_text_bytes += sum(sum(map(len, values)) for values in piece[len(numbers) :])
                if n_rows * _LEAST_ROW_BYTES > self.size_bytes or n_text_bytes > _TEXT_RATIO * self.size_bytes:
                    trouble = "more than the file has room for"
                    break
                for column, values in zip(columns, piece, strict=True):
                    column.extend(values)
                if len(columns[0]) >= _ROWS:
                    yield _block(columns, len(numbers))
                    columns = [[] for _ in wanted]
        except _BROKEN as error:
            trouble = error
        if columns[0]:
            yield _block(columns, len(numbers))
        if trouble is not None:
            self._lose(table, n_rows, trouble)

    def texts_by_id(self, table: str, key: str, text: str) -> dict[int, bytes]:
        """Return the texts of a table by a number of theirs."""
        found: dict[int, bytes] = {}
        for block in self.read(table, (key,), (text,)):
            found.update(zip(block.numbers[0].tolist(), block.texts[0], strict=True))
            if len(found) > _MOST_TEXTS:
                self._lose(table, len(found), "more texts than any recording has")
                break
        return found

    def row(self, table: str, index: int, *, where: str = "") -> dict[str, object]:
        """Return what one row of a table holds by column, NULLs left out; ``index`` counts the rows of ``where``."""
        names = sorted(self.tables.get(table, ()))
        if not names:
            return {}
        wanted = ",".join(_SHOWN.format(quoted(name)) for name in names)
        query = f"SELECT {wanted} FROM {quoted(table)}{_where(where)} LIMIT 1 OFFSET {int(index)}"
        try:
            values = self._connection.execute(query).fetchone() or ()
        except _BROKEN:
            return {}
        shown = (value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values)
        return {name: value for name, value in zip(names, shown, strict=False) if value is not None}

    def _column(self, table: str, item: str) -> str:
        if not _NAME.fullmatch(item):
            return item
        return quoted(item) if item in self.tables[table] else "NULL"

    def _find_tables(self) -> dict[str, frozenset[str]]:
        query = "SELECT name, sql, rootpage FROM sqlite_master WHERE type='table' LIMIT 10000"
        tables = {}
        try:
            for name, sql, root in self._connection.execute(query).fetchall():
                if not isinstance(name, bytes) or not isinstance(sql, bytes) or not isinstance(root, int) or root <= 0:
                    continue
                if not re.match(rb"\s*CREATE\s+TABLE\b", sql, re.IGNORECASE):
                    continue
                table = name.decode("utf-8", "replace")
                columns = self._connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
                # the last field tells what is generated or hidden
                tables[table] = frozenset(row[1].decode("utf-8", "replace") for row in columns if row[6] == 0)
        except _BROKEN as error:
            self._refuse_late(error)
            raise TraceFormatError(
                f"expected a database that can be read, found a damaged one ({visible(str(error))})",
                where=self.name,
                hint="export it again; it was cut or damaged on its way",
            ) from error
        return tables

    def _lose(self, table: str, n_rows: int, why: object) -> None:
        if isinstance(why, Exception):
            self._refuse_late(why)
        self.loss.n_lost += 1
        self.loss.say(f"the table {visible(table)} cannot be read beyond {n_rows} rows ({visible(str(why))})")

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _refuse_late(self, error: Exception) -> None:
        if self._is_late():
            raise TraceFormatError(
                "expected tables that can be read in time, found some that take too long for their size",
                where=self.name,
                hint="export it again; the file is damaged, or made to be slow",
            ) from error


@contextmanager
def open_database(path: str | os.PathLike[str], name: str) -> Iterator[Database]:
    """Open an SQLite file to be read, and nothing else; ``name`` is what messages call it.

    Raises TraceFormatError: it is not a database, or its list of tables is damaged.
    """
    file = Path(path).absolute()
    try:
        # nothing else may write to it meanwhile: no locks, no journal, no files beside it
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    except _BROKEN as error:
        raise TraceFormatError(f"expected a database, found: {visible(str(error))}", where=name) from error
    try:
        connection.text_factory = bytes
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        yield Database(connection, name, file.stat().st_size)
    except _BROKEN as error:
        raise TraceFormatError(
            f"expected a database that can be read, found: {visible(str(error))}",
            where=name,
            hint="export it again; it was cut or damaged on its way",
        ) from error
    finally:
        connection.close()


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _block(columns: list[list[Any]], n_numbers: int) -> Block:
    return Block(tuple(map(whole_numbers, columns[:n_numbers])), tuple(columns[n_numbers:]))


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""


def whole_numbers(values: Sequence[object]) -> Ints:
    """Return values as an array, texts of numbers included; MISSING for what is no whole number of 62 bits."""
    try:
        found: Ints = np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        found = np.fromiter(map(_whole, values), np.int64, len(values))
    # the largest negative number has no absolute value
    found[(found >= _LARGEST) | (found <= -_LARGEST)] = MISSING
    return found


def _whole(value: object) -> int:
    try:
        whole = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return whole if -_LARGEST < whole < _LARGEST else MISSING
