"""Timing the routes of a model: rounds of a session each, until it is clear which is faster or the time is up."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from torchtriage.compile.xla.result import RouteComparison, RouteName, RouteTimes, RouteVerdict
from torchtriage.core.isolate.session_client import SessionClient, SessionError
from torchtriage.core.stats.paired_interval import LEAST_PAIRS, order_of_pairs
from torchtriage.core.stats.session_comparison import session_value

WARM_UP_S = 0.5
BLOCK_S = 0.05
"""A turn: short beside what disturbs a machine, long beside a change of turns."""
MOST_BLOCK_S = 4 * BLOCK_S
"""A turn ends after this, with fewer steps: on a busy machine a step may take hundreds of times what the last did."""
LEAST_STEPS = 3
MOST_ROUNDS = 6
"""Three are the fewest that have an interval; one of six is a third as wide."""
PLAIN = 10.0
"""A ratio that fewer rounds tell: with ten processes for each core single rounds were off by up to a factor of 5."""

Asked = dict[str, Any]
Start = Callable[[Path], SessionClient]


class Rounds:
    """What was timed of each route: a row for each round, and why a route has no more.

    ``asked`` : what a session's ``start`` is given besides its route. ``together`` : sessions of a round live at
    once, and take turns; a device that is no processor may belong to one process alone.
    """

    def __init__(
        self,
        start: Start,
        names: Sequence[RouteName],
        asked: Asked,
        seconds: float,
        timeout_s: float,
        *,
        together: bool,
    ) -> None:
        self.start, self.asked, self.seconds, self.timeout_s = start, asked, seconds, timeout_s
        self.together = together
        self.alive = list(names)
        self.rows: dict[RouteName, list[dict[str, Any]]] = {}
        self.failures: dict[RouteName, SessionError] = {}

    def run(self, rounds: int | None, until_s: float, progress: Callable[[str, float], None]) -> None:
        """Run so many rounds; None for until the order is clear, and the next would end after ``until_s``."""
        number, took_s = 0, 0.0
        while self.alive and (number < rounds if rounds is not None else self._goes_on(number, until_s - took_s)):
            begun_s = time.monotonic()
            first = number % len(self.alive)
            order = self.alive[first:] + self.alive[:first]
            for part in [order] if self.together else [[name] for name in order]:
                progress(f"timing, round {number + 1}", number / (rounds or MOST_ROUNDS))
                self._take_turns(part)
            number, took_s = number + 1, time.monotonic() - begun_s

    def _goes_on(self, number: int, until_s: float) -> bool:
        if not number:
            return True
        found = compare(self.rows)
        clear = number >= LEAST_PAIRS and (found is None or found.verdict != "undecided")
        return number < MOST_ROUNDS and not clear and time.monotonic() < until_s

    def _take_turns(self, names: Sequence[RouteName]) -> None:
        with ExitStack() as running:
            turns = []
            for name in names:
                folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="torchtriage-xla-")))
                worker = running.enter_context(self.start(folder))
                turns.append(_Turn(name, worker, self.timeout_s))
                self._attempt(turns[-1], lambda turn: turn.begin(self.asked))
            while short := [turn for turn in turns if turn.name in self.alive and turn.is_short(self.seconds)]:
                for turn in short:
                    self._attempt(turn, _Turn.block)
        for turn in turns:
            if turn.name in self.alive:
                self.rows.setdefault(turn.name, []).append({"first": turn.first, "blocks": turn.blocks})

    def _attempt(self, turn: _Turn, work: Callable[[_Turn], None]) -> None:
        try:
            work(turn)
        except SessionError as error:
            self.failures[turn.name] = error
            self.alive.remove(turn.name)


class _Turn:
    """One route's session within a round."""

    def __init__(self, name: RouteName, worker: SessionClient, timeout_s: float) -> None:
        self.name, self.worker, self.timeout_s = name, worker, timeout_s
        self.first: dict[str, Any] = {}
        self.blocks: list[dict[str, Any]] = []
        self.step_s = 0.0

    def is_short(self, seconds: float) -> bool:
        times = _times_ns(self.blocks)
        return len(times) < LEAST_STEPS or sum(times) < seconds * 1e9

    def begin(self, asked: Asked) -> None:
        self.worker.ask("start", self.timeout_s, route=self.name, watched=False, **asked)
        self.first = self.worker.ask("first_counted", self.timeout_s)
        warm = self.worker.ask("warm_up", self.timeout_s + WARM_UP_S, seconds=WARM_UP_S)
        self.step_s = median(warm[-LEAST_STEPS:]) / 1e9

    def block(self) -> None:
        n = max(round(BLOCK_S / self.step_s), 1)
        untimed = self.step_s < BLOCK_S
        self.blocks.append(self.worker.ask("block", self.timeout_s, n=n, untimed=untimed, most_s=MOST_BLOCK_S))
        self.step_s = median(self.blocks[-1]["ns"]) / 1e9


def _times_ns(blocks: Sequence[dict[str, Any]]) -> list[int]:
    return [ns for block in blocks for ns in block["ns"]]


def compare(rows: dict[RouteName, list[dict[str, Any]]]) -> RouteComparison | None:
    """Return dynamo's steady step over LazyTensor's, round by round; None where one of them was not timed.

    By the fastest tenth of a session's steps: what else the machine does can only slow steps down.
    """
    lazy, dynamo = (
        np.array([session_value(np.array(_times_ns(row["blocks"]), dtype=float), "low") for row in rows.get(name, [])])
        for name in ("lazy", "openxla")
    )
    n = min(len(lazy), len(dynamo))
    if not n:
        return None
    order = order_of_pairs(lazy[:n], dynamo[:n])
    known = n >= LEAST_PAIRS
    plain = not known and not 1 / PLAIN < order.ratio.value < PLAIN
    return RouteComparison(
        ratio=order.ratio.value,
        low=order.ratio.low if known else None,
        high=order.ratio.high if known else None,
        n_rounds=n,
        verdict=_verdict(order.ratio.value, differs=order.differs or plain, resolved=order.resolved or plain),
    )


def _verdict(ratio: float, *, differs: bool, resolved: bool) -> RouteVerdict:
    if not resolved:
        return "undecided"
    if not differs:
        return "equal"
    return "faster" if ratio < 1 else "slower"


def summarise(rows: Sequence[dict[str, Any]]) -> RouteTimes:
    """Return a route's times over its sessions."""
    firsts = [row["first"]["ns"] / 1e6 for row in rows]
    steady = [median(_times_ns(row["blocks"])) / 1e6 for row in rows]
    blocks = [[block for block in row["blocks"] if "queued_ns" in block] for row in rows]
    queued = [
        sum(block["queued_ns"] for block in session) / len(_times_ns(session)) / 1e6 for session in blocks if session
    ]
    return RouteTimes(
        first_ms=median(firsts),
        first_low_ms=min(firsts),
        first_high_ms=max(firsts),
        steady_ms=median(steady),
        low_ms=min(steady),
        high_ms=max(steady),
        queued_ms=median(queued) if queued else None,
        n_queued=len(rows[0]["blocks"][0]["ns"]) if queued else 0,
        n_steps=sum(len(_times_ns(row["blocks"])) for row in rows),
        n_processes=len(rows),
    )
