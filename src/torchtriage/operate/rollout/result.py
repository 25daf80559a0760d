"""What a rollout says: the dataclasses are the JSON document ``torchtriage-rollout/1``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.core.version import __version__
from torchtriage.operate.experiment.result import ExperimentRow
from torchtriage.operate.rollout.state import Status

ROLLOUT_SCHEMA = "torchtriage-rollout/1"

EventKind = Literal["started", "promoted", "rolled back", "done", "taken over", "restarted"]


@dataclass(frozen=True)
class RolloutEvent:
    """One entry of the history; never changed, never removed.

    ``at_s`` : the wall clock's seconds since the epoch, for people to read: nothing is decided by
    it. ``number`` gives the order. ``actor`` : the controller or the person. ``token`` : of the
    owner's lease, None for what needs none. ``rows`` : what was known of the stage that ended.
    """

    number: int
    at_s: float
    kind: EventKind
    actor: str
    epoch: int
    share_before: float
    share_after: float
    reason: str
    token: int | None = None
    rows: tuple[ExperimentRow, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One step of the plan, and whether it is behind, now, or ahead."""

    share: float
    state: Literal["passed", "now", "ahead", "left"]


@dataclass(frozen=True)
class RolloutResult:
    """Where a rollout stands, and all that happened to it.

    ``owner`` : who holds the lease, empty where nobody watches. ``rows`` : of the stage that runs,
    as far as the store knows.
    """

    name: str
    status: Status
    share: float
    verdict: tuple[str, ...]
    control: str
    candidate: str
    stages: tuple[Stage, ...]
    waiting: str
    owner: str
    watched_s: float
    events: tuple[RolloutEvent, ...]
    rows: tuple[ExperimentRow, ...] = ()
    notes: tuple[Note, ...] = ()
    version: str = __version__
    schema: str = field(default=ROLLOUT_SCHEMA, kw_only=True)
