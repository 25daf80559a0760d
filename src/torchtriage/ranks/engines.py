"""Analysing many files: one after the other, in processes of this machine, or on a Ray cluster.

Whatever runs them, a file is read, judged and reduced to its record by :func:`examine`, and records
come back in the order of the files: the engine shows in the time only.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torchtriage.diagnose import diagnose
from torchtriage.errors import MissingExtraError, TraceFormatError, TriageError, UsageError
from torchtriage.locate import Locator
from torchtriage.ranks.joint import rank_replay
from torchtriage.ranks.record import RankRecord, record
from torchtriage.ranks.remote import is_url, opened
from torchtriage.trace import Trace, read_trace
from torchtriage.trace.bound import within
from torchtriage.trace.parallel import PROCESSES_VARIABLE

__all__ = ["ENGINES", "Settings", "examine", "examine_all", "work"]

ENGINES = ("local", "ray")
WORTH_IT_BYTES = 24 << 20
"""On disk, all files together: below this the interpreters' start outweighs what they save."""
KEEP_TIMELINES = 64
"""With more files than this, results come without the picture of the timeline."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True)
class Settings:
    """How each file is read and judged; see ``api.analyze``."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    min_share: float = 0.01
    cache: bool = False
    max_bytes: int = 64 << 30
    timeline: bool = True
    what_if: tuple[str, ...] = ()
    step_ms: float | None = None
    sources: tuple[str, ...] | None = None
    """Folders to look for source files in; None opens none."""
    max_memory: int | None = None
    """Bytes that each process keeps within."""
    detector: bool = False
    """Also ask the learned detector."""


Outcome = RankRecord | TraceFormatError
Progress = Callable[[str], Callable[[int, int], None] | None]


def examine(
    path: str, settings: Settings, progress: Callable[[int, int], None] | None = None
) -> RankRecord:
    """Read and judge one file, and keep what a job needs of it.

    Raises
    ------
    TraceFormatError
        It is not a readable profiler trace.
    """
    options: dict[str, Any] = {"max_bytes": settings.max_bytes, "progress": progress}
    with within(settings.max_memory):
        if is_url(path):
            with opened(path) as stream:
                return _examined(read_trace(stream, **options), path, settings)
        return _examined(read_trace(path, cache=settings.cache, **options), path, settings)


def _examined(trace: Trace, path: str, settings: Settings) -> RankRecord:
    result = diagnose(
        trace,
        only=settings.only,
        skip=settings.skip,
        min_share=settings.min_share,
        what_if=settings.what_if,
        step_ms=settings.step_ms,
        places=None if settings.sources is None else Locator(settings.sources),
        detector=settings.detector,
    )
    if is_url(path):
        result = replace(result, trace=replace(result.trace, path=path))
    if not settings.timeline and result.summary is not None:
        result = replace(result, summary=replace(result.summary, timeline=()))
    found = record(trace, result.trace.path, result)
    if settings.what_if:
        found = replace(found, replay=rank_replay(trace, settings.what_if, settings.step_ms))
    return found


def examine_all(
    paths: Sequence[str],
    settings: Settings,
    *,
    engine: str = "local",
    processes: int | None = None,
    starting: Callable[[str, int], Any] | None = None,
) -> Iterator[Outcome]:
    """Yield the record of each file, in their order; what cannot be read as its error.

    Parameters
    ----------
    paths : sequence of str
        Files, ``-`` for standard input, or URLs.
    settings : Settings
    engine : ``local`` or ``ray``
    processes : int, optional
        Of the local engine; by default as many as there are cores, where the files are worth it.
    starting : callable, optional
        Called with a path and how many are done, before that path is waited for.

    Raises
    ------
    MissingExtraError
        Ray is not installed.
    UsageError
        There is no such engine.
    """
    settings = replace(settings, timeline=settings.timeline and len(paths) <= KEEP_TIMELINES)
    if engine not in ENGINES:
        raise UsageError(f"expected an engine out of {', '.join(ENGINES)}, found {engine!r}")
    if engine == "ray":
        yield from _by_ray(paths, settings, starting)
        return
    n_processes = _count(paths) if processes is None else max(processes, 1)
    if n_processes > 1:
        yield from _by_processes(paths, settings, min(n_processes, len(paths)), starting)
        return
    for done, path in enumerate(paths):
        progress = starting(path, done) if starting is not None else None
        try:
            yield examine(path, settings, progress)
        except TraceFormatError as error:
            yield error


def _count(paths: Sequence[str]) -> int:
    """Return how many processes pay: small files are read sooner than processes start."""
    if len(paths) < 2 or not Path(sys.executable or "").stem.startswith("python"):
        return 1
    if any((is_url(path) and path.startswith("memory:")) or path == "-" for path in paths):
        return 1  # what only this process holds
    return 1 if sum(map(_size_bytes, paths)) < WORTH_IT_BYTES else _n_cores()


def _size_bytes(path: str) -> int:
    if is_url(path):
        return WORTH_IT_BYTES
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0  # the reader says what is wrong with it


def _n_cores() -> int:
    said = os.environ.get(PROCESSES_VARIABLE, "")
    if said.isdigit():
        return max(int(said), 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- what crosses between processes --------------------------------------------------------------


def _answer(path: str, settings: Settings) -> tuple[str, Any]:
    """Return a record, or a failure as plain values: exceptions lose their parts on the way."""
    try:
        return "record", examine(path, settings)
    except TraceFormatError as error:
        return "unreadable", (error.message, error.where, error.hint)
    except TriageError as error:
        return "failed", (error.message, error.where, error.hint)
    except MemoryError:
        return "failed", ("out of memory", path, "use fewer processes, or a larger machine")
    except Exception as error:  # a defect must not pass for a process that was killed
        return "defect", f"{type(error).__name__}: {error} (reading {path})"


def _taken(path: str, answer: tuple[str, Any]) -> Outcome:
    kind, value = answer
    if kind == "record":
        assert isinstance(value, RankRecord)
        return value
    if kind == "defect":
        raise RuntimeError(value)
    message, where, hint = value
    error = TraceFormatError if kind == "unreadable" else TriageError
    failure = error(message, where=where or path, hint=hint)
    if isinstance(failure, TraceFormatError):
        return failure
    raise failure


def _by_processes(
    paths: Sequence[str],
    settings: Settings,
    n_processes: int,
    starting: Callable[[str, int], Any] | None,
) -> Iterator[Outcome]:
    with _Workers(n_processes) as workers:
        answers = [workers.submit(path, settings) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            yield _taken(path, answers[done].result())
            answers[done] = None  # its record is the reader's now


class _Workers:
    """Interpreters that examine files, each served by a thread.

    Not ``multiprocessing``: that would run a user's script again where it lacks a ``__main__``
    guard.
    """

    def __init__(self, n_workers: int) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(n_workers)
        for _ in range(n_workers):
            self._idle.put(self._start())

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def submit(self, path: str, settings: Settings) -> Any:
        return self._threads.submit(self._run, path, settings)

    def _start(self) -> subprocess.Popen[bytes]:
        # the same import path as here, and never the current folder's modules by accident
        code = (
            "import sys; sys.path[:] = sys.argv[1:]\n"
            "from torchtriage.ranks.engines import work; work()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # the files are shared out, each is read by one process
            env={**os.environ, PROCESSES_VARIABLE: "1"},
        )
        self._processes.append(process)
        return process

    def _run(self, path: str, settings: Settings) -> tuple[str, Any]:
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            task = pickle.dumps((path, settings))
            process.stdin.write(_SIZE.pack(len(task)) + task)
            process.stdin.flush()
            (size,) = _SIZE.unpack(process.stdout.read(_SIZE.size))
            answer: tuple[str, Any] = pickle.loads(process.stdout.read(size))
            return answer
        except (OSError, ValueError, EOFError, struct.error, pickle.UnpicklingError):
            # killed, most likely for its memory: the others go on with a fresh one in its place
            process.kill()
            process = self._start()
            what = "the process that read it ended without an answer, most likely out of memory"
            return "unreadable", (what, path, f"set {PROCESSES_VARIABLE}=1")
        finally:
            self._idle.put(process)


def work() -> None:
    """Examine files until standard input ends: the main loop of a worker process."""
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not end up between answers
    while head := tasks.read(_SIZE.size):
        path, settings = pickle.loads(tasks.read(_SIZE.unpack(head)[0]))
        answer = pickle.dumps(_answer(path, settings), protocol=pickle.HIGHEST_PROTOCOL)
        answers.write(_SIZE.pack(len(answer)) + answer)
        answers.flush()


# -- Ray -----------------------------------------------------------------------------------------


def _by_ray(
    paths: Sequence[str], settings: Settings, starting: Callable[[str, int], Any] | None
) -> Iterator[Outcome]:
    """Map the files over a Ray cluster: the one that is connected, ``$RAY_ADDRESS``, or a new one.

    The files must be where the cluster's nodes can read them.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "expected Ray for --engine ray, it is not installed",
            hint="pip install 'torchtriage[cluster]'",
        ) from None
    if any(path == "-" for path in paths):
        raise UsageError("standard input cannot be read by other machines", hint="pass files")
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    try:
        # plain functions of an installed package: a cluster's workers need no copy of our code
        answer = ray.remote(num_cpus=1, max_retries=2)(_answer)
        waiting = [answer.remote(path, settings) for path in paths]
        for done, path in enumerate(paths):
            if starting is not None:
                starting(path, done)
            try:
                found = ray.get(waiting[done])
            except ray.exceptions.RayError as error:
                first = str(error).strip().splitlines()
                raise TriageError(
                    f"a task of the cluster failed: {first[-1] if first else error!r}",
                    where=path,
                    hint="every node needs the same torchtriage, and must be able to read the file",
                ) from error
            waiting[done] = None  # the store may forget it
            yield _taken(path, found)
    finally:
        if begun:
            ray.shutdown()
