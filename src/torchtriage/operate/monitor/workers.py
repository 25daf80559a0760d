"""Several processes' numbers in one folder: each writes a file of its own, any may read all.

A worker replaces its file once per flush, in one step; what it counted since the last flush is all
that a ``kill -9`` can cost. It holds a lock on ``<name>.lock`` as long as it lives, and one of them
another on ``listener.lock``: that one listens. A reader adds
the files of the dead to ``ended.json`` and removes them, so that the folder does not grow; a
counter only ever grows. Of the dead, gauges are nobody's.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.whole_files import replacing
from torchtriage.operate.monitor.aggregate import Aggregate
from torchtriage.operate.monitor.metrics import METRICS, Value, combined

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ModelStates = list[dict[str, Any]]


class WorkerFile:
    """The file of this process; any of its threads may write it."""

    def __init__(self, folder: Path) -> None:
        if fcntl is None:
            raise UsageError("several processes' numbers in one folder need POSIX file locks")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{time.time_ns()}.json"
        self._lock = _locked(self.path.with_suffix(".lock"))
        self._listening = -1
        self._writing = threading.Lock()
        self._left = False

    def write(self, models: ModelStates, values: Sequence[Value] = (), is_ready: bool = True) -> None:
        """Replace the file, unless it was left. Errors of the disk are the caller's."""
        with self._writing:
            if not self._left:
                _replace(self.path, {"models": models, "values": values, "is_ready": is_ready})

    def may_listen(self) -> bool:
        """Return whether no other worker listens; then no other will as long as this one lives."""
        if self._listening < 0:
            with contextlib.suppress(OSError):
                self._listening = _locked(self.path.with_name("listener.lock"))
        return self._listening >= 0

    def leave(self) -> None:
        """Release the lock: readers then count the file as a dead process'."""
        with self._writing:
            if not self._left:
                self._left = True
                self.forget()

    def forget(self) -> None:
        """Close the locks; in a forked child, those of its parent."""
        os.close(self._lock)
        if self._listening >= 0:
            os.close(self._listening)


class MergedNumbers:
    """The numbers of several processes, summed by model and version, and by metric and labels."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], tuple[Aggregate, int]] = {}
        self._values: list[Value] = []
        self.is_ready = False  # whether any of the living is

    def add(self, content: dict[str, Any], *, alive: bool) -> None:
        """Add one process' file; the dead have counted, and have nothing in flight."""
        self.is_ready |= alive and content.get("is_ready", True)
        for name, labels, value in content.get("values", ()):
            if alive or (name in METRICS and METRICS[name].kind == "counter"):
                self._values.append((name, labels, value))
        for state in content["models"]:
            key = (state["model"], state["version"])
            aggregate, in_flight = self._models.get(key, (Aggregate(), 0))
            aggregate.include(state)
            self._models[key] = (aggregate, in_flight + (state["in_flight"] if alive else 0))

    def values(self) -> list[Value]:
        """Return the numbers of no model."""
        return combined(self._values)

    def models(self) -> ModelStates:
        """Return the models' sums."""
        return [
            {"model": key[0], "version": key[1], "in_flight": in_flight} | aggregate.state()
            for key, (aggregate, in_flight) in self._models.items()
        ]


def read_folder(folder: Path) -> MergedNumbers:
    """Return the numbers of all processes, dead and alive, added up."""
    lock = os.open(folder / "folder.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _merge(folder)
    finally:
        _unlock(lock)


def _merge(folder: Path) -> MergedNumbers:
    merged = MergedNumbers()
    ended = _load(folder / "ended.json") or {"models": [], "included": []}
    merged.add(ended, alive=False)
    alive, dead = [], []
    for path in sorted(folder.glob("*-*.json")):
        if path.stem in ended["included"]:
            dead.append(path)  # removed too late by a reader that was killed
            continue
        is_dead = _is_dead(path)  # before its file is read: until then it may write
        content = _load(path)
        if content is None:
            continue
        if is_dead:
            merged.add(content, alive=False)
            dead.append(path)
        else:
            alive.append(content)
    if dead:
        sums = {"models": merged.models(), "values": merged.values(), "included": [path.stem for path in dead]}
        _replace(folder / "ended.json", sums)
        for path in dead:
            for suffix in (".json", ".lock", ".draft"):
                path.with_suffix(suffix).unlink(missing_ok=True)
    for content in alive:
        merged.add(content, alive=True)
    return merged


def _is_dead(path: Path) -> bool:
    try:
        _unlock(_locked(path.with_suffix(".lock"), os.O_RDWR))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _locked(path: Path, flags: int = os.O_CREAT | os.O_RDWR) -> int:
    """Return a file that is locked as long as this process lives; ``OSError`` where another holds it."""
    lock = os.open(path, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _unlock(lock: int) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing does not, where a child was forked meanwhile
    os.close(lock)


def _load(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _replace(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as draft:
        draft.write_text(json.dumps(content))
