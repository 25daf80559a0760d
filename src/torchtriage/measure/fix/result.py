"""What came of the fixes on trial: the JSON document of ``torchtriage fix``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.core.finding import Cost, Note
from torchtriage.measure.verify.result import Verification

FIX_SCHEMA = "torchtriage-fix/1"

AttemptOutcome = Literal[
    "in the patch",
    "faster alone",
    "no difference",
    "slower",
    "undecided",
    "results differ",
    "not compared",
    "not allowed",
    "failed",
    "not tried",
    "not needed",
    "dropped",
]


@dataclass(frozen=True)
class SideEffects:
    """What the program does beside computing, as seen in the run that was recorded.

    ``written`` : files in the copy of the project, which were put back. ``outside`` : files elsewhere, which were not;
    ``connections`` and ``programs`` : addresses and commands, which were not stopped.
    """

    written: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One change on trial.

    ``file``, ``line`` : of the finding, in the project. ``promise`` : what a fix saves by the finding. ``edit`` : what
    proposed it, ``model`` for a language model. ``changes`` : how results change on purpose, empty where they must
    stay. ``outcome`` : ``faster alone`` is in no patch: another change for the same finding saves more, it adds nothing
    to the others, or does not fit with them; ``not compared`` is faster, but nothing shows that results stay;
    ``not allowed`` is faster, but changes something on purpose;
    ``not needed`` was not tried, as another change for the same finding keeps its promise.
    ``dropped`` : a model's answer that is no change that can be tried.
    ``reason`` : why it was not tried, was dropped, failed, or is not in the patch. ``trial`` : the measurement, None
    without one.
    """

    code: str
    name: str
    file: str
    line: int
    promise: Cost | None
    edit: str
    what: str
    changes: str
    diff: str
    outcome: AttemptOutcome
    reason: str = ""
    trial: Verification | None = None
    start_up_ms: float | None = None
    """What it adds to the start of a run (compiling, starting workers); None where it is not clear of the noise."""


@dataclass(frozen=True)
class Unedited:
    """A finding for which no change is known, so that nothing was tried."""

    code: str
    name: str
    file: str
    line: int
    promise: Cost | None


@dataclass(frozen=True)
class FixResult:
    """Fixes for the findings of one program, proved against the program as it was.

    ``attempts`` : in the order of the findings. ``patch`` : a unified diff of the project with all that is in it,
    empty where nothing is. ``together`` : the measurement of the whole patch. ``applied`` : files that were written.
    """

    schema: str
    version: str
    verdict: tuple[str, ...]
    command: str
    project: str
    attempts: tuple[Attempt, ...]
    unedited: tuple[Unedited, ...]
    patch: str
    together: Verification | None
    effects: SideEffects
    applied: tuple[str, ...]
    notes: tuple[Note, ...]
