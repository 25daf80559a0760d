"""Measured samples as they are stored, exchanged and compared: plain frozen values.

A ``Run`` is one benchmark measured once on one machine at one commit. It holds one ``Series`` per metric, and a series
one ``Session`` per fresh process: the process session is the unit of analysis, never the single value. The dataclasses
are the JSON document ``torchtriage-samples/1``.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from torchtriage.core.errors import SampleError

SAMPLES_SCHEMA = "torchtriage-samples/1"

Better = Literal["lower", "higher"]
Kind = Literal["latency", "throughput", "memory", "compile_time", "count", "accuracy"]

POSITIVE = frozenset({"latency", "throughput", "compile_time"})
"""Kinds whose values are above zero: nothing takes no time, and a ratio to zero says nothing."""
NON_NEGATIVE = frozenset({"memory", "count"})
"""Kinds where zero is a value as good as another: no graph breaks, no device memory."""

COMPARABLE = frozenset({"cpu", "cores", "memory", "architecture", "os", "gpu", "gpus", "gpu memory", "driver"})
"""Fields of a machine that make its times comparable; others (host name, kernel) are shown only."""

YEAR_10000_S = 253_402_300_800
"""The first second that no calendar of ours has."""


@dataclass(frozen=True)
class Session:
    """What one fresh process measured of one metric.

    ``values`` : consecutive values in time order, in the unit of the series. ``cpu_values`` : CPU time of each value,
    in the same unit; as many as ``values``. ``round`` : the interleaved round it belongs to, from 0; None where runs
    were not interleaved. ``started_s`` : when the process was started, seconds since the epoch.
    """

    values: tuple[float, ...]
    cpu_values: tuple[float, ...] | None = None
    round: int | None = None
    started_s: float | None = None


@dataclass(frozen=True)
class Series:
    """All sessions of one metric.

    ``unit`` : of every value: ``s ms us ns``, ``1/s``, ``B``, ``1`` ... Series of unlike units are never compared.
    ``better`` : which way is an improvement.
    """

    metric: str
    unit: str
    better: Better
    kind: Kind
    sessions: tuple[Session, ...]

    @property
    def measures(self) -> tuple[str, str, str]:
        """What must be equal to compare two series of a metric: unit, better, kind."""
        return self.unit, self.better, self.kind

    @property
    def n_values(self) -> int:
        """Number of values in all sessions."""
        return sum(len(session.values) for session in self.sessions)


@dataclass(frozen=True)
class Machine:
    """Where it was measured: names and values, sorted by name."""

    fields: tuple[tuple[str, str], ...] = ()

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits over the ``COMPARABLE`` fields; ``unknown`` where there is none."""
        text = "\n".join(f"{name}={value}" for name, value in sorted(self.fields) if name in COMPARABLE)
        return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "unknown"


@dataclass(frozen=True)
class Run:
    """One benchmark, measured once.

    ``commit`` and ``branch`` : empty where the code is under no version control. ``parent`` : the commit before.
    ``recorded_at_s`` : seconds since the epoch. ``environment`` : names and values of what is not the machine:
    versions, thread settings, whether the host was noisy. ``traces`` : paths of recordings of the same code, kept so
    that a culprit can be named.
    """

    benchmark: str
    commit: str
    branch: str
    parent: str | None
    recorded_at_s: float
    machine: Machine
    environment: tuple[tuple[str, str], ...]
    series: tuple[Series, ...]
    traces: tuple[str, ...] = ()
    schema: str = field(default=SAMPLES_SCHEMA, kw_only=True)

    @property
    def n_values(self) -> int:
        """Number of values in all series."""
        return sum(item.n_values for item in self.series)

    def check(self) -> None:
        """Refuse what nothing can be concluded from.

        Raises SampleError: no series, a metric twice, a session without values or with other numbers of CPU times, NaN
        or infinity, zero or less where a metric has to be above, no unit, an unknown kind, a time beyond the year
        9999, text that no file can hold.
        """
        where = self.benchmark
        if not where:
            raise SampleError("expected a name of the benchmark, found none")
        pairs = (*self.machine.fields, *self.environment)
        _check_text(where, self.commit, self.branch, self.parent or "", *self.traces)
        _check_text(*(text for pair in pairs for text in pair))
        _check_text(*(text for item in self.series for text in (item.metric, item.unit)))
        if not abs(self.recorded_at_s) < YEAR_10000_S:
            raise SampleError(
                f"expected recorded_at_s in seconds since 1970, found {self.recorded_at_s:g}",
                where=where,
                hint="are they milliseconds? divide by 1000",
            )
        if not self.series:
            raise SampleError(
                "expected at least one metric with samples, found none",
                where=where,
                hint="see docs/gate-store.md for what a file of samples holds",
            )
        seen: set[str] = set()
        for series in self.series:
            if series.metric in seen:
                raise SampleError("expected each metric once, found it twice", where=f"{where}: {series.metric}")
            seen.add(series.metric)
            _check_series(series, f"{where}: {series.metric or '(no name)'}")


def _check_text(*texts: str) -> None:
    for text in texts:
        # what is printable has neither NUL nor half of a character
        if not text.isprintable() and ("\0" in text or not _is_unicode(text)):
            raise SampleError(f"expected text, found characters that no file can hold: {text[:80]!a}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_series(series: Series, where: str) -> None:
    for name, value in (("metric", series.metric), ("unit", series.unit)):
        if not value:
            raise SampleError(f"expected a {name}, found an empty one", where=where)
    for name, value, known in (("kind", series.kind, get_args(Kind)), ("better", series.better, get_args(Better))):
        if value not in known:
            wanted = f"{', '.join(known[:-1])} or {known[-1]}"
            raise SampleError(f"expected {name} {wanted}, found {value!r}", where=where)
    if not series.sessions:
        raise SampleError("expected at least one session, found none", where=where)
    for number, session in enumerate(series.sessions, 1):
        place = f"{where}, session {number}"
        n_values, cpu = len(session.values), session.cpu_values
        if not n_values:
            raise SampleError("expected samples, found none", where=place)
        if session.round is not None and not 0 <= session.round < 2**31:
            raise SampleError(f"expected a round from 0, found {session.round}", where=place)
        if session.started_s is not None and not math.isfinite(session.started_s):
            raise SampleError(f"expected a time, found {session.started_s}", where=place)
        if cpu is not None and len(cpu) != n_values:
            raise SampleError(f"expected a CPU time for each of {n_values} values, found {len(cpu)}", where=place)
    _check_values([session.values for session in series.sessions], series.kind, where, "")
    _check_values([session.cpu_values or () for session in series.sessions], "count", where, ", CPU times")


def _check_values(sessions: Sequence[tuple[float, ...]], kind: str, where: str, of: str) -> None:
    # all at once and in C, a million values take milliseconds; who is at fault is asked after
    values = list(itertools.chain.from_iterable(sessions))
    if _are_fine(values, kind):
        return
    number, bad = next((number, session) for number, session in enumerate(sessions, 1) if not _are_fine(session, kind))
    where = f"{where}, session {number}{of}"
    place = next((place for place, item in enumerate(bad) if not math.isfinite(item)), None)
    if place is not None:
        raise SampleError(
            f"expected finite numbers, found {bad[place]} as value {place + 1} of {len(bad)}",
            where=where,
            hint="record it again: a value that was not measured cannot be compared",
        )
    smallest = min(bad)
    wanted = "above zero" if kind in POSITIVE else "of zero or more"
    found = "a negative one" if smallest < 0 else "zero"
    place = bad.index(smallest) + 1
    raise SampleError(
        f"expected values {wanted}, found {found}: {smallest:g} as value {place} of {len(bad)}",
        where=where,
        hint="a clock too coarse for what it timed? time more calls per value",
    )


def _are_fine(values: Sequence[float], kind: str) -> bool:
    if not values:
        return True
    if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        return False
    smallest = min(values)
    return not ((smallest < 0 and kind in POSITIVE | NON_NEGATIVE) or (smallest == 0 and kind in POSITIVE))
