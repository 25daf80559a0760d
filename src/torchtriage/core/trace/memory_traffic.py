"""The bytes that an operator moves at least: inputs read once, outputs written once, from their recorded shapes."""

from __future__ import annotations

import math
import re

from torchtriage.core.trace.matrix_products import ATTENTION, GEMMS, product_of
from torchtriage.core.trace.op_inputs import Inputs

_SIZES = {
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    "c10::complex<double>": 16,
}
_FLOATING = frozenset({"double", "float", "c10::Half", "c10::BFloat16"})
# how dtypes are numbered in Concrete Inputs (c10/core/ScalarType.h)
_DTYPE_SIZES = {"5": 2, "6": 4, "7": 8, "15": 2}

_POINTWISE_NAMES = """
abs add addcdiv addcmul atan ceil clamp clamp_max clamp_min cos div elu elu_backward erf exp expm1 floor gelu
gelu_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward leaky_relu
leaky_relu_backward lerp log log1p log2 masked_fill maximum minimum mish mish_backward mul native_dropout_backward neg
pow reciprocal relu rsqrt rsub sigmoid sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt sub
tanh tanh_backward threshold threshold_backward where
"""
_POINTWISE = frozenset(_POINTWISE_NAMES.split())
_TO_BOOL = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not")
)
_WRITES = frozenset(("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"))
_READS = frozenset(
    ("sum", "mean", "amax", "amin", "argmax", "argmin", "norm", "linalg_vector_norm", "prod", "var", "std", "var_mean")
)
# what is read, and which input the result is like
_LIKE = {
    "native_layer_norm": ((0, 2, 3), 0),
    "native_group_norm": ((0, 1, 2), 0),
    "native_group_norm_backward": ((0, 1, 4), 1),
    "_fused_rms_norm": ((0, 2), 0),
    "native_batch_norm": ((0,), 0),
    "cudnn_batch_norm": ((0,), 0),
    "miopen_batch_norm": ((0,), 0),
    "native_batch_norm_backward": ((0, 1), 1),
    "cudnn_batch_norm_backward": ((0, 1), 0),
    "miopen_batch_norm_backward": ((0, 1), 0),
    "cumsum": ((0,), 0),
    "max_pool2d_with_indices_backward": ((0, 7), 1),
}
# where the index stands among the inputs
_LOOKUPS = {"embedding": 1, "index_select": 2}
# where the stride stands among the inputs
_CONVOLUTION_STRIDES = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), 3),
    **{"aten::cudnn_convolution": 3, "aten::miopen_convolution": 4, "aten::mkldnn_convolution": 4},
}


def least_bytes(name: str, inputs: Inputs) -> int:
    """Return the bytes an operator moves at least, 0 where its name, a shape or a type is not known.

    A broadcast input counts once (stride 0). What a cache already holds costs less than this: a rate above the
    memory's says so.
    """
    if name in ATTENTION:
        return _attention(inputs, ATTENTION[name][0])
    if name in GEMMS:
        return _product(name, inputs)
    if name in _CONVOLUTION_STRIDES:
        return _convolution(name, inputs)
    if name == "aten::convolution_backward":
        return _gradients(inputs)
    return _others(name.removeprefix("aten::"), inputs) if name.startswith("aten::") else 0


def _others(name: str, inputs: Inputs) -> int:
    """Return the bytes of an operator that multiplies no matrices."""
    if name in _WRITES:
        return _whole(inputs, 0)
    if name == "copy_":
        return _all(_whole(inputs, 0), _read(inputs, 1))
    if name in _READS:
        return _read(inputs, 0)
    if name in _LIKE:
        reads, like = _LIKE[name]
        # weights and biases may be missing
        return _all(_whole(inputs, like), *(_read(inputs, index) for index in reads if inputs.shape(index)))
    if name == "native_layer_norm_backward":
        wanted = inputs.value(7).startswith("[True")
        return _all(_read(inputs, 0), _read(inputs, 1), *([_whole(inputs, 1)] if wanted else []))
    if name in ("_softmax", "_log_softmax"):
        size = 4 if inputs.value(2) == "True" else _size(inputs, 0)
        return _all(_read(inputs, 0), inputs.numel(0) * size)
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        size = _DTYPE_SIZES.get(inputs.value(3), 0)
        return _all(_read(inputs, 0), _read(inputs, 1), inputs.numel(1) * size)
    if name == "native_dropout":
        return _all(_read(inputs, 0), _whole(inputs, 0), inputs.numel(0))
    if name in _LOOKUPS:
        return _looked_up(inputs, _LOOKUPS[name])
    return _pointwise(name, inputs)


def _looked_up(inputs: Inputs, index: int) -> int:
    """Return the bytes of rows taken by an index: what is asked for twice need not be read twice, so only written."""
    source, axis = inputs.shape(0), 0 if index == 1 else inputs.axis(1, len(inputs.shape(0)))
    if not source or axis < 0:
        return 0
    width = math.prod(source[:axis] + source[axis + 1 :])
    return _all(_read(inputs, index), inputs.numel(index) * width * _size(inputs, 0))


def _pointwise(name: str, inputs: Inputs) -> int:
    bare = name.removesuffix("_")
    if bare not in _POINTWISE and bare not in _TO_BOOL:
        return 0
    shapes = {index: shape for index in range(len(inputs.dims)) if (shape := inputs.shape(index))}
    sizes = [_size(inputs, index) for index in shapes]
    if not all(sizes) or not shapes:
        return 0
    read = sum(_n_read(inputs, index, shape) * size for (index, shape), size in zip(shapes.items(), sizes, strict=True))
    if name.endswith("_"):
        return read + _whole(inputs, 0)
    size = 1
    if bare in _POINTWISE:
        floating = [size for index, size in zip(shapes, sizes, strict=True) if inputs.type(index) in _FLOATING]
        if not floating:
            return 0  # whole numbers may become floating ones
        size = max(floating)
    shape = _broadcast(list(shapes.values()))
    return read + math.prod(shape) * size if shape else 0


def _product(name: str, inputs: Inputs) -> int:
    product = product_of(name, inputs.dims, inputs.concrete)
    first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0
    size = _size(inputs, first)
    if product is None or not size:
        return 0
    out = product.batch * product.m * product.n * size
    return _all(_read(inputs, first), _read(inputs, first + 1), out)


def _convolution(name: str, inputs: Inputs) -> int:
    product = product_of(name, inputs.dims, inputs.concrete)
    # what a transposed one returns has another size than its products
    if product is None or inputs.value(6) == "True":
        return 0
    out = product.m * product.n * _size(inputs, 0)
    return _all(_image(inputs, 0, 1, _CONVOLUTION_STRIDES[name]), _read(inputs, 1), out)


def _gradients(inputs: Inputs) -> int:
    """Return the bytes of ``convolution_backward(grad, input, weight, bias sizes, stride, ..., mask)``."""
    mask = re.fullmatch(r"\[(True|False), (True|False), (?:True|False)\]", inputs.value(10))
    if mask is None or inputs.value(7) != "False" or "True" not in mask.groups():
        return 0
    parts = [_read(inputs, 0)]
    if mask[1] == "True":
        parts += [_read(inputs, 2), _whole(inputs, 1)]
    if mask[2] == "True":
        parts += [_image(inputs, 1, 2, 4), _whole(inputs, 2)]
    return _all(*parts)


def _image(inputs: Inputs, image: int, weight: int, stride: int) -> int:
    """Return the bytes that are read of an image: a kernel smaller than its stride skips some."""
    steps = [int(text) for text in re.findall(r"\d{1,6}", inputs.value(stride))]
    taps = inputs.shape(weight)[2:]
    part = 1.0
    for axis, tap in enumerate(taps):
        part *= min(1.0, tap / max(steps[axis % len(steps)], 1)) if steps else 0.0
    return int(_read(inputs, image) * part)


def _attention(inputs: Inputs, first: int) -> int:
    query, key, value = (_read(inputs, first + offset) for offset in range(3))
    shape, width = inputs.shape(first), inputs.shape(first + 2)[-1:]
    if not (query and key and value and len(shape) == 4 and width):
        return 0
    out = math.prod(shape[:3]) * width[0] * _size(inputs, first)
    # backward: the output and its gradient, and a gradient of each input
    return 2 * (query + key + value + out) if first else query + key + value + out


def _all(*parts: int) -> int:
    """Return the sum, 0 where a part is not known."""
    return sum(parts) if all(parts) else 0


def _size(inputs: Inputs, index: int) -> int:
    return _SIZES.get(inputs.type(index), 0)


def _whole(inputs: Inputs, index: int) -> int:
    return inputs.numel(index) * _size(inputs, index) if inputs.shape(index) else 0


def _read(inputs: Inputs, index: int) -> int:
    """Return the bytes of one input, an axis of stride 0 once."""
    shape = inputs.shape(index)
    return _n_read(inputs, index, shape) * _size(inputs, index) if shape else 0


def _n_read(inputs: Inputs, index: int, shape: list[int]) -> int:
    """Return the elements of one input of this shape, an axis of stride 0 once."""
    strides = inputs.strides[index] if index < len(inputs.strides) else None
    if isinstance(strides, list) and len(strides) == len(shape):
        shape = [side for side, stride in zip(shape, strides, strict=True) if stride != 0]
    return math.prod(shape)


def _broadcast(shapes: list[list[int]]) -> list[int]:
    """Return the shape that some shapes broadcast to, empty where they do not fit each other."""
    if shapes.count(shapes[0]) == len(shapes):  # as most are
        return shapes[0]
    out: list[int] = []
    for axis in range(1, max(map(len, shapes)) + 1):
        sides = {shape[-axis] for shape in shapes if axis <= len(shape)} - {1}
        if len(sides) > 1:
            return []
        out.append(sides.pop() if sides else 1)
    return out[::-1]
