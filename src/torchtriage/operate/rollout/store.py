"""Where rollouts are stored: one SQLite file with the state, its owner, and the history.

Every change is one transaction that also writes its entry of the history: it is there whole or not at all, whoever is
killed when. Only the holder of the lease moves a rollout upwards: each lease has a token, and a write with a token
that is not the newest is refused, however late it arrives. To roll back needs no lease.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.core.database import Database, Execute, Schema, open_sqlite, undamaged
from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.experiment.result import ExperimentRow
from torchtriage.operate.rollout.result import EventKind, RolloutEvent
from torchtriage.operate.rollout.state import RolloutPlan, RolloutState, climb, roll_back

__all__ = ["DEFAULT_STORE", "LEASE_S", "Lease", "RolloutStore", "boot_id", "boot_seconds", "open_rollouts"]

DEFAULT_STORE = ".torchtriage/rollouts.db"
STORE_VARIABLE = "TORCHTRIAGE_ROLLOUTS"
WAIT_S = 5.0  # how long a writer waits for others; a transaction takes some milliseconds
LEASE_S = 10.0  # a dead owner is followed after so long; until then nothing is promoted, but all can roll back
_ROLLOUT = """CREATE TABLE rollout (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, rows TEXT NOT NULL,
    owner TEXT NOT NULL, token INTEGER NOT NULL, boot TEXT NOT NULL, renewed_s REAL NOT NULL
)"""
_EVENT = """CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL REFERENCES rollout (name),
    at_s REAL NOT NULL, kind TEXT NOT NULL, actor TEXT NOT NULL, epoch INTEGER NOT NULL,
    share_before REAL NOT NULL, share_after REAL NOT NULL, reason TEXT NOT NULL, token INTEGER, rows TEXT NOT NULL
)"""
_SCHEMA = Schema(((_ROLLOUT, _EVENT),))
Rows = tuple[ExperimentRow, ...]


@dataclass(frozen=True)
class Lease:
    """The right to move a rollout upwards, until another one takes it."""

    owner: str
    token: int


@dataclass(frozen=True)
class StoredRollout:
    """A rollout as it is stored beside its history.

    ``token`` grows with every change of owner. ``boot`` and ``renewed_s`` : when the owner last
    looked, by the machine's own clock.
    """

    state: RolloutState
    rows: Rows
    owner: str
    token: int
    boot: str
    renewed_s: float

    def is_held(self, boot: str, now_s: float, ttl_s: float = LEASE_S) -> bool:
        """Return whether the owner has looked in the last ``ttl_s``, by this machine's clock."""
        # a process that had to wait for the file comes with a time before the owner's
        return bool(self.owner) and self.boot == boot and abs(now_s - self.renewed_s) < ttl_s


class RolloutStore(AbstractContextManager["RolloutStore"]):
    """State and history of rollouts; made by :func:`open_rollouts`.

    Any number of processes of one machine may have it open, and any thread may call it. All of it raises
    ``StoreError`` where the file cannot be read or written, and ``UsageError`` where no rollout has the name.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def names(self) -> tuple[str, ...]:
        """Return the names of all rollouts, sorted."""
        return tuple(row[0] for row in self._database.rows("SELECT name FROM rollout ORDER BY name"))

    def start(self, plan: RolloutPlan, *, actor: str, at_s: float) -> RolloutState:
        """Begin a rollout, or return the state of the one with this plan; ``UsageError`` where another runs."""
        with self._database.transaction() as execute:
            stored = self._find(plan.name)
            if stored is None:
                fresh = RolloutState(plan)
                execute("INSERT INTO rollout VALUES (?, ?, '[]', '', 0, '', 0)", [(plan.name, _text(fresh))])
                self._note(execute, "started", RolloutState(plan, status="rolled back"), fresh, actor, at_s, "")
                return fresh
            if stored.state.plan == plan:
                return stored.state
            if stored.state.status == "running":
                raise UsageError(
                    "expected the plan this rollout was started with, found another",
                    where=plan.name,
                    hint="choose another name, or roll it back first",
                )
            return self._restart(execute, stored, plan, actor, at_s, "")

    def restart(self, name: str, *, actor: str, at_s: float, reason: str = "") -> RolloutState:
        """Begin a rollout that ended again, with its plan; ``UsageError`` where it is running."""
        with self._database.transaction() as execute:
            stored = self.read(name)
            if stored.state.status == "running":
                raise UsageError("expected a rollout that ended, found it running", where=name)
            return self._restart(execute, stored, stored.state.plan, actor, at_s, reason)

    def _restart(
        self, execute: Execute, stored: StoredRollout, plan: RolloutPlan, actor: str, at_s: float, reason: str
    ) -> RolloutState:
        fresh = RolloutState(plan, epoch=stored.state.epoch + 1)
        self._put(execute, fresh, ())
        self._note(execute, "restarted", stored.state, fresh, actor, at_s, reason)
        return fresh

    def read(self, name: str) -> StoredRollout:
        """Return a rollout as it is stored; ``StoreError`` also where that is damaged."""
        stored = self._find(name)
        if stored is None:
            names = ", ".join(self.names()[:8])
            raise UsageError(
                f"no rollout is called {name!r}", where=self.name, hint=f"there are {names}" if names else ""
            )
        return stored

    def history(self, name: str) -> tuple[RolloutEvent, ...]:
        """Return all that happened to a rollout, oldest first."""
        rows = self._database.rows(
            "SELECT number, at_s, kind, actor, epoch, share_before, share_after, reason, token,"
            " rows FROM event WHERE name = ? ORDER BY number",
            (name,),
        )
        names = [field.name for field in fields(RolloutEvent)]
        with self._undamaged():
            return tuple(
                msgspec.convert(dict(zip(names, (*row, msgspec.json.decode(text)), strict=True)), RolloutEvent)
                for *row, text in rows
            )

    def lease(self, name: str, owner: str, *, boot: str, now_s: float, ttl_s: float, at_s: float) -> Lease | None:
        """Take or renew the lease; None where another owner has it.

        ``boot``, ``now_s`` : which start of the machine, and seconds since then; a lease of another start, of
        a clock that ran ahead, or one that was not renewed for ``ttl_s`` is free.
        """
        with self._database.transaction() as execute:
            stored = self.read(name)
            held = stored.is_held(boot, now_s, ttl_s)
            if held and stored.owner != owner:
                return None
            if held and now_s - stored.renewed_s < ttl_s / 4:
                return Lease(owner, stored.token)  # to write at each look would wear a disk
            token = stored.token + (stored.owner != owner)
            execute(
                "UPDATE rollout SET owner = ?, token = ?, boot = ?, renewed_s = ? WHERE name = ?",
                [(owner, token, boot, now_s, name)],
            )
            if stored.owner not in ("", owner):
                self._note(
                    execute, "taken over", stored.state, stored.state, owner, at_s, f"from {stored.owner}", token
                )
            return Lease(owner, token)

    def release(self, name: str, owner: str) -> None:
        """Release the lease where it is this owner's, so that nobody has to wait for it."""
        with self._database.transaction() as execute:
            execute("UPDATE rollout SET renewed_s = -1e18 WHERE name = ? AND owner = ?", [(name, owner)])

    def move(
        self, name: str, lease: Lease, before: RolloutState, after: RolloutState, rows: Rows, *, at_s: float
    ) -> bool:
        """Write the state after a look; False where another one owns or has changed it."""
        with self._database.transaction() as execute:
            stored = self.read(name)
            if stored.token != lease.token or stored.state.epoch != before.epoch:
                return False
            if after.epoch == before.epoch:
                self._put(execute, after, rows)
                return True
            self._put(execute, after, ())
            kind: EventKind = "promoted" if after.status == "running" else after.status
            reason = after.waiting if kind == "rolled back" else ""
            self._note(execute, kind, before, after, lease.owner, at_s, reason, lease.token, rows)
            return True

    def roll_back(self, name: str, reason: str, *, actor: str, at_s: float, rows: Rows = ()) -> RolloutState:
        """Send nothing to the candidate any more; needs no lease, and may come twice."""
        with self._database.transaction() as execute:
            stored = self.read(name)
            after = roll_back(stored.state, reason)
            if after is not stored.state:
                self._put(execute, after, ())
                rows = rows or stored.rows
                self._note(execute, "rolled back", stored.state, after, actor, at_s, reason, None, rows)
            return after

    def promote(self, name: str, reason: str, *, actor: str, at_s: float) -> RolloutState:
        """Move up by one step because a person says so, whatever the evidence; not once it has ended."""
        with self._database.transaction() as execute:
            stored = self.read(name)
            state = stored.state
            if state.status != "running":
                raise UsageError(f"expected a running rollout, found it {state.status}", where=name)
            after = climb(state)
            self._put(execute, after, ())
            kind: EventKind = "promoted" if after.status == "running" else after.status
            self._note(execute, kind, state, after, actor, at_s, reason, None, stored.rows)
            return after

    def _put(self, execute: Execute, state: RolloutState, rows: Rows) -> None:
        execute("UPDATE rollout SET state = ?, rows = ? WHERE name = ?", [(_text(state), _text(rows), state.plan.name)])

    def _note(
        self,
        execute: Execute,
        kind: EventKind,
        before: RolloutState,
        after: RolloutState,
        actor: str,
        at_s: float,
        reason: str,
        token: int | None = None,
        rows: Rows = (),
    ) -> None:
        execute(
            "INSERT INTO event (name, at_s, kind, actor, epoch, share_before, share_after, reason,"
            " token, rows) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(after.plan.name, at_s, kind, actor, after.epoch, before.share, after.share, reason, token, _text(rows))],
        )

    def _find(self, name: str) -> StoredRollout | None:
        query = "SELECT state, rows, owner, token, boot, renewed_s FROM rollout WHERE name = ?"
        for state, rows, *lease in self._database.rows(query, (name,)):
            with self._undamaged():
                return StoredRollout(
                    msgspec.json.decode(state, type=RolloutState),
                    msgspec.json.decode(rows, type=Rows),
                    *msgspec.convert(lease, tuple[str, int, str, float]),
                )
        return None

    def _undamaged(self) -> AbstractContextManager[None]:
        return undamaged(self.name, "what is stored", "choose another file")


def open_rollouts(where: str | Path | None = None, *, create: bool = True) -> RolloutStore:
    """Open the store of rollouts.

    ``where`` : an SQLite file on a disk of this machine; without one the variable ``TORCHTRIAGE_ROLLOUTS``,
    else ``.torchtriage/rollouts.db``. ``:memory:`` is gone with the process.
    ``create`` : whether to make one where there is none.
    Raises ``StoreError``: it cannot be opened, or is something else.
    """
    place = str(where or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)
    hint = "--store or TORCHTRIAGE_ROLLOUTS names another place"
    absent = None if create else StoreError("no rollouts are stored here yet", where=place, hint=hint)
    database = open_sqlite(place, wait_s=WAIT_S, hint=hint, absent=None if place == ":memory:" else absent)
    try:
        _SCHEMA.migrate(database)
    except BaseException:
        database.close()
        raise
    return RolloutStore(database)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# -- the machine's own clock, which nobody sets ---------------------------------------------------

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_seconds() -> float:
    """Return seconds since the machine's start, sleep included, which no clock setting changes."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


@cache
def boot_id() -> str:
    """Return which start of the machine this is; empty where the system does not report it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
