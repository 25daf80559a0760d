"""Snapshots of other versions, damaged ones, and files that are none."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from tests.memory.recorder import FORWARD, GIB, MIB, A, B, Recorder, frame, read, training_step

from torchtriage.core.errors import SnapshotError
from torchtriage.memory.snapshot.verdict import judge


def test_an_old_list_of_segments_without_history() -> None:
    old = [
        {
            "device": 0,
            "address": A,
            "total_size": 2 * MIB,
            "allocated_size": MIB,
            "active_size": MIB,
            "stream": 0,
            "segment_type": "large",
            "blocks": [
                {
                    "size": MIB,
                    "state": "active_allocated",
                    "history": [{"addr": A, "real_size": 1000, "frames": [frame("/home/me/t.py", 5, "f")]}],
                },
                {"size": MIB, "state": "inactive"},
            ],
        }
    ]
    snapshot = read(old)
    assert snapshot.blocks.address.tolist() == [A, A + MIB]
    assert snapshot.blocks.requested_bytes.tolist() == [1000, MIB]
    result = judge(snapshot)
    device = result.devices[0]
    assert device.allocated_bytes == MIB
    assert device.requested_bytes is None
    assert device.peak is None
    assert "MEM052" in {pattern.code for pattern in result.not_checked}
    assert "No history was recorded" in result.verdict[1]


def test_a_history_without_stacks_is_judged_without_lines() -> None:
    document = training_step().dump()
    for entry in document["device_traces"][0]:
        del entry["frames"]
    result = judge(read(document))
    (device,) = result.devices
    assert device.peak is not None
    assert device.peak.no_stack_bytes == device.peak.allocated_bytes
    assert "whose memory it was is not known" in result.verdict[1]
    assert "peak by line" in {pattern.name for pattern in result.not_checked}


def test_new_fields_and_actions_are_counted() -> None:
    document = training_step().dump()
    document["device_traces"][0].append({"action": "teleport", "addr": 1, "size": 2, "warp": 9})
    document["flux"] = []
    result = judge(read(document))
    assert set(read(document).unknown) == {"action teleport", "field flux", "field warp of history"}
    assert result.notes[0].code == "unknown"


def test_two_devices_are_judged_apart() -> None:
    first, other = training_step(), Recorder(device=1)
    other.reserve(B, 1024 * MIB)
    other.alloc(B, 1000 * MIB, FORWARD)
    document, more = first.dump(), other.dump()
    document["segments"] += more["segments"]
    document["device_traces"] = [first.entries, other.entries]
    result = judge(read(document))
    assert [device.device for device in result.devices] == [0, 1]
    peaks = [device.peak.allocated_bytes for device in result.devices if device.peak]
    assert peaks == [256 * MIB, 1000 * MIB]
    assert "on device 1" in result.verdict[0]


def test_no_memory_at_all_is_said() -> None:
    result = judge(read({"segments": [], "device_traces": [[], []]}))
    assert result.devices == ()
    assert "No memory" in result.verdict[0]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"weights": [1, 2]}, "a dict without segments"),
        ([1, 2, 3], "segments or history where none belong"),
        ("text", "a text"),
        ({"segments": [1]}, "where none belong"),
        ({"segments": [], "device_traces": [[1]]}, "where none belong"),
    ],
)
def test_other_pickles_are_refused(document: Any, found: str) -> None:
    with pytest.raises(SnapshotError, match=found):
        read(document)


def test_rows_named_twice_are_refused() -> None:
    document = training_step().dump()
    document["device_traces"] = [document["device_traces"][0]] * 2
    with pytest.raises(SnapshotError, match="where none belong"):
        read(document)


# -- anything at all ---------------------------------------------------------------------------

ODD = [0, -1, 1, 512, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 70, 2.5, float("nan"), True]
ODD += [None, "x", b"q", [], {}, (), [[]], {"a": 1}]


def spots(value: Any) -> list[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    inner = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return found + [spot for part in inner for spot in spots(part)]


@pytest.mark.parametrize("seed", range(8))
def test_any_field_may_be_anything(seed: int) -> None:
    rng = random.Random(seed)
    n_judged = 0
    for _ in range(25):
        recorder = training_step()
        recorder.reserve(B, GIB, stream=3)
        recorder.oom(GIB, 5)
        recorder.free(A, completed=False)
        document = pickle.loads(pickle.dumps(recorder.dump()))  # the stacks are everybody's
        for _ in range(rng.choice((1, 1, 3))):
            container, key = rng.choice(spots(document))
            if rng.random() < 0.3:
                del container[key]
            else:
                container[key] = rng.choice(ODD)
        try:
            snapshot = read(document)
        except SnapshotError:
            continue
        result = judge(snapshot)
        assert not result.crashes
        n_judged += 1
    assert n_judged
