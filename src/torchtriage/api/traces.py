"""The names we promise: ``load``, ``analyze``, ``compare``, ``explain`` and what they return."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from torchtriage.api import tables  # noqa: F401 - a loaded trace has the table of findings, too
from torchtriage.api.rendering import Renderable
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.folders import NO_TRACES, SUFFIXES, is_inside, once_each
from torchtriage.core.process import uncollected
from torchtriage.core.selection import Selection
from torchtriage.core.source.locate import Locator
from torchtriage.core.timing import part
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.input import open_source
from torchtriage.core.trace.memory_limit import within
from torchtriage.core.trace.merged_ranks import split_ranks
from torchtriage.core.trace.overlay import write_overlay
from torchtriage.core.trace.select import find_rank, select
from torchtriage.core.units import DEFAULT_MAX_BYTES, format_count
from torchtriage.diagnose.compare.result import Comparison
from torchtriage.diagnose.patterns import PatternEntry, catalogue, lookup
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.ranks.timeline import RankTimeline
from torchtriage.diagnose.verdict.options import CAPTURED, DEFAULTS, By, Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose
from torchtriage.measure.verify.result import Verification

if TYPE_CHECKING:
    from torchtriage.core.record.launch import Command
    from torchtriage.report.json_report import JsonReport

TracePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Report(Renderable, Result):
    """A :class:`~torchtriage.diagnose.verdict.result.Result` that shows itself, in notebooks too."""

    _sandbox = "allow-scripts"  # its page draws with a script of its own

    def _subject(self) -> JsonReport:
        from torchtriage.report.json_report import JsonReport

        return JsonReport.of([self])


@dataclass(frozen=True)
class ComparisonReport(Renderable, Comparison):
    """A :class:`~torchtriage.diagnose.compare.result.Comparison` that shows itself, in notebooks too."""


def load(
    path: TracePath | BinaryIO,
    *,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    execution_trace: TracePath | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a profiler trace into columns.

    Parameters
    ----------
    path : path, ``-`` for standard input, or binary stream
        ``.json``, ``.json.gz`` or ``.zip`` of the PyTorch profiler, or a database (docs/inputs.md).
    cache : bool
        Keep the columns beside the file, and use them next time while the file is the same.
    max_bytes : int
        Refuse inputs that expand beyond this.
    max_memory : int, optional
        Keep this process within so many bytes while it reads: the columns then lie in temporary
        files. Needs the native library, on Linux. A process forked meanwhile, or while such
        columns live, shares them: what one writes, the other sees.
    execution_trace : path, optional
        What ``ExecutionTraceObserver`` (Chakra) wrote of the same process and steps: operators that have no inputs
        get those that are recorded there. It is held in memory as a whole.
    progress : callable, optional
        Called with (uncompressed bytes read, size on disk).

    Raises TraceFormatError: the input is not a readable profiler trace, or ``execution_trace`` is none, or not of
    what it recorded; UsageError: the bound on memory cannot be kept.
    """
    with within(max_memory), uncollected(), part("read"):
        trace = read_trace(path, cache=cache, max_bytes=max_bytes, progress=progress)
        if execution_trace is None:
            return trace
        from torchtriage.core.trace.execution_trace import join_inputs

        return join_inputs(trace, execution_trace, max_bytes=max_bytes)


def analyze(
    source: TracePath | BinaryIO | Trace,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    min_share: float = DEFAULTS.min_share,
    what_if: Collection[str] = (),
    step_ms: float | None = None,
    sources: Collection[TracePath] | None = (),
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    detector: bool = False,
    by: By = DEFAULTS.by,
    peak: str = "",
    selection: Selection | None = None,
    confined: bool = False,
    capture: TracePath | BinaryIO | Trace | None = None,
    compile_log: TracePath | None = None,
    execution_trace: TracePath | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge one trace: a ranked list of findings with what fixing each gives back.

    Parameters
    ----------
    source : path, stream or Trace
        What to judge; see :func:`load`.
    only, skip : collections of codes or names
        Restrict the patterns.
    min_share : float
        Leave out findings whose high end is below this share of a step (0-1).
    what_if : collection of str
        Questions such as ``gpu*0.5``, ``comm=0``, ``no-sync``; the answers are in ``what_ifs``.
    step_ms : float, optional
        Wall time of a step without the profiler: host work is scaled to it.
    sources : collection of paths, or None
        Folders to find the recorded program's source in, besides the current one and the recorded
        places: frames then end at the line of the call. None opens no source file.
    cache, max_bytes, progress
        As in :func:`load`.
    max_memory : int, optional
        Keep this process within so many bytes, as in :func:`load`, for reading and judging.
    detector : bool
        Also ask the learned detector; what it sees beyond the findings is in ``suspicions``.
    by : ``category``, ``kernel``, ``operator``, ``module``, ``annotation`` or ``line``
        What the rows of the last table in ``device_time`` are.
    peak : str
        Peak rates of the device where they are not known: a device's name (``MI300X``), or rates in TFLOP/s and TB/s
        (``fp32=67,half=989,memory=3.35``).
    selection : Selection, optional
        The part of the recording to judge: steps, a window, an annotation, a rank of a merged file, a device.
    confined : bool
        Open no source outside the folders in ``sources``, wherever the recording says it was.
    capture : path, stream or Trace, optional
        A recording in which the graphs that the trace replays were captured (ROCm): with ``by`` operator,
        module or line their kernels count where they were captured.
    compile_log : path, optional
        The log of torch.compile (``TORCH_TRACE``) of the recorded program, a file or a folder: findings, and
        ``device_time`` by line, then name the lines that compiled graphs compute.

    Raises TraceFormatError: the input is not a readable profiler trace, or ``capture`` does not fit it; LogError:
    ``compile_log`` holds no code of a graph that the trace calls; UsageError: a code does not exist, a question cannot
    be read, ``selection`` chooses nothing that there is, ``step_ms`` is no time, ``peak`` states none, ``capture`` says
    nothing of ``by``, or the bound on memory cannot be kept.
    """
    options = Options(
        only,
        skip,
        min_share,
        what_if,
        step_ms,
        sources,
        cache,
        max_bytes,
        max_memory,
        detector,
        by,
        peak,
        selection,
        confined,
    )  # checked before minutes of reading
    if capture is not None and by not in CAPTURED:
        raise UsageError(f"a recording of a capture says nothing by {by}", hint="ask for by operator, module or line")
    folders = options.folders()
    with within(max_memory), uncollected():
        reading: dict[str, Any] = {"cache": cache, "max_bytes": max_bytes}
        trace = (
            source
            if isinstance(source, Trace)
            else load(source, execution_trace=execution_trace, progress=progress, **reading)
        )
        trace = select(trace, selection)
        captured = None
        if capture is not None:
            from torchtriage.core.trace.captured_graphs import find_captured

            other = capture if isinstance(capture, Trace) else load(capture, **reading)
            captured = find_captured(trace, other)
        compiled = None
        if compile_log is not None:
            from torchtriage.compile.logs.kernel_lines import read_graph_codes
            from torchtriage.diagnose.verdict.kernel_lines import find_kernel_lines

            compiled = find_kernel_lines(trace, read_graph_codes(os.fspath(compile_log), trace.origin.rank))
        places = None if folders is None else Locator(folders, confined=confined)
        report = Report.of(diagnose(trace, options, places=places, captured=captured, compiled=compiled))
        if not isinstance(source, Trace):
            trace.release()
        return report


def compare(
    before: TracePath | BinaryIO | Trace,
    after: TracePath | BinaryIO | Trace,
    *,
    promise: Result | None = None,
    across: bool = False,
    selection: Selection | None = None,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ComparisonReport:
    """Say what changed the step time between two runs of one workload.

    ``before``, ``after`` : the runs; see :func:`load`. Each is dropped before the next is read. Two folders with a
    recording of every rank, or two files that hold all ranks, are compared rank by rank and as a job. ``promise`` : an
    earlier result on ``before`` whose promised savings are checked, instead of today's. ``across`` : the runs are of
    two kinds of device, and the difference is split into host and work of the same operators. ``selection`` : the
    part of both to compare, as in :func:`analyze`. ``cache``, ``max_bytes``, ``progress`` : as in :func:`load`.

    Raises TraceFormatError: an input is not a readable profiler trace; UsageError: ``promise`` is
    about another recording, or a folder does not hold the ranks of one job.
    """
    from torchtriage.diagnose.compare import job, verdict

    def read(source: TracePath | BinaryIO | Trace) -> Trace:
        trace = (
            source if isinstance(source, Trace) else load(source, cache=cache, max_bytes=max_bytes, progress=progress)
        )
        return select(trace, selection)

    if selection is not None and selection.rank is not None:
        before, after = (
            load_rank(find_traces([side]), selection.rank, cache=cache, max_bytes=max_bytes, progress=progress)
            if isinstance(side, str | os.PathLike)
            else side
            for side in (before, after)
        )
    folders = [
        os.fspath(side) for side in (before, after) if isinstance(side, str | os.PathLike) and Path(side).is_dir()
    ]
    if len(folders) == 2 and promise is None:
        jobs = [job.gather_job(map(read, find_traces([folder])), folder) for folder in folders]
        return ComparisonReport.of(job.compare_jobs(*jobs, across=across))
    if folders:
        raise UsageError(
            "expected two folders with the ranks of one job, or two files",
            where=folders[0],
            hint="a saved promise is about one file"
            if promise is not None
            else "pass a folder or a file on both sides",
        )

    def gather(source: TracePath | BinaryIO | Trace) -> job.JobEvidence | verdict.ChangeEvidence:
        trace = read(source)
        ranks = split_ranks(trace)
        if promise is None and len(ranks) > 1:
            return job.gather_job(ranks, trace.report.path)
        return verdict.gather(trace, promised=promise if source is before else None)

    first, second = gather(before), gather(after)
    if isinstance(first, job.JobEvidence) and isinstance(second, job.JobEvidence):
        return ComparisonReport.of(job.compare_jobs(first, second, across=across))
    if isinstance(first, job.JobEvidence) or isinstance(second, job.JobEvidence):
        raise UsageError("expected two files of all ranks, or two of a process, found one of each")
    return ComparisonReport.of(verdict.compare(first, second, promised=promise, across=across))


@dataclass(frozen=True)
class RanksReport(Renderable):
    """Several traces: the jobs that some of them are ranks of, and each one's own result.

    ``unreadable`` holds what could not be read, as it would be raised.
    """

    jobs: tuple[JobResult, ...]
    results: tuple[Result, ...]
    unreadable: tuple[TraceFormatError, ...] = ()
    timelines: tuple[tuple[RankTimeline, ...], ...] = ()
    """The ranks of each job on its clock, for :func:`overlay_job`."""

    _sandbox = "allow-scripts"

    def _subject(self) -> JsonReport:
        from torchtriage.report.json_report import JsonReport

        return JsonReport.of(self.results, self.jobs)


def analyze_ranks(
    paths: TracePath | Iterable[TracePath],
    *,
    engine: str = "local",
    processes: int | None = None,
    max_seconds: float | None = None,
    starting: Callable[[str, int], Callable[[int, int], None] | None] | None = None,
    **options: Any,
) -> RanksReport:
    """Judge several traces, and those that are ranks of one job also together.

    Traces are read one after the other, or in processes, and of each only its result and a table
    of its collectives are kept: memory grows with those, not with the traces. A file into which
    ranks were merged counts as their traces.

    Parameters
    ----------
    paths : path, URL, or several
        Files, folders searched below, patterns with ``*``, URLs that fsspec opens.
    engine : ``local`` or ``ray``
        ``ray`` maps the files over a Ray cluster; the result is the same.
    processes : int, optional
        Of the local engine; as many as there are cores where the files are worth it.
    max_seconds : float, optional
        A file whose reading and analysis takes longer is left out.
    starting : callable, optional
        Called with a path and how many are done before it is read; may return a ``progress`` of
        :func:`load`, which is used where it is read in this process.
    **options
        ``only``, ``skip``, ``min_share`` and the others of :func:`analyze`, for each trace; each
        process keeps within ``max_memory``. A ``selection`` of a rank judges that rank alone.

    Raises TraceFormatError: there is no trace, or none that can be read; MissingExtraError: fsspec
    or Ray is needed and not installed; UsageError: a code or an engine does not exist, a question
    cannot be read, or the bound on memory cannot be kept.
    """
    from torchtriage.diagnose.ranks.workers import analyze_files

    asked = Options(**options)
    files = [os.fspath(path) for path in find_traces([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise TraceFormatError("expected at least one trace, found none")
    if asked.selection is not None and asked.selection.rank is not None:
        with within(asked.max_memory):
            trace = load_rank(files, asked.selection.rank, cache=asked.cache, max_bytes=asked.max_bytes)
        return RanksReport((), (analyze(trace, **options),))
    # a worker may have another current folder
    asked = replace(asked, sources=asked.folders())
    outcome = analyze_files(
        files, asked, engine=engine, processes=processes, max_seconds=max_seconds, starting=starting
    )
    return RanksReport(outcome.jobs, outcome.results, outcome.unreadable, outcome.timelines)


def load_rank(files: Iterable[TracePath], rank: int, **options: Any) -> Trace:
    """Return the trace of a rank, reading no file after it; ``options`` : of :func:`load`.

    Raises UsageError: no file that can be read is of this rank.
    """
    # what a name says is a guess at which to read first
    named = re.compile(rf"(?<!\d){rank}(?!\d)")
    ordered = sorted(files, key=lambda file: not named.search(Path(os.fspath(file)).name))

    def tried(file: TracePath) -> Trace | None:
        try:
            return load(file, **options)
        except TraceFormatError:
            if len(ordered) == 1:
                raise
            return None

    return find_rank(filter(None, map(tried, ordered)), rank)


def analyze_run(
    out: TracePath,
    *,
    command: str = "",
    exit_code: int | None = None,
    pid: int | None = None,
    options: Options = DEFAULTS,
) -> RanksReport:
    """Judge what ``torchtriage run`` recorded: each process once, ranks of one job also together.

    Costs come from the light recording, places from the heavy one, both scaled to the step time
    that was measured without a profiler.

    ``out`` : the folder of the recordings. ``command``, ``exit_code`` : what was run and how it ended, for the
    report. ``pid`` : judge this process alone. ``options`` : as in :func:`analyze`; the folders of the script are
    searched for sources, too.

    Raises TraceFormatError: nothing was recorded, or none of it can be read; the message says why.
    """
    from torchtriage.diagnose.runs.analyze import judge_run

    jobs, results = judge_run(Path(out), options, command=command, exit_code=exit_code, pid=pid)
    return RanksReport(jobs, tuple(map(Report.of, results)))


def verify(
    before: Sequence[str],
    after: Sequence[str],
    *,
    out: TracePath,
    steps: int = 40,
    rounds: int = 12,
    record: bool = True,
    allow: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Prove a fix: run two programs in turns, unprofiled, and see what was saved.

    Parameters
    ----------
    before, after : sequences of str
        Words of a command, as for ``torchtriage run``: ``["train.py", "--epochs", "1"]``.
    out : path
        Folder for what the programs print and what is measured.
    steps : int
        End each run after so many timed steps; 0 compares whole runs.
    rounds : int
        Runs of each at most.
    record : bool
        Record both once, to know what the fixed findings had promised.
    allow : bool
        Other results are intended: the outcome is that of the times.
    progress : callable, optional
        Called with a line of text before each run.

    Raises UsageError: a program cannot be started, or failed.
    """
    from torchtriage.core.record.launch import find_command
    from torchtriage.measure.verify.paired_runs import Trial, run_trial, sample
    from torchtriage.measure.verify.verify import conclude

    folder = Path(out)
    tell = progress or (lambda _text: None)
    commands = find_command(before), find_command(after)

    def on_round(number: int, trial: Trial | None) -> None:
        known = "" if trial is None else f", after takes {trial.ratio.value:.3f} of before so far"
        tell(f"round {number + 1} of at most {rounds}{known}")

    results: tuple[Result, Result] | None = None
    if record:
        tell("recording both once")
        found = [_recorded(command, folder / name) for name, command in zip(("promise", "kept"), commands, strict=True)]
        if all(found):
            results = found[0][0], found[1][0]
    trial = run_trial(
        lambda number: sample(commands[0], folder / f"before{number + 1}", steps=steps),
        lambda number: sample(commands[1], folder / f"after{number + 1}", steps=steps),
        most_rounds=rounds,
        progress=on_round,
    )
    return conclude(
        trial,
        before=str(commands[0]),
        after=str(commands[1]),
        results=results,
        scripts=(_script(before), _script(after)),
        allow=allow,
    )


def _recorded(command: Command, folder: Path) -> tuple[Result, ...]:
    from torchtriage.measure.verify.paired_runs import record_once

    record_once(command, folder)
    try:
        # what is left of a finding may be too small to report
        return analyze_run(folder, command=str(command), options=Options(min_share=0.0)).results
    except TraceFormatError:
        return ()


def _script(words: Sequence[str]) -> str:
    return next((Path(word).name for word in words if word.endswith(".py")), "")


def overlay(path: TracePath, result: Result, out: TracePath, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Write the trace at ``path`` to ``out`` with a track per finding, for ui.perfetto.dev.

    Compressed when ``out`` ends in ``.gz``.

    Raises TraceFormatError: the trace cannot be read, or expands beyond ``max_bytes``; UsageError:
    ``out`` cannot be written, or is the input.
    """
    from torchtriage.report import perfetto

    write_overlay(path, out, perfetto.events(result), max_bytes=max_bytes)


def overlay_job(report: RanksReport, out: TracePath, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Write the ranks of a job to one file for ui.perfetto.dev: their clocks aligned, with findings and collectives.

    Compressed when ``out`` ends in ``.gz``.

    Raises TraceFormatError: a trace cannot be read; UsageError: the report is not of one job whose ranks have files of
    their own, or ``out`` cannot be written.
    """
    from torchtriage.core.trace.joined import write_joined
    from torchtriage.report import perfetto

    if len(report.timelines) != 1:
        raise UsageError(f"expected the ranks of one job for one Perfetto file, found {len(report.timelines)} jobs")
    if not all(Path(timeline.path).is_file() for timeline in report.timelines[0]):
        raise UsageError("expected a file for each rank, found ranks merged into one, or ones from elsewhere")
    write_joined(perfetto.tracks(report.timelines[0], report.results), out, max_bytes=max_bytes)


def explain(code_or_name: str | None = None) -> PatternEntry | tuple[PatternEntry, ...]:
    """Return a pattern's page, or all patterns without an argument.

    Raises UsageError: no pattern has this code or name.
    """
    return catalogue() if code_or_name is None else lookup(code_or_name)


def find_traces(paths: Iterable[TracePath]) -> list[str | Path]:
    """Return the traces that paths stand for: files as they are, folders searched below.

    Links that lead out of such a folder are not followed. Of a recording in several formats, one is left.

    Patterns (``run/*.json.gz``) are expanded where no file has that name; URLs (``s3://…``) are
    looked up in their store.

    Raises TraceFormatError: a path does not exist, or a folder holds no candidate.
    """
    found: list[str | Path] = []
    for item in paths:
        if item == "-":
            found.append(item)
            continue
        if isinstance(item, str) and "://" in item:
            from torchtriage.diagnose.ranks.object_store import find_urls, is_url

            if is_url(item):
                found += find_urls(item)
                continue
        path = Path(item)
        try:
            if any(mark in path.name for mark in "*?[") and not path.exists():
                found += _expanded(path)
                continue
            if not path.is_dir():
                found.append(path)
                continue
            files = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
            inside = [file for file in files if is_inside(file, path)]
        except (OSError, ValueError) as error:
            raise TraceFormatError(f"cannot be read: {error}", where=repr(str(path))) from error
        if not inside:
            raise TraceFormatError(
                f"expected traces in this folder, {NO_TRACES}",
                where=str(path),
                hint="pass the files that its links lead to"
                if files
                else "export with prof.export_chrome_trace('trace.json.gz')",
            )
        if len(inside) < len(files):
            import logging

            n_links = format_count(len(files) - len(inside), "link")
            logging.getLogger("torchtriage.traces").warning(
                "%s: left out %s to files outside; pass those files to read them", path, n_links
            )
        found += inside
    return once_each(list(dict.fromkeys(found)), _is_of_jax)


def _is_of_jax(path: TracePath) -> bool:
    try:
        with open_source(path, others=True) as source:
            return source.is_xplane_json
    except TraceFormatError:
        return False


def _expanded(pattern: Path) -> list[Path]:
    some = sorted(path for path in pattern.parent.glob(pattern.name) if path.is_file())
    if not some:
        raise TraceFormatError("expected files of this pattern, found none", where=str(pattern))
    return some


def sample_path(device: Literal["cpu", "gpu"] = "cpu") -> Path:
    """Return a bundled sample: our own recording of a small script on the CPU, or one of a training on a GPU."""
    return Path(__file__).parents[1] / "cli" / "sample" / f"sample_{device}_training.json.gz"
