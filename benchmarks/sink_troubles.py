"""Sinks of a monitor in trouble, each in a process of its own: for benchmarks/monitoring.py."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from torchtriage.operate.monitor import JsonLog, Monitor, RedisStream
from torchtriage.operate.monitor.batch_sink import BatchSink

Call = Callable[[], object]
Times = list[int]


def bare() -> None:
    """Do nothing."""


def share_of(times: Times, share: float) -> int:
    """Return a quantile."""
    return sorted(times)[min(int(share * len(times)), len(times) - 1)]


class Child:
    """A process with a sink in trouble, which serves a round of requests when asked."""

    def __init__(self, trouble: str) -> None:
        command = [sys.executable, __file__, trouble]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Child:
        """Return it, started."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()

    def _ask(self, what: str) -> Any:
        to, from_ = self._process.stdin, self._process.stdout
        assert to is not None
        assert from_ is not None
        print(what, file=to, flush=True)
        return json.loads(from_.readline())

    def round(self) -> tuple[float, float]:
        """Return p50 and p99 of a round's requests, µs."""
        p50, p99 = self._ask("round")
        return p50, p99

    def end(self) -> Any:
        """Return its accounts."""
        return self._ask("end")


def serve(trouble: str) -> None:
    """Serve rounds of requests, of one in two milliseconds, as the parent asks."""
    with troubled(trouble) as (sink, begin):
        monitor = Monitor(sink)
        call = monitor.observe("detector", version="2.1")(bare)
        began, ended = [0], [0]
        readings = wrong = 0
        stop = False

        def watch() -> None:
            nonlocal readings, wrong
            while not stop:
                least = ended[0]
                accounts = monitor.accounts()
                most = began[0]
                readings += 1
                wrong += not least <= accounts.produced <= most
                for one in (accounts, sink.accounts()):
                    wrong += one.produced != one.sent + one.dropped + one.pending
                time.sleep(0.005)

        def paced(n: int) -> Times:
            out = []
            for _ in range(n):
                time.sleep(0.002)
                began[0] += 1
                start = perf_counter_ns()
                call()
                out.append(perf_counter_ns() - start)
                ended[0] += 1
            return out

        watcher = threading.Thread(target=watch)
        watcher.start()
        paced(100)
        begin()
        for line in sys.stdin:
            if line.startswith("end"):
                break
            times = paced(250)
            print([share_of(times, 0.5) / 1e3, share_of(times, 0.99) / 1e3], flush=True)
        stop = True
        watcher.join()
        accounts = sink.accounts()
        told = {"readings": readings, "wrong": wrong, "sent": accounts.sent}
        told |= {"dropped": accounts.dropped, "pending": accounts.pending}
        print(json.dumps(told), flush=True)


@contextlib.contextmanager
def troubled(trouble: str) -> Iterator[tuple[BatchSink, Call]]:
    """Yield a sink, and what begins its trouble."""
    if trouble == "disk full":
        yield JsonLog("/dev/full", max_bytes=0), bare
        return
    with Redis() as redis, Slow(redis.port) as slow:
        # small enough to be filled, so that records are dropped too
        sink = RedisStream(f"redis://127.0.0.1:{slow.port if trouble == 'slow' else redis.port}", max_pending=1_000)
        begin: dict[str, Call] = {
            "down": redis.process.kill,
            "hung": lambda: redis.process.send_signal(signal.SIGSTOP),
            "out of memory": lambda: redis.client.config_set("maxmemory", "1"),
        }
        yield sink, begin.get(trouble, bare)


class Redis:
    """A Redis server of our own."""

    def __enter__(self) -> Redis:
        """Start it, and wait until it answers."""
        client = importlib.import_module("redis")
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--maxmemory-policy",
                "noeviction",
            ],
            cwd=self._folder.name,
            stdout=subprocess.DEVNULL,
        )
        self.client = client.Redis(port=self.port)
        for _ in range(1000):
            with contextlib.suppress(client.ConnectionError):
                self.client.ping()
                break
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


class Slow:
    """Hands on to a server what comes, and 50 ms later what it answers."""

    def __init__(self, port: int) -> None:
        self._target = port

    def __enter__(self) -> Slow:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                other = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((one, other, 0.0), (other, one, 0.05)):
                    threading.Thread(target=self._hand_on, args=pair, daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                time.sleep(pause_s)
                target.sendall(data)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    serve(sys.argv[1])
