"""Matrix products, convolutions and attention: what they compute, from the shapes of their operators."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

BATCHED = ("aten::bmm", "aten::baddbmm")
GEMMS = ("aten::mm", "aten::addmm", *BATCHED, "aten::linear")

# where padding, stride and dilation stand among the inputs of each forward convolution
_CONVOLUTIONS = {
    "aten::convolution": (4, 3, 5),
    "aten::_convolution": (4, 3, 5),
    "aten::convolution_overrideable": (4, 3, 5),
    "aten::cudnn_convolution": (2, 3, 4),
    "aten::cudnn_convolution_relu": (4, 3, 5),
    "aten::cudnn_convolution_add_relu": (6, 5, 7),
    "aten::miopen_convolution": (3, 4, 5),
    "aten::miopen_convolution_relu": (4, 3, 5),
    "aten::miopen_convolution_add_relu": (6, 5, 7),
    "aten::miopen_depthwise_convolution": (3, 4, 5),
    "aten::_conv_depthwise2d": (5, 4, 6),
    "aten::conv_depthwise3d": (5, 4, 6),
    "aten::mkldnn_convolution": (3, 4, 5),
}
_TRANSPOSED = ("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose")
# transposed or not, by an input of theirs
_EITHER = ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
# where the gradient of the output and the weight stand, and how many products the op holds
_CONVOLUTION_GRADIENTS = {"aten::convolution_backward": (0, 2, 2), "aten::cudnn_convolution_backward_input": (1, 2, 1)}
# where the query stands and where is_causal, how many inputs there are at least, and the products with the head's size
# and with the value's: two forward, five backward
ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (0, 4, 5, 1, 1),
    "aten::_scaled_dot_product_efficient_attention": (0, 6, 8, 1, 1),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6, 8, 1, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 4, 5, 1, 1),
    "aten::_scaled_dot_product_flash_attention_backward": (1, 11, 12, 3, 2),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, 11, 12, 3, 2),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14, 15, 3, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (1, 7, 8, 3, 2),
}
NOT_FP32_KERNEL = r"(?i)tf32|s1688|s16816|s161616|s884|h884|half|fp16|bf16|bfloat"
TF32_KERNEL = r"(?i)tf32|_s1688gemm_(?!f16|bf16|fp16)"
# in lower case, as names of kernels are long: six times as fast as without regard to case
_FP32_KERNEL = re.compile(
    r"sgemm|scudnn|f32f32_f32f32|(dgrad|wgrad)\w*_engine<float|implicit_convolve_sgemm<float"
    # Tensile writes S for single precision, MI for the instruction of a matrix core
    r"|^cijk_a[a-z]+_b[a-z]+_s_?b_.*_mi\d|^igemm_\w+_gtcx\d*_\w+_fp32_"
)
_NOT_FP32_KERNEL = re.compile(NOT_FP32_KERNEL)
MAX_ELEMENTS = 1 << 40  # no tensor is larger; a shape that says so is damaged, and would not fit the arithmetic
_HALF = {"c10::Half", "c10::BFloat16"}


@lru_cache(maxsize=1 << 14)
def is_fp32_kernel(name: str) -> bool:
    """Return whether a product's kernel of this name computes in single precision, TF32 left out."""
    return _FP32_KERNEL.search(name.lower()) is not None and _NOT_FP32_KERNEL.search(name) is None


class Product(NamedTuple):
    """``batch`` products of an m x k by a k x n matrix (a convolution as its implicit GEMM)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def n_elements(self) -> int:
        """Elements of both inputs and the output: what has to pass through memory once."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, eq=False)
class Products:
    """What some operator rows compute; arrays have one element per row that was asked for.

    ``batch``, ``m``, ``n``, ``k`` : int64, 0 where the shapes were not recorded or make no sense.
    ``dtype`` : ``half``, ``float`` or empty (other, or not recorded).
    """

    batch: Ints
    m: Ints
    n: Ints
    k: Ints
    dtype: NDArray[np.str_]

    @property
    def known(self) -> NDArray[np.bool_]:
        """bool: rows whose product is known."""
        return self.batch > 0

    @property
    def flop(self) -> NDArray[np.float64]:
        """float64: floating-point operations, 0 where unknown."""
        return 2.0 * self.batch.astype(np.float64) * self.m * self.n * self.k

    @property
    def n_elements(self) -> NDArray[np.float64]:
        """float64: elements that pass through memory at least once, 0 where unknown."""
        m, n, k = (side.astype(np.float64) for side in (self.m, self.n, self.k))
        return self.batch * (m * k + k * n + m * n)

    @property
    def least_side(self) -> Ints:
        """int64: the smallest of m, n and k; small means bound by memory."""
        return np.minimum(np.minimum(self.m, self.n), self.k)


def products(trace: Trace, ops: NDArray[np.integer]) -> Products:
    """Return what each operator row computes; -1 stands for no operator.

    Each distinct pair of name and shapes is worked out once.
    """
    ops = np.asarray(ops, np.int64)
    code = trace.name[ops].astype(np.int64) * (len(trace.details) + 1) + trace.detail[ops] + 1
    code[(ops < 0) | (trace.kind[ops] != Kind.OP)] = -1
    distinct, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    table = np.zeros((len(distinct), 4), np.int64)
    dtype = np.full(len(distinct), "", dtype="<U5")
    for index, row in enumerate(ops[first].tolist()):
        if distinct[index] < 0:
            continue
        name = trace.name_of(row)
        if name not in GEMMS and "conv" not in name:
            continue
        types = trace.details_of("types", [row])[0]
        dtype[index] = element_type(types)
        found = product_of(name, trace.details_of("dims", [row])[0], trace.details_of("concrete", [row])[0])
        if found is not None:
            table[index] = found
    batch, m, n, k = table[inverse].T
    return Products(batch, m, n, k, dtype[inverse])


def product_of(name: str, dims: Any, concrete: Any = None) -> Product | None:
    """Return the product an operator computes, None when its inputs do not say.

    ``dims`` and ``concrete`` are ``Input Dims`` and ``Concrete Inputs`` as the profiler writes them: one entry per
    input, concrete values as text.
    """
    if not isinstance(dims, list):
        return None
    found = None
    if name in _TRANSPOSED or (name in _EITHER and _text(concrete, 6) == "True"):
        found = _transposed(_shape(dims, 0), _shape(dims, 1))
    elif name in _CONVOLUTIONS:
        found = _convolution(dims, concrete, _CONVOLUTIONS[name])
    elif name in _CONVOLUTION_GRADIENTS:
        found = _gradient(dims, concrete, _CONVOLUTION_GRADIENTS[name])
    elif name in GEMMS:
        first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0
        left, right = _shape(dims, first), _shape(dims, first + 1)
        if name == "aten::linear":
            found = _linear(left, right)
        elif len(left) == len(right) == (3 if name in BATCHED else 2) and left[-1] == right[-2]:
            batch = left[0] if name in BATCHED else 1
            found = Product(batch, left[-2], right[-1], left[-1])
    if found is None or min(found) <= 0 or max(found) > MAX_ELEMENTS:
        return None
    return found


def attention_flop(name: str, dims: Any, concrete: Any) -> int:
    """Return the floating-point operations of the products of fused attention, 0 where its inputs do not say.

    A causal mask halves them: the kernels skip what it hides. ``dims``, ``concrete`` : as of :func:`product_of`.
    """
    if name not in ATTENTION or not isinstance(dims, list) or not isinstance(concrete, list):
        return 0
    first, causal_at, least, n_head, n_value = ATTENTION[name]
    query, key, value = (_shape(dims, first + offset) for offset in range(3))
    if len(dims) < least or len(concrete) <= causal_at or concrete[causal_at] not in ("True", "False"):
        return 0
    if not len(query) == len(key) == len(value) == 4 or query[0] != key[0] or query[3] != key[3] or key[2] != value[2]:
        return 0
    batch, heads, n, head = query
    pairs = n * key[2]
    if concrete[causal_at] == "True":
        square = min(n, key[2])
        pairs = square * (square + 1) // 2 + (n - square) * key[2]
    flop = 2 * batch * heads * pairs * (n_head * head + n_value * value[3])
    return flop if flop <= MAX_ELEMENTS * MAX_ELEMENTS else 0


def _linear(left: Sequence[int], weight: Sequence[int]) -> Product | None:
    if len(left) < 1 or len(weight) != 2 or left[-1] != weight[1]:
        return None
    return Product(1, int(np.prod(left[:-1], dtype=np.int64)), weight[0], weight[1])


def _convolution(dims: list[Any], concrete: Any, at: tuple[int, int, int]) -> Product | None:
    image, weight = _shape(dims, 0), _shape(dims, 1)
    padding, stride, dilation = (_numbers(concrete, index) for index in at)
    n_space = len(image) - 2
    if n_space < 1 or len(weight) != len(image) or not padding or not stride or not dilation:
        return None
    size = 1
    for axis in range(n_space):
        pad, step, dilate = (values[axis % len(values)] for values in (padding, stride, dilation))
        reach = dilate * (weight[axis + 2] - 1) + 1
        size *= (image[axis + 2] + 2 * pad - reach) // max(step, 1) + 1
    taps = int(np.prod(weight[1:], dtype=np.int64))
    return Product(1, image[0] * size, weight[0], taps)


def _transposed(image: list[int], weight: list[int]) -> Product | None:
    """Every element of the image meets every tap of its channel's weights."""
    if len(image) < 3 or len(weight) != len(image) or image[1] != weight[0]:
        return None
    return Product(1, image[0] * math.prod(image[2:]), math.prod(weight[1:]), weight[0])


def _gradient(dims: list[Any], concrete: Any, at: tuple[int, int, int]) -> Product | None:
    gradient, weight = _shape(dims, at[0]), _shape(dims, at[1])
    if len(gradient) < 3 or len(weight) != len(gradient):
        return None
    wanted = gradients_wanted(concrete)
    n = at[2] if wanted is None else wanted
    if wanted is not None and concrete[7] == "True":
        forward = _transposed(_shape(dims, 1), weight)
        return None if forward is None else forward._replace(batch=n)
    rows = gradient[0] * int(np.prod(gradient[2:], dtype=np.int64))
    return Product(n, rows, weight[0], int(np.prod(weight[1:], dtype=np.int64)))


def gradients_wanted(concrete: Any) -> int | None:
    """Return how many products ``aten::convolution_backward`` makes, None where its inputs do not say.

    The first layer needs no gradient of its input.
    """
    if not isinstance(concrete, list) or len(concrete) <= 10 or concrete[7] not in ("True", "False"):
        return None
    mask = re.fullmatch(r"\[(True|False), (True|False), (?:True|False)\]", str(concrete[10]))
    return None if mask is None else [mask[1], mask[2]].count("True")


def is_shape(value: Any) -> TypeGuard[list[int]]:
    """Return whether a recorded value is the shape of a tensor that can exist."""
    if not isinstance(value, list):
        return False
    for side in value:  # a generator takes twice as long, and there are ten thousands of shapes
        if not isinstance(side, int) or not 0 <= side <= MAX_ELEMENTS:
            return False
    return math.prod(value) <= MAX_ELEMENTS


def _shape(dims: list[Any], index: int) -> list[int]:
    value = dims[index] if index < len(dims) else None
    return value if is_shape(value) else []


def _text(concrete: Any, index: int) -> Any:
    return concrete[index] if isinstance(concrete, list) and index < len(concrete) else ""


def _numbers(concrete: Any, index: int) -> list[int]:
    """Return a list of integers written as text (``"[2, 2]"``), empty when it is none."""
    try:
        value = json.loads(_text(concrete, index))
    except (TypeError, ValueError):
        return []
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def element_type(types: Any) -> str:
    """Return what an operator computes in, by its ``Input type``: ``half``, ``float``, or empty for others."""
    if not isinstance(types, list):
        return ""
    if _HALF.intersection(type_ for type_ in types if isinstance(type_, str)):
        return "half"
    return "float" if "float" in types else ""
