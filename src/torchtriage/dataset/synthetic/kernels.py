"""What an operator enqueues on a device: kernel names as PyTorch's, operations and bytes by shape.

Only operators that compute are asked for; which they are, ``stream.py`` knows. An operator that is
not listed is taken for a pointwise one, which most are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torchtriage.dataset.synthetic.accelerators import Accelerator

__all__ = ["Precision", "Tensor", "Work", "kernels_of", "memcpy", "tensors_of"]

Dims = tuple[int, ...]

_ITEM = {
    "double": 8, "long": 8, "long int": 8, "c10::complex<float>": 8, "float": 4, "int": 4,
    "c10::BFloat16": 2, "c10::Half": 2, "short": 2, "bool": 1, "unsigned char": 1,
}  # fmt: skip
_HALF = ("c10::BFloat16", "c10::Half")
_L2_BYTES = 24 << 20


class Tensor(NamedTuple):
    """One tensor among an operator's inputs."""

    dims: Dims
    dtype: str
    strides: Dims

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def n_bytes(self) -> int:
        """How much memory they take."""
        return self.numel * _ITEM.get(self.dtype, 4)

    @property
    def dense(self) -> bool:
        """Whether its elements follow each other."""
        wanted = 1
        for size, stride in sorted(
            zip(self.dims, self.strides, strict=False), key=lambda one: (one[1], one[0])
        ):
            if size != 1 and stride != wanted:
                return False
            wanted *= size
        return True


@dataclass(frozen=True)
class Precision:
    """How products are computed. ``rate`` : for fp32 inputs, "float" or "tf32".

    ``converts`` : convolutions on tensor cores turn planes into channels and back.
    """

    rate: str
    converts: bool = False


@dataclass(frozen=True)
class Work:
    """One piece of device work. ``kind`` : "kernel", "gpu_memcpy" or "gpu_memset".

    ``group`` : kernels of one group reach about the same share of the peaks. ``rate`` : the peak
    that ``flop`` counts against.
    """

    kind: str
    name: str
    group: str
    n_bytes: int
    flop: float = 0.0
    rate: str = "float"
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared: int = 0
    slowness: float = 1.0
    """How much longer than a well-fitting kernel."""
    call: str = "cudaLaunchKernel"

    @property
    def n_blocks(self) -> int:
        """Blocks in the grid."""
        return math.prod(self.grid)


def tensors_of(args: dict[str, Any]) -> list[Tensor | list[Tensor] | None]:
    """Return an operator's inputs in order: a tensor, a list of them, or None for what is none."""
    dims, types = args.get("Input Dims") or [], args.get("Input type") or []
    strides = args.get("Input Strides") or [[]] * len(dims)
    found: list[Tensor | list[Tensor] | None] = []
    for size, kind, step in zip(dims, types, strides, strict=False):
        if kind == "TensorList":
            steps = step if len(step) == len(size) else [[]] * len(size)
            found.append([
                Tensor(tuple(one), "float", tuple(one_step))
                for one, one_step in zip(size, steps, strict=True)
            ])  # fmt: skip
        elif kind in _ITEM:
            found.append(Tensor(tuple(size), kind, tuple(step)))
        else:
            found.append(None)
    return found


def memcpy(kind: str, n_bytes: int) -> Work:
    """Return a copy, such as ``HtoD (Pinned -> Device)``."""
    return Work("gpu_memcpy", f"Memcpy {kind}", kind.split()[0], n_bytes, call="cudaMemcpyAsync")


def kernels_of(
    name: str, args: dict[str, Any], accelerator: Accelerator, precision: Precision
) -> list[Work]:
    """Return the work an operator enqueues, none for one on empty tensors."""
    inputs = tensors_of(args)
    flat = [one for each in inputs if each for one in (each if isinstance(each, list) else [each])]
    if not any(one.numel for one in flat) and name not in _MAKERS:
        return []
    asked = _Asked(name, args, inputs, flat, accelerator, precision)
    return (_RULES.get(name) or _RULES.get(name.rstrip("_")) or _pointwise)(asked)


@dataclass(frozen=True)
class _Asked:
    """An operator, what it reads, and where it runs."""

    name: str
    args: dict[str, Any]
    inputs: list[Tensor | list[Tensor] | None]
    flat: list[Tensor]
    accelerator: Accelerator
    precision: Precision

    @property
    def base(self) -> str:
        """The name without namespace and trailing underscore."""
        return self.name.rpartition("::")[2].strip("_")

    def tensor(self, at: int) -> Tensor:
        """Return one input that has to be a tensor."""
        one = self.inputs[at]
        assert isinstance(one, Tensor), (self.name, at)
        return one

    def has(self, at: int) -> bool:
        """Whether an input is a tensor with elements."""
        one = self.inputs[at] if at < len(self.inputs) else None
        return isinstance(one, Tensor) and len(one.dims) > 0

    def numbers(self, at: int) -> list[int]:
        """Return a recorded list of numbers."""
        text = self.concrete(at).strip("[]")
        return [int(one) for one in text.split(",") if one.strip().lstrip("-").isdigit()]

    def flags(self, at: int) -> list[bool]:
        """Return a recorded list of truths."""
        return [one.strip() == "True" for one in self.concrete(at).strip("[]").split(",")]

    def concrete(self, at: int) -> str:
        """Return a recorded scalar as text."""
        texts = self.args.get("Concrete Inputs") or []
        return str(texts[at]) if at < len(texts) else ""

    def rate(self, dtype: str) -> str:
        """Return the peak that products of this type count against."""
        return "half" if dtype in _HALF else self.precision.rate if dtype == "float" else "float"


# -- pointwise work and copies -----------------------------------------------------------------

_FUNCTORS = {
    "add": "at::native::CUDAFunctor_add<T>",
    "sub": "at::native::CUDAFunctor_add<T>",
    "rsub": "at::native::CUDAFunctor_add<T>",
    "mul": "at::native::BinaryFunctor<T, T, T, at::native::binary_internal::MulFunctor<T> >",
    "div": "at::native::BinaryFunctor<T, T, T, at::native::binary_internal::DivFunctor<T> >",
    "fill": "at::native::FillFunctor<T>",
    "zero": "at::native::FillFunctor<T>",
    "ones_like": "at::native::FillFunctor<T>",
    "relu": "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, "
            "c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}",
    "clamp_min": "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, "
                 "c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}",
    "gelu": "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"
            "::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(T)#1}",
    "threshold_backward": "at::native::BinaryFunctor<T, T, T, at::native::(anonymous namespace)::"
                          "threshold_kernel_impl<T>(at::TensorIteratorBase&, T, T)"
                          "::{lambda(T, T)#1}>",
    "pow": "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<T, T>("
           "at::TensorIteratorBase&, T)::{lambda(T)#2}",
    "copy": "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::"
            "operator()() const::{lambda()#7}::operator()() const::{lambda(T)#1}",
    "eq": "at::native::(anonymous namespace)::CompareEqFunctor<T>",
    "ne": "at::native::(anonymous namespace)::CompareEqFunctor<T>",
    "gt": "at::native::(anonymous namespace)::CompareFunctor<T>",
    "lt": "at::native::(anonymous namespace)::CompareFunctor<T>",
    "ge": "at::native::(anonymous namespace)::CompareFunctor<T>",
    "le": "at::native::(anonymous namespace)::CompareFunctor<T>",
}  # fmt: skip


def _functor(base: str, dtype: str) -> str:
    kind = dtype.removesuffix(" int")
    known = _FUNCTORS.get(base)
    if known:
        return known.replace("<T", f"<{kind}").replace(" T", f" {kind}").replace("(T", f"({kind}")
    return (
        f"at::native::{base}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#2}}::operator()() "
        f"const::{{lambda()#2}}::operator()() const::{{lambda({kind})#1}}"
    )


def _elementwise(
    base: str, dtype: str, numel: int, n_arrays: int, n_bytes: int, dense: bool
) -> Work:
    """Return a kernel over ``numel`` elements of some tensors."""
    functor = _functor(base, dtype)
    if dense:
        arrays = f"std::array<char*, {n_arrays}ul>"
        name = (
            f"void at::native::vectorized_elementwise_kernel<4, {functor}, {arrays} >"
            f"(int, {functor}, {arrays})"
        )
    else:
        name = (
            f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            f"{functor} >(at::TensorIteratorBase&, {functor} const&)::{{lambda(int)#1}}>"
            f"(int, at::native::gpu_kernel_impl_nocast<{functor} >(at::TensorIteratorBase&, "
            f"{functor} const&)::{{lambda(int)#1}})"
        )
    return Work(
        "kernel", name, f"pointwise {base} {dense}", n_bytes, flop=4.0 * numel,
        grid=(max(-(-numel // 512), 1), 1, 1), registers=24 if dense else 18,
        slowness=1.0 if dense else 1.35,
    )  # fmt: skip


def _pointwise(asked: _Asked) -> list[Work]:
    tensors = asked.flat
    numel = max(one.numel for one in tensors)
    first = max(tensors, key=lambda one: one.numel)
    read = [one for one in tensors if one.numel]
    dense = all(one.dense and one.numel in (numel, 1) for one in read)
    in_place = asked.name.endswith("_")
    n_bytes = sum(one.n_bytes for one in read) + first.n_bytes
    return [
        _elementwise(asked.base, first.dtype, numel, len(read) + (not in_place), n_bytes, dense)
    ]


def _fill(asked: _Asked) -> list[Work]:
    one = asked.flat[0]
    return [_elementwise("fill", one.dtype, one.numel, 1, one.n_bytes, True)]


def _copy(asked: _Asked) -> list[Work]:
    target, source = asked.tensor(0), asked.tensor(1) if asked.has(1) else asked.tensor(0)
    moved = target.n_bytes + min(source.n_bytes, target.n_bytes)
    same = target.dtype == source.dtype and target.dims == source.dims
    if same and target.dense and source.dense and target.strides == source.strides:
        return [memcpy("DtoD (Device -> Device)", target.n_bytes)]
    dense = target.dense and source.dense and target.strides == source.strides
    return [_elementwise("copy", source.dtype, target.numel, 2, moved, dense)]


def _reduce(asked: _Asked) -> list[Work]:
    one = max(asked.flat, key=lambda each: each.numel)
    kind = one.dtype.removesuffix(" int")
    how = {"mean": "MeanOps<K, float, float, K>", "linalg_vector_norm": "NormTwoOps<K, float, K>",
           "any": "func_wrapper_t<bool, at::native::or_kernel_cuda(at::TensorIterator&)>",
           "all": "func_wrapper_t<bool, at::native::and_kernel_cuda(at::TensorIterator&)>",
           "max": "MaxOps<K>", "amax": "MaxOps<K>", "min": "MinOps<K>", "argmax": "ArgMaxOps<K>",
           "var": "WelfordOps<K, float, int, K>"}  # fmt: skip
    ops = how.get(asked.base, "func_wrapper_t<K, at::native::sum_functor<K, float, K> >")
    inner = f"at::native::ReduceOp<{kind}, at::native::{ops.replace('K', kind)}, unsigned int, "
    name = f"void at::native::reduce_kernel<512, 1, {inner}{kind}, 4> >({inner}{kind}, 4>)"
    return [Work("kernel", name, f"reduce {asked.base}", one.n_bytes, 2.0 * one.numel,
                 grid=(max(-(-one.numel // 4096), 1), 1, 1), block=(32, 16, 1),
                 shared=16)]  # fmt: skip


def _loss(asked: _Asked) -> list[Work]:
    """Pointwise loss, then its mean."""
    one = max(asked.flat, key=lambda each: each.numel)
    kernels = _pointwise(asked)
    if "backward" in asked.name:
        return kernels
    mean = replace(asked, name="aten::mean", flat=[one])
    return [*kernels, *_reduce(mean)]


def _nll(asked: _Asked) -> list[Work]:
    one = max(asked.flat, key=lambda each: each.numel)
    way = "backward" if "backward" in asked.name else "forward"
    kind = one.dtype
    return [Work("kernel", f"void at::native::(anonymous namespace)::nll_loss_{way}_reduce_cuda_"
                 f"kernel_2d<{kind}, float, long>({kind}*, {kind}*, {kind} const*, long const*, "
                 f"{kind} const*, bool, long, long, long, long)", "reduce nll",
                 one.n_bytes if way == "backward" else one.n_bytes // 4, 2.0 * one.numel,
                 grid=(max(one.dims[0] // 32, 1), 1, 1), block=(32, 1, 1))]  # fmt: skip


# -- normalisation, softmax, pooling -----------------------------------------------------------


def _rows(one: Tensor) -> int:
    return max(one.numel // max(one.dims[-1], 1), 1) if one.dims else 1


def _softmax(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    kind, last = one.dtype, one.dims[-1] if one.dims else 1
    back = "backward" in asked.name
    log = "true" if "log" in asked.name else "false"
    reads = 3 if back else 2
    if last <= 1024:
        way = "backward" if back else "forward"
        name = (
            f"void (anonymous namespace)::softmax_warp_{way}<{kind}, {kind}, float, "
            f"{max(last - 1, 1).bit_length()}, {log}, false>({kind}*, {kind} const*, int, int, "
            "int, bool const*, int, bool)"
        )
    else:
        way = "Backward" if back else "Forward"
        name = (
            f"void at::native::(anonymous namespace)::cunn_SoftMax{way}<8, {kind}, float, {kind}, "
            f"at::native::(anonymous namespace)::SoftMax{way}Epilogue>({kind}*, {kind} const*, int)"
        )
    return [Work("kernel", name, f"softmax {way}", reads * one.n_bytes, 8.0 * one.numel,
                 grid=(max(_rows(one) // 4, 1), 1, 1), block=(32, 4, 1))]  # fmt: skip


def _layer_norm(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    kind = one.dtype
    name = (
        f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{kind}, float>"
        f"(int, float, {kind} const*, {kind} const*, {kind} const*, float*, float*, {kind}*)"
    )
    return [Work("kernel", name, "layer norm", 2 * one.n_bytes, 8.0 * one.numel,
                 grid=(_rows(one), 1, 1), block=(32, 4, 1), registers=38, shared=24)]  # fmt: skip


def _layer_norm_backward(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    kind, rows = one.dtype, _rows(one)
    space = "void at::native::(anonymous namespace)::"
    return [
        Work("kernel", f"{space}layer_norm_grad_input_kernel_vectorized<{kind}, float>({kind} "
             f"const*, {kind} const*, float const*, float const*, {kind} const*, {kind}*, int)",
             "layer norm grad", 3 * one.n_bytes, 12.0 * one.numel, grid=(rows, 1, 1),
             block=(256, 1, 1), shared=64),
        Work("kernel", f"{space}GammaBetaBackwardCUDAKernelTemplate<{kind}, float, 64u, 1u, 32u, "
             f"true, true>(long, long, {kind} const*, {kind} const*, float const*, float const*, "
             f"{kind}*, {kind}*)", "layer norm weights", 2 * one.n_bytes, 6.0 * one.numel,
             grid=(max(one.dims[-1] // 64, 1), max(rows // 2048, 1), 1), block=(64, 8, 1)),
    ]  # fmt: skip


def _group_norm(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    kind = one.dtype
    back = "backward" in asked.name
    space = "void at::native::(anonymous namespace)::"
    groups = max(one.dims[0] * 8, 1)
    if back:
        return [
            Work("kernel", f"{space}ComputeInternalGradientsCUDAKernel<{kind}>(long, {kind} const*,"
                 f" {kind} const*, float*, float*)", "group norm sums", 2 * one.n_bytes,
                 4.0 * one.numel, grid=(one.dims[0] * one.dims[1], 1, 1), block=(256, 1, 1)),
            _elementwise("GroupNormBackward", kind, one.numel, 4, 3 * one.n_bytes, False),
            Work("kernel", f"{space}GammaBetaBackwardCUDAKernel1<{kind}>(long, long, long, float "
                 f"const*, float const*, float const*, float const*, {kind}*, {kind}*)",
                 "group norm weights", 16 * one.dims[0] * one.dims[1], 0.0, block=(256, 1, 1)),
        ]  # fmt: skip
    return [
        Work("kernel", f"{space}RowwiseMomentsCUDAKernel<{kind}>(long, float, {kind} const*, "
             f"float*, float*)", "group norm moments", one.n_bytes, 4.0 * one.numel,
             grid=(groups, 1, 1), block=(512, 1, 1)),
        Work("kernel", f"{space}ComputeFusedParamsCUDAKernel<{kind}>(long, long, long, float const*"
             f", float const*, {kind} const*, {kind} const*, float*, float*)", "group norm params",
             8 * one.dims[0] * one.dims[1], 0.0, block=(256, 1, 1)),
        _elementwise("GroupNorm", kind, one.numel, 4, 2 * one.n_bytes, False),
    ]  # fmt: skip


def _batch_norm(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    kind = one.dtype
    other = "__nv_bfloat16" if kind == "c10::BFloat16" else "__half" if kind in _HALF else kind
    channels = one.dims[1]
    pixels_last = len(one.strides) > 1 and one.strides[1] != 1
    # one block a channel, or as many as fit where channels come last
    blocks = channels if pixels_last else 2 * asked.accelerator.n_sms
    if "cudnn" not in asked.name:
        name = (
            f"void at::native::batch_norm_transform_input_{'' if pixels_last else 'channels_last_'}"
            f"kernel<{kind}, float, float, true, int>(at::GenericPackedTensorAccessor<{kind} "
            "const, 3ul, at::RestrictPtrTraits, int>, "
            f"at::GenericPackedTensorAccessor<{kind}, 3ul, at::RestrictPtrTraits, int>)"
        )
        return [Work("kernel", name, "batch norm", 2 * one.n_bytes, 4.0 * one.numel,
                     grid=(blocks, max(one.dims[0] // 2, 1), 1), block=(128, 1, 1))]  # fmt: skip
    back = "backward" in asked.name
    way = "bw_1C11_kernel_new" if back else "fw_tr_1C11_kernel_NCHW"
    if not pixels_last:
        way = f"{'bwd' if back else 'fwtr'}_nhwc_semiPersist"
    name = (
        f"void cudnn::bn_{way}<{other}, float, int, 512, true, 1, true>(cudnnTensorStruct, "
        f"{other} const*, cudnnTensorStruct, {other}*, float const*, float const*, float, float, "
        "float*, float*, float*, float*, float, float)"
    )
    reads = 5 if back else 3
    return [Work("kernel", name, f"batch norm {way}", reads * one.n_bytes, 10.0 * one.numel,
                 grid=(blocks, 1, 1), block=(512, 1, 1), registers=40, shared=400)]  # fmt: skip


def _sampled(asked: _Asked) -> list[Work]:
    """Pooling and interpolation."""
    one = max(asked.flat, key=lambda each: each.numel)
    up = "upsample" in asked.name
    name = (
        f"void at::native::(anonymous namespace)::{asked.base}_out_cuda_frame<{one.dtype}, "
        f"{one.dtype}>({one.dtype} const*, {one.dtype}*, int, int, int, int)"
    )
    moved = one.n_bytes * (5 if up and "backward" not in asked.name else 1.4)
    return [Work("kernel", name, f"sample {asked.base}", int(moved), 4.0 * one.numel,
                 grid=(max(one.numel // 256, 1), 1, 1), block=(256, 1, 1))]  # fmt: skip


# -- moving elements ---------------------------------------------------------------------------


def _cat(asked: _Asked) -> list[Work]:
    moved = sum(one.n_bytes for one in asked.flat)
    numel = sum(one.numel for one in asked.flat)
    name = (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous "
        "namespace)::OpaqueType<4u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::"
        "OpaqueType<4u>*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::"
        "(anonymous namespace)::OpaqueType<4u>, unsigned int, 64, 64>, at::native::(anonymous "
        "namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    )
    return [Work("kernel", name, "cat", 2 * moved, float(numel), block=(512, 1, 1),
                 grid=(min(max(numel // 2048, 1), 264), max(len(asked.flat), 1), 1))]  # fmt: skip


def _gathered(asked: _Asked) -> list[Work]:
    """Embedding, index and gather: what is picked is read and written."""
    table = asked.tensor(0)
    picked = max((one for one in asked.flat[1:]), key=lambda each: each.numel, default=table)
    width = table.dims[-1] if len(table.dims) > 1 else 1
    moved = min(picked.numel * width * _ITEM.get(table.dtype, 4), 4 * table.n_bytes + 1024)
    name = (
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<"
        "at::native::index_kernel_impl<at::native::OpaqueType<4> >(at::TensorIteratorBase&, "
        "c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}> >(long, "
        "int)"
        if "embedding" not in asked.name and "select" not in asked.name
        else f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{table.dtype}, long, "
        "unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<float, unsigned int>)"
    )
    return [Work("kernel", name, "gather", 2 * moved, float(moved), registers=40,
                 grid=(max(moved // 2048, 1), 1, 1))]  # fmt: skip


def _embedding_backward(asked: _Asked) -> list[Work]:
    one = asked.tensor(0)
    name = (
        f"void at::native::(anonymous namespace)::compute_grad_weight<{one.dtype}, long>(long*, "
        f"{one.dtype} const*, long*, long, long, long*, long, float*, long)"
    )
    return [Work("kernel", name, "embedding grad", 3 * one.n_bytes, 2.0 * one.numel,
                 grid=(max(one.numel // 4096, 1), 1, 1), block=(128, 1, 1))]  # fmt: skip


def _make(asked: _Asked) -> list[Work]:
    """Return the kernel of ``arange`` and the like, which read nothing."""
    name = (
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::"
        "arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::"
        "{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(long)#1}>"
        "(int, at::native::arange_cuda_out(c10::Scalar const&))"
    )
    return [Work("kernel", name, "arange", 1024, 0.0, block=(64, 1, 1), registers=16)]


def _random(asked: _Asked) -> list[Work]:
    one = max(asked.flat, key=lambda each: each.numel)
    name = (
        f"void at::native::(anonymous namespace)::fused_dropout_kernel_vec<{one.dtype}, float, "
        "unsigned int, 1, 4, bool>(at::cuda::detail::TensorInfo<float const, unsigned int>)"
    )
    return [Work("kernel", name, "dropout", 2 * one.n_bytes + one.numel, 20.0 * one.numel,
                 grid=(max(-(-one.numel // 1024), 1), 1, 1), block=(256, 1, 1))]  # fmt: skip


# -- optimizers --------------------------------------------------------------------------------

_CHUNK, _BLOCKS, _TENSORS = 65536, 320, 36


def _multi_tensor(asked: _Asked) -> list[Work]:
    """Return the few kernels that go over all tensors of a list."""
    first = next((one for one in asked.inputs if isinstance(one, list)), [])
    lists = sum(isinstance(one, list) and len(one) == len(first) for one in asked.inputs)
    fused = "fused" in asked.name
    chunks = sum(max(-(-one.numel // _CHUNK), 1) for one in first)
    n_kernels = max(-(-chunks // _BLOCKS), -(-len(first) // _TENSORS), 1)
    numel = sum(one.numel for one in first)
    passes = 2 * lists - 1 if fused else lists + 1
    space = "at::native::(anonymous namespace)::"
    functor = (
        "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>" if fused
        else "BinaryOpScalarFunctor<float, 1, 1, 0>"
    )  # fmt: skip
    data = (
        "FusedOptimizerTensorListMetadata<4>" if fused else f"TensorListMetadata<{max(lists, 1)}>"
    )
    name = (
        f"void {space}multi_tensor_apply_kernel<{space}{data}, {space}{functor}, float>"
        f"({space}{data}, {space}{functor}, float)"
    )
    return [
        Work("kernel", name, f"multi tensor {asked.base}", 4 * numel * passes // n_kernels,
             12.0 * numel / n_kernels, grid=(min(max(chunks // n_kernels, 1), _BLOCKS), 1, 1),
             block=(512, 1, 1), registers=40)
    ] * n_kernels  # fmt: skip


# -- matrix products ---------------------------------------------------------------------------

_TILE = 128


def _gemm(
    asked: _Asked, dtype: str, batch: int, m: int, n: int, k: int, layout: str, group: str
) -> Work:
    rate = asked.rate(dtype)
    full = 8 if rate == "half" else 4
    sides = (k, n if layout[1] == "n" else k, m if layout[0] == "t" else k)
    align = full
    while align > 1 and any(side % align for side in sides):
        align //= 2
    tile = _TILE if m * n * batch >= _TILE * _TILE * asked.accelerator.n_sms // 2 else 64
    tiles = -(-n // tile) * -(-m // tile) * batch
    # few tiles and a deep product: cuBLAS splits the depth
    splits = max(min(k // 512, asked.accelerator.n_sms // tiles), 1)
    grid = (-(-n // tile), -(-m // tile), batch * splits)
    item = _ITEM.get(dtype, 4)
    slow = {8: 1.0, 4: 1.3, 2: 2.2, 1: 4.0} if rate == "half" else {4: 1.0, 2: 1.6, 1: 2.8}
    return Work(
        "kernel", _gemm_name(asked.accelerator, dtype, rate, tile, align, layout),
        group,
        item * batch * (m * k + k * n + m * n), 2.0 * batch * m * n * k, rate, grid,
        (384 if asked.accelerator.capability >= (9, 0) and align == full else 256, 1, 1), 168,
        98304 if rate != "float" else 16896, slow[align] if rate != "float" else 1.0,
        "cudaLaunchKernelExC" if asked.accelerator.capability >= (9, 0) else "cudaLaunchKernel",
    )  # fmt: skip


def _gemm_name(
    accelerator: Accelerator, dtype: str, rate: str, tile: int, align: int, layout: str
) -> str:
    capability = accelerator.capability
    if rate == "float":
        if capability >= (9, 0):
            core = f"cutlass_80_simt_sgemm_{tile}x{tile}_8x4_{layout}_align1"
            return f"void cutlass::Kernel2<{core}>({core}::Params)"
        return f"{'volta' if capability < (8, 0) else 'ampere'}_sgemm_{tile}x64_{layout}"
    short = "bf16" if dtype == "c10::BFloat16" else "f16"
    if align < (8 if rate == "half" else 4):
        core = f"cutlass_75_tensorop_{short}_s1688gemm_{short}_{tile}x128_{layout}_align{align}"
        if rate == "tf32":
            core = f"cutlass_80_tensorop_s1688gemm_{tile}x64_16x6_{layout}_align{align}"
        return f"void cutlass::Kernel2<{core}>({core}::Params)"
    if capability >= (9, 0):
        types = f"{short}{short}_{short}f32_f32" if rate == "half" else "f32f32_tf32f32_f32"
        depth = 64 if rate == "half" else 32
        return (
            f"sm90_xmma_gemm_{types}_{layout}_n_tilesize{tile}x{tile}x{depth}_warpgroupsize1x1x1_"
            "execute_segment_k_off_kernel__5x_cublas"
        )
    if capability < (8, 0):
        return f"turing_fp16_s1688gemm_fp16_{tile}x128_ldg8_f2f_{layout}"
    core = (
        f"cutlass_80_tensorop_{short}_s16816gemm_relu_{short}_{tile}x64_64x6_{layout}_align8"
        if rate == "half" else f"cutlass_80_tensorop_s1688gemm_{tile}x64_16x6_{layout}_align4"
    )  # fmt: skip
    return f"void cutlass::Kernel2<{core}>({core}::Params)"


def _product(asked: _Asked) -> list[Work]:
    """mm, bmm, addmm and baddbmm."""
    at = 1 if asked.base.startswith(("addmm", "baddbmm")) else 0
    left, right = asked.tensor(at), asked.tensor(at + 1)
    batch = left.dims[0] if len(left.dims) == 3 else 1
    m, k, n = left.dims[-2], left.dims[-1], right.dims[-1]
    # cuBLAS is column-major: its first operand is the right one
    layout = "".join(
        "n" if not one.strides or one.strides[-1] == 1 else "t" for one in (right, left)
    )
    return [_gemm(asked, left.dtype, batch, m, n, k, layout, "gemm")]


def _conv_sides(asked: _Asked, x: Tensor, weight: Tensor, at: int) -> tuple[int, ...]:
    """Return a convolution's batch x output pixels, filters, depth, channels and groups.

    ``at`` : where its stride stands; padding, dilation, transposed, output padding, groups follow.
    """
    stride, padding = asked.numbers(at), asked.numbers(at + 1)
    dilation = asked.numbers(at + 2)
    transposed = asked.concrete(at + 3) == "True"
    groups = int(asked.concrete(at + 5) or 1)
    kernel = weight.dims[2:]
    pixels = x.dims[0]
    for side, size in enumerate(x.dims[2:]):
        step = (stride or [1])[min(side, len(stride or [1]) - 1)]
        pad = (padding or [0])[min(side, len(padding or [0]) - 1)]
        spread = (dilation or [1])[min(side, len(dilation or [1]) - 1)]
        reach = spread * (kernel[side] - 1) + 1
        pixels *= size if transposed else (size + 2 * pad - reach) // step + 1
    filters = weight.dims[1] if transposed else weight.dims[0]
    depth = (weight.dims[0] if transposed else weight.dims[1]) * math.prod(kernel)
    return pixels, filters, depth, x.dims[1], groups


def _conv_work(asked: _Asked, x: Tensor, weight: Tensor, at: int, way: str) -> list[Work]:
    pixels, filters, depth, channels, groups = _conv_sides(asked, x, weight, at)
    item = _ITEM.get(x.dtype, 4)
    written = pixels * filters * item
    moved = x.n_bytes + weight.n_bytes + written
    rate = asked.rate(x.dtype)
    kind = x.dtype
    if groups > 1 and groups == channels:
        kernel = {"fprop": "forward", "dgrad": "backward", "wgrad": "grad_weight"}[way]
        name = (
            f"void at::native::(anonymous namespace)::conv_depthwise2d_{kernel}_kernel<3, {kind}, "
            f"int>(at::GenericPackedTensorAccessor<{kind} const, 4ul, at::DefaultPtrTraits, int>)"
        )
        return [Work("kernel", name, f"depthwise {way}", 2 * moved, 2.0 * pixels * filters * depth,
                     grid=(max(pixels * filters // 512, 1), 1, 1), block=(256, 1, 1),
                     slowness=1.5)]  # fmt: skip
    tile = _TILE if pixels * filters >= _TILE * 64 * asked.accelerator.n_sms else 64
    grid = (-(-pixels // tile), -(-filters // tile), 1)
    if way == "wgrad":
        splits = max(min(pixels // 4096, 16), 1)
        grid = (-(-depth // tile), -(-filters // tile), splits)
    short = "bf16" if kind == "c10::BFloat16" else "f16"
    if rate == "float":
        name = (
            "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>"
            "(int, int, int, float const*, int, float*, float const*, kernel_conv_params)"
            if way == "fprop"
            else f"void cudnn::cnn::{way}2d_alg1_1_engine<float, 128, 6, 7, 3, 3, 5, false, true>"
            "(int, int, int, float const*, int, float const*, int, float*)"
        )
    else:
        types = f"{short}{short}_{short}f32_f32" if rate == "half" else "tf32f32_tf32f32_f32"
        core = "tensor16x8x16" if rate == "half" else "tensor16x8x8"
        name = (
            f"sm80_xmma_{way}_implicit_gemm_{types}_nhwckrsc_nhwc_tilesize{tile}x64x32_stage4_"
            f"warpsize2x2x1_g1_{core}_execute_kernel__5x_cudnn"
        )
        if asked.accelerator.capability < (8, 0):
            name = f"turing_fp16_s1688cudnn_fp16_{tile}x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
    thin = 1.0 if channels // groups >= 16 else 1.4
    product = Work("kernel", name, f"conv {way}", moved,
                  2.0 * pixels * filters * depth, rate, grid,
                  (256 if tile == _TILE else 128, 1, 1), 232, 81920,
                  thin if rate != "float" else 1.0)  # fmt: skip
    if not asked.precision.converts or rate == "float":
        return [product]
    other = "__nv_bfloat16" if short == "bf16" and rate == "half" else "__half"
    other = other if rate == "half" else "float"
    return [
        _conversion("nchwToNhwc", other, x.n_bytes), product,
        _conversion("nhwcToNchw", other, written),
    ]  # fmt: skip


def _conversion(way: str, kind: str, n_bytes: int) -> Work:
    short = way.replace("To", "2").lower()
    name = (
        f"void cudnn::ops::{way}Kernel<{kind}, {kind}, float, false, true, "
        f"(cudnnKernelDataType_t)2>(cudnn::ops::{short}_params_t<float>, {kind} const*, {kind}*)"
    )
    return Work("kernel", name, f"layout {way}", 2 * n_bytes, grid=(max(n_bytes // 8192, 1), 1, 1),
                block=(256, 1, 1), shared=4224)  # fmt: skip


def _conv(asked: _Asked) -> list[Work]:
    return _conv_work(asked, asked.tensor(0), asked.tensor(1), 3, "fprop")


def _conv_backward(asked: _Asked) -> list[Work]:
    grad, x, weight = asked.tensor(0), asked.tensor(1), asked.tensor(2)
    wanted = [*asked.flags(10), True, True, True][:3]
    found: list[Work] = []
    if wanted[0]:
        found += _conv_work(asked, x, weight, 4, "dgrad")
    if wanted[1]:
        found += _conv_work(asked, x, weight, 4, "wgrad")
    if wanted[2]:
        found += _reduce(replace(asked, name="aten::sum", flat=[grad]))
    return found


def _attention(asked: _Asked) -> list[Work]:
    back = "backward" in asked.name
    query, key = asked.tensor(1 if back else 0), asked.tensor(2 if back else 1)
    batch, heads, length, width = (*query.dims, 1, 1, 1, 1)[:4]
    keys = key.dims[-2]
    products = 10 if back else 4
    half = query.dtype in _HALF
    flop = products * float(batch * heads * length * keys * width)
    moved = (8 if back else 4) * query.n_bytes
    old = asked.accelerator.capability < (8, 0)
    if half and not old:
        kind = "cutlass::bfloat16_t" if query.dtype == "c10::BFloat16" else "cutlass::half_t"
        traits = f"pytorch_flash::Flash_fwd_kernel_traits<{max(width, 32)}, 128, 128, 4, false, "
        traits += f"false, {kind}, pytorch_flash::Flash_kernel_traits<{max(width, 32)}, 128> >"
        way = "bwd_dq_dk_dv_loop_seqk_parallel" if back else "fwd"
        name = (
            f"void pytorch_flash::flash_{way}_kernel<{traits}, false, false, false, false, true, "
            f"true, false, false>(pytorch_flash::Flash_{'bwd' if back else 'fwd'}_params)"
        )
    else:
        way = "B" if back else "F"
        kind = "f32" if not half else "f16" if query.dtype == "c10::Half" else "bf16"
        sm = "sm75" if old else "sm80"
        name = (
            f"fmha_cutlass{way}_{kind}_aligned_64x64_rf_{sm}(PyTorchMemEffAttention::Attention"
            f"{'Backward' if back else ''}Kernel<{query.dtype}, cutlass::arch::"
            f"{sm.capitalize()}, true, 64, 64, 64, true, true>::Params)"
        )
    # without tensor cores for fp32 the fused kernel still uses them, in three passes
    rate = "half" if half else "tf32" if asked.accelerator.tf32_tflops else "float"
    return [Work("kernel", name, f"attention {way}", moved, flop, rate,
                 (max(-(-length // 128), 1), heads, batch), (128, 1, 1), 255, 49152,
                 1.0 if half else 2.5)]  # fmt: skip


# -- which rule for which operator -------------------------------------------------------------

_MAKERS = frozenset({"aten::arange", "aten::linspace", "aten::randperm", "aten::tril_indices"})
_RULES: dict[str, Callable[[_Asked], list[Work]]] = {
    **dict.fromkeys(_MAKERS, _make),
    **dict.fromkeys(("aten::fill", "aten::zero"), _fill),
    "aten::copy": _copy,
    **dict.fromkeys(
        ("aten::sum", "aten::mean", "aten::any", "aten::all", "aten::max", "aten::min",
         "aten::amax", "aten::argmax", "aten::var", "aten::linalg_vector_norm",
         "aten::norm", "aten::cumsum"),
        _reduce),
    **dict.fromkeys(
        (f"aten::{name}{way}" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
         for way in ("", "_backward")), _loss),
    **dict.fromkeys(
        (f"aten::nll_loss{size}_{way}" for size in ("", "2d") for way in ("forward", "backward")),
        _nll),
    **dict.fromkeys(("aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
                     "aten::_log_softmax_backward_data"), _softmax),
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    **dict.fromkeys(("aten::native_group_norm", "aten::native_group_norm_backward"), _group_norm),
    **dict.fromkeys(("aten::native_batch_norm", "aten::native_batch_norm_backward",
                     "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward"), _batch_norm),
    **dict.fromkeys(
        (f"aten::{name}{way}"
         for name in ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d",
                      "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d",
                      "upsample_nearest1d")
         for way in ("", "_backward")), _sampled),
    **dict.fromkeys(("aten::cat", "aten::stack"), _cat),
    **dict.fromkeys(("aten::embedding", "aten::index_select", "aten::index", "aten::gather",
                     "aten::take_along_dim"), _gathered),
    "aten::embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("aten::native_dropout", "aten::bernoulli", "aten::normal", "aten::random",
                     "aten::uniform"), _random),
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"), _product),
    "aten::cudnn_convolution": _conv,
    "aten::convolution_backward": _conv_backward,
    **dict.fromkeys(
        (f"aten::{name}" for name in ("_flash_attention_forward", "_flash_attention_backward",
                                      "_efficient_attention_forward",
                                      "_efficient_attention_backward")), _attention),
}  # fmt: skip
for _name in ("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_foreach_add_", "_foreach_zero_",
              "_foreach_mul_", "_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_",
              "_foreach_sqrt", "_foreach_div_", "_foreach_norm", "_foreach_mul",
              "_foreach_add", "_foreach_copy_"):  # fmt: skip
    _RULES[f"aten::{_name}"] = _multi_tensor
