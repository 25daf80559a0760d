"""Commands of torchtriage that run programs: each in a process group of its own, which ends with the call."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec

from torchtriage.agents.desk import Call
from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.processes import signal_group
from torchtriage.core.names import mask_secrets

LAST_LINES = 20
_LAST_BYTES = 1 << 14
_LOOK_S = 0.1
_GRACE_S = 1.0
# as the installed program starts: no file of the folder it is called in can stand for a module of ours
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from torchtriage.cli.main import main; main()"


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal), and the last lines that it and its programs wrote."""

    exit_code: int
    last_lines: list[str]


@asynccontextmanager
async def scratch() -> AsyncIterator[Path]:
    """Yield a folder that is gone in the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="torchtriage-mcp-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def run_command(words: Sequence[str], folder: Path, tell: Callable[[str], Awaitable[None]]) -> Ended:
    """Run a command of torchtriage in ``folder`` to its end.

    Standard input is empty; of the output the end is kept. When the call is cancelled, and when the command has ended,
    every process of its group is ended. ``tell`` : called with each line of output, and about once a second with
    nothing.
    """
    process = await anyio.open_process(
        [sys.executable, "-c", _START, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        start_new_session=True,
    )
    output, all_read = bytearray(), anyio.Event()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, output, tell, all_read)
            looks = 0
            while process.returncode is None:  # wait() would wait for all who hold its output open
                await anyio.sleep(_LOOK_S)
                looks += 1
                if looks % 10 == 0:
                    await tell("")
            with anyio.move_on_after(_GRACE_S):
                await all_read.wait()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    text = output.decode("utf-8", "replace")
    return Ended(process.returncode or 0, text.splitlines()[-LAST_LINES:])


async def measured(
    command: str, options: list[str], words: list[str], folder: Path, timeout_s: float, call: Call
) -> tuple[Any, Ended]:
    """Return the document of a command that runs programs, and how it ended; its recordings are gone then.

    Raises UsageError: it wrote none, or took longer than ``timeout_s``.
    """
    begun = time.monotonic()

    async def tell(line: str) -> None:
        passed = time.monotonic() - begun
        await call.tell(passed, None, line or f"{command}: {passed:.0f} s")

    async with scratch() as kept:
        report = kept / "report.json"
        places = ["--json", f"--output={report}", f"--out={kept / 'recordings'}"]
        ended = None
        with anyio.move_on_after(timeout_s):
            ended = await run_command([command, *places, *options, *words], folder, tell)
        if ended is None:
            raise UsageError(
                f"{command} was stopped after {timeout_s:g} s", hint="pass a larger timeout_s, or fewer steps"
            )
        if not report.is_file():
            lines = "\n".join(ended.last_lines)
            raise UsageError(
                f"expected a report, found none: {command} ended with exit code {ended.exit_code}\n{lines}",
                where=shlex.join(mask_secrets(words)),
                hint="run the script on its own first: it must exit with 0 and have a loop of steps",
            )
        last = [line for line in ended.last_lines if line != f"wrote {report}"]
        return msgspec.json.decode(report.read_bytes()), Ended(ended.exit_code, last)


async def _read(
    process: anyio.abc.Process, output: bytearray, tell: Callable[[str], Awaitable[None]], all_read: anyio.Event
) -> None:
    assert process.stdout is not None
    line = b""
    async for chunk in process.stdout:
        output += chunk
        del output[:-_LAST_BYTES]
        *lines, line = (line + chunk).split(b"\n")
        line = line[-_LAST_BYTES:]
        for text in lines[-1:]:
            await tell(text.decode("utf-8", "replace"))
    all_read.set()


async def _end(process: anyio.abc.Process) -> None:
    """End every process of the group: asked first, then made to."""
    for name in ("SIGTERM", "SIGKILL"):
        signal_group(process, name)
        with anyio.move_on_after(_GRACE_S):
            await _gone(process)
    if process.stdout is not None:
        await process.stdout.aclose()


async def _gone(process: anyio.abc.Process) -> None:
    """Wait until the process has ended and nobody of its group is left."""
    while process.returncode is None or _has_group(process.pid):
        await anyio.sleep(_LOOK_S / 4)


def _has_group(number: int) -> bool:
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
