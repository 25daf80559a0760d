"""Analysing many files: one after the other, in processes of this machine, or on a Ray cluster.

Whatever runs them, a file is read, judged and reduced to its record by :func:`examine`, and records
come back in the order of the files: the engine shows in the time only. A file into which ranks were
merged gives a record for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchtriage.core.anonymous import current
from torchtriage.core.errors import MissingExtraError, NoDeviceError, TraceFormatError, TriageError, UsageError
from torchtriage.core.source.locate import Locator
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.memory_limit import within
from torchtriage.core.trace.merged_ranks import split_ranks
from torchtriage.core.trace.select import select_each
from torchtriage.core.workers import PROCESSES_VARIABLE, WorkerLostError, Workers, can_start, n_cores
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.ranks.job import OF_JOB, judge
from torchtriage.diagnose.ranks.job_detection import detect_jobs
from torchtriage.diagnose.ranks.job_replay import rank_replay
from torchtriage.diagnose.ranks.object_store import is_url, opened
from torchtriage.diagnose.ranks.rank_record import RankRecord, build_record
from torchtriage.diagnose.ranks.rank_skeleton import rank_skeleton
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.timeline import RankTimeline, rank_timelines
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose_with_fixes

__all__ = ["ENGINES", "AnalyzedFiles", "analyze_files", "examine", "examine_all"]

ENGINES = ("local", "ray")
WORTH_IT_BYTES = 24 << 20
"""On disk, all files together: below this the interpreters' start outweighs what they save."""
KEEP_TIMELINES = 64
"""With more files than this, results come without the picture of the timeline."""
_KILLED = "the process that read it ended without an answer, most likely out of memory"


Records = tuple[RankRecord, ...]
Outcome = RankRecord | TraceFormatError | NoDeviceError
Progress = Callable[[str], Callable[[int, int], None] | None]


@dataclass(frozen=True)
class AnalyzedFiles:
    """The jobs that were found, each file's result, and why files have none; ``timelines`` : the ranks of each job."""

    jobs: tuple[JobResult, ...]
    results: tuple[Result, ...]
    unreadable: tuple[TraceFormatError, ...]
    timelines: tuple[tuple[RankTimeline, ...], ...]


def analyze_files(
    files: Sequence[str],
    options: Options,
    *,
    engine: str = "local",
    processes: int | None = None,
    starting: Callable[[str, int], Callable[[int, int], None] | None] | None = None,
) -> AnalyzedFiles:
    """Analyse files; the options are those of ``api.analyze_ranks``.

    Raises
    ------
    TraceFormatError
        None of them can be read.
    MissingExtraError, UsageError
        What an engine or a URL needs is not installed; there is no such engine.
    """
    outcomes = list(examine_all(files, options, engine=engine, processes=processes, starting=starting))
    records = [outcome for outcome in outcomes if isinstance(outcome, RankRecord)]
    errors = tuple(outcome for outcome in outcomes if isinstance(outcome, TraceFormatError))
    if not records:
        for outcome in outcomes:
            if isinstance(outcome, NoDeviceError):
                raise outcome
        if len(errors) == 1:
            raise errors[0]
        reasons = "".join(f"\nleft out: {error}" for error in errors)
        raise TraceFormatError(f"none of the {len(files)} files is a readable trace{reasons}")
    asked = {
        code for code in OF_JOB if (not options.only or _names(options.only, code)) and not _names(options.skip, code)
    }
    found = detect_jobs(records)
    jobs = tuple(
        judge(
            records,
            job,
            min_share=options.min_share,
            codes=asked,
            what_if=tuple(options.what_if),
            unprofiled_ms=options.step_ms,
        )
        for job in found
    )
    timelines = tuple(rank_timelines(records, job) for job in found)
    return AnalyzedFiles(jobs, tuple(record.result for record in records), errors, timelines)


def _names(codes: Collection[str], code: str) -> bool:
    return any(lookup(item).pattern.code == code for item in codes)


def examine(
    path: str, options: Options, progress: Callable[[int, int], None] | None = None, *, timeline: bool = True
) -> Records:
    """Read and analyse one file, and keep what a job needs of each rank in it; without the ``timeline`` on request.

    Raises
    ------
    TraceFormatError
        It is not a readable profiler trace.
    """
    with within(options.max_memory):
        if is_url(path):
            with opened(path) as stream:
                trace = read_trace(stream, max_bytes=options.max_bytes, progress=progress)
                names = current()
                shown = path if names is None else names.path(path)
                trace = replace(trace, report=msgspec.structs.replace(trace.report, path=shown))
                return _examined(trace, options, timeline)
        trace = read_trace(path, cache=options.cache, max_bytes=options.max_bytes, progress=progress)
        return _examined(trace, options, timeline)


def _examined(trace: Trace, options: Options, timeline: bool) -> Records:
    return tuple(_record(part, options, timeline) for part in select_each(split_ranks(trace), options.selection))


def _record(trace: Trace, options: Options, timeline: bool) -> RankRecord:
    places = None if options.sources is None else Locator(options.sources, confined=options.confined)
    result, fixes = diagnose_with_fixes(trace, options, places=places)
    if not timeline and result.summary is not None:
        result = replace(result, summary=replace(result.summary, timeline=()))
    found = replace(build_record(trace, result.trace.path, result), skeleton=rank_skeleton(trace, result, fixes))
    if options.what_if:
        found = replace(found, replay=rank_replay(trace, tuple(options.what_if), options.step_ms))
    return found


def examine_all(
    paths: Sequence[str],
    options: Options,
    *,
    engine: str = "local",
    processes: int | None = None,
    starting: Callable[[str, int], Any] | None = None,
) -> Iterator[Outcome]:
    """Yield the records of each file, in their order; what cannot be read as its error.

    ``paths`` : files, ``-`` for standard input, or URLs. ``processes`` : of the local engine; by default as many as
    there are cores, where the files are worth it. ``starting`` : called with a path and how many are done, before
    that path is waited for.

    Raises
    ------
    MissingExtraError
        Ray is not installed.
    UsageError
        There is no such engine.
    """
    timeline = len(paths) <= KEEP_TIMELINES
    if engine not in ENGINES:
        raise UsageError(f"expected an engine out of {', '.join(ENGINES)}, found {engine!r}")
    if engine == "ray":
        yield from _by_ray(paths, options, timeline, starting)
        return
    n_processes = _count(paths) if processes is None else max(processes, 1)
    if n_processes > 1:
        yield from _by_processes(paths, options, timeline, min(n_processes, len(paths)), starting)
        return
    for done, path in enumerate(paths):
        progress = starting(path, done) if starting is not None else None
        try:
            yield from examine(path, options, progress, timeline=timeline)
        except (TriageError, MemoryError) as error:
            yield from _outcomes(_failure(path, error))


def _failure(path: str, error: TriageError | MemoryError) -> TriageError:
    """Return the error of a file: a TraceFormatError where other files may still be read."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return TraceFormatError("out of memory", where=path, hint="use fewer processes, or a larger machine")
    return error


def _outcomes(answer: Records | TriageError | str) -> tuple[Outcome, ...]:
    """Return a file's records or why it has none; raise what ends the analysis of all."""
    if isinstance(answer, str):
        raise RuntimeError(answer)
    if isinstance(answer, TraceFormatError | NoDeviceError):
        return (answer,)
    if isinstance(answer, TriageError):
        raise answer
    return answer


def _count(paths: Sequence[str]) -> int:
    """Return how many processes pay: small files are read sooner than processes start."""
    # pseudonyms are remembered in this process
    if len(paths) < 2 or current() is not None or not can_start():
        return 1
    if any((is_url(path) and path.startswith("memory:")) or path == "-" for path in paths):
        return 1  # what only this process holds
    if sum(map(_size_bytes, paths)) < WORTH_IT_BYTES:
        return 1
    setting = os.environ.get(PROCESSES_VARIABLE, "")
    return max(int(setting), 1) if setting.isdigit() else n_cores()


def _size_bytes(path: str) -> int:
    if is_url(path):
        return WORTH_IT_BYTES
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0  # the reader says what is wrong with it


# -- what crosses between processes --------------------------------------------------------------


def _answer(path: str, options: Options, timeline: bool) -> Records | TriageError | str:
    """Return records, the error of the file, or a defect as text: it may not cross as it is."""
    try:
        return examine(path, options, timeline=timeline)
    except (TriageError, MemoryError) as error:
        return _failure(path, error)
    except Exception as error:  # a defect must not pass for a process that was killed
        return f"{type(error).__name__}: {error} (reading {path})"


def _by_processes(
    paths: Sequence[str], options: Options, timeline: bool, n_processes: int, starting: Callable[[str, int], Any] | None
) -> Iterator[Outcome]:
    with Workers(n_processes, _answer) as workers:
        answers: list[Any] = [workers.submit(path, options, timeline) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            try:
                outcomes = _outcomes(answers[done].result())
            except WorkerLostError:
                outcomes = (TraceFormatError(_KILLED, where=path, hint=f"set {PROCESSES_VARIABLE}=1"),)
            answers[done] = None  # its records are the reader's now
            yield from outcomes


# -- Ray -----------------------------------------------------------------------------------------


def _by_ray(
    paths: Sequence[str], options: Options, timeline: bool, starting: Callable[[str, int], Any] | None
) -> Iterator[Outcome]:
    """Map the files over a Ray cluster: the one that is connected, ``$RAY_ADDRESS``, or a new one.

    The files must be where the cluster's nodes can read them.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "expected Ray for --engine ray, it is not installed", hint="pip install 'torchtriage[cluster]'"
        ) from None
    if any(path == "-" for path in paths):
        raise UsageError("standard input cannot be read by other machines", hint="pass files")
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    try:
        # plain functions of an installed package: a cluster's workers need no copy of our code
        answer = ray.remote(num_cpus=1, max_retries=2)(_answer)
        waiting = [answer.remote(path, options, timeline) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            try:
                outcomes = _outcomes(ray.get(waiting[done]))
            except (ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError):
                outcomes = (TraceFormatError(_KILLED, where=path, hint="use nodes with more memory"),)
            except ray.exceptions.RayError as error:
                first = str(error).strip().splitlines()
                raise TriageError(
                    f"a task of the cluster failed: {first[-1] if first else error!r}",
                    where=path,
                    hint="every node needs the same torchtriage, and must be able to read the file",
                ) from error
            waiting[done] = None  # the store may forget it
            yield from outcomes
    finally:
        if begun:
            ray.shutdown()
