"""Running a model each way in fresh processes: counted once with everything dumped, then timed.

A script is run once, with the same dumps, and they are read as any dumps are.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.result import CompileResult
from torchtriage.compile.xla.dumps import read_debug, read_saved
from torchtriage.compile.xla.graph_counts import count
from torchtriage.compile.xla.programs import read_dumps
from torchtriage.compile.xla.python_env import module_command, session
from torchtriage.compile.xla.result import AnswerCheck, FxGraph, Route, RouteName, RouteTimes, XlaModel, XlaProgram
from torchtriage.core.errors import LogError, UsageError
from torchtriage.core.finding import Note
from torchtriage.core.isolate.session_client import SessionClient, SessionError

__all__ = ["XlaPlan", "measure", "run_script"]

N_FRAMES = "64"
"""``PT_XLA_DEBUG`` shows 8 by default: a module's call alone takes two."""
WARM_UP_S = 0.5
COUNTED: tuple[RouteName, ...] = ("lazy", "openxla")


@dataclass(frozen=True)
class XlaPlan:
    """What is run. ``rounds`` : timed processes of each route; ``steps`` : counted steps."""

    targets: tuple[str, ...]
    modes: tuple[bool, ...] = (False,)
    """Whether a step trains: one model for each."""
    python: str = ""
    device: str = ""
    threads: int | None = None
    steps: int = 4
    rounds: int = 3
    seconds: float = 1.0
    timeout_s: float = 600.0


Progress = Callable[[str, float], None]


def measure(plan: XlaPlan, progress: Progress | None = None) -> tuple[list[XlaModel], list[Note]]:
    """Return one model for each target and mode, and what limits the numbers.

    Raises UsageError: no target could be run in any way.
    """
    pairs = [(target, train) for target in plan.targets for train in plan.modes]
    models, notes = [], []
    for at, (target, train) in enumerate(pairs):

        def report(what: str, share: float, at: int = at, target: str = target) -> None:
            if progress is not None:
                progress(f"{target}: {what}", (at + share) / len(pairs))

        model, more = _measure(plan, target, train, report)
        models.append(model)
        notes += more
    failed = [route.failure for model in models for route in model.routes if route.name in COUNTED]
    if all(failed):
        message, _, hint = failed[0].partition("\n")
        raise UsageError(message, where=plan.targets[0], hint=hint)
    return models, notes


def _measure(plan: XlaPlan, target: str, train: bool, progress: Progress) -> tuple[XlaModel, list[Note]]:
    notes: list[Note] = []
    failures: dict[RouteName, str] = {}
    counted: dict[RouteName, Route] = {}
    fx: tuple[FxGraph, ...] = ()
    compiled: CompileResult | None = None
    facts: dict[str, str] = {}
    n = 2 + 3 * plan.rounds
    for done, route in enumerate(COUNTED):
        progress(f"counting, {route}", done / n)
        with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
            try:
                counted[route], handed, more = _count(plan, Path(name), target, route, train)
                fx = handed if route == "openxla" else ()
                facts |= more
            except SessionError as error:
                failures[route] = _failed(error, "counting")
                if error.kind == "target":  # no other way to run it can be better
                    failures = dict.fromkeys(get_args(RouteName), failures[route])
                    break
            if route == "openxla":
                compiled = _compile_log(Path(name) / "trace", target, notes)
    timed = _times(plan, target, train, failures, progress)
    routes = []
    for name in get_args(RouteName):
        row = counted.get(name) or Route(name, "", (), 0, 0, None, None, None, (), (), None, None)
        if name in timed:
            first = timed[name][0]["first"]["compiled"]
            row = replace(row, times=_summary(timed[name]), first_compiled_unwatched=first)
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
    ), notes


def _failed(error: SessionError, doing: str) -> str:
    what = {"timeout": "timed out", "crash": "crashed", "target": "cannot be run"}.get(error.kind, "failed")
    return f"{what} while {doing}: {error.message}" + (f"\n{error.hint}" if error.hint else "")


def _environment(device: str, more: dict[str, str]) -> dict[str, str]:
    return {**({"PJRT_DEVICE": device.upper()} if device else {}), **more}


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
        environment = {**os.environ, **_environment(device, _dumping(folder))}
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
    plan: XlaPlan, folder: Path, target: str, route: RouteName, train: bool
) -> tuple[Route, tuple[FxGraph, ...], dict[str, str]]:
    files = {"debug": folder / "debug.txt", "saved": folder / "saved.txt.0"}
    environment = _environment(plan.device, _dumping(folder))
    with session(plan.python, folder, environment, plan.threads) as worker:
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


def _times(
    plan: XlaPlan, target: str, train: bool, failures: dict[RouteName, str], progress: Progress
) -> dict[RouteName, list[dict[str, Any]]]:
    """Time the routes in turns, in fresh processes; which one begins goes round."""
    timed: dict[RouteName, list[dict[str, Any]]] = {}
    names: list[RouteName] = [name for name in get_args(RouteName) if name not in failures]
    n = 2 + 3 * plan.rounds
    for number in range(plan.rounds):
        first = number % len(names) if names else 0
        for at, route in enumerate(names[first:] + names[:first]):
            if route in failures:
                continue
            progress(f"timing, {route}", (2 + 3 * number + at) / n)
            with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
                try:
                    with session(plan.python, Path(name), _environment(plan.device, {}), plan.threads) as worker:
                        row = _timed(plan, worker, target, route, train)
                        timed.setdefault(route, []).append(row)
                except SessionError as error:
                    failures[route] = _failed(error, "timing")
    return timed


def _timed(plan: XlaPlan, worker: SessionClient, target: str, route: RouteName, train: bool) -> dict[str, Any]:
    worker.ask("start", plan.timeout_s, target=target, route=route, train=train, threads=plan.threads, watched=False)
    first = worker.ask("first_counted", plan.timeout_s)
    warm = worker.ask("warm_up", plan.timeout_s + WARM_UP_S, seconds=WARM_UP_S)
    n = max(5, min(200, int(plan.seconds * 1e9 / median(warm[-5:]))))
    block = worker.ask("block", plan.timeout_s + 4 * plan.seconds, n=n, untimed=False)
    return {"first": first, "block": block, "n": n}


def _summary(rows: Sequence[dict[str, Any]]) -> RouteTimes:
    firsts = [row["first"]["ns"] / 1e6 for row in rows]
    steady = [median(row["block"]["ns"]) / 1e6 for row in rows]
    queued = [row["block"]["queued_ns"] / row["n"] / 1e6 for row in rows if "queued_ns" in row["block"]]
    return RouteTimes(
        first_ms=median(firsts),
        first_low_ms=min(firsts),
        first_high_ms=max(firsts),
        steady_ms=median(steady),
        low_ms=min(steady),
        high_ms=max(steady),
        queued_ms=median(queued) if queued else None,
        n_queued=rows[0]["n"] if queued else 0,
        n_steps=sum(row["n"] for row in rows),
        n_processes=len(rows),
    )
