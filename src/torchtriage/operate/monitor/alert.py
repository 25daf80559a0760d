"""An alarm of one model, as channels get it: with a finding, whose code and fix go by the cause."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torchtriage.core.finding import Certainty, Finding, Fix, Place, Severity
from torchtriage.operate.monitor.alert_cause import Cause

ALERT_SCHEMA = "torchtriage-alert/1"
FAMILY = "live"
SURE = 0.8  # share of the excess from which a cause is certain


@dataclass(frozen=True)
class AlertCode:
    """The identity of a cause, its fix and what its page says: looks like, slow because, leave it when."""

    cause: Cause
    code: str
    name: str
    title: str
    fix: Fix
    looks: str
    slow: str
    leave: str

    @property
    def page(self) -> str:
        """Its page in the catalogue."""
        return f"""{self.title}.

Looks like: {self.looks}
Slow because: {self.slow}
Cost: ``excess_s`` in the evidence, the time the requests took beyond the expected.
Fix: {self.fix.text}
Leave it when: {self.leave}
Source: requests observed while the service runs; see ``docs/detection-measured.md`` for how often
    the cause is right.
"""


_CODES = (
    AlertCode(
        "version change",
        "LIV001",
        "version-change",
        "A new version behaves differently",
        Fix("Compare the versions with torchtriage compare or an experiment; roll back in the meantime."),
        looks="an alarm within the first 2,000 requests of a version, compared with the version"
        " before, that no measurement explains; its first 100 requests are skipped.",
        slow="the new code or weights do more work, or fail.",
        leave="the change was intended: Detection.accept(model) makes it the new normal.",
    ),
    AlertCode(
        "input mix",
        "LIV002",
        "input-mix",
        "Request sizes differ from before",
        Fix("Look at who sends what; plan buckets and capacity for the new sizes."),
        looks="requests of sizes that fewer than one in fifty had before explain half of the excess,"
        " or most requests are far outside the known sizes.",
        slow="larger inputs are more work, and new sizes may trigger compilation.",
        leave="the change in traffic is expected.",
    ),
    AlertCode(
        "host contention",
        "LIV003",
        "host-contention",
        "Threads wait for busy CPU cores",
        Fix("Give the service CPU cores of its own, or move the other processes.", "taskset -c 0-7 python serve.py"),
        looks="the time that threads waited for a CPU core, beyond the usual, or time that a"
        " hypervisor took, explains half of the excess.",
        slow="a waiting thread does nothing.",
        leave="the other processes are known and short-lived.",
    ),
    AlertCode(
        "GC",
        "LIV004",
        "gc-pauses",
        "Garbage collection delays requests",
        Fix(
            "Freeze long-lived objects, collect less often or between requests; find what creates cycles.",
            "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 50, 50)",
        ),
        looks="pauses of Python's collector, seen through gc.callbacks, add a tenth to requests and"
        " three times the usual. A single pause raises no alarm: its time is subtracted.",
        slow="a collection of the oldest generation walks over all objects, with the interpreter's lock held.",
        leave="they occur only between requests.",
    ),
    AlertCode(
        "recompile",
        "LIV005",
        "compiling-under-load",
        "torch.compile compiles while requests wait",
        Fix(
            "Compile the expected shapes before the service is ready, or reduce their number"
            " (tt.BucketedModule); torchtriage compile names the guard that failed."
        ),
        looks="torch.compile started to compile during the requests that explain half of the excess.",
        slow="compiling takes seconds, and the request waits for it.",
        leave="it was the first call after a deployment.",
    ),
    AlertCode(
        "errors",
        "LIV006",
        "failing-requests",
        "Requests fail",
        Fix("The kinds of errors and their number are in the evidence; check the service's log at that time."),
        looks="so many failures that, given their usual share, the probability is one in 8,000, whatever that share"
        " is: two of 20 requests if none failed before, 22 in a row if half did.",
        slow="it is not slow; it is wrong.",
        leave="callers send requests that cannot be answered.",
    ),
    AlertCode(
        "NaN",
        "LIV009",
        "nan-answers",
        "Requests return NaN",
        Fix("Check what changed in inputs, weights or precision; serve the previous version in the meantime."),
        looks="so many answers with NaN that, given their usual share, the probability is one in 8,000.",
        slow="it is not slow; it is wrong, and looks like an answer.",
        leave="NaN stands for no answer in this service.",
    ),
    AlertCode(
        "stale metric",
        "LIV007",
        "stale-metric",
        "The same value keeps repeating",
        Fix("Check what produces the value: a hung reader, a cache, a stopped clock."),
        looks="a value repeats so often that the probability by chance is one in 10⁹, or readings stop.",
        slow="it is not slow; its state is no longer known.",
        leave="the value is naturally constant.",
    ),
    AlertCode(
        "unknown",
        "LIV008",
        "unexplained-change",
        "A change that no measurement explains",
        Fix("Capture it: Detection(capture=tt.sample(...)) records such requests and says why."),
        looks="none of the causes explains half of the excess, and no version is new.",
        slow="something not measured: the network, the disk, a lock, the device.",
        leave="the excess does not matter.",
    ),
    AlertCode(
        "one device",
        "LIV010",
        "one-device",
        "One device of a fleet behaves unlike its peers",
        Fix("Take it out of service, and compare a recording of it with one of a peer: torchtriage compare."),
        looks="requests on it take longer than before and than requests of the same sizes on the other devices; or they"
        " fail while others' do not; or it sends nothing. What all devices have in common raises no such alarm.",
        slow="something specific to this device: heat, a neighbour on the host, a disk, a network, an aging part.",
        leave="it is known to differ, or is being serviced.",
    ),
)
CODES: dict[str, AlertCode] = {code.cause: code for code in _CODES}


@dataclass(frozen=True)
class Alert:
    """An alarm of a model, as channels get it.

    ``at_s`` : wall-clock time. ``n_before`` : equal alarms since the last one that was sent. ``shares`` : share of the
    excess time that each cause explains, 0 to 1; empty where that says nothing. ``facts`` : measured: requests,
    collections, compilations, use of the machine. ``capture`` : the recording of a request after the alarm, in the
    follow-up of an earlier alert, and ``captured`` its first findings, a sentence each. ``size`` : how many times as
    long requests take, or the share that fails; 1 where it has none. ``ended`` : the alarm is over; ``size`` is the
    largest it had. ``since_s`` : when it began. ``lasting`` : it has held for so long that it may be the new normal.
    """

    model: str
    version: str
    kind: str
    message: str
    cause: str
    evidence: float
    at_s: float
    n_before: int = 0
    shares: dict[str, float] = field(default_factory=dict, hash=False)
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    capture: str = ""
    captured: tuple[str, ...] = ()
    size: float = 1.0
    ended: bool = False
    since_s: float = 0.0
    lasting: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same alarm: not how large it is, nor why."""
        return (self.model, self.version, self.kind, *(str(self.facts.get(name, "")) for name in ("device", "against")))

    def title(self) -> str:
        """Return one line for people."""
        name = f"{self.model} {self.version}".strip() or "fleet"
        cause = f" ({self.cause})" if self.cause not in ("", "unknown") else ""
        if self.capture:
            shows = "; ".join(self.captured) or "nothing costly"
            return f"{name}, recorded after {self.message}{cause}: {shows}"
        return f"{name}: {self.message}{cause}"

    @property
    def quicker(self) -> bool:
        """Whether requests take less than expected: no trouble."""
        return self.kind == "faster"

    def finding(self) -> Finding:
        """Return the alert as a finding, with a fix."""
        code = CODES.get(self.cause, CODES["unknown"])
        own = {"model": self.model, "version": self.version, "kind": self.kind, "explains": self.shares}
        return Finding(
            code=code.code,
            name=code.name,
            family=FAMILY,
            title=self.title()[:200],
            severity=_severity(self),
            certainty=_certainty(self),
            message=self.message,
            place=Place(),
            cost=None,
            evidence=own | self.facts,
            fix=code.fix,
            n_events=int(self.facts.get("requests", 0)),
        )

    def document(self) -> dict[str, Any]:
        """Return the alert with its finding as JSON's types: ``torchtriage-alert/1``."""
        own = vars(self) | {"evidence": self.evidence if math.isfinite(self.evidence) else 1e308}
        return asdict(AlertDocument(ALERT_SCHEMA, self.title(), finding=self.finding(), **own))


def _severity(alert: Alert) -> Severity:
    if alert.quicker or alert.ended:
        return "note"
    if alert.kind in ("missing", "nan", "stuck"):
        return "high"
    excess_s, expected_s = (alert.facts.get(name, 0.0) for name in ("excess_s", "expected_s"))
    return "high" if excess_s > expected_s else "medium" if excess_s > expected_s / 5 else "low"


def _certainty(alert: Alert) -> Certainty:
    if alert.cause == "unknown":
        return "hint"
    measured = alert.shares.get(alert.cause)
    if alert.cause in ("errors", "NaN", "stale metric") or (measured is not None and measured >= SURE):
        return "certain"
    return "likely"


@dataclass(frozen=True)
class AlertDocument:
    """What a webhook gets. ``at_s`` : seconds since the epoch. ``shares`` : of the excess.

    ``n_before`` : equal alarms since the last one sent. ``capture`` : the recording of a request
    after the alarm, and ``captured`` its findings, most important first: a follow-up of an earlier
    alert. ``size`` : how many times as long requests take, or the share that fails, of an alarm that has ``ended`` the
    largest there was. ``since_s`` : when the alarm began. ``lasting`` : it has held so long that it may be the new
    normal.
    """

    schema: str
    title: str
    model: str
    version: str
    kind: str
    message: str
    cause: str
    evidence: float
    at_s: float
    n_before: int
    shares: dict[str, float]
    facts: dict[str, Any]
    capture: str
    captured: tuple[str, ...]
    size: float
    ended: bool
    since_s: float
    lasting: bool
    finding: Finding
