"""A compiled function is split into several graphs.

Looks like: a ``Torch-Compiled Region`` inside another one in most of the steps: Python ran in between. Frames named
    ``torch_dynamo_resume_in_FUNCTION_at_LINE`` give the line of the break. (A break inside a Python loop makes the
    compiler skip the whole function: no recording shows that, ``TORCH_LOGS=graph_breaks`` does.)
Slow because: at every break guards are checked and wrappers run again, nothing is fused across the break, and the
    device may run out of work meanwhile.
Cost: bounded by host time from the end of one graph to the start of the next, without the operators in between; with a
    device, by the idle time this causes. Low is divided by the profiler's inflation.
Fix: find the breaks with ``fullgraph=True``, or record with ``TORCH_TRACE=logs`` and run ``torchtriage compile logs``:
    each break with its line, cause and fix. Move printing, logging and ``.item()`` out; use ``torch.where`` or
    ``torch.cond`` instead of ``if`` on a tensor.
Leave it when: the break is intended (``torch.compiler.disable``, excluded where stacks show it; FSDP's hooks;
    piecewise graphs of a serving engine).
Source: PyTorch documentation, "torch.compile programming model", graph breaks.
"""

from collections import Counter

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.compiled_regions import Regions, find_regions
from torchtriage.core.trace.frames import is_user_frame, parse_frame
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Ints, Kind, Mask, Pattern, Spans, Trace, most_frequent

PATTERN = Pattern.of(__name__, "CMP030", "A compiled function is split into several graphs", order=342, needs="ops")
FIX = Fix(
    text="Let the compiler name each break, and move its cause out of the function.",
    code="""model = torch.compile(model, fullgraph=True)  # raises at the first break
# TORCH_LOGS=graph_breaks python train.py lists them all
# not: if x.sum() > limit: x = 2 * x
x = torch.where(x.sum() > limit, 2 * x, x)""",
    link="https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/compile/programming_model.graph_breaks_index.html",
)

_DISABLED = r"torch/_dynamo/eval_frame\.py\(\d+\): _fn$"
"""What ``torch.compiler.disable`` wraps a function in; the compiler's own functions, too."""
_RESUME = r": torch_dynamo_resume_in_.+_at_\d+$"


def find(trace: Trace) -> Claims:
    """Yield one claim over all regions entered from inside another."""
    if not trace.devices and not trace.is_host_only:
        return
    regions = find_regions(trace)
    inner = _entered_inside(regions) if len(regions.rows) else regions.rows
    if not len(inner) or not recurs(trace, inner):
        return
    steps = trace.steps
    seams = _seams(regions, inner)
    meant = _intended(trace, seams)
    inner, seams = inner[~meant], seams[~meant]
    if not recurs(trace, inner):
        return
    host = intervals.subtract(intervals.union(seams), regions.time_of(regions.eager))
    spans = trace.waits.lost(seams[:, 0], seams[:, 1]) if trace.devices else host
    host_ns = steps.judged_ns(host) / steps.n_steady
    outer = distinct(trace.tree.outermost(inner, regions.mask))
    count = steps.median_count(steps.of_host(inner))
    calls = steps.median_count(steps.of_host(outer))
    resumed = np.flatnonzero(trace.matching(_RESUME, Kind.PYTHON))
    resumed = resumed[steps.in_steady(steps.of_host(resumed))]
    lines = _lines(trace, resumed)
    at = f", at {', '.join(lines[:3])}" if lines else ""
    left = 1 - intervals.length(host) / max(int(trace.dur_ns[outer].sum()), 1)
    yield host_claim(
        trace,
        f"{format_count(calls, 'call')} of compiled code {steps.per} {'is' if calls == 1 else 'are'} split"
        f" into {format_count(calls + count)} graphs{at}; the host spends {format_ns(host_ns)} of"
        f" {format_ns(steps.wall_ns)} between graphs",
        inner,
        spans,
        certainty="certain" if lines else "likely",
        method="from the end of one graph to the start of the next, without operators in between",
        evidence={
            "n_graphs_per_step": calls + count,
            "n_split_calls_per_step": calls,
            "seam_ms_per_step": ms(host_ns),
            "median_seam_ms": ms(float(np.median(seams[:, 1] - seams[:, 0]))),
            **({"breaks_at": lines[:5]} if lines else {}),
            "ops_at_breaks": _ops_at(regions, seams),
        },
        anchor=trace.longest(resumed) if lines else int(inner[0]),
        edits=(Edit("shrink", outer, 1 - (1 - left) / trace.origin.inflation, best=left),),
    )


def _entered_inside(regions: Regions) -> Ints:
    around = regions.around
    index = np.searchsorted(regions.trace.start_ns[regions.rows], regions.trace.start_ns[around])
    frame = np.append(regions.frame, -1)
    # builds without numbers: any region inside another
    same = (frame[np.where(around >= 0, index, -1)] == regions.frame) & (regions.frame >= 0)
    return regions.rows[(around >= 0) & ~same]


def _seams(regions: Regions, inner: Ints) -> Spans:
    """Return int64[k, 2]: from the last graph before each region to its own first graph.

    Bounded by the region around and by the region itself where one of them calls no graph.
    """
    trace = regions.trace
    around = trace.tree.nearest(inner, regions.mask)
    seams = np.stack([trace.start_ns[around], trace.start_ns[inner]], axis=1)
    graphs = np.flatnonzero(regions.graphs)
    for lane in distinct(trace.lane[inner]).tolist():
        here = np.flatnonzero(trace.lane[inner] == lane)
        mine = graphs[trace.lane[graphs] == lane]
        ends = np.sort(trace.end_ns[mine])
        starts = np.sort(trace.start_ns[mine])
        begin = trace.start_ns[inner[here]]
        before = np.searchsorted(ends, begin, side="right") - 1
        last = np.where(before >= 0, np.append(ends, 0)[before], 0)
        seams[here, 0] = np.maximum(seams[here, 0], last)
        after = np.append(starts, np.iinfo(np.int64).max)[np.searchsorted(starts, begin)]
        inside = after < trace.end_ns[inner[here]]
        seams[here, 1] = np.where(inside, after, begin)
    return seams


def _intended(trace: Trace, seams: Spans) -> Mask:
    """Return bool[k]: seams in which a function of the user runs that is kept from compilation."""
    frames = np.flatnonzero((trace.kind == Kind.PYTHON) & trace.where_name(is_user_frame))
    above = trace.frames.parent[frames] if len(frames) else frames
    frames = frames[(above >= 0) & trace.matching(_DISABLED)[above]]
    starts = np.sort(trace.start_ns[frames])
    count = np.searchsorted(starts, seams)
    return count[:, 1] > count[:, 0]


def _lines(trace: Trace, resumed: Ints) -> list[str]:
    counts: Counter[str] = Counter()
    for code, count in zip(*np.unique(trace.name[resumed], return_counts=True), strict=True):
        frame = parse_frame(trace.names[code])
        if frame is not None:
            counts[f"{frame.file}:{frame.line}"] += int(count)
    return [line for line, _ in counts.most_common()]


def _ops_at(regions: Regions, seams: Spans) -> list[str]:
    trace = regions.trace
    rows = np.flatnonzero(regions.eager & ~trace.tree.under(regions.eager))
    rows = rows[~trace.tree.under(regions.graphs)[rows]]
    rows = rows[intervals.owner(intervals.union(seams), trace.start_ns[rows]) >= 0]
    return most_frequent(trace, rows)
