"""pytest plugin: budgets for step time, kernels, synchronisations, compilation and memory.

Loaded by pytest through its entry point. Nothing heavy is imported, and nothing is done, before a
test carries ``perf_budget`` or ``torch_compile`` or asks for ``perf_gate`` or ``compile_gate``.

PYTEST_DONT_REWRITE: no assertion here is a test's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchtriage.integrations.pytest.compiling import CompileGate
    from torchtriage.integrations.pytest.gate import PerfGate
    from torchtriage.integrations.pytest.test import MeasuredTest

__all__ = ["PROPERTY", "PerfInconclusive", "PerfNotChecked", "PerfWarning"]

PROPERTY = "torchtriage"
"""Name of a report's properties: JUnit files have them, and xdist hands them over."""
MARKERS = (
    "perf_budget(step_ms, kernels_per_step, syncs_per_step, graph_breaks, recompiles, graphs,"
    " peak_memory_mb): what a step may take at most; perf_gate measures it (torchtriage)",
    "torch_compile(max_graph_breaks, max_recompiles, max_graphs): what torch.compile may come to"
    " in the test (torchtriage)",
)


class PerfWarning(UserWarning):
    """Something about speed is not known: neither passed nor failed."""


class PerfInconclusive(PerfWarning):
    """It was measured and cannot be decided: a noisy host, too few recordings."""


class PerfNotChecked(PerfWarning):
    """It could not be measured: no device, nothing compiled, no baseline."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("torchtriage", "performance gate (torchtriage)")
    group.addoption(
        "--perf-store",
        metavar="PLACE",
        help="compare what perf_gate measures with the recordings in this store: an SQLite file or"
        " a postgresql:// URL, as of torchtriage gate",
    )
    group.addoption(
        "--perf-record",
        action="store_true",
        help="store what perf_gate measures, as a baseline, instead of comparing it (without"
        " --perf-store: $TORCHTRIAGE_STORE, else .torchtriage/gate.db)",
    )
    group.addoption(
        "--perf-base",
        metavar="BRANCH",
        help="the branch or commit whose recordings are the baseline (main, else master, else the"
        " branch that is checked out)",
    )
    parser.addini("perf_store", "default of --perf-store, relative to the root folder")


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def _test_of(item: pytest.Item) -> MeasuredTest | None:
    return getattr(item, "_torchtriage", None)


def _begin(item: pytest.Item) -> MeasuredTest:
    known = _test_of(item)
    if known is None:
        from torchtriage.integrations.pytest.test import MeasuredTest

        known = MeasuredTest(item)
        item._torchtriage = known  # type: ignore[attr-defined]
    return known


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read the markers of a test; what cannot be meant fails it before it runs.

    After pytest has looked for ``skip``: without torch a skipped test needs none.
    """
    if item.get_closest_marker("perf_budget") or item.get_closest_marker("torch_compile"):
        _begin(item).read_markers()


# last: inside of what pytest captures. The old kind of wrapper, which every pytest knows.
@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Watch the compiler while the test runs, where a marker limits it."""
    test = _test_of(item)
    if test is None:
        yield
        return
    try:
        test.start()
    except BaseException as error:
        outcome = yield
        outcome.force_exception(error)
        return
    outcome = yield
    try:
        test.stop(passed=outcome.excinfo is None)
    except BaseException as error:
        if outcome.excinfo is None:
            outcome.force_exception(error)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let go of what was kept."""
    if _test_of(item) is not None:
        del item._torchtriage  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what was measured, a line for each test and metric."""
    lines = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            texts = [text for name, text in report.user_properties if name == PROPERTY]
            if texts:
                lines.append((report.nodeid, texts))
    if not lines:
        return
    terminalreporter.section("performance (torchtriage)")
    for nodeid, texts in sorted(lines):
        terminalreporter.line(nodeid)
        for text in texts:
            terminalreporter.line(f"  {text}")


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest) -> PerfGate:
    """Measure a step and hold it against budgets, or against the stored baseline.

    ``perf_gate(step)`` calls ``step()`` until warm, then times it with the device synchronised, and
    fails the test where a budget of ``@pytest.mark.perf_budget`` or of the call is exceeded:
    ``perf_gate(step, step_ms=5, syncs_per_step=0)``. Returns what was measured.
    """
    return _begin(request.node).perf_gate


@pytest.fixture
def compile_gate(request: pytest.FixtureRequest) -> CompileGate:
    """Watch torch.compile in a block: ``with compile_gate(max_graph_breaks=0): model(x)``."""
    return _begin(request.node).compile_gate
