"""What an operator enqueues on a device: kernel names as PyTorch's, operations and bytes by shape.

Only operators that compute are asked for; which they are, ``gpu_build.py`` knows. An operator that is
not listed is taken for a pointwise one, which most are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtriage.core.names import word_list
from torchtriage_benchmark.synthetic.accelerators import Accelerator
from torchtriage_benchmark.synthetic.matrix_kernels import (
    attention_kernels,
    conv_backward_kernels,
    conv_kernels,
    product_kernels,
)
from torchtriage_benchmark.synthetic.normalisation_kernels import (
    batch_norm_kernels,
    group_norm_kernels,
    layer_norm_backward_kernels,
    layer_norm_kernels,
    sampled_kernels,
    softmax_kernels,
)
from torchtriage_benchmark.synthetic.pointwise_kernels import (
    cat_kernels,
    copy_kernels,
    embedding_backward_kernels,
    fill_kernels,
    gathered_kernels,
    loss_kernels,
    make_kernels,
    multi_tensor_kernels,
    nll_kernels,
    pointwise_kernels,
    random_kernels,
    reduce_kernels,
)
from torchtriage_benchmark.synthetic.work import Asked, Precision, Work, tensors_of

_MAKERS = frozenset({"aten::arange", "aten::linspace", "aten::randperm", "aten::tril_indices"})
_RULES: dict[str, Callable[[Asked], list[Work]]] = {
    **dict.fromkeys(_MAKERS, make_kernels),
    **dict.fromkeys(("aten::fill", "aten::zero"), fill_kernels),
    "aten::copy": copy_kernels,
    **dict.fromkeys(
        word_list("""
            aten::sum aten::mean aten::any aten::all aten::max aten::min aten::amax aten::argmax aten::var
            aten::linalg_vector_norm aten::norm aten::cumsum
        """),
        reduce_kernels,
    ),
    **dict.fromkeys(
        (
            f"aten::{name}{way}"
            for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
            for way in ("", "_backward")
        ),
        loss_kernels,
    ),
    **dict.fromkeys(
        (f"aten::nll_loss{size}_{way}" for size in ("", "2d") for way in ("forward", "backward")), nll_kernels
    ),
    **dict.fromkeys(
        ("aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data", "aten::_log_softmax_backward_data"),
        softmax_kernels,
    ),
    "aten::native_layer_norm": layer_norm_kernels,
    "aten::native_layer_norm_backward": layer_norm_backward_kernels,
    **dict.fromkeys(("aten::native_group_norm", "aten::native_group_norm_backward"), group_norm_kernels),
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::native_batch_norm_backward",
            "aten::cudnn_batch_norm",
            "aten::cudnn_batch_norm_backward",
        ),
        batch_norm_kernels,
    ),
    **dict.fromkeys(
        (
            f"aten::{name}{way}"
            for name in (
                "upsample_nearest2d",
                "upsample_bilinear2d",
                "upsample_bicubic2d",
                "max_pool2d_with_indices",
                "avg_pool2d",
                "_adaptive_avg_pool2d",
                "upsample_nearest1d",
            )
            for way in ("", "_backward")
        ),
        sampled_kernels,
    ),
    **dict.fromkeys(("aten::cat", "aten::stack"), cat_kernels),
    **dict.fromkeys(
        ("aten::embedding", "aten::index_select", "aten::index", "aten::gather", "aten::take_along_dim"),
        gathered_kernels,
    ),
    "aten::embedding_dense_backward": embedding_backward_kernels,
    **dict.fromkeys(
        ("aten::native_dropout", "aten::bernoulli", "aten::normal", "aten::random", "aten::uniform"), random_kernels
    ),
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"), product_kernels),
    "aten::cudnn_convolution": conv_kernels,
    "aten::convolution_backward": conv_backward_kernels,
    **dict.fromkeys(
        (
            f"aten::{name}"
            for name in (
                "_flash_attention_forward",
                "_flash_attention_backward",
                "_efficient_attention_forward",
                "_efficient_attention_backward",
            )
        ),
        attention_kernels,
    ),
}
for _name in word_list("""
    _fused_adamw_ _fused_adam_ _fused_sgd_ _foreach_add_ _foreach_zero_ _foreach_mul_ _foreach_lerp_ _foreach_addcmul_
    _foreach_addcdiv_ _foreach_sqrt _foreach_div_ _foreach_norm _foreach_mul _foreach_add _foreach_copy_
"""):
    _RULES[f"aten::{_name}"] = multi_tensor_kernels


def kernels_of(name: str, args: dict[str, Any], accelerator: Accelerator, precision: Precision) -> list[Work]:
    """Return the work an operator enqueues, none for one on empty tensors."""
    inputs = tensors_of(args)
    flat = [item for each in inputs if each for item in (each if isinstance(each, list) else [each])]
    if not any(item.numel for item in flat) and name not in _MAKERS:
        return []
    asked = Asked(name, args, inputs, flat, accelerator, precision)
    return (_RULES.get(name) or _RULES.get(name.rstrip("_")) or pointwise_kernels)(asked)
