"""Alarms of observed models, and where they are sent: callbacks, a log, webhooks, Alertmanager.

The detectors run in the monitor's thread, a few microseconds per request; whatever is told of an
alarm runs in a thread of its own, and may block, raise or be slow: alarms wait for it, up to a
bound, and what is beyond is counted.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchtriage.errors import UsageError
from torchtriage.monitor.detect.requests import RequestDetector, Sample

if TYPE_CHECKING:
    from torchtriage.monitor.monitor import Monitor
    from torchtriage.monitor.observe import Model, Row

__all__ = ["Alert", "Alertmanager", "Detection", "Silence", "Slack", "Webhook", "log"]

MAX_PENDING = 1_000
TIMEOUT_S = 5.0
REPEAT_S = 60.0
"""The same kind of alarm of the same model is not told again before."""
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

    def title(self) -> str:
        """Return one line for people."""
        name = f"{self.model} {self.version}".strip()
        cause = f" ({self.cause})" if self.cause else ""
        return f"{name}: {self.message}{cause}"


@dataclass(frozen=True)
class Silence:
    """Alarms not to tell, until a time: of a model, a kind, or both; empty means any."""

    until_s: float
    model: str = ""
    kind: str = ""

    def covers(self, alert: Alert) -> bool:
        """Return whether an alert falls under it."""
        return (
            alert.at_s < self.until_s
            and self.model in ("", alert.model)
            and self.kind in ("", alert.kind)
        )


Channel = Callable[[Alert], object]


class Detection:
    """Runs the default detector over every model's requests and tells ``channels`` of alarms.

    >>> Detection(log, Slack("https://hooks.slack.com/..."), print)  # doctest: +SKIP

    A channel is any function of an :class:`Alert`. Equal alarms (model, version, kind) within
    ``repeat_s`` are told once; the next tells how many there were.
    """

    drain_s = DRAIN_S

    def __init__(self, *channels: Channel, repeat_s: float = REPEAT_S) -> None:
        for channel in channels:
            if not callable(channel):
                raise UsageError(f"expected functions to tell alerts to, found {channel!r}")
        self._channels = channels
        self._repeat_s = repeat_s
        self.silences: list[Silence] = []
        self.n_told = self.n_silenced = self.n_dropped = self.n_failures = 0
        self._begin()

    def _begin(self) -> None:
        self._detectors: dict[tuple[str, str], RequestDetector] = {}
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._alerts: deque[Alert] = deque()
        self._ready = threading.Event()
        self._stop = False
        self._offset_s = time.time() - time.perf_counter()

    def silence(self, seconds: float, *, model: str = "", kind: str = "") -> None:
        """Tell nothing of a model, a kind, or anything, for a while."""
        # the clock of the alerts' at_s, which no jump of the wall clock moves
        now_s = time.perf_counter() + self._offset_s
        self.silences = [one for one in self.silences if one.until_s > now_s]
        self.silences.append(Silence(now_s + seconds, model, kind))

    # -- a sink of the monitor -------------------------------------------------------------

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, anew."""
        self._begin()
        self._thread = threading.Thread(target=self._tell, name="torchtriage-alerts", daemon=True)
        self._thread.start()

    def offer(self, model: Model, rows: list[Row]) -> None:
        """Judge finished requests."""
        key = (model.name, model.version)
        detector = self._detectors.get(key)
        if detector is None:
            detector = self._detectors[key] = RequestDetector()
        for start_ns, end_ns, size, note in rows:
            value = (end_ns - start_ns) * 1e-9
            ok = note is None or not (note.error or note.nan)
            alarm = detector.update(Sample(value, end_ns * 1e-9, size, ok))
            if alarm is not None:
                at_s = end_ns * 1e-9 + self._offset_s
                self._raise(
                    Alert(*key, alarm.kind, alarm.message, alarm.cause, alarm.evidence, at_s)
                )

    def close(self, deadline_s: float) -> None:
        """Tell what is pending until then."""
        self._stop = True
        self._ready.set()
        self._thread.join(max(deadline_s - time.monotonic(), 0))

    # -- telling ---------------------------------------------------------------------------

    def _raise(self, alert: Alert) -> None:
        key = (alert.model, alert.version, alert.kind)
        last_s, n_before = self._told.get(key, (-float("inf"), 0))
        if alert.at_s - last_s < self._repeat_s:
            self._told[key] = (last_s, n_before + 1)
            return
        if any(one.covers(alert) for one in self.silences):
            self.n_silenced += 1
            return
        self._told[key] = (alert.at_s, 0)
        if len(self._alerts) >= MAX_PENDING:
            self.n_dropped += 1
            return
        self._alerts.append(Alert(**{**vars(alert), "n_before": n_before}))
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


# -- channels ------------------------------------------------------------------------------


def log(alert: Alert) -> None:
    """Tell the logger ``torchtriage.monitor``, as a warning."""
    logging.getLogger("torchtriage.monitor").warning("%s", alert.title())


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
        return vars(alert) | {"title": alert.title()}

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
        return {"text": f":rotating_light: {escaped}{again}"}


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
                    **self._labels,
                },
                "annotations": {"summary": alert.title()},
                "startsAt": at,
            }
        ]
