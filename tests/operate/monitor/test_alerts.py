"""Alarms reach people once, quickly, and whatever listens cannot hold a request up."""

import dataclasses
import http.server
import json
import threading
import time
from datetime import datetime, timezone

import pytest
from tests.waiting import wait_for

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.alerts import Alertmanager, Detection, Slack, Webhook, log

ALERT = Alert("detector", "2.1", "shift", "requests are 50 % <slower>", "", 2.0, 1_700_000_000.0)


class Model:
    name, version = "detector", "2.1"


def rows(duration_ns, n=40, start_ns=0, note=None):
    # no two equal: a value that repeats is an alarm of its own
    return [(start_ns + at * 10**7, start_ns + at * 10**7 + duration_ns + at % 37 * 997, None, note) for at in range(n)]


@pytest.fixture
def told():
    return []


def started(*channels, **settings):
    detection = Detection(*channels, **settings)
    detection.start(None)
    detection.offer(Model, rows(2_000_000, 1500))
    return detection


def test_an_alarm_is_told_once_and_the_next_tells_how_many_there_were(told):
    detection = started(told.append, repeat_s=60)
    for at_s in (0, 10, 20, 59, 61, 62, 200):
        detection._raise(dataclasses.replace(ALERT, at_s=1e9 + at_s))
    detection._raise(dataclasses.replace(ALERT, at_s=1e9 + 201, kind="tail"))
    detection.close(time.monotonic() + 5)
    assert [(one.kind, one.at_s - 1e9, one.n_before) for one in told] == [
        ("shift", 0, 0),
        ("shift", 61, 3),
        ("shift", 200, 1),
        ("tail", 201, 0),
    ]


def test_repetition_lets_a_larger_and_a_differently_caused_alarm_through(told):
    detection = started(told.append, repeat_s=60)
    for at_s, size, cause in ((0, 1.4, "GC"), (1, 1.5, "GC"), (2, 3.0, "GC"), (3, 3.5, "GC"), (4, 1.4, "input mix")):
        detection._raise(dataclasses.replace(ALERT, at_s=1e9 + at_s, size=size, cause=cause))
    detection.close(time.monotonic() + 5)
    assert [(one.at_s - 1e9, one.n_before) for one in told] == [(0, 0), (2, 1), (4, 0)]


def test_the_end_is_told_once_it_has_lasted(told):
    detection = started(told.append, repeat_s=0.5)
    detection.offer(Model, rows(9_000_000, 100, start_ns=10**11))
    detection.offer(Model, rows(2_000_000, 400, start_ns=2 * 10**11))
    detection.close(time.monotonic() + 5)
    assert [(one.kind, one.ended) for one in told if one.kind == "shift"] == [("shift", False), ("shift", True)]
    over = next(one for one in told if one.ended and one.kind == "shift")
    assert over.size == pytest.approx(4.5, rel=0.2)
    assert "over after" in over.title()
    (posted,) = Alertmanager("http://127.0.0.1").body(over)
    assert posted["startsAt"] < posted["endsAt"] < datetime.now(timezone.utc).isoformat()
    assert posted["labels"] == Alertmanager("http://127.0.0.1").body(told[0])[0]["labels"]


def test_an_alarm_that_comes_and_goes_ends_with_the_largest_size_it_had(told):
    detection = started(told.append, repeat_s=20.0)
    at_ns = time.perf_counter_ns()
    for took_ns, n in ((9_000_000, 90), (2_000_000, 300), (4_000_000, 60), (2_000_000, 300), (2_000_000, 3_000)):
        detection.offer(Model, rows(took_ns, n, start_ns=at_ns))
        at_ns += n * 10**7
    detection.close(time.monotonic() + 5)
    ends = [one for one in told if one.ended and one.kind == "shift"]
    assert len(ends) == 1
    assert ends[0].size > 4
    assert "on and off for" in ends[0].message


def test_what_lasts_is_told_as_lasting_stays_on_and_can_be_accepted(told, monkeypatch):
    monkeypatch.setattr("torchtriage.operate.detect.latency_detector.LASTING_N", 500)
    monkeypatch.setattr("torchtriage.operate.detect.latency_detector.LASTING_S", 4.0)
    monkeypatch.setattr("torchtriage.operate.monitor.alerts.ALARM_S", 0.5)
    detection = started(told.append, repeat_s=0.5)
    detection.offer(Model, rows(9_000_000, 800, start_ns=10**11))
    wait_for(lambda: any(one.lasting for one in told))
    (lasting,) = [one for one in told if one.lasting]
    assert (lasting.kind, lasting.ended) == ("shift", False)
    assert "lasting" in lasting.title()
    assert Alertmanager("http://127.0.0.1").body(lasting)[0]["endsAt"] > datetime.now(timezone.utc).isoformat()
    time.sleep(1.2)
    assert not [one for one in told if one.ended and one.kind == "shift"]
    detection.offer(Model, rows(9_000_000, 5, start_ns=108 * 10**9))
    assert detection.alarm("detector").startswith("shift")
    detection.accept("detector")
    wait_for(lambda: any(one.ended and one.kind == "shift" for one in told))
    assert "accepted" in told[-1].message
    n = len(told)
    detection.offer(Model, rows(9_000_000, 800, start_ns=2 * 10**11))
    detection.close(time.monotonic() + 5)
    assert told[n:] == []


def test_an_end_that_is_told_while_another_is_noted_leaves_none_over(told):
    class Slow(dict):
        def values(self):
            found = list(super().values())
            if telling.ident is None:
                telling.start()
                telling.join(0.2)
            return found

    detection = started(told.append, repeat_s=0.0)
    telling = threading.Thread(target=lambda: detection._tell_ends(1e12))
    detection.metric("queue", 1.0)
    detection._raise(dataclasses.replace(ALERT, model="queue", version=""))
    (alert,) = detection._open.values()
    detection._over_since(alert, "over", 1e9)
    detection._open = Slow(detection._open)
    detection.metric("queue", 1.0)
    telling.join()
    assert detection._over == {}
    detection.close(time.monotonic() + 5)
    assert [one.ended for one in told] == [False, True]


def test_silenced_alarms_are_counted(told):
    detection = started(told.append)
    detection.silence(1e9, model="detector")
    detection.offer(Model, rows(9_000_000))
    detection.close(time.monotonic() + 5)
    assert told == []
    assert detection.n_silenced > 0


@pytest.mark.timing
def test_channels_that_raise_or_block_hold_nobody_up(told):
    gate = threading.Event()

    def blocks(alert):
        gate.wait(10)

    def raises(alert):
        raise RecursionError

    detection = started(raises, told.append, blocks)
    before = time.monotonic()
    detection.offer(Model, rows(9_000_000))
    wait_for(lambda: told)
    detection.close(time.monotonic() + 0.05)
    assert time.monotonic() - before < 2
    assert detection.n_failures >= 1
    gate.set()


def test_only_functions_are_channels():
    with pytest.raises(UsageError, match="expected functions"):
        Detection("https://example.org")
    with pytest.raises(UsageError, match="http or https"):
        Webhook("file:///etc/passwd")


def test_webhooks_post_what_their_receivers_read():
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    Webhook(url + "/hook", token="secret")(ALERT)
    Slack(url + "/slack")(ALERT)
    Alertmanager(url + "/", labels=[("team", "vision")])(ALERT)
    server.shutdown()
    server.server_close()
    hook, slack, manager = received
    assert hook[:2] == ("/hook", "Bearer secret")
    assert hook[2]["kind"] == "shift"
    assert "requests are 50 % &lt;slower&gt;" in slack[2]["text"]
    assert manager[0] == "/api/v2/alerts"
    assert manager[2][0]["labels"] | {"alertname": ""} == {
        "alertname": "",
        "model": "detector",
        "version": "2.1",
        "kind": "shift",
        "severity": "warning",
        "team": "vision",
    }
    assert manager[2][0]["startsAt"].startswith("2023-11-14T")


def test_requests_that_got_quicker_are_news_and_no_trouble(caplog):
    quicker = dataclasses.replace(ALERT, kind="faster", facts={"excess_s": -0.5, "expected_s": 1.0})
    with caplog.at_level("INFO"):
        log(ALERT)
        log(quicker)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert quicker.finding().severity == "note"
    slack = Slack("http://127.0.0.1")
    assert slack.body(ALERT)["text"].startswith(":rotating_light:")
    assert slack.body(quicker)["text"].startswith(":information_source:")
    manager = Alertmanager("http://127.0.0.1").body(quicker)
    assert manager[0]["labels"]["severity"] == "info"


def test_alertmanager_gets_names_of_ones_own_the_device_and_a_runbook():
    def sent(alert, **settings):
        (one,) = Alertmanager("http://127.0.0.1", **settings).body(alert)
        return one

    slow = dataclasses.replace(ALERT, kind="slow-device", facts={"device": "cam-7"})
    names = {"slow-device": "CameraSlow", "": "CameraAlarm"}
    assert sent(slow, name=names)["labels"]["alertname"] == "CameraSlow"
    assert sent(ALERT, name=names)["labels"]["alertname"] == "CameraAlarm"
    assert sent(ALERT, name="Mine")["labels"]["alertname"] == "Mine"
    assert sent(ALERT, name={"surge": "Surge"})["labels"]["alertname"] == "TorchtriageAnomaly"
    assert sent(slow)["labels"]["device"] == "cam-7"
    assert "device" not in sent(ALERT)["labels"]
    assert sent(ALERT, runbook="https://runbooks/tt")["annotations"]["runbook_url"] == "https://runbooks/tt"


def test_a_slow_model_is_told_of_while_it_runs(told):
    from torchtriage.operate.monitor import Monitor

    detection = Detection(told.append)
    with Monitor(detection) as monitor:
        call = monitor.observe("detector")(lambda s: time.sleep(s))
        for _ in range(700):
            call(0.0001)
        # however long a busy machine held some of those up, these are slower, and go on
        wait_for(lambda: told or call(0.05))
    assert told[0].model == "detector"
