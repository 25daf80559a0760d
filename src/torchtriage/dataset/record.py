"""Records the benchmark: each item in a process of its own, labelled, stripped, kept.

What is there already is left alone, so that a recording that was stopped goes on; what fails or
hangs is told and the rest goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchtriage.dataset import store
from torchtriage.dataset.items import TRACE
from torchtriage.dataset.label import label
from torchtriage.dataset.plan import Item
from torchtriage.dataset.script import programs
from torchtriage.errors import MissingExtraError

__all__ = ["Outcome", "record"]

TIMEOUT_S = 300.0
LIBRARIES = ("torch", "transformers", "diffusers")


@dataclass(frozen=True)
class Outcome:
    """How one item went. ``failure`` : empty when it was recorded, or was there before."""

    item: Item
    failure: str = ""
    kept: bool = False


def record(
    items: Iterable[Item],
    folder: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    timeout_s: float = TIMEOUT_S,
    told: Callable[[Outcome], None] = lambda _: None,
) -> tuple[Outcome, ...]:
    """Record items into a folder: ``ID.ttcol`` the trace, ``ID.json`` what is known of it.

    Raises
    ------
    MissingExtraError
        torch, transformers or diffusers is not installed.
    """
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"recording the benchmark needs {', '.join(missing)}, not installed here",
            hint=f"pip install {' '.join(LIBRARIES)}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_record, one, folder, device, timeout_s) for one in items]
        try:
            for done in as_completed(waiting):
                outcomes.append(done.result())
                told(outcomes[-1])
        finally:
            pool.shutdown(cancel_futures=True)
    return tuple(sorted(outcomes, key=lambda one: one.item.id))


def _record(item: Item, folder: Path, device: str, timeout_s: float) -> Outcome:
    kept = folder / f"{item.id}.json"
    if kept.exists():
        return Outcome(item, kept=True)
    script = item.script()
    with tempfile.TemporaryDirectory(prefix="torchtriage-") as temporary:
        work = Path(temporary)
        (work / "train.py").write_text(script.text, encoding="utf-8")
        wanted = {
            "folder": str(work), "threads": 1, "stacks": item.stacks, "memory": False,
            "device": device, "modules": script.effect_modules,
        }  # fmt: skip
        (work / "item.json").write_text(json.dumps(wanted))
        failure = _run(work, timeout_s)
        if failure:
            return Outcome(item, failure)
        document = json.loads((work / "marked.json").read_bytes())
        facts = json.loads((work / "facts.json").read_bytes())
    labelled = label(document["traceEvents"], script.effect_lines, bool(script.effect_modules))
    if item.code and not labelled.intervals_us:
        return Outcome(item, "the fault's lines never ran while the profiler recorded")
    trace = store.pack(_published(document | {"traceEvents": labelled.events}))
    about = asdict(item) | {
        "task": programs()[item.family].task,
        "split": item.split,
        "device": device,
        "torch": facts["torch"],
        "fault_lines": script.fault_lines,
        "intervals_ns": [[round(a * 1e3), round(b * 1e3)] for a, b in labelled.intervals_us],
        "step_ns": facts["step_ns"],
        "sha256": hashlib.sha256(trace).hexdigest(),
        "script": script.text,
    }
    _replace(folder / f"{item.id}{TRACE}", trace)
    _replace(kept, json.dumps(about, indent=1).encode())  # last: with it, the item is there
    return Outcome(item)


def _run(work: Path, timeout_s: float) -> str:
    """Run the child; return why it failed, empty when it did not."""
    command = [sys.executable, "-m", "torchtriage.dataset.child", str(work / "item.json")]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "5", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"ran longer than {timeout_s:g} s"
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return f"exit code {done.returncode}: {said[-1] if said else 'nothing said'}"
    return ""


def _published(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what tells of the machine it was made on."""
    private = ("traceName", "trace_id", "host_name")
    return {key: value for key, value in document.items() if key not in private}


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_bytes(data)
    draft.replace(path)
