"""Tensor parallelism: each layer's collective stands between two products, and nothing runs meanwhile.

Looks like: in each layer a matrix product, then an all-reduce, all-gather or reduce-scatter of its result, of a process
    group called tensor-parallel or directly after the product, exposed for at least a tenth of the step. Or an
    all-reduce after each product, where a column-parallel and a row-parallel layer need one for both.
Slow because: the collective needs the whole product and the next product needs the collective, so that device or host
    wait for the network, several times per layer.
Cost: bounded by the exposed time, without the waiting for late ranks, and by the product before each: cut into one part
    per rank, all but one part can be sent while the next is computed. Low is 0: the parts are slower than the whole.
    Where every second one is needless: half of the exposed time, low of the fastest of equal messages.
Fix: asynchronous tensor parallelism: ``torch.compile`` with ``torch._inductor.config._micro_pipeline_tp = True`` and
    symmetric memory, with sequence parallelism, which turns the all-reduce into all-gather and reduce-scatter;
    Megatron's ``--tp-comm-overlap``. Elsewhere: two halves of the batch, one computes while the other communicates.
Leave it when: the group crosses machines, messages are small (decoding), or fewer ranks can hold the model, too.
Source: PyTorch, "Introducing Async Tensor Parallelism in PyTorch", 2024; Wang et al., "Overlap Communication with
    Dependent Computation via Decomposition in Large Deep Learning Models", ASPLOS 2023.
"""

from dataclasses import replace

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import ENGINE, Collectives, find_collectives
from torchtriage.core.trace.kernel_categories import CATEGORIES, GEMM, MOE, OTHER, categories
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Mask, Pattern, Trace
from torchtriage.diagnose.patterns.comm._collectives import shorter
from torchtriage.diagnose.patterns.comm._earlier import alone_ns, earlier
from torchtriage.diagnose.patterns.comm._tensor_parallel import MANY, PRODUCT, tensor_parallel

PATTERN = Pattern.of(
    __name__, "COM060", "Nothing runs beside tensor-parallel collectives", order=405, needs="collectives ops"
)
FIX = Fix(
    text="Split product and collective into chunks, so that one chunk is computed while another is sent.",
    code="""from torch.distributed._symmetric_memory import enable_symm_mem_for_group

torch._inductor.config._micro_pipeline_tp = True
enable_symm_mem_for_group(mesh["tp"].get_group().group_name)
model = torch.compile(model)  # with SequenceParallel and Shard(1) between layers""",
    link="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
)
_FIX_PAIR = Fix(
    text="Split the first of two layers by columns and the second by rows: one all-reduce for both.",
    code="""parallelize_module(
    block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
)""",
    link="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
)

MIN_SHARE = 0.10  # of the judged time, as for exposed communication (catalogue 35)
MIN_HIDDEN = 0.03  # of the judged time that could be hidden: else nothing is to be gained by parts


def find(trace: Trace) -> Claims:
    """Yield one claim over the collectives between products."""
    found = find_collectives(trace)
    if found is None or trace.origin.world_size == 1:
        return
    op, steps = found.enqueued_by, trace.steps
    pick, product = tensor_parallel(found)
    if not pick.any():
        return
    unpaired = _unpaired(trace, found, pick)
    if steps.median_count(steps.of_host(op[unpaired])) >= MANY:
        yield _one_each(trace, found, unpaired)
        return
    since = trace.start_ns[found.rows].copy()
    since[pick] = np.minimum(_begun(trace, found, product), since)[pick]
    n = max(trace.origin.world_size or 2, 2)
    gain = earlier(trace, found, pick, (alone_ns(found, since) * (n - 1) / n).astype(np.int64))
    wall_ns = steps.wall_ns * steps.n_steady
    exposed_ns = steps.judged_ns(found.exposed[pick[found.source]])
    if exposed_ns < MIN_SHARE * wall_ns or gain.hidden_ns < MIN_HIDDEN * wall_ns:
        return
    rows = found.rows[pick]
    count = format_count(steps.median_count(steps.of_host(op[pick])), "tensor-parallel collective")
    yield gain.claim(
        found,
        rows,
        f"{count} {steps.per}, each between two products:"
        f" {format_ns(exposed_ns / steps.n_steady)} exposed"
        f" ({format_share(exposed_ns / wall_ns)} of the step), of which the preceding products could hide"
        f" {format_ns(gain.hidden_ns / steps.n_steady)}",
        {
            "n_collectives_per_step": steps.median_count(steps.of_host(op[pick])),
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
        },
        certainty="hint",
        gain_low=0.0,
        method="exposed time of these collectives without the wait for late ranks, as far as the product before, in one"
        " part per rank, lasts as long",
        edits=(replace(gain.edit, factor=1.0),),
    )


def _unpaired(trace: Trace, found: Collectives, pick: Mask) -> Mask:
    """Return bool[k]: all-reduces of the forward pass with one product since the one before, where most have.

    A column-parallel product needs none, so that a pair of layers has one. An engine's own operators, such as those of
    experts, may hold products, too.
    """
    out = np.zeros(len(found.rows), dtype=bool)
    op = np.maximum(found.enqueued_by, 0)
    engine = trace.tree.nearest(op, trace.hosts & trace.matching(ENGINE)) >= 0
    at = np.flatnonzero(pick & trace.matching(r"(?i)all_?reduce")[op] & ~engine)
    at = at[np.argsort(trace.start_ns[op[at]], kind="stable")]
    products = trace.matching(PRODUCT, Kind.OP)
    products &= ~trace.tree.under(products)
    count = np.searchsorted(np.sort(trace.start_ns[products]), trace.start_ns[op[at]])
    others = np.searchsorted(np.sort(trace.start_ns[_opaque(trace)]), trace.start_ns[op[at]])
    same = np.diff(trace.steps.of_host(op[at])) == 0
    alone = at[1:][same & (np.diff(count) == 1) & (np.diff(others) == 0)]
    if 2 * len(alone) >= len(at):
        out[alone] = True
    return out


def _opaque(trace: Trace) -> Ints:
    """Return the operators other than PyTorch's that launch products, experts, or what is not known."""
    products = [CATEGORIES.index(category) for category in (GEMM, MOE, OTHER)]
    rows = [device.rows[np.isin(categories(device), products)] for device in trace.devices[:1]]
    ops = distinct(np.concatenate([np.empty(0, np.int64), *(trace.links.op[row] for row in rows)]))
    return ops[(ops >= 0) & ~trace.matches(ops, r"^aten::")]


def _one_each(trace: Trace, found: Collectives, unpaired: Mask) -> Claim:
    """Return the claim that every second all-reduce is needless, in the backward pass too."""
    steps = trace.steps
    pick = unpaired | ((found.equal >= 0) & np.isin(found.equal, found.equal[unpaired]))
    mine = pick[found.source]
    spans, source = found.exposed[mine], found.source[mine]
    exposed_ns = steps.judged_ns(spans)
    low = np.minimum(found.fastest_ns / np.maximum(trace.dur_ns[found.rows], 1), 1.0) / 2
    count = steps.median_count(steps.of_host(found.enqueued_by[unpaired]))
    return Claim(
        message=f"{format_count(count, 'all-reduce')} {steps.per} of the forward pass have only one product between"
        f" them; a column-parallel layer before a row-parallel one needs half of them. All of this size:"
        f" {format_ns(exposed_ns / steps.n_steady)} exposed",
        certainty="likely",
        rows=found.rows[pick],
        spans=spans,
        gain_low=low[source],
        gain_high=0.5,
        anchor=trace.longest(found.rows[unpaired]),
        time_class="host" if found.on_host else "comm",
        method="half of the exposed time of these all-reduces; low of the fastest of equal messages",
        evidence={
            "unpaired_per_step": count,
            "n_collectives_per_step": steps.median_count(found.step[pick]),
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
        },
        fix=_FIX_PAIR,
        edits=(shorter(found, pick, spans, low, 0.5),),
    )


def _begun(trace: Trace, found: Collectives, product: Ints) -> Ints:
    """Return int64[k]: when the product before each began, on the clock of whoever computes."""
    begin = trace.start_ns[found.rows]
    if found.on_host:
        return np.where(product >= 0, trace.start_ns[np.maximum(product, 0)], begin)
    device = trace.devices[0]
    rows = device.rows[~device.comm]
    rows = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    # the kernel that ended last before it: most of its input's time
    index = np.searchsorted(trace.end_ns[rows], begin, side="right") - 1
    return np.where(index >= 0, trace.start_ns[rows[np.maximum(index, 0)]], begin)
