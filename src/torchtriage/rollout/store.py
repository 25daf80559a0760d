"""Where rollouts are kept: one SQLite file with the state, its owner, and all that happened.

Every change is one transaction that also writes its entry of the history: it is there whole or not
at all, whoever is killed when. Only the holder of the lease moves a rollout upwards: each lease has
a token, and a write with a token that is not the newest is refused, however late it arrives. To
roll back needs no lease.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from torchtriage.errors import StoreError, UsageError
from torchtriage.experiment.result import Row
from torchtriage.rollout.plan import Plan
from torchtriage.rollout.result import Event, EventKind
from torchtriage.rollout.state import State, roll_back

__all__ = [
    "DEFAULT_STORE",
    "LEASE_S",
    "STORE_VARIABLE",
    "Lease",
    "RolloutStore",
    "Stored",
    "open_rollouts",
]

DEFAULT_STORE = ".torchtriage/rollouts.db"
STORE_VARIABLE = "TORCHTRIAGE_ROLLOUTS"
WAIT_S = 5.0
"""How long a writer waits for others; a transaction takes some milliseconds."""
LEASE_S = 10.0
"""A dead owner is followed after so long; until then nothing is promoted, but all can roll back."""
VERSION = 1
_TABLES = (
    """CREATE TABLE rollout (
        name TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        rows TEXT NOT NULL,
        owner TEXT NOT NULL,
        token INTEGER NOT NULL,
        boot TEXT NOT NULL,
        renewed_s REAL NOT NULL
    )""",
    """CREATE TABLE event (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL REFERENCES rollout (name),
        at_s REAL NOT NULL,
        kind TEXT NOT NULL,
        actor TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        share_before REAL NOT NULL,
        share_after REAL NOT NULL,
        reason TEXT NOT NULL,
        token INTEGER,
        rows TEXT NOT NULL
    )""",
    f"PRAGMA user_version = {VERSION}",
)
Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Lease:
    """The right to move a rollout upwards, until another one takes it."""

    owner: str
    token: int


@dataclass(frozen=True)
class Stored:
    """What is kept of a rollout beside its history.

    ``token`` grows with every change of owner. ``boot`` and ``renewed_s`` : when the owner last
    looked, by the machine's own clock.
    """

    state: State
    rows: Rows
    owner: str
    token: int
    boot: str
    renewed_s: float

    def is_held(self, boot: str, now_s: float, ttl_s: float = LEASE_S) -> bool:
        """Return whether the owner has looked in the last ``ttl_s``, by this machine's clock."""
        # a process that had to wait for the file comes with a time before the owner's
        return bool(self.owner) and self.boot == boot and abs(now_s - self.renewed_s) < ttl_s


class RolloutStore:
    """State and history of rollouts; made by :func:`open_rollouts`.

    Any number of processes of one machine may have it open, and any thread may call it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(
                self.name, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(f"store: {error}", where=self.name, hint=_hint(str(error))) from error

    def __enter__(self) -> RolloutStore:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trail: TracebackType | None,
    ) -> None:
        """Let go of the file."""
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        # closing it on the other side of a fork would undo what its owner is writing
        if os.getpid() == self._pid:
            self._connection.close()

    def names(self) -> tuple[str, ...]:
        """Return the names of all rollouts, sorted."""
        with self._told():
            rows = self._connection.execute("SELECT name FROM rollout ORDER BY name").fetchall()
        return tuple(row[0] for row in rows)

    def start(self, plan: Plan, *, actor: str, at_s: float) -> State:
        """Begin a rollout, or return the state of the one that was begun with this plan.

        Raises
        ------
        UsageError
            One of this name has another plan, and has not ended.
        StoreError
            The store cannot be read or written.
        """
        with self._transaction():
            found = self._find(plan.name)
            if found is None:
                fresh = State(plan)
                self._connection.execute(
                    "INSERT INTO rollout VALUES (?, ?, '[]', '', 0, '', 0)",
                    (plan.name, _text(fresh)),
                )
                self._note("started", State(plan, status="rolled back"), fresh, actor, at_s, "")
                return fresh
            if found.state.plan == plan:
                return found.state
            if found.state.status == "running":
                raise UsageError(
                    "expected the plan this rollout was started with, found another",
                    where=plan.name,
                    hint="choose another name, or roll it back first",
                )
            fresh = State(plan, epoch=found.state.epoch + 1)
            self._put(fresh, ())
            self._note("restarted", found.state, fresh, actor, at_s, "")
            return fresh

    def restart(self, name: str, *, actor: str, at_s: float, reason: str = "") -> State:
        """Begin a rollout that ended again, with its plan.

        Raises
        ------
        UsageError
            There is none of this name, or it is running.
        """
        with self._transaction():
            found = self._known(name)
            if found.state.status == "running":
                raise UsageError("expected a rollout that ended, found it running", where=name)
            fresh = State(found.state.plan, epoch=found.state.epoch + 1)
            self._put(fresh, ())
            self._note("restarted", found.state, fresh, actor, at_s, reason)
            return fresh

    def read(self, name: str) -> Stored:
        """Return what is kept of a rollout.

        Raises
        ------
        UsageError
            There is none of this name.
        StoreError
            The store cannot be read, or what it holds is damaged.
        """
        with self._told():
            return self._known(name)

    def history(self, name: str) -> tuple[Event, ...]:
        """Return all that happened to a rollout, oldest first."""
        with self._told():
            rows = self._connection.execute(
                "SELECT number, at_s, kind, actor, epoch, share_before, share_after, reason, token,"
                " rows FROM event WHERE name = ? ORDER BY number",
                (name,),
            ).fetchall()
            names = [one.name for one in fields(Event)]
            return tuple(
                msgspec.convert(
                    dict(zip(names, (*row, msgspec.json.decode(known)), strict=True)), Event
                )
                for *row, known in rows
            )

    def lease(
        self, name: str, owner: str, *, boot: str, now_s: float, ttl_s: float, at_s: float
    ) -> Lease | None:
        """Take or renew the lease; None where another owner has it.

        Parameters
        ----------
        boot, now_s : str and float
            Which start of the machine, and seconds since then; a lease of another start, of a
            clock that ran ahead, or one that was not renewed for ``ttl_s`` is free.
        """
        with self._transaction():
            found = self._known(name)
            held = found.is_held(boot, now_s, ttl_s)
            if held and found.owner != owner:
                return None
            if held and now_s - found.renewed_s < ttl_s / 4:
                return Lease(owner, found.token)  # to write at each look would wear a disk
            token = found.token + (found.owner != owner)
            self._connection.execute(
                "UPDATE rollout SET owner = ?, token = ?, boot = ?, renewed_s = ? WHERE name = ?",
                (owner, token, boot, now_s, name),
            )
            if found.owner not in ("", owner):
                self._note(
                    "taken over", found.state, found.state, owner, at_s, f"from {found.owner}",
                    token,
                )  # fmt: skip
            return Lease(owner, token)

    def release(self, name: str, owner: str) -> None:
        """Give the lease back where it is this owner's, so that nobody has to wait for it."""
        with self._transaction():
            self._connection.execute(
                "UPDATE rollout SET renewed_s = -1e18 WHERE name = ? AND owner = ?", (name, owner)
            )

    def move(
        self, name: str, lease: Lease, before: State, after: State, rows: Rows, *, at_s: float
    ) -> bool:
        """Write the state after a look; False where another one owns or has changed it.

        Raises
        ------
        StoreError
            The store cannot be read or written.
        """
        with self._transaction():
            found = self._known(name)
            if found.token != lease.token or found.state.epoch != before.epoch:
                return False
            if after.epoch == before.epoch:
                self._put(after, rows)
                return True
            self._put(after, ())
            kind: EventKind = "promoted"
            if after.status != "running":
                kind = "done" if after.status == "done" else "rolled back"
            reason = after.waiting if kind == "rolled back" else ""
            self._note(kind, before, after, lease.owner, at_s, reason, lease.token, rows)
            return True

    def roll_back(
        self, name: str, reason: str, *, actor: str, at_s: float, rows: Rows = ()
    ) -> State:
        """Send nothing to the candidate any more; needs no lease, and may come twice.

        Raises
        ------
        UsageError
            There is none of this name.
        """
        with self._transaction():
            found = self._known(name)
            after = roll_back(found.state, reason)
            if after is not found.state:
                self._put(after, ())
                known = rows or found.rows
                self._note("rolled back", found.state, after, actor, at_s, reason, None, known)
            return after

    def promote(self, name: str, reason: str, *, actor: str, at_s: float) -> State:
        """Move up by one step because a person says so, whatever the evidence.

        Raises
        ------
        UsageError
            There is none of this name, or it has ended.
        """
        with self._transaction():
            found = self._known(name)
            state = found.state
            if state.status != "running":
                raise UsageError(f"expected a running rollout, found it {state.status}", where=name)
            last = state.stage == len(state.plan.steps) - 1
            after = replace(
                state,
                status="done" if last else "running",
                stage=state.stage + (not last),
                epoch=state.epoch + 1,
                watched_s=0.0,
                last_number=-1,
                waiting="" if last else "nothing seen yet",
            )
            self._put(after, ())
            kind: EventKind = "done" if last else "promoted"
            self._note(kind, state, after, actor, at_s, reason, None, found.rows)
            return after

    def _put(self, state: State, rows: Rows) -> None:
        self._connection.execute(
            "UPDATE rollout SET state = ?, rows = ? WHERE name = ?",
            (_text(state), _text(rows), state.plan.name),
        )

    def _note(
        self,
        kind: EventKind,
        before: State,
        after: State,
        actor: str,
        at_s: float,
        reason: str,
        token: int | None = None,
        rows: Rows = (),
    ) -> None:
        self._connection.execute(
            "INSERT INTO event (name, at_s, kind, actor, epoch, share_before, share_after, reason,"
            " token, rows) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                after.plan.name, at_s, kind, actor, after.epoch, before.share, after.share, reason,
                token, _text(rows),
            ),
        )  # fmt: skip

    def _find(self, name: str) -> Stored | None:
        row = self._connection.execute(
            "SELECT state, rows, owner, token, boot, renewed_s FROM rollout WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        return Stored(
            msgspec.json.decode(row[0], type=State),
            msgspec.json.decode(row[1], type=Rows),
            *msgspec.convert(row[2:], tuple[str, int, str, float]),
        )

    def _known(self, name: str) -> Stored:
        found = self._find(name)
        if found is None:
            rows = self._connection.execute("SELECT name FROM rollout ORDER BY name").fetchall()
            raise UsageError(
                f"no rollout is called {name!r}",
                where=self.name,
                hint=f"there are {', '.join(row[0] for row in rows[:8])}" if rows else "",
            )
        return found

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told():
            # a lock taken at once is waited for; one taken half way fails where two want it
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # a commit fails too, on a full disk or a reader that stands still; left open, the
                # transaction would lock everybody out. Some failures have ended it themselves.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            # a connection must not be used, nor closed, on the other side of a fork
            self._inherited = self._connection
            self._begin()
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise StoreError(f"store: {error}", where=self.name, hint=_hint(str(error))) from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreError(
                f"what is stored is damaged: {error}", where=self.name, hint="choose another file"
            ) from error


def open_rollouts(where: str | Path | None = None, *, create: bool = True) -> RolloutStore:
    """Open the store of rollouts.

    Parameters
    ----------
    where : path, optional
        An SQLite file on a disk of this machine; without one the variable
        ``TORCHTRIAGE_ROLLOUTS``, else ``.torchtriage/rollouts.db``. ``:memory:`` is gone with the
        process.
    create : bool
        Whether to make one where there is none.

    Raises
    ------
    StoreError
        It cannot be opened, or is something else.
    """
    place = str(where or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)
    path = Path(place)
    if place != ":memory:":
        try:
            if not create and not path.exists():
                raise StoreError(
                    "no rollouts are stored here yet",
                    where=place,
                    hint="--store or TORCHTRIAGE_ROLLOUTS names another place",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            is_folder = path.is_dir()
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot be opened: {error}", where=place) from error
        if is_folder:
            raise StoreError("expected a file, found a folder", where=place)
    store = RolloutStore(place)
    try:
        _prepare(store, store._connection)
    except BaseException:
        store.close()
        raise
    return store


def _prepare(store: RolloutStore, connection: sqlite3.Connection) -> None:
    with store._told():
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return
    with store._transaction():
        # others may have made the tables while this one waited for its turn
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise StoreError(
                f"expected a store of version {VERSION}, found {version}",
                where=store.name,
                hint="it was written by a newer torchtriage: pip install -U torchtriage",
            )
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        if version == 0 and tables:
            raise StoreError(
                f"expected an empty file or a store of rollouts, found a table {tables[0][0]!r}",
                where=store.name,
                hint="choose another file",
            )
        if version == 0:
            for statement in _TABLES:
                connection.execute(statement)


def _hint(said: str) -> str:
    if "not a database" in said or "malformed" in said:
        return "it is no store, or is damaged: choose another file"
    if "locked" in said:
        return "another process has been writing for too long"
    return "--store or TORCHTRIAGE_ROLLOUTS names another place"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
