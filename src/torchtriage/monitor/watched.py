"""One version of a model under watch: its detector, and what an alarm's cause is judged by."""

from __future__ import annotations

import copy
from collections import Counter, deque
from typing import TYPE_CHECKING

from torchtriage.monitor.cause import Judged, Seen, Sizes, judge
from torchtriage.monitor.detect import requests
from torchtriage.monitor.detect.requests import Alarm, RequestDetector, Sample

if TYPE_CHECKING:
    from torchtriage.monitor.evidence import Evidence
    from torchtriage.monitor.observe import Row

__all__ = ["KINDS", "Watched"]

KINDS = (*requests.KINDS, "gc")
"""Of alarms."""
N_RECENT = 256
N_OUTCOMES = 40
"""Newest requests whose errors are told."""
COLD = 100
"""First requests of a further version, which are not held against the version before: caches
fill."""
LEAST = 0.1
"""What garbage collection adds to requests that is told of."""
FEWEST = 5
"""Requests it must have held up: one pause, however long, is none."""
TIMES_USUAL = 3.0
SPAN = 200
MEMORY = 5_000


class Watched:
    """Judges one version's requests.

    Time in the pauses of the garbage collector is taken off what a request took too long: such a
    pause is known, and no alarm. What is watched instead is how much it adds. ``before`` : another
    version of the model, whose level this one is held against.
    """

    def __init__(self, evidence: Evidence, before: Watched | None = None) -> None:
        self._evidence = evidence
        self._detector = RequestDetector()
        self._sizes = Sizes()
        self._followed = False
        if before is not None and before._detector.settled:
            self._followed = True
            self._detector = copy.deepcopy(before._detector)
            self._sizes = copy.deepcopy(before._sizes)
        self._n = 0
        self._recent: deque[Seen] = deque(maxlen=N_RECENT)
        self._outcomes: deque[str] = deque(maxlen=N_OUTCOMES)
        self._collector = Collector()
        self.says = ""
        """The last alarm that was no improvement."""

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is on that is no improvement."""
        if not self._detector.alarmed:
            self.says = ""
        return bool(self.says)

    def update(self, row: Row) -> Alarm | None:
        """Take a finished request; return the alarm it raises, if any."""
        start_ns, end_ns, size, note = row
        error = "" if note is None else note.error or ("NaN" if note.nan else "")
        self._outcomes.append(error)
        took_s = (end_ns - start_ns) * 1e-9
        if error:
            return self._detector.update(Sample(took_s, end_ns * 1e-9, size, ok=False))
        self._n += 1
        if self._followed and self._n <= COLD:
            return None
        expected_s = self._detector.expected_s(size)
        if expected_s is None:
            return self._detector.update(Sample(took_s, end_ns * 1e-9, size))
        if len(self._recent) == N_RECENT:
            self._sizes.learn(self._recent[0].size)
        self._recent.append(Seen(start_ns, end_ns, size, expected_s))
        paused_s = self._evidence.paused_ns(start_ns, end_ns) * 1e-9
        added_s = min(paused_s, max(took_s - expected_s, 0.0)) if paused_s else 0.0
        alarm = self._detector.update(Sample(took_s - added_s, end_ns * 1e-9, size))
        collecting = self._collector.update(added_s / expected_s)
        if alarm is None and collecting and self._detector.settled:
            text = f"garbage collection adds {collecting:.0%} to requests"
            alarm = Alarm("gc", self._n, end_ns * 1e-9, collecting / LEAST, text, "GC")
        return alarm

    def cause(self, alarm: Alarm) -> Judged:
        """Return why it was raised, as far as that can be told."""
        age = self._n if self._followed else None
        failed = Counter(error for error in self._outcomes if error)
        return judge(alarm.kind, list(self._recent), failed, self._evidence, self._sizes, age)


class Collector:
    """How much garbage collection adds to requests, lately and usually."""

    def __init__(self) -> None:
        self._lately: deque[float] = deque(maxlen=SPAN)
        self._sum = 0.0
        self._n_held = 0
        self._usual = 0.0
        self._n = 0
        self._on = False

    def update(self, added: float) -> float:
        """Take what it added to one request, as a share; return its share if that is an alarm."""
        lately = self._lately
        if len(lately) == SPAN:
            oldest = lately[0]
            self._sum -= oldest
            self._n_held -= oldest > 0
            # what is long past is usual
            self._n = min(self._n + 1, MEMORY)
            self._usual += (min(oldest, 10 * LEAST + 10 * self._usual) - self._usual) / self._n
        lately.append(added)
        self._sum += added
        self._n_held += added > 0
        share = self._sum / len(lately)
        limit = max(LEAST, TIMES_USUAL * self._usual)
        if self._on:
            self._on = share > limit / 2
            return 0.0
        self._on = share > limit and self._n_held >= FEWEST
        return share if self._on else 0.0
