"""What is said about the ranks of one job together."""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.core.finding import Cost, Crash, Finding, NotChecked, Note
from torchtriage.diagnose.verdict.result import MISSING_ROWS, Answer, GroupSummary

FEW_MISSING = 0.05
"""Of the launches: so few rows, at the end of a cut window, fill no idle time to speak of."""


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

    All-to-alls whose sizes change from step to step are one kind: ``nelems`` is null, ``size_bytes`` a mean.
    ``transfer_ns`` is from the last rank's start to the end, ``wait_ns`` from a rank's own start to
    the last one's, both means; waiting beside computation is included. ``size_bytes`` : as NCCL's tests count it.
    ``algorithm_gbps``, ``bus_gbps`` : that size and the bytes on the bus over the transfer, 10^9 bytes per second; null
    where size, type or group were not recorded. With ``n_missing`` members of the group not recorded, the last of whom
    may have come later, the link does at least that.
    """

    group: str
    name: str
    nelems: int | None
    n_ranks: int
    n_per_step: float
    transfer_ns: int
    wait_ns: int
    max_wait_ns: int
    late_rank: int | None
    """The rank that makes the others wait most often; None where all such waiting is below 1 % of a step."""
    late_share: float
    """Of these collectives, those in which it does."""
    size_bytes: int | None = None
    algorithm_gbps: float | None = None
    bus_gbps: float | None = None
    n_missing: int = 0


@dataclass(frozen=True)
class PipelineRank:
    """One rank of a pipeline, in the mean over its steps.

    ``stages`` : those it holds. ``micro_ns`` : what they take for one micro-batch, forward and back.
    ``bubble_ns`` : waiting for what another stage has not done yet; ``transfer_ns`` : sending or receiving what is
    done, with nothing beside it; ``busy_ns`` : its passes.
    """

    rank: int
    stages: tuple[int, ...]
    micro_ns: int
    busy_ns: int
    bubble_ns: int
    transfer_ns: int


@dataclass(frozen=True)
class PipelineStep:
    """One step of a pipeline: from its first pass to its last, and what each of its ranks waits in it."""

    number: int
    span_ns: int
    bubble_ns: tuple[int, ...]


@dataclass(frozen=True)
class PipelineSummary:
    """Ranks that hand micro-batches on.

    ``basis`` : how they were recognised. ``bubble_share`` : of the pipeline's time, what a rank waits for other stages
    in the mean; ``implied_share`` : what this order implies with the measured times of the stages, ``even_share`` with
    stages of equal length, ``books_share`` by the schedule's formula; null where the schedule is not known.
    ``n_unmatched`` : sends without their receive.
    """

    group: str
    basis: str
    schedule: str
    n_micro: int
    n_chunks: int
    span_ns: int
    bubble_share: float
    transfer_share: float
    implied_share: float | None
    even_share: float | None
    books_share: float | None
    n_matched: int
    n_unmatched: int
    ranks: tuple[PipelineRank, ...]
    steps: tuple[PipelineStep, ...]


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
    pipelines: tuple[PipelineSummary, ...] = ()
    process_groups: tuple[GroupSummary, ...] = ()
    """The largest exposed time first."""

    @property
    def lacks_rows(self) -> bool:
        """Whether a rank's file lacks more than a few rows of its device: what it does not show may be work."""
        missing = [note for note in self.notes if note.code in MISSING_ROWS]
        return any(note.evidence.get("share", 1) > FEW_MISSING for note in missing)
