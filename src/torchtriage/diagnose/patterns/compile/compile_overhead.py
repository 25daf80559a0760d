"""Guards and wrappers of compiled code take longer than the small graphs are worth.

Looks like: ten or more calls of compiled code per step that spend at least a tenth of their time outside their graphs;
    or cache look-ups alone that take a tenth of the step, recorded without Python stacks.
Slow because: every call checks its guards and runs through wrappers, 10-60 µs, however small the graph is; guards of a
    large model take 0.3 ms and more.
Cost: bounded by host time in look-ups and regions outside graphs and operators; with a device, by the idle time this
    causes. High adds graphs whose calls are shorter than 50 µs, and the time between consecutive calls where no
    operator runs; low is divided by the profiler's inflation, which stacks make worse here than elsewhere.
Fix: compile the surrounding function once instead of the small ones; where guards dominate, drop those on modules that
    never change.
Leave it when: the device is busy meanwhile.
Source: PyTorch documentation, ``torch.compile``, ``guard_filter_fn``; measured: 41 µs per call of a one-line function
    on a CPU, 0.6 µs when its caller is compiled.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.compiled_regions import Regions, find_regions
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Kind, Pattern, Spans, Trace

PATTERN = Pattern.of(__name__, "CMP032", "Guards and wrappers dominate small compiled graphs", order=343, needs="ops")
FIX = Fix(
    text="Compile the caller, so that the small functions become one graph.",
    code="""@torch.compile          # here, once
def forward(x, layers):
    for layer in layers:
        x = layer(x)    # and no torch.compile on each layer or helper
    return x""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)

_FIX_GUARDS = Fix(
    text="Drop guards on modules that never change after compilation.",
    code="""model = torch.compile(
    model,
    options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe},
)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)

MIN_CALLS = 10  # per step: fewer are no small functions in a loop
MIN_OVERHEAD = 0.10  # of the time in look-ups and regions (catalogue 32)
MIN_GUARDS = 0.10  # of the step, in look-ups alone, as if no profiler had slowed them
SMALL_GRAPH_NS = 50_000  # a graph whose call is that short is mostly the call: in one graph with others it may vanish
NEXT_CALL_NS = 100_000
"""From one call to the next with no operator between: mostly the way out and in again, 20 us measured."""


def find(trace: Trace) -> Claims:
    """Yield one claim over all calls of compiled code."""
    if not trace.devices and not trace.is_host_only:
        return
    regions = find_regions(trace)
    if not len(regions.rows):
        return
    steps = trace.steps
    calls = regions.rows[regions.around < 0]
    lookups = regions.time_of(regions.lookups)
    whole = intervals.union(np.concatenate([lookups, regions.time_of(regions.mask)]))
    outside = _outside(regions, whole)
    whole_ns, outside_ns, guards_ns = (steps.judged_ns(spans) / steps.n_steady for spans in (whole, outside, lookups))
    n_calls = steps.median_count(steps.of_host(calls))
    # guards in Python look many times slower with stacks
    slow_guards = not trace.has_stacks and (guards_ns >= MIN_GUARDS * steps.wall_ns * trace.origin.inflation)
    many = n_calls >= MIN_CALLS and outside_ns >= MIN_OVERHEAD * whole_ns
    if not (many or slow_guards) or not outside_ns:
        return
    sure = _at_stake(trace, outside if many else lookups)
    graphs = regions.graphs & ~trace.tree.under(regions.graphs)
    small = bool(many and graphs.any() and np.median(trace.dur_ns[graphs]) < SMALL_GRAPH_NS)
    pauses = _between(regions, whole) if many else intervals.EMPTY
    perhaps = np.concatenate([pauses, regions.time_of(graphs)]) if small else pauses
    more = intervals.subtract(_at_stake(trace, intervals.union(perhaps)), sure)
    surely = 1 - 1 / n_calls if many else 0.5
    at_stake = outside_ns if many else guards_ns
    yield host_claim(
        trace,
        f"{format_count(n_calls, 'call')} of compiled code {steps.per}"
        f" {'spends' if n_calls == 1 else 'spend'} {format_ns(outside_ns)} of {format_ns(whole_ns)}"
        f" ({format_share(outside_ns / whole_ns)}) in guards and wrappers",
        calls,
        np.concatenate([sure, more]),
        gain=np.append(np.full(len(sure), surely), np.zeros(len(more))),
        method=(
            "host time of look-ups and regions outside graphs" if many else "host time of look-ups; low half of it"
        ),
        evidence={
            "n_calls_per_step": n_calls,
            "overhead_ms_per_step": ms(outside_ns),
            "compiled_code_ms_per_step": ms(whole_ns),
            "guards_ms_per_step": ms(guards_ns),
            "overhead_ms_per_call": ms(outside_ns / max(n_calls, 1)),
        },
        anchor=trace.longest(calls),
        fix=FIX if many else _FIX_GUARDS,
        edits=(
            _edit(regions, at_stake / max(whole_ns, 1), many=many, small=small),
            Edit("threads", factor=1.0, best=0.0, spans=pauses),
        ),
    )


def _outside(regions: Regions, whole: Spans) -> Spans:
    """Return the time of look-ups and regions outside graphs and operators.

    Of a region that calls neither (old builds name no graphs), only its look-up and wrappers.
    """
    trace = regions.trace
    inside = regions.graphs | regions.eager | (trace.kind == Kind.RUNTIME)
    known = regions.mask & trace.tree.above(inside)
    surely = np.concatenate([regions.time_of(regions.lookups), regions.time_of(regions.wrappers)])
    seen = intervals.subtract(regions.time_of(known), regions.time_of(inside))
    return intervals.intersect(intervals.union(np.concatenate([surely, seen])), whole)


def _between(regions: Regions, whole: Spans) -> Spans:
    gaps = np.stack([whole[:-1, 1], whole[1:, 0]], axis=1)
    step = np.searchsorted(regions.trace.steps.host_start_ns, gaps, side="right")
    gaps = gaps[(gaps[:, 1] - gaps[:, 0] < NEXT_CALL_NS) & (step[:, 0] == step[:, 1])]
    busy = intervals.covered(gaps, regions.time_of(regions.eager))
    return gaps[(busy == 0) & (gaps[:, 1] > gaps[:, 0])]


def _at_stake(trace: Trace, host: Spans) -> Spans:
    return trace.waits.lost(host[:, 0], host[:, 1]) if trace.devices else host


def _edit(regions: Regions, share: float, *, many: bool, small: bool) -> Edit:
    lookups = np.flatnonzero(regions.lookups)
    slower = regions.trace.origin.inflation
    if not many:
        return Edit("shrink", lookups, 1 - 0.5 / slower, best=0.0)
    rows = np.concatenate([lookups, regions.rows[regions.around < 0]])
    return Edit("shrink", rows, 1 - share / slower, best=0.0 if small else max(1 - share, 0.0))
