"""Which way costs least: one graph for each size, a few buckets, or one dynamic graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.core.units import format_count, format_ns

Way = Literal["buckets", "dynamic", "eager"]
_NS_PER_S = 1e9
_CLEAR = 1.05
"""Ways within 5 % of each other are as good; the one in use is kept."""


@dataclass(frozen=True)
class BucketAdvice:
    """What ``n_requests`` requests take each way, compiling included, in seconds (modelled).

    ``best`` : the way to go; ``buckets`` on a tie. ``text`` : one sentence that says why.
    """

    best: Way
    buckets_s: float
    dynamic_s: float
    eager_s: float
    n_requests: int
    text: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text


def advise(
    *,
    bucket_s: float,
    dynamic_s: float,
    eager_s: float,
    n_compiles: int,
    compile_s: float,
    dynamic_compile_s: float,
    n_requests: int,
) -> BucketAdvice:
    """Return what to use from the mean seconds of one request each way and of one compilation.

    ``bucket_s`` : over the sizes as they come, padded; ``dynamic_s``, ``eager_s`` : the same requests unpadded.
    ``n_compiles`` : graphs that the buckets still need.
    """
    totals: dict[Way, float] = {
        "buckets": bucket_s * n_requests + n_compiles * compile_s,
        "dynamic": dynamic_s * n_requests + dynamic_compile_s,
        "eager": eager_s * n_requests,
    }
    least = min(totals.values())
    best: Way = "buckets"
    if totals["buckets"] > _CLEAR * least:
        best = min(totals, key=lambda way: totals[way])
    name = {
        "buckets": "Keep the buckets",
        "dynamic": "Use dynamic shapes instead: torch.compile(model, dynamic=True)",
        "eager": "Do not compile",
    }[best]
    over = format_count(n_requests, "request")
    times = ", ".join(f"{way} {format_ns(seconds * _NS_PER_S)}" for way, seconds in totals.items())
    text = f"{name}: {over} take {times}, compiling included."
    return BucketAdvice(best, totals["buckets"], totals["dynamic"], totals["eager"], n_requests, text)
