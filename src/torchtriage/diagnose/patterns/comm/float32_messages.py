"""Collectives move float32 although the layers compute in half precision.

Looks like: FSDP's all-gathers of float32 parameters, exposed for at least 3 % of the step, while a forward pass under
    autocast casts at least half of what they gather to bfloat16 or float16 in front of the products (where shapes were
    not recorded: something in at least half of the layers). Or DDP's all-reduces of float32 gradients in such a
    program, where less is computed without communication than is exposed of them.
Slow because: autocast changes what products read, not what FSDP or DDP send: each element travels in 4 bytes where 2
    arrive at the product.
Cost: half of the exposed transfer, without the waiting for late ranks. Low counts all-gathers alone, by the fastest of
    equal messages, and of it what grows with the bytes beyond the smallest message of the recording: latency stays.
    Reductions count at the high end only. The casts and copies that go as well are not counted.
Fix: FSDP2: ``MixedPrecisionPolicy(param_dtype=torch.bfloat16)``, FSDP1: ``MixedPrecision``: parameters are cast before
    they are gathered, the optimizer keeps its float32 shards, and autocast may stay for what it keeps in float32. Both
    then reduce gradients in that type too, unless ``reduce_dtype=torch.float32`` is given. DDP: ``bf16_compress_hook``.
    Where the layers compute in float16, ``torch.float16`` and ``fp16_compress_hook``.
Leave it when: parameters outside the products need float32 in the layers themselves. Many reduce gradients in float32
    on purpose, as sums over many ranks lose digits in half precision: compare losses before you change that.
Source: PyTorch documentation, ``fully_shard``, ``MixedPrecisionPolicy``, and "DDP Communication Hooks"; measured: two
    ranks over 1 Gbit/s, 168 ms a step with autocast alone, 103 ms with parameters and gradients in bfloat16.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.collective_time import ENGINE, Collectives, find_collectives
from torchtriage.core.trace.messages import Messages
from torchtriage.core.trace.op_inputs import inputs_of, where_inputs
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._weights_cast import of_weights, share_of_layers
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Floats, Ints, Kind, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.comm._collectives import shorter
from torchtriage.diagnose.patterns.comm._earlier import exposed_of, usual_ns
from torchtriage.diagnose.patterns.comm._gradient_reduces import FORWARD, WRAPPED, find_reduces
from torchtriage.diagnose.patterns.comm._sharding import find_gathers, gradient_reductions

PATTERN = Pattern.of(
    __name__, "COM077", "Collectives move float32 for half-precision computation", order=400, needs="collectives ops"
)
FIX = Fix(
    text="Let FSDP cast parameters before it gathers them. Gradients in bfloat16 are an option: without reduce_dtype,"
    " their messages halve as well.",
    code="""policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
# FSDP1: FullyShardedDataParallel(..., mixed_precision=MixedPrecision(
#     param_dtype=torch.bfloat16, reduce_dtype=torch.float32))""",
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
_FIX_DDP = Fix(
    text="Send gradients in bfloat16, if the losses stay as they are.",
    code="""from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.bf16_compress_hook)""",
    link="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
)

MIN_SHARE = 0.03  # of the judged time, as of what is gathered again (COM058)
MIN_SHARE_DDP = 0.10  # a change of what the sums hold: only where communication bounds the step (as COM035)
MOST = 0.5  # of the elements that travel: else it is other layers that compute in half precision
HALF = 0.5  # 2 bytes of 4
_HALVES = {"5": "float16", "15": "bfloat16"}
"""``torch.dtype`` as a concrete input."""


def find(trace: Trace) -> Claims:
    """Yield one claim over FSDP's all-gathers and reductions, or DDP's reductions."""
    found = find_collectives(trace)
    casts, half = _cast_elements(trace) if found is not None and trace.origin.world_size != 1 else (0, "")
    if found is None or not casts:
        return
    full = np.array([dtype.lower() == "float" for dtype in Messages(trace, found.rows).dtypes], dtype=bool)
    for claim in (_sharded(trace, found, full, casts, half), _replicated(trace, found, full, casts, half)):
        if claim is not None:
            yield claim


def _sharded(trace: Trace, found: Collectives, full: Mask, casts: float, half: str) -> Claim | None:
    gathers = find_gathers(trace, found)
    if gathers is None:
        return None
    mine = full[gathers.at]
    gathered = np.zeros(len(full), dtype=bool)
    gathered[gathers.at[mine]] = True
    steps = trace.steps
    first = mine & (gathers.turn == 0) & steps.in_steady(gathers.step)
    n_ranks = Messages(trace, found.rows[gathers.at[first]]).n_ranks
    elements = _elements(found, gathers.at[first]) * np.where(n_ranks > 0, n_ranks, trace.origin.world_size or 1)
    sent = _per_step(elements, gathers.step[first])
    exposed_ns = steps.judged_ns(exposed_of(found, gathered)[0])
    if casts < MOST * sent or exposed_ns < MIN_SHARE * steps.wall_ns * steps.n_steady:
        return None
    reduced = full & gradient_reductions(found)
    reduced_ns = steps.judged_ns(exposed_of(found, reduced)[0])
    count = steps.median_count(gathers.step[mine])
    also = f"; float32 gradients take {format_ns(reduced_ns / steps.n_steady)} more" if reduced_ns else ""
    return _claim(
        found,
        gathered,
        reduced,
        f"{format_count(count, 'all-gather')} {steps.per} move float32 parameters, of which the products read {half}"
        f" copies: {format_ns(exposed_ns / steps.n_steady)} exposed{also}",
        {
            "float32_gathers_per_step": count,
            "exposed_ms_per_step": ms(exposed_ns / steps.n_steady),
            "computes_in": half,
            **given(exposed_reductions_ms_per_step=ms(reduced_ns / steps.n_steady)),
        },
        certainty="likely" if trace.has_shapes else "hint",
        fix=_in_type(FIX, half),
    )


def _replicated(trace: Trace, found: Collectives, full: Mask, casts: float, half: str) -> Claim | None:
    reduces = find_reduces(trace, found)
    # where several backward passes of a step reduce, the redundant ones go first (COM038)
    if reduces is None or gradient_reductions(found).any() or len(distinct(reduces.turn)) > len(distinct(reduces.step)):
        return None
    mine = full[reduces.at]
    reduced = np.zeros(len(full), dtype=bool)
    reduced[reduces.at[mine]] = True
    steps = trace.steps
    steady = mine & steps.in_steady(reduces.step)
    sent = _per_step(_elements(found, reduces.at[steady]), reduces.step[steady])
    exposed_ns = steps.judged_ns(exposed_of(found, reduced)[0])
    # what computation could hide costs no digits
    room_ns = steps.judged_ns(intervals.subtract(found.computing, found.running))
    least_ns = max(MIN_SHARE_DDP * steps.wall_ns * steps.n_steady, room_ns)
    if casts < MOST * sent or exposed_ns < least_ns:
        return None
    count = steps.median_count(reduces.step[mine])
    return _claim(
        found,
        np.zeros_like(reduced),
        reduced,
        f"{format_count(count, 'all-reduce')} {steps.per} move float32 gradients of layers that compute in {half}:"
        f" {format_ns(exposed_ns / steps.n_steady)} exposed, more than computation could hide",
        {
            "float32_reductions_per_step": count,
            "exposed_reductions_ms_per_step": ms(exposed_ns / steps.n_steady),
            "computes_in": half,
        },
        certainty="hint",
        fix=_in_type(_FIX_DDP, half),
    )


def _in_type(fix: Fix, half: str) -> Fix:
    """Return the fix in the type the layers compute in; bfloat16 where that was not recorded."""
    if half != "float16":
        return fix
    code = fix.code.replace("bfloat16", half).replace("bf16_", "fp16_")
    return replace(fix, text=fix.text.replace("bfloat16", half), code=code)


def _claim(
    found: Collectives, surely: Mask, maybe: Mask, message: str, evidence: dict[str, Any], **more: Any
) -> Claim | None:
    """Return the claim on half of the exposed transfer; ``surely`` saves it, ``maybe`` at the high end."""
    trace, pick = found.trace, surely | maybe
    spans, source = exposed_of(found, pick)
    usual = usual_ns(found)
    sure = np.where(surely, np.minimum(_by_size_ns(found), usual), 0) * HALF
    dur = np.maximum(trace.dur_ns[found.rows], 1)
    # of the exposed time, what goes: the other half stays for those that hide it
    begin = spans[:, 1] - ((spans[:, 1] - spans[:, 0]) * HALF).astype(np.int64)
    rows = found.rows[pick]
    return Claim(
        message=message,
        rows=rows,
        spans=intervals.spans(begin, spans[:, 1]),
        gain_low=np.minimum(sure / np.maximum(usual * HALF, 1), 1.0)[source],
        time_class="host" if found.on_host else "comm",
        method="half of the exposed transfer; low counts all-gathers alone, of the fastest of equal messages"
        " what grows with their bytes",
        evidence=evidence,
        anchor=trace.longest(found.rows[surely] if surely.any() else rows),
        edits=(shorter(found, pick, spans, sure / dur, usual * HALF / dur),),
        **more,
    )


def _elements(found: Collectives, at: Ints) -> Floats:
    """Return float64: how many elements this rank puts in, infinitely many where that was not recorded."""
    count = Messages(found.trace, found.rows[at]).nelems
    return np.where(count >= 0, count, np.inf)


def _per_step(elements: Floats, step: Ints) -> float:
    """Return the mean over the steps that have any: of micro-batches that are steps, the last alone reduces."""
    return float(elements.sum()) / max(len(distinct(step)), 1)


def _by_size_ns(found: Collectives) -> Floats:
    """Return float64[k]: the part of each one's transfer that grows with its bytes, 0 where nothing shows it.

    That is by the smallest message of the recording: what a message takes however small it is stays.
    """
    size, transfer = found.size_bytes.astype(np.float64), found.fastest_ns.astype(np.float64)
    known = np.flatnonzero((size > 0) & (transfer > 0))
    out = np.zeros(len(size))
    if len(known):
        least = known[np.argmin(size[known])]
        larger = known[size[known] > size[least]]
        grown = (transfer[larger] - transfer[least]) / (size[larger] - size[least])
        out[larger] = np.clip(grown * size[larger], 0, transfer[larger])
    return out


def _in_forward(trace: Trace) -> Mask:
    """Return bool[n]: what runs in the forward of a model whose parameters or gradients travel."""
    host = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.hosts
    found = trace.tree.under(host & trace.matching(WRAPPED))
    # FSDP2 marks where the forward of each module begins and ends
    begins = trace.end_ns[host & trace.matching(r"^FSDP::pre_forward( \(|$)")]
    ends = trace.start_ns[host & trace.matching(r"^FSDP::post_forward( \(|$)")]
    marks = np.append(begins, ends)
    order = np.argsort(marks, kind="stable")
    depth = np.cumsum(np.repeat([1, -1], [len(begins), len(ends)])[order])
    depth -= np.minimum.accumulate(np.minimum(depth, 0))  # a recording may begin within
    return found | (np.append(0, depth)[np.searchsorted(marks[order], trace.start_ns, side="right")] > 0)


def _cast_elements(trace: Trace) -> tuple[float, str]:
    """Return how many elements of weights a forward pass casts from float32, and to what most of them.

    Of equal casts those of the pass with the most: autocast may keep copies for later micro-batches. Casts of the
    backward pass are of layers it computes again. Without shapes, infinitely many where most layers cast something.
    """
    inside = _in_forward(trace)
    if not trace.has_shapes:
        return (np.inf, "half-precision") if share_of_layers(trace, inside) >= MOST else (0, "")
    host = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.hosts
    casts = np.flatnonzero(trace.named("aten::_to_copy") & (trace.kind == Kind.OP) & inside)
    casts = casts[trace.steps.in_steady(trace.steps.of_host(casts))]
    casts = casts[where_inputs(trace, casts, lambda each: each.type(0) == "float" and each.value(1) in _HALVES)]
    casts = of_weights(trace, casts[trace.tree.nearest(casts, host & trace.matching(ENGINE)) < 0])
    forwards = host & trace.matching(FORWARD)
    begins = np.sort(trace.start_ns[forwards & ~trace.tree.under(forwards)])
    inputs, which = inputs_of(trace, casts)
    turns = np.stack([which, trace.steps.of_host(casts), np.searchsorted(begins, trace.start_ns[casts])])
    (which, *_), times = np.unique(turns, axis=1, return_counts=True)
    most = np.zeros(len(inputs), np.int64)
    np.maximum.at(most, which, times)
    count: Counter[str] = Counter()
    for each, n_casts in zip(inputs, most.tolist(), strict=True):
        count[_HALVES[each.value(1)]] += each.numel(0) * n_casts
    return count.total(), max(count, key=count.__getitem__, default="")
