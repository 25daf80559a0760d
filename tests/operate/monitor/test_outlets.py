"""Logs and streams: batched, bounded, counted to the last record, and never in the way."""

import json
import signal
import subprocess
import sys
import threading
import time
from enum import IntEnum
from pathlib import Path

import msgspec
import pytest
from tests.waiting import wait_for

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor import JsonLog, Monitor, RedisStream
from torchtriage.operate.monitor.batch_sink import BatchSink

pytest.importorskip("redis")


class Kept(BatchSink):
    wait_s = 0.01

    def __init__(self, **settings):
        self.records = []
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(**settings)

    def send(self, records):
        self.gate.wait(5)
        if self.fails:
            raise ConnectionError("refused")
        self.records += records


def observe(monitor, n, error=""):
    model = monitor.observe("detector", version="1")
    for at in range(n):
        with model.request(size=at) as request:
            request.error = error
    monitor.drain()


def balanced(accounts):
    assert accounts.produced == accounts.sent + accounts.dropped + accounts.pending
    return accounts


def test_records_arrive_in_order_and_the_accounts_balance():
    outlet = Kept()
    with Monitor(outlet) as monitor:
        observe(monitor, 1200)
        while balanced(outlet.accounts()).sent < 1200:
            time.sleep(0.001)
    assert [record.size for record in outlet.records] == list(range(1200))
    assert abs(outlet.records[0].at_s - time.time()) < 5
    assert outlet.accounts().pending == 0


def test_while_nothing_can_be_sent_the_oldest_go_and_are_counted():
    outlet = Kept(max_pending=100)
    outlet.fails = True
    with Monitor(outlet) as monitor:
        observe(monitor, 250)
        wait_for(lambda: outlet.last_error)
        accounts = balanced(outlet.accounts())
        assert (accounts.produced, accounts.dropped, accounts.pending) == (250, 150, 100)
        outlet.fails = False
        wait_for(lambda: outlet.accounts().sent == 100)
    assert [record.size for record in outlet.records] == list(range(150, 250))
    assert outlet.last_error == ""


def test_a_batch_on_its_way_counts_as_pending():
    outlet = Kept(max_pending=50)
    outlet.gate.clear()
    with Monitor(outlet) as monitor:
        observe(monitor, 30)
        wait_for(lambda: outlet._n_sending)
        observe(monitor, 40)
        accounts = balanced(outlet.accounts())
        assert (accounts.pending, accounts.dropped) == (50, 20)
        outlet.gate.set()
        wait_for(lambda: outlet.accounts().pending == 0)
    assert balanced(outlet.accounts()).sent == 50


@pytest.mark.timing
def test_a_hanging_outlet_does_not_hold_the_end_up():
    outlet = Kept()
    outlet.gate.clear()
    monitor = Monitor(outlet)
    observe(monitor, 10)
    before = time.monotonic()
    monitor.close()
    assert time.monotonic() - before < 0.2
    assert balanced(outlet.accounts()).pending == 10
    outlet.gate.set()


@pytest.mark.timing
def test_the_interpreter_ends_at_once_while_an_outlet_hangs():
    code = """
import time
from torchtriage.operate.monitor import Monitor
from torchtriage.operate.monitor.batch_sink import BatchSink
class Hangs(BatchSink):
    def send(self, records):
        time.sleep(60)
monitor = Monitor(Hangs(), Hangs())
call = monitor.observe("detector")(abs)
for _ in range(1000):
    call(1)
time.sleep(0.3)
print(time.time(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert time.time() - float(done.stdout) < 1.0  # 0.15 s for closing, the rest is Python's end


# -- the log -------------------------------------------------------------------------------


def test_a_log_has_one_line_of_json_per_request(tmp_path):
    path = tmp_path / "requests.jsonl"
    log = JsonLog(path)
    with Monitor(log) as monitor:
        observe(monitor, 3)
        observe(monitor, 1, error="x" * 1_000_000 + "\ud800\n")
        wait_for(lambda: log.accounts().pending == 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 4
    assert lines[0]["event"] == "request"
    assert (lines[0]["level"], lines[3]["level"]) == ("info", "warning")
    assert (lines[2]["model"], lines[2]["version"], lines[2]["size"]) == ("detector", "1", 2)
    assert lines[2]["duration_ns"] > 0
    assert len(lines[3]["error"]) == 2000


def test_a_log_keeps_a_share_of_the_requests_and_all_failures(tmp_path):
    log = JsonLog(tmp_path / "requests.jsonl", sample=0.1)
    with Monitor(log) as monitor:
        observe(monitor, 2000)
        observe(monitor, 20, error="rejected")
        wait_for(lambda: log.accounts().pending == 0)
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert sum("error" in line for line in lines) == 20
    assert 120 < len(lines) - 20 < 280
    accounts = balanced(log.accounts())
    assert accounts.produced == len(lines)


def test_a_log_rotates(tmp_path):
    log = JsonLog(tmp_path / "log", max_bytes=20_000, n_files=2)
    with Monitor(log) as monitor:
        for _ in range(6):
            observe(monitor, 100)
            wait_for(lambda: log.accounts().pending == 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 20_000 for path in tmp_path.iterdir())


def test_a_log_that_cannot_be_written_waits_and_says_why(tmp_path):
    log = JsonLog(tmp_path / "missing" / "log")
    with Monitor(log) as monitor:
        observe(monitor, 5)
        wait_for(lambda: log.last_error)
        assert "FileNotFoundError" in log.last_error
        (tmp_path / "missing").mkdir()
        wait_for(lambda: log.accounts().sent == 5)


def test_a_full_disk_costs_records_and_no_request():
    log = JsonLog("/dev/full", max_bytes=0)
    with Monitor(log) as monitor:
        observe(monitor, 5)
        wait_for(lambda: log.last_error)
        assert balanced(log.accounts()).pending == 5


# -- Redis ---------------------------------------------------------------------------------


@pytest.mark.redis
def test_a_stream_holds_batches(server):
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        observe(monitor, 1200)
        wait_for(lambda: outlet.accounts().sent == 1200)
    assert [record["size"] for record in server.records()] == list(range(1200))
    assert server.client.xlen("torchtriage:requests") <= 10


@pytest.mark.redis
def test_a_stream_is_trimmed(server):
    outlet = RedisStream(server.url, max_entries=10)
    outlet.batch = 1
    with Monitor(outlet) as monitor:
        observe(monitor, 1000)
        wait_for(lambda: outlet.accounts().sent == 1000)
    assert server.client.xlen("torchtriage:requests") < 250


@pytest.mark.redis
def test_records_wait_while_redis_is_away_and_none_is_lost(server):
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        observe(monitor, 10)
        wait_for(lambda: outlet.accounts().sent == 10)
        server.signal(signal.SIGKILL)
        observe(monitor, 10)
        wait_for(lambda: "Connection" in outlet.last_error)
        assert balanced(outlet.accounts()).pending == 10
        server.start()
        wait_for(lambda: outlet.accounts().sent == 20)
    assert len(server.records()) == 10  # the first ten died with the first server


@pytest.mark.redis
def test_a_redis_that_hangs_holds_no_request_up(server):
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        observe(monitor, 1)
        wait_for(lambda: outlet.accounts().sent == 1)
        server.signal(signal.SIGSTOP)
        call = monitor.observe("detector", version="1")(abs)
        took_s = []
        for _ in range(200):
            before = time.perf_counter()
            call(1)
            took_s.append(time.perf_counter() - before)
            time.sleep(0.005)
        # all would wait for Redis; a machine that stops for a moment does so once or twice
        assert sorted(took_s)[-5] < 0.02
        balanced(outlet.accounts())
        server.signal(signal.SIGCONT)
        wait_for(lambda: outlet.accounts().sent == 201)
    assert len(server.records()) >= 201  # a batch whose answer was lost may come twice


@pytest.mark.redis
def test_a_redis_without_memory_or_with_a_password_says_so(server):
    server.client.config_set("maxmemory", "1")
    server.client.config_set("maxmemory-policy", "noeviction")
    outlet = RedisStream(server.url)
    with Monitor(outlet) as monitor:
        observe(monitor, 5)
        wait_for(lambda: "OOM" in outlet.last_error or "maxmemory" in outlet.last_error)
        server.client.config_set("maxmemory", "0")
        wait_for(lambda: outlet.accounts().sent == 5)
        server.client.config_set("requirepass", "secret")
    other = RedisStream(server.url)
    with Monitor(other) as monitor:
        observe(monitor, 5)
        wait_for(lambda: "uthenti" in other.last_error)
        assert balanced(other.accounts()).pending == 5


def test_not_a_url_is_told_at_once():
    with pytest.raises(UsageError, match="not a Redis URL"):
        RedisStream("localhost:6379")


def test_ids_and_fields_of_a_request_are_in_the_log_and_the_rest_is_cut(tmp_path):
    class Odd:
        def __str__(self):
            return "odd"

    path = tmp_path / "log"
    log = JsonLog(path, device="cam-7")
    with Monitor(log) as monitor:
        model = monitor.observe("detector")
        with model.request() as request:
            request.fields = {"request_id": "r-1", "trace_id": "a" * 999, "n": 3, "x": Odd()}
        with model.request() as request:
            request.fields = {str(at): at for at in range(99)}
        with model.request() as request:
            request.fields = "no fields"
        monitor.drain()
        wait_for(lambda: log.accounts().sent == 3)
    first, second, third = (json.loads(line) for line in path.read_text().splitlines())
    assert first["fields"] == {"request_id": "r-1", "trace_id": "a" * 200, "n": 3, "x": "odd"}
    assert (first["device"], len(second["fields"]), third.get("fields")) == ("cam-7", 16, None)


class Score(float):  # as numpy's is
    pass


def test_an_odd_value_of_one_request_stops_no_other(tmp_path):
    path = tmp_path / "log"
    log, stream = JsonLog(path, device=Path("cam\udcff")), Kept()
    stream.send = lambda records: stream.records.extend(json.loads(msgspec.json.encode(records)))
    odd = {"score": Score(0.5), "file": "\udcff.jpg", "\udcff": 1, "nan": float("nan"), "level": IntEnum("L", "A").A}
    with Monitor(log, stream) as monitor:
        model = monitor.observe("detector\udcff", version="\udcff")
        with model.request() as request:
            request.fields = {**odd, "long": 2**70}
        with model.request() as request:
            request.error = "\udcff"
        monitor.drain()
        wait_for(lambda: (log.accounts().sent, stream.accounts().sent) == (2, 2))
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for first, second in (lines, stream.records):
        assert (first["model"], first["version"], second["error"]) == ("detector?", "?", "?")
        assert first["fields"] == {
            **{"score": 0.5, "file": "?.jpg", "?": 1, "nan": None, "level": 1, "long": str(2**70)}
        }
    assert lines[0]["device"] == "cam?"


@pytest.mark.redis
def test_what_a_stream_gets_says_whose_it_is_and_is_numbered(server):
    outlet = RedisStream(server.url, device=Path("cam-7"), wait_s=0.01)
    with Monitor(outlet) as monitor:
        for n in (3, 4):
            observe(monitor, n)
            wait_for(lambda: outlet.accounts().pending == 0)
    entries = [fields for _, fields in server.client.xrange("torchtriage:requests")]
    assert {fields["device"] for fields in entries} == {"cam-7"}
    assert len({fields["source"] for fields in entries}) == 1
    numbers = [int(fields["first"]) for fields in entries]
    assert numbers == [0, *numbers[1:]]
    assert numbers[-1] + len(json.loads(entries[-1]["requests"])) == 7


def test_records_that_were_dropped_leave_a_gap_in_the_numbers():
    class Numbered(Kept):
        def send(self, records):
            super().send(records)
            self.numbers += range(self.first, self.first + len(records))

    outlet = Numbered(max_pending=100)
    outlet.numbers, outlet.fails = [], True
    with Monitor(outlet) as monitor:
        observe(monitor, 250)
        wait_for(lambda: outlet.last_error)
        outlet.fails = False
        wait_for(lambda: outlet.accounts().sent == 100)
    assert outlet.numbers == [record.size for record in outlet.records]
