"""Time what observing adds to a request, beside other ways to do so (docs/monitor.md).

    python benchmarks/monitoring.py [--redis redis://127.0.0.1:6379]

Every figure is the time of the call with observing less that of the bare call in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import threading
import time
from collections.abc import Callable
from time import perf_counter_ns

from torchtriage.monitor import Monitor

N = 20_000
ROUNDS = 10


def bare() -> None:
    """Do nothing."""


def times_ns(call: Callable[[], object], n: int = N) -> list[int]:
    """Return the duration of each of ``n`` calls."""
    clock, out = perf_counter_ns, [0] * n
    for at in range(n):
        start = clock()
        call()
        out[at] = clock() - start
    return out


def added(call: Callable[[], object]) -> tuple[float, float]:
    """Return what p50 and p99 of a call exceed the bare call's p50 by, ns, over several rounds."""
    every: list[int] = []
    base: list[int] = []
    for _ in range(ROUNDS):
        base += times_ns(bare)
        every += times_ns(call)
        time.sleep(0.05)  # the monitor's thread catches up: no service calls without a pause
    every.sort()
    least = statistics.median(base)
    return every[len(every) // 2] - least, every[int(0.99 * len(every))] - least


def in_threads(call: Callable[[], object], n_threads: int) -> float:
    """Return ns per call and thread of all threads together, less the bare call's."""

    def run(one: Callable[[], object]) -> float:
        def work() -> None:
            for _ in range(N):
                one()

        threads = [threading.Thread(target=work) for _ in range(n_threads)]
        before = perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (perf_counter_ns() - before) / (N * n_threads)

    return statistics.median(run(call) - run(bare) for _ in range(5))


def in_tasks(monitor: Monitor) -> float:
    """Return ns per awaited call, less the bare coroutine's."""

    async def nothing() -> None:
        pass

    observed = monitor.observe("tasks")(nothing)

    async def run(one: Callable[[], object]) -> float:
        before = perf_counter_ns()
        for _ in range(N):
            await one()  # type: ignore[misc]
        return (perf_counter_ns() - before) / N

    async def main() -> float:
        return statistics.median([await run(observed) - await run(nothing) for _ in range(9)])

    return asyncio.run(main())


def others(redis_url: str | None) -> dict[str, Callable[[], object]]:
    """Return the other ways that are installed."""
    ways: dict[str, Callable[[], object]] = {}
    try:
        client = importlib.import_module("prometheus_client")
        registry = client.CollectorRegistry()
        histogram = client.Histogram("d", "d", ("model", "version"), registry=registry)

        def prometheus() -> None:
            start = perf_counter_ns()
            histogram.labels("detector", "2.1").observe((perf_counter_ns() - start) * 1e-9)

        ways["prometheus_client, labels() per call"] = prometheus
    except ImportError:
        pass
    try:
        metrics = importlib.import_module("opentelemetry.sdk.metrics")
        export = importlib.import_module("opentelemetry.sdk.metrics.export")
        provider = metrics.MeterProvider([export.InMemoryMetricReader()])
        instrument = provider.get_meter("m").create_histogram("d")
        labels = {"model": "detector", "version": "2.1"}

        def telemetry() -> None:
            start = perf_counter_ns()
            instrument.record((perf_counter_ns() - start) * 1e-9, labels)

        ways["OpenTelemetry histogram, two attributes"] = telemetry
    except ImportError:
        pass
    if redis_url:
        redis = importlib.import_module("redis").Redis.from_url(redis_url)
        ways["Redis XADD in the request"] = lambda: redis.xadd("bench", {"d": 1}, maxlen=1000)
    return ways


def share_of_a_millisecond(monitor: Monitor) -> tuple[float, float]:
    """Return how much longer 1 ms of work takes observed, in percent, and its standard error.

    Blocks of both kinds follow each other in turns; the ratio of each pair is one sample.
    """

    def work() -> None:
        end = perf_counter_ns() + 1_000_000
        while perf_counter_ns() < end:
            pass

    # the work ends by the clock, so that only what is outside of it can make it longer
    observed = monitor.observe("work", version="1")(work)

    def block(one: Callable[[], object]) -> int:
        before = perf_counter_ns()
        for _ in range(50):
            one()
        return perf_counter_ns() - before

    ratios = []
    for turn in range(60):
        pair = (block(observed), block(work)) if turn % 2 else (block(work), block(observed))[::-1]
        ratios.append(pair[0] / pair[1] - 1)
    ratios.sort()
    kept = ratios[6:-6]
    return 100 * statistics.mean(kept), 100 * statistics.stdev(kept) / len(kept) ** 0.5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", help="also time a synchronous write to this server")
    arguments = parser.parse_args()
    with Monitor() as monitor:
        model = monitor.observe("detector", version="2.1")

        def block() -> None:
            with model.request(8):
                pass

        print("| way | p50 ns | p99 ns |\n|:--|--:|--:|")
        ways = {"@observe": model(bare), "with model.request(size)": block}
        for name, way in (ways | others(arguments.redis)).items():
            p50, p99 = added(way)
            print(f"| {name} | {p50:,.0f} | {p99:,.0f} |")
        print(f"| @observe, 8 threads, ns per call | {in_threads(model(bare), 8):,.0f} | |")
        print(f"| @observe, asyncio, ns per call | {in_tasks(monitor):,.0f} | |")
        percent, error = share_of_a_millisecond(monitor)
        print(f"1 ms of work takes {percent:+.3f} % longer observed (standard error {error:.3f})")
        print(monitor.accounts())


if __name__ == "__main__":
    main()
