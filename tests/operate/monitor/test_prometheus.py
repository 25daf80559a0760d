"""What Prometheus reads: names by its rules, sums of all workers, one text for all scrapers."""

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

import pytest
from tests.ports import free_port
from tests.waiting import wait_for

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor import Collector, Monitor, Prometheus, workers
from torchtriage.operate.monitor.metrics import METRICS, Exposition
from torchtriage.operate.monitor.prometheus import FLUSH_S
from torchtriage.operate.monitor.workers import WorkerFile, read_folder


def scrape(port, token=""):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def value(text, line):
    (found,) = [splitline for splitline in text.splitlines() if splitline.startswith(line)]
    return float(found.rsplit(" ", 1)[1])


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def listener():
    return Prometheus(port=0)


@pytest.fixture
def monitor(listener):
    with Monitor(listener) as monitor:
        yield monitor


def test_a_scrape_tells_what_was_observed(monitor, listener):
    call = monitor.observe("detector", version="2.1", size=lambda x: 4)(lambda x: 1 / x)
    call(1)
    call(2)
    with pytest.raises(ZeroDivisionError):
        call(0)
    monitor.drain()
    text = scrape(listener.port)
    labels = '{model="detector",version="2.1"'
    assert value(text, f"torchtriage_inference_duration_seconds_count{labels}}}") == 2
    assert value(text, f'torchtriage_inference_duration_seconds_bucket{labels},le="+Inf"}}') == 2
    assert value(text, f'torchtriage_inference_errors_total{labels},error="ZeroDivisionError"') == 1
    assert value(text, f"torchtriage_inference_input_sizes{labels}}}") == 1
    assert value(text, 'torchtriage_monitor_requests_total{outcome="sent"}') == 3
    assert "queue_seconds" not in text


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say(monitor, listener):
    model = monitor.observe('quoted "name"\nof \\ two lines \0', version="\udcff")
    with pytest.raises(ValueError, match="x"), model.request(size=3, queued_ns=1000):
        raise ValueError("x")
    with model.request(size=3, queued_ns=1000) as request:
        request.nan = True
    monitor.drain()
    every = [
        (name, dict.fromkeys(metric.labels, "0"), 1)
        for name, metric in METRICS.items()
        if not name.startswith("inference")
    ]
    text = Exposition().render(monitor.state(), every)
    for name in METRICS:
        assert f"# TYPE torchtriage_{name} ".encode() in text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_one_text_serves_all_scrapers_of_a_second(monitor, listener):
    call = monitor.observe("detector")(abs)
    call(1)
    monitor.drain()
    first = scrape(listener.port)
    call(1)
    monitor.drain()
    assert scrape(listener.port) == first
    listener._rendered_s -= 1
    assert "_count{" in scrape(listener.port)
    assert scrape(listener.port) != first


def test_a_listener_beyond_this_machine_needs_a_token():
    for host in ("0.0.0.0", "::", "example.org", ""):
        with pytest.raises(UsageError, match="expected a token"):
            Prometheus(host=host)
    Prometheus(host="::1")
    Prometheus(host="localhost")


def test_a_listener_asks_no_name_server(monkeypatch):
    def hangs(name=""):
        raise AssertionError("it would wait for an answer")

    monkeypatch.setattr(socket, "getfqdn", hangs)
    with Monitor(Prometheus(port=0)):
        pass


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_a_listener_at_ipv6():
    listener = Prometheus(port=0, host="::1")
    with Monitor(listener) as monitor:
        monitor.observe("detector")
        monitor.drain()
        with urllib.request.urlopen(f"http://[::1]:{listener.port}/metrics") as answer:
            assert b"detector" in answer.read()


def test_a_token_is_asked_for():
    listener = Prometheus(port=0, token="secret")
    with Monitor(listener) as monitor:
        monitor.observe("detector")(abs)(1)
        for token in ("", "wrong", "sécret"):
            with pytest.raises((urllib.error.HTTPError, UnicodeEncodeError)):
                scrape(listener.port, token)
        monitor.drain()
        assert "detector" in scrape(listener.port, "secret")


def test_other_pages_do_not_exist(monitor, listener):
    monitor.observe("detector")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/etc/passwd")


@pytest.mark.parametrize("shared", [False, True])
def test_a_taken_port_is_told_counted_and_tried_again(tmp_path, caplog, shared):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = Prometheus(port=taken.getsockname()[1], folder=tmp_path if shared else None)
        with Monitor(listener) as monitor:
            assert monitor.observe("detector")(abs)(-1) == 1
            wait_for(lambda: listener.n_failures)
            taken.close()
            wait_for(lambda: listener._server)
            assert value(scrape(listener.port), "torchtriage_monitor_failures_total") == 1
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"cannot listen at 127.0.0.1:\d+: .*in use; ", told)
    assert ("folder=" in told) != shared  # there it is no worker that has it
    assert "port=0" in told or not shared


def test_another_worker_of_the_folder_is_no_news(tmp_path, caplog):
    first, second = Prometheus(port=0, folder=tmp_path), Prometheus(port=0, folder=tmp_path)
    with Monitor(second) as monitor:
        with Monitor(first):
            # a second in one process stands for another: a lock is of an open file
            second.port = first.port = second.port
            monitor.observe("detector")(abs)(1)
            for _ in range(3):
                first._open()
            assert (first._server, first.n_failures, caplog.records) == (None, 0, [])
        assert "detector" in scrape(second.port)


def test_a_folder_that_cannot_be_written_is_told_and_tried_again(tmp_path, caplog):
    place = tmp_path / "folder"
    place.write_text("a file")
    listener = Prometheus(port=0, folder=place)
    with Monitor(listener) as monitor:
        monitor.observe("detector")(abs)(1)
        wait_for(lambda: listener.n_failures)
        place.unlink()
        wait_for(lambda: listener._server)
        monitor.drain()
        listener._rendered_s = -60
        assert "detector" in scrape(listener.port)
    assert [record.getMessage() for record in caplog.records] == [f"cannot write to {place}: File exists"]


def test_readiness_is_what_the_service_says(tmp_path):
    def status(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}{path}") as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    listener = Prometheus(port=0, token="secret")
    with Monitor(listener) as monitor:
        assert (status("/healthz"), status("/readyz"), status("/metrics")) == (200, 200, 401)
        monitor.ready(False)
        assert (status("/healthz"), status("/readyz")) == (200, 503)
        monitor.ready()
        assert status("/readyz") == 200
    # of several workers one is enough: those that are not do not take requests yet
    listener, other = Prometheus(port=0, folder=tmp_path), Prometheus(port=0, folder=tmp_path)
    with Monitor(listener) as monitor:
        monitor.ready(False)
        assert status("/readyz") == 503
        with Monitor(other):
            listener._rendered_s = -60
            assert status("/readyz") == 200
        listener._rendered_s = -60
        assert status("/readyz") == 503


def test_scrapers_that_read_slowly_or_leave_keep_nobody_waiting(monitor, listener):
    monitor.observe("detector")(abs)(1)
    monitor.drain()
    lazy = []
    for _ in range(20):
        one = socket.create_connection(("127.0.0.1", listener.port))
        lazy.append(one)
        time.sleep(0.005)
    for one in lazy:
        one.close()
    time.sleep(0.1)
    assert "detector" in scrape(listener.port)


def test_a_registry_of_prometheus_client_can_hold_it(monitor):
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    monitor.observe("detector", version="3")(abs)(1)
    monitor.drain()
    registry.register(Collector(monitor))
    labels = {"model": "detector", "version": "3"}
    assert registry.get_sample_value("torchtriage_inference_duration_seconds_count", labels) == 1


# -- several processes ---------------------------------------------------------------------

# Forks a worker for every line it reads and tells its pid. A worker counts requests, and says in a
# file of its own when how many were done and how many will be after the next ones.
FORKS = """
import os, sys, time
from torchtriage.operate.monitor import Monitor, Prometheus
port, shared, told = int(sys.argv[1]), sys.argv[2], sys.argv[3]
monitor = Monitor(Prometheus(port=port, folder=shared))
call = monitor.observe("detector")(lambda: None)
for _ in sys.stdin:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    with open(f"{told}/{os.getpid()}", "w") as said:
        n = 0
        while True:
            print(time.monotonic(), n, n + 20, file=said, flush=True)
            for _ in range(20):
                call()
            n += 20
            time.sleep(0.01)
"""


def test_a_state_survives_being_written_and_added_up(tmp_path):
    def state(n):
        with Monitor() as monitor:
            for at in range(n):
                with monitor.observe("detector").request(size=at) as request:
                    request.nan = True
            monitor.drain()
            return monitor.state()

    alive, dead = WorkerFile(tmp_path), WorkerFile(tmp_path)
    alive.write(state(3))
    dead.write(state(4))
    (sums,) = read_folder(tmp_path).models()
    assert (sums["finished"], sums["n_nan"], sums["sizes"]) == (7, 7, [0, 1, 2, 3])
    dead.leave()
    for _ in range(3):
        assert read_folder(tmp_path).models()[0]["durations"]["count"] == 7
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(["ended.json", "folder.lock", alive.path.name, alive.path.with_suffix(".lock").name])
    alive.leave()


def test_a_reader_that_was_killed_between_two_steps_counts_nobody_twice(tmp_path):
    worker = WorkerFile(tmp_path)
    with Monitor() as monitor:
        monitor.observe("detector")(abs)(1)
        monitor.drain()
        worker.write(monitor.state())
    worker.leave()
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    read_folder(tmp_path)
    for path, content in kept.items():  # as if it had not come to removing them
        path.write_bytes(content)
    assert read_folder(tmp_path).models()[0]["finished"] == 1
    (tmp_path / "1-1.json").write_text("{broken")
    assert read_folder(tmp_path).models()[0]["finished"] == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_numbers_are_added_up_keeps_nobody_out(tmp_path, monkeypatch):
    children, merge = [], workers._merge

    def forks(folder):
        child = os.fork()  # gunicorn's master does, when a worker was killed
        if child == 0:
            time.sleep(600)
            os._exit(0)
        children.append(child)
        return merge(folder)

    with monkeypatch.context() as patched:
        patched.setattr(workers, "_merge", forks)
        read_folder(tmp_path)
    reader = threading.Thread(target=read_folder, args=(tmp_path,), daemon=True)
    reader.start()
    reader.join(30)
    kept_out = reader.is_alive()
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    assert not kept_out


@pytest.mark.timing
def test_eight_forked_workers_killed_at_random_lose_a_flush_at_most(tmp_path):
    """A counter never goes back, counts nothing twice, and a kill -9 costs one flush at most."""
    shared, told = tmp_path / "shared", tmp_path / "told"
    told.mkdir()
    port = free_port()
    script = [sys.executable, "-c", FORKS, str(port), str(shared), str(told)]
    parent = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    chance = random.Random(8)
    alive, killed_s, seen = [], {}, []

    def fork():
        parent.stdin.write("\n")
        parent.stdin.flush()
        alive.append(int(parent.stdout.readline()))

    def kill(pid):
        killed_s[pid] = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        alive.remove(pid)

    def scrape_for(seconds):
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            # the one that served may have been killed: another takes over
            with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                seen.append(value(scrape(port), "torchtriage_inference_duration_seconds_count{"))
            time.sleep(0.05)

    try:
        for _ in range(8):
            fork()
        for _ in range(12):
            scrape_for(chance.uniform(0.1, 1.0))
            kill(chance.choice(alive))
            fork()
        parent.kill()  # it served
        scrape_for(3)
    finally:
        parent.kill()
        while alive:
            kill(alive[0])
        parent.communicate()
    assert len(seen) > 20
    assert seen == sorted(seen)
    least = most = 0
    for pid, at_s in killed_s.items():
        lines = (told / str(pid)).read_text().splitlines() if (told / str(pid)).exists() else []
        rows = [[float(word) for word in line.split()] for line in lines]
        rows = [row for row in rows if len(row) == 3]
        # a second more than a flush for a machine that lets threads wait
        least += max([done for said_s, done, _ in rows if said_s < at_s - FLUSH_S - 1], default=0)
        most += max([announced for *_, announced in rows], default=0)
    (sums,) = read_folder(shared).models()
    assert 0 < least <= sums["finished"] <= most
    assert seen[-1] <= sums["finished"]
    assert sorted(path.name for path in shared.iterdir()) == ["ended.json", "folder.lock", "listener.lock"]


def test_a_full_disk_costs_a_flush_and_no_request(tmp_path):
    listener = Prometheus(port=0, folder=tmp_path)
    with Monitor(listener) as monitor:
        monitor.observe("detector")(abs)(1)
        listener._worker.path = tmp_path / "missing" / "file.json"
        listener._flush()
        assert listener.n_failures == 1


def test_every_metric_is_documented():
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "monitor-reference.md").read_text()
    for metric in METRICS.values():
        assert metric.name in page
        assert metric.help in page
