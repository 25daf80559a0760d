"""A recorded CPU step as a build for the GPU runs it: other operators, kernels and host times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchtriage.core.names import word_list
from torchtriage_benchmark.synthetic.accelerators import Accelerator
from torchtriage_benchmark.synthetic.kernels import kernels_of
from torchtriage_benchmark.synthetic.stream import LOADER, OPTIMIZER, Op, Stream
from torchtriage_benchmark.synthetic.work import Precision, Work

_FREE = frozenset(
    f"aten::{name}"
    for name in word_list("""
        view t transpose permute expand slice select unsqueeze squeeze as_strided as_strided_ alias detach detach_
        empty empty_strided empty_like new_empty new_empty_strided resize_ resize_as_ result_type broadcast_tensors
        unbind split split_with_sizes chunk unflatten flatten lift_fresh narrow _unsafe_view _reshape_alias numpy_T mT
        mH movedim set_ _nnpack_available is_floating_point view_as expand_as diagonal resolve_conj resolve_neg
        requires_grad_ is_nonzero item real unfold _has_compatible_shallow_copy_type stride size sym_size is_same_size
        pin_memory lift adjoint swapaxes view_as_real view_as_complex _version can_cast result_type
        infer_unsqueeze_size _local_scalar_dense
    """)
)
_DELEGATES = frozenset(
    f"aten::{name}"
    for name in word_list("""
        linear conv2d conv1d conv_transpose2d convolution batch_norm _batch_norm_impl_index layer_norm group_norm
        dropout softmax log_softmax cross_entropy_loss nll_loss_nd nll_loss nll_loss2d matmul reshape contiguous clone
        to _to_copy zeros ones zeros_like ones_like full full_like new_zeros new_ones new_full
        scaled_dot_product_attention isnan _is_any_true adaptive_avg_pool2d max_pool2d einsum pad constant_pad_nd
        stack type_as scalar_tensor hstack vstack concat feature_dropout meshgrid is_nonzero item tile instance_norm
        atleast_1d nonzero_numpy embedding_backward _weight_norm
    """)
)
"""They only call others."""
_EITHER = frozenset(
    f"aten::{name}"
    for name in word_list("""
        relu relu_ clamp where masked_fill square std embedding roll repeat glu silu_ index_put_ pixel_shuffle
        linalg_norm norm select_backward slice_backward var_mean outer index_fill bilinear
        value_selecting_reduction_backward max_pool2d_with_indices _index_put_impl_
    """)
)
"""They call others in some versions, and compute in some."""
_ALLOCATES = frozenset(
    {
        "aten::native_layer_norm",
        "aten::native_group_norm",
        "aten::native_batch_norm",
        "aten::native_layer_norm_backward",
        "aten::cudnn_batch_norm",
        "aten::cudnn_batch_norm_backward",
    }
)
_SHAPES = frozenset({"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount"})
_NODES = {
    "NativeBatchNormBackward0": "CudnnBatchNormBackward0",
    "ScaledDotProductFlashAttentionForCpuBackward0": "ScaledDotProduct{fused}AttentionBackward0",
}
_HOST_US = {
    "aten::cudnn_convolution": 14.0,
    "aten::convolution_backward": 24.0,
    "aten::addmm": 7.0,
    "aten::mm": 6.0,
    "aten::bmm": 6.5,
    "aten::native_layer_norm": 6.0,
    "aten::copy_": 3.2,
    "aten::native_group_norm": 7.5,
    "aten::cudnn_batch_norm": 10.0,
    "aten::fill_": 2.8,
    "aten::cudnn_batch_norm_backward": 12.0,
    "aten::cat": 6.0,
    "aten::zero_": 2.5,
    "aten::_efficient_attention_forward": 9.0,
    "aten::_flash_attention_forward": 10.0,
}
POINTWISE_US = 4.2
"""What a pointwise operator takes on the host beside its launch, under the profiler."""


def to_device(stream: Stream, accelerator: Accelerator, precision: Precision, dtype: str, *, planes: bool) -> None:
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
            for node in op.walk():
                node.kept = True
            return op
        step_counts = step_counts or op.name.startswith(OPTIMIZER)
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
                op.host_us += 0.15 * sum(len(dim) for dim in dims)
            allocates = op.name in _ALLOCATES
            op.children = [child for child in op.children if allocates and child.name.startswith("aten::empty")]
            return op
        op.children = [self.convert(child, step_counts=step_counts) for child in op.children]
        return op

    def _computes(self, op: Op) -> bool:
        """Whether an operator enqueues work itself."""
        if not op.name.startswith("aten::") or op.name in _FREE or op.name in _DELEGATES:
            return False
        return op.name not in _EITHER or not any(self._computes(child) for child in op.children)

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
                self._strides(size, step) for size, step in zip(args["Input Dims"], args["Input Strides"], strict=True)
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
        elif op.name == "aten::native_batch_norm_backward" and len(texts) > 7 and texts[7] == "True":
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
            add.work = [item for item in kernels_of("aten::add_", add.args, self.accelerator, self.precision) if pixels]
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
            [item[0], item[2], item[1], item[3]] if len(item) == 4 else item for item in inner.args["Input Dims"]
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
        return Op(name, op.begin_ns, op.begin_ns, _picked(op.args, picked), put_in=True, host_us=1.5, fault=op.fault)


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
        (
            size
            + 2 * padding[min(at, len(padding) - 1)]
            - dilation[min(at, len(dilation) - 1)] * (weight[2 + at] - 1)
            - 1
        )
        // stride[min(at, len(stride) - 1)]
        + 1
        for at, size in enumerate(x[2:])
    ]
    return [x[0], weight[0], *sides]


def _is_scalar(op: Op) -> bool:
    """Whether all tensors an operator works on have one element."""
    dims = op.args.get("Input Dims")
    if not dims or not op.name.startswith("aten::") or "_fused" in op.name:
        return False
    sizes = [dim for dim in dims if isinstance(dim, list)]
    if any(size and isinstance(size[0], list) for size in sizes):
        return False
    return all(math.prod(size) <= 1 for size in sizes)
