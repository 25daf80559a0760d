"""Memory from step to step, small enough for a page, with the robust line through it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from torchtriage.core.arrays import distinct
from torchtriage.core.stats.trend import Slope, block_minima, sen_slope
from torchtriage.memory.snapshot.result import Area, Growth

POINTS = 300
"""Of a picture; of longer series rows are drawn evenly apart, the first and the last among them."""
BLOCKS = 32
"""What swings with the garbage collector or the load is judged by its lowest points."""
SETTLED = 0.25
"""Of a series without a leak: before it a program starts up, which is no trend."""


def follow(
    name: str,
    steps_by: str,
    step: ArrayLike,
    held_bytes: ArrayLike,
    *,
    onset_step: int | None = None,
    slope: Slope | None = None,
    areas: tuple[Area, ...] = (),
) -> Growth | None:
    """Return the picture of a series, None for one too short for a line.

    ``name steps_by`` : whose memory it is, and how steps were found. ``step`` : increasing. ``onset_step`` : where a
    leak begins; without one there is no leak. ``slope`` : from there on, where it is known already. ``areas`` : with
    a value for each step.
    """
    at, held = np.asarray(step, float), np.asarray(held_bytes, float)
    if len(at) < 3:
        return None
    first = onset_step if onset_step is not None else at[int(SETTLED * len(at))]
    # a line needs three points, also when it only just began to rise
    begin = min(int(np.searchsorted(at, first)), len(at) - 3)
    x, y = at[begin:], held[begin:]
    line = slope or sen_slope(*(block_minima(x, y, BLOCKS) if len(x) > BLOCKS else (x, y)))
    middle = float(np.median(x))
    shown = distinct(np.linspace(0, len(at) - 1, min(len(at), POINTS)).astype(np.int64))
    return Growth(
        name=name,
        is_leak=onset_step is not None,
        steps_by=steps_by,
        steps=tuple(at[shown].astype(np.int64).tolist()),
        held_bytes=tuple(held[shown].astype(np.int64).tolist()),
        from_step=int(at[begin]),
        slope_bytes=line.slope,
        slope_low_bytes=line.low,
        slope_high_bytes=line.high,
        middle_step=middle,
        middle_bytes=float(np.median(y - line.slope * (x - middle))),
        areas=tuple(
            Area(area.label, area.kind, tuple(area.values[i] for i in shown.tolist()), area.stack) for area in areas
        ),
    )
