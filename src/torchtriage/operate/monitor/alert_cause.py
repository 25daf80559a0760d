"""The cause of an alarm: the share of the requests' excess time that each possible cause accounts for.

The slow requests are separated from those before them, and their time is compared with the expected time. Of that
excess, garbage collection explains its pauses, compiling the requests during which something was compiled, the
machine its threads' wait for a processor beyond the usual, other inputs the requests of sizes that were rare before.
What explains half is the cause. A new version is the cause of what nothing measured explains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from torchtriage.operate.monitor.host_sampler import HostSampler, HostUsage

Cause = Literal[
    "version change",
    "input mix",
    "host contention",
    "GC",
    "recompile",
    "errors",
    "NaN",
    "stale metric",
    "unknown",
    "one device",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

EXPLAINS = 0.5  # share of the excess from which something is its cause
STRAYS = ("tail", "surge", "spread")  # kinds of alarms about some requests, not all since a moment
SPANS = (10, 40, 160)
RARE = 0.02  # a size with a smaller share of the requests is new
YOUNG = 2_000  # requests until which a version is new
OTHERS = 0.1  # processors that other processes use on a contended machine; on a quiet one it is a few hundredths
FULL = 0.85  # share of its processors from which a process is in its own way
USUAL_S = 60.0


class SlowRequest(NamedTuple):
    """A request that ended, with the time it was expected to take."""

    start_ns: int
    end_ns: int
    size: float | None
    expected_s: float

    @property
    def excess_s(self) -> float:
        """Time beyond the expected; negative where it was quicker."""
        return (self.end_ns - self.start_ns) * 1e-9 - self.expected_s


class Attribution(NamedTuple):
    """A cause; ``shares`` : of the excess that each cause explains; ``facts`` : measurements."""

    cause: Cause
    shares: dict[str, float]
    facts: dict[str, Any]


class SizeCounts:
    """Counts of requests by size, a third of a doubling apart, the newest excepted."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._n = 0

    def learn(self, size: float | None) -> None:
        """Count a past request."""
        if size is not None:
            self._counts[_bin(size)] += 1
            self._n += 1

    def rare(self, size: float | None) -> bool:
        """Return whether few requests had such a size; False while little is known."""
        return size is not None and self._n >= 100 and self._counts[_bin(size)] < RARE * self._n


def _bin(size: float) -> int:
    return round(math.log2(min(max(size, 1e-9), 1e18)) * 3)


def attribute(
    kind: str,
    recent: Sequence[SlowRequest],
    failed: Mapping[str, int],
    evidence: HostSampler,
    sizes: SizeCounts,
    version_age: int | None,
) -> Attribution:
    """Return the cause of an alarm.

    ``recent`` : the newest requests that succeeded; the last one raised the alarm. ``failed`` : kinds
    of errors among the newest. ``version_age`` : requests of this version since another one of the
    model was known; None where there was no other.
    """
    young = version_age is not None and version_age < YOUNG
    age = {"version_age_requests": version_age} if version_age is not None else {}
    if kind in ("missing", "nan"):
        cause: Cause = "errors" if kind == "missing" else "NaN"
        return Attribution("version change" if young else cause, {}, age | {"errors": dict(failed)})
    if kind == "stuck":
        return Attribution("stale metric", {}, age)
    if kind == "gc":
        n_pauses = evidence.n_pauses(recent[0].start_ns if recent else 0)
        return Attribution("GC", {"GC": 1.0}, age | {"collections": n_pauses})
    slow = _stray(recent) if kind in STRAYS else _since_change(recent)
    excess_s = sum(request.excess_s for request in slow)
    shares: dict[Cause, float]
    if kind == "input-mix":
        shares = {"input mix": 1.0}
    elif not slow or not excess_s:
        return Attribution("version change" if young else "unknown", {}, age)
    else:
        compiling = (request for request in slow if evidence.compiled(request.start_ns, request.end_ns))
        explained: dict[Cause, float] = {
            "GC": sum(evidence.paused_ns(request.start_ns, request.end_ns) * 1e-9 for request in slow),
            "recompile": sum(request.excess_s for request in compiling),
            "host contention": _waited_s(recent, slow, evidence),
            "input mix": sum(request.excess_s for request in slow if sizes.rare(request.size)),
        }
        shares = {name: min(max(took_s / excess_s, 0.0), 1.0) + 0.0 for name, took_s in explained.items()}
    best = max(shares, key=lambda name: shares[name])
    cause = "version change" if young else "unknown"
    if shares[best] >= EXPLAINS:
        cause = best
    rounded: dict[str, float] = {name: round(share, 3) for name, share in shares.items()}
    return Attribution(cause, rounded, age | _facts(slow, excess_s, evidence, sizes))


def _log_excess(request: SlowRequest) -> float:
    took_s = max((request.end_ns - request.start_ns) * 1e-9, 1e-9)
    return math.log(took_s / max(request.expected_s, 1e-9))


def _stray(recent: Sequence[SlowRequest]) -> list[SlowRequest]:
    # those that stand out as much as the last ones do
    offs = [_log_excess(request) for request in recent]
    least = max(max(offs[-40:], default=0.0) / 2, 0.1)
    return [request for request, off in zip(recent, offs, strict=True) if off >= least]


def _since_change(recent: Sequence[SlowRequest]) -> list[SlowRequest]:
    # those at the end whose mean leaves the old level most
    offs = [_log_excess(request) for request in recent]
    means = [(sum(offs[-n:]) / n, n) for n in SPANS if n <= len(offs)]
    if not means:
        return list(recent)
    shift = max(means, key=lambda pair: abs(pair[0]) * math.sqrt(pair[1]))[0]
    sign, middle = (1 if shift > 0 else -1), abs(shift) / 2
    best = total = 0.0
    start = len(offs) - 1
    for at in range(len(offs) - 1, -1, -1):
        total += min(max(sign * offs[at] - middle, -2 * abs(shift)), 2 * abs(shift))
        if total > best:
            best, start = total, at
    return list(recent[start:])


def _waited_s(recent: Sequence[SlowRequest], slow: Sequence[SlowRequest], evidence: HostSampler) -> float:
    # for a processor, beyond the usual
    usual, now = _host(slow, evidence)
    if now is None:
        return 0.0
    others = now.others_cores
    if now.own_cores >= FULL * evidence.n_cpus and others is not None and others < OTHERS:
        return 0.0  # the process is in its own way

    def usually(name: str) -> float:
        return float(getattr(usual, name, None) or 0.0)

    waited_s = 0.0
    if now.waited is not None:
        share_of_model = 1.0
        if recent[0].end_ns < now.from_ns and now.requests_s > 0:  # else the older requests are forgotten
            used_ns = sum(request.end_ns - request.start_ns for request in recent if request.end_ns > now.from_ns)
            share_of_model = min(used_ns * 1e-9 / now.requests_s, 1.0)
        waited_s = (now.waited - usually("waited")) * now.own_cores * now.seconds * share_of_model
    if now.stolen is not None:
        used_s = sum(request.end_ns - request.start_ns for request in slow) * 1e-9
        waited_s += (now.stolen - usually("stolen")) * used_s
    if now.waited is None and others is not None:
        # the kernel does not say who waited: others filled what was left of the machine
        crowded = now.own_cores + others >= FULL * evidence.n_cpus
        if crowded and others - usually("others_cores") >= OTHERS:
            waited_s += sum(request.excess_s for request in slow)
    return waited_s


def _host(slow: Sequence[SlowRequest], evidence: HostSampler) -> tuple[HostUsage | None, HostUsage | None]:
    # before the slow requests, and since
    start_ns = min(request.start_ns for request in slow)
    return evidence.host(start_ns - int(USUAL_S * 1e9), start_ns), evidence.host(start_ns)


def _facts(slow: Sequence[SlowRequest], excess_s: float, evidence: HostSampler, sizes: SizeCounts) -> dict[str, Any]:
    start_ns, end_ns = min(request.start_ns for request in slow), slow[-1].end_ns
    usual, now = _host(slow, evidence)
    facts: dict[str, Any] = {
        "requests": len(slow),
        "excess_s": round(excess_s, 6),
        "expected_s": round(sum(request.expected_s for request in slow), 6),
        "collections": evidence.n_pauses(start_ns),
        "compilations": evidence.compiled(start_ns, end_ns),
    }
    n_new = sum(sizes.rare(request.size) for request in slow)
    if n_new:
        facts["requests_of_new_sizes"] = n_new
    for when, host in (("", now), ("_before", usual)):
        if host is not None:
            usage = {"waited_per_cpu_s": host.waited, "others_cores": host.others_cores}
            usage |= {"own_cores": host.own_cores, "stolen_share": host.stolen}
            facts |= {f"{name}{when}": round(value, 3) for name, value in usage.items() if value is not None}
    return facts
