"""What is said about two runs of one workload: the JSON document of ``torchtriage compare``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchtriage.core.finding import Cost, Note

COMPARISON_SCHEMA = "torchtriage-comparison/1"


@dataclass(frozen=True)
class TimeChange:
    """One amount before and after, ns per step (or window).

    ``low_ns``/``high_ns`` : 95 % interval of the change from step to step; None where a side has
    too few steps. ``told`` : beyond this interval and larger than ``bar_ns``, what two recordings of one program
    differ by; only then is it called a change.
    """

    before_ns: int
    after_ns: int
    delta_ns: int
    low_ns: int | None
    high_ns: int | None
    told: bool
    bar_ns: int = 0


@dataclass(frozen=True)
class ChangePart:
    """One kernel, operator or function inside a cause, ns and number per step on each side."""

    name: str
    before_ns: int
    after_ns: int
    n_before: float
    n_after: float


@dataclass(frozen=True)
class ChangeCause:
    """One share of the change in step time; all causes add up to it exactly.

    ``time_class`` : which time of the step (a field of :class:`TimeClasses` without ``_ns``), or
    ``host`` for the main thread's time of a run without a device. ``region`` : ``DataLoader``, an
    optimizer's method, ``backward``, ``wait`` (idle time that a blocking call caused), ``Python``
    (no operator open), ``the rest`` (idle time that nothing follows), or empty. ``what`` : the
    outermost operators before; ``what_after`` : those that took their place, the same ones unless
    ``kind`` is ``replaced``. ``of_host`` : the profiler's own slow-down is in it.
    """

    kind: Literal["changed", "replaced", "went", "came"]
    time_class: str
    region: str
    mark: str
    what: tuple[str, ...]
    what_after: tuple[str, ...]
    change: TimeChange
    n_before: float
    n_after: float
    parts: tuple[ChangePart, ...]
    of_host: bool
    label: str
    sentence: str


@dataclass(frozen=True)
class Unlike:
    """Why two runs must not be compared: a code, a sentence, what was found on each side."""

    code: Literal[
        "unusable", "device", "ranks", "mode", "model", "shapes", "steps", "cold-start", "profiler", "missing-rows"
    ]
    message: str
    before: str
    after: str
    fix: str


@dataclass(frozen=True)
class FindingChange:
    """A finding that went, came or stayed, with its cost on each side where it was found.

    ``unchecked`` : found on one side, and the other could not be checked for it.
    """

    status: Literal["went", "came", "unchecked", "stayed"]
    code: str
    title: str
    place: str
    before: Cost | None
    after: Cost | None


@dataclass(frozen=True)
class Promise:
    """What the findings that went had promised to save, against what was saved of what they are about.

    ``measured_ms`` is the time of their kernels, gaps and waits before minus after, or the step's where that of one of
    them is not known (a late rank's), ``measured_low_ms`` and ``measured_high_ms`` its interval, ``step_ms`` what the
    whole step saved. ``checked`` : that time has changed by
    more than the noise; else nothing is said of the promise. ``holds`` : the measured saving lies between ``low_ms``
    and ``high_ms``; ``holds_within_noise`` : its interval touches that range.
    """

    codes: tuple[str, ...]
    low_ms: float
    high_ms: float
    measured_ms: float
    measured_low_ms: float | None
    measured_high_ms: float | None
    holds: bool
    holds_within_noise: bool
    step_ms: float
    checked: bool = True

    @property
    def outcome(
        self,
    ) -> Literal["kept", "kept within the noise", "more than promised", "less than promised", "not checked"]:
        """What came of it, in the words of every report."""
        if not self.checked:
            return "not checked"
        if self.holds:
            return "kept"
        if self.holds_within_noise:
            return "kept within the noise"
        return "more than promised" if self.measured_ms > self.high_ms else "less than promised"


@dataclass(frozen=True)
class RankChange:
    """The mean step of one rank before and after."""

    rank: int
    change: TimeChange


@dataclass(frozen=True)
class ComparedRun:
    """One side of a comparison."""

    path: str
    size_bytes: int
    n_events: int
    device: str
    per: Literal["step", "window"]
    mean_ns: int
    n_steps: int
    """Steady steps, or 1 for a window."""
    selection: str = ""
    """The part of it that was compared, as its reader chose it; empty for all."""


@dataclass(frozen=True)
class Comparison:
    """Everything that is said about two runs of one workload.

    ``causes`` come largest change first and add up to ``total`` to the nanosecond; so do
    ``classes``. Without ``comparable`` there are only ``reasons``, no figures.
    """

    schema: str
    version: str
    verdict: tuple[str, str, str]
    comparable: bool
    reasons: tuple[Unlike, ...]
    limits: tuple[Note, ...]
    before: ComparedRun
    after: ComparedRun
    total: TimeChange | None
    classes: dict[str, TimeChange]
    causes: tuple[ChangeCause, ...]
    findings: tuple[FindingChange, ...]
    promise: Promise | None
    split: dict[str, TimeChange] = field(default_factory=dict)
    """Between two kinds of device: ``host``, ``kernels`` of the same operators, operators ``alone``, other ``idle``."""
    ranks: tuple[RankChange, ...] = ()
    """Of two recordings of a job: each rank's own step. The figures above are then means over the ranks."""
