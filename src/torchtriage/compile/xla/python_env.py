"""Which Python has torch_xla, and sessions in it: ours need not be installed there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torchtriage.compile.xla.forks import ForkServer
from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.session_client import SessionClient, thread_limits

PACKAGE = Path(__file__).parents[2]
BESIDE = Path(".venv-xla", "bin", "python")
HOW = "pip install torch==2.9.0 torch_xla==2.9.0 into a Python of its own, then --python PATH"

# Finds this package alone: the other folders of our site-packages are of another Python.
_START = """
import importlib.util, runpy, sys
folder, module = sys.argv[1:3]
spec = importlib.util.spec_from_file_location(
    "torchtriage", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["torchtriage"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__")
"""
_PROBE = """
import importlib.util, sys
sys.exit(importlib.util.find_spec("torch_xla") is None)
"""


def find_python(given: str | None) -> str:
    """Return a Python that has torch_xla: the one given, this one, or ``.venv-xla`` here.

    Raises UsageError: it cannot be started, or has no torch_xla.
    """
    if given is not None:
        if not _has_xla(given):
            raise UsageError("this Python has no torch_xla", where=given, hint=HOW)
        return given
    for python in (sys.executable, str(BESIDE.absolute())):
        if Path(python).exists() and _has_xla(python):
            return python
    raise UsageError(f"torch_xla is neither in this Python nor in {BESIDE.parents[1]} here", hint=HOW)


@cache
def _has_xla(python: str) -> bool:
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, timeout=60, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"cannot be started: {error}", where=python) from error
    return done.returncode == 0


def module_command(python: str, module: str) -> list[str]:
    """Return the command that runs a module of ours in another Python."""
    return [python, "-c", _START, str(PACKAGE), module]


def session(
    python: str, folder: Path, environment: Mapping[str, str], threads: int | None, forks: ForkServer | None = None
) -> SessionClient:
    """Return a process that answers as ``child.py`` says, fresh unless forked; ``folder`` takes what it prints."""
    return SessionClient(
        folder / "cache",
        folder / "log.txt",
        threads,
        command=module_command(python, "torchtriage.compile.xla.child"),
        environment=environment,
        start=subprocess.Popen if forks is None else forks.start,
    )


def fork_server(python: str, folder: Path, environment: Mapping[str, str], threads: int | None) -> ForkServer:
    """Return a process whose forks answer as ``child.py`` says."""
    limits = thread_limits(threads)
    return ForkServer(
        module_command(python, "torchtriage.compile.xla.forks"), folder / "log.txt", {**environment, **limits}
    )
