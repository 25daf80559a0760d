"""Count false alarms on 20 shapes of latency, and find a doubled one in each (docs/detection-measured.md).

    python benchmarks/latency_shapes.py [--half chosen|held-out] [--further] [--seed 5000]

The shapes were written down before any detector saw them: what the literature and services know of latencies. Every
second one was never looked at while settings were chosen. ``--further`` : 20 more, of other skews and rounded as clocks
and logs round; of these the first seven were looked at.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator

from torchtriage.operate.detect.latency_detector import RequestDetector, Sample

Shape = Callable[[random.Random], Iterator[float]]
MS = 1e-3
N_ROWS = 10_000
N_SEEDS = 10
FAULT_AT, FAULT_ROWS = 5_000, 500


def each(draw: Callable[[random.Random], float]) -> Shape:
    """Return a shape of independent requests."""

    def run(rng: random.Random) -> Iterator[float]:
        while True:
            yield draw(rng)

    return run


def log_normal(sigma: float) -> Shape:
    """Return log-normal durations about 10 ms."""
    return each(lambda rng: 10 * MS * math.exp(rng.gauss(0, sigma)))


def modes(*parts: tuple[float, float]) -> Shape:
    """Return modes ``(share, times)`` of 10 ms, each scattering by 5 %."""
    shares, times = zip(*parts, strict=True)
    return each(lambda rng: 10 * MS * rng.choices(times, shares)[0] * math.exp(rng.gauss(0, 0.05)))


def waiting_line(load: float) -> Shape:
    """Return sojourn times of an M/M/1 queue: what waits behind each other is slow together."""

    def run(rng: random.Random) -> Iterator[float]:
        wait = 0.0
        while True:
            service = rng.expovariate(1 / (5 * MS))
            yield wait + service
            wait = max(wait + service - rng.expovariate(load / (5 * MS)), 0.0)

    return run


def autoregressive(rho: float, sigma: float) -> Shape:
    """Return a level that wanders: AR(1) of the logarithm, beside noise of 5 %."""

    def run(rng: random.Random) -> Iterator[float]:
        state = 0.0
        while True:
            state = rho * state + sigma * math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
            yield 10 * MS * math.exp(state + rng.gauss(0, 0.05))

    return run


def bursts(times: float, enter: float, leave: float) -> Shape:
    """Return a slow mode that comes in runs: a neighbour, a cold cache."""

    def run(rng: random.Random) -> Iterator[float]:
        slow = False
        while True:
            slow = rng.random() >= leave if slow else rng.random() < enter
            yield 10 * MS * (times if slow else 1.0) * math.exp(rng.gauss(0, 0.05))

    return run


def periodic(every: int, times: float) -> Shape:
    """Return one slow request in so many: a flush, a collection."""

    def run(rng: random.Random) -> Iterator[float]:
        at = 0
        while True:
            at += 1
            yield 10 * MS * (times if at % every == 0 else 1.0) * math.exp(rng.gauss(0, 0.05))

    return run


def tokens(rng: random.Random) -> Iterator[float]:
    """Yield what generating a geometric number of tokens takes, up to 512, after a prompt."""
    while True:
        n = min(1 + int(rng.expovariate(1 / 80)), 512)
        yield 40 * MS + n * 8 * MS * math.exp(rng.gauss(0, 0.03))


def day(rng: random.Random) -> Iterator[float]:
    """Yield durations that rise and fall by 20 % over 5,000 requests."""
    at = 0
    while True:
        at += 1
        yield 10 * MS * (1 + 0.2 * math.sin(at * math.tau / 5_000)) * math.exp(rng.gauss(0, 0.1))


def pareto(alpha: float) -> Callable[[random.Random], float]:
    """Return 8 ms and a tail of a power."""
    return lambda rng: 8 * MS + 2 * MS * (rng.random() ** (-1 / alpha) - 1)


SHAPES: dict[str, Shape] = {
    "normal, 5 %": log_normal(0.05),
    "log-normal 0.3": log_normal(0.3),
    "log-normal 0.5": log_normal(0.5),
    "log-normal 0.8": log_normal(0.8),
    "log-normal 1.2": log_normal(1.2),
    "10 % at 3 x": modes((0.9, 1), (0.1, 3)),
    "30 % at 3 x": modes((0.7, 1), (0.3, 3)),
    "50 % at 2 x": modes((0.5, 1), (0.5, 2)),
    "1 % at 20 x": modes((0.99, 1), (0.01, 20)),
    "three modes, 1, 2 and 8 x": modes((0.6, 1), (0.35, 2), (0.05, 8)),
    "exponential": each(lambda rng: rng.expovariate(1 / (10 * MS))),
    "Weibull 0.7": each(lambda rng: rng.weibullvariate(10 * MS, 0.7)),
    "Pareto 2.5": each(pareto(2.5)),
    "Pareto 1.2": each(pareto(1.2)),
    "queue, load 0.6": waiting_line(0.6),
    "generated tokens": tokens,
    "AR(1) 0.95 of 15 %": autoregressive(0.95, 0.15),
    "runs of 5 at 3 x": bursts(3, 0.02, 0.2),
    "every 50th at 5 x": periodic(50, 5),
    "a day of 20 %": day,
}


def rounded(shape: Shape, unit: float) -> Shape:
    """Return a shape whose values are whole units."""

    def run(rng: random.Random) -> Iterator[float]:
        for value in shape(rng):
            yield round(value / unit) * unit

    return run


FURTHER: dict[str, Shape] = {
    "uniform, 5 to 15 ms": each(lambda rng: rng.uniform(5, 15) * MS),
    "gamma 2": each(lambda rng: rng.gammavariate(2, 5 * MS)),
    "gamma 0.5": each(lambda rng: rng.gammavariate(0.5, 20 * MS)),
    "log-normal 1.0": log_normal(1.0),
    "whole ms, log-normal 0.3": rounded(log_normal(0.3), MS),
    "whole ms, 10 ms and 5 %": rounded(log_normal(0.05), MS),
    "whole ms, 3 ms and 10 %": rounded(each(lambda rng: 3 * MS * math.exp(rng.gauss(0, 0.1))), MS),
    "uniform, 1 to 100 ms": each(lambda rng: rng.uniform(1, 100) * MS),
    "gamma 1.5": each(lambda rng: rng.gammavariate(1.5, 8 * MS)),
    "gamma 4": each(lambda rng: rng.gammavariate(4, 3 * MS)),
    "log-normal 0.65": log_normal(0.65),
    "log-normal 1.5": log_normal(1.5),
    "beta 2, 5": each(lambda rng: 50 * MS * rng.betavariate(2, 5) + MS),
    "Rayleigh": each(lambda rng: 10 * MS * math.sqrt(-2 * math.log(1 - rng.random()))),
    "triangular": each(lambda rng: rng.triangular(2, 40, 4) * MS),
    "t of 3 degrees, 10 %": each(
        lambda rng: 10 * MS * math.exp(0.1 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 1 / 1.5)))
    ),
    "whole ms, exponential": rounded(each(lambda rng: rng.expovariate(1 / (20 * MS))), MS),
    "whole ms, log-normal 0.5": rounded(log_normal(0.5), MS),
    "whole ms, 40 ms and 2 %": rounded(each(lambda rng: 40 * MS * math.exp(rng.gauss(0, 0.02))), MS),
    "whole 10 us, 5 %": rounded(log_normal(0.05), 1e-5),
}
SEEN = 7  # of them were looked at


def alarms(shape: Shape, seed: int, *, times: float = 1.0) -> list[tuple[int, str]]:
    """Return the rows and kinds of the alarms of one stream, slower by ``times`` for a while."""
    rng = random.Random(seed)
    detector, rows = RequestDetector(), shape(rng)
    out = []
    for at in range(N_ROWS):
        inside = FAULT_AT <= at < FAULT_AT + FAULT_ROWS
        alarm = detector.update(Sample(next(rows) * (times if inside else 1.0), at * 0.01))
        if alarm is not None and not (inside and alarm.better):
            out.append((at, alarm.kind))
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("chosen", "held-out"), help="only that half")
    parser.add_argument("--further", action="store_true", help="the further shapes")
    parser.add_argument("--seed", type=int, default=0, help="the first of the streams'")
    parser.add_argument("--streams", type=int, default=N_SEEDS)
    parser.add_argument("--times", type=float, default=2.0)
    arguments = parser.parse_args()
    print(
        f"| shape | false alarms / 10k | of them | found at {arguments.times:g} x | delay p50 |\n|:--|--:|:--|--:|--:|"
    )
    totals: dict[str, list[int]] = {}
    for number, (name, shape) in enumerate((FURTHER if arguments.further else SHAPES).items()):
        half = "held-out" if (number >= SEEN if arguments.further else number % 2) else "chosen"
        if arguments.half not in (None, half):
            continue
        false, delays = Counter[str](), []
        for seed in range(arguments.seed, arguments.seed + arguments.streams):
            false.update(kind for _, kind in alarms(shape, seed))
            hits = [at - FAULT_AT for at, _ in alarms(shape, seed, times=arguments.times)]
            delays += (
                [min(hit for hit in hits if 0 <= hit < FAULT_ROWS)]
                if any(0 <= hit < FAULT_ROWS for hit in hits)
                else []
            )
        n = false.total()
        kinds = ", ".join(f"{kind} {count}" for kind, count in false.most_common())
        delay = sorted(delays)[len(delays) // 2] if delays else "-"
        print(
            f"| {name} | {n / arguments.streams:.1f} | {kinds} | {len(delays)} of {arguments.streams} | {delay} |",
            flush=True,
        )
        sums = totals.setdefault(half, [0, 0, 0])
        sums[0] += n
        sums[1] += len(delays)
        sums[2] += arguments.streams
    for half, (n, found, of) in totals.items():
        print(f"\n{half}: {n / of:.2f} false alarms per 10,000, {found} of {of} found")


if __name__ == "__main__":
    main()
