"""The consumer of a fleet's stream: nothing lost, nothing counted twice, whatever is killed and when."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import msgspec
import pytest
from tests.waiting import wait_for

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.operate.fleet.consumer import FleetConsumer
from torchtriage.operate.fleet.peer_detector import GONE_S, KINDS, PeerAlarm
from torchtriage.operate.fleet.stream_reader import StreamEntry, StreamReader
from torchtriage.operate.live import LivePage
from torchtriage.operate.monitor import JsonLog, Monitor, RedisStream
from torchtriage.operate.monitor.batch_sink import RequestRecord

pytest.importorskip("redis")
pytestmark = pytest.mark.redis
STREAM = "torchtriage:requests"


class Device:
    """What a device sends, without its threads."""

    def __init__(self, server, name, **settings):
        self.outlet = RedisStream(server.url, device=name, **settings)
        self.n = 0

    def send(self, n=10, took_ns=5_000_000, again=False, **fields):
        records = [RequestRecord("detector", "1", time.time(), took_ns, 8, **fields) for _ in range(n)]
        self.outlet.first = self.n - n if again else self.n
        self.outlet.send(records)
        self.n += 0 if again else n

    def drop(self, n):
        self.n += n


@pytest.fixture
def devices(server):
    made = []

    def make(name, **settings):
        made.append(Device(server, name, **settings))
        return made[-1]

    yield make
    for device in made:
        device.outlet.release()


@pytest.fixture
def consumers(server):
    opened = []

    def make(monitor=None, *, name="consumer", **more):
        monitor = monitor or Monitor()
        reader = StreamReader(server.url, stream=STREAM, group="fleet", name=name)
        consumer = FleetConsumer(reader, monitor, **more)
        opened.append((consumer, monitor))
        consumer.open()
        return consumer

    yield make
    for consumer, monitor in opened:
        consumer.close()
        monitor.close()


def drained(consumer, n):
    """Step until so many records were taken, and no further."""
    end_s = time.monotonic() + 30
    while consumer.counts.records < n and time.monotonic() < end_s:
        consumer.step()
    consumer.step()
    return consumer.counts


def test_what_was_not_committed_comes_again_and_counts_once(devices, consumers):
    device = devices("cam-1")
    device.send(10)
    first = consumers()
    assert drained(first, 10).records == 10
    first.commit()
    device.send(5, error="ValueError")
    drained(first, 15)  # and it dies before it commits
    second = consumers()
    counts = drained(second, 15)
    assert (counts.records, counts.again, counts.lost) == (15, 0, 0)
    cell = counts.devices["cam-1"]["detector\n1"]
    assert (cell.requests, cell.failed) == (15, 5)
    assert cell.seconds == pytest.approx(10 * 5e-3)
    (model,) = second._monitor.snapshot()
    assert (model.finished, model.errors, model.in_flight) == (15, {"ValueError": 5}, 0)


def test_a_batch_that_came_twice_counts_once_and_what_never_came_is_told(devices, consumers):
    device = devices("cam-1")
    device.send(10)
    device.send(10, again=True)
    device.drop(7)
    device.send(3)
    counts = drained(consumers(), 13)
    assert (counts.records, counts.again, counts.lost) == (13, 10, 7)


def test_what_the_stream_trimmed_before_it_was_read_is_told(devices, consumers, server):
    device = devices("cam-1")
    for _ in range(20):
        device.send(10)
    server.client.xtrim(STREAM, maxlen=5, approximate=False)
    consumer = consumers()
    counts = drained(consumer, 50)
    assert (counts.records, counts.lost) == (50, 0)  # of a source that begins, nothing is known before
    for _ in range(20):
        device.send(10)
    server.client.xtrim(STREAM, maxlen=5, approximate=False)
    counts = drained(consumer, 100)
    assert (counts.records, counts.lost) == (100, 150)


def test_of_two_of_one_name_the_newer_goes_on(devices, consumers):
    device = devices("cam-1")
    old, new = consumers(), consumers()
    device.send(10)
    drained(old, 10)
    with pytest.raises(StoreError, match="taken over"):
        old.commit()
    assert drained(new, 10).records == 10
    new.commit()


def test_two_names_share_the_work_and_one_takes_over_what_the_other_left(devices, consumers, monkeypatch):
    device = devices("cam-1")
    device.send(10)
    gone, other = consumers(name="a"), consumers(name="b")
    drained(gone, 10)  # and never commits
    monkeypatch.setattr("torchtriage.operate.fleet.stream_reader.CLAIM_S", 0.05)
    time.sleep(0.1)
    assert drained(other, 10).records == 10


def test_a_redis_that_lost_everything_is_no_end(devices, consumers, server):
    consumer = consumers()
    thread = threading.Thread(target=consumer.run)
    thread.start()
    device = devices("cam-1")
    device.send(10)
    wait_for(lambda: consumer.counts.records == 10)
    server.signal(signal.SIGKILL)
    wait_for(lambda: consumer.n_failures)
    server.start()
    device.send(10)
    wait_for(lambda: consumer.counts.records == 20)
    consumer.stop()
    thread.join()
    assert consumer.counts.lost == 0


def test_what_is_no_record_is_counted_and_passed_over(server, consumers, devices):
    consumer = consumers()
    server.client.xadd(STREAM, {"requests": "no JSON"})
    server.client.xadd(STREAM, {"other": "1"})
    server.client.xadd(STREAM, {"requests": '[{"model": 3}]'})
    server.client.xadd(STREAM, {"requests": '[{"model":"m","version":"","at_s":1,"duration_ns":5,"new":[]}]'})
    assert drained(consumer, 1).records == 1
    assert consumer.counts.unread == 3


def test_a_record_that_cannot_be_read_costs_no_other(server, consumers, caplog):
    good = {"model": "m", "version": "1", "at_s": 1.0, "duration_ns": 5}
    batch = [good, {**good, "duration_ns": "long"}, good, 7, good]
    consumer = consumers()
    entry = {"device": "d", "source": "s", "first": "0", "requests": json.dumps(batch)}
    server.client.xadd(STREAM, entry)
    counts = drained(consumer, 3)
    assert (counts.records, counts.unread, counts.lost) == (3, 2, 0)
    assert "2 records that cannot be read" in caplog.text
    server.client.xadd(STREAM, entry)  # it came twice
    server.client.xadd(STREAM, {**entry, "first": "5"})
    counts = drained(consumer, 6)
    assert (counts.records, counts.unread, counts.again, counts.lost) == (6, 4, 5, 0)


def _entry(common="{}", first="0", **fields):
    record = {"model": "m", "version": "1", "at_s": 1.0, "duration_ns": 5, **fields}
    return {"device": "d", "source": "s", "first": first, "requests": json.dumps([record]), "common": common}


MALFORMED = {
    "duration": _entry(duration_ns=10**400),
    "queued": _entry(queued_ns=10**400),
    "late": _entry(at_s=1e308),
    "early": _entry(at_s=-1e300),
    "size": _entry(size=10**400),
    "list": _entry(common="[1]"),
    "infinite": _entry(common='{"recompiles": 1e400}'),
    "first": _entry(first=str(10**30)),
    "before": _entry(first="-5"),
    "deep": {"requests": "[" * 100_000},
    "digits": _entry(common='{"x": ' + "9" * 5_000 + "}"),
}


@pytest.mark.parametrize("entry", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_entry_is_counted_and_ends_nothing(entry, server, consumers, devices, tmp_path):
    consumer = consumers(log=JsonLog(tmp_path / "fleet.jsonl"))
    server.client.xadd(STREAM, entry)
    devices("cam-1").send(3)
    counts = drained(consumer, 3)
    assert (counts.lost, counts.unread) == (0, 1)
    consumer.commit()
    assert server.client.xpending(STREAM, "fleet")["pending"] == 0
    assert ("fleet_records_total", {"outcome": "unreadable"}, 1) in consumer.metrics()


@pytest.mark.parametrize("state", ["no JSON", '{"models": [{"model": "m"}]}', '{"records": "many"}'])
def test_a_damaged_state_is_told_with_its_key(state, server, consumers):
    key = f"{STREAM}:fleet:consumer:state"
    server.client.set(key, state)
    with pytest.raises(UsageError, match="damaged") as caught:
        consumers()
    assert key in caught.value.hint


def test_the_log_is_written_before_entries_are_acknowledged(devices, consumers, tmp_path, server):
    device = devices("cam-1")
    log = tmp_path / "fleet.jsonl"
    consumer = consumers(log=JsonLog(log))
    device.send(3)
    drained(consumer, 3)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["device"] for line in lines] == ["cam-1"] * 3
    assert server.client.xpending(STREAM, "fleet")["pending"] == 1
    consumer.commit()
    assert server.client.xpending(STREAM, "fleet")["pending"] == 0


def test_an_alert_that_was_not_told_is_told_after_a_crash(devices, consumers):
    gate, told = threading.Event(), []
    hangs = consumers(channels=[lambda alert: gate.wait(30)])
    hangs._raise([PeerAlarm("slow-device", "cam-7", "detector", "1", 5.0, "cam-7: slow", 1.5, 2.0)])
    hangs.commit()
    again = consumers(channels=[told.append])
    wait_for(lambda: told)
    gate.set()
    assert (told[0].facts["device"], told[0].cause, told[0].finding().code) == ("cam-7", "one device", "LIV010")
    wait_for(lambda: not again._outbox.pending())


class NoReader:
    def commit(self, state):
        pass


def entry(device, at_s, version="1"):
    records = [RequestRecord("detector", version, at_s, 5_000_000)]
    return StreamEntry("1-0", at_s, {b"device": device.encode(), b"requests": msgspec.json.encode(records)})


def test_devices_that_are_gone_are_forgotten_and_what_is_stored_is_bounded(monkeypatch):
    monkeypatch.setattr("torchtriage.operate.fleet.consumer.MAX_DEVICES", 100)
    monkeypatch.setattr("torchtriage.operate.fleet.consumer.MAX_VERSIONS", 3)
    consumer = FleetConsumer(NoReader(), Monitor())
    for at in range(300):  # a name per start, 50 a day
        consumer._take(entry(f"pod-{at}", 1e9 + at * GONE_S / 50))
        consumer.commit()
    assert 45 < len(consumer.counts.devices) < 55
    for at in range(300):  # all at once
        consumer._take(entry(f"job-{at}", 1e9 + 6 * GONE_S, version=str(at)))
    consumer.commit()
    assert 100 <= len(consumer.counts.devices) <= 101
    counted = [(labels, n) for name, labels, n in consumer.metrics() if name == "fleet_requests_total"]
    others = [(labels["model"], n) for labels, n in counted if labels["device"] == "other"]
    assert [model for model, _ in others] == ["detector"] * 3 + ["other"]
    assert sum(n for _, n in others) >= 250
    consumer._monitor.close()


def test_the_lag_is_exported(devices, consumers):
    device = devices("cam-1")
    consumer = consumers()
    for _ in range(4):
        device.send(2)
        time.sleep(0.02)
    lag = consumer._reader.lag()
    assert (lag.entries, lag.pending) == (4, 0)
    assert lag.seconds > 0
    drained(consumer, 8)
    assert consumer._reader.lag() == (0, 4, 0.0)
    consumer._lag = consumer._reader.lag()
    alarms = {labels["kind"]: value for name, labels, value in consumer.metrics() if name == "fleet_alarms_total"}
    assert alarms == dict.fromkeys(KINDS, 0)  # what is there from the first alarm on does not rise at it
    values = {name: value for name, labels, value in consumer.metrics() if not labels}
    assert values.pop("monitor_failures_total") == 0
    assert values == {"fleet_lag_entries": 0, "fleet_pending_entries": 4, "fleet_lag_seconds": 0.0}


def test_while_redis_is_away_the_lag_grows_and_failures_are_told(devices, consumers, server, monkeypatch):
    consumer = consumers()
    runs = threading.Thread(target=consumer.run)
    runs.start()
    devices("cam-1").send(10)
    wait_for(lambda: consumer.counts.records)
    monkeypatch.setattr("torchtriage.operate.fleet.consumer.STALE_S", 0.05)

    def values():
        return {name: value for name, labels, value in consumer.metrics() if not labels}

    server.signal(signal.SIGKILL)
    wait_for(lambda: values().get("monitor_failures_total"))
    first = values()["fleet_lag_seconds"]
    time.sleep(0.2)
    assert values()["fleet_lag_seconds"] >= first + 0.2
    assert "fleet_lag_entries" not in values()
    server.start()
    consumer.stop()
    runs.join(60)
    assert not runs.is_alive()


def test_the_live_page_shows_all_devices_together(devices, consumers):
    page = LivePage(port=0)
    watch = Monitor(page)
    consumer = consumers(watch, channels=[page.show])
    for at in range(3):
        devices(f"cam-{at}").send(10)
    drained(consumer, 30)
    consumer._raise([PeerAlarm("slow-device", "cam-1", "detector", "1", 5.0, "cam-1: slow", 1.5, 2.0)])
    wait_for(lambda: any("cam-1: slow" in str(event) for event in page._events))
    wait_for(lambda: sum(point["n"] for model in page._history.models() for point in model["points"]) == 30)


def test_no_url_is_told_at_once():
    with pytest.raises(UsageError, match="not a Redis URL"):
        StreamReader("localhost", stream="s", group="g", name="n")


def test_killed_again_and_again_the_command_loses_nothing(server, devices, tmp_path):
    """A real process, killed at any moment; what it counted is what was sent."""
    some = [devices(f"cam-{at}") for at in range(5)]
    stop = threading.Event()

    def send():
        while not stop.wait(0.01):
            for device in some:
                device.send(7)

    sender = threading.Thread(target=send)
    sender.start()
    command = [sys.executable, "-m", "torchtriage", "monitor", "consume", "--redis", server.url, "--port", "0"]
    seen = random.Random(5)
    try:
        for _ in range(3):
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                process.stderr.readline()  # it listens
                time.sleep(1 + seen.random())
                process.kill()
    finally:
        stop.set()
        sender.join()
    sent = sum(device.n for device in some)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        url = process.stderr.readline().split()[-1]
        line = f'torchtriage_fleet_records_total{{outcome="taken"}} {sent}\n'
        wait_for(lambda: line in urllib.request.urlopen(url, timeout=10).read().decode())
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        again = subprocess.run([*command, "--redis", "redis://127.0.0.1:1"], capture_output=True, text=True)
        assert (again.returncode, "Redis: " in again.stderr) == (2, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert 'torchtriage_fleet_records_total{outcome="lost"} 0\n' in text
    assert f'torchtriage_inference_duration_seconds_count{{model="detector",version="1"}} {sent}\n' in text
    for device in some:
        line = f'fleet_requests_total{{device="{device.outlet._device}",model="detector",version="1"}} {device.n}\n'
        assert line in text


def test_an_alarm_that_is_on_stays_on_over_a_crash_and_ends_at_alertmanager(devices, consumers):
    from tests.operate.monitor.fake_alertmanager import FakeAlertmanager

    from torchtriage.operate.monitor import Alertmanager

    fake = FakeAlertmanager(resolve_timeout_s=0.5)
    now_s = time.time()
    slow = PeerAlarm("slow-device", "cam-7", "detector", "1", now_s, "cam-7: slow", 1.5, 2.0, now_s)
    first = consumers(channels=[Alertmanager(fake.url, refresh_s=0.2)])
    first._raise([slow])
    wait_for(fake.active)
    first.commit()
    first._outbox.close(0.0, kept=True)  # killed
    wait_for(lambda: not fake.active())  # the receiver takes it as over: it was not told again
    again = consumers(channels=[Alertmanager(fake.url, refresh_s=0.2)])
    wait_for(fake.active)
    again._raise([slow._replace(ratio=3.0, message="cam-7: slower", at_s=time.time())])
    wait_for(lambda: "slower" in fake.active()[0].annotations["summary"])
    assert len(fake.held) == 1
    assert again.counts.alarms == {"slow-device": 1}
    again._raise([slow._replace(ended=True, message="cam-7: slow-device over after 9 s", at_s=time.time())])
    wait_for(lambda: not fake.active())
    assert again.counts.on == {}
    fake.close()


def test_what_waits_at_the_end_is_told_after_the_next_start(devices, consumers):
    from torchtriage.operate.monitor import Slack

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    consumer = consumers(channels=[Slack(url)])
    consumer._raise([PeerAlarm("slow-device", "cam-7", "detector", "1", 5.0, "cam-7: slow", 1.5, 2.0)])
    consumer.stop()
    consumer.run()
    told = []
    consumers(channels=[told.append])
    wait_for(lambda: told)
