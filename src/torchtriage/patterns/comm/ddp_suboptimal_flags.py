"""DistributedDataParallel does work that a flag would spare, or DataParallel is used.

Looks like: ``reducer::search_unused_parameters`` in every step although every parameter gets a
    gradient; ``reducer::copy_bucket_to_grad``, once per parameter; or ``DataParallel.forward`` with
    work on more than one device.
Slow because: the search walks the whole graph and adds one all-reduce per step; the copies move all
    gradients once more and keep them twice; DataParallel copies the model to every device in every
    step, from one Python process.
Cost: bounded by the device idle time that these operators cause and the copies nothing hides;
    without a device, by the time in them. Low is divided by the profiler's inflation. The added
    all-reduce and the memory are not counted.
Fix: ``find_unused_parameters=False`` (or ``static_graph=True``), ``gradient_as_bucket_view=True``,
    one process per device.
Leave it when: some parameters really go without a gradient in some steps; code replaces ``.grad``.
Source: PyTorch documentation, ``DistributedDataParallel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.finding import Fix
from torchtriage.intervals import Spans
from torchtriage.patterns._recurrence import recurs
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_bytes, format_count, format_ns, ms

PATTERN = Pattern(
    code="COM039",
    name="ddp-suboptimal-flags",
    family="comm",
    title="DDP does work that a flag would spare",
    order=353,
    needs=frozenset({"ops"}),
)

_LINK = (
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
)

FIX = Fix(
    text="Let gradients be views of the buckets: no copies, and half the memory for gradients.",
    code="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
    link=_LINK,
)

_FIX_UNUSED = Fix(
    text="Every parameter gets its gradient: do not search for unused ones.",
    code="""model = DistributedDataParallel(model, find_unused_parameters=False)
# or, where the graph is the same in every step:
model = DistributedDataParallel(model, static_graph=True)""",
    link=_LINK,
)

_FIX_DP = Fix(
    text="One process per device.",
    code="""# torchrun --nproc-per-node=gpu train.py
torch.distributed.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
model = torch.nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device])""",
    link=_LINK,
)

Ints = NDArray[np.int64]

_SEARCH = r"reducer::search_unused_parameters$"
_SINK = r"^_DDPSink$|^autograd::engine::evaluate_function: _DDPSinkBackward$"
_COPY = r"reducer::copy_bucket_to_grad$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield a claim for the search, one for the copies, and one for DataParallel."""
    ops = trace.kind == Kind.OP
    search = np.flatnonzero(ops & trace.matching(_SEARCH))
    if recurs(trace, search) and not _unused(trace):
        yield _search(trace, search, np.flatnonzero(ops & trace.matching(_SINK)))
    copies = np.flatnonzero(ops & trace.matching(_COPY))
    if recurs(trace, copies):
        yield _copies(trace, copies)
    data_parallel = np.flatnonzero(trace.hosts & trace.named("DataParallel.forward"))
    if recurs(trace, data_parallel) and len(trace.devices) > 1:
        yield Claim(
            message=f"DataParallel drives {len(trace.devices)} devices from one process",
            certainty="hint",
            rows=data_parallel,
            evidence={
                "n_devices": len(trace.devices),
                "n_forwards_per_step": trace.steps.median_count(trace.steps.of_host(data_parallel)),
            },
            fix=_FIX_DP,
            always=True,
        )


def _unused(trace: Trace) -> bool:
    """Return whether a parameter goes without a gradient: its part of the bucket is set to zero."""
    zero = (trace.kind == Kind.OP) & trace.named("aten::zero_")
    hooks = trace.matching(r"^autograd::engine::evaluate_function: .*AccumulateGrad")
    parent = trace.tree.parent
    return bool((zero & np.append(hooks, False)[parent]).any())


def _search(trace: Trace, search: Ints, sink: Ints) -> Claim:
    rows = np.concatenate([search, sink])
    stake = _stake(trace, rows, np.empty(0, np.int64))
    host_ns = _host_ns(trace, rows)
    return Claim(
        message=(
            f"every forward searches the graph for unused parameters ({format_ns(host_ns)} of the"
            f" host {trace.steps.per}, and one all-reduce more), and none is unused"
        ),
        certainty="certain",
        rows=rows,
        spans=stake.spans,
        gain_low=stake.gain_low,
        time_class=stake.time_class,
        method=stake.method,
        evidence={
            "n_searches_per_step": trace.steps.median_count(trace.steps.of_host(search)),
            "host_ms_per_step": ms(host_ns),
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(search[0]),
        fix=_FIX_UNUSED,
        always=True,
        edits=(Edit("shrink", rows, 1 - 1 / trace.origin.inflation, best=0.0),),
    )


def _copies(trace: Trace, copies: Ints) -> Claim:
    steps = trace.steps
    inside = np.zeros(len(trace), dtype=bool)
    inside[copies] = True
    moved = trace.links.work_under(inside)
    stake = _stake(trace, copies, moved)
    host_ns = _host_ns(trace, copies)
    count = steps.median_count(steps.of_host(copies))
    size = np.maximum(trace.value[moved], 0)[steps.in_steady(steps.of_work(moved))]
    moved_bytes = int(size.sum()) / steps.n_steady
    much = f" of {format_bytes(moved_bytes)}" if moved_bytes else ""
    return Claim(
        message=(
            f"{format_count(count, 'gradient')}{much} {'is' if count == 1 else 'are'} copied out of"
            f" the buckets {steps.per}, which takes {format_ns(host_ns)} of the host"
        ),
        certainty="certain",
        rows=copies,
        spans=stake.spans,
        gain_low=stake.gain_low,
        time_class=stake.time_class,
        method=stake.method,
        evidence={
            "n_copies_per_step": count,
            "host_ms_per_step": ms(host_ns),
            "device_ms_per_step": ms(
                int(trace.dur_ns[moved][steps.in_steady(steps.of_work(moved))].sum())
                / steps.n_steady
            ),
            **({"bytes_per_step": int(moved_bytes)} if moved_bytes else {}),
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(copies[0]),
        edits=(
            Edit("shrink", copies, 1 - 1 / trace.origin.inflation, best=0.0),
            Edit("drop", moved),
        ),
    )


class _Stake(NamedTuple):
    """Time at stake; the names are those of :class:`Claim`."""

    spans: Spans
    gain_low: NDArray[np.float64]
    time_class: Literal["idle", "copy", "host"]
    method: str


def _stake(trace: Trace, rows: Ints, moved: Ints) -> _Stake:
    """Return copies nothing hides and the idle time behind the operators, or their host time."""
    slower = 1 / trace.origin.inflation
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    if not trace.devices:
        spans = intervals.union(intervals.spans(start, end))
        return _Stake(spans, np.full(len(spans), slower), "host", "host time of these operators")
    device = trace.devices[0]
    lost = trace.waits.lost(start, end)
    copies = intervals.intersect(
        intervals.union(intervals.spans(trace.start_ns[moved], trace.end_ns[moved])),
        device.copy_only,
    )
    return _Stake(
        np.concatenate([copies, lost]),
        np.concatenate([np.ones(len(copies)), np.full(len(lost), slower)]),
        "copy" if len(copies) else "idle",
        "copies with nothing beside them, and device idle time behind these operators",
    )


def _host_ns(trace: Trace, rows: Ints) -> float:
    """Return the time of host rows in ns per steady step."""
    steady = trace.steps.in_steady(trace.steps.of_host(rows))
    return int(trace.dur_ns[rows[steady]].sum()) / trace.steps.n_steady
