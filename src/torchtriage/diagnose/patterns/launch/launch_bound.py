"""The host cannot enqueue work as fast as the device finishes it.

Looks like: the device is idle for at least 20 % of the step because the next launch is late, in many gaps shorter than
    1 ms, and the host spent that time in operators and launch calls: dispatching. Loading data, waiting, allocating and
    catching up after a wait are subtracted first. A longer gap is not launching: an operator that computes on the host
    (HST055), a stalled thread (HST054) or Python (HST020). A recording without operators does not say what the host did
    in the gaps: a hint, which promises nothing for certain.
Slow because: an operator takes the host 5-20 µs and a launch call 3-9 µs, which shorter kernels cannot hide.
Cost: all host-late idle time that no more specific finding owns; low counts half of it, divided by the profiler's
    inflation, as that much remains without the profiler and disappears with compilation, and by how much longer than 5
    µs the median view takes: a profiler that just started or a slow host says nothing of the launch rate. Without the
    profiler the host is faster by the inflation, its waits and the device are not: where the device is busy then,
    nothing is reported.
Fix: let a compiler or a CUDA graph issue the launches, or give each launch more work.
Leave it when: the recording was made with stacks and the idle time disappears without them, or the launches are being
    captured into a graph.
Source: PyTorch performance tuning guide, "Reduce CPU overhead with CUDA graphs"; measured: BERT 92 % idle, ViT 84 %,
    eager vLLM on B200 86 %.
"""

from dataclasses import replace

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.user_places import user_places
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._late_launches import ALLOCATION, median_view_ns, short_gaps
from torchtriage.diagnose.patterns.base import (
    Claim,
    Claims,
    Edit,
    Fix,
    Floats,
    Ints,
    Kind,
    Pattern,
    Spans,
    Trace,
    given,
)

PATTERN = Pattern.of(
    __name__, "LCH014", "The host launches slower than the device computes", order=380, needs="device runtime dispatch"
)
FIX = Fix(
    text="Compile the model with CUDA graphs (needs shapes that repeat), or launch larger batches.",
    code='model = torch.compile(model, mode="reduce-overhead")',
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)
_COMPILED = Fix(
    text="Compile the model, which leaves fewer kernels to launch, or launch larger batches. CUDA graphs do not work"
    " yet: kernels differ from step to step, or the host waits or allocates in between.",
    code="model = torch.compile(model)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)

_THERE = "Look at this place first: iterations of a loop there can often become one call on a whole batch. "

MIN_SHARE = 0.20  # share of the step (catalogue 14)
MIN_DISPATCH = 1 / 3
"""Share of the idle time inside ops and calls; the rest is the Python between them, which stacks inflate: 0.45-0.87 in
launch-bound recordings of both vendors."""
LOW = 0.5
MIN_IDLE = 0.1
"""Share of a step that must be idle without the profiler, too."""
USUAL_VIEW_NS = 5_000
"""Own time of the median operator that makes a view: 0.6-4 us in launch-bound recordings of ten machines, shapes and
stacks included. Where it takes 20 us (a profiler that just started, a throttled host), what is beyond is nothing that
fewer launches save for sure."""
TINY_NS = 10_000  # kernels below this cannot hide the dispatch of one op (5-20 us, measured)
MIN_REPEATS = 3  # steps with one and the same kernel sequence, for a graph to be worth proposing
MAX_GRAPHED = 0.05
MUCH_THERE = 0.25  # of the idle time before the launches of one place
NEARLY_ALL = 0.9  # more is the model or the loop of the steps itself
MIN_ROUNDS = 8  # calls per step; fewer may be written one by one
MIN_GAPS = 10  # fewer are no rate of launching
_GRAPH = r"GraphLaunch"


def find(trace: Trace) -> Claims:
    """Yield one claim for the host-late idle time of the main device."""
    device, steps = trace.devices[0], trace.steps
    if _captures(trace):
        return
    judged = intervals.length(steps.judged)
    spans = short_gaps(trace)
    rest = intervals.intersect(spans, steps.judged)
    dispatch = intervals.length(intervals.intersect(rest, device.host_work))
    rest_ns = intervals.length(rest)
    if (
        len(rest) < MIN_GAPS
        or rest_ns < MIN_SHARE * judged
        or (trace.has_operators and dispatch < MIN_DISPATCH * rest_ns)
    ):
        return
    work = device.rows[steps.in_steady(steps.of_work(device.rows))]
    if not len(work):
        return
    kernels = work[trace.kind[work] == Kind.KERNEL]
    tiny = float((trace.dur_ns[kernels] < TINY_NS).mean()) if len(kernels) else 0.0
    per_step = steps.median_count(steps.of_work(work))
    late_rows = distinct(device.gaps.next_row[intervals.covered(device.gaps.spans, rest) > 0])
    view_ns = median_view_ns(trace)
    idle = _idle_share_unprofiled(trace)
    if idle < MIN_IDLE:
        return
    low = LOW * min(USUAL_VIEW_NS / max(view_ns, 1), 1.0) if trace.has_operators else 0.0
    place, n_there, n_rounds, idle_there = _place(trace, rest)
    much = idle_there >= MUCH_THERE
    latest = place if much else _latest(trace, rest)
    looped = much and n_rounds >= MIN_ROUNDS and idle_there <= NEARLY_ALL
    graphable = _graphable(trace, work)
    fix = _COMPILED if steps.n_steady >= MIN_REPEATS and not graphable else FIX
    gap_ns = int(np.median(rest[:, 1] - rest[:, 0]))
    yield Claim(
        message=f"the GPU waits {format_ns(rest_ns / steps.n_steady)} of {format_ns(steps.wall_ns)} {steps.per} for"
        f" launches, in {format_count(len(rest) / steps.n_steady, 'gap')} (median {format_ns(gap_ns)}):"
        f" {format_count(per_step, 'GPU event')}, {format_share(tiny)} of the kernels shorter than"
        f" {TINY_NS // 1000} µs"
        + (f"; {format_share(idle_there)} of it where the place below makes {n_there:,.0f} of them" if much else "")
        + (f"; a view takes the host {format_ns(view_ns)}, usually 1-4 µs" if view_ns > USUAL_VIEW_NS else ""),
        certainty="likely" if trace.has_operators else "hint",
        rows=late_rows,
        spans=spans,
        gain_low=low / trace.origin.inflation,
        time_class="idle",
        basis="modelled",
        method="host-late idle time; low: half of it over the profiler's inflation",
        evidence={
            "gpu_idle_ms_per_step": ms(rest_ns / steps.n_steady),
            "share_of_step": round(rest_ns / judged, 6),
            "n_gpu_events_per_step": per_step,
            "n_gaps_per_step": round(len(rest) / steps.n_steady, 2),
            "median_gap_us": round(gap_ns / 1e3, 2),
            **given(median_view_us=round(view_ns / 1e3, 2)),
            "mean_idle_us_before_gpu_event": round(rest_ns / len(work) / 1e3, 2),
            **(
                {
                    "median_kernel_us": round(float(np.median(trace.dur_ns[kernels])) / 1e3, 2),
                    "short_share_of_kernels": round(tiny, 6),
                }
                if len(kernels)
                else {}
            ),
            "top_ops_gpu_idle_ms_per_step": _top_ops(trace, rest),
            "idle_share_of_step_unprofiled": round(idle, 6),
            "in_ops_share_of_idle": round(dispatch / rest_ns, 6),
            "profiler_inflation": trace.origin.inflation,
            "kind": "tiny kernels" if tiny >= 0.5 else "slow dispatch",
            "same_kernels_every_step": graphable,
        },
        fix=replace(fix, text=_THERE + fix.text) if looped else fix,
        anchor=latest[0],
        examples=latest,
        edits=(Edit("threads", factor=1 - low, best=0.0, spans=spans),),
    )


def _captures(trace: Trace) -> bool:
    launches, end = trace.links.launch_calls, trace.steps.rows_end
    if end is not None:
        launches = launches & (trace.start_ns < end.launch_ns)
    return 2 * int((launches & trace.links.lost).sum()) > int(launches.sum())


def _idle_share_unprofiled(trace: Trace) -> float:
    """Return which share of a step the device idles without the profiler, which slows down the host alone."""
    steps, waits = trace.steps, trace.waits
    wall, busy = intervals.length(steps.judged), steps.judged_ns(trace.time_of(trace.devices[0].rows))
    waiting = steps.judged_ns(np.stack([waits.start_ns, waits.end_ns], axis=1))
    return 1 - busy / max((wall - waiting) / trace.origin.inflation + waiting, busy)


def _place(trace: Trace, rest: Spans) -> tuple[tuple[int, ...], float, float, float]:
    """Return the user's place whose launches are waited for longest: rows, launches and calls per step, share of idle.

    One call there may make many launches; a loop makes many calls.
    """
    gaps = trace.devices[0].gaps
    idle = intervals.covered(gaps.spans, rest)
    late = np.flatnonzero(idle)
    op, call = trace.links.op[gaps.next_row[late]], trace.links.call[gaps.next_row[late]]
    found = user_places(trace, np.where(op >= 0, op, call))
    known = found.frame >= 0
    if not known.any():
        return (), 0, 0, 0.0
    _, place = np.unique(found.key[:, known], axis=1, return_inverse=True)
    idle, rows = idle[late], found.row[known]
    total = np.bincount(place.ravel(), weights=idle[known])
    mine = place.ravel() == int(total.argmax())
    longest = np.argsort(-idle[known][mine], kind="stable")[:3]
    return (
        tuple(rows[mine][longest].tolist()),
        np.count_nonzero(mine) / trace.steps.n_steady,
        len(distinct(found.called[known][mine])) / trace.steps.n_steady,
        float(total.max() / idle.sum()),
    )


def _graphable(trace: Trace, work: Ints) -> bool:
    steps = trace.steps
    if steps.n_steady < MIN_REPEATS:
        return False
    blocking = trace.matching(ALLOCATION, Kind.RUNTIME)
    blocking[trace.waits.row[~trace.waits.profiler]] = True
    rows = np.flatnonzero(blocking)
    calls = trace.links.call[work]
    graphed = trace.matches(calls[calls >= 0], _GRAPH)
    if steps.in_steady(steps.of_host(rows)).any() or graphed.sum() > MAX_GRAPHED * len(work):
        return False
    step_of = steps.of_work(work)
    signature = [
        (trace.name[mine].tobytes(), trace.detail[mine].tobytes())
        for mine in (work[step_of == step] for step in np.flatnonzero(steps.steady))
    ]
    return len(set(signature)) == 1


def _top_ops(trace: Trace, rest: Spans) -> dict[str, float]:
    _, _, by_name = _before_ops(trace, rest)
    best = np.argsort(-by_name, kind="stable")[:5]
    return {
        trace.names[code]: ms(float(by_name[code]) / trace.steps.n_steady) for code in best.tolist() if by_name[code]
    }


def _latest(trace: Trace, rest: Spans) -> tuple[int, ...]:
    """Return the operators behind the longest waits, of the one that is waited for longest in all."""
    idle, op, by_name = _before_ops(trace, rest)
    if by_name.any():
        idle = np.where((op >= 0) & (trace.name[op] == int(by_name.argmax())), idle, 0)
    longest = np.argsort(-idle, kind="stable")[:3]
    longest = longest[idle[longest] > 0]
    work = trace.devices[0].gaps.next_row[longest]
    op, call = op[longest], trace.links.call[work]
    return tuple(np.where(op >= 0, op, np.where(call >= 0, call, work)).tolist())


def _before_ops(trace: Trace, rest: Spans) -> tuple[Ints, Ints, Floats]:
    """Return the idle time of each gap, the operator that ends it, and the sum before each name's operators, ns."""
    gaps = trace.devices[0].gaps
    idle = intervals.covered(gaps.spans, rest)
    op = trace.links.op[gaps.next_row].astype(np.int64)
    known = (op >= 0) & (idle > 0)
    by_name = np.bincount(trace.name[op[known]], weights=idle[known], minlength=1).astype(np.float64)
    return idle, op, by_name
