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
    shown = sorted(job.pipelines, key=lambda one: -one.bubble_share * one.span_ns)
    if not shown:
        return
    lines: list[b.Text] = [headline(one) for one in shown[:N_PIPELINES]]
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


def headline(one: PipelineSummary) -> str:
    """Return a pipeline in one line."""
    ranks = [rank.rank for rank in one.ranks]
    named = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, …, {ranks[-1]}"
    each = f", {one.n_chunks} stages on each rank" if one.n_chunks > 1 else ""
    text = (
        f"ranks {named}: {one.schedule}, {format_count(one.n_micro, 'micro-batch', 'micro-batches')}{each};"
        f" {format_share(one.bubble_share)} of {format_ns(one.span_ns)} waiting for a stage"
    )
    if one.implied_share is None or one.even_share is None:
        return f"{text}; no theory is claimed"
    books = f", its formula {format_share(one.books_share)}" if one.books_share is not None else ""
    return (
        f"{text}, {format_share(one.implied_share)} implied by the order and the measured stages,"
        f" {format_share(one.even_share)} with equal ones{books}"
    )
