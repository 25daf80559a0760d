"""What a window looks like between ranks: how long collectives run, how much longer than need be, and who waits.

Of device kernels where there is a device, else of the threads that carry them out on the host.
"""

from __future__ import annotations

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.collective_time import ENGINE, find_collectives
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.schema import Kind
from torchtriage.diagnose.detector.windows import Columns, Windows, ratio

COLLECTIVES = tuple(
    f"collectives {name}"
    for name in ("running", "exposed", "beyond fastest", "per ms", "log size", "small", "outside backward", "reduce")
)
"""The columns of :func:`collective_columns`."""

_SMALL_BYTES = 1 << 16
"""Messages below it take as long as one of a few bytes."""


def collective_columns(trace: Trace, windows: Windows) -> Columns:
    """Return a column for each of ``COLLECTIVES``; all zero without any collective."""
    columns = {name: np.zeros(windows.count) for name in COLLECTIVES}
    found = find_collectives(trace)
    if found is None:
        return columns
    rows = found.rows
    pieces = windows.cut(trace.start_ns[rows], trace.end_ns[rows])
    at, window = pieces.at[pieces.begins], pieces.window[pieces.begins]
    count = windows.total(window)
    size = found.size_bytes
    least = found.fastest_ns / np.maximum(trace.dur_ns[rows], 1)
    beyond = np.where(least > 0, 1 - least, 0.0)
    # those that the autograd engine enqueues share the time with the backward pass
    op = found.enqueued_by
    engine = (trace.kind == Kind.OP) & trace.matching(ENGINE)
    backward = (op >= 0) & np.append(trace.tree.under(engine), False)[op]
    reduce = np.array(["reduce" in label for label in found.labels], np.bool_)
    columns |= {
        "collectives running": windows.share(found.running),
        "collectives exposed": windows.share(intervals.union(found.exposed)),
        "collectives beyond fastest": windows.total(pieces.window, pieces.inside_ns * beyond[pieces.at])
        / windows.wall_ns,
        "collectives per ms": windows.per_ms(window),
        "collectives log size": ratio(windows.total(window, np.log1p(np.maximum(size[at], 0))), count),
        "collectives small": ratio(windows.total(window[(size[at] >= 0) & (size[at] < _SMALL_BYTES)]), count),
        "collectives outside backward": ratio(windows.total(window[~backward[at]]), count),
        "collectives reduce": ratio(windows.total(window[reduce[at]]), count),
    }
    return columns
