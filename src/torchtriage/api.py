"""The names we promise: ``load``, ``analyze``, ``compare``, ``explain`` and what they return."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchtriage.diagnose import diagnose
from torchtriage.diagnose.verdict import DEFAULT_MIN_SHARE
from torchtriage.errors import TraceFormatError
from torchtriage.finding import Comparison, JobResult, Result, Verification
from torchtriage.locate import Locator
from torchtriage.patterns import Entry, catalogue, lookup
from torchtriage.replay import parse_what_if
from torchtriage.report.shown import Shown
from torchtriage.trace import Trace, read_trace
from torchtriage.trace.bound import within
from torchtriage.trace.overlay import write_overlay
from torchtriage.trace.source import DEFAULT_MAX_BYTES

if TYPE_CHECKING:
    from torchtriage.record.launch import Command

__all__ = [
    "ComparisonReport",
    "RanksReport",
    "Report",
    "analyze",
    "analyze_ranks",
    "analyze_run",
    "compare",
    "explain",
    "find_traces",
    "load",
    "overlay",
    "sample_path",
    "verify",
]

TracePath = str | os.PathLike[str]
SUFFIXES = (".json", ".json.gz", ".zip")


@dataclass(frozen=True)
class Report(Shown, Result, scripts=True):
    """A :class:`~torchtriage.finding.Result` that shows itself, in notebooks too."""

    def _made_from(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ([self],), {}


@dataclass(frozen=True)
class ComparisonReport(Shown, Comparison, room="comparison"):
    """A :class:`~torchtriage.finding.Comparison` that shows itself, in notebooks too."""


def load(
    path: TracePath | BinaryIO,
    *,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a profiler trace into columns.

    Parameters
    ----------
    path : path, ``-`` for standard input, or binary stream
        ``.json``, ``.json.gz`` or ``.zip``.
    cache : bool
        Keep the columns beside the file, and use them next time while the file is the same.
    max_bytes : int
        Refuse inputs that expand beyond this.
    max_memory : int, optional
        Keep this process within so many bytes while it reads: the columns then lie in temporary
        files. Needs the native library, on Linux. A process forked meanwhile, or while such
        columns live, shares them: what one writes, the other sees.
    progress : callable, optional
        Called with (uncompressed bytes read, size on disk).

    Raises
    ------
    TraceFormatError
        The input is not a readable profiler trace.
    UsageError
        The bound on memory cannot be kept.
    """
    with within(max_memory):
        return read_trace(path, cache=cache, max_bytes=max_bytes, progress=progress)


def analyze(
    source: TracePath | BinaryIO | Trace,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    min_share: float = DEFAULT_MIN_SHARE,
    what_if: Collection[str] = (),
    step_ms: float | None = None,
    sources: Collection[TracePath] | None = (),
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    detector: bool = False,
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

    Raises
    ------
    TraceFormatError
        The input is not a readable profiler trace.
    UsageError
        A code does not exist, a question cannot be read, ``step_ms`` is no time, or the bound on
        memory cannot be kept.
    """
    questions = _check(only, skip, what_if)  # before minutes of reading
    with within(max_memory):
        trace = (
            source
            if isinstance(source, Trace)
            else load(source, cache=cache, max_bytes=max_bytes, progress=progress)
        )
        result = diagnose(
            trace,
            only=only,
            skip=skip,
            min_share=min_share,
            what_if=questions,
            step_ms=step_ms,
            places=None if sources is None else Locator((*sources, Path.cwd())),
            detector=detector,
        )
    return _shown(result)


def _check(
    only: Collection[str], skip: Collection[str], what_if: Collection[str]
) -> tuple[str, ...]:
    """Raise for a code or a question that does not exist; return the questions."""
    for code in (*only, *skip):
        lookup(code)
    questions = (what_if,) if isinstance(what_if, str) else tuple(what_if)
    for question in questions:
        parse_what_if(question)
    return questions


def compare(
    before: TracePath | BinaryIO | Trace,
    after: TracePath | BinaryIO | Trace,
    *,
    promise: Result | None = None,
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ComparisonReport:
    """Say what changed the step time between two runs of one workload.

    Parameters
    ----------
    before, after : path, stream or Trace
        The runs; see :func:`load`. Each is dropped before the next is read.
    promise : Result, optional
        An earlier result on ``before`` whose promised savings are checked, instead of today's.
    cache, max_bytes, progress
        As in :func:`load`.

    Raises
    ------
    TraceFormatError
        An input is not a readable profiler trace.
    UsageError
        ``promise`` is about another recording.
    """
    from torchtriage import comparison

    sides = [
        comparison.gather(
            source
            if isinstance(source, Trace)
            else load(source, cache=cache, max_bytes=max_bytes, progress=progress)
        )
        for source in (before, after)
    ]
    result = comparison.compare(*sides, promised=promise)
    return ComparisonReport(**{one.name: getattr(result, one.name) for one in fields(result)})


@dataclass(frozen=True)
class RanksReport(Shown, scripts=True):
    """Several traces: the jobs that some of them are ranks of, and each one's own result.

    ``unreadable`` holds what could not be read, as it would be raised.
    """

    jobs: tuple[JobResult, ...]
    results: tuple[Result, ...]
    unreadable: tuple[TraceFormatError, ...] = ()

    def _made_from(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.results,), {"jobs": self.jobs}


def analyze_ranks(
    paths: TracePath | Iterable[TracePath],
    *,
    engine: str = "local",
    processes: int | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    min_share: float = DEFAULT_MIN_SHARE,
    what_if: Collection[str] = (),
    step_ms: float | None = None,
    sources: Collection[TracePath] | None = (),
    cache: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    detector: bool = False,
    starting: Callable[[str, int], Callable[[int, int], None] | None] | None = None,
) -> RanksReport:
    """Judge several traces, and those that are ranks of one job also together.

    Traces are read one after the other, or in processes, and of each only its result and a table
    of its collectives are kept: memory grows with those, not with the traces.

    Parameters
    ----------
    paths : path, URL, or several
        Files, folders searched below, patterns with ``*``, URLs that fsspec opens.
    engine : ``local`` or ``ray``
        ``ray`` maps the files over a Ray cluster; the result is the same.
    processes : int, optional
        Of the local engine; as many as there are cores where the files are worth it.
    only, skip, min_share, what_if, step_ms, sources, cache, max_bytes, max_memory, detector
        As in :func:`analyze`, for each trace; each process keeps within ``max_memory``.
    starting : callable, optional
        Called with a path and how many are done before it is read; may return a ``progress`` of
        :func:`load`, which is used where it is read in this process.

    Raises
    ------
    TraceFormatError
        There is no trace, or none that can be read.
    MissingExtraError
        fsspec or Ray is needed and not installed.
    UsageError
        A code or an engine does not exist, a question cannot be read, or the bound on memory
        cannot be kept.
    """
    from torchtriage.ranks.engines import Settings
    from torchtriage.ranks.files import judge_files

    questions = _check(only, skip, what_if)
    some = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [os.fspath(one) for one in find_traces(some)]
    if not files:
        raise TraceFormatError("expected at least one trace, found none")
    settings = Settings(
        tuple(only),
        tuple(skip),
        min_share,
        cache,
        max_bytes,
        what_if=questions,
        step_ms=step_ms,
        max_memory=max_memory,
        detector=detector,
        sources=None
        if sources is None
        else (*(str(Path(one)) for one in sources), str(Path.cwd())),
    )
    judged = judge_files(files, settings, engine=engine, processes=processes, starting=starting)
    return RanksReport(judged.jobs, judged.results, judged.unreadable)


def analyze_run(
    out: TracePath,
    *,
    command: str = "",
    exit_code: int | None = None,
    pid: int | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    min_share: float = DEFAULT_MIN_SHARE,
    what_if: Collection[str] = (),
    sources: Collection[TracePath] | None = (),
) -> RanksReport:
    """Judge what ``torchtriage run`` recorded: each process once, ranks of one job also together.

    Costs come from the light recording, places from the heavy one, both scaled to the step time
    that was measured without a profiler.

    Parameters
    ----------
    out : path
        The folder of the recordings.
    command, exit_code : str, int
        What was run and how it ended, for the report.
    pid : int, optional
        Judge this process alone.
    only, skip, min_share, what_if, sources
        As in :func:`analyze`; the folders of the script are looked in, too.

    Raises
    ------
    TraceFormatError
        Nothing was recorded, or none of it can be read; the message says why.
    UsageError
        A code does not exist, or a question cannot be read.
    """
    from torchtriage.record.judge import Asked, judge_run

    asked = Asked(
        tuple(only),
        tuple(skip),
        min_share,
        what_if=_check(only, skip, what_if),
        sources=None if sources is None else tuple(map(Path, sources)),
    )
    jobs, results = judge_run(Path(out), asked, command=command, exit_code=exit_code, pid=pid)
    return RanksReport(jobs, tuple(_shown(one) for one in results))


def _shown(result: Result) -> Report:
    """Return a result that shows itself."""
    return Report(**{field.name: getattr(result, field.name) for field in fields(result)})


def verify(
    before: Sequence[str],
    after: Sequence[str],
    *,
    out: TracePath,
    steps: int = 40,
    rounds: int = 12,
    record: bool = True,
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
    progress : callable, optional
        Called with a line of text before each run.

    Raises
    ------
    UsageError
        A program cannot be started, or failed.
    """
    from torchtriage.record.launch import find_command
    from torchtriage.record.trial import Trial, run_trial, sample
    from torchtriage.record.verify import conclude

    folder = Path(out)
    tell = progress or (lambda _text: None)
    commands = find_command(before), find_command(after)

    def told(number: int, trial: Trial | None) -> None:
        known = "" if trial is None else f", after takes {trial.ratio.value:.3f} of before so far"
        tell(f"round {number + 1} of at most {rounds}{known}")

    results: tuple[Result, Result] | None = None
    if record:
        tell("recording both once")
        found = [
            _recorded(one, folder / name)
            for name, one in zip(("promise", "kept"), commands, strict=True)
        ]
        if all(found):
            results = found[0][0], found[1][0]
    trial = run_trial(
        lambda number: sample(commands[0], folder / f"before{number + 1}", steps=steps),
        lambda number: sample(commands[1], folder / f"after{number + 1}", steps=steps),
        most_rounds=rounds,
        told=told,
    )
    return conclude(
        trial,
        before=str(commands[0]),
        after=str(commands[1]),
        results=results,
        scripts=(_script(before), _script(after)),
    )


def _recorded(command: Command, folder: Path) -> tuple[Result, ...]:
    """Return what a recording of the program shows; nothing where it has no loop."""
    from torchtriage.record.trial import record_once

    record_once(command, folder)
    try:
        # what is left of a finding may be too small to report
        return analyze_run(folder, command=str(command), min_share=0.0).results
    except TraceFormatError:
        return ()


def _script(words: Sequence[str]) -> str:
    return next((Path(one).name for one in words if one.endswith(".py")), "")


def overlay(
    path: TracePath, result: Result, out: TracePath, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> None:
    """Write the trace at ``path`` to ``out`` with a track per finding, for ui.perfetto.dev.

    Compressed when ``out`` ends in ``.gz``.

    Raises
    ------
    TraceFormatError
        The trace cannot be read, or expands beyond ``max_bytes``.
    UsageError
        ``out`` cannot be written, or is the input.
    """
    from torchtriage.report import perfetto

    write_overlay(path, out, perfetto.events(result), max_bytes=max_bytes)


def explain(code_or_name: str | None = None) -> Entry | tuple[Entry, ...]:
    """Return a pattern's page, or all patterns without an argument.

    Raises
    ------
    UsageError
        No pattern has this code or name.
    """
    return catalogue() if code_or_name is None else lookup(code_or_name)


def find_traces(paths: Iterable[TracePath]) -> list[str | Path]:
    """Return the traces that paths stand for: files as they are, folders searched below.

    Patterns (``run/*.json.gz``) are expanded where no file has that name; URLs (``s3://…``) are
    looked up in their store.

    Raises
    ------
    TraceFormatError
        A path does not exist, or a folder holds no candidate.
    """
    found: list[str | Path] = []
    for item in paths:
        if item == "-":
            found.append(item)
            continue
        if isinstance(item, str) and "://" in item:
            from torchtriage.ranks.remote import find_urls, is_url

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
            inside = sorted(
                one for one in path.rglob("*") if one.name.endswith(SUFFIXES) and one.is_file()
            )
        except (OSError, ValueError) as error:
            raise TraceFormatError(f"cannot be read: {error}", where=repr(str(path))) from error
        if not inside:
            raise TraceFormatError(
                "expected traces in this folder, found no .json, .json.gz or .zip file",
                where=str(path),
                hint="export with prof.export_chrome_trace('trace.json.gz')",
            )
        found += inside
    return list(dict.fromkeys(found))


def _expanded(pattern: Path) -> list[Path]:
    some = sorted(one for one in pattern.parent.glob(pattern.name) if one.is_file())
    if not some:
        raise TraceFormatError("expected files of this pattern, found none", where=str(pattern))
    return some


def sample_path() -> Path:
    """Return the bundled sample: our own recording of a small training script on the CPU."""
    return Path(__file__).parent / "data" / "sample_cpu_training.json.gz"
