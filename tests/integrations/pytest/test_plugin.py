"""What a user sees: runs of pytest on a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integrations.pytest.conftest import PLUGIN, Run

STEP = """
import pytest

def step():
    return sum(range(2000))

"""


def test_nothing_happens_without_markers_and_fixtures(run: Run) -> None:
    done = run("def test_it(): pass", "--strict-markers", "-W", "error")
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*performance*")


def test_markers_are_known(run: Run) -> None:
    done = run("", "--markers")
    done.stdout.fnmatch_lines(["*pytest.mark.perf_budget(step_ms,*", "*pytest.mark.torch_compile(*"])


def test_a_step_within_its_budget_passes_and_is_shown(run: Run, host: Callable[[str], None]) -> None:
    host("quiet")
    done = run(
        f"""{STEP}
@pytest.mark.perf_budget(step_ms=2000, peak_memory_mb=10000)
def test_it(perf_gate):
    found = perf_gate(step)
    assert 0 < found.step_ms < 2000
    assert found.n_calls >= 20
    assert found.kernels_per_step is None
    assert [one.verdict for one in found.checks] == ["within", "within"]
""",
        "-W",
        "error",
    )
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*performance (torchtriage)*", "test_it.py::test_it", "  step time: * budget 2.00 s"])


def test_a_slow_step_fails_with_the_finding(run: Run, host: Callable[[str], None]) -> None:
    host("quiet")
    done = run(f"""{STEP}
def test_it(perf_gate):
    perf_gate(step, step_ms=0.001)
""")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["step time: * calls), budget 1.00 µs: * times the budget"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*gate.py*")


def test_a_noisy_host_warns_and_passes_nothing_as_clean(run: Run, host: Callable[[str], None]) -> None:
    host("noisy")
    text = f"""{STEP}
import time
def test_it(perf_gate):
    found = perf_gate(lambda: time.sleep(0.002), step_ms=1)
    assert found.checks[0].verdict == "inconclusive"
"""
    done = run(text)
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*PerfInconclusive: step time: inconclusive: *host was noisy*"])
    strict = run(text, "-W", "error::torchtriage.integrations.pytest.PerfInconclusive")
    strict.assert_outcomes(failed=1)
    strict.stdout.fnmatch_lines(["step time: inconclusive: *"])


def test_budgets_of_class_and_test_are_one_and_the_nearer_wins(run: Run, host: Callable[[str], None]) -> None:
    host("quiet")
    run(f"""{STEP}
@pytest.mark.perf_budget(step_ms=0.001, peak_memory_mb=5000)
class TestIt:
    @pytest.mark.perf_budget(step_ms=3000)
    def test_it(self, perf_gate):
        assert [one.metric for one in perf_gate(step).checks] == ["step time", "peak memory"]
""").assert_outcomes(passed=1)


def test_a_budget_without_a_measurement_fails(run: Run) -> None:
    done = run(f"""{STEP}
@pytest.mark.perf_budget(step_ms=5)
def test_it():
    step()

@pytest.mark.perf_budget(step_ms=5)
def test_skipped():
    pytest.skip("not here")
""")
    done.assert_outcomes(failed=1, skipped=1)
    done.stdout.fnmatch_lines(["@pytest.mark.perf_budget has budgets, and nothing was measured"])


def test_no_budget_and_no_store_is_not_checked(run: Run) -> None:
    done = run(f"""{STEP}
def test_it(perf_gate):
    assert perf_gate(step).step_ms > 0
""")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*PerfNotChecked: performance: not checked: no budget*"])


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("perf_gate(step, step_m=1)", "perf_gate: no budget is called 'step_m'"),
        ("perf_gate(step, step_ms=-1)", "perf_gate: step_ms: expected a number above 0, found -1"),
        ("perf_gate(step())", "perf_gate: expected a function without arguments, found int"),
        ("perf_gate(step, repeats=0)", "perf_gate: repeats: expected a whole number from 1*"),
        ("perf_gate(step, warmup=1.5)", "perf_gate: warmup: expected a whole number from 0*"),
        ("perf_gate(step); perf_gate(step)", "perf_gate: expected a name for each of several*"),
        ("perf_gate(lambda: 1 / 0)", "*test_it.py:8: the step raised ZeroDivisionError: *call 1"),
        ("perf_gate(lambda x: x, step_ms=1)", "*the step raised TypeError: *"),
    ],
)
def test_bad_input_is_one_line(run: Run, test: str, said: str) -> None:
    done = run(f"{STEP}def test_it(perf_gate):\n    pass\n    {test}\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([said])
    done.stdout.no_fnmatch_line("*During handling*")
    done.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("perf_budget", "@pytest.mark.perf_budget: expected one or more of step_ms, *found none"),
        ("perf_budget(5)", "@pytest.mark.perf_budget: expected names with numbers, found 5 alone"),
        ("perf_budget(step_ms=float('nan'))", "*step_ms: expected a number above 0, found nan"),
        ("torch_compile(graph_breaks=1)", "@pytest.mark.torch_compile: no budget is called*"),
        ("torch_compile(max_graphs=-1)", "*max_graphs: expected a count from 0, found -1"),
    ],
)
def test_a_bad_marker_fails_its_test_before_it_runs(run: Run, mark: str, said: str) -> None:
    done = run(f"{STEP}@pytest.mark.{mark}\ndef test_it():\n    pass\n")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([said])
    done.stdout.no_fnmatch_line("*During handling*")


def test_without_torch_what_needs_it_says_so_and_time_does_not(
    run: Run, host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    host("quiet")
    from torchtriage.integrations.pytest import compiling

    monkeypatch.setattr(compiling, "find_spec", lambda _: None)
    done = run(f"""{STEP}
def test_time(perf_gate):
    perf_gate(step, step_ms=2000)

def test_kernels(perf_gate):
    perf_gate(step, kernels_per_step=1)

def test_block(compile_gate):
    with compile_gate(max_graphs=1):
        pass

@pytest.mark.torch_compile(max_graphs=1)
def test_marked():
    pass
""")
    done.assert_outcomes(passed=1, failed=2, errors=1)
    done.stdout.fnmatch_lines(
        [
            "@pytest.mark.torch_compile: needs torch, which is not installed here",
            "perf_gate: kernels_per_step: needs torch, which is not installed here",
            "compile_gate: needs torch, which is not installed here",
        ]
    )


def test_a_skipped_test_needs_no_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.integrations.pytest import compiling

    monkeypatch.setattr(compiling, "find_spec", lambda _: None)
    run("""
import pytest

@pytest.mark.skipif(True, reason="no torch")
@pytest.mark.torch_compile(max_graphs=1)
def test_it():
    pass
""").assert_outcomes(skipped=1)


def test_what_the_test_itself_skips_or_asserts_is_its_own(run: Run) -> None:
    done = run(f"""{STEP}
def test_skip(perf_gate):
    perf_gate(lambda: pytest.skip("no"), step_ms=1)

@pytest.mark.perf_budget(step_ms=1)
@pytest.mark.xfail(strict=True)
def test_assert(perf_gate):
    assert False
""")
    done.assert_outcomes(skipped=1, xfailed=1)


def test_what_is_shown_survives_being_sent_by_a_worker(
    run: Run, host: Callable[[str], None], pytester: pytest.Pytester
) -> None:
    """pytest-xdist sends reports as JSON."""
    host("quiet")
    pytester.makeconftest("""
import json, pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    hook = item.config.hook
    data = json.loads(json.dumps(hook.pytest_report_to_serializable(
        config=item.config, report=report)))
    return hook.pytest_report_from_serializable(config=item.config, data=data)
""")
    done = run(f"""{STEP}
def test_it(perf_gate):
    perf_gate(step, step_ms=2000)
""")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["test_it.py::test_it", "  step time: *"])


def test_measurements_are_in_the_junit_file(run: Run, host: Callable[[str], None], pytester: pytest.Pytester) -> None:
    host("quiet")
    run(f"{STEP}def test_it(perf_gate):\n    perf_gate(step, step_ms=2000)\n", "--junitxml=out.xml")
    text = (pytester.path / "out.xml").read_text()
    assert '<property name="torchtriage" value="step time: ' in text


def test_the_plugin_can_be_left_out(run: Run) -> None:
    done = run("def test_it(): pass", "-p", f"no:{PLUGIN}")
    done.assert_outcomes(passed=1)


def test_it_is_an_entry_point() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ntorchtriage = "{PLUGIN}"\n' in text


def test_it_imports_nothing_heavy() -> None:
    script = (
        f"import pytest, sys; before = set(sys.modules); import {PLUGIN};"
        " print(sorted({m.split('.')[0] for m in set(sys.modules) - before}),"
        " sorted(m for m in sys.modules if m.startswith('torchtriage')))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    ours = ["torchtriage", "torchtriage.core", "torchtriage.core.version", "torchtriage.integrations", PLUGIN]
    assert done.stdout == f"['torchtriage'] {ours}\n"
