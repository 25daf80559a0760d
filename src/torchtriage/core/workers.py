"""Worker processes: fresh interpreters that call one function, each served by a thread here.

Not ``multiprocessing``: that would run a user's script again where it lacks a ``__main__`` guard.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

PROCESSES_VARIABLE = "TORCHTRIAGE_PROCESSES"
_BROKEN = (OSError, ValueError, EOFError, ImportError, AttributeError, IndexError, pickle.UnpicklingError)
"""What reading an answer raises when it is cut off, or is not from our interpreter."""


class WorkerLostError(Exception):
    """A worker ended without an answer: killed, out of memory, or not our interpreter."""


class WorkerStartError(WorkerLostError):
    """No process or thread could be started: the system has no more of them, or no memory."""


class WorkerLateError(WorkerLostError):
    """A worker was ended because it took longer than it may."""


def can_start() -> bool:
    """Return whether workers can be started: an embedding program's executable is no interpreter."""
    return Path(sys.executable or "").stem.startswith("python")


def n_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Processes that call a module's function, started when there is work; one that is lost is replaced.

    ``limit_s`` : a call that takes longer is ended with its process.
    """

    def __init__(self, n_workers: int, function: Callable[..., Any], limit_s: float | None = None) -> None:
        """Start nothing yet."""
        self._function = function
        self._limit_s = limit_s
        self._idle: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended = False
        self._threads = ThreadPoolExecutor(n_workers)
        for _ in range(n_workers):
            self._idle.put(None)

    def __enter__(self) -> Workers:
        """Return the workers, which end with the context."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End them, whatever they are doing."""
        self._ended = True
        try:
            for process in self._processes:
                process.kill()
            self._threads.shutdown(wait=True, cancel_futures=True)
        finally:
            for process in self._processes:
                process.communicate()

    def submit(self, *task: Any) -> Future[Any]:
        """Have the function called with these arguments; a lost worker is a :class:`WorkerLostError`."""
        refused = Event()
        try:
            return self._threads.submit(self._run, task, refused)
        except RuntimeError as error:  # no more threads; those that there are find it among their tasks
            refused.set()
            failed: Future[Any] = Future()
            failed.set_exception(WorkerStartError(str(error)))
            return failed

    def _start(self) -> subprocess.Popen[bytes]:
        # in a thread of the pool only: Ctrl-C is raised in the main thread, and there a process that is being
        # started would be lost, neither ended nor waited for
        import subprocess  # few traces need processes

        # the same import path as here, and never the current folder's modules by accident
        code = "import sys; sys.path[:] = sys.argv[3:]\nfrom torchtriage.core.workers import serve; serve()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, self._function.__module__, self._function.__name__, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # the work is shared out: a worker starts no workers
            env={**os.environ, PROCESSES_VARIABLE: "1"},
        )
        self._processes.append(process)
        if self._ended:  # while it was being started
            process.kill()
        return process

    def _run(self, task: tuple[Any, ...], refused: Event) -> Any:
        if refused.is_set():
            return None
        process = self._idle.get()
        try:
            late: list[subprocess.Popen[bytes]] = []
            try:
                process = process or self._start()
                timer = Timer(self._limit_s or 0, _end, (process, late))
                if self._limit_s is not None:
                    timer.start()
            except (OSError, RuntimeError) as error:
                raise WorkerStartError(str(error)) from error
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump(task, process.stdin, pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except _BROKEN as error:
                process.kill()
                process = None
                if late:
                    raise WorkerLateError(f"{self._limit_s:g} s") from error
                raise WorkerLostError from error
            finally:
                timer.cancel()
        finally:
            self._idle.put(process)


def _end(process: subprocess.Popen[bytes], ended: list[subprocess.Popen[bytes]]) -> None:
    ended.append(process)
    process.kill()


def serve() -> None:
    """Call the function for each task on standard input: the main loop of a worker."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not end up between answers
    module, name = sys.argv[1:3]
    function = getattr(import_module(module), name)
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        answers.write(pickle.dumps(function(*task), pickle.HIGHEST_PROTOCOL))
        answers.flush()
