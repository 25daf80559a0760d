"""What a bucketed module did: requests, padding, compilations, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtriage.core.units import format_count, format_ns, format_share

_NS_PER_S = 1e9


class BucketingWarning(UserWarning):
    """Something keeps requests from being served by a bucket; their answers are right."""


@dataclass
class Stats:
    """Counts since the module was made or ``reset_stats()``.

    ``requests`` = ``hits`` + ``misses``. A hit ran a graph that was compiled for a bucket before the request came.
    ``reasons`` : the misses by reason. ``bucket_hits`` : hits by bucket. ``real_size``, ``padded_size`` : elements of
    the hits, without padding and with it (of several axes, the product of sizes). ``stalls`` : requests that waited
    for a compilation (training, ``background=False``), ``stall_s`` their sum, ``longest_stall_s`` the longest.
    ``compiles``, ``compile_s`` : graphs compiled and the time of it, the first run included. ``checked`` : graphs
    whose answers were compared with unpadded ones; ``unchecked`` : those compiled without. ``failures`` : by bucket,
    why it is served unpadded. ``replans`` : changes of the plan. ``evicted`` : graphs dropped for the limit.
    ``ready``, ``waiting`` : graphs now.
    """

    requests: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    bucket_hits: Counter[str] = field(default_factory=Counter)
    real_size: int = 0
    padded_size: int = 0
    compiles: int = 0
    compile_s: float = 0.0
    stalls: int = 0
    stall_s: float = 0.0
    longest_stall_s: float = 0.0
    checked: int = 0
    unchecked: int = 0
    replans: int = 0
    evicted: int = 0
    ready: int = 0
    waiting: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    buckets: str = ""

    @property
    def hits(self) -> int:
        """Requests that a compiled bucket served."""
        return self.bucket_hits.total()

    @property
    def padding(self) -> float:
        """Padding over real size of the hits, 0 without one."""
        return (self.padded_size - self.real_size) / self.real_size if self.real_size else 0.0

    @property
    def misses(self) -> int:
        """Requests that no compiled bucket served."""
        return self.requests - self.hits

    @property
    def hit_rate(self) -> float:
        """Hits over requests, 0-1."""
        return self.hits / self.requests if self.requests else 0.0

    def __str__(self) -> str:
        """Return some lines for people."""
        lines = [
            f"{format_count(self.requests, 'request')}: {format_share(self.hit_rate)} hits,"
            f" padding {format_share(self.padding)} of the real size",
            f"buckets: {self.buckets or 'not planned yet'}",
            f"{format_count(self.compiles, 'compilation')}, {format_ns(self.compile_s * _NS_PER_S)}; {self.ready}"
            f" ready, {self.waiting} waiting; {format_count(self.replans, 'replan')}, {self.evicted} evicted",
            f"{format_count(self.stalls, 'request')} waited for a compilation,"
            f" {format_ns(self.longest_stall_s * _NS_PER_S)} at most",
            f"{self.checked} checked against unpadded answers, {self.unchecked} not",
        ]
        if self.reasons:
            misses = ", ".join(f"{reason} {n}" for reason, n in self.reasons.items())
            lines.append(f"misses: {misses}")
        lines += [f"failed {bucket}: {why}" for bucket, why in self.failures.items()]
        return "\n".join(lines)

    def metrics(self) -> dict[str, float]:
        """Return what a monitor exports, by Prometheus name; base units, counters end in _total."""
        name = "torchtriage_buckets_"
        return {
            f"{name}requests_total": self.requests,
            f"{name}hits_total": self.hits,
            f"{name}misses_total": self.misses,
            f"{name}padding_ratio": self.padding,
            f"{name}compiles_total": self.compiles,
            f"{name}compile_seconds_total": self.compile_s,
            f"{name}stalls_total": self.stalls,
            f"{name}stall_seconds_total": self.stall_s,
            f"{name}replans_total": self.replans,
            f"{name}evicted_total": self.evicted,
            f"{name}failures": len(self.failures),
            f"{name}ready": self.ready,
            f"{name}waiting": self.waiting,
        }
