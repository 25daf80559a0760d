"""Alerts reach their receivers: at least once, again while they are on, and their end, whatever a receiver does."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from statistics import median

import pytest
from tests.operate.monitor.fake_alertmanager import FakeAlertmanager, seconds
from tests.ports import free_port
from tests.waiting import wait_for

from torchtriage.operate.monitor import delivery
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.alerts import Alertmanager, Detection, Slack, Webhook
from torchtriage.operate.monitor.delivery import Delivery


def raised(kind="shift", *, model="detector", ago_s=0.0, **more):
    at_s = time.time() - ago_s
    return Alert(model, "2.1", kind, "requests are 50 % slower", "", 2.0, at_s, since_s=at_s, **more)


def over(alert):
    return dataclasses.replace(alert, message="shift over after 90 requests", at_s=time.time(), ended=True)


@pytest.fixture
def manager():
    fake = FakeAlertmanager(resolve_timeout_s=0.5)
    yield fake
    fake.close()


@pytest.fixture
def deliver(monkeypatch):
    monkeypatch.setattr(delivery, "BACKOFF_S", (0.02, 0.05, 0.1))
    begun = []

    def begin(channel):
        one = Delivery(channel)
        one.start()
        begun.append(one)
        return one

    yield begin
    for one in begun:
        one.close(time.monotonic() + 5)


def test_an_alert_that_is_on_stays_on_at_alertmanager_and_ends_when_it_is_over(manager, deliver):
    one = deliver(Alertmanager(manager.url, refresh_s=0.1))
    alert = raised()
    one.put(alert)
    wait_for(lambda: len(manager.posts) >= 10)  # twice its resolve_timeout
    # each says that it is on until well after the next; one that is late on a busy machine proves nothing
    assert median(seconds(posted["endsAt"]) - at_s for at_s, posted in manager.posts) > 0.15
    wait_for(manager.active)
    one.put(over(alert))
    wait_for(lambda: not manager.active())
    n = len(manager.posts)
    time.sleep(0.3)
    assert len(manager.posts) == n
    assert len(manager.held) == 1
    ends = [posted["endsAt"] for _, posted in manager.posts]
    assert ends[:-1] == sorted(set(ends[:-1]))
    assert len({posted["startsAt"] for _, posted in manager.posts}) == 1


@pytest.mark.parametrize("how", ["hangs up", "503", "429", "no server", "restarted without memory"])
def test_what_a_receiver_misses_while_it_is_away_comes_later(how, deliver, caplog):
    port = free_port()
    fake = None if how == "no server" else FakeAlertmanager(port)
    one = deliver(Alertmanager(f"http://127.0.0.1:{port}", refresh_s=0.2))
    if how == "restarted without memory":
        one.put(raised())
        wait_for(fake.active)
        fake.held.clear()
    else:
        if fake is not None:
            fake.down, fake.status = how == "hangs up", 0 if how == "hangs up" else int(how)
        one.put(raised())
        wait_for(lambda: one.failures >= 3)
        assert (one.sent, len(one.pending())) == (0, 1)
        assert sum("cannot be sent" in record.message for record in caplog.records) == 1  # told, not flooded
        if fake is None:
            fake = FakeAlertmanager(port)
        fake.down, fake.status = False, 0
    wait_for(fake.active)
    wait_for(lambda: not one.pending())
    fake.close()


def test_an_end_that_did_not_arrive_is_sent_again(manager, deliver):
    one = deliver(Alertmanager(manager.url, refresh_s=5.0))
    alert = raised()
    one.put(alert)
    wait_for(manager.active)
    manager.status = 500
    one.put(over(alert))
    wait_for(lambda: one.failures >= 2)
    assert manager.active()
    manager.status = 0
    wait_for(lambda: not manager.active(), 2)


def test_an_alert_that_ended_while_the_receiver_was_away_is_told_in_order():
    got = []

    class Receiver(Webhook):
        away = True

        def __call__(self, alert):
            if self.away:
                raise OSError
            got.append((alert.kind, alert.ended))

    receiver = Receiver("http://127.0.0.1")
    one = Delivery(receiver)
    alert = raised()
    for each in (alert, dataclasses.replace(alert, size=3.0), over(alert), raised("tail")):
        one.put(each)
    one.start()
    wait_for(lambda: one.failures)
    receiver.away = False
    one.close(time.monotonic() + 5)
    assert got == [("shift", False), ("shift", True), ("tail", False)] or got == [
        ("tail", False),
        ("shift", False),
        ("shift", True),
    ]


def test_a_try_that_closing_finds_under_way_is_not_the_last():
    got, begun, fail = [], threading.Event(), threading.Event()

    class Receiver(Webhook):
        def __call__(self, alert):
            if not begun.is_set():
                begun.set()
                fail.wait(10)
                raise OSError
            got.append(alert.kind)

    one = Delivery(Receiver("http://127.0.0.1"))
    one.put(raised())
    one.start()
    assert begun.wait(10)
    closing = threading.Thread(target=one.close, args=(time.monotonic() + 5,))
    closing.start()
    wait_for(lambda: one._stop)
    fail.set()
    closing.join()
    assert got == ["shift"]


def test_what_is_refused_is_dropped_counted_and_logged(manager, deliver, caplog):
    manager.status = 400
    one = deliver(Alertmanager(manager.url, refresh_s=60))
    one.put(raised())
    wait_for(lambda: one.dropped)
    assert one.pending() == []
    assert "told to" in caplog.text


def test_one_that_is_never_taken_is_in_no_others_way(deliver):
    got = []

    class Picky(Webhook):
        def __call__(self, alert):
            if alert.kind == "shift":
                raise OSError
            got.append(alert.kind)

    one = deliver(Picky("http://127.0.0.1"))
    one.put(raised())
    one.put(raised("tail"))
    wait_for(lambda: got)


def test_a_queue_is_bounded_and_what_falls_out_is_counted_and_logged(monkeypatch, caplog):
    monkeypatch.setattr(delivery, "MAX_PENDING", 5)
    one = Delivery(Slack("http://127.0.0.1:1"))
    for at in range(8):
        one.put(raised(model=f"m{at}"))
    assert [alert.model for alert in one.pending()] == ["m3", "m4", "m5", "m6", "m7"]
    assert one.dropped == 3
    assert sum("dropped" in record.message for record in caplog.records) == 1


def test_a_fault_that_grows_is_one_alert_and_few_posts(manager, deliver):
    one = deliver(Alertmanager(manager.url, refresh_s=60))
    alert = raised()
    for at in range(200):
        one.put(dataclasses.replace(alert, size=1.1**at, message=f"growing {at}", cause=("GC", "unknown")[at % 2]))
        time.sleep(0.002)
    wait_for(lambda: len(manager.posts) == delivery.MAX_POSTS)
    time.sleep(0.1)
    assert len(manager.posts) == delivery.MAX_POSTS
    assert len(manager.held) == 1
    (last,) = one.pending()  # the newest state waits for its turn
    assert last.message == "growing 199"
    one.put(over(alert))
    assert [each.ended for each in one.pending()] == [True]


def test_only_the_last_state_counts_where_an_alert_is_a_state(manager):
    one = Delivery(Alertmanager(manager.url, refresh_s=60))
    alert = raised()
    for each in (alert, over(alert), dataclasses.replace(alert, capture="x.json", captured=("copies",))):
        one.put(each)
    one.start()
    one.close(time.monotonic() + 5)
    assert not manager.active()  # a recording that comes after the end raises nothing again


def test_a_clock_that_jumped_makes_no_alert_that_alertmanager_refuses(manager, deliver):
    one = deliver(Alertmanager(manager.url, refresh_s=60))
    alert = raised(ago_s=-3600)
    one.put(alert)
    wait_for(lambda: one.sent == 1)
    one.put(dataclasses.replace(over(alert), at_s=alert.at_s + 60))
    wait_for(lambda: one.sent == 2)
    assert not manager.active()


def test_who_is_told_late_is_told_how_late():
    assert Slack("http://127.0.0.1").body(raised(ago_s=600))["text"].endswith("(10 min ago)")
    assert not Slack("http://127.0.0.1").body(raised(ago_s=5))["text"].endswith("ago)")


class Model:
    name, version = "detector", "2.1"


def rows(duration_ns, n, start_ns=None):
    start_ns = time.perf_counter_ns() if start_ns is None else start_ns
    return [(start_ns + at * 10**6, start_ns + at * 10**6 + duration_ns + at % 37 * 997, None, None) for at in range(n)]


@pytest.mark.parametrize("away", ["refuses", "hangs"])
@pytest.mark.timing
def test_a_receiver_that_is_away_delays_nobody(away):
    with socket.socket() as hangs:
        hangs.bind(("127.0.0.1", 0))
        if away == "hangs":
            hangs.listen(100)
        detection = Detection(Alertmanager(f"http://127.0.0.1:{hangs.getsockname()[1]}"))
        detection.start(None)
        detection.offer(Model, rows(2_000_000, 1500))
        before_s = time.thread_time()
        detection.offer(Model, rows(9_000_000, 100))
        assert time.thread_time() - before_s < 0.5
        assert detection.pending()
        before_s = time.monotonic()
        detection.close(before_s + 0.05)
        assert time.monotonic() - before_s < delivery.FLUSH_S + 0.5


def test_an_alarm_of_a_model_that_gets_no_request_any_more_ends(monkeypatch):
    monkeypatch.setattr("torchtriage.operate.monitor.alerts.IDLE_S", 0.3)
    told = []
    detection = Detection(told.append, repeat_s=0.1)
    detection.start(None)
    detection.offer(Model, rows(2_000_000, 1500))
    detection.offer(Model, rows(9_000_000, 100))
    wait_for(lambda: any(alert.ended and alert.kind == "shift" for alert in told))
    assert "no request" in next(alert.message for alert in told if alert.ended and alert.kind == "shift")
    detection.close(time.monotonic() + 5)


def test_alarms_of_metrics_and_of_the_collector_end(monkeypatch):
    told = []
    detection = Detection(told.append, repeat_s=0.05)
    detection.start(None)
    for at in range(300):
        detection.metric("queue", 10 + at % 7)
    for _ in range(3):
        detection.metric("queue", 500)
    for at in range(400):
        detection.metric("queue", 10 + at % 7)
    wait_for(lambda: any(alert.ended and alert.model == "queue" for alert in told))
    detection.close(time.monotonic() + 5)


SERVER = """
import os, signal, sys, time
from torchtriage import monitor
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
monitor.start(monitor.Detection(monitor.Alertmanager(sys.argv[1]), lambda alert: print("alert", flush=True)))
call = monitor.observe("detector")(lambda s: time.sleep(s))
for _ in range(700):
    call(0.0002)
while True:
    call(0.03)
"""


@pytest.mark.parametrize("state", ["up", "away", "hangs"])
def test_sigterm_flushes_within_its_deadline(manager, state):
    manager.down, manager.wait_s = state == "away", 60.0 if state == "hangs" else 0.0
    server = [sys.executable, "-c", SERVER, manager.url]
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "alert\n"
        if state == "up":
            wait_for(manager.posts.__len__)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)  # of a manager that hangs for 60 s
    assert process.returncode == 0
    assert ("were not sent" in err) == (state != "up")


def test_two_workers_are_two_alerts_of_which_either_may_end_first(manager):
    one, other = (
        Alertmanager(manager.url).body(dataclasses.replace(raised(), facts={"instance": instance}))
        for instance in ("host:1", "host:2")
    )
    assert one[0]["labels"] != other[0]["labels"]
    detection = Detection(told := [].append)
    assert told is not None
    assert detection.instance == f"{socket.gethostname()}:{os.getpid()}"


def test_the_numbers_of_delivery_are_exported(manager, deliver):
    one = deliver(Alertmanager(manager.url, refresh_s=60))
    one.put(raised())
    wait_for(lambda: one.sent)
    numbers = {(name, tuple(labels.values())): n for name, labels, n in one.metrics()}
    assert numbers["monitor_outlet_records_total", ("Alertmanager", "sent")] == 1
    assert numbers["monitor_outlet_records_total", ("Alertmanager", "dropped")] == 0
    assert numbers["monitor_outlet_pending", ("Alertmanager",)] == 0


def test_the_body_that_is_posted_has_the_documents_schema():
    alert = raised()
    assert {"since_s", "lasting"} <= set(json.loads(json.dumps(alert.document())))
