"""What the steps of an inference engine cost, by phase: prefill, mixed, decode.

Times are those of the steady steps, so that the phases add up to the time of the steps and to the busy time of the
device-time tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.finding import Phase
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.captured_graphs import GRAPH_LAUNCH
from torchtriage.core.trace.kernel_categories import ATTENTION, CATEGORIES, categories
from torchtriage.core.trace.serving import PHASES, Batch, Serving
from torchtriage.diagnose.verdict.result import GraphUse, PhaseTime, ServingTime


def serving_time(trace: Trace, *, whole: bool = True) -> ServingTime | None:
    """Return the account of an engine's steps, None where none is recorded or other steps are judged: a window, say.

    ``whole`` : all device rows of the window are there; without them no time of the device is given.
    """
    serving = trace.serving
    if serving is None:
        return None
    captures = tuple(trace.name_of(row) for row in serving.captures.tolist())
    if not len(serving.rows):
        return ServingTime(serving.engine, serving.basis, captures)
    if not np.array_equal(trace.steps.host_start_ns, trace.start_ns[serving.rows]):
        return None
    steps = _Steps.of(trace, serving, whole=whole)
    return ServingTime(
        serving.engine, serving.basis, captures, tuple(steps.phase(phase) for phase in PHASES if phase in steps.phases)
    )


@dataclass(frozen=True, eq=False)
class _Steps:
    """One entry per step of the engine; of the main device where ``device`` columns are there."""

    trace: Trace
    batches: tuple[Batch, ...]
    phases: list[Phase]
    graphs: list[GraphUse]
    n_launches: Ints
    n_work: Ints
    busy_ns: Ints | None
    between_ns: Ints | None

    @classmethod
    def of(cls, trace: Trace, serving: Serving, *, whole: bool) -> _Steps:
        steps = trace.steps
        n = len(steps)
        calls = np.flatnonzero(trace.links.launches)
        graphs = _graphs(trace)
        phases = [batch.phase for batch in serving.batches]
        if serving.basis == "frames":
            # by default engines capture whole steps of decode alone
            phases = ["decode" if use == "full" else "unknown" for use in graphs]
        busy_ns = between_ns = None
        rows = np.empty(0, np.int64)
        if whole and trace.devices:
            device = trace.devices[0]
            rows = device.rows
            step_of = steps.of_work(rows)
            pieces = intervals.spans(steps.start_ns, steps.end_ns)
            busy_ns = intervals.covered(pieces, device.busy)
            first, last = steps.end_ns.copy(), steps.start_ns.copy()
            mine = step_of >= 0
            np.minimum.at(first, step_of[mine], trace.start_ns[rows[mine]])
            np.maximum.at(last, step_of[mine], trace.end_ns[rows[mine]])
            first = np.clip(first, steps.start_ns, steps.end_ns)
            last = np.clip(last, first, steps.end_ns)
            idle = device.idle
            between_ns = intervals.covered(intervals.spans(steps.start_ns, first), idle)
            between_ns += intervals.covered(intervals.spans(last, steps.end_ns), idle)
        return cls(
            trace,
            serving.batches,
            phases,
            graphs,
            _counts(steps.of_host(calls), n),
            _counts(steps.of_work(rows), n),
            busy_ns,
            between_ns,
        )

    def phase(self, phase: Phase) -> PhaseTime:
        """Return the sums over the steady steps of one phase."""
        steps = self.trace.steps
        alike = np.array([other == phase for other in self.phases])
        at = np.flatnonzero(alike & steps.steady)
        batches = [self.batches[index] for index in at.tolist()]
        wall_ns = int((steps.end_ns - steps.start_ns)[at].sum())
        tokens = _sum(batch.context_tokens for batch in batches), _sum(batch.generation_tokens for batch in batches)
        rate = None if None in tokens or not wall_ns else sum(filter(None, tokens)) / wall_ns * 1e9
        return PhaseTime(
            phase=phase,
            n_steps=int(alike.sum()),
            n_steady=len(at),
            n_context=_sum(batch.n_context for batch in batches),
            context_tokens=tokens[0],
            n_generation=_sum(batch.n_generation for batch in batches),
            generation_tokens=tokens[1],
            kv_tokens=_sum(batch.kv_tokens for batch in batches),
            wall_ns=wall_ns,
            busy_ns=int(self.busy_ns[at].sum()) if self.busy_ns is not None else None,
            between_ns=int(self.between_ns[at].sum()) if self.between_ns is not None else None,
            n_work=int(self.n_work[at].sum()) if self.busy_ns is not None else None,
            n_launches=int(self.n_launches[at].sum()),
            tokens_per_s=round(rate, 3) if rate is not None else None,
            graphs=dict(sorted(Counter(self.graphs[index] for index in at.tolist()).items())),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum, None where a step does not say."""
    said = list(values)
    return sum(value for value in said if value is not None) if said and None not in said else None


def _counts(step_of: Ints, n: int) -> Ints:
    return np.bincount(step_of[step_of >= 0], minlength=n).astype(np.int64)


def _graphs(trace: Trace) -> list[GraphUse]:
    """Return for each step whether it replays graphs, and whether attention is in them."""
    steps = trace.steps
    n = len(steps)
    calls = trace.matching(GRAPH_LAUNCH, Kind.RUNTIME)
    replayed = _counts(steps.of_host(np.flatnonzero(calls)), n) > 0
    launched = _counts(steps.of_host(np.flatnonzero(trace.kind == Kind.RUNTIME)), n) > 0
    attends = np.zeros((2, n), bool)
    if trace.devices:
        device = trace.devices[0]
        rows = device.rows[categories(device) == CATEGORIES.index(ATTENTION)]
        step_of, call = steps.of_work(rows), trace.links.call[rows]
        for inside in (0, 1):
            mine = step_of[(step_of >= 0) & (call >= 0) & (calls[call] == bool(inside))]
            attends[inside, distinct(mine)] = True
    out: list[GraphUse] = []
    for step in range(n):
        if not replayed[step]:
            out.append("eager" if launched[step] else "unknown")
        elif attends[0, step]:
            out.append("piecewise")
        else:
            out.append("full" if attends[1, step] else "some")
    return out
