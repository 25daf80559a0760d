"""How much of a kernel may go away before the device has to wait for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torchtriage.trace import Trace
    from torchtriage.trace.device import Device

__all__ = ["queued_share"]


def queued_share(trace: Trace, device: Device, at: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the part of each kernel, from its end, in which the next work was already enqueued.

    Shortening the kernel by more than that frees nothing: the device would wait for the launch.

    Parameters
    ----------
    trace : Trace
    device : Device
    at : int[k]
        Positions in ``device.rows``.

    Returns
    -------
    float64[k]
        0-1; 0 where the next launch came after the end, 1 for the last work.
    """
    rows = device.rows
    following = rows[np.minimum(at + 1, len(rows) - 1)]
    call = trace.links.call[following]
    enqueued = np.where(call >= 0, trace.end_ns[call], trace.start_ns[following])
    end, dur = trace.end_ns[rows[at]], np.maximum(trace.dur_ns[rows[at]], 1)
    share = np.clip((end - enqueued) / dur, 0.0, 1.0)
    return np.where(device.followed_in_time[at], np.where(at + 1 < len(rows), share, 1.0), 0.0)
