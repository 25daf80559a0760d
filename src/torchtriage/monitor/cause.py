"""Why an alarm: how much of what the requests took too long each thing that happened accounts for.

The requests that raised the alarm are told from those before them, and their time from what was
expected of it. Of that excess, garbage collection explains what fell into its pauses, compiling
what the requests took in which something was compiled, the machine what the threads waited for a
processor beyond what is usual, other inputs what requests of sizes took that were rare before. What
explains half is the cause. A new version is the cause of what nothing measured explains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from torchtriage.monitor.evidence import Evidence, Host

__all__ = ["CAUSES", "Cause", "Judged", "Seen", "Sizes", "judge"]

Cause = Literal[
    "version change",
    "input mix",
    "host contention",
    "GC",
    "recompile",
    "errors",
    "stale metric",
    "unknown",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

EXPLAINS = 0.5
"""Share of the excess from which something is its cause."""
STRAYS = ("tail", "surge", "spread")
"""Alarms of some requests, not of all since a moment."""
SPANS = (10, 40, 160)
RARE = 0.02
"""A size that fewer requests had is a new one."""
YOUNG = 2_000
"""Requests until which a version is new."""
OTHERS = 0.1
"""Processors that others use at least where the machine is said to be contended; a quiet one's
other processes use a few hundredths."""
FULL = 0.85
"""Share of its processors that a process uses which is in its own way."""
USUAL_S = 60.0


class Seen(NamedTuple):
    """A request that ended, and what it was expected to take, seconds."""

    start_ns: int
    end_ns: int
    size: float | None
    expected_s: float

    @property
    def excess_s(self) -> float:
        """What it took beyond what was expected; less than zero where it was quicker."""
        return (self.end_ns - self.start_ns) * 1e-9 - self.expected_s


class Judged(NamedTuple):
    """A cause; ``shares`` : how much of the excess each explains; ``facts`` : what was seen."""

    cause: Cause
    shares: dict[str, float]
    facts: dict[str, Any]


class Sizes:
    """How often requests of each size came, a third of a doubling apart, the newest excepted."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._n = 0

    def learn(self, size: float | None) -> None:
        """Count a request that is long past."""
        if size is not None:
            self._counts[_bin(size)] += 1
            self._n += 1

    def rare(self, size: float | None) -> bool:
        """Return whether few requests had such a size; False while little is known."""
        return size is not None and self._n >= 100 and self._counts[_bin(size)] < RARE * self._n


def _bin(size: float) -> int:
    return round(math.log2(min(max(size, 1e-9), 1e18)) * 3)


def judge(
    kind: str,
    recent: Sequence[Seen],
    failed: Mapping[str, int],
    evidence: Evidence,
    sizes: Sizes,
    version_age: int | None,
) -> Judged:
    """Return the cause of an alarm.

    ``recent`` : the newest requests that succeeded, the last one raised the alarm. ``failed`` : of
    the newest, by kind of error. ``version_age`` : how many requests a version has had that came
    while another of the model was known; None where there was no other.
    """
    young = version_age is not None and version_age < YOUNG
    age = {"version_age_requests": version_age} if version_age is not None else {}
    if kind == "missing":
        facts = age | {"errors": dict(failed)}
        return Judged("version change" if young else "errors", {}, facts)
    if kind == "stuck":
        return Judged("stale metric", {}, age)
    if kind == "gc":
        return Judged("GC", {"GC": 1.0}, age | {"collections": evidence.n_pauses(_start(recent))})
    strays = _strays(recent) if kind in STRAYS else _since(recent)
    excess_s = sum(one.excess_s for one in strays)
    shares: dict[Cause, float]
    if kind == "input-mix":
        shares = {"input mix": 1.0}
    elif not strays or not excess_s:
        return Judged("version change" if young else "unknown", {}, age)
    else:
        shares = _shares(recent, strays, excess_s, evidence, sizes)
    facts = age | _facts(strays, excess_s, evidence, sizes)
    best = max(shares, key=lambda name: shares[name])
    cause: Cause = "version change" if young else "unknown"
    if shares[best] >= EXPLAINS:
        cause = best
    told: dict[str, float] = {name: round(share, 3) for name, share in shares.items()}
    return Judged(cause, told, facts)


def _start(recent: Sequence[Seen]) -> int:
    return recent[0].start_ns if recent else 0


def _log_excess(one: Seen) -> float:
    took_s = max((one.end_ns - one.start_ns) * 1e-9, 1e-9)
    return math.log(took_s / max(one.expected_s, 1e-9))


def _strays(recent: Sequence[Seen]) -> list[Seen]:
    """Return the requests that stand out as much as the last ones do."""
    offs = [_log_excess(one) for one in recent]
    least = max(max(offs[-40:], default=0.0) / 2, 0.1)
    return [one for one, off in zip(recent, offs, strict=True) if off >= least]


def _since(recent: Sequence[Seen]) -> list[Seen]:
    """Return the requests since the level changed: the end whose mean leaves the old level most."""
    offs = [_log_excess(one) for one in recent]
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


def _shares(
    recent: Sequence[Seen],
    strays: Sequence[Seen],
    excess_s: float,
    evidence: Evidence,
    sizes: Sizes,
) -> dict[Cause, float]:
    """Return how much of the excess each cause explains, 0 to 1."""
    paused_s = compiling_s = new_s = 0.0
    for one in strays:
        paused_s += evidence.paused_ns(one.start_ns, one.end_ns) * 1e-9
        if evidence.compiled(one.start_ns, one.end_ns):
            compiling_s += one.excess_s
        if sizes.rare(one.size):
            new_s += one.excess_s
    explained: dict[Cause, float] = {
        "GC": paused_s,
        "recompile": compiling_s,
        "host contention": _waited_s(recent, strays, evidence),
        "input mix": new_s,
    }
    return {name: min(max(took_s / excess_s, 0.0), 1.0) + 0.0 for name, took_s in explained.items()}


def _waited_s(recent: Sequence[Seen], strays: Sequence[Seen], evidence: Evidence) -> float:
    """Return how long the requests waited for a processor beyond what is usual."""
    usual, now = _host(strays, evidence)
    if now is None or _in_its_own_way(now, evidence.n_cpus):
        return 0.0
    waited_s = 0.0
    if now.waited is not None:
        before = usual.waited if usual is not None and usual.waited is not None else 0.0
        own_s = now.own_cores * now.seconds
        waited_s = (now.waited - before) * own_s * _part(recent, now)
    if now.stolen is not None:
        before = usual.stolen if usual is not None and usual.stolen is not None else 0.0
        used_s = sum(one.end_ns - one.start_ns for one in strays) * 1e-9
        waited_s += (now.stolen - before) * used_s
    if now.waited is None and now.others_cores is not None:
        # the kernel does not tell who waited: others filled what was left of the machine
        before = usual.others_cores if usual is not None and usual.others_cores is not None else 0.0
        crowded = now.own_cores + now.others_cores >= FULL * evidence.n_cpus
        if crowded and now.others_cores - before >= OTHERS:
            waited_s += sum(one.excess_s for one in strays)
    return waited_s


def _part(recent: Sequence[Seen], now: Host) -> float:
    """Return which part of the time of all requests since a sample was of this model's."""
    if recent[0].end_ns >= now.from_ns or now.requests_s <= 0:
        return 1.0  # not all of them are known any more
    taken_ns = sum(one.end_ns - one.start_ns for one in recent if one.end_ns > now.from_ns)
    return min(taken_ns * 1e-9 / now.requests_s, 1.0)


def _in_its_own_way(now: Host, n_cpus: int) -> bool:
    others = now.others_cores
    return now.own_cores >= FULL * n_cpus and others is not None and others < OTHERS


def _host(strays: Sequence[Seen], evidence: Evidence) -> tuple[Host | None, Host | None]:
    """Return what the machine did before the strays, and since."""
    start_ns = min(one.start_ns for one in strays)
    now = evidence.host(start_ns)
    usual = evidence.host(start_ns - int(USUAL_S * 1e9), start_ns)
    return usual, now


def _facts(
    strays: Sequence[Seen], excess_s: float, evidence: Evidence, sizes: Sizes
) -> dict[str, Any]:
    """Return what was seen, for people."""
    start_ns, end_ns = min(one.start_ns for one in strays), strays[-1].end_ns
    usual, now = _host(strays, evidence)
    facts: dict[str, Any] = {
        "requests": len(strays),
        "excess_s": round(excess_s, 6),
        "expected_s": round(sum(one.expected_s for one in strays), 6),
        "collections": evidence.n_pauses(start_ns),
        "compilations": evidence.compiled(start_ns, end_ns),
    }
    n_new = sum(sizes.rare(one.size) for one in strays)
    if n_new:
        facts["requests_of_new_sizes"] = n_new
    for when, host in (("", now), ("_before", usual)):
        if host is None:
            continue
        told = {"waited_per_cpu_s": host.waited, "others_cores": host.others_cores}
        told |= {"own_cores": host.own_cores, "stolen_share": host.stolen}
        facts |= {f"{name}{when}": round(x, 3) for name, x in told.items() if x is not None}
    return facts
