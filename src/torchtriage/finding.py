"""The one currency: what a judgement looks like, whatever it judged.

These dataclasses are the JSON output: field names here are field names there, and the published
JSON Schema is generated from them (``report/json_report.py``). Times are ``_ns`` integers on the
trace's own clock, or ``_ms`` floats where a person compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "SCHEMA",
    "Certainty",
    "Cost",
    "Crash",
    "DeviceSummary",
    "Example",
    "Finding",
    "Fix",
    "Frame",
    "KernelSummary",
    "NotChecked",
    "Note",
    "OpSummary",
    "Place",
    "Result",
    "Severity",
    "StepSummary",
    "Summary",
    "TimeClasses",
    "TimelineLane",
    "TraceFacts",
]

SCHEMA = "torchtriage/1"

Certainty = Literal["certain", "likely", "hint"]
Severity = Literal["high", "medium", "low", "note"]


@dataclass(frozen=True)
class Cost:
    """What fixing one finding gives back: an interval with its denominator.

    ``low_ms``/``high_ms`` are per ``per``; ``of_ms`` is the wall time of one ``per`` (the mean
    steady step, or the window), so ``share_low = low_ms / of_ms``. ``naive_ms`` is the plain sum of
    durations, for contrast. ``basis`` says how sure the arithmetic is, ``method`` how it was done.
    """

    low_ms: float
    high_ms: float
    per: Literal["step", "window"]
    of_ms: float
    share_low: float
    share_high: float
    naive_ms: float
    basis: Literal["measured", "modelled", "bounded"]
    method: str
    grade: Literal["A", "B", "C"]


@dataclass(frozen=True)
class Frame:
    """A Python frame as the profiler names it.

    ``line`` is the first line of the function unless ``exact``. Source: the profiler records
    ``co_firstlineno`` for frames entered during the recording (kineto#630).
    """

    file: str
    line: int
    function: str
    exact: bool = False


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
    """Idle time of the main device in the judged steps that this finding explains; each idle
    nanosecond has one owner."""
    n_events: int = 0
    also_explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotChecked:
    """A pattern that could not be judged on this recording, and how to record so that it can."""

    code: str
    name: str
    missing: tuple[str, ...]
    how_to_record: str


@dataclass(frozen=True)
class Crash:
    """A pattern that failed; the others still ran."""

    code: str
    error: str


@dataclass(frozen=True)
class Note:
    """One fact about the recording's quality.

    ``level`` is ``refuse`` when no verdict can be given, ``warn`` when numbers are limited, else
    ``info``. ``fix`` says how to record better.
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


@dataclass(frozen=True)
class StepSummary:
    """One step of the main device: wall boundaries and where its time went."""

    index: int
    name: str
    start_ns: int
    end_ns: int
    steady: bool
    classes: TimeClasses | None


@dataclass(frozen=True)
class DeviceSummary:
    """One accelerator over the window."""

    device: str
    name: str
    classes: TimeClasses
    n_kernels: int
    n_copies: int
    n_orphans: int
    n_streams: int
    comm_ns: int
    """Union of communication kernels, exposed or not."""


@dataclass(frozen=True)
class KernelSummary:
    """All launches of one kernel inside the window; exact, whatever the table's length."""

    name: str
    short_name: str
    count: int
    total_ns: int
    mean_ns: float
    max_ns: int
    share_of_kernel_time: float


@dataclass(frozen=True)
class OpSummary:
    """All calls of one operator inside the window (host time)."""

    name: str
    count: int
    self_ns: int
    total_ns: int
    device_ns: int


@dataclass(frozen=True)
class TimelineLane:
    """One row of the picture: spans merged to what a screen can show.

    ``spans`` rows are ``(start_ns, end_ns, class, name)`` where class is one of ``compute``,
    ``comm``, ``copy``, ``op``, ``wait``, ``python``, ``loader``, ``step`` and name may be empty.
    """

    label: str
    kind: Literal["device", "thread", "steps"]
    spans: tuple[tuple[int, int, str, str], ...]


@dataclass(frozen=True)
class Summary:
    """What happened in the window, before any judgement."""

    window_start_ns: int
    window_end_ns: int
    window_basis: str
    step_ms: float | None
    """Mean wall time of the steady steps; None when the recording has no steps."""
    n_steady_steps: int
    steps: tuple[StepSummary, ...]
    devices: tuple[DeviceSummary, ...]
    top_kernels: tuple[KernelSummary, ...]
    n_kernel_names: int
    top_ops: tuple[OpSummary, ...]
    n_op_names: int
    judged_idle_ns: int
    """Idle time of the main device in the judged steps; what findings leave is unexplained."""
    timeline: tuple[TimelineLane, ...]


@dataclass(frozen=True)
class TraceFacts:
    """What was read: the file, how much of it, and who recorded it."""

    path: str
    size_bytes: int
    n_events: int
    n_rows: int
    tier: Literal["strict", "repaired", "salvaged"]
    n_lost: int
    n_repaired: int
    loss: tuple[str, ...]
    vendor: str
    device_names: tuple[str, ...]
    torch_flags: tuple[str, ...]
    rank: int | None
    world_size: int | None
    base_time_ns: int | None
    resolution_ns: int
    phases: dict[str, int]
    categories: dict[str, int]


@dataclass(frozen=True)
class Result:
    """Everything one analysis says about one trace."""

    schema: str
    version: str
    verdict: tuple[str, str, str]
    healthy: bool
    """True only when nothing worse than a note was found, failed or warned about, and no more than
    a tenth of the judged time is unexplained idle; ``not_checked`` says what was not judged."""
    refused: bool
    trace: TraceFacts
    notes: tuple[Note, ...]
    summary: Summary | None
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    crashes: tuple[Crash, ...]
    joint_cost: Cost | None
    """What all findings together give back, each millisecond counted once."""
    checked: tuple[str, ...] = ()
    """Codes of the patterns that ran to their end with everything they need."""
