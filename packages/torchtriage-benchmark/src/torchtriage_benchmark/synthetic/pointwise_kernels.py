"""Kernels of pointwise work, copies, reductions, gathers and optimizers."""

from __future__ import annotations

from dataclasses import replace

from torchtriage_benchmark.synthetic.work import ITEM_BYTES, Asked, Work, memcpy

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
}


def _functor(base: str, dtype: str) -> str:
    kind = dtype.removesuffix(" int")
    known = _FUNCTORS.get(base)
    if known:
        return known.replace("<T", f"<{kind}").replace(" T", f" {kind}").replace("(T", f"({kind}")
    return (
        f"at::native::{base}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#2}}::operator()() "
        f"const::{{lambda()#2}}::operator()() const::{{lambda({kind})#1}}"
    )


def _elementwise(base: str, dtype: str, numel: int, n_arrays: int, n_bytes: int, dense: bool) -> Work:
    """Return a kernel over ``numel`` elements of some tensors."""
    functor = _functor(base, dtype)
    if dense:
        arrays = f"std::array<char*, {n_arrays}ul>"
        name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, {arrays} >(int, {functor}, {arrays})"
    else:
        name = (
            f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            f"{functor} >(at::TensorIteratorBase&, {functor} const&)::{{lambda(int)#1}}>"
            f"(int, at::native::gpu_kernel_impl_nocast<{functor} >(at::TensorIteratorBase&, "
            f"{functor} const&)::{{lambda(int)#1}})"
        )
    return Work(
        "kernel",
        name,
        f"pointwise {base} {dense}",
        n_bytes,
        flop=4.0 * numel,
        grid=(max(-(-numel // 512), 1), 1, 1),
        registers=24 if dense else 18,
        slowness=1.0 if dense else 1.35,
    )


def pointwise_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a pointwise."""
    tensors = asked.flat
    numel = max(tensor.numel for tensor in tensors)
    first = max(tensors, key=lambda tensor: tensor.numel)
    read = [tensor for tensor in tensors if tensor.numel]
    dense = all(item.dense and item.numel in (numel, 1) for item in read)
    in_place = asked.name.endswith("_")
    n_bytes = sum(item.n_bytes for item in read) + first.n_bytes
    return [_elementwise(asked.base, first.dtype, numel, len(read) + (not in_place), n_bytes, dense)]


def fill_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a fill."""
    tensor = asked.flat[0]
    return [_elementwise("fill", tensor.dtype, tensor.numel, 1, tensor.n_bytes, True)]


def copy_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a copy."""
    target, source = asked.tensor(0), asked.tensor(1) if asked.has(1) else asked.tensor(0)
    moved = target.n_bytes + min(source.n_bytes, target.n_bytes)
    same = target.dtype == source.dtype and target.dims == source.dims
    if same and target.dense and source.dense and target.strides == source.strides:
        return [memcpy("DtoD (Device -> Device)", target.n_bytes)]
    dense = target.dense and source.dense and target.strides == source.strides
    return [_elementwise("copy", source.dtype, target.numel, 2, moved, dense)]


def reduce_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a reduce."""
    tensor = max(asked.flat, key=lambda each: each.numel)
    kind = tensor.dtype.removesuffix(" int")
    how = {
        "mean": "MeanOps<K, float, float, K>",
        "linalg_vector_norm": "NormTwoOps<K, float, K>",
        "any": "func_wrapper_t<bool, at::native::or_kernel_cuda(at::TensorIterator&)>",
        "all": "func_wrapper_t<bool, at::native::and_kernel_cuda(at::TensorIterator&)>",
        "max": "MaxOps<K>",
        "amax": "MaxOps<K>",
        "min": "MinOps<K>",
        "argmax": "ArgMaxOps<K>",
        "var": "WelfordOps<K, float, int, K>",
    }
    ops = how.get(asked.base, "func_wrapper_t<K, at::native::sum_functor<K, float, K> >")
    inner = f"at::native::ReduceOp<{kind}, at::native::{ops.replace('K', kind)}, unsigned int, "
    name = f"void at::native::reduce_kernel<512, 1, {inner}{kind}, 4> >({inner}{kind}, 4>)"
    return [
        Work(
            "kernel",
            name,
            f"reduce {asked.base}",
            tensor.n_bytes,
            2.0 * tensor.numel,
            grid=(max(-(-tensor.numel // 4096), 1), 1, 1),
            block=(32, 16, 1),
            shared=16,
        )
    ]


def loss_kernels(asked: Asked) -> list[Work]:
    """Pointwise loss, then its mean."""
    tensor = max(asked.flat, key=lambda each: each.numel)
    kernels = pointwise_kernels(asked)
    if "backward" in asked.name:
        return kernels
    mean = replace(asked, name="aten::mean", flat=[tensor])
    return [*kernels, *reduce_kernels(mean)]


def nll_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a nll."""
    tensor = max(asked.flat, key=lambda each: each.numel)
    way = "backward" if "backward" in asked.name else "forward"
    kind = tensor.dtype
    return [
        Work(
            "kernel",
            f"void at::native::(anonymous namespace)::nll_loss_{way}_reduce_cuda_"
            f"kernel_2d<{kind}, float, long>({kind}*, {kind}*, {kind} const*, long const*, "
            f"{kind} const*, bool, long, long, long, long)",
            "reduce nll",
            tensor.n_bytes if way == "backward" else tensor.n_bytes // 4,
            2.0 * tensor.numel,
            grid=(max(tensor.dims[0] // 32, 1), 1, 1),
            block=(32, 1, 1),
        )
    ]


def cat_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a cat."""
    moved = sum(item.n_bytes for item in asked.flat)
    numel = sum(item.numel for item in asked.flat)
    name = (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous "
        "namespace)::OpaqueType<4u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::"
        "OpaqueType<4u>*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::"
        "(anonymous namespace)::OpaqueType<4u>, unsigned int, 64, 64>, at::native::(anonymous "
        "namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
    )
    return [
        Work(
            "kernel",
            name,
            "cat",
            2 * moved,
            float(numel),
            block=(512, 1, 1),
            grid=(min(max(numel // 2048, 1), 264), max(len(asked.flat), 1), 1),
        )
    ]


def gathered_kernels(asked: Asked) -> list[Work]:
    """Embedding, index and gather: what is picked is read and written."""
    table = asked.tensor(0)
    picked = max((item for item in asked.flat[1:]), key=lambda each: each.numel, default=table)
    width = table.dims[-1] if len(table.dims) > 1 else 1
    moved = min(picked.numel * width * ITEM_BYTES.get(table.dtype, 4), 4 * table.n_bytes + 1024)
    name = (
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<"
        "at::native::index_kernel_impl<at::native::OpaqueType<4> >(at::TensorIteratorBase&, "
        "c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}> >(long, "
        "int)"
        if "embedding" not in asked.name and "select" not in asked.name
        else f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{table.dtype}, long, "
        "unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<float, unsigned int>)"
    )
    return [Work("kernel", name, "gather", 2 * moved, float(moved), registers=40, grid=(max(moved // 2048, 1), 1, 1))]


def embedding_backward_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of an embedding backward."""
    tensor = asked.tensor(0)
    name = (
        f"void at::native::(anonymous namespace)::compute_grad_weight<{tensor.dtype}, long>(long*, "
        f"{tensor.dtype} const*, long*, long, long, long*, long, float*, long)"
    )
    return [
        Work(
            "kernel",
            name,
            "embedding grad",
            3 * tensor.n_bytes,
            2.0 * tensor.numel,
            grid=(max(tensor.numel // 4096, 1), 1, 1),
            block=(128, 1, 1),
        )
    ]


def make_kernels(asked: Asked) -> list[Work]:
    """Return the kernel of ``arange`` and the like, which read nothing."""
    name = (
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::"
        "arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::"
        "{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(long)#1}>"
        "(int, at::native::arange_cuda_out(c10::Scalar const&))"
    )
    return [Work("kernel", name, "arange", 1024, 0.0, block=(64, 1, 1), registers=16)]


def random_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a random."""
    tensor = max(asked.flat, key=lambda each: each.numel)
    name = (
        f"void at::native::(anonymous namespace)::fused_dropout_kernel_vec<{tensor.dtype}, float, "
        "unsigned int, 1, 4, bool>(at::cuda::detail::TensorInfo<float const, unsigned int>)"
    )
    return [
        Work(
            "kernel",
            name,
            "dropout",
            2 * tensor.n_bytes + tensor.numel,
            20.0 * tensor.numel,
            grid=(max(-(-tensor.numel // 1024), 1), 1, 1),
            block=(256, 1, 1),
        )
    ]


_CHUNK, _BLOCKS, _TENSORS = 65536, 320, 36


def multi_tensor_kernels(asked: Asked) -> list[Work]:
    """Return the few kernels that go over all tensors of a list."""
    first = next((input_ for input_ in asked.inputs if isinstance(input_, list)), [])
    lists = sum(isinstance(input_, list) and len(input_) == len(first) for input_ in asked.inputs)
    fused = "fused" in asked.name
    chunks = sum(max(-(-item.numel // _CHUNK), 1) for item in first)
    n_kernels = max(-(-chunks // _BLOCKS), -(-len(first) // _TENSORS), 1)
    numel = sum(item.numel for item in first)
    passes = 2 * lists - 1 if fused else lists + 1
    space = "at::native::(anonymous namespace)::"
    functor = (
        "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>"
        if fused
        else "BinaryOpScalarFunctor<float, 1, 1, 0>"
    )
    data = "FusedOptimizerTensorListMetadata<4>" if fused else f"TensorListMetadata<{max(lists, 1)}>"
    name = (
        f"void {space}multi_tensor_apply_kernel<{space}{data}, {space}{functor}, float>"
        f"({space}{data}, {space}{functor}, float)"
    )
    return [
        Work(
            "kernel",
            name,
            f"multi tensor {asked.base}",
            4 * numel * passes // n_kernels,
            12.0 * numel / n_kernels,
            grid=(min(max(chunks // n_kernels, 1), _BLOCKS), 1, 1),
            block=(512, 1, 1),
            registers=40,
        )
    ] * n_kernels
