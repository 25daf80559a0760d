"""What goes wrong around a service costs it no request, and is counted: see docs/faults.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waiting import wait_for

from torchtriage.operate.monitor import Detection, JsonLog, Monitor, Prometheus, RedisStream, process_metrics
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.batch_sink import BatchSink
from torchtriage.operate.monitor.workers import read_folder

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"


def observe(monitor, n):
    call = monitor.observe("detector", version="1")(abs)
    for at in range(n):
        call(at)
    monitor.drain()


def balanced(outlet):
    accounts = outlet.accounts()
    assert accounts.produced == accounts.sent + accounts.dropped + accounts.pending
    return accounts


class Between:
    """Stands between a client and a server: accepts, and does as it is told with the answers."""

    def __init__(self, port, answer):
        self.n_accepted = 0
        self._port, self._answer = port, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = [self._listener]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            while True:
                one, _ = self._listener.accept()
                self.n_accepted += 1
                if self._port is None:
                    one.close()
                    continue
                other = socket.create_connection(("127.0.0.1", self._port))
                self._open += [one, other]
                for pair in ((one, other, socket.socket.sendall), (other, one, self._answer)):
                    threading.Thread(target=self._hand_on, args=pair, daemon=True).start()
        except OSError:
            return

    def _hand_on(self, source, target, how):
        try:
            while data := source.recv(65_536):
                how(target, data)
        except OSError:
            return

    def close(self):
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


# -- Redis ---------------------------------------------------------------------------------


@pytest.mark.redis
@pytest.mark.timing
def test_a_redis_that_answers_a_byte_in_50_ms_holds_nobody_up(server):
    def byte_by_byte(target, data):
        for one in data:
            time.sleep(0.05)
            target.sendall(bytes([one]))

    between = Between(server.port, byte_by_byte)
    outlet = RedisStream(between.url, max_pending=300)
    monitor = Monitor(outlet)
    call = monitor.observe("detector")(abs)
    took_s = []
    for _ in range(400):
        before = time.perf_counter()
        call(1)
        took_s.append(time.perf_counter() - before)
        time.sleep(0.002)
    # every batch waits for seconds; a machine that stops for a moment does so once or twice
    assert sorted(took_s)[-5] < 0.02
    monitor.drain()
    assert balanced(outlet).produced == 400
    before = time.monotonic()
    monitor.close()
    assert time.monotonic() - before < 0.25
    assert balanced(outlet).produced == 400
    between.close()


@pytest.mark.redis
def test_a_failover_keeps_the_records_until_there_is_a_primary(server):
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        server.client.replicaof("127.0.0.1", 1)
        observe(monitor, 5)
        wait_for(lambda: "read only replica" in outlet.last_error)
        assert balanced(outlet).pending == 5
        server.client.replicaof("NO", "ONE")
        wait_for(lambda: outlet.accounts().sent == 5)
    assert len(server.records()) == 5


@pytest.mark.redis
def test_connections_that_are_cut_again_and_again_lose_no_record(server):
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        for _ in range(20):
            observe(monitor, 10)
            server.client.client_kill_filter(_type="normal", skipme=True)
        wait_for(lambda: outlet.accounts().sent == 200)
    assert len(server.records()) >= 200  # a batch whose answer was lost may come twice


def test_a_server_that_hangs_up_is_not_stormed():
    between = Between(None, None)
    outlet = RedisStream(between.url)
    with Monitor(outlet) as monitor:
        observe(monitor, 5)
        wait_for(lambda: outlet.last_error)
        before = time.monotonic()
        time.sleep(1)
        # after 0.1, 0.2, 0.5, 1, 2 s and then every 5 s; twice each, if the client tries itself
        assert between.n_accepted <= 2 * (5 + (time.monotonic() - before) / 0.5)
    between.close()


# -- scrapers ------------------------------------------------------------------------------


def test_sixteen_scrape_at_once_and_one_who_does_not_read_is_in_nobodys_way():
    listener = Prometheus(port=0)
    with Monitor(listener) as monitor:
        for at in range(400):  # more text than a socket holds
            monitor.observe("detector", version=str(at))(abs)(1)
        monitor.drain()
        lazy = socket.create_connection(("127.0.0.1", listener.port))
        lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        texts = []

        def scrape():
            url = f"http://127.0.0.1:{listener.port}/metrics"
            with urllib.request.urlopen(url, timeout=60) as answer:
                texts.append(answer.read())

        threads = [threading.Thread(target=scrape) for _ in range(15)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lazy.close()
    assert len(texts) == 15
    for text in texts:
        assert text.count(b"torchtriage_inference_duration_seconds_count{") == 400


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_in_the_middle_of_a_scrape():
    listener = Prometheus(port=0)
    with Monitor(listener) as monitor:
        monitor.observe("detector")(abs)(1)
        with listener._render_lock:  # somebody is being served
            child = os.fork()
        if child == 0:
            monitor.observe("detector")(abs)(1)
            monitor.observe("detector")(abs)(1)
            monitor.drain()
            os._exit(0 if b"_count{" in listener.text() and b"} 2\n" in listener.text() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        url = f"http://127.0.0.1:{listener.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"torchtriage_inference_duration_seconds_count" in answer.read()


def test_a_hundred_thousand_names_are_two_thousand():
    with Monitor() as monitor:
        for at in range(100_000):
            monitor.observe("detector", version=str(at))
        assert monitor.n_refused == 98_000
        assert len(monitor.snapshot()) == 2_001


# -- clocks --------------------------------------------------------------------------------


class Kept(BatchSink):
    wait_s = 0.01

    def __init__(self):
        self.records = []
        super().__init__()

    def send(self, records):
        self.records += records


@pytest.mark.parametrize("jump_s", [-3600.0, 86_400.0])
def test_a_wall_clock_that_jumps_moves_no_request(monkeypatch, jump_s):
    outlet = Kept()
    right = time.time
    with Monitor(outlet) as monitor:
        observe(monitor, 100)
        monkeypatch.setattr(time, "time", lambda: right() + jump_s)
        observe(monitor, 100)
        (found,) = monitor.snapshot()
    at_s = [record.at_s for record in outlet.records]
    assert at_s == sorted(at_s)
    assert at_s[-1] - at_s[0] < 60
    assert found.p99_s < 60


@pytest.mark.parametrize("jump_s", [-3600.0, 86_400.0])
def test_a_wall_clock_that_jumps_neither_ends_a_silence_nor_prolongs_it(monkeypatch, jump_s):
    told = []
    detection = Detection(told.append, repeat_s=0)
    detection.start(None)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + jump_s)
    detection.silence(60)
    for after_s in (1, 59, 61):
        at_s = right() + after_s
        detection._raise(Alert("detector", "", "shift", "slower", "", 2.0, at_s))
    detection.close(time.monotonic() + 30)
    assert detection.n_silenced == 2
    assert len(told) == 1


def test_durations_of_zero_and_beyond_are_counted():
    with Monitor() as monitor:
        model = monitor.observe("detector")
        for start_ns, end_ns, size in ((5, 5, None), (9, 5, -1), (0, 10**30, 0), (0, 1, 10**40)):
            model.local.ring.end((start_ns, end_ns, size, None))
        (found,) = monitor.snapshot()
    assert found.finished == 4
    assert found.p50_s < 1e-6
    assert found.p99_s > 1e20


# -- callbacks -----------------------------------------------------------------------------


def test_a_callback_that_recurses_for_ever_is_counted(tmp_path):
    def recurses(alert):
        recurses(alert)

    told = []
    detection = Detection(recurses, told.append)
    detection.start(None)
    detection._raise(Alert("detector", "", "shift", "slower", "", 2.0, 1.7e9))
    wait_for(lambda: told)
    detection.close(time.monotonic() + 30)
    assert detection.n_failures == 1


def test_a_callback_that_ends_the_process_leaves_whole_lines(tmp_path):
    code = """
import os, sys, time
from torchtriage.operate.monitor import Detection, JsonLog, Monitor
from torchtriage.operate.monitor.alert import Alert
detection = Detection(lambda alert: alert.kind == "last" and os._exit(7))
log = JsonLog(sys.argv[1])
call = Monitor(log, detection).observe("detector")(abs)
for n in range(100_000):
    call(n)
    time.sleep(0.001)
    if log.accounts().sent > 200:
        detection._raise(Alert("detector", "", "last", "slower", "", 2.0, 1.7e9))
"""
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", code, path], timeout=50, capture_output=True)
    assert done.returncode == 7, done.stderr
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len([json.loads(line) for line in lines]) > 200


# -- processes -----------------------------------------------------------------------------

STARTED = """
import multiprocessing, sys
from torchtriage.operate.monitor import Monitor, Prometheus
def work(folder, n):
    with Monitor(Prometheus(port=0, folder=folder)) as monitor:
        call = monitor.observe("detector")(abs)
        for at in range(n):
            call(at)
if __name__ == "__main__":
    with Monitor() as monitor:
        monitor.observe("other")(abs)(1)
        context = multiprocessing.get_context(sys.argv[1])
        children = [context.Process(target=work, args=(sys.argv[2], n)) for n in (10, 20)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print([child.exitcode for child in children])
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_are_added_up_however_they_are_started(tmp_path, how):
    script = tmp_path / "workers.py"
    script.write_text(STARTED)
    shared = tmp_path / "shared"
    command = [sys.executable, "-W", "ignore", script, how, shared]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[0, 0]\n", done.stderr
    read_folder(shared)
    ended = json.loads((shared / "ended.json").read_text())
    assert {one["model"]: one["finished"] for one in ended["models"]} == {"detector": 30}


# -- threads -------------------------------------------------------------------------------


def test_sixty_four_threads_are_counted_exactly_at_every_moment():
    with Monitor() as monitor:
        call = monitor.observe("detector")(abs)
        began, ended = [0] * 64, [0] * 64

        def work(at):
            for n in range(1, 101):
                began[at] = n
                call(n)
                ended[at] = n

        threads = [threading.Thread(target=work, args=(at,)) for at in range(64)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            least = sum(ended)
            accounts = monitor.accounts()
            assert least <= accounts.produced <= sum(began)
        assert monitor.snapshot()[0].finished == 6_400
        assert monitor.accounts().pending == 0


# -- disks ---------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="nothing here that root cannot write")
def test_a_place_that_cannot_be_written_keeps_the_records_and_says_why():
    log = JsonLog("/sys/kernel/torchtriage.jsonl")
    with Monitor(log) as monitor:
        observe(monitor, 5)
        wait_for(lambda: log.last_error)
        assert re.search("PermissionError|Read-only", log.last_error)
        assert balanced(log).pending == 5


def test_a_log_that_is_moved_away_goes_on_at_its_name(tmp_path):
    path = tmp_path / "log"
    log = JsonLog(path)
    with Monitor(log) as monitor:
        observe(monitor, 3)
        wait_for(lambda: log.accounts().sent == 3)
        path.rename(tmp_path / "log.moved")
        observe(monitor, 4)
        wait_for(lambda: log.accounts().sent == 7)
    assert len((tmp_path / "log.moved").read_text().splitlines()) == 3
    assert len(path.read_text().splitlines()) == 4


# -- devices and compilers -----------------------------------------------------------------


def test_a_lost_gpu_costs_no_other_number(monkeypatch):
    def allocated(device):
        if device:
            raise RuntimeError("CUDA error: device lost")
        return 100

    def fails(*_):
        raise RuntimeError("NVML: driver/library version mismatch")

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_allocated=allocated,
        memory_reserved=lambda device: 200,
        get_device_properties=fails,
        utilization=fails,  # of a MIG slice, too
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    told = [
        (name, labels["device"], value) for name, labels, value in process_metrics.read() if name.startswith("device")
    ]
    assert told[:2] == [("device_allocated_bytes", "0", 100), ("device_reserved_bytes", "0", 200)]
    cuda.is_initialized = lambda: False  # no CUDA, or not touched yet: nothing here wakes it
    assert not [name for name, *_ in process_metrics.read() if name.startswith("device")]


def test_graph_breaks_and_recompilations_of_every_request_are_told(monkeypatch):
    frames = SimpleNamespace(FRAME_COMPILE_COUNTER={"limit hit": 8, "once": 1})
    counters = defaultdict(Counter, graph_break=Counter({"print": 500, "data-dependent": 2}))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", frames)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    told = {name: value for name, _, value in process_metrics.read()}
    assert told["compile_recompiles_total"] == 7
    assert told["compile_graph_breaks_total"] == 502


# -- the end -------------------------------------------------------------------------------


@pytest.mark.timing
def test_the_interpreter_ends_with_full_queues(tmp_path):
    code = """
import time
from torchtriage.operate.monitor import Monitor
from torchtriage.operate.monitor.batch_sink import BatchSink
class Hangs(BatchSink):
    def send(self, records):
        time.sleep(60)
monitor = Monitor(Hangs())
call = monitor.observe("detector")(abs)
with monitor._lock:  # nobody takes them
    for _ in range(70_000):
        call(1)
assert monitor.accounts().produced == 70_000
print(time.time(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0
    # the queue that hands them on may take longer than closing waits; then that is said
    assert re.fullmatch(
        "50000 records of Hangs were not sent: it took too long\n|the monitor's thread was blocked.*\n", done.stderr
    )
    assert time.time() - float(done.stdout) < 1.5  # 0.15 s for closing, the rest is Python's end


def test_a_kill_in_the_middle_of_a_log_leaves_lines_that_are_read(tmp_path):
    code = """
import sys
from torchtriage.operate.monitor import JsonLog, Monitor
monitor = Monitor(JsonLog(sys.argv[1]))
call = monitor.observe("detector")(abs)
while True:
    call(1)
"""
    path = tmp_path / "log"
    child = subprocess.Popen([sys.executable, "-c", code, path])
    wait_for(lambda: path.exists() and path.stat().st_size > 1_000_000)
    child.send_signal(signal.SIGKILL)
    child.wait()
    *lines, last = path.read_bytes().split(b"\n")
    for line in lines:
        assert json.loads(line)["model"] == "detector"
    assert last == b"" or len(lines) > 1000  # at most the last one is cut


def test_every_test_that_the_page_names_is_there():
    named = set(re.findall(r"`((?:[a-z_]+/)+\w+\.py)::(\w+)`", PAGE.read_text()))
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not re.search(rf"(def|class) {name}\b|^{name} = ", (Path(__file__).parents[2] / path).read_text(), re.M)
    ]
    assert missing == []
