"""The fixture ``perf_gate``: measure a step, and check it against budgets or a baseline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.integrations.pytest.budgets import COMPILER, read_budgets
from torchtriage.integrations.pytest.check import Check, one_line
from torchtriage.integrations.pytest.compiling import CompileLog, counts, judge_compiler, need_torch
from torchtriage.integrations.pytest.measure import (
    LOOKS,
    MIB,
    Memory,
    MemoryWatch,
    Step,
    Timing,
    judge_memory,
    judge_time,
    waiting,
)
from torchtriage.integrations.pytest.recording import RecordedTest, judge_count, record, time_lines

if TYPE_CHECKING:
    from torchtriage.compile.logs.result import CompileResult
    from torchtriage.integrations.pytest.baseline import Baseline

RECORDED = ("kernels_per_step", "syncs_per_step")


@dataclass(frozen=True)
class Measurement:
    """What ``perf_gate`` measured; None is what was not measured or cannot be.

    ``step_ms`` : the typical (median) call. ``kernels_per_step syncs_per_step`` : the most of the
    recorded steps. ``graph_breaks`` : of one cause at one line once. ``peak_memory_mb`` : in MiB.
    ``noise`` : ``quiet``, or why the host was not. ``checks`` : what was said.
    """

    step_ms: float
    n_calls: int
    noise: str
    kernels_per_step: int | None
    syncs_per_step: int | None
    graph_breaks: int | None
    recompiles: int | None
    graphs: int | None
    peak_memory_mb: float | None
    checks: tuple[Check, ...]


class PerfGate:
    """Measures steps of one test.

    ``benchmark`` : name of the test, under which the store keeps it. ``budgets`` : of its markers.
    ``baseline`` : what to compare with, None where nothing was asked. ``say`` : gets the checks,
    and fails the test. ``log`` : the compiler's since the test began, None where nobody
    watches it.
    """

    def __init__(
        self,
        benchmark: str,
        budgets: Mapping[str, float],
        baseline: Callable[[], Baseline | None],
        say: Callable[[list[Check], str], None],
    ) -> None:
        self.benchmark = benchmark
        self.budgets = budgets
        self.log: CompileLog | None = None
        self.n_calls = 0
        self._n_compared = 0
        self._baseline = baseline
        self._say = say
        self._names: set[str] = set()

    @one_line()
    def __call__(
        self,
        step: Callable[[], Any],
        *,
        name: str = "",
        warmup: int | None = None,
        repeats: int | None = None,
        **budgets: float,
    ) -> Measurement:
        """Measure ``step()`` and judge it.

        Parameters
        ----------
        step : callable
            One step, without arguments; what it returns is dropped.
        name : str
            Of this step, where a test measures several.
        warmup : int, optional
            Calls before those that count; else until 0.2 s have passed, three at least.
        repeats : int, optional
            Timed calls; else until 0.6 s have passed, twenty at least, and up to three times as
            many where those cannot decide.
        budgets : float
            As in ``@pytest.mark.perf_budget``; these win over the marker's.
        """
        wanted = {**self.budgets, **read_budgets(budgets, where="perf_gate")}
        self._check_call(step, name, warmup=warmup, repeats=repeats)
        for budget in wanted:
            if budget in COMPILER or budget in RECORDED:
                need_torch(f"perf_gate: {budget}")
        baseline = self._baseline()
        self.n_calls += 1
        measured = self._measure(Step(step), wanted, baseline, name=name, warmup=warmup, repeats=repeats)
        if not wanted and baseline is None:
            nothing = "no budget is given, and no --perf-store: what was measured is only returned"
            measured = replace(measured, checks=(Check("performance", "not checked", nothing), *measured.checks))
        self._say(list(measured.checks), name)
        return measured

    def _check_call(self, step: Any, name: str, **numbers: Any) -> None:
        if not callable(step):
            raise UsageError(
                f"expected a function without arguments, found {type(step).__name__}",
                where="perf_gate",
                hint="perf_gate(lambda: model(x))",
            )
        for what, value in numbers.items():
            least = 0 if what == "warmup" else 1
            wrong = isinstance(value, bool) or not isinstance(value, Integral) or value < least
            if value is not None and wrong:
                raise UsageError(f"expected a whole number from {least}, found {value!r}", where=f"perf_gate: {what}")
        if name in self._names:
            raise UsageError(
                f"expected a name for each step of a test, found {name!r} again"
                if name
                else "expected a name for each of several steps of a test",
                where="perf_gate",
                hint="perf_gate(step, name='backward')",
            )
        self._names.add(name)

    def _measure(
        self,
        step: Step,
        wanted: Mapping[str, float],
        baseline: Baseline | None,
        *,
        name: str,
        warmup: int | None,
        repeats: int | None,
    ) -> Measurement:
        timing = Timing()
        with ExitStack() as stack:
            log = self._compile_log(wanted, baseline, stack)
            memory_watch = MemoryWatch()
            timing.warm_up(step, waiting(), warmup)
            # only now is known which devices the step uses
            wait = waiting()
            memory_watch.begin()
            timing.look(step, wait, repeats)
            memory = memory_watch.end()
            checks = []
            if "step_ms" in wanted:
                checks.append(_time(timing, step, wait, wanted["step_ms"], repeats))
            compiled = log.result() if log is not None else None
        recorded = None
        is_over = any(check.verdict == "over" for check in checks)
        if baseline is not None or wanted.keys() & set(RECORDED) or is_over:
            recorded = record(step, step_ms=timing.median_ns / 1e6)
            if is_over:  # nothing but the time was checked by now
                checks = [replace(check, lines=time_lines(recorded)) for check in checks]
            checks += [judge_count(recorded, budget, wanted[budget]) for budget in RECORDED if budget in wanted]
        checks += judge_compiler(compiled, wanted, during="in the test")
        if "peak_memory_mb" in wanted:
            checks.append(judge_memory(memory, wanted["peak_memory_mb"]))
        counted = _counted(recorded, compiled)
        if baseline is not None:
            checks += self._against(baseline, timing, counted, memory, name)
        return Measurement(
            step_ms=timing.median_ns / 1e6,
            n_calls=len(timing.wall_ns),
            noise=str(timing.noise),
            peak_memory_mb=None if memory is None else memory.peak_bytes / MIB,
            checks=tuple(checks),
            **counted,
        )

    def _compile_log(
        self, wanted: Mapping[str, float], baseline: Baseline | None, stack: ExitStack
    ) -> CompileLog | None:
        if self.log is not None:
            return self.log
        if not wanted.keys() & COMPILER and (baseline is None or "torch._dynamo" not in sys.modules):
            return None
        log = CompileLog()
        stack.callback(log.close)
        log.start()
        return log

    def _against(
        self, baseline: Baseline, timing: Timing, counted: Mapping[str, int | None], memory: Memory | None, name: str
    ) -> list[Check]:
        from torchtriage.integrations.pytest.baseline import compare, series_of

        known = {metric.replace("_", " "): float(value) for metric, value in counted.items() if value is not None}
        series = series_of(timing, known, memory)
        run = baseline.run_of(f"{self.benchmark} {name}".strip(), series, timing.noise)
        if baseline.record:
            return [Check("baseline", "within", baseline.store(run))]
        try:
            before, label = baseline.find(run)
        except StoreError as error:
            return [Check("baseline", "not checked", " ".join(str(error).split()))]
        n_earlier = self._n_compared
        self._n_compared += sum(recorded.kind != "count" for recorded in series)
        return compare(run, before, label, n_tests=baseline.n_tests, n_earlier=n_earlier)


def _time(timing: Timing, step: Step, wait: Callable[[], None], budget_ms: float, repeats: int | None) -> Check:
    looks = LOOKS if repeats is None else 1
    check = judge_time(timing, budget_ms, looks=looks)
    for _ in range(looks - 1):
        if check.verdict != "inconclusive":
            break
        timing.look(step, wait, repeats)
        check = judge_time(timing, budget_ms, looks=looks)
    return check


def _counted(recorded: RecordedTest | None, compiled: CompileResult | None) -> dict[str, int | None]:
    out: dict[str, int | None] = dict.fromkeys((*RECORDED, *sorted(COMPILER)))
    if recorded is not None and not recorded.unknown:
        out["kernels_per_step"] = max(recorded.kernels, default=0)
        out["syncs_per_step"] = max(recorded.syncs, default=0)
    if compiled is not None:
        out.update(counts(compiled))
    return out
