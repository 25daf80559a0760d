"""Operator streams: a CPU recording's operators step by step, as they would run on a device.

What a step asks for stays as it was recorded: which operators in which order, from where, on what
shapes. What only a CPU does goes (its convolution library, its loops over lists of tensors), and
what a GPU build runs instead takes its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchtriage.dataset.synthetic.accelerators import Accelerator
from torchtriage.dataset.synthetic.kernels import Precision, Work, kernels_of
from torchtriage.errors import UsageError

__all__ = ["LOADER", "Op", "Step", "Stream", "read_stream", "scaled", "to_device"]

Event = dict[str, Any]
LOADER = "enumerate(DataLoader)#"
_OPTIMIZER = "Optimizer.step#"


@dataclass(eq=False)
class Op:
    """One operator or annotation of the host.

    ``begin_ns``, ``end_ns`` : when it was recorded; what was put in has a single moment and lasts
    as long as what it does. ``work`` : what it enqueues on the device when its children are done.
    """

    name: str
    begin_ns: float
    end_ns: float
    args: dict[str, Any] = field(default_factory=dict)
    annotation: bool = False
    children: list[Op] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    reads: int = 0
    """Bytes that the host waits for at its end."""
    actions: list[Any] = field(default_factory=list)
    """What else it does on the device, see ``timeline.py``."""
    host_us: float | None = None
    """Its own time on the host, where the recorded one is of no use."""
    kept: bool = False
    """It computes on the host, as recorded."""
    fault: bool = False
    frames: tuple[str, ...] = ()
    """Python frames around it that the recording does not have."""
    put_in: bool = False

    def walk(self) -> Iterator[Op]:
        """Yield it and all operators inside."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(eq=False)
class Step:
    """One recorded step. ``ops`` : its operators in order."""

    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, Any]
    ops: list[Op]


@dataclass(eq=False)
class Stream:
    """What a recording did: steps, Python frames, and the rest of its document."""

    steps: list[Step]
    frames: list[Event]
    document: dict[str, Any]
    pid: int
    tid: int

    def ops(self) -> Iterator[Op]:
        """Yield every operator."""
        for step in self.steps:
            for op in step.ops:
                yield from op.walk()


def _ns(us: float) -> int:
    return round(us * 1000)


def read_stream(document: dict[str, Any]) -> Stream:
    """Return the operator stream of a recording.

    Raises
    ------
    UsageError
        It has no steps, or more than one thread with operators.
    """
    rows = [one for one in document["traceEvents"] if one.get("ph") == "X"]
    hosts = [one for one in rows if one.get("cat") in ("cpu_op", "user_annotation")]
    marks = [one for one in hosts if str(one["name"]).startswith("ProfilerStep#")]
    lanes = {(one["pid"], one["tid"]) for one in hosts}
    if len(lanes) != 1 or not marks:
        raise UsageError(
            f"expected the steps of one thread, found {len(marks)} steps and {len(lanes)} threads"
            " with operators",
            hint="synthetic timelines are made from CPU recordings of eager programs",
        )
    ((pid, tid),) = lanes
    nested = _nested(one for one in hosts if one not in marks)
    steps = []
    for mark in sorted(marks, key=lambda one: float(one["ts"])):
        begin, end = _ns(mark["ts"]), _ns(mark["ts"] + mark["dur"])
        inside = [op for op in nested if begin <= op.begin_ns and op.end_ns <= end]
        steps.append(Step(mark["name"], begin, end, dict(mark["args"]), inside))
    frames = [one for one in rows if one.get("cat") == "python_function"]
    return Stream(steps, frames, document, pid, tid)


def _nested(events: Iterable[Event]) -> list[Op]:
    """Return operators as trees, in order."""
    ops = [
        Op(one["name"], _ns(one["ts"]), _ns(one["ts"] + one["dur"]), dict(one.get("args", {})),
           one["cat"] == "user_annotation")
        for one in events
    ]  # fmt: skip
    ops.sort(key=lambda one: (one.begin_ns, -one.end_ns))
    top: list[Op] = []
    around: list[Op] = []
    for op in ops:
        while around and op.end_ns > around[-1].end_ns:
            around.pop()
        (around[-1].children if around else top).append(op)
        around.append(op)
    return top


# -- more samples in a batch -------------------------------------------------------------------

_WEIGHTS = {
    "aten::conv2d": (1, 2), "aten::convolution": (1, 2), "aten::linear": (1, 2),
    "aten::conv_transpose2d": (1, 2), "aten::conv1d": (1, 2),
    "aten::layer_norm": (2, 3), "aten::group_norm": (2, 3), "aten::batch_norm": (1, 2, 3, 4),
    "aten::embedding": (0,), "torch::autograd::AccumulateGrad": (0,),
}  # fmt: skip
_SAMPLES = {"aten::linear": 0, "aten::addmm": 1, "aten::conv2d": 0, "aten::layer_norm": 0}
_SIZED = frozenset({
    "view", "reshape", "expand", "_unsafe_view", "_reshape_alias", "as_strided", "as_strided_",
    "resize_", "empty", "empty_strided", "zeros", "ones", "full", "new_empty", "new_zeros",
    "new_ones", "new_full", "new_empty_strided", "randn", "rand",
})  # fmt: skip
"""Operators that are told sizes; what others are told is strides and windows."""
_LISTS = ("aten::_fused_adamw_", "aten::_foreach_zero_")


def scaled(stream: Stream, batch: int, by: int) -> None:
    """Make every batch ``by`` times as large, in place: in shapes, and in sizes asked for.

    Which dimension holds the samples is told by the shapes: the first one of what is no weight.
    """
    if by == 1:
        return
    weights = _weights(stream)
    for step in stream.steps:
        for op in step.ops:
            if not op.name.startswith(LOADER):
                for one in op.walk():
                    _scale(one, batch, by, weights)


def _weights(stream: Stream) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for op in stream.ops():
        dims = op.args.get("Input Dims") or []
        for at in _WEIGHTS.get(op.name, ()):
            if at < len(dims):
                found.add(tuple(dims[at]))
        if op.name in _LISTS and dims and isinstance(dims[0], list):
            found |= {tuple(one) for one in dims[0] if isinstance(one, list)}
    return found | {one[::-1] for one in found if len(one) == 2}


def _scale(op: Op, batch: int, by: int, weights: set[tuple[int, ...]]) -> None:
    dims = op.args.get("Input Dims")
    if not dims:
        return

    def more(size: list[int]) -> list[int]:
        fits = size and size[0] >= batch and size[0] % batch == 0 and tuple(size) not in weights
        return [size[0] * by, *size[1:]] if fits else size

    def resized(size: Any, most: int) -> Any:
        if not isinstance(size, list) or not size:
            return size
        if isinstance(size[0], list):
            return [resized(one, most) for one in size]
        return more(size) if len(size) >= most else size

    op.args = dict(op.args)
    if op.name == "aten::mm" and _is_weight_gradient(dims, weights):
        op.args["Input Dims"] = [[dims[0][0], dims[0][1] * by], [dims[1][0] * by, dims[1][1]]]
        return
    ranks = [len(one) for one in dims if isinstance(one, list) and one and isinstance(one[0], int)]
    # what is broadcast along the batch has fewer dimensions
    most = max(ranks, default=0) if _broadcasts(op.name) else 0
    op.args["Input Dims"] = [resized(one, most) for one in dims]
    at = _SAMPLES.get(op.name)
    if at is not None and dims[at] and dims[at] == op.args["Input Dims"][at]:
        # as large as a weight by chance
        op.args["Input Dims"][at] = [dims[at][0] * by, *dims[at][1:]]
    texts = op.args.get("Concrete Inputs")
    grew = op.args["Input Dims"] != dims
    if texts and op.name.rpartition("::")[2] in _SIZED and (grew or not any(ranks)):
        op.args["Concrete Inputs"] = [
            _scaled_text(text, more) if kind == "ScalarList" else text
            for text, kind in zip(texts, op.args["Input type"], strict=True)
        ]


def _broadcasts(name: str) -> bool:
    base = name.rpartition("::")[2].rstrip("_")
    return base in (
        "add",
        "sub",
        "mul",
        "div",
        "where",
        "masked_fill",
        "eq",
        "ne",
        "gt",
        "lt",
        "copy",
    )


def _is_weight_gradient(dims: list[list[int]], weights: set[tuple[int, ...]]) -> bool:
    return (dims[0][0], dims[1][1]) in weights and tuple(dims[1]) not in weights


def _scaled_text(text: str, more: Callable[[list[int]], list[int]]) -> str:
    try:
        numbers = json.loads(text)
    except ValueError:
        return text
    if not isinstance(numbers, list) or len(numbers) < 2:
        return text
    return json.dumps(more(numbers))


# -- as a GPU build runs it --------------------------------------------------------------------

_FREE = frozenset(
    f"aten::{name}"
    for name in (
        "view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze",
        "as_strided", "as_strided_", "alias", "detach", "detach_", "empty", "empty_strided",
        "empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_", "result_type",
        "broadcast_tensors", "unbind", "split", "split_with_sizes", "chunk", "unflatten", "flatten",
        "lift_fresh", "narrow", "_unsafe_view", "_reshape_alias", "numpy_T", "mT", "mH", "movedim",
        "set_", "_nnpack_available", "is_floating_point", "view_as", "expand_as", "diagonal",
        "resolve_conj", "resolve_neg", "requires_grad_", "is_nonzero", "item", "real", "unfold",
        "_has_compatible_shallow_copy_type", "stride", "size", "sym_size", "is_same_size",
        "pin_memory", "lift", "adjoint", "swapaxes", "view_as_real", "view_as_complex",
        "_version", "can_cast", "result_type", "infer_unsqueeze_size", "_local_scalar_dense",
    )
)  # fmt: skip
_DELEGATES = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "conv2d", "conv1d", "conv_transpose2d", "convolution", "batch_norm",
        "_batch_norm_impl_index", "layer_norm", "group_norm", "dropout", "softmax", "log_softmax",
        "cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d", "matmul", "reshape",
        "contiguous", "clone", "to", "_to_copy", "zeros", "ones", "zeros_like", "ones_like", "full",
        "full_like", "new_zeros", "new_ones", "new_full", "scaled_dot_product_attention", "isnan",
        "_is_any_true", "adaptive_avg_pool2d", "max_pool2d", "einsum", "pad", "constant_pad_nd",
        "stack", "type_as", "scalar_tensor", "hstack", "vstack", "concat", "feature_dropout",
        "meshgrid", "is_nonzero", "item", "tile", "instance_norm", "atleast_1d", "nonzero_numpy",
        "embedding_backward", "_weight_norm",
    )
)  # fmt: skip
"""They only call others."""
_EITHER = frozenset(
    f"aten::{name}"
    for name in (
        "relu", "relu_", "clamp", "where", "masked_fill", "square", "std", "embedding", "roll",
        "repeat", "glu", "silu_", "index_put_", "pixel_shuffle", "linalg_norm", "norm",
        "select_backward", "slice_backward", "var_mean", "outer", "index_fill", "bilinear",
        "value_selecting_reduction_backward", "max_pool2d_with_indices", "_index_put_impl_",
    )
)  # fmt: skip
"""They call others in some versions, and compute in some."""
_ALLOCATES = frozenset({
    "aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm",
    "aten::native_layer_norm_backward", "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward",
})  # fmt: skip
_SHAPES = frozenset({"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount"})
_NODES = {
    "NativeBatchNormBackward0": "CudnnBatchNormBackward0",
    "ScaledDotProductFlashAttentionForCpuBackward0": "ScaledDotProduct{fused}AttentionBackward0",
}
_HOST_US = {
    "aten::cudnn_convolution": 14.0, "aten::convolution_backward": 24.0, "aten::addmm": 7.0,
    "aten::mm": 6.0, "aten::bmm": 6.5, "aten::native_layer_norm": 6.0, "aten::copy_": 3.2,
    "aten::native_group_norm": 7.5, "aten::cudnn_batch_norm": 10.0, "aten::fill_": 2.8,
    "aten::cudnn_batch_norm_backward": 12.0, "aten::cat": 6.0, "aten::zero_": 2.5,
    "aten::_efficient_attention_forward": 9.0, "aten::_flash_attention_forward": 10.0,
}  # fmt: skip
POINTWISE_US = 4.2
"""What a pointwise operator takes on the host beside its launch, under the profiler."""


def to_device(
    stream: Stream, accelerator: Accelerator, precision: Precision, dtype: str, *, planes: bool
) -> None:
    """Turn a CPU's operators into a GPU's, in place, with the work they enqueue.

    Parameters
    ----------
    dtype : what fp32 tensors become: "float" as they are, "c10::BFloat16" or "c10::Half".
    planes : four-dimensional tensors keep the channels outside the pixels, as recorded.
    """
    build = _Build(accelerator, precision, dtype, planes)
    for step in stream.steps:
        step.ops = [build.convert(op, step_counts=False) for op in step.ops]


@dataclass(frozen=True)
class _Build:
    accelerator: Accelerator
    precision: Precision
    dtype: str
    planes: bool

    @property
    def flash(self) -> bool:
        """Whether attention has its half-precision kernel here."""
        return self.dtype != "float" and self.accelerator.capability >= (8, 0)

    def convert(self, op: Op, *, step_counts: bool) -> Op:
        """Return an operator as a GPU build has it.

        ``step_counts`` : scalars are the optimizer's counts, which stay on the host.
        """
        if op.name.startswith(LOADER) or op.kept:
            for one in op.walk():
                one.kept = True
            return op
        step_counts = step_counts or op.name.startswith(_OPTIMIZER)
        op.args = self._typed(op.args)
        op.name = self._renamed(op.name)
        if op.name == "aten::_convolution":
            return self._convolution(op)
        if "flash_attention_for_cpu" in op.name:
            return self._attention(op)
        if op.name.startswith(("aten::native_batch_norm", "aten::_batch_norm_impl")):
            self._batch_norm(op)
        if op.name == "aten::_local_scalar_dense" and not step_counts:
            op.reads = 4
        if step_counts and _is_scalar(op):
            op.children = []
            return op
        if op.name in _SHAPES:
            return self._sized_by_data(op)
        if self._computes(op):
            op.work = kernels_of(op.name, op.args, self.accelerator, self.precision)
            op.host_us = _HOST_US.get(op.name, POINTWISE_US)
            if "_foreach_" in op.name or "_fused_" in op.name:
                dims = op.args.get("Input Dims") or [[]]
                op.host_us += 0.15 * sum(len(one) for one in dims)
            allocates = op.name in _ALLOCATES
            op.children = [
                child for child in op.children if allocates and child.name.startswith("aten::empty")
            ]
            return op
        op.children = [self.convert(child, step_counts=step_counts) for child in op.children]
        return op

    def _computes(self, op: Op) -> bool:
        """Whether an operator enqueues work itself."""
        if not op.name.startswith("aten::") or op.name in _FREE or op.name in _DELEGATES:
            return False
        return op.name not in _EITHER or not any(self._computes(one) for one in op.children)

    def _typed(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return arguments in this precision and memory layout."""
        kinds = args.get("Input type")
        if not kinds:
            return args
        changed = dict(args)
        if self.dtype != "float":
            changed["Input type"] = [self.dtype if kind == "float" else kind for kind in kinds]
        if "Input Strides" in args:
            changed["Input Strides"] = [
                self._strides(size, step)
                for size, step in zip(args["Input Dims"], args["Input Strides"], strict=True)
            ]
        return changed

    def _strides(self, size: Any, step: Any) -> Any:
        if self.planes or len(size) != 4 or len(step) != 4 or not isinstance(size[0], int):
            return step
        _, c, h, w = size
        return [c * h * w, 1, w * c, c] if step == [c * h * w, h * w, w, 1] else step

    def _renamed(self, name: str) -> str:
        head, _, node = name.rpartition(": ")
        if node in _NODES:
            found = _NODES[node].format(fused="Flash" if self.flash else "Efficient")
            return f"{head}: {found}" if head else found
        return name

    def _batch_norm(self, op: Op) -> None:
        texts = op.args.get("Concrete Inputs") or []
        if op.name == "aten::native_batch_norm" and len(texts) > 5 and texts[5] == "True":
            op.name = "aten::cudnn_batch_norm"
        elif (
            op.name == "aten::native_batch_norm_backward" and len(texts) > 7 and texts[7] == "True"
        ):
            op.name = "aten::cudnn_batch_norm_backward"

    def _convolution(self, op: Op) -> Op:
        """Return ``_convolution`` with cuDNN's convolution inside, and the bias after it."""
        inner = self._child(op, "aten::cudnn_convolution", (0, 1, 2, 3, 4, 5, 6, 7, 8))
        inner.work = kernels_of(inner.name, inner.args, self.accelerator, self.precision)
        # cuDNN's operator has no bias and another order
        inner.args = _picked(op.args, (0, 1, 4, 3, 5, 8))
        inner.host_us = _HOST_US[inner.name]
        op.children = [inner]
        bias = (op.args.get("Input Dims") or [[], [], []])[2]
        if bias and inner.work:
            view = self._child(op, "aten::reshape", (2,))
            view.children = [self._child(op, "aten::view", (2,))]
            pixels = int(inner.work[-1].n_bytes)
            add = self._child(op, "aten::add_", (0, 2))
            add.args["Input Dims"] = [_output_of(op.args), [1, bias[0], 1, 1]]
            add.args["Input Strides"] = [[], [1, 1, 1, 1]]
            add.work = [
                one
                for one in kernels_of("aten::add_", add.args, self.accelerator, self.precision)
                if pixels
            ]
            add.host_us = POINTWISE_US
            op.children += [view, add]
        return op

    def _attention(self, op: Op) -> Op:
        """Return the fused attention that a GPU has for these inputs."""
        back = "backward" in op.name
        fused = "flash" if self.flash else "efficient"
        op.name = f"aten::_scaled_dot_product_{fused}_attention{'_backward' if back else ''}"
        way = "backward" if back else "forward"
        inner = self._child(op, f"aten::_{fused}_attention_{way}", range(4))
        inner.work = kernels_of(inner.name, inner.args, self.accelerator, self.precision)
        inner.args = dict(inner.args)
        inner.args["Input Dims"] = [
            [one[0], one[2], one[1], one[3]] if len(one) == 4 else one
            for one in inner.args["Input Dims"]
        ]
        inner.host_us = 10.0
        moved = [self._child(op, "aten::transpose", (at,)) for at in range(1 if back else 0, 3)]
        op.children = [*moved, inner]
        return op

    def _sized_by_data(self, op: Op) -> Op:
        """Return an operator that counts on the device and waits for the count."""
        op.children = []
        op.work = [
            Work("kernel", f"void at_cuda_detail::cub::{name}", "select", 4096, 0.0)
            for name in (
                "DeviceReduceSingleTileKernel<at_cuda_detail::cub::DeviceReducePolicy<int, int, "
                "at_cuda_detail::cub::Sum>::Policy600, int*, int*, int>(int*, int*, int)",
            )
        ]
        op.reads = 8
        op.host_us = 12.0
        return op

    @staticmethod
    def _child(op: Op, name: str, picked: Iterable[int]) -> Op:
        """Return a new operator inside another, with some of its arguments."""
        return Op(name, op.begin_ns, op.begin_ns, _picked(op.args, picked), put_in=True,
                  host_us=1.5, fault=op.fault)  # fmt: skip


_PER_INPUT = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")


def _picked(args: dict[str, Any], picked: Iterable[int]) -> dict[str, Any]:
    """Return arguments with some of the inputs only."""
    picked = [at for at in picked if at < len(args.get("Input Dims") or [])]
    return {
        key: [value[at] for at in picked] if key in _PER_INPUT else value
        for key, value in args.items()
        if key not in ("Sequence number", "Fwd thread id")
    }


def _output_of(args: dict[str, Any]) -> list[int]:
    """Return the shape of a convolution's result."""
    x, weight = args["Input Dims"][0], args["Input Dims"][1]
    texts = args["Concrete Inputs"]
    stride, padding, dilation = (json.loads(texts[at]) for at in (3, 4, 5))
    if texts[6] == "True":
        return [x[0], weight[1], *(size * stride[0] for size in x[2:])]
    sides = [
        (size + 2 * padding[min(at, len(padding) - 1)]
         - dilation[min(at, len(dilation) - 1)] * (weight[2 + at] - 1) - 1)
        // stride[min(at, len(stride) - 1)] + 1
        for at, size in enumerate(x[2:])
    ]  # fmt: skip
    return [x[0], weight[0], *sides]


def _is_scalar(op: Op) -> bool:
    """Whether all tensors an operator works on have one element."""
    dims = op.args.get("Input Dims")
    if not dims or not op.name.startswith("aten::") or "_fused" in op.name:
        return False
    sizes = [one for one in dims if isinstance(one, list)]
    if any(one and isinstance(one[0], list) for one in sizes):
        return False
    return all(math.prod(one) <= 1 for one in sizes)
