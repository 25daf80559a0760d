"""Processes of this machine: which are the ranks of a job, and what their threads do (py-spy)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtriage.core.errors import AttachError, MissingExtraError
from torchtriage.core.record.stacks import is_library
from torchtriage.diagnose.attach.result import Call, StackGroup

DUMP_S = 30.0
"""So long py-spy may take for one process."""
MAX_CALLS = 200
MAY_READ = "run it as the job's user or as root; in a container add --cap-add SYS_PTRACE"


@dataclass(frozen=True)
class Process:
    """A process of a job.

    ``rank`` : None where its environment names none. ``hidden`` : why its environment cannot be read, empty where it
    can.
    """

    pid: int
    rank: int | None
    env: Mapping[str, str]
    hidden: str = ""

    @property
    def name(self) -> str:
        """Return what it is called in reports."""
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True)
class Thread:
    """What a thread does; innermost call first."""

    name: str
    calls: tuple[Call, ...]


def ranks_of(pid: int) -> list[Process]:
    """Return the ranks below a process, a launcher for example, or the process itself.

    Workers of a rank's loaders have its environment: only the topmost process of each rank counts.

    Raises AttachError: no such process, or one that has exited.
    """
    try:
        if not pid:  # which would be our own group
            raise ProcessLookupError
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise AttachError("expected the pid of a process that runs, found none", where=str(pid)) from None
    except PermissionError:
        pass  # it runs, for someone else
    children: dict[int, list[int]] = {}
    exited = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name in parentheses may hold anything
            state, parent, *_ = entry.read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append(int(entry.parent.name))
        if state == "Z":  # its parent has not asked yet how it ended
            exited.add(int(entry.parent.name))
    if pid in exited:
        raise AttachError("expected the pid of a process that runs, found one that has exited", where=str(pid))
    found = []
    below = [pid]
    for child in below:
        process = _process(child)
        if process.rank is not None:
            found.append(process)
        else:
            below += sorted(children.get(child, ()))
    return found or [_process(pid)]


def _process(pid: int) -> Process:
    raw = hidden = ""
    path = Path(f"/proc/{pid}/environ")
    with suppress(OSError):
        try:
            raw = path.read_bytes().decode("utf-8", "replace")
        except PermissionError:
            hidden = f"owned by uid {path.parent.stat().st_uid}"
    env = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
    rank = env.get("RANK", "")
    return Process(pid, int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 10 else None, env, hidden)


def dump_stacks(pid: int) -> list[Thread]:
    """Return what the threads of a process do, by py-spy, which does not stop it.

    Raises AttachError: py-spy cannot look into it. MissingExtraError: there is no py-spy.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise MissingExtraError(
            "stacks of a process need py-spy, found none", hint="pip install 'torchtriage[attach]' or py-spy"
        )
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DUMP_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise AttachError(f"py-spy has not answered within {DUMP_S:.0f} s", where=f"pid {pid}") from None
    except OSError as error:
        raise AttachError(f"py-spy cannot be started: {error.strerror}", where=program) from error
    try:
        return threads_of(json.loads(done.stdout))
    except (ValueError, TypeError, KeyError, AttributeError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        may = "ptrace" in done.stderr.decode("utf-8", "replace") or "ermission" in lines[-1]
        hint = MAY_READ if may else ""
        raise AttachError(f"py-spy finds no stacks: {lines[0][:200]}", where=f"pid {pid}", hint=hint) from None


def threads_of(rows: Sequence[Mapping[str, Any]]) -> list[Thread]:
    """Return the threads of a dump in the form of py-spy's JSON, those that run Python."""
    threads = []
    for row in rows:
        calls = [
            Call(str(frame["filename"]), int(frame["line"] or 0), str(frame["name"]))
            for frame in row["frames"][:MAX_CALLS]
        ]
        if calls:
            threads.append(Thread(str(row.get("thread_name") or ""), tuple(calls)))
    return threads


def user_call(calls: Iterable[Call]) -> Call | None:
    """Return the innermost call of the user's own code, else the innermost of all."""
    known = list(calls)
    return next((call for call in known if not is_library(call.file)), known[0] if known else None)


def grouped(stacks: Mapping[str, Sequence[Thread]]) -> tuple[StackGroup, ...]:
    """Return equal stacks once, with the names of the processes that have them: rare ones first.

    Of a thread's stack the place counts, down to the line.
    """
    names: dict[tuple[str, tuple[Call, ...]], list[str]] = {}
    for name, threads in stacks.items():
        for thread in threads:
            # pools number their threads
            key = (thread.name.rstrip("0123456789-_ "), thread.calls)
            known = names.setdefault(key, [])
            if name not in known:
                known.append(name)
    rows = [StackGroup(tuple(known), thread, calls) for (thread, calls), known in names.items()]
    return tuple(sorted(rows, key=lambda row: (row.thread != "MainThread", len(row.names))))
