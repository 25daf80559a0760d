"""Alarms of observed models, and where they are sent: callbacks, a log, webhooks, Alertmanager.

The detectors run in the monitor's thread, tens of microseconds per request, and so does the search
for an alarm's cause; whatever is told of an alarm runs in a thread of its own, and may block, raise
or be slow: alarms wait for it, up to a bound, and what is beyond is counted.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchtriage.errors import UsageError
from torchtriage.monitor.armed import Armed, Recorder
from torchtriage.monitor.cause import CAUSES, Judged
from torchtriage.monitor.detect.metric import MetricDetector
from torchtriage.monitor.detect.requests import Alarm, Sample
from torchtriage.monitor.evidence import Evidence
from torchtriage.monitor.watched import KINDS, Watched

if TYPE_CHECKING:
    from torchtriage.finding import Finding
    from torchtriage.monitor.metrics import Value
    from torchtriage.monitor.monitor import Monitor
    from torchtriage.monitor.observe import Model, Row

__all__ = ["Alert", "Alertmanager", "Detection", "Silence", "Slack", "Webhook", "log"]

MAX_PENDING = 1_000
TIMEOUT_S = 5.0
REPEAT_S = 60.0
"""The same kind of alarm of the same model is not told again before."""
ALARM_S = 30.0
"""How long a ladder is kept down after what alarmed has ended."""
FORGET_S = 3600.0
"""A request that lasted longer than this may be judged though there was maintenance in it."""
MAX_METRICS = 1_000
DRAIN_S = 0.003
"""How often the monitor's thread looks while there is somebody to alarm."""


@dataclass(frozen=True)
class Alert:
    """An alarm of one model, as it is told."""

    model: str
    version: str
    kind: str
    message: str
    cause: str
    evidence: float
    at_s: float
    """Wall-clock time."""
    n_before: int = 0
    """Equal alarms since the last one that was told."""
    shares: dict[str, float] = field(default_factory=dict, hash=False)
    """How much of the excess time each cause explains, 0 to 1; empty where that says nothing."""
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    """What was seen: requests, collections, compilations, use of the machine."""
    capture: str = ""
    """The recording of a request after the alarm, in the follow-up of an alert told before."""
    captured: tuple[str, ...] = ()
    """What the recording shows: the first findings, a sentence each."""

    def title(self) -> str:
        """Return one line for people."""
        name = f"{self.model} {self.version}".strip()
        cause = f" ({self.cause})" if self.cause not in ("", "unknown") else ""
        if self.capture:
            shows = "; ".join(self.captured) or "nothing costly"
            return f"{name}, recorded after {self.message}{cause}: {shows}"
        return f"{name}: {self.message}{cause}"

    @property
    def quicker(self) -> bool:
        """Whether requests take less than expected: news, and no trouble."""
        return float(self.facts.get("excess_s", 0.0)) < 0

    def finding(self) -> Finding:
        """Return the alert as every other judgement is told, with what to do."""
        from torchtriage.monitor.found import finding_of

        return finding_of(self)

    def document(self) -> dict[str, Any]:
        """Return the alert with its finding as JSON's types: ``torchtriage-alert/1``."""
        from torchtriage.monitor.found import document_of

        return document_of(self)


@dataclass(frozen=True)
class Silence:
    """Alarms not to tell, until a time: of a model, kind and cause; empty means any."""

    until_s: float
    model: str = ""
    kind: str = ""
    cause: str = ""

    def covers(self, alert: Alert) -> bool:
        """Return whether an alert falls under it."""
        return (
            alert.at_s < self.until_s
            and self.model in ("", alert.model)
            and self.kind in ("", alert.kind)
            and self.cause in ("", alert.cause)
        )


@dataclass
class _Disturbance:
    """A stretch of time that is not judged; ``end_ns`` : None while it lasts."""

    model: str
    start_ns: int
    end_ns: int | None = None

    def covers(self, model: str, row: Row) -> bool:
        """Return whether a request overlaps it."""
        ended = self.end_ns is not None and row[0] >= self.end_ns
        return self.model in ("", model) and row[1] > self.start_ns and not ended


Channel = Callable[[Alert], object]


class Detection:
    """Runs the default detector over every model's requests and tells ``channels`` of alarms.

    >>> Detection(log, Slack("https://hooks.slack.com/..."), print)  # doctest: +SKIP

    A channel is any function of an :class:`Alert`. Equal alarms (model, version, kind) within
    ``repeat_s`` are told once; the next tells how many there were. ``capture`` : a sampler,
    ``torchtriage.sample(folder, every_s=None)``, which records a request after an alarm; a second
    alert says what the recording shows.
    """

    drain_s = DRAIN_S

    def __init__(
        self, *channels: Channel, repeat_s: float = REPEAT_S, capture: Recorder | None = None
    ) -> None:
        for channel in channels:
            if not callable(channel):
                raise UsageError(f"expected functions to tell alerts to, found {channel!r}")
        self._channels = channels
        self._repeat_s = repeat_s
        if capture is not None and not hasattr(capture, "on_capture"):
            raise UsageError(
                f"expected a sampler to capture with, found {capture!r}",
                hint="capture=torchtriage.sample(folder, every_s=None)",
            )
        self._recorder = capture
        self.capture: Armed | None = None
        """What records requests after alarms, with its counts; None without a sampler."""
        self.silences: list[Silence] = []
        self._evidence = Evidence()
        self._begin()

    def _begin(self) -> None:
        self.n_told = self.n_silenced = self.n_dropped = self.n_failures = 0
        self.n_excused = 0
        """Requests of declared maintenance, which were not judged."""
        self._evidence.stop()  # a fork copied it
        self._evidence = Evidence()
        self._lock = threading.Lock()
        self._disturbances: list[_Disturbance] = []
        self._watched: dict[tuple[str, str], Watched] = {}
        self._versions: dict[str, str] = {}
        self._metrics: dict[str, MetricDetector] = {}
        self._on: dict[str, tuple[float, str]] = {}
        self._n_alarms: dict[tuple[str, str], dict[str, int]] = {}
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._alerts: deque[Alert] = deque()
        self._ready = threading.Event()
        self._stop = False
        self._offset_s = time.time() - time.perf_counter()

    def silence(self, seconds: float, *, model: str = "", kind: str = "", cause: str = "") -> None:
        """Tell nothing of a model, a kind, a cause, or anything, for a while."""
        if cause and cause not in CAUSES:
            raise UsageError(f"expected a cause of {', '.join(CAUSES)}, found {cause!r}")
        # the clock of the alerts' at_s, which no jump of the wall clock moves
        now_s = time.perf_counter() + self._offset_s
        self.silences = [one for one in self.silences if one.until_s > now_s]
        self.silences.append(Silence(now_s + seconds, model, kind, cause))

    @contextmanager
    def maintenance(self, *, model: str = "") -> Iterator[None]:
        """Declare a disturbance: requests that overlap the block are not judged, nor learned from.

        >>> with detection.maintenance(model="detector"):  # doctest: +SKIP
        ...     reload_weights()
        """
        one = _Disturbance(model, time.perf_counter_ns())
        long_ago_ns = one.start_ns - int(FORGET_S * 1e9)
        self._disturbances = [
            old for old in self._disturbances if old.end_ns is None or old.end_ns > long_ago_ns
        ] + [one]
        try:
            yield
        finally:
            one.end_ns = time.perf_counter_ns()

    def alarm(self, model: str) -> str:
        """Return what alarms of a model, until half a minute after its end; for a ladder.

        >>> Ladder("detector", modes, alarm=lambda: detection.alarm("detector"))  # doctest: +SKIP
        """
        at_s, text = self._on.get(model, (-float("inf"), ""))
        return text if time.monotonic() - at_s < ALARM_S else ""

    def metric(self, name: str, value: float) -> None:
        """Judge a reading of a metric: a queue's length, a rate; at a fixed pace, from one thread.

        The alarms' model is the metric's name. Takes 50 µs: not for the request path.
        """
        detector = self._metrics.get(name)
        if detector is None:
            if len(self._metrics) >= MAX_METRICS:
                self.n_dropped += 1
                return
            detector = self._metrics[name] = MetricDetector()
        at_s = time.perf_counter() + self._offset_s
        alarm = detector.update(Sample(float(value), at_s))
        if alarm is not None:
            stale = alarm.kind in ("missing", "stuck")
            judged = Judged("stale metric" if stale else "unknown", {}, {"value": float(value)})
            self._raise(_alert(name, "", alarm, judged, at_s))

    # -- a sink of the monitor -------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, anew."""
        self._begin()
        self._monitor = monitor
        if self._recorder is not None:
            self.capture = Armed(self._recorder, self._follow_up, self.maintenance)
        self._evidence.start()
        self._thread = threading.Thread(target=self._tell, name="torchtriage-alerts", daemon=True)
        self._thread.start()

    def offer(self, model: Model, rows: list[Row]) -> None:
        """Judge finished requests."""
        evidence = self._evidence
        evidence.requests_s += sum(row[1] - row[0] for row in rows) * 1e-9
        evidence.look(time.perf_counter_ns())
        if self.capture is not None:
            self.capture.look(time.monotonic())
        key = (model.name, model.version)
        watched = self._watched.get(key) or self._watch(*key)
        for row in rows:
            if self._disturbances and any(
                one.covers(model.name, row) for one in self._disturbances
            ):
                self.n_excused += 1
                continue
            alarm = watched.update(row)
            if alarm is not None:
                self._n_alarms[key][alarm.kind] += 1
                if not alarm.better:
                    watched.says = f"{alarm.kind}: {alarm.message}"
                evidence.sample(time.perf_counter_ns())
                at_s = row[1] * 1e-9 + self._offset_s
                told = self._raise(_alert(*key, alarm, watched.cause(alarm), at_s))
                if told is not None and self.capture is not None and not alarm.better:
                    self.capture.arm(told, self._monitor.rings(model), time.monotonic())

        if watched.alarmed:
            self._on[model.name] = (time.monotonic(), watched.says)

    def _watch(self, model: str, version: str) -> Watched:
        """Begin with a version; one that follows another is held against it."""
        before = self._watched.get((model, self._versions.get(model, "")))
        watched = self._watched[model, version] = Watched(self._evidence, before)
        self._versions[model] = version
        self._n_alarms[model, version] = dict.fromkeys(KINDS, 0)
        return watched

    def close(self, deadline_s: float) -> None:
        """Tell what is pending until then."""
        self._evidence.stop()
        if self.capture is not None:
            self.capture.close()
        self._stop = True
        self._ready.set()
        self._thread.join(max(deadline_s - time.monotonic(), 0))

    def metrics(self) -> list[Value]:
        """Return what was raised, and what could not be told, as metrics."""
        raised: list[Value] = [
            ("alarms_total", {"model": model, "version": version, "kind": kind}, n)
            for (model, version), kinds in list(self._n_alarms.items())
            for kind, n in kinds.items()
        ]
        return [*raised, ("monitor_failures_total", {}, self.n_failures + self.n_dropped)]

    # -- telling ---------------------------------------------------------------------------

    def _raise(self, alert: Alert) -> Alert | None:
        """Have an alert told; return it as it will be, None where it is not."""
        key = (alert.model, alert.version, alert.kind)
        with self._lock:
            last_s, n_before = self._told.get(key, (-float("inf"), 0))
            if alert.at_s - last_s < self._repeat_s:
                self._told[key] = (last_s, n_before + 1)
                return None
            if any(one.covers(alert) for one in self.silences):
                self.n_silenced += 1
                return None
            self._told[key] = (alert.at_s, 0)
            if len(self._alerts) >= MAX_PENDING:
                self.n_dropped += 1
                return None
            told = replace(alert, n_before=n_before)
            self._alerts.append(told)
        self._ready.set()
        return told

    def _follow_up(self, alert: Alert, path: str, captured: tuple[str, ...]) -> None:
        """Tell what the recording shows that was made after an alert."""
        self._alerts.append(replace(alert, n_before=0, capture=path, captured=captured))
        self._ready.set()

    def _tell(self) -> None:
        while True:
            self._ready.wait()
            self._ready.clear()
            while self._alerts:
                alert = self._alerts.popleft()
                for channel in self._channels:
                    try:
                        channel(alert)
                    except Exception:  # noqa: PERF203 - one channel's failure is not the others'
                        self.n_failures += 1
                self.n_told += 1
            if self._stop:
                return


def _alert(model: str, version: str, alarm: Alarm, judged: Judged, at_s: float) -> Alert:
    return Alert(
        model,
        version,
        alarm.kind,
        alarm.message,
        judged.cause,
        alarm.evidence,
        at_s,
        shares=judged.shares,
        facts=judged.facts,
    )


# -- channels ------------------------------------------------------------------------------


def log(alert: Alert) -> None:
    """Tell the logger ``torchtriage.monitor``: a warning, or info where requests got quicker."""
    level = logging.INFO if alert.quicker else logging.WARNING
    logging.getLogger("torchtriage.monitor").log(level, "%s", alert.title())


class Webhook:
    """Posts an alert as JSON."""

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
        sign = ":information_source:" if alert.quicker else ":rotating_light:"
        return {"text": f"{sign} {escaped}{again}"}


class Alertmanager(Webhook):
    """Posts to Prometheus' Alertmanager; ``url`` is its root, such as http://host:9093."""

    def __init__(
        self, url: str, *, token: str = "", labels: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(url.rstrip("/") + "/api/v2/alerts", token=token)
        self._labels = dict(labels)

    def body(self, alert: Alert) -> Any:
        """Return the alert as Alertmanager's API has it."""
        at = datetime.fromtimestamp(alert.at_s, timezone.utc).isoformat()
        return [
            {
                "labels": {
                    "alertname": "TorchtriageAnomaly",
                    "model": alert.model,
                    "version": alert.version,
                    "kind": alert.kind,
                    "severity": "info" if alert.quicker else "warning",
                    **self._labels,
                },
                "annotations": {
                    "summary": alert.title(),
                    "cause": alert.cause,
                    "fix": alert.finding().fix.text,
                },
                "startsAt": at,
            }
        ]
