"""What a ladder says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Check = Literal["none", "not checked", "passed", "failed"]


@dataclass(frozen=True)
class LadderEntry:
    """One line of the audit log.

    ``at_s`` : the wall clock's seconds since the epoch, only to read. ``kind`` : ``switch``,
    ``would switch`` (dry run), ``refused`` (by dwell, budget or check), ``hold`` and ``release``
    (by a person), ``probe``, ``give up``, ``check`` (of a mode), ``lost`` and ``found`` (the
    store), ``failed`` (an alarm).
    """

    at_s: float
    ladder: str
    kind: str
    before: str
    after: str
    why: str
    actor: str


@dataclass(frozen=True)
class ModeStatus:
    """One mode; ``check`` is ``none`` for one that needs no check."""

    name: str
    check: Check
    why: str
    n_calls: int
    n_late: int
    n_failed: int


@dataclass(frozen=True)
class LadderStatus:
    """Where a ladder stands, in this worker.

    ``share`` : of calls that the better mode answers on the way back. ``connected`` : whether the store answered last
    time. ``dry_run`` : the level is what it would
    be; calls go to the first mode. ``n_given_up`` : calls that timed out and still run.
    """

    name: str
    level: int
    mode: str
    why: str
    held: bool
    dry_run: bool
    connected: bool
    share: float
    n_given_up: int
    n_fallback: int
    modes: tuple[ModeStatus, ...]
