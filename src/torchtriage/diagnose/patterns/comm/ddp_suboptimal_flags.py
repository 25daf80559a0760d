"""DistributedDataParallel does work that a flag would avoid, or DataParallel is used.

Looks like: ``reducer::search_unused_parameters`` in every step although every parameter gets a gradient;
    ``reducer::copy_bucket_to_grad``, once per parameter; or ``DataParallel.forward`` with work on more than one
    device.
Slow because: the search walks the whole graph and adds one all-reduce per step; the copies move all gradients once
    more and store them twice; DataParallel copies the model to every device in every step, from one Python process.
Cost: bounded by the device idle time that these operators cause and by exposed copies; without a device, by the
    operators' host time. Low is divided by the profiler's inflation. The extra all-reduce and the memory are not
    counted.
Fix: ``find_unused_parameters=False`` (or ``static_graph=True``), ``gradient_as_bucket_view=True``, one process per
    device.
Leave it when: some parameters really get no gradient in some steps, or your code replaces ``.grad``.
Source: PyTorch documentation, ``DistributedDataParallel``.
"""

from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_bytes, format_count, format_ns, ms
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "COM039", "DDP does work that a flag would avoid", order=353, needs="ops")

_LINK = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"

FIX = Fix(
    text="Let gradients be views of the buckets: no copies, and half the memory for gradients.",
    code="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
    link=_LINK,
)

_FIX_UNUSED = Fix(
    text="Every parameter gets a gradient: do not search for unused ones.",
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

_SEARCH = r"reducer::search_unused_parameters$"
_SINK = rf"^_DDPSink$|^{BACKWARD_NODE}_DDPSinkBackward$"
_COPY = r"reducer::copy_bucket_to_grad$"


def find(trace: Trace) -> Claims:
    """Yield a claim for the search, one for the copies, and one for DataParallel."""
    search = np.flatnonzero(trace.matching(_SEARCH, Kind.OP))
    if recurs(trace, search) and not _unused(trace):
        yield _search(trace, search, np.flatnonzero(trace.matching(_SINK, Kind.OP)))
    copies = np.flatnonzero(trace.matching(_COPY, Kind.OP))
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
    zero = (trace.kind == Kind.OP) & trace.named("aten::zero_")
    hooks = trace.matching(rf"^{BACKWARD_NODE}.*AccumulateGrad")
    parent = trace.tree.parent
    return bool((zero & np.append(hooks, False)[parent]).any())


def _search(trace: Trace, search: Ints, sink: Ints) -> Claim:
    rows = np.concatenate([search, sink])
    host_ns = _host_ns_per_step(trace, rows)
    return Claim(
        message=f"every forward searches the graph for unused parameters ({format_ns(host_ns)} of host time"
        f" {trace.steps.per}, and one extra all-reduce), and none is unused",
        certainty="certain",
        rows=rows,
        **_at_stake(trace, rows, rows[:0]),
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
    inside = trace.mask_of(copies)
    moved = trace.links.work_under(inside)
    host_ns = _host_ns_per_step(trace, copies)
    count = steps.median_count(steps.of_host(copies))
    size = np.maximum(trace.value[moved], 0)[steps.in_steady(steps.of_work(moved))]
    moved_bytes = int(size.sum()) / steps.n_steady
    much = f" of {format_bytes(moved_bytes)}" if moved_bytes else ""
    return Claim(
        message=f"{format_count(count, 'gradient')}{much} {'is' if count == 1 else 'are'} copied out of the buckets"
        f" {steps.per}, which takes {format_ns(host_ns)} of host time",
        certainty="certain",
        rows=copies,
        **_at_stake(trace, copies, moved),
        evidence={
            "n_copies_per_step": count,
            "host_ms_per_step": ms(host_ns),
            "device_ms_per_step": ms(
                int(trace.dur_ns[moved][steps.in_steady(steps.of_work(moved))].sum()) / steps.n_steady
            ),
            **({"bytes_per_step": int(moved_bytes)} if moved_bytes else {}),
            "profiler_inflation": trace.origin.inflation,
        },
        anchor=int(copies[0]),
        edits=(Edit("shrink", copies, 1 - 1 / trace.origin.inflation, best=0.0), Edit("drop", moved)),
    )


def _at_stake(trace: Trace, rows: Ints, moved: Ints) -> dict[str, Any]:
    """Return of a claim, by field: copies nothing hides and the idle time behind the operators, or their host time."""
    slower = 1 / trace.origin.inflation
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    if not trace.devices:
        return {
            "spans": intervals.union(intervals.spans(start, end)),
            "gain_low": slower,
            "time_class": "host",
            "method": "host time of these operators",
        }
    device = trace.devices[0]
    lost = trace.waits.lost(start, end)
    copies = intervals.intersect(trace.time_of(moved), device.copy_only)
    return {
        "spans": np.concatenate([copies, lost]),
        "gain_low": np.concatenate([np.ones(len(copies)), np.full(len(lost), slower)]),
        "time_class": "copy" if len(copies) else "idle",
        "method": "copies with nothing beside them, and device idle time behind these operators",
    }


def _host_ns_per_step(trace: Trace, rows: Ints) -> float:
    """Return the time of host rows in ns per steady step."""
    steady = trace.steps.in_steady(trace.steps.of_host(rows))
    return int(trace.dur_ns[rows[steady]].sum()) / trace.steps.n_steady
