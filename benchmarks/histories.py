"""Random histories of ladders and rollouts, two to eight workers: docs/degrade-measured.md, docs/rollout-measured.md.

    python benchmarks/histories.py ladder [--n 10000] [--first SEED] [--plain]
    python benchmarks/histories.py rollout [--n 10000] [--first SEED]

The code that serves, on a simulated clock, over stores in this process. What load does to a mode is queueing theory's,
not the ladder's: the time of a call grows as 1 / (1 - utilisation), and beyond it is late.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchtriage.core.errors import StoreError
from torchtriage.operate.experiment import Rate, Tail, Typical
from torchtriage.operate.ladder import Ladder, LocalStore, Mode, Policy
from torchtriage.operate.rollout import Rollout, RolloutPlan, open_rollouts


def at_most(k: int, n: int, chance: float = 0.05) -> float:
    """Return the largest rate at which ``k`` of ``n`` or fewer still have that chance (Clopper and Pearson 1934)."""
    low, high = k / n if n else 0.0, 1.0
    while n and high - low > 1e-6:
        rate = (low + high) / 2
        logs = (
            math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
            + i * math.log(rate) + (n - i) * math.log1p(-rate)
            for i in range(k + 1)
        )  # fmt: skip
        low, high = (rate, high) if sum(map(math.exp, logs)) > chance else (low, rate)
    return high


class Away:
    """A store that may be away."""

    def __init__(self, store: Any) -> None:
        self.store, self.is_away = store, False

    def __getattr__(self, name: str) -> Any:
        """Ask the store."""
        if self.is_away:
            raise StoreError("the store is away")
        return getattr(self.store, name)


# -- ladders ---------------------------------------------------------------------------------------

DEADLINE_S, SECONDS = 0.1, 900
POLICY = Policy(deadline_s=DEADLINE_S)
QUIET_S = 60  # after which an overload is over


class World:
    """Time, load, and what a call takes in it."""

    def __init__(self, seed: int, plain: bool) -> None:
        draw = self.draw = random.Random(seed)
        self.now_s = self.took_s = 0.0
        self.fails = False
        self.load = 0.5
        self.n_workers = draw.randrange(2, 9)
        # what the others are fixed at is what the ladder's rules were chosen with
        self.costs = (1.0, 0.2) if plain or draw.random() < 0.5 else (1.0, 0.6, 0.2)
        self.base_s = 0.03 if plain else draw.uniform(0.01, 0.05)
        self.scatter = 0.2 if plain else draw.uniform(0.1, 0.6)
        self.a_second = 6 if plain else draw.choice((1, 3, 6))
        self.look_s = 2 if plain else 1
        self.failing = 0.0 if plain else draw.choice((0.0, 0.0, 0.002))
        self.retried = 0.0 if plain else draw.choice((0.0, 0.0, 0.5))  # further load by each call that is late
        self.killed = 0.0 if plain else draw.choice((0.0, 0.002))  # chance of a worker, each second
        self.store_leaves = 0.0 if plain else draw.choice((0.0, 0.002))
        self.slow = [1.0 if plain else draw.lognormvariate(0, 0.15) for _ in range(self.n_workers)]
        self.shares = [1.0, *(0.0 for _ in self.costs[1:])]  # of the last seconds' calls, by mode
        self.late_share = 0.0
        self.seen = [0] * len(self.costs), 0
        self.pool = [draw.lognormvariate(0, self.scatter) for _ in range(4096)]
        self.at = 0

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    def busy(self) -> float:
        """Return how much of the machine is in use."""
        used = sum(share * cost for share, cost in zip(self.shares, self.costs, strict=True))
        return min(self.load * (1 + self.retried * self.late_share) * used, 0.995)

    def call(self, cost: float, slow: float) -> None:
        """Take the time of a call."""
        self.at = (self.at + 1) % 4096
        self.took_s = cost * slow * self.base_s / (1 - self.busy()) * self.pool[self.at]
        self.fails = bool(self.failing) and self.draw.random() < self.failing

    @property
    def overloaded(self) -> bool:
        """Return whether the full mode alone would be late in the median."""
        return self.base_s / max(1 - self.load, 0.005) > DEADLINE_S


class Timed(Ladder):
    """A ladder whose calls take what the world says."""

    world: World
    slow: float

    def _try(self, level: int, seen: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        rung, world = self._rungs[level], self.world
        world.call(world.costs[level], self.slow)
        if rung.n_answered < 3 and world.killed:
            world.took_s *= 20  # a new worker compiles
        late = world.took_s > DEADLINE_S or world.fails
        rung.n_calls += 1
        rung.n_answered += not world.fails
        rung.n_failed += world.fails
        rung.n_late += late
        if seen is not None and (rung.n_answered > 5 or world.fails):
            seen.append(late)
        return not world.fails, None


def steady(draw: random.Random) -> Iterator[float]:
    """Yield a load that does not change."""
    level = draw.uniform(0.2, 0.6)
    while True:
        yield level


def steps(draw: random.Random) -> Iterator[float]:
    """Yield a load that jumps."""
    while True:
        level = draw.choice((0.3, 0.5, 0.65, 0.85, 1.0, 1.3, 2.0))
        for _ in range(draw.randrange(20, 400)):
            yield level


def wave(draw: random.Random) -> Iterator[float]:
    """Yield a load that rises and falls."""
    period, high, phase = draw.uniform(120, 1500), draw.uniform(0.5, 1.6), draw.random()
    at = 0
    while True:
        at += 1
        yield high * (0.6 + 0.4 * math.sin(math.tau * (at / period + phase)))


def spikes(draw: random.Random) -> Iterator[float]:
    """Yield a low load with short high ones."""
    while True:
        for _ in range(draw.randrange(10, 300)):
            yield 0.45
        for _ in range(draw.randrange(2, 40)):
            yield draw.uniform(1, 3)


def wander(draw: random.Random) -> Iterator[float]:
    """Yield a load that goes anywhere."""
    log = math.log(0.5)
    while True:
        log += 0.03 * draw.gauss(0, 1) - 0.002 * (log - math.log(0.55))
        yield math.exp(min(log, 1.5))


PROFILES = (steady, steps, wave, spikes, wander)


@dataclass
class LadderHistory:
    """Falls by overload, calls, and seconds: below the full mode, and overloaded."""

    falls: list[int] = field(default_factory=list)
    n_late: int = 0
    n_calls: int = 0
    below_s: float = 0.0
    needed_s: float = 0.0


def ladder_history(seed: int, *, plain: bool = True, seconds: int = SECONDS, policy: Policy = POLICY) -> LadderHistory:
    """Return what a history of 15 minutes did; one that is not ``plain`` has workers that die, and much else."""
    world, told = World(seed, plain), LadderHistory()
    draw, store = world.draw, Away(LocalStore(world.clock))
    names = ("full", "middle", "lite") if len(world.costs) == 3 else ("full", "lite")

    def start(at: int) -> Timed:
        modes = [Mode(name, abs) for name in names]
        worker = Timed("m", modes, policy, store=store, dry_run=False, clock=world.clock, wall=world.clock)
        worker.world, worker.slow, worker._actor = world, world.slow[at], f"worker {at}"
        return worker

    workers = [start(at) for at in range(world.n_workers)]
    profile = PROFILES[seed % len(PROFILES)](draw)
    offsets = sorted(draw.random() for _ in workers)
    over_s, level, falling, away_until = -math.inf, 0, False, -1
    for second in range(seconds):
        world.load = next(profile)
        if world.overloaded:
            if second - over_s > QUIET_S:
                told.falls.append(0)
            over_s = second
            told.needed_s += 1
        if world.store_leaves and draw.random() < world.store_leaves:
            away_until = second + draw.randrange(5, 60)
        store.is_away = second < away_until
        for at, offset in enumerate(offsets):
            world.now_s = second + offset
            worker = workers[at]
            if world.killed and draw.random() < world.killed:
                told.n_late += sum(rung.n_late for rung in worker._rungs)
                worker = workers[at] = start(at)
            for _ in range(world.a_second):
                worker(0)
            if (second + int(offset * 100)) % world.look_s:
                continue
            worker.look()
            now = store.store.read("m").level
            if now > level and not falling:
                if not told.falls:
                    told.falls.append(0)
                told.falls[-1] += 1
            # from the full mode to the third by two switches is one fall
            falling = now > level or (falling and now == level)
            level = now
        told.n_calls += world.n_workers * world.a_second
        told.below_s += level > 0
        follow(world, workers)
    told.n_late += sum(rung.n_late for worker in workers for rung in worker._rungs)
    return told


def follow(world: World, workers: list[Timed]) -> None:
    """Let the machine's use follow what the last second's calls were answered by."""
    calls = [sum(worker._rungs[at].n_calls for worker in workers) for at in range(len(world.costs))]
    late = sum(rung.n_late for worker in workers for rung in worker._rungs)
    before, world.seen = world.seen, (calls, late)
    new = [max(now - then, 0) for now, then in zip(calls, before[0], strict=True)]
    n = max(sum(new), 1)
    world.shares = [0.5 * share + 0.5 * one / n for share, one in zip(world.shares, new, strict=True)]
    world.late_share = min(max(late - before[1], 0) / n, 1.0)


# -- rollouts --------------------------------------------------------------------------------------

PLAN = RolloutPlan(
    "int8",
    steps=(0.1, 0.5, 1.0),
    metric=Typical("latency_s", worse_than=1.0),
    guardrails=(Tail("latency_s", worse_than=1.0), Rate("error", worse_than=1.0), Rate("nan", worse_than=1.0)),
    least_requests=200,
    least_s=10,
    control="2.0",
    candidate="2.1",
)
BAD = {
    "1.5 times as long": {"times": 1.5},
    "2 times as long": {"times": 2.0},
    "3 times as long": {"times": 3.0},
    "1 in 10 takes 10 times as long": {"tail": 0.1},
    "1 in 10 fails": {"errors": 0.1},
    "half fail": {"errors": 0.5},
    "all fail": {"errors": 1.0},
    "1 in 10 answers is NaN": {"nan": 0.1},
}


@dataclass
class RolloutHistory:
    """What the candidate was, what became of it, and after how many of its requests."""

    kind: str
    status: str
    n_candidate: int
    stage: int
    reason: str


class Pods:
    """Processes that serve one rollout, each on a machine of its own; they die, and their store may be away."""

    def __init__(self, seed: int, plan: RolloutPlan, store: Away, **fault: float) -> None:
        draw = self.draw = random.Random(seed)
        self.plan, self.store, self.fault = plan, store, fault
        self.now_s = 5000.0
        self.n_started = self.n_candidate = 0
        self.alike, self.scatter = draw.choice((0.0, 0.5, 0.9)), draw.uniform(0.1, 0.5)
        self.errors, self.burst = draw.choice((0.0, 0.002, 0.02)), draw.choice((0.0, 0.5))
        self.outliers = draw.choice((0.0, 0.01))
        self.killed, self.leaves = draw.choice((0.0, 0.01)), draw.choice((0.0, 0.01))
        self.swing = draw.choice((0.0, 0.5))
        self.a_second = draw.choice((20, 40, 80))
        self.state = 0.0
        self.pods = [self.start() for _ in range(draw.randrange(2, 9))]
        self.slow = [draw.lognormvariate(0, 0.2) for _ in self.pods]

    def start(self) -> Rollout:
        """Start a process."""
        self.n_started += 1
        clock: Callable[[], float] = lambda: self.now_s  # noqa: E731
        return Rollout(self.plan, self.store, clock=clock, wall=clock, owner=f"pod-{self.n_started}")  # type: ignore[arg-type]

    def serve(self, seconds: int) -> str:
        """Answer requests and look once a second; return the status."""
        draw, away_until, burst_until = self.draw, 0.0, 0.0
        for _ in range(seconds):
            self.store.is_away = self.now_s < away_until
            if not self.store.is_away and self.leaves and draw.random() < self.leaves:
                away_until = self.now_s + draw.randrange(3, 30)
            if self.killed and draw.random() < self.killed and not self.store.is_away:
                self.pods[draw.randrange(len(self.pods))] = self.start()
            if self.burst and draw.random() < 0.02:
                burst_until = self.now_s + draw.randrange(1, 6)
            failing = max(self.errors, self.burst * (self.now_s < burst_until))
            load = 1 + self.swing * math.sin(self.now_s / 20)
            for _ in range(round(self.a_second * load)):
                self.request(failing, load)
            self.now_s += 1
            for pod in self.pods:
                try:
                    status = pod.tick().status
                except StoreError:
                    status = pod.state.status
                if status != "running":
                    return status
        return "running"

    def request(self, failing: float, load: float) -> None:
        """Answer one."""
        draw, fault = self.draw, self.fault
        at = draw.randrange(len(self.pods))
        pod = self.pods[at]
        ticket = pod.assign(draw.getrandbits(60))
        candidate = ticket.arm == self.plan.candidate
        # requests resemble those before them
        self.state = self.alike * self.state + math.sqrt(1 - self.alike**2) * draw.gauss(0, 1)
        took_s = 0.01 * self.slow[at] * load * math.exp(self.scatter * (0.7 * self.state + 0.7 * draw.gauss(0, 1)))
        took_s *= 10 if draw.random() < self.outliers else 1
        failed = draw.random() < failing
        nan = False
        if candidate:
            self.n_candidate += 1
            took_s *= fault.get("times", 1.0) * (10 if draw.random() < fault.get("tail", 0.0) else 1)
            failed = failed or draw.random() < fault.get("errors", 0.0)
            nan = draw.random() < fault.get("nan", 0.0)
        pod.record(ticket, replica=at, latency_s=took_s, error=failed, nan=nan)


def rollout_history(seed: int, plan: RolloutPlan = PLAN, seconds: int = 200) -> RolloutHistory:
    """Return what became of a candidate: one in two as good as the control or better, the others bad."""
    draw = random.Random(-seed - 1)
    kind, fault = draw.choice(list(BAD.items()))
    if draw.random() < 0.5:
        kind, fault = "as good", {"times": draw.choice((1.0, 1.0, draw.uniform(0.9, 1.0)))}
    with open_rollouts(":memory:") as store:
        pods = Pods(seed, plan, Away(store), **fault)
        status = pods.serve(seconds)
        state = next((pod.state for pod in pods.pods if pod.state.status == status), pods.pods[0].state)
        return RolloutHistory(kind, status, pods.n_candidate, state.stage, state.waiting)


# -- tables ----------------------------------------------------------------------------------------


def row(*cells: object) -> None:
    """Print one row of a table."""
    print("|", *(f" {cell} |" for cell in cells), sep="", flush=True)


def bounded(k: int, n: int) -> str:
    """Return a share of cases with its upper bound."""
    return f"{k:,} of {n:,} (≤ {100 * at_most(k, n):.2f} %)"


def ladders(n: int, first: int, plain: bool) -> None:
    """Print how often the ladders of ``n`` histories fell in an overload."""
    told = [ladder_history(first + at, plain=plain) for at in range(n)]
    falls = Counter(min(one, 4) for history in told for one in history.falls)
    overloads, seconds = sum(falls.values()), n * SECONDS
    row("histories", "overloads", "0", "1", "2", "3", "4 and more", "calls late", "below the full mode", "needed")
    row(*["--:"] * 10)
    late = 100 * sum(one.n_late for one in told) / sum(one.n_calls for one in told)
    below, needed = (100 * sum(getattr(one, name) for one in told) / seconds for name in ("below_s", "needed_s"))
    counts = [f"{falls[at]:,}" for at in range(4)]
    row(n, f"{overloads:,}", *counts, bounded(falls[4], overloads), *(f"{x:.1f} %" for x in (late, below, needed)))


def rollouts(n: int, first: int) -> None:
    """Print how many candidates of ``n`` histories were rolled back, why, and after how many of their requests."""
    by_kind: dict[str, list[RolloutHistory]] = defaultdict(list)
    for at in range(n):
        told = rollout_history(first + at)
        by_kind[told.kind].append(told)
    row("candidate", "rolled back", "not rolled back", "requests of it: median", "99 %", "most")
    row(":--", *["--:"] * 5)
    for kind in ("as good", *BAD):
        back = [one for one in by_kind[kind] if one.status == "rolled back"]
        n_all, requests = len(by_kind[kind]), sorted(one.n_candidate for one in back)
        quantiles = [requests[min(int(q * len(requests)), len(requests) - 1)] for q in (0.5, 0.99, 1)] if back else []
        row(kind, bounded(len(back), n_all), bounded(n_all - len(back), n_all), *(f"{x:,}" for x in quantiles))
    good = by_kind["as good"]
    print(f"\nof {len(good):,} as good, {sum(one.status == 'done' for one in good):,} reached 100 %; rolled back by")
    reasons = Counter(one.reason.partition(":")[0] for one in good if one.status == "rolled back")
    for reason, k in reasons.most_common():
        print(f"  {reason}: {bounded(k, len(good))}")


def main() -> None:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ladder", "rollout"))
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.what == "ladder":
        ladders(given.n, given.first, given.plain)
    else:
        rollouts(given.n, given.first)


if __name__ == "__main__":
    main()
