"""CUDA graphs were requested, but they are recorded over and over or never replayed.

Looks like: ``CUDAGraphNode.record`` in two or more steps after the first; or frames of
    ``torch/_inductor/cudagraph_trees.py`` in most of the steps, no graph launch in any of them, and 20 or more
    launches per step from inside compiled graphs.
Slow because: recording takes 0.4 s where replay takes microseconds; without replay the host launches every kernel
    individually again.
Cost: bounded by device idle time inside the recordings; without replay, by host-late gaps before the kernels of
    compiled graphs. Low is divided by the profiler's inflation.
Fix: no CPU tensors and no in-place changes of inputs inside the function, static shapes, a mark between steps;
    ``TORCH_LOGS=cudagraphs`` gives the reason.
Leave it when: a server records one graph for each of its shapes, or a partition of a few operators runs between
    replayed graphs.
Source: PyTorch documentation, "CUDAGraph Trees"; measured: 0.4 s per recording of FLUX.1.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.compiled_regions import find_regions
from torchtriage.core.trace.device import HOST_LATE
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import HOST_KINDS, Claim, Claims, Edit, Fix, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "CMP033", "CUDA graphs are not replayed", order=112, needs="device runtime ops")
FIX = Fix(
    text="Remove what keeps the graph from being replayed; the log names it.",
    code="""# TORCH_LOGS=cudagraphs python train.py      # prints why a graph is skipped
x = x + 1                                    # not x.add_(1) on an input of the function
mask = mask.to(x.device)                     # no CPU tensor inside
torch.compiler.cudagraph_mark_step_begin()   # before every call that may reuse outputs""",
    link="https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_cudagraph_trees.html",
)

MIN_RECORDED = 2  # steps after the first; the first recording is the intended one
MIN_LAUNCHES = 20  # per step: partitions of a few operators between graphs are normal (catalogue 33)
_RECORD = r"^CUDAGraphNode\.record"
_TREES = r"torch/_inductor/cudagraph_trees\.py\(\d+\): (run|_run|deferred_cudagraphify)$"
_REPLAY = r"^(cuda|hip)GraphLaunch"


def find(trace: Trace) -> Claims:
    """Yield a claim for recordings that go on, or else one for kernels that are not replayed."""
    yield from filter(None, [_recorded(trace) or _skipped(trace)])


def _recorded(trace: Trace) -> Claim | None:
    steps = trace.steps
    rows = np.flatnonzero(trace.matching(_RECORD, *HOST_KINDS))
    rows = rows[steps.of_host(rows) > 0]
    times = distinct(steps.of_host(rows))
    if len(times) < MIN_RECORDED:
        return None
    spans = trace.time_of(rows)
    each_ns = float(np.median(trace.dur_ns[rows]))
    return host_claim(
        trace,
        f"CUDA graphs are recorded again in {len(times)} of {format_count(len(steps) - 1, 'later step')},"
        f" {format_ns(each_ns)} each time",
        rows,
        spans,
        method="device idle time inside the recordings of the analysed steps",
        evidence={"n_recordings": len(rows), "n_steps_with_recording": len(times), "median_recording_ms": ms(each_ns)},
        anchor=trace.longest(rows),
        always=True,
        edits=(Edit("drop", rows),),
    )


def _skipped(trace: Trace) -> Claim | None:
    steps = trace.steps
    frames = np.flatnonzero(trace.matching(_TREES, Kind.PYTHON))
    if not len(frames) or not recurs(trace, frames):
        return None
    replays = np.flatnonzero(trace.matching(_REPLAY, Kind.RUNTIME))
    captures = trace.matching(r"StreamBeginCapture", Kind.RUNTIME)
    if steps.in_steady(steps.of_host(replays)).any() or captures.any():
        return None
    regions = find_regions(trace)
    launches = np.flatnonzero(trace.links.launches & trace.tree.under(regions.graphs))
    count = steps.median_count(steps.of_host(launches))
    if count < MIN_LAUNCHES:
        return None
    gaps = trace.devices[0].gaps
    mine = np.isin(trace.links.call[gaps.next_row], launches) & (gaps.blame == HOST_LATE)
    spans = gaps.spans[mine]
    idle_ns = steps.judged_ns(spans)
    return host_claim(
        trace,
        f"{format_count(count, 'launch', 'launches')} {steps.per} from compiled graphs that should have been"
        f" replayed; the GPU waits {format_ns(idle_ns / steps.n_steady)} for them",
        launches,
        spans,
        method="host-late gaps before the kernels of compiled graphs",
        evidence={
            "n_launches_per_step": count,
            "gpu_idle_ms_per_step": ms(idle_ns / steps.n_steady),
            "n_graph_calls_per_step": steps.median_count(steps.of_host(np.flatnonzero(regions.graphs))),
        },
        anchor=int(frames[0]),
        edits=(Edit("shrink", launches, 1 - 1 / trace.origin.inflation, best=0.0),),
    )
