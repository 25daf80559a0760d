"""What the plugin keeps about one test, and how it reports its checks."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.integrations.pytest import PROPERTY, PerfInconclusive, PerfNotChecked, PerfWarning
from torchtriage.integrations.pytest.budgets import BUDGETS, COMPILER, LIMITS, read_budgets
from torchtriage.integrations.pytest.check import Check, failure, one_line
from torchtriage.integrations.pytest.compiling import CompileGate, CompileLog, judge_compiler, need_torch
from torchtriage.integrations.pytest.gate import PerfGate

if TYPE_CHECKING:
    from torchtriage.integrations.pytest.baseline import Baseline

PERF, COMPILE = "perf_budget", "torch_compile"


class MeasuredTest:
    """A test with a marker or a fixture of this plugin."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._log: CompileLog | None = None
        self._budgets: dict[str, float] = {}
        self._limits: dict[str, float] = {}

    def read_markers(self) -> None:
        """Read budgets and limits; those nearer to the test win over those of class and module."""
        with one_line():
            for name, known, into in ((PERF, None, self._budgets), (COMPILE, LIMITS, self._limits)):
                for marker in reversed(list(self._item.iter_markers(name))):
                    where = f"@pytest.mark.{name}"
                    into.update(read_budgets(marker.kwargs, where=where, positional=marker.args, names=known))
                    if not marker.kwargs:
                        listed = ", ".join(known or BUDGETS)
                        raise UsageError(f"expected one or more of {listed}, found none", where=where)
            if self._limits or self._budgets.keys() & COMPILER:
                need_torch(f"@pytest.mark.{COMPILE if self._limits else PERF}")

    def start(self) -> None:
        """Begin to watch the compiler, where it is limited."""
        if self._limits or self._budgets.keys() & COMPILER:
            self._log = self.perf_gate.log = CompileLog()
            self._log.start()

    def stop(self, *, passed: bool) -> None:
        """Judge what the whole test came to."""
        try:
            if passed and self._limits:
                assert self._log is not None
                result = self._log.result()
                self._say(judge_compiler(result, self._limits, during="in the test"), "")
            if passed and self._budgets and not self.perf_gate.n_calls:
                pytest.fail(
                    f"@pytest.mark.{PERF} has budgets, and nothing was measured\n"
                    "  try: ask for the fixture perf_gate and call perf_gate(step)",
                    pytrace=False,
                )
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    @functools.cached_property
    def perf_gate(self) -> PerfGate:
        """The fixture."""
        return PerfGate(self._item.nodeid, self._budgets, self._baseline, self._say)

    @functools.cached_property
    def compile_gate(self) -> CompileGate:
        """The fixture."""
        return CompileGate(self._say)

    def _baseline(self) -> Baseline | None:
        config = self._item.config
        place: str | None = config.getoption("--perf-store")
        record: bool = config.getoption("--perf-record")
        folder = config.invocation_params.dir
        if place is None and config.getini("perf_store"):
            place, folder = str(config.getini("perf_store")), config.rootpath
        if place is None and not record:
            return None
        from torchtriage.integrations.pytest.baseline import Baseline
        from torchtriage.measure.gate.store import DEFAULT_STORE, STORE_VARIABLE

        place = place or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        if "://" not in place:
            # a test may have changed the folder
            place = str(Path(folder) / place)
        session = self._item.session
        n_tests = sum("perf_gate" in getattr(item, "fixturenames", ()) for item in session.items)
        return Baseline(place, record, config.getoption("--perf-base"), config.rootpath, max(n_tests, 1))

    def _say(self, checks: list[Check], name: str) -> None:
        # properties for the summary, warnings, and a failure
        of = f"{name}: " if name else ""
        for check in checks:
            mark = "OVER " if check.verdict == "over" else ""
            self._item.user_properties.append((PROPERTY, f"{of}{mark}{check}"))
        if any(check.verdict == "over" for check in checks):
            pytest.fail(failure(checks, name), pytrace=False)
        kinds = {"inconclusive": PerfInconclusive, "not checked": PerfNotChecked}
        for check in checks:
            if check.verdict in kinds:
                try:
                    self._item.warn(kinds[check.verdict](f"{of}{check}"))
                except PerfWarning as error:
                    # the user's filter makes it an error: no traceback through our code
                    raise pytest.fail.Exception(str(error), pytrace=False) from None
