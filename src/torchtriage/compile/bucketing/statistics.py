"""What a bucketed module did: requests, padding, compilations, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtriage.core.units import format_count, format_ns, format_share

__all__ = ["BucketingWarning", "Counts", "Stats"]

_NS_PER_S = 1e9


class BucketingWarning(UserWarning):
    """Something keeps requests from being served by a bucket; their answers are right."""


@dataclass(frozen=True)
class Stats:
    """Counts since the module was made or ``reset_stats()``.

    ``requests`` = ``hits`` + ``misses``. A hit ran a graph that was compiled for a bucket before the request came.
    ``reasons`` : the misses by reason. ``bucket_hits`` : hits by bucket. ``padding`` : of the hits, padding over
    real size (of several axes, their product). ``stalls`` : requests that waited for a compilation (training,
    ``background=False``), ``stall_s`` their sum, ``longest_stall_s`` the longest. ``compiles``, ``compile_s`` :
    graphs compiled and the time of it, the first run included. ``checked`` : graphs whose answers were compared
    with unpadded ones; ``unchecked`` : those compiled without. ``failures`` : by bucket, why it is served unpadded.
    ``replans`` : changes of the plan. ``evicted`` : graphs dropped for the limit. ``ready``, ``waiting`` : graphs
    now.
    """

    requests: int = 0
    hits: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    bucket_hits: Mapping[str, int] = field(default_factory=dict)
    padding: float = 0.0
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


@dataclass
class Counts:
    """What is counted as calls come, by the names of :class:`Stats`.

    ``n_real``, ``n_padded`` : elements of the hits, without padding and with it.
    """

    requests: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    bucket_hits: Counter[str] = field(default_factory=Counter)
    n_real: int = 0
    n_padded: int = 0
    compiles: int = 0
    compile_s: float = 0.0
    stalls: int = 0
    stall_s: float = 0.0
    longest_stall_s: float = 0.0
    checked: int = 0
    unchecked: int = 0
    evicted: int = 0

    def stats(self, **now: Any) -> Stats:
        """Return the counts, with what is the case now."""
        counted = {name: value for name, value in vars(self).items() if not name.startswith("n_")}
        counted |= {"reasons": dict(self.reasons), "bucket_hits": dict(self.bucket_hits)}
        padding = (self.n_padded - self.n_real) / self.n_real if self.n_real else 0.0
        return Stats(hits=self.bucket_hits.total(), padding=padding, **counted, **now)
