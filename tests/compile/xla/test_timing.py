"""Rounds end when it is clear which way is faster, or when the time is up; sessions answer from here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtriage.compile.xla import timing
from torchtriage.compile.xla.timing import MOST_ROUNDS, Rounds, compare, summarise
from torchtriage.core.isolate.session_client import SessionError

NAMES = ("eager", "lazy", "openxla")


class Machine:
    """Steps of given lengths in milliseconds, one for each session of a route, over and over; its clock is theirs."""

    def __init__(self, **steps_ms: list[float]) -> None:
        self.steps_ms: dict[str, Iterator[float]] = {name: itertools.cycle(steps_ms.get(name, [1.0])) for name in NAMES}
        self.now_s = 0.0
        self.calls: list[tuple[str, str]] = []
        self.alive = self.most_alive = 0

    def monotonic(self) -> float:
        return self.now_s

    def start(self, _folder: Path) -> Session:
        return Session(self)


class Session:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> Session:
        self.machine.alive += 1
        self.machine.most_alive = max(self.machine.alive, self.machine.most_alive)
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.alive -= 1

    def ask(self, command: str, _timeout_s: float, **given: Any) -> Any:
        if command == "start":
            self.route = given["route"]
            self.step_ms = next(self.machine.steps_ms[self.route])
        self.machine.calls.append((command, self.route))
        if self.step_ms < 0 and command == "block":
            raise SessionError("crash", "it died", 1.0)
        if command == "first_counted":
            self.machine.now_s += 1.0
            return {"ns": 10**9, "compiled": 1}
        if command == "warm_up":
            return [abs(self.step_ms) * 1e6] * 5
        if command == "block":
            n = given["n"]
            return {"ns": [self.step_ms * 1e6] * n, "queued_ns": n * self.step_ms * 5e5}
        return {}


def timed(machine: Machine, rounds: int | None = None, until_s: float = 1e9, together: bool = True) -> Rounds:
    found = Rounds(machine.start, NAMES, {"target": "m:f"}, 0.3, 60.0, together=together)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time", machine)
        found.run(rounds, until_s, lambda *_: None)
    return found


def verdict(found: Rounds) -> str:
    comparison = compare(found.rows)
    assert comparison is not None
    assert comparison.n_rounds == len(found.rows["lazy"]) == len(found.rows["openxla"])
    return comparison.verdict


def test_three_rounds_where_they_agree() -> None:
    found = timed(Machine(lazy=[2.0, 2.01, 1.99], openxla=[1.0]))
    assert (verdict(found), len(found.rows["lazy"])) == ("faster", 3)
    found = timed(Machine(lazy=[1.0], openxla=[2.0, 2.01, 1.99]))
    assert (verdict(found), len(found.rows["lazy"])) == ("slower", 3)
    found = timed(Machine(openxla=[1.0, 1.001, 0.999]))
    assert (verdict(found), len(found.rows["lazy"])) == ("equal", 3)


def test_more_where_they_do_not_until_it_is_clear() -> None:
    found = timed(Machine(lazy=[1.0], openxla=[1.2, 1.3, 1.5]))
    assert verdict(found) == "slower"
    assert 3 < len(found.rows["lazy"]) < MOST_ROUNDS


def test_what_never_agrees_is_not_decided() -> None:
    found = timed(Machine(lazy=[1.0], openxla=[0.7, 1.5]))
    assert (verdict(found), len(found.rows["lazy"])) == ("undecided", MOST_ROUNDS)


def test_no_round_begins_that_would_end_too_late() -> None:
    # a round is three seconds: three first calls
    for until_s, rounds in ((0.0, 1), (5.9, 1), (6.1, 2), (1e9, 3)):
        for step_ms, told_by in ((9.0, 3), (11.0, 1), (0.09, 1)):  # two rounds have no interval
            found = timed(Machine(openxla=[step_ms]), until_s=until_s)
            assert len(found.rows["lazy"]) == rounds
            assert (verdict(found) != "undecided") == (rounds >= told_by)


def test_as_many_rounds_as_were_asked_for() -> None:
    assert not timed(Machine(), rounds=0).rows
    assert len(timed(Machine(lazy=[1.0], openxla=[0.7, 1.5]), rounds=8, until_s=0.0).rows["lazy"]) == 8


def test_sessions_take_turns_on_a_processor_alone() -> None:
    machine = Machine()
    timed(machine, rounds=1)
    blocks = [route for command, route in machine.calls if command == "block"]
    assert blocks == ["eager", "lazy", "openxla"] * 6  # 0.3 s of 50 steps of 1 ms
    assert machine.most_alive == 3
    machine = Machine()
    found = timed(machine, rounds=2, together=False)
    assert machine.most_alive == 1
    begun = [route for command, route in machine.calls if command == "start"]
    assert begun == ["eager", "lazy", "openxla", "lazy", "openxla", "eager"]
    assert {name: len(rows) for name, rows in found.rows.items()} == dict.fromkeys(NAMES, 2)


def test_slow_steps_are_three_at_least() -> None:
    (row,) = timed(Machine(lazy=[400.0]), rounds=1).rows["lazy"]
    assert [len(block["ns"]) for block in row["blocks"]] == [1, 1, 1]


def test_a_route_that_fails_later_leaves_the_others_their_rounds() -> None:
    found = timed(Machine(lazy=[1.0, -1.0]), rounds=3)
    assert {name: len(rows) for name, rows in found.rows.items()} == {"eager": 3, "lazy": 1, "openxla": 3}
    assert found.failures["lazy"].message == "it died"
    assert compare(found.rows) is not None
    found = timed(Machine(lazy=[-1.0]))
    assert "lazy" not in found.rows
    assert compare(found.rows) is None


def test_times_are_medians_over_sessions() -> None:
    times = summarise(timed(Machine(lazy=[1.0, 4.0, 2.0]), rounds=3).rows["lazy"])
    assert (times.low_ms, times.steady_ms, times.high_ms) == (1.0, 2.0, 4.0)
    assert (times.queued_ms, times.n_queued, times.n_processes) == (1.0, 50, 3)
    assert times.first_ms == 1000.0
