"""Steps recorded with the profiler: kernels and waits counted exactly, and what is behind them."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.core.errors import TriageError
from torchtriage.core.units import format_count, format_share
from torchtriage.integrations.pytest.check import Check, fix_lines

if TYPE_CHECKING:
    from torchtriage.core.trace import Trace
    from torchtriage.diagnose.verdict.result import Result

STEPS = 4
N_SHOWN = 3
LAUNCHING = frozenset({"launch", "kernel", "optim", "copy", "config", "compile"})
"""Families of patterns whose fix saves kernels."""
WAITING = frozenset({"sync", "copy"})


@dataclass(frozen=True)
class RecordedTest:
    """What recorded steps came to.

    ``kernels syncs`` : of each step, one number each. ``launches`` : operators and how many kernels
    they launch a step, most first. ``waits`` : waiting calls with their place, and how many a step.
    ``unknown`` : why kernels and waits are not known, empty where they are.
    """

    kernels: tuple[int, ...] = ()
    syncs: tuple[int, ...] = ()
    launches: tuple[tuple[str, float], ...] = ()
    waits: tuple[tuple[str, float], ...] = ()
    result: Result | None = None
    unknown: str = ""


def record(step: Callable[[], None], *, step_ms: float) -> RecordedTest:
    """Record steps and read them; ``step_ms`` : of a step without the profiler, costs are scaled to it."""
    from torchtriage.core.record.profiler_capture import Capture, ProfilerBusyError, devices

    if "torch" not in sys.modules:
        return RecordedTest(unknown="the step does not use torch")
    with tempfile.TemporaryDirectory(prefix="torchtriage-") as folder:
        path = Path(folder) / "steps.json.gz"
        lost: list[str] = []
        capture = Capture(heavy=True, first_step=0, on_lost=lost.append)
        try:
            capture.start()
        except ProfilerBusyError as error:
            return RecordedTest(unknown=str(error))
        try:
            step()  # the profiler's own first step
            for _ in range(STEPS):
                capture.step()
                step()
            if lost:
                return RecordedTest(unknown=lost[0])
            capture.stop()
            capture.export(path)
        except (RuntimeError, OSError) as error:
            return RecordedTest(unknown=f"the profiler failed: {error}")
        finally:
            capture.abandon()
        return _read(path, step_ms=step_ms, on_device=bool(devices()))


def _read(path: Path, *, step_ms: float, on_device: bool) -> RecordedTest:
    from torchtriage.api.traces import analyze, load

    try:
        trace = load(path)
        result = analyze(trace, min_share=0.0, step_ms=step_ms)
    except TriageError as error:
        return RecordedTest(unknown=f"the recording cannot be judged: {error.message}")
    return count(trace, result, on_device=on_device)


def count(trace: Trace, result: Result | None, *, on_device: bool) -> RecordedTest:
    """Return what the steps of a recording hold; without steps it is one.

    ``on_device`` : whether the process uses an accelerator at all.
    """
    import numpy as np

    from torchtriage.core.trace.schema import Kind

    if not on_device:
        return RecordedTest(result=result, unknown="nothing ran on an accelerator, only on the CPU")
    kernels = np.flatnonzero(trace.kind == Kind.KERNEL)
    launched = trace.matching(r"(?i)launch.*kernel|GraphLaunch") & (trace.kind == Kind.RUNTIME)
    if not len(kernels) and launched.any():
        return RecordedTest(
            result=result,
            unknown="kernels were launched and the profiler recorded none: it may not use the"
            " device's counters here (torchtriage doctor)",
        )
    steps, waits = trace.steps, trace.waits
    n_steps = max(len(steps), 1)
    step_of = steps.of_work(kernels)
    # the profiler's own wait at its end is nobody's
    wait_step = np.where(waits.profiler, -1, steps.of_host(waits.row))
    n_kernels, n_waits = (np.bincount(step[step >= 0], minlength=n_steps) for step in (step_of, wait_step))
    return RecordedTest(
        kernels=tuple(n_kernels.tolist()),
        syncs=tuple(n_waits.tolist()),
        launches=_shares(_launchers(trace, kernels[step_of >= 0]), n_steps),
        waits=_shares(_waiters(trace, np.flatnonzero(wait_step >= 0)), n_steps),
        result=result,
    )


def _shares(names: Iterator[str], n_steps: int) -> tuple[tuple[str, float], ...]:
    return tuple((name, n / n_steps) for name, n in Counter(names).most_common(20))


def _launchers(trace: Trace, rows: Any) -> Iterator[str]:
    """Yield for each kernel the operator that launched it, else the kernel's own name."""
    from torchtriage.core.trace.schema import Kind
    from torchtriage.report.words import event_name

    calls = trace.links.call[rows]
    ops = trace.tree.nearest(calls.clip(0), trace.kind == Kind.OP)
    for row, call, op in zip(rows, calls, ops, strict=True):
        yield event_name(trace.name_of(int(op if call >= 0 and op >= 0 else row)))


def _waiters(trace: Trace, ids: Any) -> Iterator[str]:
    """Yield for each wait its operator or call, and the user's line where stacks show it."""
    from torchtriage.core.trace.frames import user_stack
    from torchtriage.report.words import event_name, frame

    waits = trace.waits
    for i in ids:
        row, op = int(waits.row[i]), int(waits.op[i])
        name = event_name(trace.name_of(op if op >= 0 else row))
        stack = user_stack(trace, row, limit=1)
        yield f"{name}, {frame(stack[0])}" if stack else name


def judge_count(recorded: RecordedTest, name: str, budget: float) -> Check:
    """Check whether ``kernels_per_step`` or ``syncs_per_step`` is within its budget."""
    kernels = name == "kernels_per_step"
    metric = "kernels" if kernels else "synchronisations"
    if recorded.unknown:
        return Check(metric, "not checked", recorded.unknown)
    counts = recorded.kernels if kernels else recorded.syncs
    least, most = min(counts, default=0), max(counts, default=0)
    amount = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    sentence = f"{amount} a step, budget {budget:,.0f}"
    if most <= budget:
        return Check(metric, "within", sentence)
    if kernels:
        launches = ", ".join(f"{name} {n:.4g}" for name, n in recorded.launches[:6])
        lines = [f"launched by: {launches}"] if launches else []
    else:
        lines = [f"{n:.4g} a step: {name}" for name, n in recorded.waits[:6]]
    lines += _findings(recorded, LAUNCHING if kernels else WAITING)
    return Check(metric, "over", f"{sentence}: {most - budget:,.0f} over", tuple(lines))


def time_lines(recorded: RecordedTest) -> tuple[str, ...]:
    """Return what costs the step its time, and what to change."""
    if recorded.result is None:
        return (f"where: not analysed, {recorded.unknown}",)
    return (*_operators(recorded.result), *_findings(recorded, None))


def _operators(result: Result) -> Iterator[str]:
    from torchtriage.report.words import event_name

    summary = result.summary
    if summary is None:
        return
    kernels = sorted(summary.top_kernels, key=lambda kernel: -kernel.total_ns)[:N_SHOWN]
    if kernels:
        shares = (f"{kernel.short_name} {format_share(kernel.share_of_kernel_sum)}" for kernel in kernels)
        yield f"kernels: {', '.join(shares)} of kernel time"
    total = sum(op.self_ns for op in summary.top_ops)
    ops = sorted(summary.top_ops, key=lambda op: -op.self_ns)[:N_SHOWN]
    if total:
        shares = (f"{event_name(op.name)} {format_share(op.self_ns / total)}" for op in ops)
        yield f"operators: {', '.join(shares)} of their own time on the host"


def _findings(recorded: RecordedTest, families: frozenset[str] | None) -> Iterator[str]:
    from torchtriage.report import words

    if recorded.result is None:
        return
    # the recording is ours: how it was made is not what is analysed
    findings = [
        finding
        for finding in recorded.result.findings
        if finding.family != "measure" and (families is None or finding.family in families)
    ]
    for number, finding in enumerate(findings[:N_SHOWN], 1):
        cost = f", saves {words.saving(finding.cost)}" if finding.cost is not None else ""
        yield f"{number}. {finding.code} {finding.message}{cost}"
        if finding.place.frame is not None:
            yield f"   at {words.frame(finding.place.frame)}"
        yield from fix_lines(finding.fix)
    if len(findings) > N_SHOWN:
        yield f"and {format_count(len(findings) - N_SHOWN, 'finding')} more"
    elif not findings:
        yield "no known pattern explains it: torchtriage run shows the whole picture"
