"""Analysing many files: one after the other, in processes of this machine, or on a Ray cluster.

Whatever runs them, a file is read, judged and reduced to its record by :func:`examine`, and records
come back in the order of the files: the engine shows in the time only. A file into which ranks were
merged gives a record for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
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
from torchtriage.core.workers import (
    PROCESSES_VARIABLE,
    WorkerLateError,
    WorkerLostError,
    Workers,
    WorkerStartError,
    can_start,
    n_cores,
)
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.ranks.job import OF_JOB, judge
from torchtriage.diagnose.ranks.job_detection import Job, detect_jobs
from torchtriage.diagnose.ranks.job_replay import rank_replay
from torchtriage.diagnose.ranks.object_store import is_url, opened
from torchtriage.diagnose.ranks.rank_record import RankRecord, build_record
from torchtriage.diagnose.ranks.rank_skeleton import rank_skeleton
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.timeline import RankTimeline, rank_timelines
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose_with_fixes

ENGINES = ("local", "ray")
WORTH_IT_BYTES = 24 << 20
"""On disk, all files together: below this the interpreters' start outweighs what they save."""
KEEP_TIMELINES = 64
"""With more files than this, results come without the picture of the timeline and with short lists."""
KEEP_ROWS = 5
"""Of each list then: a thousand ranks are read for what they share."""
MAX_REASONS = 10
"""Of files that cannot be read, where none can."""
TRIES = 3
"""Of a task of a cluster whose worker or node is lost."""
_MORE_MEMORY = "use nodes with more memory"
_KILLED = "the process that read it ended without an answer, most likely out of memory"


Records = tuple[RankRecord, ...]
Outcome = RankRecord | TraceFormatError | NoDeviceError


class _DefectError(TraceFormatError):
    """A defect of ours in the analysis of one file."""


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
    max_seconds: float | None = None,
    starting: Callable[[str, int], Callable[[int, int], None] | None] | None = None,
    in_proportion: bool = False,
) -> AnalyzedFiles:
    """Analyse files; the options are those of ``api.analyze_ranks``.

    ``in_proportion`` : a job's step is ``step_ms`` even where the replay of its ranks cannot be scaled to that.

    Raises TraceFormatError: none of them can be read; MissingExtraError, UsageError: what an engine or a URL needs is
    not installed; there is no such engine.
    """
    outcomes = list(
        examine_all(files, options, engine=engine, processes=processes, max_seconds=max_seconds, starting=starting)
    )
    records = [outcome for outcome in outcomes if isinstance(outcome, RankRecord)]
    errors = tuple(outcome for outcome in outcomes if isinstance(outcome, TraceFormatError))
    if not records:
        for outcome in outcomes:
            if isinstance(outcome, NoDeviceError):
                raise outcome
        if any(isinstance(error, _DefectError) for error in errors):
            raise RuntimeError(str(errors[0]))
        if len(errors) == 1:
            raise errors[0]
        reasons = "".join(f"\nleft out: {error}" for error in errors[:MAX_REASONS])
        if len(errors) > MAX_REASONS:
            reasons += f"\nand {len(errors) - MAX_REASONS:,} more"
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
            unprofiled_ms=options.step_ms if in_proportion else _reached_ms(records, job),
        )
        for job in found
    )
    timelines = tuple(rank_timelines(records, job) for job in found)
    return AnalyzedFiles(jobs, tuple(record.result for record in records), errors, timelines)


def _reached_ms(records: Sequence[RankRecord], job: Job) -> float | None:
    """Return the step that the savings of a job's ranks are scaled to, in the mean; None where none are."""
    replays = [replay for at in job.positions if (replay := records[at].result.replay) is not None]
    reached = [replay.unprofiled_step_ms for replay in replays if replay.unprofiled_step_ms is not None]
    return sum(reached) / len(reached) if reached else None


def _names(codes: Collection[str], code: str) -> bool:
    return any(lookup(item).pattern.code == code for item in codes)


def examine(
    path: str, options: Options, progress: Callable[[int, int], None] | None = None, *, timeline: bool = True
) -> Records:
    """Read and analyse one file, and keep what a job needs of each rank in it; without the ``timeline`` on request.

    Raises TraceFormatError: it is not a readable profiler trace.
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
    skeleton = rank_skeleton(trace, result, fixes)
    if not timeline:
        result = _brief(result)
    found = replace(build_record(trace, result.trace.path, result), skeleton=skeleton)
    if options.what_if:
        found = replace(found, replay=rank_replay(trace, tuple(options.what_if), options.step_ms))
    trace.release()
    return found


def _brief(result: Result) -> Result:
    """Return a result as it is kept of one of many files: without the picture, and with less of each list."""
    summary = result.summary
    if summary is not None:
        kernels, ops = summary.top_kernels[:KEEP_ROWS], summary.top_ops[:KEEP_ROWS]
        summary = replace(summary, timeline=(), top_kernels=kernels, top_ops=ops)
    findings = tuple(
        replace(
            finding,
            place=replace(
                finding.place,
                intervals_ns=finding.place.intervals_ns[:KEEP_ROWS],
                examples=finding.place.examples[:KEEP_ROWS],
            ),
        )
        for finding in result.findings
    )
    return replace(result, summary=summary, findings=findings)


def examine_all(
    paths: Sequence[str],
    options: Options,
    *,
    engine: str = "local",
    processes: int | None = None,
    max_seconds: float | None = None,
    starting: Callable[[str, int], Any] | None = None,
) -> Iterator[Outcome]:
    """Yield the records of each file, in their order; what cannot be read as its error.

    ``paths`` : files, ``-`` for standard input, or URLs. ``processes`` : of the local engine; by default as many as
    there are cores, where the files are worth it. ``max_seconds`` : a file that takes longer is left out, where another
    process can read it. ``starting`` : called with a path and how many are done, before that path is waited for.

    Raises MissingExtraError: Ray is not installed; UsageError: there is no such engine.
    """
    timeline = len(paths) <= KEEP_TIMELINES
    if engine not in ENGINES:
        raise UsageError(f"expected an engine out of {', '.join(ENGINES)}, found {engine!r}")
    if engine == "ray":
        yield from _by_ray(paths, options, timeline, max_seconds, starting)
        return
    n_processes = _count(paths) if processes is None else max(processes, 1)
    # what runs in this process cannot be ended
    ended = max_seconds is not None and can_start() and current() is None and not any(map(_only_here, paths))
    if n_processes > 1 or ended:
        yield from _by_processes(paths, options, timeline, min(n_processes, len(paths)), max_seconds, starting)
        return
    for done, path in enumerate(paths):
        progress = starting(path, done) if starting is not None else None
        if len(paths) == 1:  # a defect keeps its traceback
            yield from _outcomes(_examined_or_failed(path, options, progress, timeline))
        else:
            yield from _outcomes(_answer(path, options, timeline, progress))


def _examined_or_failed(
    path: str, options: Options, progress: Callable[[int, int], None] | None, timeline: bool
) -> Records | TriageError:
    try:
        return examine(path, options, progress, timeline=timeline)
    except (TriageError, MemoryError) as error:
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            return TraceFormatError("out of memory", where=path, hint="use fewer processes, or a larger machine")
        return error


def _outcomes(answer: Records | TriageError) -> tuple[Outcome, ...]:
    """Return a file's records or why it has none; raise what ends the analysis of all."""
    if isinstance(answer, TraceFormatError | NoDeviceError):
        return (answer,)
    if isinstance(answer, TriageError):
        raise answer
    return answer


def _count(paths: Sequence[str]) -> int:
    """Return how many processes pay: small files are read sooner than processes start."""
    # pseudonyms are remembered in this process
    if len(paths) < 2 or current() is not None or not can_start() or any(map(_only_here, paths)):
        return 1
    if sum(map(_size_bytes, paths)) < WORTH_IT_BYTES:
        return 1
    setting = os.environ.get(PROCESSES_VARIABLE, "")
    return max(int(setting), 1) if setting.isdigit() else n_cores()


def _only_here(path: str) -> bool:
    """Return whether only this process holds it."""
    return (is_url(path) and path.startswith("memory:")) or path == "-"


def _size_bytes(path: str) -> int:
    if is_url(path):
        return WORTH_IT_BYTES
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0  # the reader says what is wrong with it


# -- what crosses between processes --------------------------------------------------------------


def _answer(
    path: str, options: Options, timeline: bool, progress: Callable[[int, int], None] | None = None
) -> Records | TriageError:
    """Return records or the error of the file; one file's defect does not cost the others their analysis."""
    try:
        return _examined_or_failed(path, options, progress, timeline)
    except Exception as error:
        return _DefectError(
            f"a bug in torchtriage, {type(error).__name__}: {error}", where=path, hint="report it, with this file"
        )


def _by_processes(
    paths: Sequence[str],
    options: Options,
    timeline: bool,
    n_processes: int,
    max_seconds: float | None,
    starting: Callable[[str, int], Any] | None,
) -> Iterator[Outcome]:
    with Workers(n_processes, _answer, max_seconds) as workers:
        answers: list[Any] = [workers.submit(path, options, timeline) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            hint = f"set {PROCESSES_VARIABLE}=1"
            outcomes = _outcomes(_result(answers[done], path, options, timeline, hint))
            answers[done] = None  # its records are the reader's now
            yield from outcomes


def _result(answer: Future[Any], path: str, options: Options, timeline: bool, hint: str) -> Records | TriageError:
    try:
        found: Records | TriageError = answer.result()
    except WorkerStartError:  # without it, then
        return _answer(path, options, timeline)
    except WorkerLateError as error:
        late = f"not read and analysed within {error}"
        return TraceFormatError(late, where=path, hint="raise --max-seconds, or see whether its store answers")
    except WorkerLostError:
        return TraceFormatError(_KILLED, where=path, hint=hint)
    return found


# -- Ray -----------------------------------------------------------------------------------------


def _by_ray(
    paths: Sequence[str],
    options: Options,
    timeline: bool,
    max_seconds: float | None,
    starting: Callable[[str, int], Any] | None,
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
        # plain functions of an installed package: a cluster's workers need no copy of our code. Ray tries a task that
        # ran out of memory again for ever, unless it tries none again
        remote = ray.remote(num_cpus=1, max_retries=0)(_answer_within)
        waiting = [remote.remote(path, options, timeline, max_seconds) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            task = partial(remote.remote, path, options, timeline, max_seconds)
            answer = _of_cluster(ray, waiting[done], task, path)
            waiting[done] = None  # the store may forget it
            yield from _outcomes(answer)
    finally:
        if begun:
            ray.shutdown()


def _answer_within(path: str, options: Options, timeline: bool, max_seconds: float | None) -> Records | TriageError:
    """Return the answer; with a limit that of a process that can be ended, which a task of Ray cannot."""
    # a task has one processor, whatever the node has
    os.environ.setdefault(PROCESSES_VARIABLE, "1")
    if max_seconds is None:
        return _answer(path, options, timeline)
    with Workers(1, _answer, max_seconds) as workers:
        return _result(workers.submit(path, options, timeline), path, options, timeline, _MORE_MEMORY)


def _of_cluster(ray: Any, task: Any, again: Callable[[], Any], path: str) -> Records | TriageError:
    """Return the answer to a task, which is tried again where its worker or node was lost."""
    for left in range(TRIES - 1, -1, -1):
        try:
            found: Records | TriageError = ray.get(task)
        except ray.exceptions.RayError as error:  # noqa: PERF203 - tries are few
            if isinstance(error, ray.exceptions.RayTaskError):
                last = str(error).strip().splitlines()[-1:]
                return TraceFormatError(
                    f"a task of the cluster failed: {''.join(last) or repr(error)}",
                    where=path,
                    hint="every node needs the same torchtriage, and must be able to read the file",
                )
            if not left:
                memory = isinstance(error, ray.exceptions.OutOfMemoryError | ray.exceptions.WorkerCrashedError)
                what = _KILLED if memory else f"the node that read it was lost ({type(error).__name__})"
                return TraceFormatError(f"{what}, {TRIES} times", where=path, hint=_MORE_MEMORY)
            task = again()
        else:
            return found
    raise AssertionError
