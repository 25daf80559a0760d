"""Kernels of normalisation, softmax, pooling and sampling."""

from __future__ import annotations

from torchtriage_benchmark.synthetic.pointwise_kernels import _elementwise
from torchtriage_benchmark.synthetic.work import HALF, Asked, Tensor, Work


def _rows(tensor: Tensor) -> int:
    return max(tensor.numel // max(tensor.dims[-1], 1), 1) if tensor.dims else 1


def softmax_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a softmax."""
    tensor = asked.tensor(0)
    kind, last = tensor.dtype, tensor.dims[-1] if tensor.dims else 1
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
    return [
        Work(
            "kernel",
            name,
            f"softmax {way}",
            reads * tensor.n_bytes,
            8.0 * tensor.numel,
            grid=(max(_rows(tensor) // 4, 1), 1, 1),
            block=(32, 4, 1),
        )
    ]


def layer_norm_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a layer norm."""
    tensor = asked.tensor(0)
    kind = tensor.dtype
    name = (
        f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{kind}, float>"
        f"(int, float, {kind} const*, {kind} const*, {kind} const*, float*, float*, {kind}*)"
    )
    return [
        Work(
            "kernel",
            name,
            "layer norm",
            2 * tensor.n_bytes,
            8.0 * tensor.numel,
            grid=(_rows(tensor), 1, 1),
            block=(32, 4, 1),
            registers=38,
            shared=24,
        )
    ]


def layer_norm_backward_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a layer norm backward."""
    tensor = asked.tensor(0)
    kind, rows = tensor.dtype, _rows(tensor)
    space = "void at::native::(anonymous namespace)::"
    return [
        Work(
            "kernel",
            f"{space}layer_norm_grad_input_kernel_vectorized<{kind}, float>({kind} "
            f"const*, {kind} const*, float const*, float const*, {kind} const*, {kind}*, int)",
            "layer norm grad",
            3 * tensor.n_bytes,
            12.0 * tensor.numel,
            grid=(rows, 1, 1),
            block=(256, 1, 1),
            shared=64,
        ),
        Work(
            "kernel",
            f"{space}GammaBetaBackwardCUDAKernelTemplate<{kind}, float, 64u, 1u, 32u, "
            f"true, true>(long, long, {kind} const*, {kind} const*, float const*, float const*, "
            f"{kind}*, {kind}*)",
            "layer norm weights",
            2 * tensor.n_bytes,
            6.0 * tensor.numel,
            grid=(max(tensor.dims[-1] // 64, 1), max(rows // 2048, 1), 1),
            block=(64, 8, 1),
        ),
    ]


def group_norm_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a group norm."""
    tensor = asked.tensor(0)
    kind = tensor.dtype
    back = "backward" in asked.name
    space = "void at::native::(anonymous namespace)::"
    groups = max(tensor.dims[0] * 8, 1)
    if back:
        return [
            Work(
                "kernel",
                f"{space}ComputeInternalGradientsCUDAKernel<{kind}>(long, {kind} const*,"
                f" {kind} const*, float*, float*)",
                "group norm sums",
                2 * tensor.n_bytes,
                4.0 * tensor.numel,
                grid=(tensor.dims[0] * tensor.dims[1], 1, 1),
                block=(256, 1, 1),
            ),
            _elementwise("GroupNormBackward", kind, tensor.numel, 4, 3 * tensor.n_bytes, False),
            Work(
                "kernel",
                f"{space}GammaBetaBackwardCUDAKernel1<{kind}>(long, long, long, float "
                f"const*, float const*, float const*, float const*, {kind}*, {kind}*)",
                "group norm weights",
                16 * tensor.dims[0] * tensor.dims[1],
                0.0,
                block=(256, 1, 1),
            ),
        ]
    return [
        Work(
            "kernel",
            f"{space}RowwiseMomentsCUDAKernel<{kind}>(long, float, {kind} const*, float*, float*)",
            "group norm moments",
            tensor.n_bytes,
            4.0 * tensor.numel,
            grid=(groups, 1, 1),
            block=(512, 1, 1),
        ),
        Work(
            "kernel",
            f"{space}ComputeFusedParamsCUDAKernel<{kind}>(long, long, long, float const*"
            f", float const*, {kind} const*, {kind} const*, float*, float*)",
            "group norm params",
            8 * tensor.dims[0] * tensor.dims[1],
            0.0,
            block=(256, 1, 1),
        ),
        _elementwise("GroupNorm", kind, tensor.numel, 4, 2 * tensor.n_bytes, False),
    ]


def batch_norm_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a batch norm."""
    tensor = asked.tensor(0)
    kind = tensor.dtype
    other = "__nv_bfloat16" if kind == "c10::BFloat16" else "__half" if kind in HALF else kind
    channels = tensor.dims[1]
    pixels_last = len(tensor.strides) > 1 and tensor.strides[1] != 1
    # one block a channel, or as many as fit where channels come last
    blocks = channels if pixels_last else 2 * asked.accelerator.n_sms
    if "cudnn" not in asked.name:
        name = (
            f"void at::native::batch_norm_transform_input_{'' if pixels_last else 'channels_last_'}"
            f"kernel<{kind}, float, float, true, int>(at::GenericPackedTensorAccessor<{kind} "
            "const, 3ul, at::RestrictPtrTraits, int>, "
            f"at::GenericPackedTensorAccessor<{kind}, 3ul, at::RestrictPtrTraits, int>)"
        )
        return [
            Work(
                "kernel",
                name,
                "batch norm",
                2 * tensor.n_bytes,
                4.0 * tensor.numel,
                grid=(blocks, max(tensor.dims[0] // 2, 1), 1),
                block=(128, 1, 1),
            )
        ]
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
    return [
        Work(
            "kernel",
            name,
            f"batch norm {way}",
            reads * tensor.n_bytes,
            10.0 * tensor.numel,
            grid=(blocks, 1, 1),
            block=(512, 1, 1),
            registers=40,
            shared=400,
        )
    ]


def sampled_kernels(asked: Asked) -> list[Work]:
    """Pooling and interpolation."""
    tensor = max(asked.flat, key=lambda each: each.numel)
    up = "upsample" in asked.name
    name = (
        f"void at::native::(anonymous namespace)::{asked.base}_out_cuda_frame<{tensor.dtype}, "
        f"{tensor.dtype}>({tensor.dtype} const*, {tensor.dtype}*, int, int, int, int)"
    )
    moved = tensor.n_bytes * (5 if up and "backward" not in asked.name else 1.4)
    return [
        Work(
            "kernel",
            name,
            f"sample {asked.base}",
            int(moved),
            4.0 * tensor.numel,
            grid=(max(tensor.numel // 256, 1), 1, 1),
            block=(256, 1, 1),
        )
    ]
