"""Processes that lead a group of their own: how they are ended, how they ended, and their last output."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def signal_group(process: subprocess.Popen[bytes], name: str = "SIGKILL") -> None:
    """Signal a process that was started with ``start_new_session``, and all that it started."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, getattr(signal, name))
        elif process.returncode is None:
            process.kill()


def describe_exit(code: int) -> str:
    """Return ``ended with exit code 3``, or ``ended by SIGKILL``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def last_line(*files: Path, length: int = 200) -> str:
    """Return ``: `` and the last line of the first of these files that has one; empty where none has."""
    for path in files:
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
            line = next((line.strip() for line in reversed(lines) if line.strip()), "")
            if line:
                return f": {line[:length]}"
    return ""
