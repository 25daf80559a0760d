"""The benchmark: a check, a cold session of each setting, then rounds of warm ones in turns."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.session_client import SessionClient, SessionError
from torchtriage.core.machine import read_host
from torchtriage.core.stats.steady_state import find_steady
from torchtriage.measure.bench.advice import all_settled
from torchtriage.measure.bench.checkpoint import Checkpoint
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.plan import DYNAMIC, BenchPlan
from torchtriage.measure.bench.result import Setting, SettingFailure

Progress = Callable[[str, float], None]
"""Called with what begins now and the share that is done."""

BLOCK_S = 0.05
"""A turn: short beside what disturbs a machine, long beside a change of turns."""
MOST_BLOCK_S = 4 * BLOCK_S
"""A turn ends after this, with fewer steps: on a busy machine a step may take hundreds of times what the last did."""
CHUNK_S = 0.25
LEAST_BLOCKS = 5
QUICK_S = 60.0
"""No round is added after this where nobody said how many: it takes about half a minute, and 90 s are a wait."""
ROOM = 0.7
"""Of free memory that waiting sessions may take together."""


def measure(
    plan: BenchPlan, folder: Path, *, fresh: bool = False, progress: Progress = lambda _what, _share: None
) -> Measurements:
    """Measure what the plan says, and return the sessions.

    Those that are in the folder already are not measured again.

    Raises UsageError: the target cannot be used at all, or the folder holds something else.
    """
    begun = time.monotonic()
    store = Checkpoint(folder, plan, fresh=fresh)
    opened = _checked(plan, store, progress)
    measured = Measurements(plan, opened)
    n_starts = len(plan.settings)
    done = 0

    def say(what: str) -> None:
        progress(what, done / (n_starts * (1 + plan.rounds)))

    for at, group in enumerate(plan.groups()):
        waiting: list[_Turn] = []
        with ExitStack() as running:
            for setting in _shuffled(group, 0):
                say(f"cold start: {setting.name}")
                measure = partial(_cold, plan, store, setting, running, waiting)
                name = f"cold/{setting.key}.json"
                measured.cold[setting.key] = _stored(store, name, measure, partial(_is_final, plan))
                done += 1
            alive = [setting for setting in group if measured.is_alive(setting)]
            first = f"rounds/1.{at}.json"
            if plan.rounds > 1 and alive and len(waiting) == len(alive) and store.read(first) is None:
                say(f"round 1: {group[0].name}" + (f" and {len(alive) - 1} more" if alive[1:] else ""))
                store.write(first, {"together": True, "sessions": _take_turns(waiting, 1)})
    for number in range(1, plan.most_rounds + 1):
        late = plan.max_rounds is None and time.monotonic() - begun > QUICK_S
        if number > plan.rounds and (late or all_settled(measured)):
            break
        for at, group in enumerate(plan.groups()):
            alive = [setting for setting in group if measured.is_alive(setting)]
            together = len(alive) > 1 and _fits(measured, alive)
            say(f"round {number}: {group[0].name}" + (f" and {len(alive) - 1} more" if alive[1:] else ""))
            turn = partial(_round, plan, store, alive, number, together)
            session = _stored(store, f"rounds/{number}.{at}.json", turn, partial(_is_whole, plan, alive))
            measured.rounds.setdefault(number, {}).update(session["sessions"])
            measured.interleaved &= session["together"] or len(alive) < 2
            done += len(group)
        if not any(measured.is_alive(setting) for setting in plan.settings):
            break
    progress("", 1.0)
    return measured


def _stored(
    store: Checkpoint, name: str, measure: Callable[[], Any], is_final: Callable[[Any], bool] = lambda _answers: True
) -> Any:
    answers = store.read(name)
    if answers is None or not is_final(answers):
        answers = measure()
        store.write(name, answers)
    return answers


def _is_final(plan: BenchPlan, session: dict[str, Any]) -> bool:
    """Whether a kept session says the same if run again: it did not fail.

    Or it was too slow, and has no more time now. Other failures may have been the machine's: no memory, no
    compiler.
    """
    failure = session.get("failure")
    if failure is None:
        return True
    return bool(failure["kind"] == "timeout" and plan.timeout_s <= failure["after_s"])


def _is_whole(plan: BenchPlan, alive: Sequence[Setting], answers: dict[str, Any]) -> bool:
    sessions = answers["sessions"]
    return all(setting.key in sessions and _is_final(plan, sessions[setting.key]) for setting in alive)


def _shuffled(values: Sequence[Any], seed: int) -> list[Any]:
    return random.Random(seed).sample(list(values), len(values))


def _open(plan: BenchPlan, worker: SessionClient, setting: Setting) -> dict[str, Any]:
    way = {"mode": setting.mode, "backend": setting.backend, "dynamic": DYNAMIC[setting.dynamic]}
    return worker.ask(
        "open",
        plan.timeout_s,
        target=plan.target,
        way=way,
        train=plan.train,
        device=plan.device,
        threads=plan.threads,
        batch_size=setting.batch_size,
        dtype=setting.dtype,
    )


def _checked(plan: BenchPlan, store: Checkpoint, progress: Progress) -> dict[str, Any]:
    """Return what the target is; one process learns it before anything is measured, or what is kept is taken."""
    known: dict[str, Any] | None = store.read("check.json")
    eager = Setting("eager", "", "auto", plan.settings[0].batch_size, "")
    progress("the target", 0.0)
    try:
        with SessionClient(store.cache("check"), store.log("check"), plan.threads) as worker:
            opened = _open(plan, worker, eager)
            if known is None:
                backends = sorted({setting.backend for setting in plan.settings if setting.backend})
                worker.ask("check_backends", plan.timeout_s, names=backends)
            worker.ask("first", plan.timeout_s)  # it may import more
            opened = opened | {"sources": worker.ask("sources", plan.timeout_s)}
    except SessionError as error:
        raise UsageError(
            error.message if error.kind != "timeout" else f"eager gave {error.message}",
            where=plan.target,
            hint=error.hint,
        ) from error
    if known is None:
        store.write("check.json", opened)
        return opened
    then, now = known.get("sources", {}), opened["sources"]
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if changed:
        raise UsageError(
            f"holds measurements of another program: {', '.join(changed[:8])} changed since",
            where=str(store.path),
            hint="--fresh measures again, --out names another folder",
        )
    return known


def _cold(
    plan: BenchPlan, store: Checkpoint, setting: Setting, running: ExitStack, waiting: list[_Turn]
) -> dict[str, Any]:
    """Start once with empty caches, and hold the answers against eager's.

    On a processor the session stays for the first round, where there is room for it: it is as fresh as any other.
    """
    stage = "start"
    cache = store.cache(setting.key, empty=True)
    out: dict[str, Any] = {}
    with ExitStack() as ending:
        worker = ending.enter_context(SessionClient(cache, store.log(f"cold.{setting.key}"), plan.threads))
        try:
            out["open"] = _open(plan, worker, setting)
            stage = "compile"
            out["first"] = worker.ask("first", plan.timeout_s)
            stage = "steps"
            out["warm_up"] = _warmed(plan, worker, out["first"]["ns"])
            out["finish"] = worker.ask("finish", plan.timeout_s)
            out["peak"] = worker.ask("peak", plan.timeout_s)
            other = plan.other_size(setting)
            if other is not None and setting.backend:
                with suppress(SessionError):
                    out["other"] = worker.ask("other_size", plan.timeout_s, batch_size=other)
            stage = "numerics"
            standard = plan.standard(setting)
            out["numerics"] = worker.ask("numerics", plan.timeout_s, standard=standard)
        except SessionError as error:
            out["failure"] = _failure(error, stage, "cold")
        else:
            if out["open"]["device"] == "cpu" and other is None and _has_room(out["peak"]):
                turn = _Turn(plan, worker, setting, 1)
                turn.attempt(partial(turn.go_on, out))
                waiting.append(turn)
                running.push(ending.pop_all())
    return out


def _failure(error: SessionError, stage: str, session: str) -> dict[str, Any]:
    kind = "error" if error.kind == "target" else error.kind
    return asdict(SettingFailure(kind, stage, session, error.message, round(error.after_s, 3)))


def _warmed(plan: BenchPlan, worker: SessionClient, first_ns: int) -> list[int]:
    """Run steps until they are steady, or for as long as the plan allows."""
    times: list[int] = []
    until = time.monotonic() + plan.warm_up_s
    while True:
        times += worker.ask("warm_up", plan.timeout_s, seconds=CHUNK_S)
        if find_steady(np.array([first_ns, *times])).begin is not None or time.monotonic() >= until:
            return times


class _Turn:
    """One setting's session within a round."""

    def __init__(self, plan: BenchPlan, worker: SessionClient, setting: Setting, number: int) -> None:
        self.plan, self.worker, self.setting = plan, worker, setting
        self.session = f"round {number}"
        self.out: dict[str, Any] = {"blocks": []}
        self.stage = "start"
        self.n = 1
        self.untimed = True

    @property
    def alive(self) -> bool:
        return "failure" not in self.out

    def attempt(self, work: Callable[[], None]) -> None:
        """Do a part of the session, unless it has failed before."""
        if self.alive:
            try:
                work()
            except SessionError as error:
                self.out["failure"] = _failure(error, self.stage, self.session)

    def begin(self) -> None:
        timeout_s = self.plan.timeout_s
        self.out["open"] = _open(self.plan, self.worker, self.setting)
        self.stage = "compile"
        self.out["first"] = self.worker.ask("first", timeout_s)
        self.stage = "steps"
        times = _warmed(self.plan, self.worker, self.out["first"]["ns"])
        self.out["warm_up"] = times
        self.out["peak"] = self.worker.ask("peak", timeout_s)
        self._take(times)

    def go_on(self, cold: dict[str, Any]) -> None:
        """Begin with a session that was started with empty caches."""
        self.out |= {name: cold[name] for name in ("open", "first", "warm_up", "peak")} | {"cold": True}
        self.stage = "steps"
        self._take(cold["warm_up"])

    def _take(self, times: list[int]) -> None:
        self.worker.ask("clear_peak", self.plan.timeout_s)
        self._fill(times[-max(len(times) // 3, 1) :])

    def _fill(self, times: list[int]) -> None:
        """Make a turn as long as it should be: others may slow it down to many times what it took when it warmed up."""
        step_s = float(np.median(times)) / 1e9
        self.n = max(round(BLOCK_S / step_s), 1)
        self.untimed = step_s < BLOCK_S

    @property
    def is_short(self) -> bool:
        """Whether more blocks are needed, for the time or for the steps that were asked for."""
        blocks = self.out["blocks"]
        # a quarter more: the first may come before the steady state
        n_steps = sum(len(block["ns"]) for block in blocks)
        least = max(math.ceil(self.plan.seconds / BLOCK_S), LEAST_BLOCKS)
        return self.alive and (len(blocks) < least or n_steps < 1.25 * self.plan.steps)

    def block(self) -> None:
        """Run one block, and see what the machine did meanwhile."""
        before = read_host()
        block = self.worker.ask("block", self.plan.timeout_s, n=self.n, untimed=self.untimed, most_s=MOST_BLOCK_S)
        after = read_host()
        if before is not None and after is not None:
            block["host"] = {
                "wall_s": after.at_s - before.at_s,
                "busy_s": after.busy_s - before.busy_s,
                "stolen_s": after.stolen_s - before.stolen_s,
                "n_cores": after.n_cores,
            }
        self.out["blocks"].append(block)
        self._fill(block["ns"])

    def end(self) -> None:
        self.out["finish"] = self.worker.ask("finish", self.plan.timeout_s)


def _round(plan: BenchPlan, store: Checkpoint, group: Sequence[Setting], number: int, together: bool) -> dict[str, Any]:
    """Run one session of each setting: in turns, block by block, or one after the other."""
    sessions: dict[str, Any] = {}
    order = _shuffled(group, number)
    for part in [order] if together else [[setting] for setting in order]:
        with ExitStack() as running:
            turns = []
            for setting in part:
                log = store.log(f"round-{number}.{setting.key}")
                worker = running.enter_context(SessionClient(store.cache(setting.key), log, plan.threads))
                turns.append(_Turn(plan, worker, setting, number))
                turns[-1].attempt(turns[-1].begin)
            sessions |= _take_turns(turns, number)
    return {"together": together, "sessions": sessions}


def _take_turns(turns: Sequence[_Turn], number: int) -> dict[str, Any]:
    """Run blocks of sessions that are ready in turns, and return what each measured."""
    at = 0
    while any(turn.is_short for turn in turns):
        for turn in _shuffled(turns, number * 100_003 + at):
            turn.attempt(turn.block)
        at += 1
    for turn in turns:
        turn.attempt(turn.end)
    return {turn.setting.key: turn.out for turn in turns}


def _has_room(peak: int | None) -> bool:
    """Whether another session like this one may run beside those that wait."""
    free = _free_bytes()
    return free is None or (peak or 0) <= ROOM * free


def _fits(measured: Measurements, group: Sequence[Setting]) -> bool:
    """Whether all sessions of a group can wait in memory at once, by what the cold ones took."""
    host = sum(measured.cold[setting.key].get("peak") or 0 for setting in group)
    free = _free_bytes()
    if free is not None and host > ROOM * free:
        return False
    device = sum(measured.cold[setting.key]["finish"]["memory"].get("device_reserved_bytes") or 0 for setting in group)
    total = measured.opened.get("device_total_bytes")
    return not total or device <= ROOM * total


def _free_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
