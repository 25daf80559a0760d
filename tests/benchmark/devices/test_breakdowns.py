"""Baselines of sums say what their definitions say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.learn.dataset.recordings import DatasetItem
from torchtriage_benchmark.devices import breakdowns
from torchtriage_benchmark.devices.breakdowns import BREAKDOWNS


@dataclass(frozen=True, eq=False)
class Made(DatasetItem):
    """A recording that is its trace."""

    made: Trace | None = None

    @property
    def trace(self) -> Trace:  # type: ignore[override]
        assert self.made is not None
        return self.made


def said(name: str, builder: TraceBuilder, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], dict[str, float]]:
    from pathlib import Path

    made = Made({"part": "device"}, Path("x.recording"), builder.build())
    monkeypatch.setattr(breakdowns, "DatasetItem", lambda *_: made)
    answer = BREAKDOWNS[name](made)
    return list(answer.windows), dict(answer.types)


def launch_bound(kernel_us: float, every_us: float) -> TraceBuilder:
    """Return a device that waits for each launch."""
    made = TraceBuilder()
    for at in range(64):
        made.launch(at * every_us, every_us * 0.6, at * every_us + every_us * 0.7, kernel_us)
    return made


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_a_device_that_waits_for_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, types = said(name, launch_bound(4, 20), monkeypatch)
    assert max(types, key=types.__getitem__) == "LCH014"
    assert types["LCH014"] == pytest.approx(0.8, abs=0.02)
    assert np.mean(windows) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("name", "code"), [("statistics", "HST020"), ("hta", "HST020"), ("tracelens", "LCH014")])
def test_a_device_that_waits_for_python(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TraceBuilder()
    for at in range(64):
        made.launch(at * 200, 5, at * 200 + 10, 100)
    assert list(said(name, made, monkeypatch)[1]) == [code]


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_a_busy_device_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TraceBuilder()
    for at in range(64):
        made.launch(at * 5, 4, 10 + at * 100, 100)
    windows, types = said(name, made, monkeypatch)
    assert not types
    assert max(windows) == 0


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_exposed_communication(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TraceBuilder()
    for at in range(32):
        made.launch(at * 5, 4, 10 + at * 200, 100)
        made.launch(at * 5 + 2, 1, 110 + at * 200, 100, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert said(name, made, monkeypatch)[1] == {"COM035": pytest.approx(0.5, abs=0.01)}


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_without_a_device_nothing_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, types = said(name, TraceBuilder(vendor="cpu").op("aten::add", 0, 100), monkeypatch)
    assert not types
    assert windows == [0.0] * 16
