from __future__ import annotations

import pytest

from torchtriage.core.names import WIDTH, elide, short_name, visible

COPY = (
    "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
    "const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, "
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}&)::{lambda(int)#1}"
    ">(int, {lambda(int)#1})"
)
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<"
    "float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::"
    "{lambda(float, float)#1}>, unsigned int, float, 4> >(at::native::ReduceOp<float, int>)"
)
NORM = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"
)


# Names as real recordings hold them.
@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3>)",
            "vectorized_elementwise_kernel<CUDAFunctor_add<float>>",
        ),
        (COPY, "elementwise_kern…l_unroll<direct_copy_kernel_cuda<bfloat16>>"),
        (SUM, "reduce_kernel<sum_functor<float>>"),
        (NORM, "fused_add_rms_norm_kernel<bfloat16>"),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, "
            "1>(float*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<float>)",
            "CatArrayBatchedCopy<float>",
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(cutlass_80_"
            "tensorop_s1688gemm_256x64_16x4_nn_align4::Params)",
            "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4",
        ),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
            "multimem_all_reduce_kernel<bfloat16>",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
            "segment_k_off_kernel__5x_cublas",
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT96x96x128_MI16x16x1_SN_LDSB1_AFC1_AG0",
            "Cijk_Alik_Bljk_BBS_MT96x96x128",
        ),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_",
            "add_rmsnorm_quant_kernel",
        ),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassIEEEEEvv", "kentry<Rmsnorm2dFwd>"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllGather_RING_LL"),
        (
            "triton_red_fused__to_copy_add_mean_mul_neg_stack_transpose_unbind_unsqueeze_view_14",
            "triton_red_fused__to_copy_add_mean_mul_n…d_unsqueeze_view_14",
        ),
        ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", "computeOffsetsKernel"),
        ("void plain(int, float*)", "plain"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("attn_fwd", "attn_fwd"),
        ("", ""),
    ],
)
def test_a_kernel_is_named_by_what_tells_it_apart(name, short):
    assert short_name(name) == short


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert('x')</script>",
        "a<b<c<d",
        ">>>)))",
        "void <>(",
        "::<float>()",
        "_Z",
        "_ZN",
        "_ZN9999999999xI",
        "_ZN3abcI" + "L" * 50,
        "Cijk_",
        "(anonymous namespace)::",
        "x" * 10_000,
        "f<" * 5_000 + "(",
        "\x1b[31mred<float>(int)",
    ],
)
def test_whatever_is_no_signature_comes_back_short_and_printable(name):
    short = short_name(name)
    assert short
    assert len(short) <= WIDTH
    assert short.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("größe 日本", "größe 日本"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b1m", r"\x9b1m"),
        ("\u202eabc", r"\u202eabc"),
        ("\u200b\ufeff\u2028", r"\u200b\ufeff\u2028"),
        ("\udcff", r"\udcff"),
    ],
)
def test_unprintable_characters_are_written_out(text, shown):
    assert visible(text) == shown
    assert visible(text).isprintable()


def test_a_long_name_keeps_both_ends():
    assert elide("a" * 30 + "b" * 30, 11) == "aaaaaaa…bbb"
    assert elide("short", 5) == "short"
