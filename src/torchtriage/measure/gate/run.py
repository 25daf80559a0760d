"""A benchmark as fresh processes: one after the other, or two in turns, A B B A.

A process is timed as a whole (wall and CPU time, peak memory), or hands over samples of its own: it prints them on
standard output, a JSON object per line, or writes them into the file that the variable ``TORCHTRIAGE_SAMPLES``
names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from torchtriage.core.errors import BenchmarkError
from torchtriage.core.isolate.processes import describe_exit, last_line, signal_group
from torchtriage.core.machine import HostUse, Noise, judge_noise, read_host, use_between
from torchtriage.core.names import mask_secrets
from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.core.version import __version__
from torchtriage.measure.gate.importers.document import DocumentNode, parse
from torchtriage.measure.gate.importers.native import read_metrics
from torchtriage.measure.gate.revision import GitRevision

SAMPLES_VARIABLE = "TORCHTRIAGE_SAMPLES"
RUN_TIME = "run time"
PEAK_MEMORY = "peak host memory"
INTERLEAVING = "interleaving"
"""Name in a run's environment: runs with the same value were measured in turns."""
SIDE = "side"
"""... and which of the two it is, ``before`` or ``after``."""
HOST = "host"
GRACE_S = 3.0
"""What a process that ran too long gets to clean up."""
PACKAGES = ("numpy", "torch", "triton")
_VERSIONS = f"""
import json, platform
from importlib import metadata
found = {{"python": platform.python_version()}}
for name in {PACKAGES!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class BenchmarkProgram:
    """What is run.

    ``samples`` : it hands over samples of its own; else it is timed as a whole. ``timeout_s`` : it is ended then,
    with all it started. ``paths`` : searched for modules first. ``side`` : which of two it is, for errors.
    """

    arguments: tuple[str, ...]
    folder: Path = field(default_factory=Path)
    samples: bool = False
    timeout_s: float | None = None
    paths: tuple[str, ...] = ()
    side: str = ""

    @property
    def where(self) -> str:
        """The command and its side: what an error is about."""
        return f"{self} ({self.side})" if self.side else str(self)

    def __str__(self) -> str:
        """Return the command as the user would type it, without secrets."""
        import shlex

        return shlex.join(mask_secrets(self.arguments))


@dataclass(frozen=True)
class MeasuredProcess:
    """One process: a series of one session for each metric, and what the machine did meanwhile."""

    series: tuple[Series, ...]
    use: HostUse


def run_once(program: BenchmarkProgram, *, round: int | None = None) -> MeasuredProcess:
    """Run a program to its end in a process of its own, and return what was measured.

    Its standard input is empty, its output is kept for the case that it fails. What it started and left behind is
    ended with it, so that it cannot disturb the next.

    Raises BenchmarkError: it cannot be started, failed, ran too long, or reported no samples; SampleError: it
    handed over samples that are none.
    """
    with tempfile.TemporaryDirectory(prefix="torchtriage-") as name:
        folder = Path(name)
        handed = folder / "samples.jsonl"
        environment = dict(os.environ)
        if program.samples:
            environment[SAMPLES_VARIABLE] = str(handed)
        if program.paths:
            paths = [*program.paths, *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        started_s = time.time()
        ended = _run(program, folder, environment)
        words = last_line(folder / "stderr", folder / "stdout", length=300)
        if ended.timed_out:
            raise BenchmarkError(
                f"ran longer than {program.timeout_s:g} s and was ended{words}",
                where=program.where,
                hint="--timeout allows more",
            )
        if ended.code:
            raise BenchmarkError(
                f"{describe_exit(ended.code)}{words}",
                where=program.where,
                hint="run it alone to see all that it prints",
            )
        if program.samples:
            nodes = _handed_over(handed, folder / "stdout", program.where)
            return MeasuredProcess(read_metrics(nodes, round=round, started_s=started_s), ended.use)
    cpu_s = ended.use.own_s
    session = Session((ended.use.wall_s,), None if cpu_s is None else (cpu_s,), round, started_s)
    series = [Series(RUN_TIME, "s", "lower", "latency", (session,))]
    if ended.peak_bytes is not None:
        session = Session((float(ended.peak_bytes),), None, round, started_s)
        series.append(Series(PEAK_MEMORY, "B", "lower", "memory", (session,)))
    return MeasuredProcess(tuple(series), ended.use)


def run_sessions(
    program: BenchmarkProgram, n: int, *, warm_up: int = 1, progress: Callable[[int], None] = lambda _n: None
) -> tuple[MeasuredProcess, ...]:
    """Run a program ``n`` times after ``warm_up`` times that do not count.

    The first process of all fills caches of the disk, of Python and of compilers. ``progress`` is called with the
    number of processes that have ended.

    Raises BenchmarkError, SampleError: as :func:`run_once`; or a process handed over other metrics than the first.
    """
    out: list[MeasuredProcess] = []
    with _ending_children():
        for number in range(warm_up):
            run_once(program)
            progress(number + 1)
        for number in range(n):
            out.append(run_once(program))
            _check_alike(out, program)
            progress(warm_up + number + 1)
    return tuple(out)


def run_in_turns(
    before: BenchmarkProgram,
    after: BenchmarkProgram,
    *,
    most_rounds: int,
    warm_up: int = 1,
    enough: Callable[[Sequence[MeasuredProcess], Sequence[MeasuredProcess]], bool] = lambda _b, _a: False,
) -> tuple[tuple[MeasuredProcess, ...], tuple[MeasuredProcess, ...]]:
    """Run two programs in turns, each in fresh processes: A B B A A B B A.

    What drifts slowly falls on both alike, and neither always goes first.

    ``before``, ``after`` : the two; each process is a session of the round it ran in, from 0. ``most_rounds`` :
    rounds of one process each. ``warm_up`` : processes of each that do not count. ``enough`` : called with all that
    was measured of both after each round; the last one if it returns True.

    Raises BenchmarkError, SampleError: as :func:`run_sessions`.
    """
    sides: tuple[list[MeasuredProcess], list[MeasuredProcess]] = ([], [])
    programs = (before, after)
    with _ending_children():
        for _ in range(warm_up):
            for program in programs:
                run_once(program)
        for round in range(most_rounds):
            for place in (1, 0) if round % 2 else (0, 1):
                sides[place].append(run_once(programs[place], round=round))
                _check_alike(sides[place], programs[place])
            if enough(sides[0], sides[1]):
                break
    return tuple(sides[0]), tuple(sides[1])


def assemble(
    measured: Sequence[MeasuredProcess],
    *,
    benchmark: str,
    program: BenchmarkProgram,
    revision: GitRevision,
    machine: Machine,
    environment: dict[str, str],
    traces: Sequence[str] = (),
) -> tuple[Run, Noise]:
    """Return a run of all sessions, and whether the machine was quiet meanwhile.

    ``environment`` : what is known beside command, variables and commit, see :func:`versions`. A metric that some
    sessions lack (peak memory below our own) is left out.
    """
    noise = judge_noise([process.use for process in measured])
    by_metric: dict[str, list[Series]] = {}
    for process in measured:
        for series in process.series:
            by_metric.setdefault(series.metric, []).append(series)
    whole = tuple(
        replace(parts[0], sessions=tuple(session for part in parts for session in part.sessions))
        for parts in by_metric.values()
        if len(parts) == len(measured)
    )
    known = {"command": str(program), HOST: str(noise), "torchtriage": __version__, **environment}
    run = revision.run(benchmark, machine, known, series=whole, traces=traces)
    run.check()
    return run, noise


def paths_of(root: Path) -> tuple[str, ...]:
    """Return where a checkout keeps its modules: ``src`` and its top.

    Without them both sides of a comparison would import the one that is installed.
    """
    return tuple(str(folder) for folder in (root / "src", root) if folder.is_dir())


def versions(program: BenchmarkProgram) -> dict[str, str]:
    """Return versions of Python and of packages that set the pace, for a command of Python."""
    name = Path(program.arguments[0]).name
    if not name.startswith("python"):
        return {}
    try:
        done = subprocess.run(
            [program.arguments[0], "-c", _VERSIONS],
            cwd=program.folder,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(name): str(version) for name, version in found.items()}


@dataclass(frozen=True)
class _Ended:
    code: int
    timed_out: bool
    use: HostUse
    peak_bytes: int | None


def _run(program: BenchmarkProgram, folder: Path, environment: dict[str, str]) -> _Ended:
    words = list(program.arguments)
    timed_out = threading.Event()
    gone = threading.Event()
    # files, not pipes: nobody has to read meanwhile, and no grandchild can keep us waiting
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        host = read_host()
        begun_ns = time.perf_counter_ns()
        try:
            child = subprocess.Popen(
                words,
                cwd=program.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BenchmarkError(f"cannot be started: {reason}", where=program.where) from error

    def end() -> None:
        timed_out.set()
        signal_group(child, "SIGTERM")
        if not gone.wait(GRACE_S):
            signal_group(child)

    timer = threading.Timer(program.timeout_s, end) if program.timeout_s is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        code, own_s, peak_bytes = _wait(child)
        wall_s = (time.perf_counter_ns() - begun_ns) / 1e9
    finally:
        gone.set()
        if timer is not None:
            timer.cancel()
        signal_group(child)
        if child.returncode is None:
            child.wait()
    use = use_between(host, read_host(), wall_s=wall_s, own_s=own_s)
    return _Ended(code, timed_out.is_set(), use, peak_bytes)


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, float | None, int | None]:
    """Return exit code, CPU time of it and its children, and peak memory of the largest of them."""
    if not hasattr(os, "wait4"):
        return child.wait(), None, None
    import resource

    # a process begins as a copy of ours, and its peak with our size
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    scale = 1 if sys.platform == "darwin" else 1024
    peak_bytes = used.ru_maxrss * scale if used.ru_maxrss > ours else None
    return child.returncode, used.ru_utime + used.ru_stime, peak_bytes


@contextlib.contextmanager
def _ending_children() -> Iterator[None]:
    """Turn the signals that end us into an exception, so that what we started is ended too.

    A process of a group of its own does not get what a terminal or a CI runner sends to ours.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handed_over(file: Path, out: Path, where: str) -> list[DocumentNode]:
    """Return the metrics a process wrote into the file, or printed among other lines.

    Raises BenchmarkError: there are none; SampleError: a line is not JSON.
    """
    written = file.exists()
    lines = (file if written else out).read_text(encoding="utf-8", errors="replace").splitlines()
    nodes = []
    for number, line in enumerate(lines, 1):
        if written and line.strip():
            value = parse(line, f"{where}: ${SAMPLES_VARIABLE}, line {number}")
            nodes.append(DocumentNode(value, f"{where}: line {number}"))
        # anything else that is printed is ordinary output
        elif not written and line.startswith("{") and '"metric"' in line:
            place = f"{where}: output, line {number}"
            nodes.append(DocumentNode(parse(line, place), place))
    if not nodes:
        raise BenchmarkError(
            "reported no samples",
            where=where,
            hint='print {"metric": "step", "unit": "s", "values": [0.1, 0.1]} on a line of its own,'
            f" or append it to the file ${SAMPLES_VARIABLE}; without --samples it is timed whole",
        )
    return nodes


def _check_alike(all_of: Sequence[MeasuredProcess], program: BenchmarkProgram) -> None:
    first, last = ([(series.metric, series.unit) for series in each.series] for each in (all_of[0], all_of[-1]))
    if program.samples and sorted(first) != sorted(last):
        named = [", ".join(f"{metric} ({unit})" for metric, unit in each) for each in (first, last)]
        raise BenchmarkError(
            f"expected {named[0]} from each process, found {named[1]} from process {len(all_of)}", where=program.where
        )


def find_program(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words; ``script.py`` alone is one for the Python that we run on.

    Raises BenchmarkError: there is no such script or program.
    """
    if not words:
        raise BenchmarkError("expected a command, found an empty one")
    first = words[0]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise BenchmarkError("expected a script, found no such file", where=first)
        return (sys.executable, *words)
    if shutil.which(first) is None:
        raise BenchmarkError("expected a program, found none of this name", where=first)
    return tuple(words)
