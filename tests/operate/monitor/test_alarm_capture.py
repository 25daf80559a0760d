"""After an alarm one request is recorded and judged, rarely, and no request is harmed by it."""

import contextlib
import dataclasses
import json
import threading
import time

import jsonschema
import pytest
from operate.monitor.test_alert_cause import SCHEMA

from torchtriage.core.errors import UsageError
from torchtriage.operate.monitor import Monitor, alarm_capture
from torchtriage.operate.monitor.alarm_capture import AlarmCapture
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.alerts import Detection
from torchtriage.operate.monitor.instrument import Ring

ALERT = Alert("detector", "2.1", "shift", "requests are 50 % slower", "unknown", 2.0, 1.7e9)


class RequestRecorder:
    """Records that it records."""

    def __init__(self):
        self.on_capture = None
        self.asked = 0
        self.recorded = []
        self.capturing = False
        self.willing = True
        self.fails = ""

    def trigger(self):
        self.asked += 1

    @contextlib.contextmanager
    def request(self):
        if self.fails == "begin":
            raise RuntimeError("no profiler")
        self.capturing = self.willing
        yield
        self.capturing = False
        self.recorded.append(threading.get_ident())
        if self.fails == "end":
            raise RuntimeError("disk full")


@pytest.fixture
def recorder():
    return RequestRecorder()


@pytest.fixture
def one(recorder):
    one = AlarmCapture(recorder, lambda *told: None, contextlib.nullcontext)
    yield one
    one.close()


def request(ring, at=0):
    """Serve one request as the observed function does."""
    ring.begun += 1
    ring.end((at, at + 1, None, None))


def counts(one):
    return one.n_armed, one.n_captured, one.n_skipped, one.n_missed, one.n_failures


def test_nothing_is_recorded_and_rings_are_as_they_were_until_there_is_an_alarm(one, recorder):
    ring = Ring()
    request(ring)
    one.look(1e9)
    assert type(ring) is Ring
    assert (recorder.asked, recorder.recorded, counts(one)) == (0, [], (0, 0, 0, 0, 0))


def test_the_next_request_is_recorded_in_its_thread_and_only_that(one, recorder):
    rings = [Ring(), Ring()]
    one.arm(ALERT, rings, 100.0)
    for at in range(3):
        request(rings[1], at)
    assert recorder.recorded == [threading.get_ident()]
    assert counts(one) == (1, 1, 0, 0, 0)
    assert [type(ring) for ring in rings] == [Ring, Ring]
    assert (rings[1].begun, len(rings[1].rows)) == (3, 3)


def test_alarms_that_come_soon_after_another_record_nothing(one, recorder):
    ring = Ring()
    for at_s in (0, 1, 59, 60.5, 61):
        one.arm(ALERT, [ring], at_s)
        request(ring)
    assert (len(recorder.recorded), one.n_skipped) == (2, 3)
    for n in range(100):
        one.arm(ALERT, [ring], 1000.0 + 100 * n)
        request(ring)
    assert len(recorder.recorded) == alarm_capture.A_DAY
    one.arm(ALERT, [ring], 1000.0 + alarm_capture.DAY_S + 10_000)
    request(ring)
    assert len(recorder.recorded) == alarm_capture.A_DAY + 1


def test_where_no_request_comes_it_is_given_up(one, recorder):
    ring = Ring()
    one.arm(ALERT, [ring], 100.0)
    one.look(105.0)
    assert type(ring) is not Ring
    one.look(111.0)
    assert (type(ring), counts(one)) == (Ring, (1, 0, 0, 1, 0))
    request(ring)
    assert recorder.recorded == []


def test_a_recorder_that_declines_is_left_alone(one, recorder):
    recorder.willing = False
    ring = Ring()
    one.arm(ALERT, [ring], 100.0)
    request(ring)
    assert (type(ring), counts(one)) == (Ring, (1, 0, 0, 1, 0))


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_recorder_that_fails_harms_no_request(one, recorder, when):
    recorder.fails = when
    ring = Ring()
    one.arm(ALERT, [ring], 100.0)
    request(ring)
    assert (ring.begun, len(ring.rows), type(ring)) == (1, 1, Ring)
    assert counts(one) == (1, 0, 0, 0, 1)
    assert one.last_error.startswith("RuntimeError")


def test_requests_within_one_another_and_in_other_threads_are_served_unrecorded(one, recorder):
    mine, other = Ring(), Ring()
    one.arm(ALERT, [mine, other], 100.0)
    mine.begun += 1
    thread = threading.Thread(target=request, args=(other,))
    thread.start()
    thread.join(60)
    mine.begun += 1
    assert recorder.recorded == []
    mine.end((0, 1, None, None))
    mine.end((0, 2, None, None))
    assert (len(recorder.recorded), one.n_captured) == (1, 1)
    assert (len(mine.rows), len(other.rows)) == (2, 1)


def test_a_thread_that_ends_while_it_is_recorded_blinds_nobody(recorder):
    judged = threading.Event()

    @contextlib.contextmanager
    def disturbs():
        yield
        judged.set()

    one = AlarmCapture(recorder, lambda *told: None, disturbs)
    rings = []

    def work():
        rings.append(Ring())
        one.arm(ALERT, rings, 100.0)
        rings[0].begun += 1

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    one.look(115.0)
    assert not judged.is_set()
    one.look(171.0)
    assert judged.is_set()
    assert (type(rings[0]), one.n_missed) == (Ring, 1)
    again = Ring()
    one.arm(ALERT, [again], 200.0)
    request(again)
    assert one.n_captured == 1


def test_threads_that_begin_and_end_while_it_is_armed_and_given_up_lose_nothing(one, recorder):
    stop = threading.Event()
    rings, served = [], []

    def serve():
        ring = Ring()
        rings.append(ring)
        n = 0
        while not stop.is_set():
            request(ring, n)
            n += 1
        served.append((ring, n))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(rings) < 4:
        time.sleep(0.001)
    for n in range(200):
        one._times.clear()
        one.arm(ALERT, list(rings), 1000.0 * n)
        one.look(1000.0 * n + 11)
    stop.set()
    for thread in threads:
        thread.join(60)
    one.look(1e9)
    assert one.n_armed == one.n_captured + one.n_missed
    assert [(ring.begun, len(ring.rows) + ring.dropped) for ring, n in served] == [(n, n) for _, n in served]
    assert {type(ring) for ring in rings} == {Ring}


def test_a_profiler_that_takes_long_to_start_holds_no_other_request_up(one, recorder):
    starting, go = threading.Event(), threading.Event()
    quick = recorder.request

    def slow():
        starting.set()
        go.wait(60)
        return quick()

    recorder.request = slow
    mine, other = Ring(), Ring()
    one.arm(ALERT, [mine, other], 100.0)
    thread = threading.Thread(target=request, args=(mine,))
    thread.start()
    assert starting.wait(60)
    request(other)
    one.look(1e9)
    one.arm(ALERT, [other], 1e9)
    assert len(other.rows) == 1  # and none of it waited
    go.set()
    thread.join(60)
    assert one.n_captured == 1


def test_what_cannot_record_is_refused():
    with pytest.raises(UsageError, match="expected a sampler"):
        Detection(capture="captures")


def test_an_alarm_of_a_served_model_is_followed_by_what_its_recording_shows(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(AlarmCapture, "_judge", lambda self, path: (f"SYN001 {path.name}",))
    told = []
    detection = Detection(told.append, repeat_s=0.5, capture=recorder)
    with Monitor(detection) as monitor:
        model = monitor.observe("detector", version="2.1")
        call = model(lambda s: time.sleep(s))
        # on a busy machine there may be an alarm of this, too, which is not to be recorded
        capture, detection.capture = detection.capture, None
        for _ in range(700):
            call(0.0001)
        detection.capture = capture
        end_s = time.monotonic() + 60
        while not recorder.recorded:
            assert time.monotonic() < end_s
            call(0.05)
        recorder.on_capture(tmp_path / "sample-1.json.gz")
        while not any(one.capture for one in told):
            assert time.monotonic() < end_s
            time.sleep(0.01)
    (after,) = [one for one in told if one.capture]
    assert after.captured == ("SYN001 sample-1.json.gz",)
    assert any(dataclasses.replace(after, n_before=one.n_before, capture="", captured=()) == one for one in told)
    assert "recorded after" in after.title()
    document = json.loads(json.dumps(after.document(), allow_nan=False))
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert document["captured"] == ["SYN001 sample-1.json.gz"]
    assert detection.n_excused > 0  # the recorded one


def test_recordings_are_judged_by_another_process_and_what_is_none_is_a_failure(one, tmp_path, monkeypatch):
    monkeypatch.delattr("os.setpriority")  # on a busy machine it would not come to its turn
    broken = tmp_path / "sample-1.json.gz"
    broken.write_bytes(b"no trace")
    told = []
    one._tell = lambda *args: told.append(args)
    one._captured = ALERT
    one._on_capture(broken)
    one._files.put(None)
    one._thread.join(60)
    assert (told, one.n_failures) == ([], 1)
    assert "sample-1.json.gz" in one.last_error
