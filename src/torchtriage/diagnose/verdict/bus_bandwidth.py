"""How fast the main device exchanges with other ranks, in the units of NCCL's tests.

One rank alone does not see when the others come: its kernels wait as well as transfer. The fastest of some equal ones
is the nearest to the transfer, and the link does at least that. With the recordings of the other ranks,
``diagnose.ranks`` knows when the last one came.
"""

from __future__ import annotations

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.messages import Messages
from torchtriage.diagnose.verdict.result import BusBandwidth, CollectiveRow

N_ROWS = 50
CLASS_BITS = 2
"""Sizes up to four times each other are one row: bandwidth depends on the size, over decades."""


def bus_bandwidth(device: Device) -> BusBandwidth | None:
    """Return what a device's collectives reach in the steady steps, None where it has none."""
    trace, steps = device.trace, device.trace.steps
    rows = device.rows[device.comm]
    rows = rows[intervals.owner(steps.judged, trace.start_ns[rows]) >= 0]
    messages = Messages(trace, rows)
    exchanges = messages.n_ranks != 1
    if not exchanges.any():
        return None
    size, factor = messages.size_bytes.astype(np.float64), messages.bus_factor
    dur_ns = np.maximum(trace.dur_ns[rows], max(trace.resolution_ns, 1)).astype(np.float64)
    known = (size > 0) & np.isfinite(factor)
    groups, group = messages.groups
    table: dict[tuple[str, int, int], list[int]] = {}
    for at in np.flatnonzero(known).tolist():
        size_class = (int(size[at]).bit_length() - 1) // CLASS_BITS
        table.setdefault((messages.names[at], int(group[at]), size_class), []).append(at)
    found = [
        CollectiveRow(
            name=name,
            group=groups[code].label,
            n_ranks=int(messages.n_ranks[same[0]]),
            least_bytes=int(size[same].min()),
            most_bytes=int(size[same].max()),
            n_per_step=round(len(same) / steps.n_steady, 3),
            mean_ns=round(float(dur_ns[same].mean())),
            algorithm_gbps=round(float((size / dur_ns)[same].max()), 3),
            bus_gbps=round(float((size * factor / dur_ns)[same].max()), 3),
        )
        for (name, code, _), same in table.items()
    ]
    found.sort(key=lambda row: (-row.n_per_step * row.mean_ns, row.name, row.group, row.least_bytes))
    unknown = exchanges & ~known
    return BusBandwidth(
        rows=tuple(found[:N_ROWS]),
        n_rows=len(found),
        n_collectives=int(exchanges.sum()),
        n_unchecked=int(unknown.sum()),
        unchecked=_why(messages, unknown) if unknown.any() else "",
    )


def _why(messages: Messages, unknown: np.ndarray) -> str:
    """Return what is missing of most of the collectives that are not checked."""
    reasons = {
        "their sizes are not recorded": (messages.size_bytes < 0) & ((messages.nelems < 0) | (messages.n_ranks > 0)),
        "the size of their process group is not recorded": messages.n_ranks == 0,
        "it is not computed for their operations": np.ones(len(unknown), dtype=bool),
    }
    first = np.argmax(np.array(list(reasons.values())), axis=0)
    return list(reasons)[int(np.bincount(first[unknown]).argmax())]
