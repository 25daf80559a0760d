"""An alarm names its cause where the evidence says it, and no other."""

import gc
import json
import random
import sys
import types
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from torchtriage.core.errors import UsageError
from torchtriage.core.machine import Reading
from torchtriage.operate.monitor import host_sampler as evidence_
from torchtriage.operate.monitor.aggregate import RequestNote
from torchtriage.operate.monitor.alert import CODES, Alert
from torchtriage.operate.monitor.alert_cause import CAUSES, SizeCounts, SlowRequest, attribute
from torchtriage.operate.monitor.alerts import Detection
from torchtriage.operate.monitor.host_sampler import HostSampler, UsageSample
from torchtriage.operate.monitor.version_detector import COLD, CollectorLoad, VersionDetector

MS = 1_000_000
SCHEMA = Path(__file__).parents[3] / "docs" / "schema" / "torchtriage-alert-1.json"


def seen(took_ms, n, start_ms=0, size=None, expected_ms=2.0):
    """Return ``n`` requests, one every 10 ms."""
    return [
        SlowRequest((start_ms + 10 * at) * MS, int((start_ms + 10 * at + took_ms) * MS), size, expected_ms * 1e-3)
        for at in range(n)
    ]


def slowed(took_ms=6.0, **of):
    """Return requests that took 2 ms, and 20 that take longer since second 2."""
    return seen(2.0, 200) + seen(took_ms, 20, 2000, **of)


def told(recent, evidence=None, *, kind="shift", sizes=None, failed=None, age=None):
    return attribute(kind, recent, failed or {}, evidence or HostSampler(), sizes or SizeCounts(), age)


def moments(evidence, *rows):
    """Set the samples of the machine: at ms, own CPU s, waited s, requests s, busy s."""
    for at_ms, own_s, waited_s, requests_s, busy_s in rows:
        host = None if busy_s is None else Reading(at_ms / 1e3, busy_s, 0.0, 2)
        evidence.moments.append(UsageSample(at_ms * MS, own_s, waited_s, requests_s, host))
    evidence.n_cpus = 2


def test_what_nothing_explains_has_no_cause():
    judged = told(slowed())
    assert judged.cause == "unknown"
    assert set(judged.shares.values()) == {0.0}
    assert judged.facts["requests"] == 20
    assert judged.facts["excess_s"] == pytest.approx(20 * 0.004)


@pytest.mark.parametrize("kind", ["shift", "tail", "surge", "spread", "missing", "stuck", "gc"])
def test_alarms_of_which_no_request_is_known_are_judged(kind):
    assert told([], kind=kind).cause in CAUSES


def test_a_new_version_is_the_cause_of_what_nothing_measured_explains():
    assert told(slowed(), age=300).cause == "version change"
    assert told(slowed(), age=5000).cause == "unknown"
    assert told(slowed(), age=None).cause == "unknown"
    assert told([], kind="missing", failed={"ValueError": 3}, age=300).cause == "version change"


def test_a_measured_cause_goes_before_a_new_version():
    evidence = HostSampler()
    evidence.compilations.append((2000 * MS, 2300 * MS, 1))
    assert told(slowed(), evidence, age=300).cause == "recompile"


def test_collections_explain_what_falls_into_them():
    evidence = HostSampler()
    for at in range(2000, 2200, 10):
        evidence.pauses.append((at * MS + MS, at * MS + 4 * MS))  # 3 of the 4 ms too long
    judged = told(slowed(), evidence)
    assert (judged.cause, judged.shares["GC"]) == ("GC", pytest.approx(0.75))
    evidence.pauses.clear()
    for at in range(2000, 2200, 10):
        evidence.pauses.append((at * MS + 7 * MS, at * MS + 10 * MS))  # between the requests
    assert told(slowed(), evidence).cause == "unknown"


def test_compiling_explains_the_requests_it_ran_in():
    recent = seen(2.0, 200) + seen(400.0, 1, 2000)
    evidence = HostSampler()
    evidence.compilations.append((1000 * MS, 1003 * MS, 2))  # long before
    assert told(recent, evidence, kind="surge").cause == "unknown"
    evidence.compilations.append((2390 * MS, 2401 * MS, 1))
    judged = told(recent, evidence, kind="surge")
    assert (judged.cause, judged.facts["compilations"]) == ("recompile", 1)


def test_waiting_beyond_the_usual_is_contention():
    evidence = HostSampler()
    # 0.01 s were waited for 0.4 s of a processor before; then 0.07 s for 0.05 s
    moments(evidence, (0, 0.0, 0.0, 0.0, 0.0), (2000, 0.4, 0.01, 0.4, 0.4), (2210, 0.45, 0.08, 0.52, 0.8))
    judged = told(slowed(), evidence)
    assert judged.cause == "host contention"
    assert judged.shares["host contention"] == pytest.approx(0.06875 / 0.08, abs=0.001)
    assert judged.facts["others_cores"] > 1


def test_usual_waiting_is_no_contention():
    evidence = HostSampler()
    moments(evidence, (0, 0.0, 0.0, 0.0, 0.0), (2000, 0.2, 0.2, 0.4, 2.0), (2210, 0.26, 0.26, 0.52, 2.3))
    assert told(slowed(), evidence).cause == "unknown"


def test_more_work_that_waits_its_usual_share_is_no_contention():
    evidence = HostSampler()
    moments(evidence, (0, 0.0, 0.0, 0.0, 0.0), (2000, 0.2, 0.2, 0.4, 2.0), (2210, 0.27, 0.27, 0.52, 2.3))
    assert told(slowed(), evidence).cause == "unknown"


def test_threads_that_are_in_their_own_way_are_no_contention():
    evidence = HostSampler()
    moments(evidence, (0, 0.0, 0.0, 0.0, 0.0), (2000, 0.4, 0.01, 0.4, 0.4), (2210, 0.81, 0.08, 0.52, 0.81))
    assert told(slowed(), evidence).cause == "unknown"


def test_where_the_kernel_does_not_tell_who_waited_a_crowd_is_contention():
    evidence = HostSampler()
    moments(evidence, (0, 0.0, None, 0.0, 0.0), (2000, 0.4, None, 0.4, 0.5), (2250, 0.45, None, 0.52, 1.0))
    assert told(slowed(), evidence).cause == "host contention"
    alone = HostSampler()
    moments(alone, (0, 0.0, None, 0.0, 0.0), (2000, 0.4, None, 0.4, 0.5), (2250, 0.45, None, 0.52, 0.56))
    assert told(slowed(), alone).cause == "unknown"


def test_sizes_that_were_rare_explain_their_requests():
    sizes = SizeCounts()
    for _ in range(300):
        sizes.learn(8)
    assert told(slowed(size=64), sizes=sizes).cause == "input mix"
    assert told(slowed(size=8), sizes=sizes).cause == "unknown"
    assert told(slowed(size=None), sizes=sizes).cause == "unknown"


def test_failures_are_named():
    judged = told([], kind="missing", failed={"ValueError": 3, "NaN": 1})
    assert (judged.cause, judged.facts) == ("errors", {"errors": {"ValueError": 3, "NaN": 1}})


# -- the evidence itself ---------------------------------------------------------------------


@pytest.fixture
def watching():
    evidence = HostSampler()
    evidence.start()
    yield evidence
    evidence.stop()


def test_the_pauses_of_the_collector_are_seen_while_it_is_watched(watching):
    heap = [[] for _ in range(100_000)]
    gc.collect()
    (start_ns, end_ns) = watching.pauses[-1]
    took_ns = end_ns - start_ns
    assert watching.paused_ns(start_ns - 10, end_ns + 10) >= took_ns
    assert watching.paused_ns(start_ns + took_ns // 2, end_ns) == end_ns - start_ns - took_ns // 2
    assert watching.paused_ns(end_ns, end_ns + 10) == 0
    watching.start()
    assert gc.callbacks.count(watching._collecting) == 1
    watching.stop()
    watching.stop()
    n = len(watching.pauses)
    gc.collect()
    assert len(watching.pauses) == n
    assert heap


def test_graphs_that_torch_compiles_are_counted(monkeypatch, watching):
    frames = types.ModuleType("torch._dynamo.convert_frame")
    frames.FRAME_COMPILE_COUNTER = Counter({"forward": 3})
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", frames)
    watching.start()  # what was compiled before is not of now
    watching.look(10)
    frames.FRAME_COMPILE_COUNTER["forward"] += 2
    watching.look(30)
    watching.look(50)
    assert [watching.compiled(a, b) for a, b in ((0, 10), (0, 11), (29, 99), (30, 99))] == [0, 2, 2, 0]


def test_waiting_is_added_up_over_threads_that_come_and_go(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_, "TASKS", tmp_path)

    def threads(**waited_ns):
        for name in tmp_path.iterdir():
            (name / "schedstat").unlink()
            name.rmdir()
        for name, wait_ns in waited_ns.items():
            (tmp_path / name[1:]).mkdir()
            (tmp_path / name[1:] / "schedstat").write_text(f"99 {wait_ns} 7\n")
        evidence._list_threads()

    evidence = HostSampler()
    threads(t1=500 * MS, t2=100 * MS)
    assert evidence._wait_s() == 0  # before it was watched
    threads(t1=700 * MS, t3=50 * MS)
    assert evidence._wait_s() == pytest.approx(0.25)
    threads(t3=80 * MS)
    assert evidence._wait_s() == pytest.approx(0.28)
    threads()
    assert evidence._wait_s() is None


def test_memory_does_not_grow():
    evidence = HostSampler()
    for at in range(3000):
        evidence._pause_start_ns = 1
        evidence._collecting("stop", {})
        evidence.compilations.append((at, at, 1))
        evidence.moments.append(UsageSample(at, 0.0, 0.0, 0.0, None))
    assert (len(evidence.pauses), len(evidence.compilations)) == (512, 64)
    assert len(evidence.moments) == 256


# -- a version under watch -------------------------------------------------------------------


def serve(watched, n, took_ms=2.0, seed=0, note=None, at_ms=0):
    """Feed requests, one every 10 ms; return the alarms."""
    draw = random.Random(seed)
    alarms = []
    for at in range(n):
        start_ns = (at_ms + 10 * at) * MS
        took_ns = int(took_ms * MS * draw.uniform(0.9, 1.1))
        alarm = watched.update((start_ns, start_ns + took_ns, None, note))
        if alarm is not None:
            alarms.append(alarm)
    return alarms


def paused(watched, evidence, pauses, n=400, at_ms=10_000):
    """Feed requests of which those in ``pauses`` are held up by a collection of 20 ms."""
    alarms = []
    for at in range(n):
        start_ns = (at_ms + 30 * at) * MS
        took_ns = 2 * MS + at % 37 * 1000
        if at in pauses:
            took_ns += 20 * MS
            evidence.pauses.append((start_ns + MS, start_ns + 21 * MS))
        alarm = watched.update((start_ns, start_ns + took_ns, None, None))
        if alarm is not None:
            alarms.append((alarm, watched.cause(alarm).cause))
    return alarms


def test_single_pauses_of_the_collector_are_no_alarm():
    evidence = HostSampler()
    watched = VersionDetector(evidence)
    serve(watched, 900)
    assert paused(watched, evidence, {100, 101, 150, 200}) == []


def test_a_collector_that_adds_a_tenth_is_an_alarm_once():
    evidence = HostSampler()
    watched = VersionDetector(evidence)
    serve(watched, 900)
    ((alarm, cause),) = paused(watched, evidence, set(range(50, 400, 5)))
    assert (alarm.kind, cause) == ("gc", "GC")
    watched.activate("gc", "gc: much")
    assert watched.alarm == "gc: much"
    serve(watched, 300)
    assert watched.alarm is None


def test_a_request_in_a_pause_that_is_slow_by_itself_is_an_alarm():
    evidence = HostSampler()
    watched = VersionDetector(evidence)
    serve(watched, 900)
    evidence.pauses.append((10_000 * MS, 10_001 * MS))
    alarm = watched.update((10_000 * MS, 10_600 * MS, None, None))
    assert alarm is not None
    assert (alarm.kind, watched.cause(alarm).cause) == ("surge", "unknown")


def test_what_collections_usually_add_is_no_alarm():
    collector = CollectorLoad()
    added = [0.3 * (at % 2) for at in range(3000)]
    assert [at for at, one in enumerate(added) if collector.update(one)][1:] == []


def test_a_further_version_is_held_against_the_one_before():
    evidence = HostSampler()
    old = VersionDetector(evidence)
    assert serve(old, 900) == []
    assert serve(VersionDetector(evidence, old), 700, seed=1) == []
    new = VersionDetector(evidence, old)
    assert serve(new, COLD, 20.0) == []  # caches fill
    (alarm, *_) = serve(new, 100, 4.0, at_ms=10_000)
    assert alarm.kind == "shift"
    assert new.cause(alarm).cause == "version change"


def test_a_version_after_one_of_which_little_is_known_learns_for_itself():
    evidence = HostSampler()
    old = VersionDetector(evidence)
    serve(old, 100)
    assert serve(VersionDetector(evidence, old), 900, 20.0) == []


def test_a_further_version_that_fails_at_once_is_an_alarm():
    evidence = HostSampler()
    old = VersionDetector(evidence)
    serve(old, 900)
    new = VersionDetector(evidence, old)
    (alarm, *_) = serve(new, 5, note=RequestNote("ValueError"))
    judged = new.cause(alarm)
    assert (alarm.kind, judged.cause) == ("missing", "version change")
    assert judged.facts["errors"] == {"ValueError": 5}


# -- what is told ----------------------------------------------------------------------------


class Model:
    name, version = "detector", "2.1"


def rows(took_ms, n, at_ms=0):
    return [
        ((at_ms + 10 * at) * MS, (at_ms + 10 * at) * MS + int(took_ms * MS) + at % 37 * 997, None, None)
        for at in range(n)
    ]


@pytest.fixture
def detection():
    one = Detection(print, repeat_s=0)
    one._evidence.start()
    yield one
    one._evidence.stop()


def raised(detection):
    return [(alert.kind, alert.cause) for alert in detection.pending()]


def test_declared_maintenance_is_neither_judged_nor_learned_from(detection, monkeypatch):
    clock = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: clock[0])
    detection.offer(Model, rows(2, 900))
    clock[0] = 10_000 * MS
    with detection.maintenance(model="detector"):
        detection.offer(Model, rows(40, 300, 10_001))
        detection.offer(type("Other", (), {"name": "other", "version": ""}), rows(40, 10, 10_001))
        clock[0] = 14_000 * MS
    detection.offer(Model, rows(2, 100, 14_001))
    assert (raised(detection), detection.n_excused) == ([], 300)
    detection.offer(Model, rows(40, 20, 20_000))
    assert raised(detection)


def test_a_ladder_can_ask_what_alarms_until_it_is_long_over(detection, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    detection.offer(Model, rows(2, 900))
    assert detection.alarm("detector") == ""
    detection.offer(Model, rows(6, 40, 10_000))
    assert ": " in detection.alarm("detector")
    assert detection.alarm("other") == ""
    for at in range(20):
        clock[0] += 10
        detection.offer(Model, rows(2, 50, 20_000 + 500 * at))
    assert detection.alarm("detector") == ""


def test_an_alarm_that_has_ended_is_not_active_while_another_lasts(detection):
    detection.offer(Model, rows(2, 900))
    detection.offer(Model, rows(3, 3_000, 10_000))
    assert detection.alarm("detector").startswith("shift: ")
    failed = [(*row[:3], RequestNote("OOM")) for row in rows(3, 300, 50_000)]
    detection.offer(Model, failed)
    assert detection.alarm("detector").startswith("missing: ")
    detection.offer(Model, rows(3, 3_000, 60_000))
    still = detection.alarm("detector")
    assert still.startswith("shift: ")
    assert still.relative


def test_requests_that_get_quicker_are_news_and_no_trouble(detection):
    detection.offer(Model, rows(2, 900))
    detection.offer(Model, rows(1.5, 60, 10_000))
    assert ("faster", "unknown") in raised(detection)
    assert detection.alarm("detector") == ""


def test_the_collector_is_watched_once_however_often_it_starts_and_no_more_after_the_end():
    before = len(gc.callbacks)
    detection = Detection()
    for _ in range(2):
        detection._reset()  # as after a fork
        detection._evidence.start()
    assert len(gc.callbacks) == before + 1
    detection._evidence.stop()
    assert len(gc.callbacks) == before


def test_a_cause_can_be_silenced(detection):
    detection.silence(1e9, cause="errors")
    detection._raise(Alert("detector", "", "missing", "", "errors", 2.0, 1e9))
    detection._raise(Alert("detector", "", "shift", "", "unknown", 2.0, 1e9))
    assert (raised(detection), detection.n_silenced) == ([("shift", "unknown")], 1)
    with pytest.raises(UsageError, match="expected a cause of version change"):
        detection.silence(1, cause="weather")


def test_a_metric_that_stops_moving_is_stale(detection):
    draw = random.Random(1)
    for _ in range(200):
        detection.metric("queue", draw.gauss(100, 10))
    assert raised(detection) == []
    for _ in range(30):
        detection.metric("queue", 103.25)
    assert raised(detection) == [("stuck", "stale metric")]
    assert detection.pending()[0].model == "queue"


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_is_a_finding_with_a_fix_and_a_stable_document(cause):
    alert = Alert(
        "detector",
        "2.1",
        "shift",
        "requests are 50 % slower",
        cause,
        float("inf"),
        1.7e9,
        shares={"GC": 0.9},
        facts={"excess_s": 0.5, "expected_s": 1.0, "requests": 12},
    )
    found = alert.finding()
    assert (found.code, found.name) == (CODES[cause].code, CODES[cause].name)
    assert (found.severity, found.n_events) == ("medium", 12)
    assert found.fix.text
    assert found.evidence["explains"] == {"GC": 0.9}
    document = json.loads(json.dumps(alert.document(), allow_nan=False))
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert document["schema"] == "torchtriage-alert/1"
    assert document["finding"]["code"] == found.code


def test_codes_are_those_of_their_causes():
    assert list(CODES) == list(CAUSES)
    assert [code.code for code in CODES.values()] == [f"LIV{n:03}" for n in (1, 2, 3, 4, 5, 6, 9, 7, 8, 10)]
