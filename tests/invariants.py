"""The laws every trace obeys; tests run them on all that they build or read."""

from __future__ import annotations

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace import Trace


def check_trace(trace: Trace) -> None:
    """Raise AssertionError unless the trace's columns, trees, steps and classes are consistent."""
    n = len(trace)
    for column, table in ((trace.name, trace.names), (trace.cat, trace.cats), (trace.lane, trace.lanes)):
        assert len(column) == n
        assert not n or (column.min() >= 0 and column.max() < len(table))
    assert (trace.dur_ns >= 0).all()
    assert not n or (trace.detail.min() >= -1 and trace.detail.max() < len(trace.details))

    for tree in (trace.tree, trace.frames):
        child = tree.members[tree.parent[tree.members] >= 0]
        parent = tree.parent[child]
        assert (trace.lane[child] == trace.lane[parent]).all() or tree is trace.frames
        slack = trace.resolution_ns
        if tree is trace.tree:
            assert (trace.start_ns[child] >= trace.start_ns[parent]).all()
            assert (trace.end_ns[child] <= trace.end_ns[parent] + slack).all()
        assert (tree.self_ns >= 0).all()
        assert (tree.self_ns <= trace.dur_ns).all()

    steps, window = trace.steps, trace.window
    assert window.end_ns >= window.start_ns
    assert (np.diff(steps.start_ns) >= 0).all()
    assert (steps.end_ns >= steps.start_ns).all()
    whole = np.array([[window.start_ns, window.end_ns]], np.int64)
    for device in trace.devices:
        classes = device.classes(whole)[0]
        parts = (
            classes.compute_ns,
            classes.comm_only_ns,
            classes.copy_only_ns,
            classes.idle_host_late_ns,
            classes.idle_queued_ns,
            classes.idle_unknown_ns,
        )
        assert min(parts) >= 0, parts
        assert sum(parts) == classes.wall_ns == window.wall_ns
        busy = intervals.length(intervals.clip(device.busy, window.start_ns, window.end_ns))
        assert busy == sum(parts[:3])
        assert busy + intervals.length(device.idle) == window.wall_ns
