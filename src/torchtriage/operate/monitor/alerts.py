"""Alarms of observed models, and where they are sent: callbacks, a log, webhooks, Alertmanager.

Detectors and the search for causes run in the monitor's thread, tens of microseconds per request.
Channels run in threads of their own (:mod:`.delivery`), and may block, raise or be slow: alerts wait, up to a bound.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_span_s
from torchtriage.operate.detect.latency_detector import LARGER, Alarm, Sample
from torchtriage.operate.detect.metric import MetricDetector
from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.alarm_capture import AlarmCapture, RequestRecorder
from torchtriage.operate.monitor.alert import Alert
from torchtriage.operate.monitor.alert_cause import CAUSES, Attribution, Cause
from torchtriage.operate.monitor.delivery import Channel, Outbox
from torchtriage.operate.monitor.host_sampler import HostSampler
from torchtriage.operate.monitor.instrument import Model
from torchtriage.operate.monitor.metrics import Value
from torchtriage.operate.monitor.monitor import Monitor
from torchtriage.operate.monitor.version_detector import KINDS, VersionDetector

TIMEOUT_S = 5.0
NAME = "TorchtriageAnomaly"  # of alerts in Alertmanager
REFRESH_S = 60.0  # how often Alertmanager is told of what is on; it takes what it hears no more of as over after 300
KEPT = 4  # of these it is to wait: what Prometheus tells it, too
LATE_S = 60.0  # after which a message says how old it is
IDLE_S = 900.0  # without a request of a version, or six hours without a metric's reading, its alarms are taken as over
IDLE_METRIC_S = 6 * 3600.0
WATCH_S = 1.0
REPEAT_S = 60.0  # alarms of the same model, version and kind are sent so far apart
ALARM_S = 30.0  # how long a ladder is kept down after what alarmed has ended
FORGET_S = 3600.0  # maintenance is remembered so long: a longer request that overlaps it may raise an alarm
MAX_METRICS = 1_000
ABSOLUTE = ("missing", "nan", "stuck")  # kinds of alarms that no deadline that is met contradicts
DRAIN_S = 0.003  # how often the monitor's thread runs while there is a detection


@dataclass(frozen=True)
class Silence:
    """Alarms not to send, until a time: of a model, kind and cause; empty means any."""

    until_s: float
    model: str = ""
    kind: str = ""
    cause: str = ""

    def covers(self, alert: Alert) -> bool:
        """Return whether an alert falls under it."""
        pairs = ((self.model, alert.model), (self.kind, alert.kind), (self.cause, alert.cause))
        return alert.at_s < self.until_s and all(wanted in ("", own) for wanted, own in pairs)


@dataclass
class _Maintenance:
    model: str
    start_ns: int
    end_ns: float = math.inf  # until it has ended

    def covers(self, model: str, row: RequestRow) -> bool:
        return self.model in ("", model) and row[1] > self.start_ns and row[0] < self.end_ns


@dataclass
class _Sent:
    # the last alert of a model, version, kind and cause, and the equal alarms since
    at_s: float = -math.inf
    size: float = 0.0
    n_since: int = 0


class ActiveAlarm(str):
    """The alarm that is on, of a version and with its cause.

    ``relative`` : it says that requests differ from before, not that they are bad.
    """

    __slots__ = ("cause", "relative", "version")
    version: str
    cause: str
    relative: bool

    def __new__(cls, text: str, *, version: str = "", cause: str = "", relative: bool = False) -> ActiveAlarm:
        """Return the text, marked."""
        self = super().__new__(cls, text)
        self.version, self.cause, self.relative = version, cause, relative
        return self


class Detection:
    """Runs the default detector over every model's requests and sends alarms to ``channels``.

    >>> Detection(log, Slack("https://hooks.slack.com/..."), print)  # doctest: +SKIP

    A channel is any function of an :class:`Alert`. Equal alarms (model, version, kind, cause) within ``repeat_s`` are
    sent once unless they are half as large again; the next says how many there were. What has been over for
    ``repeat_s`` is told, with the largest size it had; what lasts is told as lasting, and stays on until requests are
    as before or :meth:`accept` is called. ``capture`` : a sampler, ``torchtriage.sample(folder,
    every_s=None)``, which records a request after an alarm; a second alert says what the recording shows.
    """

    drain_s = DRAIN_S

    def __init__(self, *channels: Channel, repeat_s: float = REPEAT_S, capture: RequestRecorder | None = None) -> None:
        for channel in channels:
            if not callable(channel):
                raise UsageError(f"expected functions to send alerts to, found {channel!r}")
        if capture is not None and not hasattr(capture, "on_capture"):
            hint = "capture=torchtriage.sample(folder, every_s=None)"
            raise UsageError(f"expected a sampler to capture with, found {capture!r}", hint=hint)
        self._channels, self._repeat_s, self._recorder = channels, repeat_s, capture
        self.capture: AlarmCapture | None = None  # records requests after alarms, with its counts
        self.silences: list[Silence] = []
        self._evidence = HostSampler()
        self._reset()

    def _reset(self) -> None:
        self.n_sent = self.n_silenced = self.n_refused = 0
        self.n_excused = 0  # requests during declared maintenance
        self._evidence.stop()  # a fork copied it
        self._evidence = HostSampler()
        self._lock = threading.Lock()
        self._maintenance: list[_Maintenance] = []
        self._detectors: dict[tuple[str, str], VersionDetector] = {}
        self._newest_version: dict[str, str] = {}
        self._metrics: dict[str, MetricDetector] = {}
        self._active: dict[tuple[str, str], tuple[float, ActiveAlarm]] = {}
        self._n_alarms: dict[tuple[str, str], dict[str, int]] = {}
        self._sent: dict[tuple[str, str, str, str], _Sent] = {}
        self._open: dict[tuple[str, str, str], Alert] = {}  # told, and not yet told to be over
        self._largest: dict[tuple[str, str, str], float] = {}  # sizes of these
        self._over: dict[tuple[str, str, str], Alert] = {}  # of these, what is over since a moment
        self._heard_s: dict[tuple[str, str], float] = {}  # last request, or reading of a metric
        self._accepted: set[str] = set()  # models, until their detectors know
        self._outbox = Outbox(self._channels)
        self._stop = threading.Event()
        self.instance = f"{socket.gethostname()}:{os.getpid()}"
        self._offset_s = time.time() - time.perf_counter()

    def silence(self, seconds: float, *, model: str = "", kind: str = "", cause: str = "") -> None:
        """Send nothing of a model, a kind, a cause, or anything, for a while."""
        if cause and cause not in CAUSES:
            raise UsageError(f"expected a cause of {', '.join(CAUSES)}, found {cause!r}")
        # the clock of the alerts' at_s, which no jump of the wall clock moves
        now_s = time.perf_counter() + self._offset_s
        self.silences = [silence for silence in self.silences if silence.until_s > now_s]
        self.silences.append(Silence(now_s + seconds, model, kind, cause))

    @contextmanager
    def maintenance(self, *, model: str = "") -> Iterator[None]:
        """Declare a disturbance: requests that overlap the block raise no alarm and teach nothing.

        >>> with detection.maintenance(model="detector"):  # doctest: +SKIP
        ...     reload_weights()
        """
        span = _Maintenance(model, time.perf_counter_ns())
        oldest_ns = span.start_ns - int(FORGET_S * 1e9)
        recent = [old for old in self._maintenance if old.end_ns > oldest_ns]
        self._maintenance = [*recent, span]
        try:
            yield
        finally:
            span.end_ns = time.perf_counter_ns()

    def alarm(self, model: str, version: str | None = None) -> ActiveAlarm:
        """Return the active alarm of a model, until half a minute after its end; for a ladder or a rollout.

        ``version`` : only of that one.

        >>> Ladder("detector", modes, alarm=lambda: detection.alarm("detector"))  # doctest: +SKIP
        >>> Rollout(plan, alarm=lambda: detection.alarm("detector", plan.candidate))  # doctest: +SKIP
        """
        now_s = time.monotonic()
        for (name, of), (at_s, alarm) in reversed(list(self._active.items())):
            if name == model and version in (None, of) and now_s - at_s < ALARM_S:
                return alarm
        return ActiveAlarm("")

    def metric(self, name: str, value: float) -> None:
        """Take a reading of a metric: a queue's length, a rate; at a fixed pace, from one thread.

        The alarms' model is the metric's name. Takes up to 0.1 ms: not for the request path.
        """
        detector = self._metrics.get(name)
        if detector is None:
            if len(self._metrics) >= MAX_METRICS:
                self.n_refused += 1
                return
            detector = self._metrics[name] = MetricDetector()
        at_s = time.perf_counter() + self._offset_s
        self._heard_s[name, ""] = time.monotonic()
        alarm = detector.update(Sample(float(value), at_s))
        if alarm is not None:
            cause: Cause = "stale metric" if alarm.kind in ("missing", "stuck") else "unknown"
            self._raise(_alert((name, ""), alarm, Attribution(cause, {}, {"value": float(value)}), at_s))
        elif not detector.alarmed:
            with self._lock:
                for told in [told for told in self._open.values() if (told.model, told.version) == (name, "")]:
                    self._over_since(told, f"{told.kind} over", at_s)

    def accept(self, model: str) -> None:
        """Take what a model's requests are now as the normal: its alarms end, and later ones are compared with that."""
        with self._lock:
            self._accepted.add(model)
            now_s = time.perf_counter() + self._offset_s
            for told in [told for told in self._open.values() if told.model == model]:
                text = f"{told.kind} accepted as the new normal after {format_span_s(now_s - told.since_s)}"
                self._over_since(told, text, now_s - self._repeat_s)

    # -- a sink of the monitor -------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, anew."""
        self._reset()
        self._monitor = monitor
        if self._recorder is not None:
            self.capture = AlarmCapture(self._recorder, self._follow_up, self.maintenance)
        self._evidence.start()
        self._outbox.start()
        self._thread = threading.Thread(target=self._watch, name="torchtriage-alerts", daemon=True)
        self._thread.start()

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Run finished requests through the model's detector."""
        evidence = self._evidence
        evidence.requests_s += sum(row[1] - row[0] for row in rows) * 1e-9
        evidence.look(time.perf_counter_ns())
        if self.capture is not None:
            self.capture.look(time.monotonic())
        key = (model.name, model.version)
        self._heard_s[key] = time.monotonic()
        detector = self._detectors.get(key)
        if detector is None:
            # a version that follows another is compared with it
            before = self._detectors.get((model.name, self._newest_version.get(model.name, "")))
            detector = self._detectors[key] = VersionDetector(evidence, before)
            self._newest_version[model.name] = model.version
            self._n_alarms[key] = dict.fromkeys(KINDS, 0)
        if model.name in self._accepted:
            self._accepted.discard(model.name)
            for known, of in self._detectors.items():
                if known[0] == model.name:
                    of.accept()
        for row in rows:
            if self._maintenance and any(span.covers(model.name, row) for span in self._maintenance):
                self.n_excused += 1
                continue
            alarm = detector.update(row)
            if alarm is not None:
                self._n_alarms[key][alarm.kind] += 1
                evidence.sample(time.perf_counter_ns())
                at_s, cause = row[1] * 1e-9 + self._offset_s, detector.cause(alarm)
                if not alarm.better:
                    text, relative = f"{alarm.kind}: {alarm.message}", alarm.kind not in ABSOLUTE
                    active = ActiveAlarm(text, version=model.version, cause=cause.cause, relative=relative)
                    detector.activate(alarm.kind, active)
                alert = self._raise(_alert(key, alarm, cause, at_s))
                if alert is not None and self.capture is not None and not alarm.better:
                    self.capture.arm(alert, self._monitor.rings(model), time.monotonic())
        for ended in detector.take_ended():
            self._end(key, ended, ended.at_s + self._offset_s)
        self._tell_ends(rows[-1][1] * 1e-9 + self._offset_s)
        if detector.alarm is not None:
            self._active[key] = (time.monotonic(), detector.alarm)

    def close(self, deadline_s: float) -> None:
        """Send what is pending until then."""
        self._evidence.stop()
        if self.capture is not None:
            self.capture.close()
        self._stop.set()
        self._outbox.close(deadline_s)
        self._thread.join(max(deadline_s - time.monotonic(), 0))

    def metrics(self) -> list[Value]:
        """Return the alarms, and the alerts that could not be sent, as metrics."""
        alarms: list[Value] = [
            ("alarms_total", {"model": model, "version": version, "kind": kind}, n)
            for (model, version), kinds in list(self._n_alarms.items())
            for kind, n in kinds.items()
        ]
        failures: Value = ("monitor_failures_total", {}, self._outbox.failures + self.n_refused)
        return [*alarms, *self._outbox.metrics(), failures]

    @property
    def n_failures(self) -> int:
        """Calls of channels that raised."""
        return self._outbox.failures

    @property
    def n_dropped(self) -> int:
        """Alerts that a channel never got: its queue was full, it refused them, or the process ended."""
        return self._outbox.dropped

    def pending(self) -> list[Alert]:
        """Return the alerts that some channel did not get yet."""
        return self._outbox.pending()

    # -- sending ---------------------------------------------------------------------------

    def _raise(self, alert: Alert) -> Alert | None:
        """Queue an alert; return it as it will be sent, None where it is not."""
        kind = (alert.model, alert.version, alert.kind)
        with self._lock:
            self._over.pop(kind, None)  # on again
            sent = self._sent.setdefault((*kind, alert.cause), _Sent())
            if alert.at_s - sent.at_s < self._repeat_s and alert.size < LARGER * sent.size:
                sent.n_since += 1
                return None
            if any(silence.covers(alert) for silence in self.silences):
                self.n_silenced += 1
                return None
            opened = self._open.get(kind)
            since_s = alert.at_s if opened is None else opened.since_s
            facts = {**alert.facts, "instance": self.instance}
            alert = replace(alert, n_before=sent.n_since, since_s=since_s, facts=facts)
            sent.at_s, sent.size, sent.n_since = alert.at_s, alert.size, 0
            self._open[kind] = alert
            self._largest[kind] = max(alert.size, self._largest.get(kind, 0.0)) if opened else alert.size
            self._put(alert)
        return alert

    def _put(self, alert: Alert) -> None:
        self.n_sent += 1
        self._outbox.put(alert)

    def _end(self, model: tuple[str, str], alarm: Alarm, at_s: float) -> None:
        key = (*model, alarm.kind)
        with self._lock:
            told = self._open.get(key)
            if told is None:
                return
            if alarm.lasts:
                told = replace(told, message=alarm.message, at_s=at_s, n_before=0, size=alarm.size, lasting=True)
                self._open[key] = told
                self._put(told)
                return
            message, largest = alarm.message, self._largest.get(key, alarm.size)
            if largest > alarm.size:  # it was on several times, with little between
                span = format_span_s(at_s - told.since_s)
                message = f"{alarm.kind} over, on and off for {span}, peak {largest:.3g}"
            self._over_since(told, message, at_s, size=max(largest, alarm.size))
            self._largest[key] = max(largest, alarm.size)

    def _over_since(self, told: Alert, message: str, at_s: float, **more: Any) -> None:
        # of what is open, and with the lock: who tells the ends takes it from both
        kind = (told.model, told.version, told.kind)
        self._over.setdefault(kind, replace(told, message=message, at_s=at_s, n_before=0, ended=True, **more))

    def _tell_ends(self, now_s: float) -> None:
        if not self._over:
            return
        with self._lock:
            for kind, alert in [*self._over.items()]:
                if now_s - alert.at_s >= self._repeat_s:
                    del self._over[kind], self._open[kind]
                    self._largest.pop(kind, None)
                    self._put(alert)

    def _follow_up(self, alert: Alert, path: str, captured: tuple[str, ...]) -> None:
        self._put(replace(alert, n_before=0, capture=path, captured=captured))

    def _watch(self) -> None:
        """Tell what is over, also where no request comes any more."""
        while not self._stop.wait(min(WATCH_S, IDLE_S)):
            now_s, at_s = time.monotonic(), time.perf_counter() + self._offset_s
            with self._lock:
                for told in self._open.values():
                    idle_s = IDLE_METRIC_S if told.model in self._metrics else IDLE_S
                    quiet_s = now_s - self._heard_s.get((told.model, told.version), now_s)
                    if quiet_s >= idle_s:
                        since = "reading" if told.model in self._metrics else "request"
                        text = f"{told.kind} assumed to be over: no {since} for {format_span_s(quiet_s)}"
                        self._over_since(told, text, at_s - self._repeat_s)
            self._tell_ends(at_s)


def _alert(model: tuple[str, str], alarm: Alarm, why: Attribution, at_s: float) -> Alert:
    return Alert(
        *model, alarm.kind, alarm.message, why.cause, alarm.evidence, at_s, 0, why.shares, why.facts, size=alarm.size
    )


def log(alert: Alert) -> None:
    """Write to the logger ``torchtriage.monitor``: a warning, or info where requests got quicker or it is over."""
    level = logging.INFO if alert.quicker or alert.ended else logging.WARNING
    logging.getLogger("torchtriage.monitor").log(level, "%s", alert.title())


class Webhook:
    """Posts an alert as JSON; tried again, ever later, until it is taken."""

    retried = True

    def __init__(self, url: str, *, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"expected a URL with http or https, found {url!r}")
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def body(self, alert: Alert) -> Any:
        """Return what is posted."""
        return alert.document()

    def __call__(self, alert: Alert) -> None:
        """Post it; raises what urllib raises."""
        data = json.dumps(self.body(alert)).encode()
        request = urllib.request.Request(self._url, data, self._headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read(1000)


class Slack(Webhook):
    """Posts to an incoming webhook of Slack, or of what understands its ``text``."""

    def body(self, alert: Alert) -> Any:
        """Return a line of text."""
        again = f" (and {alert.n_before} more before)" if alert.n_before else ""
        escaped = alert.title().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        news = "information_source" if alert.quicker else "rotating_light"
        sign = f":{'white_check_mark' if alert.ended else news}:"
        old_s = time.time() - alert.at_s
        late = f" ({format_span_s(old_s)} ago)" if old_s > LATE_S else ""
        return {"text": f"{sign} {escaped}{again}{late}"}


class Alertmanager(Webhook):
    """Posts to Prometheus' Alertmanager; ``url`` is its root, such as http://host:9093.

    ``name`` : the alerts' name, or several by kind: ``{"slow-device": "CameraSlow", "": "CameraAlarm"}``, of which the
    one of no kind stands for all others. ``runbook`` : a link for those who are called. An alarm that is on is posted
    again every ``refresh_s``, with an ``endsAt`` four times as far ahead, so that it ends there by itself where this
    process is killed. Processes are told apart by the label ``instance``.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        labels: Iterable[tuple[str, str]] = (),
        name: str | Mapping[str, str] = NAME,
        runbook: str = "",
        refresh_s: float = REFRESH_S,
    ) -> None:
        super().__init__(url.rstrip("/") + "/api/v2/alerts", token=token)
        if not 0 < refresh_s < math.inf:
            raise UsageError(f"expected seconds above 0, found refresh_s={refresh_s!r}")
        self.refresh_s = refresh_s
        self._labels = dict(labels)
        self._names = {"": name} if isinstance(name, str) else dict(name)
        self._runbook = {"runbook_url": runbook} if runbook else {}

    def body(self, alert: Alert) -> Any:
        """Return the alert as Alertmanager's API has it."""
        labels = {
            "alertname": self._names.get(alert.kind, self._names.get("", NAME)),
            "model": alert.model,
            "version": alert.version,
            "kind": alert.kind,
            "severity": "info" if alert.quicker else "warning",
            **{name: str(alert.facts[name]) for name in ("device", "against", "instance") if alert.facts.get(name)},
            **self._labels,
        }
        annotations = {"summary": alert.title(), "cause": alert.cause, "fix": alert.finding().fix.text, **self._runbook}
        # not in the future, whatever a clock did: Alertmanager would refuse it, or take an end as still to come
        now_s = time.time()
        start_s = min(alert.since_s or alert.at_s, now_s)
        end_s = min(max(alert.at_s, start_s), now_s) if alert.ended else now_s + KEPT * self.refresh_s
        # the labels are what it was told with, so that it is the same alert
        times = {"startsAt": _stamp(start_s), "endsAt": _stamp(end_s)}
        return [{"labels": labels, "annotations": annotations, **times}]


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds")
