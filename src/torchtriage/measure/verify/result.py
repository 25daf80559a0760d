"""What a trial of a fix found: the JSON document of ``torchtriage verify``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.diagnose.compare.result import FindingChange, Promise

VERIFICATION_SCHEMA = "torchtriage-verification/1"

Outcome = Literal["faster", "no difference", "slower", "results differ", "undecided"]


@dataclass(frozen=True)
class Round:
    """One run of each program, one right after the other: mean time per step (or of the run)."""

    before_ms: float
    after_ms: float
    first: Literal["before", "after"]


@dataclass(frozen=True)
class PrintedAgreement:
    """Whether two programs print the same numbers, but for rounding.

    ``n`` : how many numbers agree. ``first`` : where they differ first, such as ``line 3`` of what the program before
    prints. ``reason`` : the numbers that differ, or why nothing is said.
    """

    status: Literal["same", "differ", "not compared"]
    n: int
    first: str = ""
    reason: str = ""


@dataclass(frozen=True)
class ResultAgreement:
    """Whether two programs compute the same at their start.

    ``of`` : gradients and updates of the first steps, the first losses where no optimizer steps, or the first outputs
    where nothing trains; what they print, where none of these could be compared or where that alone differs.
    ``worst`` : the largest difference, as a share of the larger size. ``own`` : the same between runs of one program.
    ``n`` : how many gradients, updates, losses, outputs or printed numbers were compared. ``first`` : where they differ
    first, such as ``update 1``. ``printed`` : what the numbers they print say, whatever the rest does.
    """

    of: Literal["steps", "losses", "outputs", "printed", "nothing"]
    status: Literal["same", "within its own spread", "differ", "not compared"]
    n: int
    worst: float | None
    own: float | None
    reason: str = ""
    first: str = ""
    printed: PrintedAgreement = PrintedAgreement("not compared", 0)


@dataclass(frozen=True)
class Verification:
    """A fix on trial: two programs run in turns without the profiler, and what was promised.

    ``ratio`` is after over before, the rounds' geometric mean; ``saved_ms`` follows from it and the
    mean of before. ``low``/``high`` hold the truth in 95 % of trials. ``told`` : the ratio's
    interval leaves out 1, and what was timed can be compared. ``outcome`` : ``no difference`` where the interval lies
    within 2 % of 1, ``undecided`` where it holds 1 and reaches further, or where neither steps nor runs can be
    compared. ``allowed`` : other results were allowed.
    """

    schema: str
    version: str
    verdict: tuple[str, str, str]
    outcome: Outcome
    allowed: bool
    before: str
    after: str
    per: Literal["step", "run"]
    before_ms: float
    after_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    saved_ms: float
    saved_low_ms: float
    saved_high_ms: float
    told: bool
    rounds: tuple[Round, ...]
    n_steps: int
    """Timed steps of the program before, over all rounds."""
    answers: ResultAgreement
    promise: Promise | None
    findings: tuple[FindingChange, ...]
    notes: tuple[Note, ...]
    n_steps_after: int | None = None
    """Those of the program after; None in a document that counted the mean of both."""
