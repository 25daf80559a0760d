"""What one analysis says about one trace: the JSON document of ``torchtriage analyze``.

Field names here are field names there, and the published JSON Schema is generated from these classes.
Times are ``_ns`` integers on the trace's own clock, or ``_ms`` floats where people compare them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.core.finding import Cost, Crash, Finding, NotChecked, Note, Phase, TimeClasses
from torchtriage.diagnose.runs.result import RecordedRun
from torchtriage.diagnose.verdict.options import By

SCHEMA = "torchtriage/1"
MISSING_ROWS = ("missing-kernels", "cut-window")
"""The notes that say that rows of the devices are missing: how busy these are is not known then."""
EARLY_END = "early-end"
"""The note that says that they end early: how busy the devices are is known up to there."""


@dataclass(frozen=True)
class Replay:
    """The model that savings were replayed with, and how far to trust it (``docs/replay.md``).

    ``strict_error`` : the run replayed from its causes alone, against the recorded total, signed
    share. ``unexplained`` : share of the critical path without a recorded cause. ``pinned`` : share
    of the total that stays when all work takes no time. ``reason`` : why it is not ``accepted``.
    ``unprofiled_step_ms`` : the step time it was scaled to, when one was given: as near to that as its own cost allows;
    None where nothing was scaled.
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
    """One accelerator over the judged time: the steady steps together, or the window without steps."""

    device: str
    name: str
    classes: TimeClasses | None
    """None where rows are missing: how busy it was is not known."""
    n_kernels: int
    n_copies: int
    n_orphans: int
    n_streams: int
    comm_ns: int
    """Union of the recorded communication kernels, exposed or not."""
    unknown: str = ""
    """Why there are no ``classes``."""


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
    judged_idle_ns: int | None
    """Idle time of the main device in the judged steps; what findings leave is unexplained. None where not known."""
    timeline: tuple[TimelineLane, ...]


@dataclass(frozen=True)
class DeviceTimeRow:
    """Device work that belongs together.

    ``name`` : empty for work without one, such as work launched outside every operator. ``category`` : what most of its
    time is. ``busy_ns`` : its part of the busy time. ``share`` : of all busy time. ``n_launches`` : kernels, copies and
    sets that begin in the judged time. ``mean_ns`` : how long one of them runs, beside others or not; null without any.
    """

    name: str
    category: str
    busy_ns: int
    share: float
    n_launches: int
    mean_ns: float | None
    of_peak: float | None = None
    """Share of the dense peak that its products, convolutions and attention reach; null: not checked."""
    of_roof: float | None = None
    """How long its work takes at the roof, as a share of how long it ran; null: not checked."""
    roof: Literal["compute", "memory", ""] = ""
    """Which roof applies to most of it: the dense peak or the memory's bandwidth."""
    flop_per_byte: float | None = None
    """Of its products, convolutions and attention: operations over the bytes that have to move at least."""
    tflops: float | None = None
    """The rate at which they ran, in 10^12 operations per second."""
    lines: tuple[str, ...] = ()
    """By line, of compiled graphs whose log is at hand: all lines that it computes."""


@dataclass(frozen=True)
class RoofRates:
    """The roofs of a device: the memory's bandwidth in TB/s, and the dense peaks of the types it computes in."""

    memory_tbps: float
    peak_tflops: tuple[float, ...]


@dataclass(frozen=True)
class PeakShare:
    """A dense peak, and the share of the operations that are held against it."""

    tflops: float
    share: float


@dataclass(frozen=True)
class ModelFlops:
    """MFU: how long the products, convolutions and attention of a steady step take at the dense peak, over its time.

    ``share`` : null where it is not checked, and then ``unchecked`` says why. ``flop`` : operations of a step;
    recomputed ones count, those that a causal mask hides do not. ``step_ns`` : mean wall time of the steady steps.
    ``peaks`` : by the types that are computed in, the highest first.
    """

    share: float | None = None
    flop: int = 0
    step_ns: int = 0
    peaks: tuple[PeakShare, ...] = ()
    unchecked: str = ""


@dataclass(frozen=True)
class DeviceTime:
    """The busy time of the main device in the steady steps, or in the window, given out to rows that add up to it.

    Each busy instant counts once: computation before communication before copies, in equal parts where rows of one
    kind run at once. ``by`` : what the rows are. ``n_steps`` : steady steps the times are sums over, 1 for the window.
    ``rows`` : the largest ``n_rows`` are all there are; ``rest_ns`` : busy time of those that are not listed.
    """

    by: By
    device: str
    per: Literal["step", "window"]
    n_steps: int
    busy_ns: int
    rows: tuple[DeviceTimeRow, ...]
    n_rows: int
    rest_ns: int
    kernel_ns: int
    """Of ``busy_ns``, computation: what findings call kernel time."""
    peak_unchecked: str = ""
    """Why no row by kernel or operator has a share of its peak and roof; empty where one can."""
    roofs: RoofRates | None = None
    mfu: ModelFlops | None = None
    """Beside the table by category; null where nothing multiplies."""
    captured: str = ""
    """How much is counted elsewhere than where it is launched: where a graph was captured, or at the lines of a
    compiled graph by its log; empty without."""


GraphUse = Literal["full", "piecewise", "some", "eager", "unknown"]
"""``full`` : attention runs in replayed graphs. ``piecewise`` : outside, between them. ``some`` : graphs are replayed,
and no attention is recognised. ``eager`` : no graph is replayed. ``unknown`` : no call of the host is recorded."""


@dataclass(frozen=True)
class PhaseTime:
    """The steady steps of an engine in one phase, as sums over them; null for what the recording does not say.

    ``n_steps`` : those that are not steady too. ``n_context``, ``n_generation`` : requests in prefill and in decode,
    once per step. ``context_tokens``, ``generation_tokens`` : tokens their steps compute, verified drafts included.
    ``kv_tokens`` : summed length of the sequences, which attention reads. ``wall_ns`` : from the start of a step to
    that of the next, or until the device has done what came before; the denominator of ``tokens_per_s``, which counts
    both kinds of tokens. ``busy_ns`` : of it with work on the main device. ``between_ns`` : of the rest, before the
    first and after the last work of the step. ``n_work`` : kernels, copies and sets. ``n_launches`` : host calls that
    enqueue them. ``graphs`` : number of steps by use of graphs.
    """

    phase: Phase
    n_steps: int
    n_steady: int
    n_context: int | None
    context_tokens: int | None
    n_generation: int | None
    generation_tokens: int | None
    kv_tokens: int | None
    wall_ns: int
    busy_ns: int | None
    between_ns: int | None
    n_work: int | None
    n_launches: int
    tokens_per_s: float | None
    graphs: dict[GraphUse, int]


@dataclass(frozen=True)
class ServingTime:
    """The steps of an inference engine by phase; none where it only captures graphs.

    ``basis`` : ``ranges`` that the engine puts around its steps, or the ``frames`` of the function that runs one, which
    say nothing of the batch. ``captures`` : ranges in which graphs are captured.
    """

    engine: str
    basis: Literal["ranges", "frames"]
    captures: tuple[str, ...] = ()
    phases: tuple[PhaseTime, ...] = ()


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one operation and process group, of sizes up to four times each other, in the steady steps.

    ``n_ranks`` : members of the group. ``least_bytes``, ``most_bytes`` : their sizes as NCCL's tests count them: what a
    gather returns, what other operations are given. ``mean_ns`` : how long a kernel runs, waiting for other ranks
    included. ``algorithm_gbps``, ``bus_gbps`` : size over time and bytes on the bus over time, 10^9 bytes per second,
    of the fastest one. The link does at least that.
    """

    name: str
    group: str
    n_ranks: int
    least_bytes: int
    most_bytes: int
    n_per_step: float
    mean_ns: int
    algorithm_gbps: float
    bus_gbps: float


@dataclass(frozen=True)
class BusBandwidth:
    """What the collectives of the main device reach, by NCCL's tests, as one rank sees it.

    ``rows`` : the largest ``n_rows`` are all there are. ``n_unchecked`` : collectives of ``n_collectives`` without a
    bandwidth, most of them because of ``unchecked``.
    """

    rows: tuple[CollectiveRow, ...]
    n_rows: int
    n_collectives: int
    n_unchecked: int
    unchecked: str = ""


@dataclass(frozen=True)
class GroupSummary:
    """Process groups of one role and name. Times are per step, in the mean over all ranks that were judged together.

    ``role`` : ``TP``, ``DP``, ``PP``, ``EP``, ``CP``, several of them as ``TP+DP``, or ``unknown``; ``how`` : what says
    so, or why nothing does. ``least_ranks``, ``most_ranks`` : members of a group, 0 where not recorded. ``n_ranks`` :
    recorded ranks that are in them, ``n_missing`` : members without a recording.
    ``layout`` : how members lie among the ranks: ``adjacent``, ``every 8th``, ``irregular``; empty where groups differ.
    ``n_per_step`` : of a rank. ``median_bytes``, ``largest_bytes``, ``small_share`` : of the messages of known size;
    small ones are below 256 KiB.

    ``communication_ns`` = ``overlapped_ns`` (beside computation) + ``exposed_ns``; ``exposed_ns`` = ``waiting_ns`` (the
    last rank had not come) + ``transfer_ns`` + ``unsplit_ns`` (not matched with other ranks). Where several groups
    communicate at once each has an equal part; ``shared_ns`` : how much of ``communication_ns`` is such time. So all
    groups add up to all communication. ``least_exposed_ns``, ``most_exposed_ns`` : over the groups, of their own
    ranks. ``algorithm_gbps``, ``bus_gbps`` : of matched transfers; ``of_link`` : over the peak of ``link``, null where
    ``link_how`` says that it is not recorded, or that it is exceeded.
    """

    role: str
    told_by: Literal["name", "collectives", ""]
    how: str
    name: str
    n_groups: int
    least_ranks: int
    most_ranks: int
    n_ranks: int
    n_missing: int
    layout: str
    n_per_step: float
    median_bytes: int | None
    largest_bytes: int | None
    small_share: float | None
    communication_ns: int
    overlapped_ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int
    unsplit_ns: int
    shared_ns: int
    least_exposed_ns: int
    most_exposed_ns: int
    algorithm_gbps: float | None
    bus_gbps: float | None
    link: str
    link_gbps: float | None
    of_link: float | None
    link_how: str


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
    selection: str = ""
    """The part of it that was judged, as its reader chose it; empty for all."""


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
    """True only when the device's time could be judged (or only the CPU was at work), nothing worse than a note was
    found, failed or warned about, no pattern or finding of 1 % was left out on request, and no more than a tenth of the
    judged time is unexplained idle; ``not_checked`` says what was not judged."""
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
    recorded: RecordedRun | None = None
    """How ``torchtriage run`` recorded it; None for a trace that was given."""
    suspicions: tuple[Suspicion, ...] = ()
    """Where the learned detector, when asked, sees more than the findings."""
    device_time: tuple[DeviceTime, ...] = ()
    """By category, and by what was asked for; empty without a device."""
    serving: ServingTime | None = None
    """The steps of an inference engine by phase; None where none is recorded."""
    bus_bandwidth: BusBandwidth | None = None
    """Of the collectives in the steady steps; null without any."""
    process_groups: tuple[GroupSummary, ...] = ()
    """What one rank alone shows of them: nothing of the waiting. Empty without a device that communicates."""

    @property
    def holds_ranks(self) -> bool:
        """Whether ranks were merged into the file, so that only ``analyze_ranks`` judges it."""
        return any(note.code == "merged-ranks" for note in self.notes)
