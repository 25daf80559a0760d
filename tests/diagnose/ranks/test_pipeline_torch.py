"""A schedule of torch.distributed.pipelining on two ranks, recorded and read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import torchtriage as tt

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.process]
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "schedule", "n_stages"), [("1f1b_p2_m4", "1F1B", 2), ("interleaved_p2_m4", "interleaved 1F1B", 4)]
)
def test_a_real_schedule_is_named_and_its_waiting_is_no_stragglers(
    tmp_path: Path, name: str, schedule: str, n_stages: int
) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "benchmarks" / "pipelines.py"), "--record", "--out", str(tmp_path), name]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    folder = tmp_path / name
    (job,) = tt.analyze_ranks(sorted(folder.glob("rank*.json.gz"))).jobs
    (pipe,) = job.pipelines
    assert (pipe.schedule, pipe.n_micro) == (schedule, 4)
    assert sorted(stage for rank in pipe.ranks for stage in rank.stages) == list(range(n_stages))
    # activations and gradients between all stages, in every step
    assert pipe.n_matched == 2 * 4 * (n_stages - 1) * len(pipe.steps)
    assert not pipe.n_unmatched
    assert "COM036" not in {finding.code for finding in job.findings}
    # what each stage took, by its own clock; on a busy machine passes hold more than the sleep
    for rank in pipe.ranks:
        slept = json.loads((folder / f"slept{rank.rank}.json").read_text())
        least = sum(min(part) for stage in slept.values() for part in stage)
        assert rank.micro_ns >= 0.9e9 * least
