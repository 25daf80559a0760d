"""The databases that results are stored in: an SQLite file or PostgreSQL for SQL, and Redis' client.

An SQLite file may be open in any number of processes and threads, and survives a fork.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Union

from torchtriage.core.errors import MissingExtraError, SampleError, StoreError, UsageError

_WAIT = "another process has been writing for too long: wait for it, or end it"
_LOCK = 0x7472_6961_6765  # of PostgreSQL's advisory locks: one process at a time migrates


Execute = Callable[..., int]
"""Run a statement once, or for each of the rows behind it; how many rows it changed."""
Database = Union["_Sqlite", "_Postgres"]
"""Both have ``name``, ``bytes_type``, ``rows``, ``has_table``, ``check_ours``, ``transaction`` and ``close``, and ``?``
for parameters: rows of a query, refusing to make tables in what is somebody else's, statements whole or not at all."""


@dataclass(frozen=True)
class Schema:
    """The tables of a store, and the steps that make them of any version before.

    ``{bytes}`` in a statement is the database's type for raw bytes. ``table`` : holds the version; without one it is
    SQLite's ``user_version``. Never change a released step: add one.
    """

    steps: tuple[tuple[str, ...], ...]
    table: str = ""

    def version(self, database: Database) -> int:
        """Return the version of the tables; 0 where there are none yet."""
        if self.table and not database.has_table(self.table):
            return 0
        rows = database.rows(f"SELECT version FROM {self.table}" if self.table else "PRAGMA user_version")
        return int(rows[0][0]) if rows else 0

    def migrate(self, database: Database, *, absent: StoreError | None = None) -> None:
        """Make the tables, or bring them up to date; raise ``absent``, if given, where there are none."""
        newest = len(self.steps)
        before = self.version(database)
        if before == newest:
            return
        if not before and absent is not None:
            raise absent
        with database.transaction() as execute:
            # others may have done it while this one waited for its turn
            version = self.version(database)
            if version > newest:
                raise StoreError(
                    f"expected a store of version {newest} or before, found {version}",
                    where=database.name,
                    hint="it was written by a newer torchtriage: pip install -U torchtriage",
                )
            if not version:
                database.check_ours()
                if self.table:
                    execute(f"CREATE TABLE {self.table} (version INTEGER NOT NULL)")
                    execute(f"INSERT INTO {self.table} VALUES (0)")
            for statement in (statement for step in self.steps[version:] for statement in step):
                execute(statement.format(bytes=database.bytes_type))
            execute(f"UPDATE {self.table} SET version = {newest}" if self.table else f"PRAGMA user_version = {newest}")


def open_sqlite(place: str | Path, *, wait_s: float, hint: str, absent: StoreError | None = None) -> Database:
    """Open an SQLite file, or ``:memory:``; parent folders are made.

    ``wait_s`` : how long a writer waits for others. ``hint`` : how to choose another place. ``absent`` : raised where
    there is no file yet, instead of making one.

    Raises StoreError: it cannot be opened.
    """
    path = Path(place)
    try:
        if str(place) != ":memory:":
            if absent is not None and not path.exists():
                raise absent
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise StoreError("expected a file, found a folder", where=str(place))
        return _Sqlite(str(place), wait_s, hint)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot be made: {error}", where=str(place)) from error


class _Sqlite:
    """One file. The rollback journal of SQLite, not its WAL: one file to cache and to carry."""

    bytes_type = "BLOB"

    def __init__(self, name: str, wait_s: float, hint: str) -> None:
        self.name, self._wait_s, self._hint = name, wait_s, hint
        self._connect()

    def _connect(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        with self._errors():
            self._connection = sqlite3.connect(
                self.name, timeout=self._wait_s, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA foreign_keys = ON")

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._use() as connection:
            return connection.execute(query, parameters).fetchall()

    def has_table(self, name: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [name]))

    def check_ours(self) -> None:
        names = [row[0] for row in self.rows("SELECT name FROM sqlite_master")]
        if names:
            raise StoreError(
                f"expected an empty database or a store, found one with a table {names[0]!r}",
                where=self.name,
                hint="choose another file",
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._use() as connection:

            def execute(statement: str, rows: Iterable[tuple[Any, ...]] | None = None) -> int:
                if rows is None:
                    return connection.execute(statement).rowcount
                return connection.executemany(statement, rows).rowcount

            # a lock taken at once is waited for; one taken half way fails where two want it
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield execute
                connection.execute("COMMIT")
            except BaseException:
                # a commit fails too, on a full disk or a reader that stands still; left open, the
                # transaction would lock everybody out. Some failures have ended it themselves.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        # closing it on the other side of a fork would undo what its owner is writing
        if os.getpid() == self._pid:
            self._connection.close()

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._pid:
            # a connection must not be used, nor closed, on the other side of a fork
            self._inherited = self._connection
            self._connect()
        with self._errors(), self._lock:
            yield self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text, hint = str(error), self._hint
            if "not a database" in text or "malformed" in text:
                hint = "it is not a store, or is damaged: choose another file"
            elif "locked" in text:
                hint = _WAIT
            raise StoreError(f"store: {text}", where=self.name, hint=hint) from error


def open_postgres(url: str, *, wait_s: float) -> Database:
    """Open a PostgreSQL database, which several machines may share.

    Raises StoreError: it cannot be reached; MissingExtraError: without the extra ``postgres``.
    """
    return _Postgres(url, wait_s)


class _Postgres:
    """Tables are in the first schema of the user's path."""

    bytes_type = "BYTEA"

    def __init__(self, url: str, wait_s: float) -> None:
        self.name, self._wait_s = without_password(url), wait_s
        try:
            psycopg: Any = import_module("psycopg")
        except ImportError as error:
            raise MissingExtraError(
                "a PostgreSQL store needs psycopg, which is not installed",
                where=self.name,
                hint="pip install 'torchtriage[postgres]'",
            ) from error
        self._error: type[Exception] = psycopg.Error
        timeout = {} if "connect_timeout" in url else {"connect_timeout": 10}
        # a pooler between hands out another connection for each transaction
        self._open = partial(psycopg.connect, url, autocommit=True, prepare_threshold=None, **timeout)
        self._connect()

    def _connect(self) -> None:
        self._pid = os.getpid()
        with self._errors():
            self._connection: Any = self._open()

    def _use(self) -> Any:
        # a connection that broke, or that a fork copied
        if self._connection.closed or self._pid != os.getpid():
            self._connect()
        return self._connection

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            cursor = self._use().execute(query.replace("?", "%s"), parameters, binary=True)
            return [tuple(row) for row in cursor.fetchall()]

    def has_table(self, name: str) -> bool:
        # rows, not to_regclass(): that remembers what was not there before we waited for the lock
        query = "SELECT 1 FROM pg_catalog.pg_tables WHERE tablename = ? AND schemaname = ANY (current_schemas(false))"
        return bool(self.rows(query, [name]))

    def check_ours(self) -> None:
        """Share it: the names of our tables begin with ours."""

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._errors(), self._use().transaction():
            self._connection.execute(f"SET LOCAL lock_timeout = '{self._wait_s * 1e3:.0f}ms'")
            # two first writers would both make the tables
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            yield self._execute

    def _execute(self, statement: str, rows: Iterable[tuple[Any, ...]] | None = None) -> int:
        with self._connection.cursor() as cursor:
            if rows is None:
                cursor.execute(statement)
            else:
                cursor.executemany(statement.replace("?", "%s"), rows)
            return int(cursor.rowcount)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            text = " ".join(str(error).split()) or type(error).__name__
            hint = "check the URL: postgresql://user:password@host:5432/database"
            if "lock timeout" in text:
                hint = _WAIT
            raise StoreError(f"PostgreSQL: {text}", where=self.name, hint=hint) from error


@contextlib.contextmanager
def undamaged(name: str, what: str, hint: str = "") -> Iterator[None]:
    """Report what somebody else wrote into a store: it must not become a verdict."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, SampleError) as error:
        raise StoreError(f"{what} is damaged: {error}", where=name, hint=hint) from error


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.password:
            user, _, host = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}")
        query = re.sub(r"(password=)[^&]*", r"\1***", parts.query)
        return urllib.parse.urlunsplit(parts._replace(query=query))
    except ValueError:
        return url.partition("://")[0] + "://…"


def connect_redis(url: str, *, timeout_s: float, missing: MissingExtraError, decode: bool = False) -> Any:
    """Return a client of Redis that tries nothing twice, which would take seconds where a server is down.

    Raises MissingExtraError: ``missing``, without redis-py; UsageError: it is no URL of Redis.
    """
    try:
        redis, retry, backoff = (import_module(name) for name in ("redis", "redis.retry", "redis.backoff"))
    except ImportError as error:
        raise missing from error
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry.Retry(backoff.NoBackoff(), 0),
            decode_responses=decode,
        )
    except ValueError as error:
        raise UsageError(f"not a Redis URL: {error}", hint="redis://host:6379/0") from error
