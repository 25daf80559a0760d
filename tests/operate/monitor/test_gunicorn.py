"""A real gunicorn that loads the service before it forks: its workers' numbers add up."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.operate.monitor.test_prometheus import scrape, value

pytest.importorskip("gunicorn")

SERVICE = """
import os
from torchtriage.operate.monitor import Monitor, Prometheus

port, folder = int(os.environ["METRICS_PORT"]), os.environ["METRICS_DIR"]
monitor = Monitor(Prometheus(port=port, folder=folder))
detect = monitor.observe("detector", version="1")(lambda: os.getpid())

def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(detect()).encode()]
"""
COUNT = "torchtriage_inference_duration_seconds_count{"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(condition):
    end_s = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            if condition():
                return
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.fixture
def gunicorn(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE)
    port, metrics = free_port(), free_port()
    told = {"METRICS_PORT": str(metrics), "METRICS_DIR": str(tmp_path / "shared")}
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers",
        "3",
        "--chdir",
        str(tmp_path),
        "--bind",
        f"127.0.0.1:{port}",
        "--log-file",
        str(tmp_path / "log"),
        "service:app",
    ]
    server = subprocess.Popen(command, env=os.environ | told, start_new_session=True)
    try:
        wait_for(lambda: ask(port))
        yield server, port, metrics
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask(port):
    """Return which worker answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return int(answer.read())


def test_workers_of_gunicorn_add_up_and_one_that_is_killed_is_replaced(gunicorn):
    server, port, metrics = gunicorn
    begun = wait_until_counted(metrics, 1)
    pids = [ask(port) for _ in range(60)]
    wait_until_counted(metrics, begun + 60)
    killed = random.Random(1).choice(pids)
    os.kill(killed, signal.SIGKILL)
    answered = 0
    while answered < 60:
        with contextlib.suppress(OSError):  # the one that was killed had taken it
            pids.append(ask(port))
            answered += 1
    # all that was flushed before the kill, and all since
    assert wait_until_counted(metrics, begun + 120) == begun + 120
    assert killed not in pids[60:]
    server.terminate()
    assert server.wait(60) == 0


def wait_until_counted(port, n):
    """Return the requests counted, once there are so many."""
    counted = []

    def enough():
        counted.append(value(scrape(port), COUNT))
        return counted[-1] >= n

    wait_for(enough)
    assert counted == sorted(counted)
    return counted[-1]


def test_a_reload_keeps_the_sums(gunicorn):
    server, port, metrics = gunicorn
    for _ in range(20):
        before = ask(port)
    counted = wait_until_counted(metrics, 20)
    server.send_signal(signal.SIGHUP)
    wait_for(lambda: ask(port) != before and not Path(f"/proc/{before}").exists())
    assert wait_until_counted(metrics, counted + 1) > counted
