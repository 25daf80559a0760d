"""The one currency: what a judgement looks like, whatever it judged.

These dataclasses are the JSON output: field names here are field names there, and the published
JSON Schema is generated from them (``report/json_report.py``). Times are ``_ns`` integers on the
trace's own clock, or ``_ms`` floats where a person compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

__all__ = [
    "COMPARISON_SCHEMA",
    "SCHEMA",
    "SEVERITIES",
    "VERIFICATION_SCHEMA",
    "Agreement",
    "Answer",
    "Cause",
    "Certainty",
    "Change",
    "CollectiveSummary",
    "Comparison",
    "CompileEvent",
    "Cost",
    "Crash",
    "DeviceSummary",
    "Example",
    "Finding",
    "FindingChange",
    "Fix",
    "Frame",
    "JobResult",
    "JobStep",
    "KernelSummary",
    "NotChecked",
    "Note",
    "OpSummary",
    "Part",
    "PathPiece",
    "PathSummary",
    "Place",
    "Promise",
    "Quote",
    "RankSpread",
    "RankSummary",
    "Recorded",
    "Replay",
    "Result",
    "Round",
    "Run",
    "Severity",
    "StepSummary",
    "Summary",
    "Suspicion",
    "TimeClasses",
    "TimelineLane",
    "TraceFacts",
    "Unlike",
    "Verification",
    "WatchedCompile",
    "WatchedMemory",
    "rank_order",
]

SCHEMA = "torchtriage/1"
COMPARISON_SCHEMA = "torchtriage-comparison/1"
VERIFICATION_SCHEMA = "torchtriage-verification/1"

Certainty = Literal["certain", "likely", "hint"]
Severity = Literal["high", "medium", "low", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
Quote = Callable[[str, str, int], str]
"""Gives the text of one line of a file's function, or nothing: reports never read files."""


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
    together_ms: float | None = None
    """Saving with all findings ranked above it fixed too, by one replay; None without replay."""


@dataclass(frozen=True)
class Replay:
    """The model that savings were replayed with, and how far to trust it (``docs/replay.md``).

    ``strict_error`` : the run told again from its causes alone, against the recorded total, signed
    share. ``unexplained`` : share of the critical path without a recorded cause. ``pinned`` : share
    of the total that stays when all work takes no time. ``reason`` : why it is not ``accepted``.
    ``unprofiled_step_ms`` : the step time it was scaled to, when one was given.
    """

    accepted: bool
    reason: str
    strict_error: float
    unexplained: float
    pinned: float
    n_nodes: int
    n_edges: int
    unprofiled_step_ms: float | None = None


@dataclass(frozen=True)
class Answer:
    """What a what-if question would change, per ``per``; savings are negative for a slowdown.

    ``reason`` : why there are no numbers (all None then), else empty.
    """

    question: str
    per: Literal["step", "window"]
    of_ms: float
    after_ms: float | None = None
    saving_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    naive_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PathPiece:
    """A stretch of the critical path: where it runs, on what, and what it waited for first."""

    label: str
    what: Literal["host", "compute", "comm", "copy", "wait", "lag", "unexplained", "loader"]
    start_ns: int
    end_ns: int
    why: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathSummary:
    """The critical path of one step (-1: the window), merged to what a screen can show.

    ``shares`` : share of the path by kind of time, from the exact path. ``by_lane`` : by lane.
    """

    step: int
    start_ns: int
    end_ns: int
    shares: dict[str, float]
    by_lane: dict[str, float]
    pieces: tuple[PathPiece, ...]


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
    """Idle time of the main device in the judged steps that this finding explains; each idle
    nanosecond has one owner."""
    n_events: int = 0
    also_explains: tuple[str, ...] = ()
    ranks: RankSpread | None = None
    """In a job of several ranks: where it was found. None in the result of one trace."""


def rank_order(finding: Finding) -> tuple[Any, ...]:
    """Return the key that sorts findings: severity first, then what is surely saved."""
    cost = finding.cost
    return (
        SEVERITIES.index(finding.severity),
        not (cost is not None and cost.high_ms > 0),
        -(cost.low_ms if cost else 0.0),
        -(cost.high_ms if cost else 0.0),
        finding.code,
        finding.message,
    )


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
    share_of_kernel_sum: float
    """Of the plain sum of all kernels' durations, communication included."""


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
class WatchedMemory:
    """What the leak watch of ``torchtriage run --memory`` saw; leaks are findings as well.

    ``leaks`` : a sentence each, ``since_step`` and bytes per step are in their findings.
    ``rss_*`` : resident set of the process after the first step, at the last look, at its highest;
    ``allocated_peak_bytes`` and ``reserved_peak_bytes`` of the CUDA device, None without one.
    ``snapshot`` : a file that ``torchtriage memory`` reads. ``notes`` : what was not looked at.
    """

    answer: Literal["leak", "no leak", "too early", "not watched"]
    n_steps: int
    n_looks: int
    leaks: tuple[str, ...]
    rss_first_bytes: int
    rss_last_bytes: int
    rss_peak_bytes: int
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    snapshot: str
    own_share: float
    """Of the loop's time, what the watch took."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CompileEvent:
    """A graph break of one cause at one line, or recompilations of one kind, as the log tells.

    ``what`` : PyTorch's id and type of a break, the guard of a recompilation. ``function`` : what
    it splits or compiles again. ``total_ms`` : of compiling again. ``host_ms`` and ``idle_ms`` of
    the device are per ``per``, which takes ``of_ms``, in the light recording; None where it does
    not happen there. ``at_most`` : they hold the graph's own time, too.
    """

    kind: Literal["graph break", "recompilation"]
    what: str
    function: str
    frame: Frame | None
    count: int
    total_ms: float
    limit: bool
    per: str
    of_ms: float | None
    host_ms: float | None
    idle_ms: float | None
    at_most: bool
    fix: Fix


@dataclass(frozen=True)
class WatchedCompile:
    """What the log of ``torchtriage run --compile-log`` says of one process.

    ``events`` : breaks, then recompilations, the costliest of each first. ``log`` : the folder that
    ``torchtriage compile`` reads, of all processes; empty where nothing was compiled. ``trace`` :
    the light recording, which it was joined to.
    """

    verdict: tuple[str, ...]
    n_compiles: int
    compile_ms: float
    events: tuple[CompileEvent, ...]
    payback: str
    log: str
    trace: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Recorded:
    """How ``torchtriage run`` came to a recording.

    ``loop`` says what a step is; ``file``, ``line``, ``function`` are the user's call that ends or
    begins it. ``step_ms`` : mean of ``n_timed`` steps without the profiler; ``light_ms`` and
    ``heavy_ms`` : the same under each recording. ``settled`` : the unprofiled times had no trend.
    ``before_ms`` and ``after_ms`` : ``step_ms``, of the steps on either side of the recordings.
    """

    command: str
    exit_code: int | None
    loop: str
    file: str
    line: int
    function: str
    n_steps: int
    step_ms: float | None
    n_timed: int
    settled: bool
    light_ms: float | None
    heavy_ms: float | None
    environment: dict[str, Any] = field(default_factory=dict)
    memory: WatchedMemory | None = None
    """None without ``--memory``, and where no loop was found."""
    before_ms: float | None = None
    after_ms: float | None = None
    compiled: WatchedCompile | None = None
    """None without ``--compile-log``."""


@dataclass(frozen=True)
class Suspicion:
    """A part of the steps that the learned detector holds to be faulty and no finding explains.

    An opinion: it has no cost. ``begins``, ``ends`` : shares of a step (0-1). ``n_steps`` : steps
    in which it is suspicious. ``start_ns``, ``end_ns`` : in the first of them. ``probability`` :
    calibrated, the mean over its windows. ``types`` : what it may be, by code; they add up to 1 at
    most.
    """

    begins: float
    ends: float
    n_steps: int
    start_ns: int
    end_ns: int
    probability: float
    types: dict[str, float]


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
    replay: Replay | None = None
    """The model behind replayed savings; None where nothing was judged."""
    what_ifs: tuple[Answer, ...] = ()
    critical_path: PathSummary | None = None
    recorded: Recorded | None = None
    """How ``torchtriage run`` recorded it; None for a trace that was given."""
    suspicions: tuple[Suspicion, ...] = ()
    """Where the learned detector, when asked, sees more than the findings."""


# -- two runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One amount before and after, ns per step (or window).

    ``low_ns``/``high_ns`` : 95 % interval of the change from step to step; None where a side has
    too few steps. ``told`` : larger than this interval and than what two recordings of one program
    differ by; only then is it called a change.
    """

    before_ns: int
    after_ns: int
    delta_ns: int
    low_ns: int | None
    high_ns: int | None
    told: bool


@dataclass(frozen=True)
class Part:
    """One kernel, operator or function inside a cause, ns and number per step on each side."""

    name: str
    before_ns: int
    after_ns: int
    n_before: float
    n_after: float


@dataclass(frozen=True)
class Cause:
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
    change: Change
    n_before: float
    n_after: float
    parts: tuple[Part, ...]
    of_host: bool
    label: str
    sentence: str


@dataclass(frozen=True)
class Unlike:
    """Why two runs must not be compared: a code, a sentence, what was found on each side."""

    code: Literal[
        "unusable",
        "device",
        "ranks",
        "mode",
        "model",
        "shapes",
        "steps",
        "cold-start",
        "profiler",
    ]
    message: str
    before: str
    after: str
    fix: str


@dataclass(frozen=True)
class FindingChange:
    """A finding that went, came or stayed, with its cost on each side where it was found."""

    status: Literal["went", "came", "stayed"]
    code: str
    title: str
    place: str
    before: Cost | None
    after: Cost | None


@dataclass(frozen=True)
class Promise:
    """What the findings that went had promised to save, against what was saved.

    ``measured_ms`` is the step time before minus after, ``measured_low_ms``/``measured_high_ms``
    its interval. ``holds`` : the measured saving lies between ``low_ms`` and ``high_ms``;
    ``holds_within_noise`` : its interval touches that range.
    """

    codes: tuple[str, ...]
    low_ms: float
    high_ms: float
    measured_ms: float
    measured_low_ms: float | None
    measured_high_ms: float | None
    holds: bool
    holds_within_noise: bool


@dataclass(frozen=True)
class Run:
    """One side of a comparison."""

    path: str
    size_bytes: int
    n_events: int
    device: str
    per: Literal["step", "window"]
    mean_ns: int
    n_steps: int
    """Steady steps, or 1 for a window."""


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
    before: Run
    after: Run
    total: Change | None
    classes: dict[str, Change]
    causes: tuple[Cause, ...]
    findings: tuple[FindingChange, ...]
    promise: Promise | None


# -- a fix on trial ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One run of each program, one right after the other: mean time per step (or of the run)."""

    before_ms: float
    after_ms: float
    first: Literal["before", "after"]


@dataclass(frozen=True)
class Agreement:
    """Whether two programs compute the same at their start.

    ``worst`` : the largest difference of two values, as a share of the larger. ``own`` : the same
    between runs of one program. ``n`` : how many values were compared.
    """

    of: Literal["losses", "outputs", "nothing"]
    status: Literal["same", "within its own spread", "differ", "not compared"]
    n: int
    worst: float | None
    own: float | None
    reason: str = ""


@dataclass(frozen=True)
class Verification:
    """A fix on trial: two programs run in turns without the profiler, and what was promised.

    ``ratio`` is after over before, the rounds' geometric mean; ``saved_ms`` follows from it and the
    mean of before. ``low``/``high`` hold the truth in 95 % of trials. ``told`` : the ratio's
    interval leaves out 1.
    """

    schema: str
    version: str
    verdict: tuple[str, str, str]
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
    """Timed steps of each program, over all rounds."""
    answers: Agreement
    promise: Promise | None
    findings: tuple[FindingChange, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class RankSummary:
    """One rank of a job: its mean steady step, split into parts that add up to ``wall_ns``.

    ``comm_ns`` is communication with nothing beside it, without ``wait_ns``: the time in it that
    the last rank had not come yet. On a CPU, ``compute_ns`` is operators and ``idle_ns`` Python.
    ``caused_wait_ns`` is how long the other ranks wait for this one, in the mean.
    """

    rank: int
    path: str
    host: str
    verdict: str
    refused: bool
    n_findings: int
    n_steps: int
    wall_ns: int
    compute_ns: int
    comm_ns: int
    wait_ns: int
    copy_ns: int
    idle_ns: int
    caused_wait_ns: int
    clock_offset_ns: int
    n_collectives: int
    n_matched: int


@dataclass(frozen=True)
class JobStep:
    """One step that all ranks recorded, in the mean over ranks, and who was last."""

    number: int
    steady: bool
    wall_ns: int
    wait_ns: int
    late_rank: int | None
    late_wait_ns: int
    """How long the others wait for that rank, in the mean."""


@dataclass(frozen=True)
class CollectiveSummary:
    """Equal collectives of one process group in the steady steps: transfer against waiting.

    ``transfer_ns`` is from the last rank's start to the end, ``wait_ns`` from a rank's own start to
    the last one's, both means; waiting beside computation is included.
    """

    group: str
    name: str
    nelems: int | None
    n_ranks: int
    n_per_step: float
    transfer_ns: int
    wait_ns: int
    max_wait_ns: int
    late_rank: int
    """The rank that is last most often."""
    late_share: float


@dataclass(frozen=True)
class JobResult:
    """Everything said about several ranks of one job together; each rank's own result stays.

    ``basis`` says why the files are taken for one job. ``findings`` are those of the ranks, equal
    ones as one, with what the job would save: no more than its slowest rank would.
    """

    schema: str
    version: str
    verdict: tuple[str, str, str]
    healthy: bool
    refused: bool
    basis: str
    world_size: int | None
    ranks: tuple[RankSummary, ...]
    step_ms: float | None
    n_steady_steps: int
    steps: tuple[JobStep, ...]
    collectives: tuple[CollectiveSummary, ...]
    n_matches: int
    notes: tuple[Note, ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    crashes: tuple[Crash, ...]
    joint_cost: Cost | None
    checked: tuple[str, ...] = ()
    """Codes of the patterns that ran to their end on every rank."""
    what_ifs: tuple[Answer, ...] = ()
    """Answers of all ranks replayed together."""
