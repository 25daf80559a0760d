"""The two databases a store may be in, as one: an SQLite file, or PostgreSQL."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torchtriage.errors import MissingExtraError, StoreError

__all__ = ["DEFAULT_STORE", "Database", "connect", "nothing_stored"]

DEFAULT_STORE = ".torchtriage/gate.db"
WAIT_S = 60.0
"""How long a writer waits for others; one run of 100 000 samples is written in some 10 ms."""
_WAIT = "another process has been writing for too long: wait for it, or end it"
_LOCK = 0x7472_6961_6765  # of PostgreSQL's advisory locks: one process at a time migrates


def connect(place: str, *, create: bool) -> tuple[Database, Path]:
    """Return the database at a path or a URL, and the folder beside it.

    Raises
    ------
    StoreError
        It cannot be reached, or there is none and ``create`` is off.
    MissingExtraError
        A PostgreSQL URL without the extra ``postgres``.
    """
    if re.match(r"postgres(ql)?://", place):
        return _Postgres(place), Path(DEFAULT_STORE).parent
    if found := re.match(r"([a-z][a-z0-9+.-]+)://", place, re.IGNORECASE):
        raise StoreError(
            f"expected a path or a postgresql:// URL, found {found.group(1)}://",
            where=_without_password(place),
        )
    path = Path(place)
    return _Sqlite(path, create=create), path.parent


class _Execute(Protocol):
    """Run a statement once, or for each row; how many rows it changed."""

    def __call__(self, statement: str, rows: Iterable[tuple[Any, ...]] | None = None) -> int: ...


class Database(Protocol):
    """What both databases do alike; parameters are ``?``."""

    name: str
    bytes_type: str

    def rows(self, query: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name."""

    def check_ours(self) -> None:
        """Refuse to make tables in what is somebody else's."""

    def transaction(self, *, write: bool) -> contextlib.AbstractContextManager[_Execute]:
        """Run statements whole or not at all."""

    def close(self) -> None:
        """Let go of it."""


class _Sqlite:
    """One file. The rollback journal of SQLite, not its WAL: one file to cache and to carry."""

    bytes_type = "BLOB"

    def __init__(self, path: Path, *, create: bool) -> None:
        self.name = str(path)
        try:
            exists = path.exists()
            if not exists and not create:
                raise nothing_stored(self.name)
            if not exists:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path == Path(DEFAULT_STORE):
                    # measurements of one machine, not a part of the source
                    path.with_name(".gitignore").write_text("*\n", encoding="ascii")
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot be made: {error}", where=self.name) from error
        if path.is_dir():
            raise StoreError("expected a file, found a folder", where=self.name)
        with self._told():
            self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
            self._connection.execute("PRAGMA foreign_keys = ON")

    def rows(self, query: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._told():
            return self._connection.execute(query, given).fetchall()

    def has_table(self, name: str) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.rows(query, [name]))

    def check_ours(self) -> None:
        names = [row[0] for row in self.rows("SELECT name FROM sqlite_master", [])]
        if names:
            raise StoreError(
                f"expected an empty database or a store, found one with a table {names[0]!r}",
                where=self.name,
                hint="choose another file",
            )

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[_Execute]:
        # a lock taken at once is waited for; one taken half way fails where two want it
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._execute
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _execute(self, statement: str, rows: Iterable[tuple[Any, ...]] | None = None) -> int:
        if rows is None:
            return self._connection.execute(statement).rowcount
        return self._connection.executemany(statement, rows).rowcount

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            said = str(error)
            hint = "TORCHTRIAGE_STORE or --store names another place"
            if "not a database" in said or "malformed" in said:
                hint = "it is no store, or is damaged: choose another file"
            elif "locked" in said:
                hint = _WAIT
            raise StoreError(f"store: {said}", where=self.name, hint=hint) from error


class _Postgres:
    """A database that several machines share; tables are in the first schema of the user's path."""

    bytes_type = "BYTEA"

    def __init__(self, url: str) -> None:
        self.name = _without_password(url)
        try:
            psycopg: Any = import_module("psycopg")
        except ImportError as error:
            raise MissingExtraError(
                "a PostgreSQL store needs psycopg, which is not installed",
                where=self.name,
                hint="pip install 'torchtriage[postgres]'",
            ) from error
        self._error: type[Exception] = psycopg.Error
        with self._told():
            timeout = {} if "connect_timeout" in url else {"connect_timeout": 10}
            # a pooler between hands out another connection for each transaction
            self._connection = psycopg.connect(
                url, autocommit=True, prepare_threshold=None, **timeout
            )

    def rows(self, query: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._told():
            cursor = self._connection.execute(_numbered(query), given, binary=True)
            return [tuple(row) for row in cursor.fetchall()]

    def has_table(self, name: str) -> bool:
        # rows, not to_regclass(): that remembers what was not there before we waited for the lock
        query = (
            "SELECT 1 FROM pg_catalog.pg_tables"
            " WHERE tablename = ? AND schemaname = ANY (current_schemas(false))"
        )
        return bool(self.rows(query, [name]))

    def check_ours(self) -> None:
        """Share it: the names of our tables begin with ours."""

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[_Execute]:
        with self._told(), self._connection.transaction():
            if write:
                wait = f"SET LOCAL lock_timeout = '{WAIT_S * 1e3:.0f}ms'"
                self._connection.execute(wait)
                # two first writers would both make the tables
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            yield self._execute

    def _execute(self, statement: str, rows: Iterable[tuple[Any, ...]] | None = None) -> int:
        with self._connection.cursor() as cursor:
            if rows is None:
                cursor.execute(statement)
            else:
                cursor.executemany(_numbered(statement), rows)
            return int(cursor.rowcount)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            said = " ".join(str(error).split()) or type(error).__name__
            hint = "check the URL: postgresql://user:password@host:5432/database"
            if "lock timeout" in said:
                hint = _WAIT
            raise StoreError(f"PostgreSQL: {said}", where=self.name, hint=hint) from error


def nothing_stored(name: str) -> StoreError:
    """Return the error of a store that is read before anything was recorded."""
    return StoreError(
        "no samples are stored here yet",
        where=name,
        hint="torchtriage gate record -- python bench.py, or --store for another place",
    )


def _numbered(query: str) -> str:
    return query.replace("?", "%s")


def _without_password(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.password:
            user, _, host = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}")
        query = re.sub(r"(password=)[^&]*", r"\1***", parts.query)
        return urllib.parse.urlunsplit(parts._replace(query=query))
    except ValueError:
        return url.partition("://")[0] + "://…"
