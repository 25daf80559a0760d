"""What the recordings of a run come to: each process judged, and ranks of one job together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchtriage.diagnose import diagnose
from torchtriage.diagnose.sentences import sentences
from torchtriage.errors import TraceFormatError
from torchtriage.finding import JobResult, Result
from torchtriage.locate import Locator
from torchtriage.memory.leaks import CODE as LEAK
from torchtriage.memory.watch_report import findings as leak_findings
from torchtriage.ranks.engines import Settings
from torchtriage.ranks.files import judge_files
from torchtriage.ranks.job import checked_clause, costliest_sentence
from torchtriage.ranks.merge import merge_findings
from torchtriage.record.collect import Recording, find_recordings, recorded, why_nothing
from torchtriage.record.compiled import named, named_as, read_compiled, watched_compile
from torchtriage.record.join import join, scaled, with_leaks
from torchtriage.trace import read_trace
from torchtriage.units import format_ms

__all__ = ["Asked", "judge_run"]


@dataclass(frozen=True)
class Asked:
    """What is looked for, as in ``api.analyze``.

    ``sources`` are folders to look in besides the script's own and the current one; None opens no
    source file.
    """

    only: tuple[str, ...]
    skip: tuple[str, ...]
    min_share: float
    what_if: tuple[str, ...]
    sources: tuple[Path, ...] | None

    def folders(self, recordings: Sequence[Recording]) -> tuple[str, ...] | None:
        """Return where to look for the source of what these processes ran."""
        if self.sources is None:
            return None
        roots = [str(root) for one in recordings for root in one.facts.get("roots", ())]
        return tuple(dict.fromkeys([*map(str, self.sources), *roots, str(Path.cwd())]))


def judge_run(
    out: Path, asked: Asked, *, command: str, exit_code: int | None, pid: int | None
) -> tuple[tuple[JobResult, ...], tuple[Result, ...]]:
    """Return the jobs and each process' result; the parameters are those of ``api.analyze_run``.

    Raises
    ------
    TraceFormatError
        Nothing was recorded, or none of it can be read; the message says why.
    """
    recordings = [one for one in find_recordings(out) if pid in (None, one.facts.get("pid"))]
    usable = [one for one in recordings if one.light or one.heavy]
    if not usable:
        reason, hint = why_nothing(out, recordings, exit_code)
        raise TraceFormatError(reason, where=command or str(out), hint=hint)
    results = tuple(_process(one, asked, command, exit_code) for one in usable)
    if len(usable) == 1:
        return (), results
    jobs = _jobs(usable, results, asked)
    return tuple(named_as(_with_leaks(job, usable, results), results) for job in jobs), results


def _process(one: Recording, asked: Asked, command: str, exit_code: int | None) -> Result:
    """Return one process' result out of its two recordings."""
    folders = asked.folders([one])
    places = None if folders is None else Locator(folders)
    traces = [read_trace(path) for path in (one.light, one.heavy) if path is not None]
    compiled, unread = read_compiled(one, traces[0])
    facts = recorded(one, command, exit_code)
    facts = replace(facts, compiled=watched_compile(one, compiled, unread))
    results = [
        diagnose(
            trace,
            only=asked.only,
            skip=asked.skip,
            min_share=asked.min_share,
            what_if=asked.what_if,
            step_ms=facts.step_ms,
            places=places,
        )
        for trace in traces
    ]
    results = [scaled(result, facts.step_ms) for result in results]
    result = join(*results) if len(results) == 2 else results[0]
    result = with_leaks(result, one.memory, leak_findings(one.memory) if one.memory else ())
    result = named(result, compiled)
    kept = next(trace for trace in traces if trace.report.path == result.trace.path)
    first, costliest, trust = sentences(kept, result, asked.min_share)
    if facts.step_ms and not result.refused:
        first = f"{first.removesuffix('.')}; {format_ms(facts.step_ms)} without the profiler."
    return replace(result, verdict=(first, costliest, trust), recorded=facts)


def _jobs(
    usable: Sequence[Recording], results: Sequence[Result], asked: Asked
) -> tuple[JobResult, ...]:
    """Return the jobs that the processes are ranks of, out of all their recordings."""
    times = [one.recorded.step_ms for one in results if one.recorded and one.recorded.step_ms]
    step_ms = sum(times) / len(times) if times else None
    settings = Settings(
        asked.only,
        asked.skip,
        asked.min_share,
        what_if=asked.what_if,
        step_ms=step_ms,
        sources=asked.folders(usable),
    )
    told: list[tuple[JobResult, ...]] = []
    for kind in ("light", "heavy"):
        paths = [str(path) for one in usable if (path := getattr(one, kind)) is not None]
        if len(paths) == len(usable):
            jobs = judge_files(paths, settings).jobs
            told.append(tuple(scaled(job, step_ms) for job in jobs))
    if len(told) < 2 or [len(jobs) for jobs in told] != [1, 1]:
        return told[0] if told else ()
    job = join(told[0][0], told[1][0])
    first, _, last = job.verdict
    last = last.replace(checked_clause(told[0][0]), checked_clause(job))
    return (replace(job, verdict=(first, costliest_sentence(job, asked.min_share), last)),)


def _with_leaks(
    job: JobResult, usable: Sequence[Recording], results: Sequence[Result]
) -> JobResult:
    """Return the job with what leaks in its ranks."""
    watched = [one.memory for one in usable if one.memory is not None]
    # one leak is the job's; that there is none must be known of every rank
    answers = ("leak", "too early", "no leak")
    seen = min(watched, key=lambda one: answers.index(one.answer), default=None)
    leaks = [
        replace(one, findings=tuple(found for found in one.findings if found.code == LEAK))
        for one in results
    ]
    ranks = [one.facts.get("rank") for one in usable]
    numbers = [at if rank is None else rank for at, rank in enumerate(ranks)]
    found = merge_findings(leaks, numbers, [0.0] * len(leaks), 0.0, judged=True)
    return with_leaks(job, seen, found)
