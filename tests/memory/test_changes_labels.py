"""What is said about 22 public snapshots beside what an expert said of their raw events."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtriage.core.toml import read_toml
from torchtriage.memory.snapshot.read import read_snapshot
from torchtriage.memory.snapshot.result import MemoryResult
from torchtriage.memory.snapshot.verdict import judge

LABELS = read_toml(Path(__file__).parents[1] / "expected" / "memory_changes.toml")


def holder(result: MemoryResult) -> str:
    peak = result.devices[-1].peak
    return peak.categories[0].name if peak is not None else "unknown"


def first(result: MemoryResult) -> str:
    codes = [note.code for note in result.notes if note.code not in ("unknown", "totals")]
    return codes[0].replace("checkpointing", "checkpoint") if codes else ""


def gaps(result: MemoryResult) -> str:
    failed = result.devices[-1].out_of_memory
    if failed and failed[-1].would_fit:
        return "had room" if failed[-1].next_would_fit else "next"
    return "MEM049" if any(finding.code == "MEM049" for finding in result.findings) else "quiet"


@pytest.mark.data
@pytest.mark.parametrize("name", LABELS)
def test_holder_change_and_gaps_are_what_an_expert_said(recordings: Path, name: str) -> None:
    label = LABELS[name]
    (path,) = (recordings.parent / "gpu2" / "memory").glob(f"{name}.p*")
    result = judge(read_snapshot(path))
    assert not result.crashes
    assert holder(result) in label["holder"]
    assert first(result) in (*label["first"], *label["also"])
    assert gaps(result) == label["gaps"]
