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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torchtriage.core.errors import MissingExtraError
from torchtriage.learn.dataset import trace_codec
from torchtriage.learn.dataset.recordings import TRACE
from torchtriage_benchmark.recording.labelling import Event, Labelled, label
from torchtriage_benchmark.recording.plan import RANKS, Item
from torchtriage_benchmark.recording.program_generator import fault_modules, programs

TIMEOUT_S = 300.0
TRIES = 3
"""Of a recording that shows other than it should because the machine is busy."""
MOST_WAITING = 0.2
"""Of the steps, for samples, where that is not the fault."""
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
    jobs: int = 1,
    timeout_s: float = TIMEOUT_S,
    report: Callable[[Outcome], None] = lambda _: None,
) -> tuple[Outcome, ...]:
    """Record items into a folder: ``ID.ttcol`` the trace, ``ID.json`` what is known of it.

    Raises MissingExtraError: torch, transformers or diffusers is not installed.
    """
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"recording the benchmark needs {', '.join(missing)}, not installed here",
            hint=f"pip install {' '.join(LIBRARIES)}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    servers: SimpleQueue[_Server] = SimpleQueue()

    def one_of(run: list[Item]) -> list[Outcome]:
        server = servers.get()
        try:
            return _record(run, folder, timeout_s, server)
        finally:
            servers.put(server)

    runs: dict[str, list[Item]] = {}
    for item in items:
        runs.setdefault(item.run, []).append(item)

    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        # what one program compiled, its twins need not compile again
        compiled = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchtriage-"))
        for _ in range(jobs):
            servers.put(stack.enter_context(_Server(compiled)))
        waiting = [pool.submit(one_of, run) for run in runs.values()]
        try:
            for done in as_completed(waiting):
                for outcome in done.result():
                    outcomes.append(outcome)
                    report(outcome)
        finally:
            pool.shutdown(cancel_futures=True)
    return tuple(sorted(outcomes, key=lambda outcome: outcome.item.id))


def _record(run: list[Item], folder: Path, timeout_s: float, server: _Server) -> list[Outcome]:
    if all((folder / f"{item.id}.json").exists() for item in run):
        return [Outcome(item, kept=True) for item in run]
    item = run[0]
    script = item.script()
    with tempfile.TemporaryDirectory(prefix="torchtriage-") as temporary:
        work = Path(temporary)
        (work / "train.py").write_text(script.text, encoding="utf-8")
        wanted = orders(item) | {"folder": str(work), "timeout_s": timeout_s}
        (work / "item.json").write_text(json.dumps(wanted))
        for _ in range(TRIES):
            failure = server.run(work / "item.json")
            if failure:
                return [Outcome(item, failure) for item in run]
            try:
                outcomes = [_keep(item, work, folder) for item in run]
            except (OSError, ValueError, KeyError, ZeroDivisionError) as error:
                outcomes = [Outcome(item, f"what was recorded is unusable: {error!r}")]
            if not any(outcome.failure for outcome in outcomes):
                break
    return outcomes


def orders(item: Item) -> dict[str, Any]:
    """Return how an item is recorded: the same for a faulty program and its clean twin."""
    compiled = item.part == "compiled"
    return {
        "threads": 1,
        "stacks": item.stacks,
        "compiled": compiled,
        "imports": programs(item.part)[item.family].imports,
        "modules": None if compiled else fault_modules(),  # hooks would be compiled
        "ranks": RANKS if item.part == "ranks" else 1,
    }


def _keep(item: Item, work: Path, folder: Path) -> Outcome:
    """Label what one rank recorded, strip and keep it."""
    script = item.script()
    document = json.loads((work / f"marked-{item.rank}.json").read_bytes())
    facts = json.loads((work / f"facts-{item.rank}.json").read_bytes())
    labelled = label(document["traceEvents"], script.effect_lines, script.effect_modules, script.effect_events)
    if doubt := _doubt(item, labelled):
        return Outcome(item, doubt)
    trace = trace_codec.pack(_published(document | {"traceEvents": labelled.events}))
    about = asdict(item) | {
        "task": programs(item.part)[item.family].task,
        "split": item.split,
        "device": "cpu",
        "torch": facts["torch"],
        "fault_lines": script.fault_lines,
        "intervals_ns": [[round(a * 1e3), round(b * 1e3)] for a, b in labelled.intervals_us],
        "step_ns": facts["step_ns"],
        "sha256": hashlib.sha256(trace).hexdigest(),
        "script": script.text,
    }
    _replace(folder / f"{item.id}{TRACE}", trace)
    _replace(folder / f"{item.id}.json", json.dumps(about).encode())  # last: now it is
    return Outcome(item)


def _doubt(item: Item, labelled: Labelled) -> str:
    """Return why a recording is not what it should be, empty when it is."""
    steps_us = _time_of(labelled.events, "ProfilerStep#")
    if item.code:
        assert item.change is not None
        shown = sum(end - begin for begin, end in labelled.intervals_us) / steps_us
        if not labelled.intervals_us:
            return "the fault's lines never ran while the profiler recorded"
        if shown < item.change.least:
            return f"the fault takes {shown:.0%} of the steps, expected {item.change.least:.0%}"
    if item.loader and not item.code.startswith("DAT"):
        waiting = _time_of(labelled.events, "enumerate(DataLoader)") / steps_us
        if waiting > MOST_WAITING:
            return f"the loader takes {waiting:.0%} of the steps: is the machine busy?"
    return ""


def _time_of(events: list[Event], begin: str) -> float:
    return sum(float(event["dur"]) for event in events if str(event.get("name", "")).startswith(begin))


class _Server:
    """A process that has torch imported and records items; started when first asked."""

    def __init__(self, compiled: str) -> None:
        self.compiled = compiled
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.communicate()  # no more lines: it ends

    def run(self, path: Path) -> str:
        """Record an item; return why it failed, empty when it did not."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torchtriage_benchmark.recording.fork_server"],
                env={
                    **os.environ,
                    "KINETO_LOG_LEVEL": "5",
                    "HF_HUB_OFFLINE": "1",
                    "TORCHINDUCTOR_CACHE_DIR": self.compiled,
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{path}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.communicate()
            code, self.process = self.process.returncode, None
            return f"the process that starts the recordings ended with exit code {code}"
        return str(json.loads(answer))


def _published(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what tells of the machine it was made on."""
    private = ("traceName", "trace_id", "host_name")
    return {key: value for key, value in document.items() if key not in private}


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_bytes(data)
    draft.replace(path)
