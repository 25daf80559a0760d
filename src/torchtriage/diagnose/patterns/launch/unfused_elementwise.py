"""Chains of pointwise kernels read and write the same tensor again and again.

Looks like: three or more kernels in a row on a stream that have the names of PyTorch's pointwise and copy kernels, or
    of its layer and RMS norms, and work on the same number of elements, outside optimizers; the chains that the device
    itself paces take at least 5 % of its kernel time. On a CPU: three or more pointwise operators in a row on tensors
    of one size, at least 5 % of the step. No chain where more than half of the neighbours are the same operator on
    inputs of the same shapes: which tensors it reads is not recorded, and that is a loop over tensors rather than a
    flow through one.
Slow because: each kernel moves the whole tensor through memory to do a few operations on it; fused, the intermediate
    results never leave the registers.
Cost: traffic model, time in proportion to tensors read and written: a chain of k kernels with n full-size inputs moves
    n + k tensors, fused n - k + 2. The low end is half of that (training keeps the intermediates), and nothing where
    the next launch is late: there the host sets the pace.
Fix: compile the function, or use its fused form.
Leave it when: the chain belongs to an attention that should be one fused call (KRN025), or the host is the bottleneck:
    then fewer launches help, not less traffic.
Source: PyTorch performance tuning guide, "Fuse operations"; measured: 54 % of the kernel time of an eager Qwen
    prefill; on a CPU a GELU of nine operators takes 2.2 times as long as ``F.gelu``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_runs import outer_ops
from torchtriage.core.trace.optimizer_steps import updates
from torchtriage.core.units import format_count, format_ns, format_share, ms
from torchtriage.diagnose.patterns._op_work import SHORT_NS, kernel_time_ns
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Floats, Ints, Kind, Mask, Pattern, Trace, given

PATTERN = Pattern.of(__name__, "LCH015", "Chains of pointwise kernels are not fused", order=550, needs="sizes")
FIX = Fix(
    text="Compile the function that holds the chain, or call its fused form (F.gelu, F.rms_norm, torch.addcmul).",
    code="fn = torch.compile(fn)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#fuse-operations",
)

MIN_CHAIN = 3
MIN_SHARE = 0.05  # share of the kernel time (catalogue 15)
MAX_AGAIN = 0.5  # of a chain's links, between two operators of one name and the same inputs
_POINTWISE = (
    r"elementwise_kernel|CUDAFunctor|copy_kernel"
    # a batch norm with stored statistics is pointwise too
    r"|bn_fw_inf|batch_norm_transform_input|BatchNormFwdInfer"
)
_NORM = r"(?i)^(?!.*(grad|backward))(?=.*at::native)(?=.*(layer_?norm|rms_?norm|RowwiseMoments))"
"""A compiler computes these together with what is pointwise before and behind them."""
_POINTWISE_OPS = (
    r"^aten::(add|sub|rsub|mul|div|pow|neg|abs|exp|log|sqrt|rsqrt|reciprocal|square|tanh|sigmoid"
    r"|relu|gelu|silu|erf|sin|cos|clamp(_min|_max)?|where|maximum|minimum|masked_fill|lerp|addcmul"
    r"|addcdiv|leaky_relu|hardswish|softplus|mish|elu|lt|gt|le|ge|eq|ne)_?$"
)
_OTHER = r"triton_|multi_tensor|reduce_kernel|index|CatArray|scatter|gather|fused"


def find(trace: Trace) -> Claims:
    """Yield one claim for all chains of the main device, or of the CPU alone."""
    if trace.devices:
        yield from _on_device(trace)
    elif trace.is_host_only and trace.has_shapes:
        yield from _on_cpu(trace)


def _on_device(trace: Trace) -> Claims:
    device, steps = trace.devices[0], trace.steps
    position, chain = _chains(trace)
    steady = steps.in_steady(steps.of_work(device.rows[position]))
    position, chain = position[steady], chain[steady]
    if not len(position):
        return
    rows = device.rows[position]
    kernel_ns = kernel_time_ns(trace)
    # a kernel that the next launch does not follow in time frees nothing by being shorter
    paced = device.followed_in_time[position]
    if not kernel_ns or _time_ns(trace, rows[paced]) < MIN_SHARE * kernel_ns:
        return
    gain = _saved_traffic(trace, trace.links.op[rows].astype(np.int64), chain)
    chain_ns = _time_ns(trace, rows)
    n_chains = len(distinct(chain))
    n_steps = steps.n_steady
    cost = np.bincount(chain, weights=trace.dur_ns[rows])
    worst = rows[chain == cost.argmax()]
    ops = [trace.name_of(op) for op in trace.links.op[worst].tolist() if op >= 0][:5]
    yield Claim(
        message=f"{format_count(len(rows) / n_steps, 'pointwise kernel')} in"
        f" {format_count(n_chains / n_steps, 'chain')} take {format_ns(chain_ns / n_steps)} of"
        f" {format_ns(steps.wall_ns)} {steps.per}, {format_share(chain_ns / kernel_ns)} of the kernel time",
        certainty="likely" if trace.has_shapes else "hint",
        rows=rows,
        spans=trace.spans_of(rows),
        gain_low=np.where(paced, 0.5 * gain, 0.0),
        gain_high=gain,
        time_class="compute",
        basis="modelled",
        method="memory traffic of the chains, separate against fused",
        evidence={
            "chain_ms_per_step": ms(chain_ns / n_steps),
            "share_of_kernel_time": round(chain_ns / kernel_ns, 6),
            "n_chains_per_step": round(n_chains / n_steps, 2),
            "n_kernels_per_step": round(len(rows) / n_steps, 2),
            "n_kernels_of_longest_chain": int(np.bincount(chain).max()),
            "costliest_chain_us": round(float(cost.max()) / 1e3, 2),
            **given(costliest_chain_ops=ops),
            "next_launch_in_time_share_of_chain_time": round(_time_ns(trace, rows[paced]) / chain_ns, 6),
        },
        anchor=op if (op := int(trace.links.op[worst[0]])) >= 0 else int(worst[0]),
        edits=(Edit("shrink", rows, factor=1 - 0.5 * gain, best=1 - gain),),
    )


def _on_cpu(trace: Trace) -> Claims:
    steps = trace.steps
    ops = outer_ops(trace, updates(trace))
    named = trace.matches(ops, _POINTWISE_OPS)
    size = _by_detail(trace, "dims", np.where(named, ops, -1), _largest)
    fits, step = named & (size > 1), steps.of_host(ops)
    same = (size[1:] == size[:-1]) & (step[1:] == step[:-1])
    goes_on = np.append(False, fits[1:] & fits[:-1] & same)[: len(ops)]
    of = np.cumsum(~goes_on, dtype=np.int64)
    long = fits & _flows(trace, ops, of)[of] & steps.in_steady(step)
    rows = ops[long]
    chain = np.unique(of[long], return_inverse=True)[1].astype(np.int64)
    chain_ns = _time_ns(trace, rows) / steps.n_steady
    if chain_ns < MIN_SHARE * steps.wall_ns or not len(rows):
        return
    gain = _saved_traffic(trace, rows, chain)
    inflated = np.where(trace.dur_ns[rows] < SHORT_NS, trace.origin.inflation, 1.0)
    cost = np.bincount(chain, weights=trace.dur_ns[rows])
    worst = rows[chain == cost.argmax()]
    n_chains = len(cost)
    yield Claim(
        message=f"{format_count(len(rows) / steps.n_steady, 'pointwise operator')} in"
        f" {format_count(n_chains / steps.n_steady, 'chain')} take {format_ns(chain_ns)} of"
        f" {format_ns(steps.wall_ns)} {steps.per}",
        certainty="likely",
        rows=rows,
        spans=trace.spans_of(rows),
        gain_low=0.5 * gain / inflated,
        gain_high=gain,
        time_class="host",
        basis="modelled",
        method="memory traffic of the chains, separate against fused",
        evidence={
            "chain_ms_per_step": ms(chain_ns),
            "share_of_step": round(chain_ns / steps.wall_ns, 6),
            "n_chains_per_step": round(n_chains / steps.n_steady, 2),
            "n_ops_per_step": round(len(rows) / steps.n_steady, 2),
            "n_ops_of_longest_chain": int(np.bincount(chain).max()),
            "costliest_chain_ops": [trace.name_of(op) for op in worst.tolist()][:5],
        },
        anchor=int(worst[0]),
        edits=(Edit("shrink", rows, factor=1 - 0.5 * gain / inflated, best=1 - gain),),
    )


def _chains(trace: Trace) -> tuple[Ints, Ints]:
    """Return positions in ``devices[0].rows`` of kernels in chains, and each one's chain."""
    device = trace.devices[0]
    order = np.argsort(trace.lane[device.rows], kind="stable")
    rows = device.rows[order]
    eager = trace.kind[rows] == Kind.KERNEL
    eager[eager] = ~trace.matches(rows[eager], _OTHER)
    eager &= ~np.append(updates(trace), False)[trace.links.call[rows]]
    norms = eager & trace.matches(rows, _NORM)
    joins = norms | (eager & trace.matches(rows, _POINTWISE))
    size = np.full(len(rows), -1, np.int64)
    size[joins] = _numel(trace, rows[joins])
    blind = np.flatnonzero(norms[1:] & joins[:-1]) + 1
    blind = blind[_numel_by_op(trace, rows[blind]) == 0]
    size[blind] = size[blind - 1]  # its grid says how many rows, and not how long they are
    joins &= size > 1
    goes_on = np.append(False, joins[1:] & joins[:-1] & (size[1:] == size[:-1]))
    goes_on[1:] &= trace.lane[rows[1:]] == trace.lane[rows[:-1]]
    chain = np.cumsum(~goes_on, dtype=np.int64)
    op = trace.links.op[rows]
    long = joins & _flows(trace, np.where(op >= 0, op, rows), chain)[chain]
    return order[long], np.unique(chain[long], return_inverse=True)[1].astype(np.int64)


def _flows(trace: Trace, rows: Ints, chain: Ints) -> Mask:
    """Return bool[chains + 1]: long enough, and data may flow from one row of it to the next.

    Which tensors an operator reads is not recorded. Two that differ do something to a result; the same one on the same
    inputs again is a loop over other tensors, or a repetition.
    """
    again = (chain[1:] == chain[:-1]) & (trace.name[rows[1:]] == trace.name[rows[:-1]])
    again &= trace.detail[rows[1:]] == trace.detail[rows[:-1]]
    length = np.bincount(chain)
    n_again = np.bincount(chain[1:][again], minlength=len(length))
    return (length >= MIN_CHAIN) & (n_again <= MAX_AGAIN * (length - 1))


def _numel_by_op(trace: Trace, rows: Ints) -> Ints:
    op = trace.links.op[rows]
    return np.where(op >= 0, _by_detail(trace, "dims", op, _largest), 0)


def _numel(trace: Trace, rows: Ints) -> Ints:
    by_op = _numel_by_op(trace, rows)
    blind = np.where(by_op > 0, -1, rows)
    by_grid = _by_detail(trace, "grid", blind, _product) * _by_detail(trace, "block", blind, _product)
    return np.where(by_op > 0, by_op, by_grid)


def _time_ns(trace: Trace, rows: Ints) -> int:
    return trace.steps.judged_ns(trace.spans_of(rows))


def _by_detail(trace: Trace, what: str, rows: NDArray[np.integer], measure: Callable[[list[Any]], int]) -> Ints:
    """Return a measure of one argument of each row, 0 for row -1 or where it is missing."""
    codes, first, inverse = np.unique(
        np.where(rows >= 0, trace.detail[rows], -1), return_index=True, return_inverse=True
    )
    values = np.zeros(len(codes), np.int64)
    known = codes >= 0
    found = trace.details_of(what, rows[first[known]].astype(np.int64))
    values[known] = [measure(item) if isinstance(item, list) else 0 for item in found]
    return values[inverse]


def _sizes(dims: list[Any]) -> list[int]:
    return [_product(dim) for dim in dims if isinstance(dim, list) and dim]


def _largest(dims: list[Any]) -> int:
    """Return the number of elements of the largest tensor among an operator's inputs."""
    return max(_sizes(dims), default=0)


def _full_size(dims: list[Any]) -> int:
    sizes = _sizes(dims)
    return sum(2 * size > max(sizes) for size in sizes)


def _product(values: list[Any]) -> int:
    """Return the product of recorded sizes, 0 where they make no sense."""
    out = 1
    for value in values:
        out *= value if isinstance(value, int) else 0
    # shapes come from a file: keep nonsense inside int64
    return out if 0 <= out < 1 << 62 else 0


def _saved_traffic(trace: Trace, op: Ints, chain: Ints) -> Floats:
    """Return per operator (-1: unknown) the share of its chain's traffic that fusing saves."""
    read = np.where(op >= 0, _by_detail(trace, "dims", op, _full_size), 1)
    # copy_ lists the tensor it writes among its inputs
    read -= (op >= 0) & trace.named("aten::copy_")[op]
    kernels = np.bincount(chain)
    moved = np.bincount(chain, weights=np.maximum(read, 1)) + kernels
    saved: Floats = 2.0 * (kernels - 1) / np.maximum(moved, 1)
    return saved[chain]
