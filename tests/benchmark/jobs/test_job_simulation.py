"""The simulation of jobs gives times that can be worked out by hand, and recordings that are read as they were made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtriage as tt

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
job_program = pytest.importorskip("job_program")
job_simulation = pytest.importorskip("job_simulation")

HOST = '{"ph":"X","cat":"%s","name":"%s","pid":%%d,"tid":%%d,"ts":%%.3f,"dur":%%.3f,"args":{%%s}}'
WORK = HOST % ("kernel", "gemm")


def blocks(work_us: float) -> list[Any]:
    """Return a stretch for each phase: a launch in 100 us of the host, and a kernel."""
    op = job_program.Row(0.0, 90.0, HOST % ("cpu_op", "aten::mm"))
    call = job_program.Row(10.0, 8.0, HOST % ("cuda_runtime", "cudaLaunchKernel"), False, [(work_us, WORK)])
    return [job_program.Block(phase, [op, call], 100.0) for phase in ("forward", "backward", "optimizer")]


def spec(**changed: Any) -> Any:
    asked = {"tp": 1, "dp": 4, "pp": 1, "ep": 1, "n_steps": 6, "kernel_scale": 1.0, "layers": 1} | changed
    return job_program.Spec("job", "dlrm", seq=True, named=True, seed=1, **asked)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the noise out."""

    class Calm:
        def __init__(self, _seed: int) -> None: ...
        def lognormal(self, _mean: float, _sigma: float, size: Any) -> Any:
            return np.ones(size)

        def random(self, size: Any) -> Any:
            return np.ones(size)

        def uniform(self, low: float, high: float, size: Any = None) -> Any:
            return np.zeros(size) if size is not None else 0.0

        def normal(self, mean: float, _sigma: float, size: int) -> Any:
            return np.full(size, mean)

    monkeypatch.setattr(job_simulation.np.random, "default_rng", Calm)


def step_us(asked: Any, work_us: float, *, fault: bool) -> float:
    simulation = job_simulation.Simulation(asked, blocks(work_us), fault=fault)
    simulation.run()
    return float(simulation.step_us())


@pytest.mark.usefixtures("calm")
def test_a_stall_of_one_rank_lengthens_the_step_of_all_by_as_much() -> None:
    asked = spec(kind="stall", culprit=2, strength=700.0)
    assert step_us(asked, 10.0, fault=True) - step_us(asked, 10.0, fault=False) == pytest.approx(700.0, abs=1.0)


@pytest.mark.usefixtures("calm")
def test_a_slow_device_costs_what_its_kernels_take_longer() -> None:
    asked = spec(kind="device", culprit=1, strength=1.5)
    # two kernels forward, two backward and the optimizer's
    more = step_us(asked, 1000.0, fault=True) - step_us(asked, 1000.0, fault=False)
    assert more == pytest.approx(5 * 500.0, rel=0.05)


@pytest.mark.usefixtures("calm")
def test_without_a_long_stage_all_hold_as_much_of_the_same_work() -> None:
    optimizer, micro = 2000.0, 4
    alone = step_us(spec(dp=1, tp=2), 2000.0, fault=False) - optimizer
    asked = spec(dp=1, tp=2, pp=2, micro=micro, kind="stage", culprit=0, strength=1.0)
    even = step_us(asked, 2000.0, fault=False) - optimizer
    assert even == pytest.approx((micro + 1) * 1.5 * alone, rel=0.06)
    # two layers and one, against one and a half each
    assert even < step_us(asked, 2000.0, fault=True) - optimizer < 1.2 * even


@pytest.mark.usefixtures("calm")
def test_stages_of_a_pipeline_wait_for_each_other_as_in_1f1b() -> None:
    optimizer = 2000.0
    alone = step_us(spec(dp=1, tp=2), 2000.0, fault=False) - optimizer
    for micro in (2, 8):
        wall = step_us(spec(dp=1, tp=2, pp=2, micro=micro), 2000.0, fault=False)
        # each stage does the work of one rank alone per microbatch, and two stages make one more slot
        assert wall == pytest.approx((micro + 1) * alone + optimizer, rel=0.06)


def test_the_recordings_are_a_job_with_the_culprit_in_it(tmp_path: Path) -> None:
    asked = spec(kind="stall", culprit=2, strength=900.0)
    job_simulation.Simulation(asked, blocks(300.0), fault=True, write=tmp_path).run()
    report = tt.analyze_ranks(sorted(tmp_path.glob("rank*.json.gz")))
    (job,) = report.jobs
    assert job.world_size == 4
    assert {item.n_matched for item in job.ranks} == {6}
    (late,) = [finding for finding in job.findings if finding.code == "COM036"]
    assert late.evidence["late_rank"] == 2
