"""Real steps and real compilations: one run of pytest, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integrations.pytest.conftest import PLUGIN

pytestmark = pytest.mark.torch

# whether others use this machine is not what is tested
CONFTEST = """
from torchtriage.core.machine import Noise
from torchtriage.integrations.pytest import measure

measure.judge_noise = lambda uses: Noise("quiet")
measure.WARM_UP_S, measure.TIMED_S = 0.01, 0.05
"""

TESTS = """
import pytest, torch
from torch._logging._internal import trace_log


@torch.compile(backend="eager")
def double(x):
    return 2 * x


@pytest.mark.torch_compile(max_graph_breaks=0, max_recompiles=0)
def test_break():
    @torch.compile(backend="eager")
    def chatty(x):
        print("here")
        return 2 * x
    chatty(torch.ones(3))


@pytest.mark.torch_compile(max_recompiles=0)
def test_recompile():
    double(torch.ones(3))
    double(torch.ones(4))


@pytest.mark.torch_compile(max_recompiles=0, max_graphs=1, max_graph_breaks=0)
def test_same_shapes():
    double(torch.ones(3))
    double(torch.zeros(3))


@pytest.mark.torch_compile(max_graph_breaks=0)
def test_nothing_compiled():
    torch.ones(2) + 1


@torch.compile(backend="eager")
def broken(x):
    torch._dynamo.graph_break()
    return 2 * x


@pytest.mark.parametrize("i", range(2))
@pytest.mark.torch_compile(max_graph_breaks=0)
def test_twice(i):
    broken(torch.ones(3))


def test_blocks(compile_gate):
    torch._dynamo.reset()
    before = list(trace_log.handlers)
    with compile_gate(max_graphs=1, max_graph_breaks=0) as seen:
        double(torch.ones(3))
    assert (seen.graphs, seen.graph_breaks, seen.recompiles) == (1, 0, 0)
    assert trace_log.handlers == before
    with pytest.raises(ValueError), compile_gate(max_graphs=0):
        raise ValueError
    assert trace_log.handlers == before
    with compile_gate(max_graphs=0, max_recompiles=0) as seen:
        double(torch.zeros(3))
    assert (seen.graphs, seen.recompiles, seen.graph_breaks) == (0, 0, None)
    with compile_gate(max_recompiles=0):
        double(torch.ones(4))


@pytest.mark.perf_budget(
    step_ms=0.0001, graph_breaks=0, recompiles=0, peak_memory_mb=5000, kernels_per_step=0
)
def test_step(perf_gate):
    model = torch.compile(torch.nn.Linear(8, 8), backend="eager")
    perf_gate(lambda: model(torch.ones(2, 8)).sum().backward())


def test_stored(perf_gate):
    perf_gate(lambda: double(torch.ones(3)))
"""


def pytest_run(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("torch")
    (place / "conftest.py").write_text(CONFTEST)
    (place / "test_it.py").write_text(TESTS)
    (place / "pytest.ini").write_text("[pytest]\nperf_store = gate.db\n")
    return place


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    return pytest_run(folder, "--perf-record")


def said(output: str, test: str) -> str:
    """Return what a failed test shows."""
    found = re.search(rf"^_+ {re.escape(test)} _+$(.*?)^(_+ |=+ )", output, re.M | re.S)
    assert found is not None, output
    return found[1].strip()


def test_outcomes(output: str) -> None:
    assert re.search(r"^6 failed, 3 passed, 1 warning ", output, re.M), output


def test_breaks_fail_with_cause_line_and_fix(output: str) -> None:
    text = said(output, "test_break")
    assert text.startswith("graph breaks: 1 in the test, budget 0\n  1. test_it.py:15 in chatty: ")
    assert "\n     fix: Print outside " in text
    assert "\nfine: recompilations: 0 in the test, budget 0" in text


def test_the_compilers_log_is_read_and_not_shown(output: str) -> None:
    assert "torch.__trace" not in output


def test_recompilations_fail_with_the_guard(output: str) -> None:
    text = said(output, "test_recompile")
    assert text.startswith("recompilations: 1 in the test, budget 0\n  1. test_it.py:")
    assert " in double: size 0 of x changed (3 → 4), 1 time" in text
    assert "\n     guard: " in text
    assert "\n     fix: " in text


def test_nothing_compiled_is_not_checked(output: str) -> None:
    assert re.search(r"PerfNotChecked: graph breaks: not checked: torch.compile compiled nothing", output)


def test_a_test_sees_what_an_earlier_one_compiled(output: str) -> None:
    """Code is compiled once in a process, and names of files are logged once."""
    first, second = (said(output, f"test_twice[{i}]") for i in range(2))
    assert first == second
    assert "  1. test_it.py:39 in broken: Call to `torch._dynamo.graph_break()`" in first


def test_blocks_are_watched_one_by_one(output: str) -> None:
    text = said(output, "test_blocks")
    assert text.startswith("recompilations: 1 in the block, budget 0\n  1. test_it.py:")
    assert "size 0 of x changed (3 → 4)" in text


def test_budgets_of_a_step_with_all_it_does(output: str) -> None:
    text = said(output, "test_step")
    assert re.match(r"step time: .* times the budget\n  operators: .* time on the host\n", text)
    assert "\nkernels: not checked: nothing ran on an accelerator, only on the CPU\n" in text
    assert "\nfine: recompilations: 0 in the test, budget 0\n" in text
    assert "\nfine: peak memory: " in text


def test_counts_of_the_compiler_are_stored_and_compared(output: str, folder: Path) -> None:
    assert "  baseline: recorded in " in output
    text = pytest_run(folder, "-k", "test_stored")
    assert "  graph breaks against the recordings before: 0, 0 in 1 recording" in text
    assert "  graphs against the recordings before: 1, 1 in 1 recording" in text
