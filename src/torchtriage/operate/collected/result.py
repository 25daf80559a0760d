"""What collected records say: the dataclasses are the JSON document ``torchtriage-records/1``."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchtriage.core.finding import Note
from torchtriage.core.units import format_share
from torchtriage.core.version import __version__

RECORDS_SCHEMA = "torchtriage-records/1"


@dataclass(frozen=True)
class LatencyGroup:
    """The requests that have something in common: a version, a device, a size, an hour.

    ``failed`` : without an answer, or with NaN. Times of those that succeeded, None without any. ``beside`` : what they
    take as a ratio to the median of the other groups, by the same sizes; None where there is nothing to compare with.
    ``beside_low`` : of a version, the least ratio that chance leaves; None where too few devices ran it. ``requests`` :
    of a log that holds a share of them, an estimate.
    """

    name: str
    requests: int
    failed: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    beside: float | None = None
    beside_low: float | None = None


@dataclass(frozen=True)
class SlowRecord:
    """One request. ``at_s`` : seconds since the epoch. ``times`` : what it took, to the median of its size."""

    at_s: float
    took_ms: float
    times: float
    device: str
    version: str
    size: int | None
    fields: dict[str, str]


@dataclass(frozen=True)
class Drift:
    """A change in what is asked for or answered.

    ``what`` : size, failed, or a number of the caller's fields. ``psi`` : the population stability index over tenths of
    ``before``; 0.1 is little, 0.25 and more much. ``between`` : the first and the last third of the time, or versions.
    ``share_before``, ``share_after`` : of what is true or false, how often it is true.
    """

    what: str
    between: tuple[str, str]
    psi: float
    median_before: float
    median_after: float
    share_before: float | None = None
    share_after: float | None = None

    def change(self) -> str:
        """Return the medians or shares before and after."""
        if self.share_before is None or self.share_after is None:
            return f"median {self.median_before:g} → {self.median_after:g}"
        return f"{format_share(self.share_before)} → {format_share(self.share_after)}"


@dataclass(frozen=True)
class CollectedModel:
    """One model's requests, by all that was recorded; groups in their own order, sizes and hours ascending."""

    model: str
    whole: LatencyGroup
    versions: tuple[LatencyGroup, ...] = ()
    devices: tuple[LatencyGroup, ...] = ()
    sizes: tuple[LatencyGroup, ...] = ()
    hours: tuple[LatencyGroup, ...] = ()
    compiling: tuple[LatencyGroup, ...] = ()
    """Requests beside which torch.compile compiled again, and the others; empty where no line tells."""
    slowest: tuple[SlowRecord, ...] = ()
    drifts: tuple[Drift, ...] = ()


@dataclass(frozen=True)
class RecordsReport:
    """What the records of some logs say together."""

    verdict: tuple[str, ...]
    logs: tuple[str, ...]
    begin_s: float
    end_s: float
    requests: int
    repeated: int
    models: tuple[CollectedModel, ...]
    notes: tuple[Note, ...] = ()
    version: str = __version__
    schema: str = field(default=RECORDS_SCHEMA, kw_only=True)
