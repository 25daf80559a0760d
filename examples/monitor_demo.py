"""A model server with faults to inject, watched live: ``make monitor-demo``.

A classifier answers requests over HTTP; a second process sends them. The service is monitored,
degrades by a ladder, and takes new versions by a rollout. The page shows all of it, and its buttons
inject faults; left alone, the demo injects one after the other. Redis and Prometheus are started
where they are installed, on this machine's loopback, and end with the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core.process import rss_bytes
from torchtriage.operate import monitor
from torchtriage.operate.experiment import Rate, Typical
from torchtriage.operate.ladder import Ladder, LocalStore, Mode, Policy, RedisStore
from torchtriage.operate.ladder.result import LadderEntry
from torchtriage.operate.live import LivePage
from torchtriage.operate.monitor.rules import rules
from torchtriage.operate.rollout import Rollout, RolloutPlan, RolloutStore, open_rollouts

PER_S = 40.0
"""Requests per second, by two clients."""
SIZE = 48
MIB = 2**20


# -- models ------------------------------------------------------------------------------------

Classify = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def torch_model(width: int, seed: int) -> Classify:
    """Return a small convolutional classifier."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    ).eval()

    def classify(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return net(torch.from_numpy(images)).numpy()

    return classify


def numpy_model(width: int, seed: int) -> Classify:
    """Return a classifier of three layers, where torch is not installed."""
    draw = np.random.default_rng(seed)
    sizes = (3 * SIZE * SIZE, 16 * width, 16 * width, 10)
    layers = [
        (draw.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32) for a, b in pairwise(sizes)
    ]

    def classify(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = images.reshape(len(images), -1)
        for layer in layers[:-1]:
            values = np.maximum(values @ layer, 0)
        return values @ layers[-1]

    return classify


HAS_TORCH = find_spec("torch") is not None
make_model = torch_model if HAS_TORCH else numpy_model


# -- the service -------------------------------------------------------------------------------


class Faults:
    """What is wrong at this moment."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self.held: list[bytearray] = []

    def begin(self, name: str, seconds: float) -> None:
        """Let it be wrong for a while."""
        self._until_s[name] = time.monotonic() + seconds

    def on(self, name: str) -> bool:
        """Return whether it is."""
        return time.monotonic() < self._until_s.get(name, 0.0)


class Service:
    """The classifier in its versions, with everything that watches it."""

    def __init__(self, store: LocalStore | RedisStore, rollouts: RolloutStore) -> None:
        self.faults = Faults()
        self.page: LivePage | None = None
        self.control = "1.0"
        self._n_versions = 1
        self.models = {self.control: make_model(32, seed=0)}
        self.slower = {self.control: 0}
        self._lite = make_model(12, seed=1)
        self._rollouts = rollouts
        self._alarms: dict[str, tuple[float, str]] = {}
        self.rollout: Rollout | None = None
        self.n_answered = 0
        images = np.zeros((1, 3, SIZE, SIZE), np.float32)
        self._extra = 0
        took_s = sorted(_timed(self.full, images, self.control) for _ in range(40))
        deadline_s = max(6 * took_s[20], 0.02)
        # a slow model is late, on whatever machine
        self._extra = round(2 * deadline_s / took_s[20])
        self.ladder = Ladder(
            "classifier",
            [
                Mode("full", self.full),
                Mode("lite", lambda images, version: self._lite(images)),
                Mode("prior", lambda images, version: np.zeros((len(images), 10), np.float32)),
            ],
            Policy(
                deadline_s=deadline_s,
                enter=0.25,
                leave=0.1,
                dwell_s=4,
                recover_s=6,
                longest_s=30,
                probe_calls=15,
            ),
            alarm=lambda: self.alarm(self.serving, 3),
            store=store,
            dry_run=False,
            log=self._moved,
        )
        self.detection = monitor.Detection(self._alarmed, repeat_s=15)

    def full(self, images: np.ndarray[Any, Any], version: str) -> np.ndarray[Any, Any]:
        """Answer by a version's own model."""
        logits = self.models[version](images)
        for _ in range(self.slower[version] + self._extra * self.faults.on("slow")):
            self.models[version](images)
        if self.faults.on("nan"):
            logits = logits * np.float32("nan")
        return logits

    def answer(self, user: int, n_images: int) -> dict[str, Any]:
        """Answer one request."""
        rollout = self.rollout
        ticket = rollout.assign(user) if rollout is not None else None
        version = ticket.arm if ticket is not None else self.control
        start_s = time.perf_counter()
        error = True
        try:
            with self._observed(version).request(size=n_images) as request:
                draw = np.random.default_rng(user)
                images = draw.standard_normal((n_images, 3, SIZE, SIZE), np.float32)
                if self.faults.on("errors") and random.random() < 0.3:
                    raise ValueError("the image could not be decoded")
                logits = self.ladder(images, version)
                request.nan = not np.isfinite(logits).all()
            error = False
        finally:
            self.n_answered += 1
            if rollout is not None and ticket is not None:
                rollout.record(ticket, latency_s=time.perf_counter() - start_s, error=error)
        return {"version": version, "classes": logits.argmax(1).tolist()}

    def _observed(self, version: str) -> monitor.Model:
        return monitor.observe("classifier", version=version)

    def alarm(self, version: str, seconds: float) -> str:
        """Return the last alarm of a version, if it is that new."""
        at_s, text = self._alarms.get(version, (0.0, ""))
        return text if time.monotonic() - at_s < seconds else ""

    def _alarmed(self, alert: monitor.Alert) -> None:
        # one slow request alone is no reason to act, nor is what others do to this machine
        if alert.kind != "surge" and alert.cause != "host contention":
            self._alarms[alert.version] = (time.monotonic(), alert.title())
        if self.page is not None:
            self.page.show(alert)

    def _moved(self, entry: LadderEntry) -> None:
        if entry.kind == "switch":  # another mode takes another time: that is no news
            self.detection.silence(10, model="classifier", kind="shift")

    # -- what the buttons do -------------------------------------------------------------------

    def new_version(self, slower: int) -> None:
        """Roll out the next version; ``slower`` : passes that it wastes."""
        if self.rollout is not None and self.rollout.state.status == "running":
            return
        self.settle()
        version = f"1.{self._n_versions}"
        self._n_versions += 1
        self.models[version] = self.models[self.control]
        self.slower[version] = slower
        self.rollout = Rollout(
            RolloutPlan(
                f"classifier {version}",
                steps=(0.1, 0.5, 1.0),
                metric=Typical("latency_s", worse_than=1.2),
                guardrails=(Rate("error"),),
                least_requests=50,
                least_s=8,
                control=self.control,
                candidate=version,
            ),
            self._rollouts,
            alarm=lambda: self.alarm(version, 5),
        )
        self.rollout.run()
        if self.page is not None:
            self.page.watch(self.rollout)

    @property
    def serving(self) -> str:
        """The version that answers where no rollout says otherwise."""
        rollout = self.rollout
        if rollout is not None and rollout.state.status == "done":
            return rollout.plan.candidate
        return self.control

    def settle(self) -> None:
        """End the rollout; a version that was rolled out is the one in service."""
        if self.rollout is not None:
            self.control = self.serving
            self.rollout.close()
            self.rollout = None

    def grow(self) -> None:
        """Hold on to more and more memory for a while; the next time lets it go first."""
        self.faults.held.clear()

        def hold() -> None:
            before = rss_bytes()
            for _ in range(60):
                self.faults.held.append(bytearray(os.urandom(4 * MIB)))
                time.sleep(0.25)
                if rss_bytes() - before > 150 * MIB and self.page is not None:
                    text = f"memory grew by {(rss_bytes() - before) // MIB} MiB"
                    self.page.show(
                        monitor.Alert(
                            "classifier", self.serving, "memory", text, "", 1.0, time.time()
                        )
                    )
                    return

        threading.Thread(target=hold, daemon=True).start()


def _timed(call: Callable[..., object], *args: object) -> float:
    start_s = time.perf_counter()
    call(*args)
    return time.perf_counter() - start_s


class Server(ThreadingHTTPServer):
    """``POST /predict`` with ``{"user": 17, "images": 4}``."""

    daemon_threads = True

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(("127.0.0.1", 0), _Client)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the client has ended."""


class _Client(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = 200, self.server.service.answer(asked["user"], asked["images"])
        except Exception as error:
            status, answer = 500, {"error": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def load(port: int) -> None:
    """Send requests to a service until it is gone; runs in a process of its own."""

    def client(seed: int) -> None:
        draw = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        next_s = time.monotonic()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                asked = {"user": draw.randrange(100_000), "images": draw.choice((1, 1, 1, 2))}
                connection.request("POST", "/predict", json.dumps(asked))
                connection.getresponse().read()
                next_s = max(next_s + draw.uniform(0.5, 1.5) * 2 / PER_S, time.monotonic() - 0.2)
                time.sleep(max(next_s - time.monotonic(), 0))

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(2)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()


# -- what runs beside --------------------------------------------------------------------------


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether a port is nobody's."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


def answers(port: int) -> bool:
    """Wait up to ten seconds for a port to answer; return whether it did."""
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def beside(command: list[str]) -> Iterator[None]:
    """Run a program until the end of the block."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(5)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis server of our own; yield its URL, empty where there is none."""
    server, port = shutil.which("redis-server"), free_port()
    if server is None or find_spec("redis") is None:
        yield ""
        return
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with beside([*command, "--save", "", "--appendonly", "no"]):
        yield f"redis://127.0.0.1:{port}" if answers(port) else ""


@contextlib.contextmanager
def prometheus(folder: Path, metrics_port: int) -> Iterator[str]:
    """Run a Prometheus with our rules; yield where its alerts are, empty where there is none."""
    server, port = shutil.which("prometheus"), free_port()
    if server is None:
        yield ""
        return
    config = folder / "prometheus.yml"
    job = {"job_name": "demo", "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}]}
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "rules.yml").write_text(rules())
    config.write_text(
        json.dumps({"global": every, "rule_files": ["rules.yml"], "scrape_configs": [job]})
    )
    listen = f"127.0.0.1:{port}"
    command = [server, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with beside([*command, f"--web.listen-address={listen}"]):
        yield f"http://{listen}/alerts" if answers(port) else ""


# -- the demo ----------------------------------------------------------------------------------

STORY = ("Slow down", "New version", "NaN answers", "Slow new version", "Errors", "Memory growth")
PAUSE_S = 30.0
"""Between two faults, at least: a rollout is waited for."""
WARM_UP = 700
"""Requests before the first fault: a detector has to know what is usual."""


class Story:
    """Injects one fault after the other until a person presses a button."""

    def __init__(self, service: Service, buttons: dict[str, Callable[[], object]]) -> None:
        self._service = service
        self._buttons = buttons
        self._told = threading.Event()

    def by_hand(self, label: str) -> Callable[[], object]:
        """Return what the page's button does."""

        def press() -> None:
            self._told.set()
            self._buttons[label]()

        return press

    def run(self) -> None:
        """Tell it, again and again."""
        while self._service.n_answered < WARM_UP:
            if self._told.wait(0.5):
                return
        while True:
            for label in STORY:
                self._buttons[label]()
                if self._told.wait(PAUSE_S):
                    return
                for _ in range(90):
                    rollout = self._service.rollout
                    if rollout is None or rollout.state.status != "running":
                        break
                    if self._told.wait(1):
                        return


def serve(port: int, seconds: float | None, *, story: bool) -> None:
    """Run the demo until it is interrupted, or for so long."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchtriage-demo-")))
        url = stack.enter_context(redis(folder))
        store = RedisStore(url) if url else LocalStore()
        rollouts = open_rollouts(str(folder / "rollouts.db"))
        service = Service(store, rollouts)
        faults = service.faults
        buttons: dict[str, Callable[[], object]] = {
            "Slow down": lambda: faults.begin("slow", 12),
            "Errors": lambda: faults.begin("errors", 8),
            "NaN answers": lambda: faults.begin("nan", 10),
            "Memory growth": service.grow,
            "New version": lambda: service.new_version(slower=0),
            "Slow new version": lambda: service.new_version(slower=2),
        }
        told = Story(service, buttons)
        by_hand = {label: told.by_hand(label) for label in buttons}
        page = service.page = LivePage(port if is_free(port) else 0, buttons=by_hand)
        metrics = monitor.Prometheus(port=0)
        watching = monitor.start(page, metrics, service.detection)
        if url:
            watching.add(monitor.RedisStream(url))
        stack.callback(monitor.close)
        page.watch(service.ladder)
        service.ladder.start()
        stack.callback(service.ladder.close)
        stack.callback(service.settle)
        server = Server(service)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = stack.enter_context(prometheus(folder, metrics.port))
        load_ = [sys.executable, __file__, "--load", str(server.server_port)]
        stack.enter_context(beside(load_))
        if story:
            threading.Thread(target=told.run, daemon=True).start()
        what = "torch" if HAS_TORCH else "numpy, for torch is not installed here"
        print(f"live page    http://127.0.0.1:{page.port}")
        print(f"service      http://127.0.0.1:{server.server_port}/predict, a model of {what}")
        print(f"metrics      http://127.0.0.1:{metrics.port}/metrics")
        print(f"Prometheus   {there or 'not installed: apt-get install prometheus'}")
        print(f"Redis        {url or 'not installed: apt-get install redis-server'}")
        said = "Faults come one after the other until you press a button. " if story else ""
        print(f"{said}Ctrl-C ends it.")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait(seconds)


def main() -> None:
    """Run the demo, or its load."""
    parser = argparse.ArgumentParser(description="A monitored model server with faults to inject.")
    parser.add_argument("--port", type=int, default=9465, help="of the live page")
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--no-story", action="store_true", help="inject nothing unasked")
    parser.add_argument("--load", type=int, metavar="PORT", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs beside, as Ctrl-C
    if asked.load is not None:
        load(asked.load)
    else:
        serve(asked.port, asked.seconds, story=not asked.no_story)


if __name__ == "__main__":
    main()
