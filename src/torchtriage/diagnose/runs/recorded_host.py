"""What recordings know of the host, and stacks cannot show: when it was in an operator, when it waited for the device.

A launch returns at once until the queue is full; from then on each call that launches waits for the device, whatever it
is for. The stacks show the line where that happens, and not that nothing was done there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Mask
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.host_syncs import find_waits
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.trace.schema import BACKWARD_NODE

_LAUNCH = r"^(cuda|hip|cu)(Launch|Memcpy\w*Async|Memset\w*Async)"
LAUNCHES_NS = 20_000
"""A launch takes 5 to 10 us; longer ones under which the device never stands still wait for a place in its queue. In 18
recordings of 11 programs they are half of the step where the queue is full, and none at all where it is not."""
LONG_NS = 200_000
_PRODUCT = r"^aten::(mm|mv|addmm|addmv|bmm|baddbmm|addbmm|dot|\w*linear\w*)$"
COVERED = 0.9
RISING, MOSTLY = 0.5, 0.8
"""Of the pairs of steps, how many more must rise than fall: in what is counted, and in what is measured."""
FEWEST_TIMES = 5
_STEP = re.compile(r"#(\d+)$")


class HostShares(NamedTuple):
    """Shares of the recorded steps: in operators, and of these what waits for the device.

    ``for_results`` : in calls that read one. ``for_queue`` : in launches, until there is a place in the queue.
    """

    operators: float
    for_results: float
    for_queue: float


def host_shares(trace: Trace | None) -> HostShares | None:
    """Return what part of the recorded steps the loop's thread, or autograd's in its place, spends in what.

    None without steps.
    """
    if trace is None or not len(trace.steps):
        return None
    judged = trace.steps.host_judged
    whole = max(intervals.length(judged), 1)
    ops = trace.kind == Kind.OP
    passes = ops & trace.matching(f"^{BACKWARD_NODE}")
    # of the loop's thread, or of one that backward passes run on
    ours = np.isin(trace.lane, np.append(trace.lane[passes], trace.steps.lane))
    # what autograd's threads run at other times than the loop's is not seen on its lane
    working = (ops & (trace.lane == trace.steps.lane)) | passes
    operators = trace.time_of(np.flatnonzero(working))
    results, queue = _waiting(trace, ours) if trace.devices else (intervals.EMPTY, intervals.EMPTY)

    def share(spans: Spans) -> float:
        return intervals.length(intervals.intersect(spans, judged)) / whole

    return HostShares(
        share(intervals.union(np.concatenate([operators, results]))),
        share(results),
        share(intervals.subtract(queue, results)),
    )


def long_operators(trace: Trace | None) -> float:
    """Return the share of the recorded steps that the loop's thread is in operators of 0.2 ms or more, products aside.

    A batch takes as long for each of its items. Of products it need not: their weights are read once.
    """
    if trace is None or not len(trace.steps):
        return 0.0
    ops = np.flatnonzero((trace.kind == Kind.OP) & (trace.lane == trace.steps.lane))
    following = np.append(trace.start_ns[ops[1:]], np.iinfo(np.int64).max)
    innermost = following >= trace.end_ns[ops]
    rows = ops[innermost & (trace.dur_ns[ops] >= LONG_NS) & ~trace.matching(_PRODUCT)[ops]]
    judged = trace.steps.host_judged
    return intervals.length(intervals.intersect(trace.spans_of(rows), judged)) / max(intervals.length(judged), 1)


def _waiting(trace: Trace, ours: Mask) -> tuple[Spans, Spans]:
    """Return when these threads wait for results, and when for a place in the queue."""
    waits = find_waits(trace)
    mine = ours[waits.row] & ~waits.profiler
    results = intervals.union(intervals.spans(waits.start_ns[mine], waits.end_ns[mine]))
    launches = ours & (trace.kind == Kind.RUNTIME) & trace.matching(_LAUNCH) & (trace.dur_ns > LAUNCHES_NS)
    rows = np.flatnonzero(launches)
    covered = intervals.covered(trace.spans_of(rows), trace.devices[0].busy)
    return results, trace.time_of(rows[covered >= COVERED * trace.dur_ns[rows]])


def work_growth(traces: Sequence[Trace]) -> float:
    """Return by what part of itself the work of a step grows with each step; 0 where it does not, or is not recorded.

    The work is how many operators there are and how large their inputs; or the device's time, where it rises almost
    without exception: other programs on it make kernels longer, too, and a recording with stacks does.
    """
    counts: dict[int, float] = {}
    sizes: dict[int, float] = {}
    slopes = [0.0]
    for trace in traces:
        steps = trace.steps
        numbers = [int(found[1]) for name in steps.names if (found := _STEP.search(name)) is not None]
        if not len(steps) or len(numbers) != len(steps):
            continue
        steady = np.flatnonzero(steps.steady)
        rows = np.flatnonzero(trace.kind == Kind.OP)
        rows = rows[steps.in_steady(steps.of_host(rows))]
        of_step = steps.of_host(rows)
        inputs, which = inputs_of(trace, rows)
        elements = np.array([_elements(given) for given in inputs] or [0.0])
        counted = np.bincount(of_step, minlength=len(steps))
        sized = np.bincount(of_step, elements[which] if len(inputs) else None, minlength=len(steps))
        counts |= {numbers[at]: float(counted[at]) for at in steady}
        sizes |= {numbers[at]: float(sized[at]) for at in steady if len(inputs)}
        if trace.devices:
            rows = trace.devices[0].rows
            rows = rows[steps.in_steady(steps.of_work(rows))]
            took = np.bincount(steps.of_work(rows), trace.dur_ns[rows], len(steps))
            slopes.append(_slope({numbers[at]: float(took[at]) for at in steady}, MOSTLY, FEWEST_TIMES))
    return max(*slopes, _slope(counts, RISING, 2), _slope(sizes, RISING, 2))


def _elements(inputs: Inputs) -> float:
    """Return the number of elements of all inputs, those in lists as well."""
    shapes = [shape for value in inputs.dims for shape in ([value] if is_shape(value) else value or ())]
    return float(sum(math.prod(shape) for shape in shapes if is_shape(shape) and shape))


def _slope(by_step: Mapping[int, float], rising: float, fewest: int) -> float:
    """Return the median slope between any two steps, as a part of the mean; 0 where fewer than ``rising`` are up."""
    if len(by_step) < fewest:
        return 0.0
    numbers, values = np.array(sorted(by_step)), np.array([by_step[at] for at in sorted(by_step)])
    first, second = np.triu_indices(len(numbers), 1)
    slopes = (values[second] - values[first]) / (numbers[second] - numbers[first])
    up = (slopes > 0).mean() - (slopes < 0).mean()
    return float(np.median(slopes) / values.mean()) if values.mean() and up >= rising else 0.0
