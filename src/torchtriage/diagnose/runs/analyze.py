"""What the recordings of a run come to: each process judged, and ranks of one job together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchtriage.core.anonymous import current
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import read_trace
from torchtriage.core.units import format_ms, format_ns
from torchtriage.diagnose.ranks.job import checked_clause, saving_sentence
from torchtriage.diagnose.ranks.merge import merge_findings
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.workers import analyze_files
from torchtriage.diagnose.runs.compile_events import (
    graph_codes,
    lines_of,
    named,
    named_as,
    read_compiled,
    watched_compile,
)
from torchtriage.diagnose.runs.merge import join, scaled, with_leaks
from torchtriage.diagnose.runs.run_folder import (
    Recording,
    anonymised,
    failed_early,
    find_recordings,
    recorded,
    why_nothing,
)
from torchtriage.diagnose.runs.sampled import untraced, with_samples
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose
from torchtriage.diagnose.verdict.verdict_text import sentences, surely_grows
from torchtriage.memory.leaks.growth_test import CODE as LEAK
from torchtriage.memory.leaks.leak_report import findings as leak_findings


def judge_run(
    out: Path, options: Options, *, command: str, exit_code: int | None, pid: int | None
) -> tuple[tuple[JobResult, ...], tuple[Result, ...]]:
    """Return the jobs and each process' result; the parameters are those of ``api.analyze_run``.

    Raises TraceFormatError: nothing was recorded, or none of it can be read; the message says why.
    """
    recordings = [recording for recording in find_recordings(out) if pid in (None, recording.facts.get("pid"))]
    if (names := current()) is not None:
        recordings = [anonymised(recording, names) for recording in recordings]
        command = names.path(command)
    usable = [recording for recording in recordings if recording.light or recording.heavy]
    # beside a process with a loop, one without is what started it
    usable = [recording for recording in usable if recording.facts.get("loop")] or usable
    if not usable:
        reason, hint = why_nothing(out, recordings, exit_code)
        return (), _by_stacks_alone(recordings, options, command or str(out), exit_code, reason, hint)
    results = tuple(_process(recording, options, command, exit_code) for recording in usable)
    nothing = all(result.refused and not result.trace.categories.get("cpu_op") for result in results)
    if nothing and (failed := failed_early(exit_code)):
        return (), _by_stacks_alone(recordings, options, command or str(out), exit_code, *failed)
    if len(usable) == 1:
        return (), results
    jobs = _jobs(usable, results, options)
    return tuple(named_as(_with_leaks(job, usable, results, options), results) for job in jobs), results


def _by_stacks_alone(
    recordings: Sequence[Recording], options: Options, command: str, exit_code: int | None, reason: str, hint: str
) -> tuple[Result, ...]:
    """Return what the looks at the stacks show of each process.

    Raises TraceFormatError: nothing, for this reason.
    """
    results = tuple(
        untraced(item, recorded(item, command, exit_code), reason, hint, _folders([item], options))
        for item in recordings
        if item.samples is not None
    )
    results = tuple(result for result in results if result.recorded and result.recorded.account)
    if not results:
        raise TraceFormatError(reason, where=command, hint=hint)
    return results


def _folders(recordings: Sequence[Recording], options: Options) -> tuple[str, ...] | None:
    return options.folders(*(root for recording in recordings for root in recording.facts.get("roots", ())))


def _process(recording: Recording, options: Options, command: str, exit_code: int | None) -> Result:
    """Return one process' result out of its two recordings."""
    folders = _folders([recording], options)
    places = None if folders is None else Locator(folders, confined=options.confined)
    traces = [read_trace(path) for path in (recording.light, recording.heavy) if path is not None]
    compiled, unread = read_compiled(recording, traces[0])
    facts = recorded(recording, command, exit_code)
    facts = replace(facts, compiled=watched_compile(recording, compiled, unread))
    options = replace(options, step_ms=facts.step_ms)
    codes = graph_codes(recording)
    results = [diagnose(trace, options, places=places, compiled=lines_of(trace, codes)) for trace in traces]
    results = [scaled(result, facts.step_ms) for result in results]
    result = join(*results) if len(results) == 2 else results[0]
    result = with_leaks(result, recording.memory, leak_findings(recording.memory) if recording.memory else ())
    result = named(result, compiled)
    result, facts = with_samples(result, recording, facts, traces, folders, places)
    analysed = next(trace for trace in traces if trace.report.path == result.trace.path)
    first, saving, trust = sentences(analysed, result, options.min_share)
    if facts.step_ms and not result.refused:
        # one step time: what it was while it was recorded stands in the full report, by that name
        first = first.replace(f" of {format_ns(analysed.steps.wall_ns)}", " as recorded", 1)
        first = f"{first.removesuffix('.')}; {format_ms(facts.step_ms)} per step without the profiler."
    return replace(result, verdict=(first, saving, trust), recorded=facts)


def _jobs(usable: Sequence[Recording], results: Sequence[Result], options: Options) -> tuple[JobResult, ...]:
    """Return the jobs that the processes are ranks of, out of all their recordings."""
    times = [result.recorded.step_ms for result in results if result.recorded and result.recorded.step_ms]
    step_ms = sum(times) / len(times) if times else None
    options = replace(options, step_ms=step_ms, sources=_folders(usable, options))
    by_kind: list[tuple[JobResult, ...]] = []
    for kind in ("light", "heavy"):
        paths = [str(path) for recording in usable if (path := getattr(recording, kind)) is not None]
        if len(paths) == len(usable):
            jobs = analyze_files(paths, options, in_proportion=True).jobs
            by_kind.append(tuple(scaled(job, step_ms) for job in jobs))
    if len(by_kind) < 2 or [len(jobs) for jobs in by_kind] != [1, 1]:
        return by_kind[0] if by_kind else ()
    job = join(by_kind[0][0], by_kind[1][0])
    first, _, last = job.verdict
    last = last.replace(checked_clause(by_kind[0][0]), checked_clause(job))
    return (replace(job, verdict=(first, saving_sentence(job, options.min_share), last)),)


def _with_leaks(job: JobResult, usable: Sequence[Recording], results: Sequence[Result], options: Options) -> JobResult:
    """Return the job with what leaks in its ranks: by their watches, or surely by what else was seen of one."""
    watched = [recording.memory for recording in usable if recording.memory is not None]
    # one leak is the job's; that there is none must be known of every rank
    answers = ("leak", "too early", "no leak")
    seen = min(watched, key=lambda item: answers.index(item.answer), default=None)
    answered = seen is not None and seen.answer != "too early"
    leaks = [
        replace(
            result,
            findings=tuple(
                replace(found, cost=None)
                for found in result.findings
                if surely_grows(found) or (answered and found.code == LEAK)
            ),
        )
        for result in results
    ]
    ranks = [recording.facts.get("rank") for recording in usable]
    numbers = [at if rank is None else rank for at, rank in enumerate(ranks)]
    found = merge_findings(leaks, numbers, [0.0] * len(leaks), 0.0, judged=True)
    job = with_leaks(job, seen, found)
    if job.refused:
        return job
    first, _, last = job.verdict
    return replace(job, verdict=(first, saving_sentence(job, options.min_share), last))
