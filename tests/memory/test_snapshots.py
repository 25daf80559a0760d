"""Shared snapshots: read whole, totals to the byte, and what an expert wrote down about each."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA

from torchtriage.core.errors import SnapshotError
from torchtriage.core.toml import read_toml
from torchtriage.memory.snapshot import read
from torchtriage.memory.snapshot.fragmentation import free_at, segments_at
from torchtriage.memory.snapshot.read import read_snapshot
from torchtriage.memory.snapshot.snapshot import Snapshot
from torchtriage.memory.snapshot.timeline import timeline
from torchtriage.memory.snapshot.verdict import judge

FOLDER = DATA / "memory"
TRUTH: dict[str, dict[str, Any]] = read_toml(Path(__file__).parents[1] / "expected" / "memory.toml")
OURS = {"MEM048", "MEM049"}

pytestmark = pytest.mark.data


class Plain(pickle.Unpickler):
    """The standard library's reader, as a second opinion on files known to be plain."""

    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name} in a shared file")


def plainly(path: Path) -> Any:
    with path.open("rb") as file:
        return Plain(file).load()


def stack(snapshot: Snapshot, code: int) -> list[tuple[str, int, str]]:
    stacks = snapshot.stacks
    return [(stacks.files[one], int(stacks.lines[one]), stacks.functions[one]) for one in stacks.frames_of(code)]


def frames(value: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(one["filename"], one["line"], one["name"]) for one in value["frames"]]


def test_every_shared_snapshot_has_a_reading() -> None:
    assert {path.stem for path in FOLDER.glob("*.pickle")} == set(TRUTH)


@pytest.mark.parametrize("name", TRUTH)
def test_columns_hold_what_the_file_holds(name: str) -> None:
    path = FOLDER / f"{name}.pickle"
    found, document = read_snapshot(path), plainly(path)
    entries = [one for trace in document["device_traces"] for one in trace]
    history = found.history
    assert history.address.tolist() == [entry["addr"] for entry in entries]
    assert history.size_bytes.tolist() == [entry["size"] for entry in entries]
    assert history.time_us.tolist() == [entry["time_us"] for entry in entries]
    assert [stack(found, code) for code in history.stack] == [frames(entry) for entry in entries]
    blocks = [one for segment in document["segments"] for one in segment["blocks"]]
    assert found.blocks.address.tolist() == [block["address"] for block in blocks]
    assert found.blocks.size_bytes.tolist() == [block["size"] for block in blocks]
    assert [stack(found, code) for code in found.blocks.stack] == [frames(block) for block in blocks]
    assert found.segments.size_bytes.tolist() == [one["total_size"] for one in document["segments"]]
    assert len(found.annotations) * 2 == len(document["external_annotations"])
    assert found.settings == document["allocator_settings"]
    assert found.n_devices == len(document["device_traces"])
    assert not found.unknown


@pytest.mark.parametrize("name", TRUTH)
def test_totals_reconcile_to_the_byte(name: str) -> None:
    snapshot = read_snapshot(FOLDER / f"{name}.pickle")
    assert snapshot.check() == []
    for device in snapshot.devices:
        lives = timeline(snapshot, device)
        assert lives.n_unmatched == 0
        mine = snapshot.segments.device == device
        assert lives.allocated_bytes[-1] == snapshot.segments.allocated_bytes[mine].sum()
        assert lives.reserved_bytes[-1] == snapshot.reserved_bytes(device)
        step = max(1, (lives.end - lives.start) // 40)
        for row in range(lives.start - 1, lives.end, step):
            segments = segments_at(snapshot, lives, row)
            free = free_at(snapshot, lives, row, segments)
            reserved = sum(segment.end - segment.start for segment in segments)
            assert reserved == lives.reserved_at(row)
            assert free.size_bytes.sum() == reserved - lives.allocated_at(row)
            assert lives.lives.size_bytes[lives.alive(row)].sum() == lives.allocated_at(row)


@pytest.mark.parametrize("name", TRUTH)
def test_the_verdict_is_what_an_expert_read(name: str) -> None:
    truth = TRUTH[name]
    result = judge(read_snapshot(FOLDER / f"{name}.pickle"))
    assert not result.crashes
    (device,) = result.devices
    peak = device.peak
    assert peak is not None
    assert peak.allocated_bytes == truth["peak_bytes"]
    assert peak.entry == truth["peak_entry"]
    assert peak.before_bytes == truth["before_bytes"]
    assert device.max_reserved_bytes == truth["reserved_bytes"]
    assert device.allocated_bytes == truth["end_bytes"]
    shares = {line.label: line.share for line in peak.lines}
    for label, share in truth["held"]:
        assert shares[label] == pytest.approx(share, abs=0.006), label
    top = sorted((line.size_bytes for line in peak.lines), reverse=True)[: len(truth["held"])]
    assert sorted(shares[label] for label, _ in truth["held"]) == pytest.approx(
        sorted(size / peak.allocated_bytes for size in top)
    )
    sums = {part.name: part.size_bytes for part in peak.phases}
    for phase, size in truth.get("phases", {}).items():
        assert sums[phase] == size
    if "categories" in truth:
        assert {part.name for part in peak.categories} == set(truth["categories"])
    for parts in (peak.phases, peak.categories, peak.modules, peak.lines):
        assert sum(one.size_bytes for one in parts) == peak.allocated_bytes
    assert {finding.code for finding in result.findings} & OURS == set(truth["findings"])
    told = device.fragmentation
    assert told is not None
    assert told.free_bytes == told.reserved_bytes - told.allocated_bytes
    assert sum(part.size_bytes for part in told.parts) == told.free_bytes
    if truth["leak"] != "yes":
        assert not {finding.code for finding in result.findings if "leak" in finding.name}
    picture = device.picture
    assert picture is not None
    drawn = np.array([area.values for area in picture.areas]).sum(axis=0)
    assert drawn.max() == peak.allocated_bytes
    assert drawn[-1] == device.allocated_bytes


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_reads_the_same(protocol: int) -> None:
    document = plainly(FOLDER / "decomfl_windows.pickle")
    found = read_snapshot(io.BytesIO(pickle.dumps(document, protocol)))
    first = read_snapshot(FOLDER / "decomfl_windows.pickle")
    for name in ("address", "size_bytes", "action", "stream", "time_us"):
        assert (getattr(found.history, name) == getattr(first.history, name)).all()
    labels = [stack(found, code) for code in found.history.stack[:2000]]
    assert labels == [stack(first, code) for code in first.history.stack[:2000]]
    assert found.texts == first.texts


def test_compressed_files_read_the_same(tmp_path: Path) -> None:
    data = (FOLDER / "lm_small_snapshot.pickle").read_bytes()
    packed = tmp_path / "one.pickle.gz"
    packed.write_bytes(gzip.compress(data))
    zipped = tmp_path / "one.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("inner/one.pickle", data)
    first = read_snapshot(FOLDER / "lm_small_snapshot.pickle")
    for path in (packed, zipped):
        assert (read_snapshot(path).history.address == first.history.address).all()


def test_cut_files_say_so(tmp_path: Path) -> None:
    data = (FOLDER / "lm_forward_fp32_ctx128.pickle").read_bytes()
    cut = tmp_path / "cut.pickle"
    for size in (2, 100, 30_000, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:size])
        with pytest.raises(SnapshotError, match="breaks off"):
            read_snapshot(cut)
    packed = tmp_path / "cut.pickle.gz"
    packed.write_bytes(gzip.compress(data)[:-2000])
    with pytest.raises(SnapshotError, match="ends early"):
        read_snapshot(packed)


def test_a_trace_is_sent_to_the_right_command() -> None:
    path = next((DATA / "traces").rglob("*.json.gz"))
    with pytest.raises(SnapshotError, match="torchtriage analyze"):
        read_snapshot(path)


def test_json_too_large_to_be_read_whole_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "MAX_JSON_BYTES", 1000)
    path = tmp_path / "timeline.json"
    path.write_text("[" + ",".join(["[1,1,1,1]"] * 10_000) + "]", encoding="utf-8")
    with pytest.raises(SnapshotError, match="at most 1000 B, found more"):
        read.read_memory(path)
