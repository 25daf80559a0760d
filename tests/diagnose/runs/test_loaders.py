"""What stack samples say of a loader whose workers are waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.loaders import slow_workers

SOURCE = """\
for batch in loader:
    loss = model(batch)
    optimizer.step()
"""
WAITING = ("torch/utils/data/dataloader.py:_MultiProcessingDataLoaderIter._try_get_data", "queue.py:Queue.get")
FORWARD = ("torch/nn/modules/module.py:Module._call_impl",)


def found(folder: Path, waits_ms: float, cores: int = 8) -> list[Finding]:
    """Return what is said of steps of 20 ms, of which these wait for workers."""
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(40):
        built.look("for batch", below=WAITING, ms=waits_ms)
        built.look("loss = model", below=FORWARD, ms=20 - waits_ms)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    return list(slow_workers(loop, 20.0, cores))


@pytest.mark.parametrize(("cores", "low"), [(2, 0.05), (8, 0.175)])
def test_steps_that_wait_for_workers_save_more_with_more_cores(tmp_path: Path, cores: int, low: float) -> None:
    (finding,) = found(tmp_path, 12, cores)
    assert finding.place.frame is not None
    assert finding.cost is not None
    assert (finding.code, finding.place.frame.line) == ("DAT019", 1)
    assert (finding.cost.share_low, finding.cost.share_high) == pytest.approx((low, 0.6), abs=0.01)


def test_a_loader_that_nearly_keeps_up_is_no_finding(tmp_path: Path) -> None:
    assert not found(tmp_path, 2)
