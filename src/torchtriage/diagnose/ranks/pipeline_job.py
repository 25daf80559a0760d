"""The pipelines of a job as its verdict needs them: summaries, notes, and the waiting that is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding, Note
from torchtriage.core.names import visible
from torchtriage.core.units import ms
from torchtriage.diagnose.ranks.match import Matches
from torchtriage.diagnose.ranks.merge import EXPOSED, scaled
from torchtriage.diagnose.ranks.pipeline import Pipeline, Unjudged, find_pipelines
from torchtriage.diagnose.ranks.pipeline_bubble import Bubble, measure
from torchtriage.diagnose.ranks.pipeline_finding import PIPELINES, pipeline_findings
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.result import PipelineRank, PipelineStep, PipelineSummary
from torchtriage.diagnose.verdict.verdict import severity_of


@dataclass(frozen=True, eq=False)
class JobPipelines:
    """The pipelines of a job.

    ``ranks`` : the records without what they wait inside their pipeline, which is no straggler's. ``complete`` : all
    ranks of the job are among them.
    """

    bubbles: tuple[Bubble, ...]
    unjudged: tuple[Unjudged, ...]
    ranks: tuple[RankRecord, ...]
    complete: bool

    def summaries(self, numbers: Sequence[int]) -> tuple[PipelineSummary, ...]:
        """Return what is said of each."""
        return tuple(_summary(bubble, numbers) for bubble in self.bubbles)

    @property
    def checked(self) -> tuple[str, ...]:
        """Codes of what the ranks together have answered: not where some are missing, or a schedule is not known."""
        answered = self.complete and not self.unjudged and all(bubble.known for bubble in self.bubbles)
        answered &= bool(self.bubbles) or not any(rank.n_point_to_point for rank in self.ranks)
        return PIPELINES if answered else ()

    @property
    def waits_ns(self) -> list[int]:
        """What each rank of the job waits for stages, per step."""
        out = [0] * len(self.ranks)
        for bubble in self.bubbles:
            for place, position in enumerate(bubble.pipeline.members):
                out[position] = round(float(bubble.bubble_ns[place].mean()))
        return out

    def findings(self, numbers: Sequence[int], step_ns: float, scale: float) -> list[Finding]:
        """Return what the pipelines cost. ``scale`` : of times without the profiler to recorded ones."""
        found = pipeline_findings(self.bubbles, self.ranks, numbers, step_ns)
        return [scaled(finding, scale) for finding in found]

    def without_waiting(self, findings: Sequence[Finding], steps: Ints, scale: float) -> list[Finding]:
        """Return the ranks' findings, exposed communication without what is the pipeline's waiting."""
        if not self.bubbles:
            return list(findings)
        left_ns = []
        for position, rank in enumerate(self.ranks):
            at = np.searchsorted(rank.steps.number, steps)
            at = at[rank.steps.steady[at]]
            spans = intervals.spans(rank.steps.start_ns[at], rank.steps.end_ns[at])
            left = float(intervals.covered(spans, rank.exposed).sum()) / max(len(at), 1)
            for bubble in self.bubbles:
                if position in bubble.pipeline.members:
                    left += float(bubble.transfer_ns[bubble.pipeline.members.index(position)].mean())
            left_ns.append(left)
        most_ms = ms(min(left_ns) * scale)
        return [
            _at_most(finding, most_ms) if finding.code == EXPOSED and finding.cost is not None else finding
            for finding in findings
        ]

    def notes(self) -> list[Note]:
        """Return what might be a pipeline and is not judged, and sends that belong to none."""
        out = [
            Note(
                "pipeline-not-judged",
                "warn",
                f"ranks {_listed(pipeline.ranks)} send and receive as pipeline stages do"
                f"{f' in process group {visible(pipeline.group)}' if pipeline.group else ''}, which is not judged:"
                f" {pipeline.reason}",
                "record the same whole steps on every rank of the pipeline",
                {"ranks": list(pipeline.ranks[:64]), "reason": pipeline.reason},
            )
            for pipeline in self.unjudged
        ]
        n_left = sum(rank.n_point_to_point for rank in self.ranks)
        if n_left:
            out.append(
                Note(
                    "point-to-point",
                    "info",
                    f"{n_left} sends and receives belong to no pipeline that was recognised:"
                    " waiting in them is not analysed",
                )
            )
        return out


def job_pipelines(
    ranks: Sequence[RankRecord], numbers: Sequence[int], matches: Matches, world_size: int | None
) -> JobPipelines:
    """Return the pipelines of a job's ranks, measured."""
    complete = world_size in (None, len(ranks))
    if not any(len(rank.pipeline) for rank in ranks):
        return JobPipelines((), (), tuple(ranks), complete)
    steady = [rank.steps.number[rank.steps.steady] for rank in ranks if len(rank.pipeline)]
    bubbles, unjudged = [], []
    # one after the other: the passes of all are many
    for found in find_pipelines(ranks, numbers, matches, reduce(np.intersect1d, steady), world_size):
        if isinstance(found, Pipeline):
            bubbles.append(measure(found, ranks, matches.offset_ns))
        else:
            unjudged.append(found)
    out = list(ranks)
    for bubble in bubbles:
        for position in bubble.pipeline.members:
            windows = intervals.union(bubble.windows) - matches.offset_ns[position]
            out[position] = replace(
                ranks[position], exposed=intervals.subtract(ranks[position].exposed, windows), n_point_to_point=0
            )
    return JobPipelines(tuple(bubbles), tuple(unjudged), tuple(out), complete)


def _summary(bubble: Bubble, numbers: Sequence[int]) -> PipelineSummary:
    made = bubble.pipeline
    ranks = [
        PipelineRank(
            rank=numbers[position],
            stages=tuple(stage for stage, at in enumerate(made.rank_of) if at == place),
            micro_ns=round(bubble.rank_ns[place]),
            busy_ns=round(float(bubble.busy_ns[place].mean())),
            bubble_ns=round(float(bubble.bubble_ns[place].mean())),
            transfer_ns=round(float(bubble.transfer_ns[place].mean())),
        )
        for place, position in enumerate(made.members)
    ]
    steps = [
        PipelineStep(number, span, tuple(waits))
        for number, span, waits in zip(made.numbers, bubble.span_ns.tolist(), bubble.bubble_ns.T.tolist(), strict=True)
    ]
    return PipelineSummary(
        group=made.group,
        basis=made.basis,
        schedule=made.schedule,
        n_micro=made.n_micro,
        n_chunks=made.n_chunks,
        span_ns=round(float(bubble.span_ns.mean())),
        bubble_share=round(bubble.share, 6),
        transfer_share=round(bubble.transfer_share, 6),
        implied_share=round(bubble.implied.idle_share, 6) if bubble.implied else None,
        even_share=round(bubble.even.idle_share, 6) if bubble.even else None,
        books_share=round(bubble.books_share, 6) if bubble.books_share is not None else None,
        n_matched=made.n_matched,
        n_unmatched=made.n_unmatched,
        ranks=tuple(ranks),
        steps=tuple(steps),
    )


def _at_most(finding: Finding, most_ms: float) -> Finding:
    cost = finding.cost
    assert cost is not None
    if cost.high_ms <= most_ms:
        return finding
    cost = replace(
        cost.saving(min(cost.low_ms, most_ms), most_ms),
        method=f"{cost.method}; without what stages of a pipeline wait for each other",
    )
    return replace(finding, cost=cost, severity=severity_of(cost, finding.certainty))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, …, {ranks[-1]}"
