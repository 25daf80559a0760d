"""A Redis server of the tests' own; and no test leaves a thread behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from tests.ports import free_port


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail what leaves a thread of the monitor running, but for those of the process' own."""
    before = set(threading.enumerate())
    yield
    end_s = time.monotonic() + 30
    while left := [one.name for one in set(threading.enumerate()) - before if is_ours(one)]:
        assert time.monotonic() < end_s, f"left running: {left}"
        time.sleep(0.01)


def is_ours(thread: threading.Thread) -> bool:
    from torchtriage.operate import monitor

    return thread.name.startswith("torchtriage") and thread is not monitor._default._thread


@pytest.fixture
def server(tmp_path):
    redis = pytest.importorskip("redis")
    program = shutil.which("redis-server")
    port = free_port()
    processes = []

    class Server:
        url = f"redis://127.0.0.1:{port}"
        client = redis.Redis(port=port, decode_responses=True)

        def start(self, *settings):
            command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
            processes.append(subprocess.Popen([*command, *settings], cwd=tmp_path, stdout=subprocess.DEVNULL))
            end_s = time.monotonic() + 60
            while not self.answers():
                assert time.monotonic() < end_s
                time.sleep(0.01)

        def answers(self):
            try:
                return self.client.ping()
            except redis.ConnectionError:
                return False

        def signal(self, number):
            processes[-1].send_signal(number)
            if number == signal.SIGKILL:
                processes[-1].wait()

        def records(self):
            entries = self.client.xrange("torchtriage:requests")
            return [record for _, fields in entries for record in json.loads(fields["requests"])]

    server = Server()
    server.start()
    server.port = port
    yield server
    server.client.close()
    for process in processes:
        process.kill()
        process.wait()
