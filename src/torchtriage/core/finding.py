"""The one currency: a problem, where it is, what it costs and how to fix it, whatever was analysed.

These dataclasses are part of every JSON output: field names here are field names there. Times are ``_ns`` integers on
the trace's own clock, or ``_ms`` floats where people compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

Phase = Literal["prefill", "mixed", "decode", "idle", "unknown"]
"""What a step of an inference engine does for its requests."""
Certainty = Literal["certain", "likely", "hint"]
Severity = Literal["high", "medium", "low", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
Quote = Callable[[str, str, int], str]
"""Gives the text of one line of a file's function, or nothing: reports never read files."""


@dataclass(frozen=True)
class Calibration:
    """How an interval was made to cover what fixes really save.

    At least ``coverage`` (0-1) of measured savings lay inside such intervals of this ``family``. ``share_low`` and
    ``share_high`` are its ends as first worked out, before they were moved.
    """

    family: Literal["replay", "looks"]
    coverage: float
    share_low: float
    share_high: float


@dataclass(frozen=True)
class Cost:
    """What fixing one finding gives back: an interval with its denominator.

    ``low_ms``/``high_ms`` are per ``per``; ``of_ms`` is the wall time of one ``per`` (the mean steady step, the window,
    or the whole run), so ``share_low = low_ms / of_ms``. ``naive_ms`` is the plain sum of durations, for contrast.
    ``basis`` says how sure the arithmetic is, ``method`` how it was done.
    """

    low_ms: float
    high_ms: float
    per: Literal["step", "window", "run"]
    of_ms: float
    share_low: float
    share_high: float
    naive_ms: float
    basis: Literal["measured", "modelled", "bounded"]
    method: str
    grade: Literal["A", "B", "C"]
    together_ms: float | None = None
    """Saving with all findings ranked above it fixed too, by one replay; None without replay."""
    calibration: Calibration | None = None
    """None where no measured fixes tell how such intervals cover."""

    @classmethod
    def of(
        cls,
        low_ms: float,
        high_ms: float,
        of_ms: float,
        naive_ms: float,
        *,
        basis: Literal["measured", "modelled", "bounded"],
        method: str,
        grade: Literal["A", "B", "C"],
        per: Literal["step", "window", "run"] = "step",
    ) -> Cost:
        """Return a saving of ``low_ms`` to ``high_ms`` of ``of_ms``, rounded to nanoseconds."""
        low, high, of, naive = (round(value, 6) for value in (low_ms, high_ms, of_ms, naive_ms))
        shares = round(low_ms / of_ms, 6), round(high_ms / of_ms, 6)
        return cls(low, high, per, of, *shares, naive, basis, method, grade)

    def saving(self, low_ms: float, high_ms: float, *, of_ms: float | None = None) -> Cost:
        """Return it with another saving, of ``of_ms`` where given; the shares of a time of 0 are 0."""
        whole = self.of_ms if of_ms is None else of_ms
        low, high, of = (round(value, 6) for value in (low_ms, high_ms, whole))
        share_low, share_high = (round(value / whole, 6) if whole else 0.0 for value in (low_ms, high_ms))
        return replace(self, low_ms=low, high_ms=high, of_ms=of, share_low=share_low, share_high=share_high)


@dataclass(frozen=True)
class Frame:
    """A Python frame, and the line of the user's code it is at.

    ``line`` is where ``function`` calls ``called`` when ``exact``, else its first line: the
    profiler records ``co_firstlineno`` for frames entered during the recording (kineto#630).
    ``called`` is the short name of what runs below this frame: ``item``, ``step``, a module's
    class, an operator; empty where the frame itself is meant. ``lines`` : with the source at hand,
    the lines the call
    can have come from, at most 5; one of them when ``exact``.
    """

    file: str
    line: int
    function: str
    exact: bool = False
    called: str = ""
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Example:
    """One occurrence, addressed so that a viewer can jump to it."""

    event: int
    name: str
    start_ns: int
    dur_ns: int
    pid: str
    tid: str


@dataclass(frozen=True)
class Place:
    """Where a finding lives.

    ``intervals_ns`` are the costliest spans on the device's (or thread's) clock, at most 200.
    """

    steps: tuple[int, ...] = ()
    intervals_ns: tuple[tuple[int, int], ...] = ()
    lane: str = ""
    ops: tuple[str, ...] = ()
    frame: Frame | None = None
    stack: tuple[Frame, ...] = ()
    module: str = ""
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Fix:
    """What to change: a sentence, a line of code, and where to read more."""

    text: str
    code: str = ""
    link: str = ""


@dataclass(frozen=True)
class RankSpread:
    """On which ranks of a job a finding was made, and what each of them alone would save.

    ``low_ms``/``high_ms`` : the smallest and the largest middle of the ranks' savings, per step.
    ``ranks`` : those with the finding, at most 64.
    """

    n_with: int
    n_ranks: int
    low_ms: float
    high_ms: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """One problem, where it is, what it costs, and how to fix it."""

    code: str
    name: str
    family: str
    title: str
    severity: Severity
    certainty: Certainty
    message: str
    place: Place
    cost: Cost | None
    evidence: dict[str, Any]
    fix: Fix
    idle_ns: int = 0
    """Idle time of the main device in the judged steps that this finding explains; each nanosecond has one owner."""
    n_events: int = 0
    also_explains: tuple[str, ...] = ()
    ranks: RankSpread | None = None
    """In a job of several ranks: where it was found. None in the result of one trace."""

    @property
    def saves(self) -> bool:
        """Whether a saving in time is claimed; it may be 0 at its low end."""
        return self.cost is not None and self.cost.high_ms > 0

    @property
    def grave(self) -> bool:
        """Whether it is of high severity without a saving: what was recorded is not the program, or it failed."""
        return self.severity == "high" and not self.saves


RESOLVED = 0.01
"""Share of the step below which no measurement tells a saving from none: then what may be saved decides."""


def rank_order(finding: Finding, part: float = 1.0) -> tuple[Any, ...]:
    """Return the key that sorts findings: by the share surely saved, then possibly saved; without a saving last.

    ``part`` : what the finding's step or run is of the time by which all are ranked.
    What is grave without a saving goes first: what the others say depends on it.
    """
    low = high = first = 0.0
    cost = finding.cost
    if cost is not None and cost.of_ms > 0:
        low, high = cost.low_ms / cost.of_ms, cost.high_ms / cost.of_ms
        # of savings within the noise, which are all low ends of 0, the surest is still the first
        first = cost.calibration.share_low if cost.calibration is not None else low
        low, first = (share * (share >= RESOLVED) * part for share in (low, first))
        high *= part
    severity = SEVERITIES.index(finding.severity)
    return (not finding.grave, high <= 0, -low, -first, -high, severity, finding.code, finding.message)


@dataclass(frozen=True)
class NotChecked:
    """A pattern that was not judged on this recording, and how to record so that it can.

    ``missing`` and ``how_to_record`` : empty for one that its reader left out.
    """

    code: str
    name: str
    missing: tuple[str, ...]
    how_to_record: str

    @property
    def left_out(self) -> bool:
        """Whether its reader left it out, by ``only`` or ``skip``."""
        return not self.missing


@dataclass(frozen=True)
class Crash:
    """A pattern that failed; the others still ran."""

    code: str
    error: str


@dataclass(frozen=True)
class Note:
    """One fact about the recording's quality.

    ``level`` is ``refuse`` when no verdict can be given, ``warn`` when numbers are limited, else ``info``. ``fix`` says
    how to record better.
    """

    code: str
    level: Literal["refuse", "warn", "info"]
    message: str
    fix: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeClasses:
    """One device's window (or step) split into disjoint classes; the fields add up to ``wall_ns``.

    ``idle_host_late_ns``: the next kernel's launch came after the device had run dry.
    ``idle_queued_ns``: it was queued in time (dependency, other stream, other rank, gaps <= 2 us).
    ``idle_unknown_ns``: no launch recorded for the next kernel, or nothing follows.
    """

    wall_ns: int
    compute_ns: int
    comm_only_ns: int
    copy_only_ns: int
    idle_host_late_ns: int
    idle_queued_ns: int
    idle_unknown_ns: int
