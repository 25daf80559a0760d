"""How fast the host link is, and which copies are exposed."""

import numpy as np

from torchtriage.core import intervals
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Spans, Trace

PINNED_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 50e9}
"""What pinned copies reach over 16 lanes of each PCIe generation (catalogue 7)."""
MIN_BYTES = 1 << 20
"""Below, latency and not bandwidth is what a copy costs (catalogue 7)."""
SLOWER = 0.7
"""Of that rate: what is faster comes from pinned memory, although its call waits."""


def pinned_bytes_per_s(trace: Trace) -> float:
    """Return the rate of pinned copies on this machine's link, the slower one where unknown."""
    capability = trace.origin.capability
    if trace.origin.vendor == "rocm":
        newest = any("MI3" in name for name in trace.origin.device_names)
        return PINNED_BYTES_PER_S[5 if newest else 4]
    if trace.origin.vendor != "cuda" or capability is None:
        return PINNED_BYTES_PER_S[3]
    return PINNED_BYTES_PER_S[5 if capability[0] >= 9 else 4 if capability[0] == 8 else 3]


def beyond_pinned(trace: Trace, copies: Ints) -> float:
    """Return the share of the copies' time that pinned memory would not have taken, 0-1."""
    copies = copies[trace.value[copies] >= 0]  # ROCm 6.2 records no sizes
    size, took_s = trace.value[copies].sum(), trace.dur_ns[copies].sum() / 1e9
    return float(np.clip(1 - size / pinned_bytes_per_s(trace) / took_s, 0, 1)) if took_s else 0.0


def uploads(trace: Trace) -> Ints:
    """Return the copies to the main device whose calls were recorded."""
    rows: Ints = trace.devices[0].rows
    rows = rows[(trace.kind[rows] == Kind.MEMCPY) & (trace.links.call[rows] >= 0)]
    return rows[trace.matches(rows, "HtoD")]


def from_pageable(trace: Trace, copies: Ints) -> Mask:
    """Return bool[k]: uploads from memory that the host has to stage.

    ROCm never records the kind of memory: the blocking call tells. Where another recorder did not, the host is in the
    call for most of a large copy, which is slower than from pinned memory.
    """
    calls = trace.links.call[copies]
    if trace.origin.vendor == "rocm":
        return trace.named("hipMemcpyWithStream", "hipMemcpy", "hipMemcpyHtoD")[calls]
    size, took_ns = trace.value[copies], trace.dur_ns[copies]
    held = (2 * (trace.end_ns[calls] - trace.start_ns[copies]) > took_ns) & (size >= MIN_BYTES)
    held &= size * 1e9 < SLOWER * pinned_bytes_per_s(trace) * took_ns
    return trace.matches(copies, "Pageable") | (held & trace.matches(copies, "HtoD$"))


def exposed(trace: Trace, copies: Ints) -> Spans:
    """Return the time of these copies with neither computation nor communication beside it."""
    spans = trace.spans_of(copies)
    return intervals.intersect(intervals.union(spans), trace.devices[0].copy_only)
