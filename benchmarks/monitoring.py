"""Measure what monitoring costs a service and what its sinks' troubles do: docs/monitor-measured.md.

    python benchmarks/monitoring.py cost         # a request's added time, beside other ways
    python benchmarks/monitoring.py share        # of an inference of 1 ms, by A/B
    python benchmarks/monitoring.py memory       # of ten million requests
    python benchmarks/monitoring.py scrapers     # four of them on 1,000 series
    python benchmarks/monitoring.py sinks        # down, hung, slow, out of memory, full
    python benchmarks/monitoring.py shutdown     # while sinks hang
    python benchmarks/monitoring.py callbacks    # from a sample to the callback, 16 busy threads

Each prints rows of a table in Markdown. Whatever is compared takes turns in short rounds, so that a
busy machine troubles all of it alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from sink_troubles import Call, Child, Redis, Times, bare, free_port, share_of

from torchtriage.operate.monitor import Alert, Detection, JsonLog, Monitor, Prometheus, RedisStream


def row(*cells: object) -> None:
    """Print one row of a table."""
    print("|", *("|".join(f" {cell} " for cell in cells)), "|", sep="", flush=True)


def head(*cells: str) -> None:
    """Print a table's head: the first column is text, the others numbers."""
    row(*cells)
    print("|:--|" + "--:|" * (len(cells) - 1), flush=True)


# -- cost: what a request takes longer -----------------------------------------------------

N = 500
ROUNDS = 60
N_THREADS = 8


def times_of(call: Call) -> Times:
    """Return the duration of each of N calls."""
    clock, out = perf_counter_ns, [0] * N
    for at in range(N):
        start = clock()
        call()
        out[at] = clock() - start
    return out


def times_in_threads(call: Call) -> Times:
    """Return the durations of N calls in each of several threads at once."""
    out: Times = []
    threads = [threading.Thread(target=lambda: out.extend(times_of(call))) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def times_in_tasks(call: Callable[[], Any]) -> Times:
    """Return the duration of each of N awaited calls."""

    async def run() -> Times:
        clock, out = perf_counter_ns, [0] * N
        for at in range(N):
            start = clock()
            await call()
            out[at] = clock() - start
        return out

    return asyncio.run(run())


async def nothing() -> None:
    """Do nothing, asynchronously."""


def cost() -> None:
    """Print what p50 and p99 of a call exceed the bare one's p50 by: median of the rounds."""
    with contextlib.ExitStack() as stack:
        monitor = stack.enter_context(Monitor())
        model = monitor.observe("detector", version="2.1")

        def block() -> None:
            with model.request(8):
                pass

        def bare_block() -> None:
            with model:
                pass

        ways: dict[str, tuple[Callable[[Any], Times], Any, Any]] = {
            "`@observe`": (times_of, model(bare), bare),
            f"`@observe`, {N_THREADS} threads": (times_in_threads, model(bare), bare),
            "`@observe`, asyncio": (times_in_tasks, model(nothing), nothing),
            "`with model.request(8)`": (times_of, block, bare),
            "`with model`": (times_of, bare_block, bare),
        }
        for name, other in others(stack).items():
            ways[name] = times_of, other, bare
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (timed, way, without) in ways.items():
                least = share_of(timed(without), 0.5)
                times = timed(way)
                found[name].append((share_of(times, 0.5) - least, share_of(times, 0.99) - least))
                monitor.drain()
    head("added to a request, µs", "p50", "p99", "least p50")
    for name, rounds in found.items():
        p50s, p99s = zip(*rounds, strict=True)
        row(name, *(f"{ns / 1e3:.2f}" for ns in (med(p50s), med(p99s), min(p50s))))


def med(values: Any) -> float:
    """Return the median."""
    return float(statistics.median(values))


def others(stack: contextlib.ExitStack) -> dict[str, Call]:
    """Return other ways to measure a request, those that are installed."""
    ways: dict[str, Call] = {}
    with contextlib.suppress(ImportError):
        client = importlib.import_module("prometheus_client")
        registry = client.CollectorRegistry()
        histogram = client.Histogram("d", "d", ("model", "version"), registry=registry)

        def prometheus() -> None:
            start = perf_counter_ns()
            histogram.labels("detector", "2.1").observe((perf_counter_ns() - start) * 1e-9)

        ways["prometheus_client, `labels()` per call"] = prometheus
    with contextlib.suppress(ImportError):
        metrics = importlib.import_module("opentelemetry.sdk.metrics")
        export = importlib.import_module("opentelemetry.sdk.metrics.export")
        provider = metrics.MeterProvider([export.InMemoryMetricReader()])
        instrument = provider.get_meter("m").create_histogram("d")
        labels = {"model": "detector", "version": "2.1"}

        def telemetry() -> None:
            start = perf_counter_ns()
            instrument.record((perf_counter_ns() - start) * 1e-9, labels)

        ways["OpenTelemetry histogram, two attributes"] = telemetry
    if shutil.which("redis-server"):
        redis = stack.enter_context(Redis())

        def stream() -> None:
            start = perf_counter_ns()
            redis.client.xadd("bench", {"d": perf_counter_ns() - start}, maxlen=1000)

        ways["Redis XADD in the request"] = stream
    return ways


# -- share: of one millisecond -------------------------------------------------------------


def share() -> None:
    """Print what observing adds to 1 ms of work: by turns, in wall-clock time and in CPU time.

    CPU time is the whole process', the monitor's thread included.
    """
    data = bytes(1 << 16)

    def hashing(n: int) -> None:
        for _ in range(n):
            hashlib.sha256(data)  # releases the interpreter's lock, as inference does

    def python(n: int) -> None:
        for _ in range(n):
            pass

    head("1 ms of work, observed", "wall clock, %", "± ", "CPU time of all threads, %", "± ")
    with Monitor() as monitor:
        for name, work, unit in (("outside Python", hashing, 10), ("in Python", python, 10_000)):
            n = unit
            while (took := least_ns(lambda n=n, work=work: work(n))) < 1_000_000:
                n = int(n * min(max(1.05e6 / took, 1.1), 10))

            def one(n: int = n, work: Callable[[int], None] = work) -> None:
                work(n)

            observed = monitor.observe(name)(one)
            wall, cpu = [], []
            for turn in range(600):
                order = (observed, one) if turn % 2 else (one, observed)
                took_ns = {call: block_ns(call, 10) for call in order}
                with_, without = took_ns[observed], took_ns[one]
                wall.append(100 * (with_[0] / without[0] - 1))
                cpu.append(100 * (with_[1] / without[1] - 1))
            row(name, *(f"{one:+.3f}" for kind in (wall, cpu) for one in middle(kind)))


def least_ns(call: Call) -> int:
    """Return the least of the times a call takes."""
    return min(block_ns(call, 1)[0] for _ in range(7))


def block_ns(call: Call, n: int) -> tuple[int, int]:
    """Return wall-clock time and the process' CPU time of n calls."""
    before = perf_counter_ns(), time.process_time_ns()
    for _ in range(n):
        call()
    return perf_counter_ns() - before[0], time.process_time_ns() - before[1]


def middle(values: list[float]) -> tuple[float, float]:
    """Return the mean of the middle half, and twice its standard error."""
    values = sorted(values)
    cut = len(values) // 4
    kept = values[cut:-cut]
    # of a mean of the middle half; from the spread of batches of it, without a formula
    chunks = [statistics.fmean(kept[at::10]) for at in range(10)]
    spread = statistics.stdev(chunks) / 10**0.5
    return statistics.fmean(kept), 2 * max(spread, 1.2533 * half_width(values) / len(values) ** 0.5)


def half_width(values: list[float]) -> float:
    """Return the standard deviation that half the distance of the quartiles tells."""
    return 0.7413 * (values[3 * len(values) // 4] - values[len(values) // 4])


# -- memory --------------------------------------------------------------------------------


def memory(n_millions: int = 10) -> None:
    """Print how much the process grows per request, from the second million on."""
    head("requests", "sinks", "RSS at 1 million, MB", "at the end, MB", "growth, bytes a request")
    closed = f"redis://127.0.0.1:{free_port()}"
    for name, sinks in (
        ("none", lambda: []),
        ("a log to /dev/null, Redis down", lambda: [JsonLog("/dev/null"), RedisStream(closed)]),
    ):
        with Monitor(*sinks()) as monitor:
            call = monitor.observe("detector", version="2.1", size=lambda n: n & 1023)(abs)
            seen: list[tuple[int, int]] = []
            for done in range(0, n_millions * 1_000_000, 10_000):
                for at in range(10_000):
                    call(at)
                monitor.drain()
                if done >= 1_000_000:
                    seen.append((done, rss_bytes()))
            assert monitor.accounts().sent == n_millions * 1_000_000
        slope = statistics.linear_regression(*zip(*seen, strict=True)).slope
        millions = f"{n_millions} million"
        row(millions, name, f"{seen[0][1] / 1e6:.1f}", f"{seen[-1][1] / 1e6:.1f}", f"{slope:+.3f}")


def rss_bytes() -> int:
    """Return the memory of this process that is resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- scrapers ------------------------------------------------------------------------------

N_SERIES = 1_000
N_SCRAPERS = 4
SCRAPE = """
import socket, sys, threading, time
port, pause_s = int(sys.argv[1]), float(sys.argv[2])
def scrape():
    room = bytearray(1 << 20)
    while True:
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
            while one.recv_into(room):
                pass
        time.sleep(pause_s)
for _ in range(int(sys.argv[3])):
    threading.Thread(target=scrape).start()
"""


def scrapers() -> None:
    """Print what scrapers cost the request rate: a phase without is followed by one with."""
    client = importlib.import_module("prometheus_client")
    head(f"{N_SCRAPERS} scrapers, {N_SERIES:,} series", "1 a second each, %", "without a pause, %")
    listener = Prometheus(port=0)
    with Monitor(listener) as monitor:
        calls = [monitor.observe("detector", version=str(n))(inference) for n in range(N_SERIES)]
        row("torchtriage", *(f"{rate(calls, listener.port, pause_s):+.1f}" for pause_s in (1, 0)))
    registry = client.CollectorRegistry()
    histogram = client.Histogram("d", "d", ("model", "version"), registry=registry)
    server, _ = client.start_http_server(0, "127.0.0.1", registry)

    def stock(version: str) -> Call:
        bound = histogram.labels("detector", version)

        def call() -> None:
            start = perf_counter_ns()
            inference()
            bound.observe((perf_counter_ns() - start) * 1e-9)

        return call

    calls = [stock(str(n)) for n in range(N_SERIES)]
    port = server.server_port
    row("prometheus_client", *(f"{rate(calls, port, pause_s):+.1f}" for pause_s in (1, 0)))
    server.shutdown()


def inference() -> None:
    """Work for 1 ms or so, most of it outside Python."""
    for _ in range(12):
        hashlib.sha256(DATA)


DATA = bytes(1 << 16)


def rate(calls: list[Call], port: int, pause_s: float) -> float:
    """Return by how many percent scrapers change the rate of requests: median of the pairs."""

    def served(seconds: float) -> float:
        n, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            calls[n % len(calls)]()
            n += 1
        return n / (time.perf_counter() - begin)

    served(1.5)
    changes = []
    for _ in range(3):
        without = served(1.5)
        command = [sys.executable, "-c", SCRAPE, str(port), str(pause_s), str(N_SCRAPERS)]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        served(0.4)  # it starts
        with_ = served(1.5)
        child.kill()
        child.wait()
        changes.append(100 * (with_ / without - 1))
    return med(changes)


# -- sinks in trouble ----------------------------------------------------------------------

TROUBLES = ("healthy", "down", "hung", "slow", "out of memory", "disk full")


def sinks() -> None:
    """Print what a sink's trouble does to a request: a process for each, which take turns."""
    with contextlib.ExitStack() as stack:
        children = {name: stack.enter_context(Child(name)) for name in TROUBLES}
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in TROUBLES}
        for turn in range(10):
            order = TROUBLES if turn % 2 else TROUBLES[::-1]
            for name in order:
                rounds[name].append(children[name].round())
        head(
            "Redis, or the log's disk",
            "request p50, µs",
            "p99, µs",
            "p99 beside healthy, µs",
            "readings of accounts, wrong",
            "sent",
            "dropped",
            "pending",
        )
        healthy = [p99 for _, p99 in rounds["healthy"]]
        for name, found in rounds.items():
            p50s, p99s = zip(*found, strict=True)
            beside = med([one - other for one, other in zip(p99s, healthy, strict=True)])
            told = children[name].end()
            row(
                name,
                f"{med(p50s):.2f}",
                f"{med(p99s):.2f}",
                f"{beside:+.2f}",
                f"{told['readings']:,}, {told['wrong']}",
                *(f"{told[one]:,}" for one in ("sent", "dropped", "pending")),
            )


# -- shutdown ------------------------------------------------------------------------------

ENDS = """
import redis, sys, time
from torchtriage.operate.monitor import JsonLog, Monitor, Prometheus, RedisStream
if sys.argv[1] != "without":
    url = f"redis://127.0.0.1:{sys.argv[2]}"
    sinks = [JsonLog("/dev/full"), Prometheus(0), RedisStream(url), RedisStream(url, stream="b")]
    monitor = Monitor(*sinks)
    call = monitor.observe("detector")(abs)
    for n in range(60_000):
        call(n)
    time.sleep(0.3)
    if sys.argv[1] == "close":
        before = time.perf_counter()
        monitor.close()
        print(time.perf_counter() - before)
        sys.exit()
print(time.time(), flush=True)
"""


def shutdown() -> None:
    """Print how long the end takes while a log's disk is full and Redis hangs.

    60,000 requests are to be sent. Closing alone, and from the last statement to the process' end.
    """
    with Redis() as redis:
        redis.process.send_signal(signal.SIGSTOP)
        took: dict[str, list[float]] = {"close": [], "exit": [], "without": []}
        for _ in range(6):
            for kind, times in took.items():
                command = [sys.executable, "-c", ENDS, kind, str(redis.port)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                ended = time.time()
                told = float(done.stdout)
                times.append(told if kind == "close" else ended - told)
    head("the end while sinks hang, ms", "median", "most")
    names = ("`close()`", "interpreter's end", "interpreter's end, the same imported and nothing observed")
    for name, times in zip(names, took.values(), strict=True):
        row(name, f"{1e3 * med(times):.0f}", f"{1e3 * max(times):.0f}")


# -- callbacks -----------------------------------------------------------------------------

N_MODELS = 60
N_BUSY = 16


def callbacks() -> None:
    """Print how long after a request's end its alarm's callback begins, while threads are busy.

    Beside it what no monitor can beat: how late one is told by a thread that wakes after 3 ms.
    """
    told: list[float] = []
    offset_s = time.time() - time.perf_counter()

    def callback(alert: Alert) -> None:
        told.append(time.perf_counter() + offset_s - alert.at_s)

    head(f"ms, {N_BUSY} threads", "p50", "p99", "most", "alarms", "bare p50", "p99")
    for name, busy in (("idle", None), ("busy outside Python", inference), ("busy in Python", spin)):
        told.clear()
        with Monitor(Detection(callback, repeat_s=0)) as monitor:
            models = [monitor.observe(name, version=str(n)) for n in range(N_MODELS)]
            for model in models:
                for n in range(700):  # usual ones: nobody waits for these
                    end = perf_counter_ns()
                    model.local.ring.end((end - 2_000_000 - n % 37 * 997, end, None, None))
                monitor.drain()
            stop = threading.Event()
            threads = [threading.Thread(target=keep_busy, args=(stop, busy)) for _ in range(N_BUSY)]
            for thread in threads if busy else ():
                thread.start()
            end_s = time.monotonic() + 15
            for model in models:
                if time.monotonic() > end_s:  # 16 threads in Python leave 60 turns a second
                    break
                before, n = len(told), 0
                while len(told) == before and n < 300:
                    end = perf_counter_ns()
                    n += 1
                    model.local.ring.end((end - 9_000_000 - n % 37 * 997, end, None, None))
                    time.sleep(0.002)
            late = bare_hand_offs()
            stop.set()
            for thread in threads if busy else ():
                thread.join()
        values = [int(1e6 * one) for one in told]
        row(
            name,
            *(f"{share_of(values, one) / 1e3:.1f}" for one in (0.5, 0.99, 1)),
            len(values),
            *(f"{share_of(late, one) / 1e6:.1f}" for one in (0.5, 0.99)),
        )


def bare_hand_offs(seconds: float = 8) -> Times:
    """Return how late a thread was told by another that slept for 3 ms, many times, in ns."""
    late: Times = []
    due, told = [0], threading.Event()

    def take() -> None:
        while due[0] >= 0:
            told.wait()
            told.clear()
            late.append(perf_counter_ns() - due[0])

    thread = threading.Thread(target=take)
    thread.start()
    end_ns = perf_counter_ns() + int(seconds * 1e9)
    while perf_counter_ns() < end_ns:
        due[0] = perf_counter_ns() + 3_000_000
        time.sleep(0.003)
        told.set()
        time.sleep(0.01)
    due[0] = -1
    told.set()
    thread.join()
    return late[:-1]


def spin() -> None:
    """Compute in Python for a while."""
    for _ in range(10_000):
        pass


def keep_busy(stop: threading.Event, work: Call) -> None:
    """Work until told to stop."""
    while not stop.is_set():
        work()


PARTS: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (cost, share, memory, scrapers, sinks, shutdown, callbacks)
}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args().parts
    unknown = [name for name in given if name not in PARTS]
    if unknown:
        parser.error(f"expected parts of {', '.join(PARTS)}, found {', '.join(unknown)}")
    for name in given or PARTS:
        begin = time.perf_counter()
        PARTS[name]()
        print(f"{name}: {time.perf_counter() - begin:.0f} s\n", file=sys.stderr)


if __name__ == "__main__":
    main()
