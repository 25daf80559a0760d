"""Files judged each for itself, and those that are ranks of one job also together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchtriage.errors import TraceFormatError
from torchtriage.finding import JobResult, Result
from torchtriage.patterns import lookup
from torchtriage.ranks.engines import Settings, examine_all
from torchtriage.ranks.job import judge
from torchtriage.ranks.merge import STRAGGLER
from torchtriage.ranks.recognise import recognise
from torchtriage.ranks.record import RankRecord

__all__ = ["Judged", "judge_files"]


@dataclass(frozen=True)
class Judged:
    """The jobs that were found, each file's result, and why files have none."""

    jobs: tuple[JobResult, ...]
    results: tuple[Result, ...]
    unreadable: tuple[TraceFormatError, ...]


def judge_files(
    files: Sequence[str],
    settings: Settings,
    *,
    engine: str = "local",
    processes: int | None = None,
    starting: Callable[[str, int], Callable[[int, int], None] | None] | None = None,
) -> Judged:
    """Judge files; the options are those of ``api.analyze_ranks``.

    Raises
    ------
    TraceFormatError
        None of them can be read.
    MissingExtraError, UsageError
        What an engine or a URL needs is not installed; there is no such engine.
    """
    outcomes = list(
        examine_all(files, settings, engine=engine, processes=processes, starting=starting)
    )
    records = [one for one in outcomes if isinstance(one, RankRecord)]
    errors = tuple(one for one in outcomes if isinstance(one, TraceFormatError))
    if not records:
        if len(errors) == 1:
            raise errors[0]
        reasons = "".join(f"\nleft out: {error}" for error in errors)
        raise TraceFormatError(f"none of the {len(files)} files is a readable trace{reasons}")
    late = not settings.only or _names(settings.only, STRAGGLER)
    jobs = tuple(
        judge(
            records,
            job,
            min_share=settings.min_share,
            late=late and not _names(settings.skip, STRAGGLER),
            what_if=settings.what_if,
            unprofiled_ms=settings.step_ms,
        )
        for job in recognise(records)
    )
    return Judged(jobs, tuple(one.result for one in records), errors)


def _names(codes: Sequence[str], code: str) -> bool:
    return any(lookup(one).pattern.code == code for one in codes)
