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

from torchtriage.bench.worker import SessionError, Worker
from torchtriage.compile.judge import judge
from torchtriage.compile.read import read_logs
from torchtriage.compile.result import CompileResult
from torchtriage.errors import LogError, UsageError
from torchtriage.finding import Note
from torchtriage.xla.count import Counted, count
from torchtriage.xla.dumps import read_debug, read_saved
from torchtriage.xla.programs import read_dumps
from torchtriage.xla.result import Answers, Model, Program, Route, RouteName, Times
from torchtriage.xla.start import module_command, session

__all__ = ["Plan", "measure", "run_script"]

N_FRAMES = "64"
"""``PT_XLA_DEBUG`` shows 8 unless told: a module's call alone takes two."""
WARM_UP_S = 0.5
COUNTED: tuple[RouteName, ...] = ("lazy", "openxla")


@dataclass(frozen=True)
class Plan:
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


Told = Callable[[str, float], None]


def measure(plan: Plan, told: Told | None = None) -> tuple[list[Model], list[Note]]:
    """Return one model for each target and mode, and what limits the numbers.

    Raises
    ------
    UsageError
        No target could be run in any way.
    """
    pairs = [(target, train) for target in plan.targets for train in plan.modes]
    models, notes = [], []
    for at, (target, train) in enumerate(pairs):

        def said(what: str, share: float, at: int = at, target: str = target) -> None:
            if told is not None:
                told(f"{target}: {what}", (at + share) / len(pairs))

        model, more = _measure(plan, target, train, said)
        models.append(model)
        notes += more
    failed = [one.failure for model in models for one in model.routes if one.name in COUNTED]
    if all(failed):
        message, _, hint = failed[0].partition("\n")
        raise UsageError(message, where=plan.targets[0], hint=hint)
    return models, notes


def _measure(plan: Plan, target: str, train: bool, told: Told) -> tuple[Model, list[Note]]:
    notes: list[Note] = []
    failures: dict[RouteName, str] = {}
    answers: dict[RouteName, Answers] = {}
    counted: dict[RouteName, Counted] = {}
    compiled: CompileResult | None = None
    facts: dict[str, str] = {}
    n = 2 + 3 * plan.rounds
    for done, route in enumerate(COUNTED):
        told(f"counting, {route}", done / n)
        with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
            try:
                counted[route], answers[route], more = _count(
                    plan, Path(name), target, route, train
                )
                facts |= more
            except SessionError as error:
                failures[route] = _failed(error, "counting")
                if error.kind == "target":  # no other way to run it can be better
                    failures = dict.fromkeys(get_args(RouteName), failures[route])
                    break
            if route == "openxla":
                compiled = _compile_log(Path(name) / "trace", target, notes)
    times, unwatched = _times(plan, target, train, failures, told)
    routes = tuple(
        _route(name, failures.get(name, ""), counted.get(name), answers.get(name),
               times.get(name), unwatched.get(name))
        for name in get_args(RouteName)
    )  # fmt: skip
    for one in routes:
        first = one.steps[0].compiled if one.steps else None
        if (
            None not in (first, one.first_compiled_unwatched)
            and first != one.first_compiled_unwatched
        ):
            notes.append(Note(
                "watching-changed-counts", "warn",
                f"{target}, {one.name}: the first step compiled {first} graphs when counted and"
                f" {one.first_compiled_unwatched} when timed",
            ))  # fmt: skip
    fx = counted["openxla"].fx if "openxla" in counted else ()
    known = compiled is not None and "openxla" in counted
    return Model(
        target=target,
        train=train,
        n_dynamo_graphs=len({one.compile_id for one in fx if not one.step})
        if fx or known
        else None,
        n_breaks=len(compiled.breaks) if compiled is not None and known else None,
        breaks=compiled.breaks if compiled is not None else (),
        recompiles=compiled.recompiles if compiled is not None else (),
        fx=fx,
        routes=routes,
        facts=tuple(facts.items()),
    ), notes


def _failed(error: SessionError, doing: str) -> str:
    what = {"timeout": "timed out", "crash": "crashed", "target": "cannot be run"}.get(
        error.kind, "failed"
    )
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


def run_script(
    command: Sequence[str], python: str, device: str, timeout_s: float
) -> tuple[Program, int]:
    """Run a script once with everything dumped; return what the dumps say, and its exit code.

    Raises
    ------
    UsageError
        It ran too long, or nothing of torch_xla was used.
    """
    with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
        folder = Path(name)
        started = [*module_command(python, "torchtriage.xla.script"), str(folder / "metrics.txt")]
        environment = {**os.environ, **_environment(device, _dumping(folder))}
        try:
            # what the script prints must not mix with the report
            code = subprocess.run(
                [*started, *command], env=environment, stdout=2, timeout=timeout_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"ran longer than {timeout_s:.0f} s", where=command[0], hint="--timeout S"
            ) from None
        try:
            (program,) = read_dumps([name])
        except LogError:
            raise UsageError(
                f"ended with exit code {code} and compiled nothing with torch_xla",
                where=command[0],
                hint="move model and inputs to torch_xla.device()",
            ) from None
        notes: list[Note] = []
        compiled = _compile_log(folder / "trace", command[0], notes) if _logs(folder) else None
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


def _logs(folder: Path) -> bool:
    return any((folder / "trace").glob("*"))


def _count(
    plan: Plan, folder: Path, target: str, route: RouteName, train: bool
) -> tuple[Counted, Answers, dict[str, str]]:
    files = {"debug": folder / "debug.txt", "saved": folder / "saved.txt.0"}
    environment = _environment(plan.device, _dumping(folder))
    with session(plan.python, folder, environment, plan.threads) as worker:
        begun = worker.ask("start", plan.timeout_s, target=target, route=route, train=train,
                           threads=plan.threads, watched=True)  # fmt: skip
        begins = [worker.ask("written", plan.timeout_s)]
        steps = [worker.ask("step", plan.timeout_s)]
        found = worker.ask("answers", plan.timeout_s)
        begins.append(worker.ask("written", plan.timeout_s))
        while len(steps) < plan.steps:
            steps.append(worker.ask("step", plan.timeout_s))
            begins.append(steps[-1]["written"])
        graphs = worker.ask("graphs", plan.timeout_s)
    spans = [
        {name: _lines(files[name], begin[name], step["written"][name]) for name in files}
        for begin, step in zip(begins, steps, strict=False)
    ]
    analyses = [list(read_debug(one["debug"])) for one in spans]
    saved = [list(read_saved(one["saved"])) for one in spans]
    counted = count(route, steps, graphs, analyses, saved, train=train)
    return counted, _answers(found), begun["facts"]


def _lines(path: Path, begin: int, end: int) -> list[str]:
    if end == begin:
        return []
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin).decode("utf-8", "replace").splitlines()


def _answers(found: dict[str, Any]) -> Answers:
    return Answers(
        verdict=found["verdict"],
        of=found.get("of", ""),
        error=found.get("error"),
        eager_error=found.get("eager_error"),
        worst_at=found.get("worst_at", ""),
        reason=found.get("reason", ""),
    )


def _compile_log(folder: Path, target: str, notes: list[Note]) -> CompileResult | None:
    try:
        logs, _ = read_logs([str(folder)])
    except LogError as error:
        notes.append(Note("no-compile-log", "warn", f"{target}: dynamo's log: {error.message}"))
        return None
    return judge(logs)


# -- times -------------------------------------------------------------------------------------


def _times(
    plan: Plan, target: str, train: bool, failures: dict[RouteName, str], told: Told
) -> tuple[dict[RouteName, Times], dict[RouteName, int | None]]:
    """Time the routes in turns, in fresh processes; which one begins goes round."""
    found: dict[RouteName, list[dict[str, Any]]] = {}
    names: list[RouteName] = [one for one in get_args(RouteName) if one not in failures]
    n = 2 + 3 * plan.rounds
    for number in range(plan.rounds):
        first = number % len(names) if names else 0
        for at, route in enumerate(names[first:] + names[:first]):
            if route in failures:
                continue
            told(f"timing, {route}", (2 + 3 * number + at) / n)
            with tempfile.TemporaryDirectory(prefix="torchtriage-xla-") as name:
                try:
                    with session(
                        plan.python, Path(name), _environment(plan.device, {}), plan.threads
                    ) as worker:
                        found.setdefault(route, []).append(
                            _timed(plan, worker, target, route, train)
                        )
                except SessionError as error:
                    failures[route] = _failed(error, "timing")
    unwatched = {route: rows[0]["first"]["compiled"] for route, rows in found.items()}
    return {route: _summary(rows) for route, rows in found.items()}, unwatched


def _timed(
    plan: Plan, worker: Worker, target: str, route: RouteName, train: bool
) -> dict[str, Any]:
    worker.ask("start", plan.timeout_s, target=target, route=route, train=train,
               threads=plan.threads, watched=False)  # fmt: skip
    first = worker.ask("first_counted", plan.timeout_s)
    warm = worker.ask("warm_up", plan.timeout_s + WARM_UP_S, seconds=WARM_UP_S)
    n = max(5, min(200, int(plan.seconds * 1e9 / median(warm[-5:]))))
    block = worker.ask("block", plan.timeout_s + 4 * plan.seconds, n=n, untimed=False)
    return {"first": first, "block": block, "n": n}


def _summary(rows: Sequence[dict[str, Any]]) -> Times:
    firsts = [one["first"]["ns"] / 1e6 for one in rows]
    steady = [median(one["block"]["ns"]) / 1e6 for one in rows]
    queued = [one["block"]["queued_ns"] / one["n"] / 1e6 for one in rows
              if "queued_ns" in one["block"]]  # fmt: skip
    return Times(
        first_ms=median(firsts), first_low_ms=min(firsts), first_high_ms=max(firsts),
        steady_ms=median(steady), low_ms=min(steady), high_ms=max(steady),
        queued_ms=median(queued) if queued else None, n_queued=rows[0]["n"] if queued else 0,
        n_steps=sum(one["n"] for one in rows), n_processes=len(rows),
    )  # fmt: skip


def _route(
    name: RouteName,
    failure: str,
    counted: Counted | None,
    answers: Answers | None,
    times: Times | None,
    unwatched: int | None,
) -> Route:
    if counted is None:
        return Route(name, failure, (), 0, 0, None, None, unwatched, (), (), times, None)
    steady = counted.steps[len(counted.steps) - counted.n_steady :] if counted.n_steady else ()
    return Route(
        name=name,
        failure=failure,
        steps=counted.steps,
        n_compiled=sum(one.compiled for one in counted.steps),
        n_steady=counted.n_steady,
        executed_per_step=sum(one.executed for one in steady) / len(steady) if steady else None,
        execute_ms_per_step=sum(one.execute_ms for one in steady) / len(steady) if steady else None,
        first_compiled_unwatched=unwatched,
        graphs=counted.graphs,
        fallbacks=counted.fallbacks,
        times=times,
        answers=answers,
    )
