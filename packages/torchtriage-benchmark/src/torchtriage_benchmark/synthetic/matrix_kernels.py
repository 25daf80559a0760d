"""Kernels of matrix products, convolutions and attention."""

from __future__ import annotations

import math
from dataclasses import replace

from torchtriage_benchmark.synthetic.accelerators import Accelerator
from torchtriage_benchmark.synthetic.pointwise_kernels import reduce_kernels
from torchtriage_benchmark.synthetic.work import HALF, ITEM_BYTES, Asked, Tensor, Work

_TILE = 128


def _gemm(asked: Asked, dtype: str, batch: int, m: int, n: int, k: int, layout: str, group: str) -> Work:
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
    item = ITEM_BYTES.get(dtype, 4)
    slow = {8: 1.0, 4: 1.3, 2: 2.2, 1: 4.0} if rate == "half" else {4: 1.0, 2: 1.6, 1: 2.8}
    return Work(
        "kernel",
        _gemm_name(asked.accelerator, dtype, rate, tile, align, layout),
        group,
        item * batch * (m * k + k * n + m * n),
        2.0 * batch * m * n * k,
        rate,
        grid,
        (384 if asked.accelerator.capability >= (9, 0) and align == full else 256, 1, 1),
        168,
        98304 if rate != "float" else 16896,
        slow[align] if rate != "float" else 1.0,
        "cudaLaunchKernelExC" if asked.accelerator.capability >= (9, 0) else "cudaLaunchKernel",
    )


def _gemm_name(accelerator: Accelerator, dtype: str, rate: str, tile: int, align: int, layout: str) -> str:
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
        if rate == "half"
        else f"cutlass_80_tensorop_s1688gemm_{tile}x64_16x6_{layout}_align4"
    )
    return f"void cutlass::Kernel2<{core}>({core}::Params)"


def product_kernels(asked: Asked) -> list[Work]:
    """mm, bmm, addmm and baddbmm."""
    at = 1 if asked.base.startswith(("addmm", "baddbmm")) else 0
    left, right = asked.tensor(at), asked.tensor(at + 1)
    batch = left.dims[0] if len(left.dims) == 3 else 1
    m, k, n = left.dims[-2], left.dims[-1], right.dims[-1]
    # cuBLAS is column-major: its first operand is the right one
    layout = "".join("n" if not item.strides or item.strides[-1] == 1 else "t" for item in (right, left))
    return [_gemm(asked, left.dtype, batch, m, n, k, layout, "gemm")]


def _conv_sides(asked: Asked, x: Tensor, weight: Tensor, at: int) -> tuple[int, ...]:
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


def _conv_work(asked: Asked, x: Tensor, weight: Tensor, at: int, way: str) -> list[Work]:
    pixels, filters, depth, channels, groups = _conv_sides(asked, x, weight, at)
    item = ITEM_BYTES.get(x.dtype, 4)
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
        return [
            Work(
                "kernel",
                name,
                f"depthwise {way}",
                2 * moved,
                2.0 * pixels * filters * depth,
                grid=(max(pixels * filters // 512, 1), 1, 1),
                block=(256, 1, 1),
                slowness=1.5,
            )
        ]
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
    product = Work(
        "kernel",
        name,
        f"conv {way}",
        moved,
        2.0 * pixels * filters * depth,
        rate,
        grid,
        (256 if tile == _TILE else 128, 1, 1),
        232,
        81920,
        thin if rate != "float" else 1.0,
    )
    if not asked.precision.converts or rate == "float":
        return [product]
    other = "__nv_bfloat16" if short == "bf16" and rate == "half" else "__half"
    other = other if rate == "half" else "float"
    return [_conversion("nchwToNhwc", other, x.n_bytes), product, _conversion("nhwcToNchw", other, written)]


def _conversion(way: str, kind: str, n_bytes: int) -> Work:
    short = way.replace("To", "2").lower()
    name = (
        f"void cudnn::ops::{way}Kernel<{kind}, {kind}, float, false, true, "
        f"(cudnnKernelDataType_t)2>(cudnn::ops::{short}_params_t<float>, {kind} const*, {kind}*)"
    )
    return Work(
        "kernel",
        name,
        f"layout {way}",
        2 * n_bytes,
        grid=(max(n_bytes // 8192, 1), 1, 1),
        block=(256, 1, 1),
        shared=4224,
    )


def conv_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a conv."""
    return _conv_work(asked, asked.tensor(0), asked.tensor(1), 3, "fprop")


def conv_backward_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of a conv backward."""
    grad, x, weight = asked.tensor(0), asked.tensor(1), asked.tensor(2)
    wanted = [*asked.flags(10), True, True, True][:3]
    found: list[Work] = []
    if wanted[0]:
        found += _conv_work(asked, x, weight, 4, "dgrad")
    if wanted[1]:
        found += _conv_work(asked, x, weight, 4, "wgrad")
    if wanted[2]:
        found += reduce_kernels(replace(asked, name="aten::sum", flat=[grad]))
    return found


def attention_kernels(asked: Asked) -> list[Work]:
    """Return the kernels of an attention."""
    back = "backward" in asked.name
    query, key = asked.tensor(1 if back else 0), asked.tensor(2 if back else 1)
    batch, heads, length, width = (*query.dims, 1, 1, 1, 1)[:4]
    keys = key.dims[-2]
    products = 10 if back else 4
    half = query.dtype in HALF
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
    return [
        Work(
            "kernel",
            name,
            f"attention {way}",
            moved,
            flop,
            rate,
            (max(-(-length // 128), 1), heads, batch),
            (128, 1, 1),
            255,
            49152,
            1.0 if half else 2.5,
        )
    ]
