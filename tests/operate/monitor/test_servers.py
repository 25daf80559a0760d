"""Real servers, uvicorn and gunicorn: their workers' numbers add up, and a server that ends loses none."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.operate.monitor.test_prometheus import scrape, value
from tests.ports import free_port

from torchtriage.operate.monitor.workers import read_folder

DEADLINE_S = 60.0
PAGE = Path(__file__).parents[3] / "docs" / "monitor.md"
SERVICE = """
import asyncio, os, time
from pathlib import Path
from torchtriage import monitor

folder = os.environ["METRICS_DIR"] or None
monitor.start(monitor.Prometheus(port=int(os.environ["METRICS_PORT"]), folder=folder), monitor.JsonLog("log.jsonl"))

@monitor.observe("detector", version="1")
def detect(path):
    if path == "/slow":
        Path("begun").touch()
        time.sleep(0.5)
    return str(os.getpid()).encode()

def wsgi(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [detect(environ["PATH_INFO"])]

async def bare(scope, receive, send):
    body = await asyncio.to_thread(detect, scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

asgi = monitor.Health(bare)
"""
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "3", "--log-file", "server.log")
UVICORN = ("uvicorn", "--port", "{port}", "service:asgi")
UVICORN_WORKER = (*GUNICORN, "-k", "uvicorn.workers.UvicornWorker", "service:asgi")
SERVERS = {
    "uvicorn": UVICORN,
    "uvicorn, three workers": (*UVICORN, "--workers", "3"),
    "gunicorn": (*GUNICORN, "service:wsgi"),
    "gunicorn, threads": (*GUNICORN, "--threads", "4", "service:wsgi"),
    "gunicorn, preload": (*GUNICORN, "--preload", "service:wsgi"),
    "gunicorn, uvicorn": UVICORN_WORKER,
    "gunicorn, uvicorn, preload": (*UVICORN_WORKER, "--preload"),
}
PRELOAD = SERVERS["gunicorn, preload"]
COUNT = "torchtriage_inference_duration_seconds_count{"


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            if condition():
                return
        assert time.monotonic() < end_s
        time.sleep(0.05)


class Server:
    """A server of three workers, or as many as its command says, and what it leaves in its folder."""

    def __init__(self, folder: Path, command: tuple[str, ...], service: str = SERVICE, *, shared: bool = True) -> None:
        pytest.importorskip(command[0])
        if "uvicorn.workers.UvicornWorker" in command and not (find_spec("uvicorn") and find_spec("uvicorn.workers")):
            pytest.skip("no uvicorn with a worker for gunicorn here")
        self.folder = folder
        self.port, self.metrics = free_port(), free_port()
        (folder / "service.py").write_text(service.replace("9464", str(self.metrics)))
        told = {"METRICS_PORT": str(self.metrics), "METRICS_DIR": "metrics" if shared else ""}
        words = [word.format(port=self.port) for word in command]
        with (folder / "stderr.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *words],
                cwd=folder,
                env=os.environ | told,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str = "/") -> int:
        """Return which worker answered."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=DEADLINE_S) as answer:
            return int(answer.read())

    def logged(self) -> int:
        """Return how many requests the log has."""
        return len((self.folder / "log.jsonl").read_text().splitlines())

    def counted(self) -> int:
        """Return how many requests the workers' folder has."""
        return sum(state["finished"] for state in read_folder(self.folder / "metrics").models())

    def said(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))

    def wait_until_counted(self, n: int) -> float:
        """Return the requests that a scrape tells, once there are so many."""
        counted: list[float] = []

        def enough() -> bool:
            counted.append(value(scrape(self.metrics), COUNT))
            return counted[-1] >= n

        wait_for(enough)
        assert counted == sorted(counted)
        return counted[-1]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers = []

    def start(command: tuple[str, ...], service: str = SERVICE, *, shared: bool = True) -> Server:
        server = Server(tmp_path, command, service, shared=shared)
        servers.append(server)
        wait_for(lambda: server.ask() or server.process.poll() is not None)
        return server

    yield start
    for server in servers:
        server.kill()


# -- a server that ends --------------------------------------------------------------------


@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
def test_a_server_that_is_told_to_end_loses_no_record(run: Callable[..., Server], command: tuple[str, ...]) -> None:
    server = run(command)
    answered = [server.ask() for _ in range(40)]
    # one of them is under way when the signal comes
    late = threading.Thread(target=lambda: answered.append(server.ask("/slow")))
    late.start()
    wait_for((server.folder / "begun").exists)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(DEADLINE_S)
    late.join()
    assert len(answered) == 41
    assert (server.logged(), server.counted()) == (42, 42)  # with the one that was asked first


HUNG = SERVICE.replace(
    "folder = ",
    """
from torchtriage.operate.monitor.batch_sink import BatchSink
class Hung(BatchSink):
    def send(self, records):
        time.sleep(600)
monitor.start(Hung())
folder = """,
)


@pytest.mark.parametrize("command", [UVICORN, PRELOAD], ids=["uvicorn", "gunicorn, preload"])
def test_what_hangs_at_the_end_takes_nothing_along_and_is_counted(
    run: Callable[..., Server], command: tuple[str, ...]
) -> None:
    server = run(command, HUNG)
    for _ in range(40):
        server.ask()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(DEADLINE_S)
    assert (server.logged(), server.counted()) == (41, 41)
    lost = re.findall(r"(\d+) records of Hung were not sent: it took too long", server.said())
    assert sum(map(int, lost)) == 41


def test_a_uvicorn_that_ends_by_itself_leaves_the_monitor_to_its_process(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    code = """
import sys, threading, time, urllib.request, uvicorn
from torchtriage import monitor
detect = monitor.observe("detector")(abs)
async def app(scope, receive, send):
    detect(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
server = uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[1]), lifespan="off", log_level="warning"))
def ask():
    while not server.started:
        time.sleep(0.01)
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/").read()
    time.sleep(0.3)  # the monitor has looked
    server.should_exit = True
threading.Thread(target=ask).start()
server.run()
assert "shutdown" in vars(server)
detect(1)
time.sleep(0.3)
print(monitor._default.accounts())
"""
    done = subprocess.run([sys.executable, "-c", code, str(free_port())], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Accounts(produced=2, sent=2, dropped=0, pending=0)\n", done.stderr


# -- several workers -----------------------------------------------------------------------


@pytest.mark.parametrize("command", [(*GUNICORN, "service:app"), (*UVICORN[:-1], "service:asgi", "--workers", "3")])
def test_the_first_example_of_the_page_works_with_three_workers(
    run: Callable[..., Server], command: tuple[str, ...]
) -> None:
    pytest.importorskip("redis")
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[:1]
    assert example.rstrip().endswith("def detect(images): ...")
    example = example.rstrip().removesuffix("...") + "return str(os.getpid()).encode()"
    service = f"""
import os
{example.replace(":6379", f":{free_port()}")}

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [detect([1, 2])]

async def asgi(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": detect([1, 2])}})
"""
    server = run(command, service)
    workers = set()
    for _ in range(30):
        workers.add(server.ask())
    assert server.wait_until_counted(31) == 31
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    assert "cannot listen" not in server.said()


def test_a_taken_port_costs_no_worker_and_says_what_to_do(run: Callable[..., Server]) -> None:
    server = run(SERVERS["gunicorn"], shared=False)
    first = server.ask()
    hint = "Address already in use; several workers share a port, and add up their numbers, with Prometheus(folder=...)"
    wait_for(lambda: server.said().count(hint) == 2)
    assert f"cannot listen at 127.0.0.1:{server.metrics}" in server.said()
    wait_for(lambda: server.ask() != first)
    assert "torchtriage" in scrape(server.metrics)
    assert server.process.poll() is None


def test_a_port_that_the_parent_took_is_told(run: Callable[..., Server]) -> None:
    server = run(PRELOAD, shared=False)
    wait_for(lambda: server.ask() and "with Prometheus(folder=...)" in server.said())
    assert server.process.poll() is None


def test_workers_of_gunicorn_add_up_and_one_that_is_killed_is_replaced(run: Callable[..., Server]) -> None:
    server = run(PRELOAD)
    begun = server.wait_until_counted(1)
    pids = [server.ask() for _ in range(60)]
    server.wait_until_counted(begun + 60)
    killed = random.Random(1).choice(pids)
    os.kill(killed, signal.SIGKILL)
    answered = 0
    while answered < 60:
        with contextlib.suppress(OSError):  # the one that was killed had taken it
            pids.append(server.ask())
            answered += 1
    # all that was flushed before the kill, and all since
    assert server.wait_until_counted(begun + 120) == begun + 120
    assert killed not in pids[60:]
    server.process.terminate()
    assert server.process.wait(DEADLINE_S) == 0


def test_a_reload_keeps_the_sums(run: Callable[..., Server]) -> None:
    server = run(PRELOAD)
    for _ in range(20):
        before = server.ask()
    counted = server.wait_until_counted(20)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.ask() != before and not Path(f"/proc/{before}").exists())
    assert server.wait_until_counted(counted + 1) > counted


# -- a listener under attack ----------------------------------------------------------------


def test_requests_and_scrapes_go_on_while_the_listener_is_flooded(run: Callable[..., Server]) -> None:
    server = run(UVICORN)
    over, flooded = threading.Event(), threading.Event()

    def flood() -> None:
        open_: deque[socket.socket] = deque()
        while not over.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", server.metrics), DEADLINE_S, ("127.0.0.2", 0))
                open_.append(one)
                one.sendall(b"GET /metrics HTTP/1.0\r\n")
            if len(open_) > 200:
                flooded.set()
                open_.popleft().close()
        for one in open_:
            one.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert flooded.wait(DEADLINE_S)
        for _ in range(20):
            server.ask()
            assert "torchtriage_monitor_pending" in scrape(server.metrics)
    finally:
        over.set()
        thread.join()
    server.wait_until_counted(21)
    refused = 'torchtriage_monitor_refused_connections_total{listener="Prometheus",reason="slow"}'
    assert value(scrape(server.metrics), refused) > 0


# -- health --------------------------------------------------------------------------------

FASTAPI = """
import os
from fastapi import FastAPI
from torchtriage import monitor

monitor.start(monitor.Prometheus(port=int(os.environ["METRICS_PORT"]), folder=os.environ["METRICS_DIR"]))
monitor.ready(False)
app = FastAPI()
app.add_middleware(monitor.Health)

@app.get("/")
@monitor.observe("detector")
async def detect() -> int:
    return os.getpid()

@app.get("/load")
async def load() -> int:
    monitor.ready()
    return os.getpid()
"""


def status(port: int, path: str, method: str = "GET") -> int:
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_service_of_fastapi_tells_whether_it_is_ready(run: Callable[..., Server]) -> None:
    pytest.importorskip("fastapi")
    server = run(("uvicorn", "--port", "{port}", "service:app"), FASTAPI)
    for port in (server.port, server.metrics):
        for method in ("GET", "HEAD"):
            assert status(port, "/healthz", method) == 200
            assert status(port, "/readyz", method) == 503
    server.ask("/load")
    for port in (server.port, server.metrics):
        wait_for(lambda port=port: status(port, "/readyz") == 200)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(DEADLINE_S)
    assert server.counted() == 1
