"""Tables: named columns of equal length, for data frames and SQL.

What is not known is null. A table computes a column when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrow import Values, schema_capsule, stream_capsule
from torchtriage.core.errors import UsageError


class Column(NamedTuple):
    """One column: ``kind`` is ``int64``, ``float64``, ``bool`` or ``text``; ``find`` computes it from the rows."""

    name: str
    kind: str
    meaning: str
    find: Callable[[Any], Any]
    """Gives an array, or Values; a masked array is null where it is masked."""


class Table:
    """Named columns of equal length; pandas, polars, pyarrow and DuckDB read it as it is.

    ``table["dur_ns"]`` is a numpy array, masked where there are nulls, of objects for text.
    """

    def __init__(self, kinds: dict[str, str], n_rows: int, find: Callable[[str], Values]) -> None:
        """``kinds`` : type by column. ``find`` : computes a column."""
        self._kinds, self._n_rows, self._find = kinds, n_rows, find
        self._known: dict[str, Values] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._n_rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._kinds)

    @property
    def kinds(self) -> dict[str, str]:
        """``int64``, ``float64``, ``bool`` or ``text`` by column."""
        return dict(self._kinds)

    def computed(self) -> Table:
        """Return a table that holds its columns and nothing that they were computed from."""
        return Table(self._kinds, len(self), {name: self.values(name) for name in self._kinds}.__getitem__)

    def values(self, name: str) -> Values:
        """Return one column as it is stored."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._find(name)
        return known

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one column, masked where it has nulls."""
        if name not in self._kinds:
            raise UsageError(f"expected one of the columns {', '.join(self._kinds)}, found {name!r}")
        data, valid, texts = self.values(name)
        if texts is not None:
            data = np.array([*texts, None], object)[data]
        return data if valid is None else np.ma.masked_array(data, ~valid)

    def batches(self, size: int = 1 << 16) -> Iterator[list[list[Any]]]:
        """Yield the columns as Python values, some rows at a time; None for null."""
        columns = [self.values(name) for name in self._kinds]
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            yield [_objects(column, rows) for column in columns]

    def __arrow_c_schema__(self) -> object:  # noqa: D105
        return schema_capsule(self._kinds)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:  # noqa: D105
        return stream_capsule(len(self), self._kinds, {name: self.values(name) for name in self._kinds})


def _objects(values: Values, rows: slice) -> list[Any]:
    data, valid, texts = values
    out = data[rows].tolist() if texts is None else [texts[code] for code in data[rows].tolist()]
    if valid is not None:
        out = [value if known else None for value, known in zip(out, valid[rows].tolist(), strict=True)]
    return out


def made_of_columns(columns: tuple[Column, ...], rows: Any) -> Table:
    """Return a table whose columns are computed from ``rows``, which has as many as its ``len``."""
    by_name = {column.name: column for column in columns}
    kinds = {column.name: column.kind for column in columns}
    return Table(kinds, len(rows), lambda name: stored(by_name[name].find(rows), kinds[name], len(rows)))


def union(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables of one kind, one after the other."""
    first = tables[0]
    if len(tables) == 1:
        return first

    def find(name: str) -> Values:
        parts = [table.values(name) for table in tables]
        valid = None
        if any(part.valid is not None for part in parts):
            valid = np.concatenate(
                [np.ones(len(part.data), bool) if part.valid is None else part.valid for part in parts]
            )
        if first.kinds[name] != "text":
            return Values(np.concatenate([part.data for part in parts]), valid)
        codes: dict[str, int] = {}
        data = []
        for part in parts:
            recoded = np.array([codes.setdefault(text, len(codes)) for text in part.texts or ()] or [0], np.int32)
            data.append(recoded[part.data])
        return Values(np.concatenate(data), valid, tuple(codes))

    return Table(first.kinds, sum(map(len, tables)), find)


_EMPTY = {"int64": 0, "float64": 0.0, "bool": False}


def stored(found: Any, kind: str, n_rows: int) -> Values:
    """Return what a column's function gave as it is stored: one value for all rows, a list, an array or Values."""
    if isinstance(found, Values):
        return found
    if not isinstance(found, list | np.ndarray):
        found = [found] * n_rows if kind == "text" or found is None else np.full(n_rows, found)
    if kind == "text":
        codes: dict[str, int] = {}
        data = np.array([-1 if text is None else codes.setdefault(text, len(codes)) for text in found], np.int32)
        return coded(data, tuple(codes))
    if isinstance(found, list):
        valid = np.array([value is not None for value in found], bool)
        found = np.ma.masked_array([_EMPTY[kind] if value is None else value for value in found], ~valid)
    mask = np.ma.getmaskarray(found) if isinstance(found, np.ma.MaskedArray) else None
    values = np.ascontiguousarray(np.ma.getdata(found), kind)
    return Values(values, ~mask if mask is not None and mask.any() else None)


def coded(codes: NDArray[Any], texts: tuple[str, ...]) -> Values:
    """Return texts by code, -1 for null."""
    valid = codes >= 0
    whole = bool(valid.all())
    codes = np.ascontiguousarray(codes if whole else np.maximum(codes, 0), np.int32)
    return Values(codes, None if whole else valid, texts or ("",))


def known_where(values: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
    """Return an array that is null elsewhere."""
    return np.ma.masked_array(values, ~where)
