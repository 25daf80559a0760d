"""What a benchmark measured, as the gate takes it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from measure.bench.sessions import TargetClient, filled, measured, plan

from torchtriage.cli.main import cli
from torchtriage.core.samples import Run
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.samples import samples_of
from torchtriage.measure.gate.check import check
from torchtriage.measure.gate.importers import NOWHERE, read_runs
from torchtriage.measure.gate.row_verdict import GateLimits
from torchtriage.measure.gate.store import open_store


def two() -> Measurements:
    """Return a benchmark of five rounds: eager takes 2 ms, compiled 1 ms."""
    of = plan(("eager", "default"), rounds=5)
    eager, default = of.settings
    return measured(of, {eager: 2.0, default: 1.0}, np.random.default_rng(0), rounds=5)


def test_each_round_is_a_session_of_each_setting() -> None:
    run = samples_of(two(), NOWHERE)
    run.check()
    assert run.benchmark == "bench models.py:linear"
    assert dict(run.environment)["torch"] == "2.13.0"
    assert dict(run.environment)["host"].startswith(("quiet", "noisy", "not checked"))
    series = {one.metric: one for one in run.series}
    # the gate is never sure of one session
    assert all(len(one.sessions) == 5 for one in run.series)
    assert set(series) == {
        f"{way}: {what}"
        for way in ("eager", "default")
        for what in ("step", "first call, caches kept", "peak host memory")
    } | {"default: graph breaks", "default: recompilations"}
    for way, step_ms in (("eager", 2.0), ("default", 1.0)):
        step = series[f"{way}: step"]
        assert (step.unit, step.kind, len(step.sessions)) == ("ms", "latency", 5)
        for session in step.sessions:
            assert len(session.values) == 100
            assert np.median(session.values) == pytest.approx(step_ms, rel=0.3)
    kept = series["default: first call, caches kept"]
    assert [one.values for one in kept.sessions] == [(2.0,)] * 5
    assert kept.kind == "compile_time"
    assert series["eager: peak host memory"].sessions[0].values == (300 << 20,)


def bench_run(seed: int) -> Run:
    """Return what bench measures at its defaults: three rounds, of which the first began with empty caches, or more."""
    of = plan(("eager", "default"))
    eager, default = of.settings
    rounds = of.rounds + (2 if seed < 8 else 0)
    found = measured(of, {eager: 2.0, default: 1.0}, np.random.default_rng(seed), rounds=rounds)
    for session in found.rounds[1].values():
        session["cold"] = True
    return replace(samples_of(found, NOWHERE), commit=f"{seed:040x}", recorded_at_s=1000.0 + seed)


def test_samples_of_equal_programs_pass_the_gate_however_many_rounds_they_took() -> None:
    assert check([bench_run(seed) for seed in range(8)], [bench_run(9)], GateLimits()).outcome == "fine"


def test_a_setting_that_failed_has_no_samples() -> None:
    found = two()
    default = found.plan.settings[1]
    found.rounds[3][default.key] = {
        "failure": {"stage": "steps", "kind": "crash", "message": "boom", "session": "warm"}
    }
    run = samples_of(found, NOWHERE)
    assert {one.metric.partition(":")[0] for one in run.series} == {"eager"}


def test_bench_writes_what_gate_record_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", os.fspath(tmp_path.parent))
    monkeypatch.delenv("TORCHTRIAGE_STORE", raising=False)
    Path("models.py").write_text("def linear(): ...\n")
    found = two()
    filled(tmp_path / "out", found)
    monkeypatch.setattr("torchtriage.measure.bench.run.SessionClient", TargetClient)
    words = [
        "bench",
        "models.py:linear",
        "--modes",
        "eager,default",
        "--rounds",
        "5",
        "--max-rounds",
        "5",
        "--out",
        "out",
        "-q",
        "--samples",
        "s.jsonl",
    ]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (run,) = read_runs("s.jsonl").runs
    assert run.machine.fingerprint != "unknown"
    assert run.series == samples_of(found, NOWHERE).series
    done = CliRunner().invoke(cli, ["gate", "record", "--import", "s.jsonl"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with open_store(create=False) as store:
        assert store.load(store.find()) == (run,)
