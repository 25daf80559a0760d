"""Findings on a second set of public recordings, of which pairs and causes are known from their authors or the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchtriage as tt

pytestmark = pytest.mark.data


@pytest.fixture
def public(recordings: Path) -> Path:
    folder = recordings.parent / "gpu2"
    if not folder.is_dir():
        pytest.skip("the second set of recordings is not here")
    return folder


def cost_of(path: Path, code: str) -> tuple[float, float]:
    """Return the low and high end of one finding's saving, ms."""
    (cost,) = [finding.cost for finding in tt.analyze(path).findings if finding.code == code]
    assert cost is not None
    return cost.low_ms, cost.high_ms


def test_pinning_an_upload_on_an_h100_saved_578_us(public: Path) -> None:
    name = "shreyansh26__MLSys-Experiments__pinned_memory_async_traces_trace_streamed0_pinned0.json.gz"
    low, high = cost_of(public / "traces" / name, "CPY007")
    assert low < 0.578 < high
    assert high - low < 0.5 * 0.578


def test_pinning_both_directions_on_an_a100_saved_36_8_ms(public: Path) -> None:
    path = public / "traces" / "pytorch__benchmark__trace2.json.gz"
    low, high = cost_of(path, "CPY007")
    # the upload alone could vanish behind the readback of 34.9 ms; the pair pins that as well
    assert 20 < low < high < 36.8
    joint = tt.analyze(path).joint_cost
    assert joint is not None
    assert joint.low_ms < 36.8 < joint.high_ms
