"""The pipelines of a job: schedules, what ranks wait for each other, and what theory implies."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.result import JobResult, PipelineSummary
from torchtriage.report import blocks as b

N_PIPELINES = 4
N_RANKS = 16


def of_job(job: JobResult) -> Iterator[b.Block]:
    """Return what is said of each pipeline, those with most waiting first, and the ranks of the first."""
    shown = sorted(job.pipelines, key=lambda pipeline: -pipeline.bubble_share * pipeline.span_ns)
    if not shown:
        return
    lines: list[b.Text] = [headline(pipeline) for pipeline in shown[:N_PIPELINES]]
    if rest := len(shown) - N_PIPELINES:
        lines += [b.dim(f"{format_count(rest, 'more pipeline')} in the JSON")] * (rest > 0)
    yield b.Rows(b.labelled("pipeline" + "s" * (len(shown) > 1), lines))
    columns = ("rank", "stages", "a micro-batch", "passes", "waits for a stage", "transfer")
    rows = [
        (
            str(rank.rank),
            ", ".join(map(str, rank.stages)),
            *map(format_ns, (rank.micro_ns, rank.busy_ns, rank.bubble_ns, rank.transfer_ns)),
        )
        for rank in shown[0].ranks
    ]
    yield b.Table(columns, rows, align="rlrrrr", limit=N_RANKS, drop=(5, 3))


def headline(pipeline: PipelineSummary) -> str:
    """Return a pipeline in one line."""
    ranks = [rank.rank for rank in pipeline.ranks]
    named = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, …, {ranks[-1]}"
    each = f", {pipeline.n_chunks} stages on each rank" if pipeline.n_chunks > 1 else ""
    text = (
        f"ranks {named}: {pipeline.schedule}, {format_count(pipeline.n_micro, 'micro-batch', 'micro-batches')}{each};"
        f" {format_share(pipeline.bubble_share)} of {format_ns(pipeline.span_ns)} waiting for a stage"
    )
    if pipeline.implied_share is None or pipeline.even_share is None:
        return f"{text}; no theoretical share is given"
    books = f", by its formula {format_share(pipeline.books_share)}" if pipeline.books_share is not None else ""
    return (
        f"{text}, {format_share(pipeline.implied_share)} implied by the order and the measured stages,"
        f" {format_share(pipeline.even_share)} with equal ones{books}"
    )
