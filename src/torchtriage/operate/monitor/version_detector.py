"""The detector of one version of a model, with the evidence for an alarm's cause."""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from typing import Any

from torchtriage.operate.detect import latency_detector
from torchtriage.operate.detect.latency_detector import Alarm, RequestDetector, Sample
from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.alert_cause import Attribution, SizeCounts, SlowRequest, attribute
from torchtriage.operate.monitor.host_sampler import HostSampler

KINDS = (*latency_detector.KINDS, "gc")  # of alarms
N_RECENT = 256
N_OUTCOMES = 40  # newest requests whose errors are reported
COLD = 100  # first requests of a further version, not compared with the version before: caches fill
LEAST = 0.1  # share that garbage collection adds to requests from which it is an alarm
FEWEST = 5  # requests it must have delayed: one pause, however long, is no alarm
TIMES_USUAL = 3.0
SPAN = 200
MEMORY = 5_000


class VersionDetector:
    """Detects alarms in one version's requests.

    Time in the pauses of the garbage collector is taken off what a request took too long: such a
    pause is no alarm, but its share of all requests may be. ``before`` : another version of the
    model, with whose level this one is compared.
    """

    def __init__(self, evidence: HostSampler, before: VersionDetector | None = None) -> None:
        self._evidence = evidence
        self._detector = RequestDetector()
        self._sizes = SizeCounts()
        self._followed = before is not None and before._detector.settled
        if before is not None and self._followed:
            self._detector = copy.deepcopy(before._detector)
            self._detector.forget_alarms()
            self._sizes = copy.deepcopy(before._sizes)
        self._n = 0
        self._recent: deque[SlowRequest] = deque(maxlen=N_RECENT)
        self._outcomes: deque[str] = deque(maxlen=N_OUTCOMES)
        self._collector = CollectorLoad()
        self._collecting = 0.0  # the largest share told since it is too much
        self._ended: list[Alarm] = []
        self._active: dict[str, Any] = {}

    @property
    def alarm(self) -> Any:
        """The newest alarm that is on, of those that :meth:`activate` took; None without one."""
        alarmed = self._detector.alarmed | ({"gc"} if self._collecting else set())
        return next((alarm for kind, alarm in reversed(self._active.items()) if kind in alarmed), None)

    def activate(self, kind: str, alarm: Any) -> None:
        """Take an alarm of a kind as who sends alerts has it."""
        self._active.pop(kind, None)  # the newest comes last
        self._active[kind] = alarm

    def update(self, row: RequestRow) -> Alarm | None:
        """Take a finished request; return the alarm it raises, if any."""
        start_ns, end_ns, size, note = row
        error = "" if note is None else note.error or ("NaN" if note.nan else "")
        self._outcomes.append(error)
        took_s = (end_ns - start_ns) * 1e-9
        if note is not None and error:
            value = took_s if note.error else math.nan
            return self._detector.update(Sample(value, end_ns * 1e-9, size, ok=not note.error))
        self._n += 1
        if self._followed and self._n <= COLD:
            return None
        expected_s = self._detector.expected_s(size)
        if expected_s is None:
            return self._detector.update(Sample(took_s, end_ns * 1e-9, size))
        if len(self._recent) == N_RECENT:
            self._sizes.learn(self._recent[0].size)
        self._recent.append(SlowRequest(start_ns, end_ns, size, expected_s))
        paused_s = self._evidence.paused_ns(start_ns, end_ns) * 1e-9
        added_s = min(paused_s, max(took_s - expected_s, 0.0)) if paused_s else 0.0
        alarm = self._detector.update(Sample(took_s - added_s, end_ns * 1e-9, size))
        collecting = self._collector.update(added_s / expected_s)
        if alarm is None and collecting and self._detector.settled:
            text = f"garbage collection adds {collecting:.0%} to requests"
            alarm = Alarm("gc", self._n, end_ns * 1e-9, collecting / LEAST, text, "GC", collecting)
            self._collecting = max(self._collecting, collecting)
        elif self._collecting and not self._collector.on:
            text = f"gc over, peak {self._collecting:.0%}"
            self._ended.append(Alarm("gc", self._n, end_ns * 1e-9, 0.0, text, "GC", self._collecting))
            self._collecting = 0.0
        return alarm

    def take_ended(self) -> list[Alarm]:
        """Return what is over since it was asked last, or has come to last."""
        ended, self._ended = [*self._ended, *self._detector.take_ended()], []
        return ended

    def accept(self) -> None:
        """Take what requests are now as the normal."""
        self._detector.accept()
        self._collecting = 0.0

    def cause(self, alarm: Alarm) -> Attribution:
        """Return why it was raised."""
        age = self._n if self._followed else None
        failed = Counter(filter(None, self._outcomes))
        return attribute(alarm.kind, list(self._recent), failed, self._evidence, self._sizes, age)


class CollectorLoad:
    """The share that garbage collection adds to requests, lately and usually."""

    def __init__(self) -> None:
        self._lately: deque[float] = deque(maxlen=SPAN)
        self._sum = 0.0
        self._n_delayed = 0
        self._usual = 0.0
        self._n = 0
        self.on = False

    def update(self, added: float) -> float:
        """Take the share added to a request; return the mean share if that is an alarm, else 0."""
        lately = self._lately
        if len(lately) == SPAN:
            oldest = lately[0]
            self._sum -= oldest
            self._n_delayed -= oldest > 0
            # what is long past is usual
            self._n = min(self._n + 1, MEMORY)
            self._usual += (min(oldest, 10 * LEAST + 10 * self._usual) - self._usual) / self._n
        lately.append(added)
        self._sum += added
        self._n_delayed += added > 0
        share = self._sum / len(lately)
        limit = max(LEAST, TIMES_USUAL * self._usual)
        if self.on:
            self.on = share > limit / 2
            return 0.0
        self.on = share > limit and self._n_delayed >= FEWEST
        return share if self.on else 0.0
