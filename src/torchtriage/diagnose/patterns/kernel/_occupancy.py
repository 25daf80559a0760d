"""How much of a device a kernel occupies."""

import numpy as np

from torchtriage.core.trace.device import Device
from torchtriage.diagnose.patterns.base import Ints, Mask, Trace

OVERLAP_NS = 1_000
"""Kernels that follow each other seem to run at once for up to 0.2 us (measured on MI300X)."""


def multiprocessors(device: Device) -> int:
    """Return the number of multiprocessors (NVIDIA) or compute units (AMD), 0 where it is not recorded."""
    listed = device.trace.meta.get("deviceProperties")
    listed = [properties for properties in listed if isinstance(properties, dict)] if isinstance(listed, list) else []
    named = [properties for properties in listed if properties.get("name") == device.name] or listed
    units = named[0].get("numSms") if named else None
    return units if isinstance(units, int) and units > 0 else 0


def blocks(trace: Trace, rows: Ints) -> Ints:
    """Return int64[k]: the blocks (workgroups) of each kernel's grid, 0 where it is not recorded."""
    codes, first, inverse = np.unique(trace.detail[rows], return_index=True, return_inverse=True)
    count = np.zeros(len(codes), np.int64)
    for index, grid in enumerate(trace.details_of("grid", rows[first])):
        if isinstance(grid, list) and len(grid) == 3 and all(isinstance(n, int) for n in grid):
            count[index] = max(min(grid), 0) and min(grid[0] * grid[1] * grid[2], 1 << 40)
    return count[inverse]


def alone(device: Device) -> Mask:
    """Return bool[len(device.rows)]: work beside which nothing else runs."""
    trace = device.trace
    start, end = trace.start_ns[device.rows], trace.end_ns[device.rows]
    mask = np.ones(len(start), dtype=bool)
    reach = np.maximum.accumulate(end)
    mask[1:] &= start[1:] >= reach[:-1] - OVERLAP_NS
    mask[:-1] &= start[1:] >= end[:-1] - OVERLAP_NS
    return mask
