"""What has been measured so far, one file per session or round: a killed benchmark goes on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.machine import gather_machine, variables
from torchtriage.core.samples import COMPARABLE
from torchtriage.core.whole_files import replacing
from torchtriage.measure.bench.plan import BenchPlan

SCHEMA = "torchtriage-bench-folder/1"
PLAN = "plan.json"
MEASURED = ("check.json", "cold", "rounds")
OURS = (PLAN, *MEASURED, "cache", "logs")
PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_")
"""Of variables that steer compilers; a session has cache folders of its own."""


class Checkpoint:
    """A folder of one plan's measurements.

    Raises UsageError: it holds another plan's, or something else, or cannot be written.
    """

    def __init__(self, path: Path, plan: BenchPlan, *, fresh: bool = False) -> None:
        self.path = path
        try:
            known = self._known()
            if known is None and path.exists() and any(path.iterdir()):
                raise UsageError("expected an empty folder or that of a benchmark", where=str(path))
            now = environment()
            if fresh and known is not None:
                self._clear()
            elif known is not None and any((path / name).exists() for name in MEASURED):
                self._check(known, plan.digest, now)
            path.mkdir(parents=True, exist_ok=True)
            self.write(PLAN, {"schema": SCHEMA, "target": plan.target, "digest": plan.digest, "environment": now})
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"cannot be written: {why}", where=str(path)) from error

    def _known(self) -> dict[str, Any] | None:
        plan = self.read(PLAN)
        return plan if isinstance(plan, dict) and plan.get("schema") == SCHEMA else None

    def _check(self, known: dict[str, Any], digest: str, now: dict[str, str]) -> None:
        """Refuse measurements that would not belong together with those to come."""
        then = known.get("environment") or {}
        changed = [
            f"{name} {then.get(name, 'not set')}, now {now.get(name, 'not set')}"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]
        why = f"holds measurements made under different conditions: {'; '.join(changed)}" if changed else ""
        if known.get("digest") != digest:
            why = "holds measurements of another target or other settings"
        if why:
            raise UsageError(why, where=str(self.path), hint="--fresh measures again, --out names another folder")

    def _clear(self) -> None:
        for name in OURS:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def read(self, name: str) -> Any:
        """Return what was written under a name; None where nothing was, or not to its end."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def write(self, name: str, value: Any) -> None:
        """Write a value, whole or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            draft.write_text(json.dumps(value), encoding="utf-8")

    def cache(self, key: str, *, empty: bool = False) -> Path:
        """Return where a setting keeps compiled code; ``empty`` removes what is there."""
        path = self.path / "cache" / key
        if empty:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """Return where a session's output goes."""
        return self.path / "logs" / f"{name}.txt"


def environment() -> dict[str, str]:
    """Return what times depend on besides the plan: torch, Python, the machine, variables."""
    facts = {"torch": torch_version(), "python": platform.python_version()}
    facts |= {name: value for name, value in gather_machine().fields if name in COMPARABLE}
    facts |= variables()
    facts |= {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and not name.endswith("_CACHE_DIR")
    }
    return facts


def torch_version() -> str:
    """Return the version of torch that sessions will import; ``none`` without it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"
