"""Every share agrees with an independent slow reading of the raw JSON (``tests/reference.py``)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invariants import check_trace

from torchtriage.core import intervals
from torchtriage.core.errors import TriageError
from torchtriage.core.trace import Kind, Trace, read_trace

REFERENCE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "expected" / "reference.json").read_text())
READABLE = sorted(name for name, entry in REFERENCE.items() if "unreadable" not in entry and entry["events"])

pytestmark = pytest.mark.data


@cache
def load(path: Path) -> Trace:
    return read_trace(path)


@pytest.fixture(params=READABLE)
def pair(request: pytest.FixtureRequest, recordings: Path) -> tuple[Trace, dict[str, Any]]:
    if not (recordings / request.param).exists():
        pytest.skip("not among the recordings here")
    try:
        return load(recordings / request.param), REFERENCE[request.param]
    except TriageError:
        # valid JSON that is no trace: refusing it is tested with the reader
        assert not REFERENCE[request.param]["category"]
        pytest.skip("not a trace")


def test_counts_every_event_and_row(pair: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = pair
    assert trace.report.n_events == expected["events"]
    assert trace.report.phases == expected["phase"]
    counts = np.bincount(trace.cat, minlength=len(trace.cats)).tolist()
    rows = dict(zip(trace.cats, counts, strict=True))
    for category, count in expected["category"].items():
        assert rows.get("" if category == "None" else category, 0) == count, category


def test_invariants_hold(pair: tuple[Trace, dict[str, Any]]) -> None:
    check_trace(pair[0])


def test_steps_and_window_agree_to_the_nanosecond(pair: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = pair
    if "step_boundary_ns" in expected:
        edges = [*trace.steps.start_ns.tolist(), int(trace.steps.end_ns[-1])]
        assert edges == np.maximum.accumulate(expected["step_boundary_ns"]).tolist()
        assert trace.steps.host_start_ns.tolist() == expected["step_host_start_ns"]
    if expected.get("window_ns"):
        assert [trace.window.start_ns, trace.window.end_ns] == expected["window_ns"]


def test_classes_of_time_agree_to_a_thousandth(pair: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = pair
    if not expected.get("devices"):
        assert not trace.devices
        return
    assert {str(device.index) for device in trace.devices} == set(expected["devices"])
    window = np.array([[trace.window.start_ns, trace.window.end_ns]], np.int64)
    slack = trace.window.wall_ns / 1000
    for device in trace.devices:
        wanted = expected["devices"][str(device.index)]
        found = device.classes(window)[0]
        busy = found.compute_ns + found.comm_only_ns + found.copy_only_ns
        comm = intervals.clip(device.communication, *window[0].tolist())
        for ours, theirs in (
            (found.compute_ns, wanted["compute_ns"]),
            (found.comm_only_ns, wanted["comm_only_ns"]),
            (found.copy_only_ns, wanted["copy_only_ns"]),
            (busy, wanted["busy_ns"]),
            (intervals.length(comm), wanted["comm_ns"]),
            (found.idle_host_late_ns, wanted["idle_host_late_ns"]),
            (found.idle_queued_ns, wanted["idle_queued_ns"] + wanted["idle_back_to_back_ns"]),
            (found.idle_unknown_ns, wanted["idle_unknown_ns"] + wanted["idle_tail_ns"]),
        ):
            assert abs(ours - theirs) <= slack


def test_links_and_orphans_agree(pair: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = pair
    assert int(trace.works.sum()) == expected["gpu_rows"]
    assert int(trace.links.orphans.sum()) == expected["orphan_rows"]
    assert abs(int(trace.dur_ns[trace.works].sum()) - expected["gpu_sum_ns"]) <= expected.get("fine_rows", 0)


def test_kernel_statistics_are_exact(pair: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = pair
    kernels = trace.kind == Kind.KERNEL
    assert len(np.unique(trace.name[kernels])) == expected["kernel_names"]
    for entry in expected["top_kernels"]:
        mine = trace.dur_ns[kernels & trace.named(entry["name"])]
        assert len(mine) == entry["count"]
        # half nanoseconds
        assert abs(int(mine.sum()) - entry["total_ns"]) <= (len(mine) if "fine_rows" in expected else 0)
        assert abs(int(mine.max()) - entry["max_ns"]) <= ("fine_rows" in expected)
