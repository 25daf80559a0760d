"""Running a model each way in fresh processes: counted once with everything dumped, then timed.

A script is run once, with the same dumps, and they are read as any dumps are.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.result import CompileResult
from torchtriage.compile.xla.dumps import read_debug, read_saved
from torchtriage.compile.xla.forks import ForkServer
from torchtriage.compile.xla.graph_counts import count
from torchtriage.compile.xla.programs import read_dumps
from torchtriage.compile.xla.python_env import fork_server, module_command, session
from torchtriage.compile.xla.result import AnswerCheck, FxGraph, Route, RouteName, XlaModel, XlaProgram
from torchtriage.compile.xla.timing import Rounds, compare, summarise
from torchtriage.compile.xla.verdict import compared
from torchtriage.core.errors import LogError, UsageError
from torchtriage.core.finding import Note
from torchtriage.core.isolate.session_client import SessionError
from torchtriage.core.stats.paired_interval import LEAST_PAIRS

N_FRAMES = "64"
"""``PT_XLA_DEBUG`` shows 8 by default: a module's call alone takes two."""
BUDGET_S = 70.0
"""No round that would end later is added where nobody said how many; of a busy machine the first may take 20 s more."""
COUNTING = 0.3
"""The share of a model's time, roughly."""
COUNTED: tuple[RouteName, ...] = ("lazy", "openxla")


@dataclass(frozen=True)
class XlaPlan:
    """What is run.

    ``steps`` : counted steps. ``rounds`` : timed sessions of each route; None for three to six, until it is clear
    which is faster, and as many as fit into 70 s unless ``thorough``. ``seconds`` : steady steps of each.
    ``thorough`` : every session is a fresh process, not a fork.
    """

    targets: tuple[str, ...]
    modes: tuple[bool, ...] = (False,)
    """Whether a step trains: one model for each."""
    python: str = ""
    device: str = ""
    threads: int | None = None
    steps: int = 4
    rounds: int | None = None
    seconds: float = 0.5
    timeout_s: float = 600.0
    thorough: bool = False


Progress = Callable[[str, float], None]


def measure(plan: XlaPlan, progress: Progress | None = None) -> tuple[list[XlaModel], list[Note]]:
    """Return one model for each target and mode, and what limits the numbers.

    Raises UsageError: no target could be run in any way.
    """
    pairs = [(target, train) for target in plan.targets for train in plan.modes]
    models, notes = [], []
    ends_s = time.monotonic() + BUDGET_S
    with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as folder, ExitStack() as running:
        forks = None
        if not plan.thorough:
            forks = running.enter_context(fork_server(plan.python, Path(folder), _device(plan.device), plan.threads))
        for at, (target, train) in enumerate(pairs):

            def report(what: str, share: float, at: int = at, target: str = target) -> None:
                if progress is not None:
                    progress(f"{target}: {what}", (at + share) / len(pairs))

            left_s = math.inf if plan.thorough else ends_s - time.monotonic()
            until_s = time.monotonic() + left_s / (len(pairs) - at)
            model, more = _measure(plan, forks, target, train, until_s, report)
            models.append(model)
            notes += more
    failed = [route.failure for model in models for route in model.routes if route.name in COUNTED]
    if all(failed):
        message, _, hint = failed[0].partition("\n")
        raise UsageError(message, where=plan.targets[0], hint=hint)
    return models, notes


def _measure(
    plan: XlaPlan, forks: ForkServer | None, target: str, train: bool, until_s: float, progress: Progress
) -> tuple[XlaModel, list[Note]]:
    notes: list[Note] = []
    failures: dict[RouteName, str] = {}
    counted: dict[RouteName, Route] = {}
    fx: tuple[FxGraph, ...] = ()
    compiled: CompileResult | None = None
    facts: dict[str, str] = {}
    for done, route in enumerate(COUNTED):
        progress(f"counting, {route}", COUNTING * done / len(COUNTED))
        with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
            try:
                counted[route], handed, more = _count(plan, forks, Path(name), target, route, train)
                fx = handed if route == "openxla" else ()
                facts |= more
            except SessionError as error:
                failures[route] = _failed(error, "counting")
                if error.kind == "target":  # no other way to run it can be better
                    failures = dict.fromkeys(get_args(RouteName), failures[route])
                    break
            if route == "openxla":
                compiled = _compile_log(Path(name) / "trace", target, notes)
    names: list[RouteName] = [name for name in get_args(RouteName) if name not in failures]
    rounds = Rounds(
        lambda folder: session(plan.python, folder, _device(plan.device), plan.threads, forks),
        names,
        {"target": target, "train": train, "threads": plan.threads},
        plan.seconds,
        plan.timeout_s,
        together=facts.get("PJRT device") == "CPU",
    )
    rounds.run(plan.rounds, until_s, lambda what, share: progress(what, COUNTING + (1 - COUNTING) * share))
    failures |= {name: _failed(error, "timing") for name, error in rounds.failures.items()}
    routes = []
    for name in get_args(RouteName):
        row = counted.get(name) or Route(name, "", (), 0, 0, None, None, None, (), (), None, None)
        if rows := rounds.rows.get(name):
            row = replace(row, times=summarise(rows), first_compiled_unwatched=rows[0]["first"]["compiled"])
        routes.append(replace(row, failure=failures.get(name, "")))
    for row in routes:
        first = row.steps[0].compiled if row.steps else None
        if None not in (first, row.first_compiled_unwatched) and first != row.first_compiled_unwatched:
            notes.append(
                Note(
                    "watching-changed-counts",
                    "warn",
                    f"{target}, {row.name}: the first step compiled {first} graphs when counted and"
                    f" {row.first_compiled_unwatched} when timed",
                )
            )
    found = compare(rounds.rows)
    if found is not None and found.verdict == "undecided":
        notes.append(
            Note(
                "not-decided",
                "warn",
                f"{target} ({'training' if train else 'inference'}): {compared(found)}",
                f"--rounds {2 * max(found.n_rounds, LEAST_PAIRS)}" if plan.thorough else "--thorough",
            )
        )
    facts["sessions"] = "fresh processes" if forks is None else "forks of one process"
    known = compiled is not None and "openxla" in counted
    return XlaModel(
        target=target,
        train=train,
        n_dynamo_graphs=len({fx_graph.compile_id for fx_graph in fx if not fx_graph.step}) if fx or known else None,
        n_breaks=len(compiled.breaks) if compiled is not None and known else None,
        breaks=compiled.breaks if compiled is not None else (),
        recompiles=compiled.recompiles if compiled is not None else (),
        fx=fx,
        routes=tuple(routes),
        facts=tuple(facts.items()),
        dynamo_over_lazy=found,
    ), notes


def _failed(error: SessionError, doing: str) -> str:
    what = {"timeout": "timed out", "crash": "crashed", "target": "cannot be run"}.get(error.kind, "failed")
    return f"{what} while {doing}: {error.message}" + (f"\n{error.hint}" if error.hint else "")


def _device(name: str) -> dict[str, str]:
    return {"PJRT_DEVICE": name.upper()} if name else {}


def _dumping(folder: Path) -> dict[str, str]:
    """Return the settings that make torch_xla and dynamo write down all they do."""
    return {
        "PT_XLA_DEBUG_LEVEL": "2",
        "PT_XLA_DEBUG_FILE": str(folder / "debug.txt"),
        "PT_XLA_DEBUG_MAX_FRAME": N_FRAMES,
        "XLA_SAVE_TENSORS_FILE": str(folder / "saved.txt"),
        "XLA_SAVE_TENSORS_FMT": "hlo",
        "TORCH_TRACE": str(folder / "trace"),
    }


def run_script(command: Sequence[str], python: str, device: str, timeout_s: float) -> tuple[XlaProgram, int]:
    """Run a script once with everything dumped; return what the dumps say, and its exit code.

    Raises UsageError: it ran too long, or nothing of torch_xla was used.
    """
    with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
        folder = Path(name)
        started = [*module_command(python, "torchtriage.compile.xla.script_main"), str(folder / "metrics.txt")]
        environment = {**os.environ, **_device(device), **_dumping(folder)}
        try:
            # what the script prints must not mix with the report
            code = subprocess.run(
                [*started, *command], env=environment, stdout=2, timeout=timeout_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            raise UsageError(f"ran longer than {timeout_s:.0f} s", where=command[0], hint="--timeout S") from None
        try:
            (program,) = read_dumps([name])
        except LogError:
            raise UsageError(
                f"ended with exit code {code} and compiled nothing with torch_xla",
                where=command[0],
                hint="move model and inputs to torch_xla.device()",
            ) from None
        notes: list[Note] = []
        compiled = _compile_log(folder / "trace", command[0], notes) if any((folder / "trace").glob("*")) else None
        if code:
            notes.append(Note("exit-code", "warn", f"the script ended with exit code {code}"))
        return replace(
            program,
            name=" ".join(command),
            paths=(),
            skipped=(),
            breaks=compiled.breaks if compiled is not None else (),
            notes=(*program.notes, *notes),
        ), code


def _count(
    plan: XlaPlan, forks: ForkServer | None, folder: Path, target: str, route: RouteName, train: bool
) -> tuple[Route, tuple[FxGraph, ...], dict[str, str]]:
    files = {"debug": folder / "debug.txt", "saved": folder / "saved.txt.0"}
    environment = {**_device(plan.device), **_dumping(folder)}
    with session(plan.python, folder, environment, plan.threads, forks) as worker:
        begun = worker.ask(
            "start", plan.timeout_s, target=target, route=route, train=train, threads=plan.threads, watched=True
        )
        begins = [worker.ask("written", plan.timeout_s)]
        steps = [worker.ask("step", plan.timeout_s)]
        check = worker.ask("answers", plan.timeout_s)
        begins.append(worker.ask("written", plan.timeout_s))
        while len(steps) < plan.steps:
            steps.append(worker.ask("step", plan.timeout_s))
            begins.append(steps[-1]["written"])
        graphs = worker.ask("graphs", plan.timeout_s)

    def lines(name: str, begin: dict[str, int], step: dict[str, Any]) -> list[str]:
        data = files[name].read_bytes() if files[name].exists() else b""
        return data[begin[name] : step["written"][name]].decode("utf-8", "replace").splitlines()

    analyses = [list(read_debug(lines("debug", *span))) for span in zip(begins, steps, strict=False)]
    saved = [list(read_saved(lines("saved", *span))) for span in zip(begins, steps, strict=False)]
    counted, fx = count(route, steps, graphs, analyses, saved, train=train)
    answers = AnswerCheck(
        verdict=check["verdict"],
        of=check.get("of", ""),
        error=check.get("error"),
        eager_error=check.get("eager_error"),
        worst_at=check.get("worst_at", ""),
        reason=check.get("reason", ""),
    )
    return replace(counted, answers=answers), fx, begun["facts"]


def _compile_log(folder: Path, target: str, notes: list[Note]) -> CompileResult | None:
    try:
        logs, _ = read_logs([str(folder)])
    except LogError as error:
        notes.append(Note("no-compile-log", "warn", f"{target}: dynamo's log: {error.message}"))
        return None
    return judge(logs)
