"""Random histories of load with two to eight workers: no flapping, and little that is late.

The full number of histories is run by ``TORCHTRIAGE_LADDER_HISTORIES=10000``. What load does to a mode is queueing
theory's, not the ladder's: the time of a call grows as 1 / (1 - utilisation), and beyond it is late.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from torchtriage.operate.ladder import Ladder, LocalStore, Mode, Policy

N_HISTORIES = int(os.environ.get("TORCHTRIAGE_LADDER_HISTORIES", "20"))
DEADLINE_S, SECONDS, LOOK_EVERY = 0.1, 900, 2
CALLS = 6  # of a worker and second
POLICY = Policy(deadline_s=DEADLINE_S)


class World:
    """Its time and load, and what a call takes in it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now_s = 0.0
        self.load = 0.5
        self.share_full = 1.0  # of the last second's calls that the full mode answered
        self.took_s = 0.0
        self.n_full = self.n_calls = 0

    def clock(self) -> float:
        return self.now_s

    def full(self) -> str:
        self.n_full += 1
        busy = min(self.load * (self.share_full + 0.2 * (1 - self.share_full)), 0.995)
        self.took_s = 0.03 / (1 - busy) * self.draw.lognormvariate(0, 0.2)
        return "full"

    def lite(self) -> str:
        busy = min(self.load * (self.share_full + 0.2 * (1 - self.share_full)), 0.995)
        self.took_s = 0.006 / (1 - busy) * self.draw.lognormvariate(0, 0.2)
        return "lite"


class Timed(Ladder):
    """A ladder whose calls take what the world says."""

    world: World

    def _try(self, level, seen, args, kwargs):
        rung = self._rungs[level]
        rung.mode.call()
        late = self.world.took_s > DEADLINE_S
        rung.n_calls += 1
        rung.n_answered += 1
        rung.n_late += late
        if seen is not None and rung.n_answered > 5:
            seen.append(late)
        return True, None


def steady(draw: random.Random) -> Iterator[float]:
    level = draw.uniform(0.2, 0.6)
    while True:
        yield level


def steps(draw: random.Random) -> Iterator[float]:
    while True:
        level = draw.choice((0.3, 0.5, 0.65, 0.85, 1.0, 1.3, 2.0))
        for _ in range(draw.randrange(20, 400)):
            yield level


def wave(draw: random.Random) -> Iterator[float]:
    period, high, phase = draw.uniform(120, 1500), draw.uniform(0.5, 1.6), draw.random()
    at = 0
    while True:
        at += 1
        yield high * (0.6 + 0.4 * math.sin(math.tau * (at / period + phase)))


def spikes(draw: random.Random) -> Iterator[float]:
    while True:
        for _ in range(draw.randrange(10, 300)):
            yield 0.45
        for _ in range(draw.randrange(2, 40)):
            yield draw.uniform(1, 3)


def wander(draw: random.Random) -> Iterator[float]:
    log = math.log(0.5)
    while True:
        log += 0.03 * draw.gauss(0, 1) - 0.002 * (log - math.log(0.55))
        yield math.exp(min(log, 1.5))


PROFILES = (steady, steps, wave, spikes, wander)


@dataclass
class Told:
    """One history: falls by overload, and calls."""

    falls: list[int]
    overloads_s: list[float]
    n_late: int
    n_calls: int
    below_s: float
    needed_s: float


def history(seed: int, policy: Policy = POLICY) -> Told:
    """Return what a history of 15 minutes did."""
    world = World(seed)
    draw = world.draw
    store = LocalStore(world.clock)
    workers = []
    for at in range(draw.randrange(2, 9)):
        worker = Timed(
            "m",
            [Mode("full", world.full), Mode("lite", world.lite)],
            policy,
            store=store,
            dry_run=False,
            clock=world.clock,
            wall=world.clock,
        )
        worker.world, worker._actor = world, f"worker {at}"
        workers.append(worker)
    profile = PROFILES[seed % len(PROFILES)](draw)
    offsets = [draw.random() for _ in workers]
    told = Told([], [], 0, 0, 0.0, 0.0)
    over_until, level = -math.inf, 0
    for second in range(SECONDS):
        world.load = next(profile)
        # what the full mode alone would do in the median: late or not
        needs = 0.03 / max(1 - world.load, 0.005) > DEADLINE_S
        if needs:
            if second - over_until > 60:
                told.falls.append(0)
                told.overloads_s.append(0)
            over_until = second
            told.overloads_s[-1] += 1
        told.needed_s += needs
        world.n_full = world.n_calls = 0
        for worker, offset in sorted(zip(workers, offsets, strict=True), key=lambda pair: pair[1]):
            world.now_s = second + offset
            for _ in range(CALLS):
                worker()
            world.n_calls += CALLS
            if (second + int(offset * 100)) % LOOK_EVERY:
                continue
            worker.look()
            now = store.read("m").level
            if now > level:
                if not told.falls:
                    told.falls.append(0)
                    told.overloads_s.append(0)
                told.falls[-1] += 1
            level = now
        told.n_calls += world.n_calls
        told.below_s += level > 0
        world.share_full = 0.5 * world.share_full + 0.5 * world.n_full / world.n_calls
    told.n_late = sum(rung.n_late for worker in workers for rung in worker._rungs)
    return told


@pytest.mark.parametrize("half", ["chosen", "held out"])
def test_no_history_falls_more_than_three_times_in_an_overload(half: str) -> None:
    worst = []
    for number in range(N_HISTORIES // 2):
        # seeds of the second half were never looked at while the rules were chosen
        told = history(number + (0 if half == "chosen" else 1_000_000))
        worst.append((max(told.falls, default=0), number))
    assert max(worst)[0] <= 3, max(worst)
