"""The stored baseline: what pytest runs record and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.integrations.pytest.conftest import Run as Runs

from torchtriage.core.machine import Noise
from torchtriage.core.samples import Machine, Run
from torchtriage.integrations.pytest.baseline import Baseline, compare, series_of
from torchtriage.integrations.pytest.check import Check
from torchtriage.integrations.pytest.measure import Memory, Timing
from torchtriage.measure.gate.store import open_store

HERE = Machine((("cores", "2"), ("cpu", "some")))


def run_of(
    step_ms: float,
    *,
    kernels: int | None = 12,
    memory: int | None = None,
    machine: Machine = HERE,
    environment: tuple[tuple[str, str], ...] = (),
    seed: int = 1,
) -> Run:
    spread = np.exp(0.01 * np.random.default_rng(seed).standard_normal(40))
    wall = (step_ms * 1e6 * spread).astype(int).tolist()
    counts = {} if kernels is None else {"kernels per step": float(kernels)}
    held = None if memory is None else Memory("cuda", memory, 0)
    series = series_of(Timing(wall, wall), counts, held)
    return Run("test", "", "main", None, float(seed), machine, environment, series)


def recordings(n: int = 8, *, each: float = 0.01) -> list[Run]:
    """Return recordings of one program whose processes differ by ``each`` (a share)."""
    shifts = np.random.default_rng(5).standard_normal(n) * each
    return [run_of(5 * float(np.exp(shift)), seed=i) for i, shift in enumerate(shifts)]


def of(checks: list[Check], metric: str) -> Check:
    return next(check for check in checks if check.metric.startswith(metric))


def test_the_same_program_is_within() -> None:
    found = compare(run_of(5.0), recordings(20, each=0.002), "main", n_tests=1)
    assert [one.verdict for one in found] == ["within", "within"]
    assert found[0].metric == "step time against main"


def test_a_slower_program_is_over_with_its_change() -> None:
    found = of(compare(run_of(6.0), recordings(), "main", n_tests=1), "step time")
    assert found.verdict == "over"
    assert "in 8 recordings: +2" in found.sentence
    assert "torchtriage compare" in found.lines[0]


def test_what_recordings_vary_by_is_no_change() -> None:
    found = of(compare(run_of(5.4), recordings(each=0.05), "main", n_tests=1), "step time")
    assert found.verdict == "inconclusive"
    assert "torchtriage gate check --against" in found.sentence


def test_many_tests_need_stronger_evidence() -> None:
    now = run_of(5.25)
    assert of(compare(now, recordings(), "main", n_tests=1), "step time").verdict == "over"
    assert of(compare(now, recordings(), "main", n_tests=1000), "step time").verdict != "over"


def test_many_steps_of_a_test_need_stronger_evidence() -> None:
    now = run_of(5.25)
    before = recordings()
    assert of(compare(now, before, "main", n_tests=1), "step time").verdict == "over"
    assert of(compare(now, before, "main", n_tests=1, n_earlier=30), "step time").verdict != "over"


def test_equal_programs_seldom_fail() -> None:
    """At most 1 % of runs: 600 of them, each against ten recordings."""
    rng = np.random.default_rng(11)
    n_over = 0
    for _ in range(600):
        levels = 5 * np.exp(0.03 * rng.standard_normal(11))
        runs = [run_of(float(level), seed=i) for i, level in enumerate(levels)]
        n_over += of(compare(runs[0], runs[1:], "main", n_tests=1), "step time").verdict == "over"
    assert n_over <= 13  # of 6 expected, 99.5 % of the time


def test_two_recordings_tell_no_spread() -> None:
    found = of(compare(run_of(9.0), recordings(2), "main", n_tests=1), "step time")
    assert found.verdict == "inconclusive"
    assert "3 recordings or more" in found.sentence


def test_counts_are_exact() -> None:
    before = recordings(1)
    more = of(compare(run_of(5, kernels=13), before, "main", n_tests=9), "kernels")
    assert (more.verdict, more.sentence) == ("over", "13, 12 in 1 recording: 1 more")
    assert of(compare(run_of(5, kernels=12), before, "main", n_tests=9), "kernels").verdict == ("within")
    fewer = of(compare(run_of(5, kernels=3), before, "main", n_tests=9), "kernels")
    assert fewer.verdict == "within"


def test_memory_that_never_varies_is_compared_exactly() -> None:
    before = [run_of(5, memory=1000, seed=i) for i in range(4)]
    assert of(compare(run_of(5, memory=1005), before, "main", n_tests=1), "peak").verdict == ("within")
    assert of(compare(run_of(5, memory=1020), before, "main", n_tests=1), "peak").verdict == "over"


def test_memory_that_is_none_now_is_within_whatever_was_recorded() -> None:
    """Of a recording of zero there is no ratio, and how much it varies by is not known."""
    for recorded, now, verdict in ((0, 0, "within"), (4096, 0, "within"), (0, 4096, "not checked")):
        before = [run_of(5.0, memory=recorded, seed=seed) for seed in range(4)]
        assert of(compare(run_of(5.0, memory=now), before, "main", n_tests=1), "peak device").verdict == verdict


def test_what_is_new_is_not_checked() -> None:
    before = [run_of(5, kernels=None, seed=i) for i in range(4)]
    assert of(compare(run_of(5), before, "main", n_tests=1), "kernels").verdict == "not checked"


def test_unlike_machines_are_not_compared() -> None:
    other = Machine((("cores", "64"), ("cpu", "some")))
    (found,) = compare(run_of(9.0, machine=other), recordings(), "main", n_tests=1)
    assert found.verdict == "not checked"
    assert "cores 2 / 64" in found.sentence


def test_another_torch_is_said() -> None:
    before = [replace(recording, environment=(("torch", "2.12"),)) for recording in recordings()]
    now = run_of(9.0, environment=(("torch", "2.13"),))
    found = of(compare(now, before, "main", n_tests=1), "step time")
    assert "not only the code differs: torch 2.12 / 2.13" in found.lines


def test_nothing_recorded_is_not_checked() -> None:
    (found,) = compare(run_of(5.0), [], "main", n_tests=1)
    assert found.verdict == "not checked"
    assert "pytest --perf-record" in found.sentence


def test_a_run_is_stored_and_found_again(tmp_path: Path) -> None:
    baseline = Baseline(str(tmp_path / "gate.db"), True, None, tmp_path, 1)
    timing = Timing([5_000_000, 5_100_000], [4_000_000, 4_000_000])
    run = baseline.run_of("test", series_of(timing, {}, None), Noise("quiet"))
    assert baseline.store(run).startswith("recorded in ")
    (found,), _ = baseline.find(baseline.run_of("test", run.series, Noise("quiet")))
    assert found.series == run.series
    assert dict(found.environment)["host"] == "quiet"


def test_recordings_of_the_own_commit_and_with_uncommitted_changes_are_found(tmp_path: Path) -> None:
    baseline = Baseline(str(tmp_path / "gate.db"), True, "main", tmp_path, 1)
    for i in range(7):
        environment = (("uncommitted changes", "yes"),) if i > 3 else ()
        baseline.store(replace(run_of(5.0 + i), commit="c" * 40, branch="main", environment=environment))
    found, _ = baseline.find(replace(run_of(6.0), commit="c" * 40))
    assert len(found) == 7


STEP = """
def test_it(perf_gate):
    perf_gate(lambda: sum(range(5000)))
"""


def test_record_then_compare(
    run: Runs, host: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host("quiet")
    place = str(tmp_path / "gate.db")
    for _ in range(2):
        done = run(STEP, f"--perf-store={place}", "--perf-record", "-W", "error")
        done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["  baseline: recorded in *gate.db"])
    with open_store(place, create=False) as store:
        assert [entry.run.benchmark for entry in store.find()] == ["test_it.py::test_it"] * 2
    done = run(STEP, f"--perf-store={place}")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["  step time against *: inconclusive: * in 2 recordings; 3 *"])


def test_the_store_of_the_ini_file_is_relative_to_the_root(
    run: Runs, host: Callable[[str], None], pytester: pytest.Pytester
) -> None:
    host("quiet")
    pytester.makeini("[pytest]\nperf_store = kept/gate.db")
    run(STEP, "--perf-record").assert_outcomes(passed=1)
    assert (pytester.path / "kept" / "gate.db").is_file()


def test_no_store_is_not_checked(run: Runs, host: Callable[[str], None], tmp_path: Path) -> None:
    host("quiet")
    done = run(STEP, f"--perf-store={tmp_path / 'none.db'}")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["  baseline: not checked: *none.db*"])


def test_a_store_that_is_none_fails_with_one_line(run: Runs, host: Callable[[str], None], tmp_path: Path) -> None:
    host("quiet")
    (tmp_path / "bad.db").write_bytes(b"not a database" * 100)
    done = run(STEP, f"--perf-store={tmp_path / 'bad.db'}", "--perf-record")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*bad.db: *"])
    done.stdout.no_fnmatch_line("*Traceback*")
