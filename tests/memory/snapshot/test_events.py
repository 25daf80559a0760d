"""Memory events of traces: the recorded totals come out again, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA

from torchtriage.core.errors import SnapshotError
from torchtriage.core.trace import Trace
from torchtriage.memory.snapshot.events import recorded_memory
from torchtriage.memory.snapshot.read import read_memory
from torchtriage.memory.snapshot.verdict import judge_trace

# (trace, device name) -> peak in bytes, its first holder and whether stacks name it
RECORDED = {
    "cv/timesformer_h100_infer.json.gz": (4_490_752_000, "pipeline/model.py:40 run_on_input"),
    "cv/vit_nsfw_h100_infer.json.gz": (231_332_864, "before the recording"),
}


def load(name: str) -> Trace:
    trace = read_memory(DATA / "traces" / name)
    assert isinstance(trace, Trace)
    return trace


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDED)
def test_totals_are_those_the_profiler_wrote_beside_each_event(name: str) -> None:
    trace = load(name)
    memory = trace.memory
    for one in recorded_memory(trace):
        mine = memory.device_type == 0 if one.name == "host" else memory.device_type != 0
        order = np.argsort(memory.at_ns[mine], kind="stable")
        told = memory.allocated_bytes[mine][order]
        assert (one.timeline.allocated_bytes[1:] == told).all()
        lives = one.timeline.lives
        alive = one.timeline.alive(one.timeline.peak)
        assert lives.size_bytes[alive].sum() == told.max()


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDED)
def test_the_peak_and_its_holder_are_told(name: str) -> None:
    result = judge_trace(load(name), name)
    size, holder = RECORDED[name]
    peak = result.devices[0].peak
    assert peak is not None
    assert peak.allocated_bytes == size
    assert peak.lines[0].label == holder
    assert all(line.frame is None or not line.frame.exact for line in peak.lines)
    assert not result.healthy
    assert {one.code for one in result.not_checked} >= {"MEM029", "MEM049"}
    assert result.devices[-1].name == "host"
    assert result.devices[-1].reserved_bytes is None


def test_a_trace_without_memory_events_says_how_to_record_them(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(
        '{"traceEvents": [{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    trace = read_memory(file)
    assert isinstance(trace, Trace)
    with pytest.raises(SnapshotError, match="profile_memory=True"):
        judge_trace(trace, "trace.json")


def _trace(tmp_path: Path, args: list[dict[str, int]], end: str = "]}") -> Trace:
    rows = ",".join(
        json.dumps({"ph": "i", "name": "[memory]", "ts": at, "pid": 1, "tid": 1, "args": one})
        for at, one in enumerate(args, 1)
    )
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": [' + rows + end)
    trace = read_memory(file)
    assert isinstance(trace, Trace)
    return trace


def test_events_without_addresses_and_totals_add_up_to_the_running_sum(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    alive: list[int] = []
    sizes = [-64, -64]  # of what was there before
    for _ in range(500):
        if alive and rng.random() < 0.45:
            sizes.append(-alive.pop(int(rng.integers(len(alive)))))
        else:
            alive.append(int(rng.integers(1, 6)) * 512)
            sizes.append(alive[-1])
    device = {"Device Type": 1, "Device Id": 0}
    trace = _trace(tmp_path, [device | {"Bytes": size} for size in sizes])
    (one,) = recorded_memory(trace)
    assert (one.timeline.allocated_bytes == 128 + np.append(0, np.cumsum(sizes))).all()
    result = judge_trace(trace, "trace.json")
    peak = result.devices[0].peak
    assert peak is not None
    assert peak.allocated_bytes == 128 + np.cumsum(sizes).max()
    assert sum(line.size_bytes for line in peak.lines) == peak.allocated_bytes
    assert (peak.reserved_bytes, result.devices[0].max_reserved_bytes) == (None, None)
    assert "reserved" not in result.verdict[0]
    assert [note.code for note in result.notes] == ["totals"]


def test_a_cut_trace_says_that_its_peak_may_be_missing(tmp_path: Path) -> None:
    told = {"Device Type": 1, "Device Id": 0, "Addr": 512, "Bytes": 512}
    args = [told | {"Total Allocated": 512, "Total Reserved": 2 << 20}]
    assert judge_trace(_trace(tmp_path, args), "trace.json").notes == ()
    (note,) = judge_trace(_trace(tmp_path, args, end=',{"ph": "i", "na'), "trace.json").notes
    assert note.level == "warn"
    assert "peak" in note.message
