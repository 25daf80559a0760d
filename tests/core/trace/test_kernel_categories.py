"""What a kernel is for: by its name in every library's spelling, and by what launched it."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.core.trace.kernel_categories import CATEGORIES, categories, kernel_category, operator_category

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>, std::array<char*, 3ul> >(int)"

NAMES = {
    "attention": (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64",
        "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_15BlockFmhaPipelineE",
        "aiter::fmha_fwd_hd128_bf16_rtz",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128>",
        "kernel_unified_attention_3d",
        "_fwd_grouped_kernel_stage1",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short>",
        "triton_tem_fused_flex_attention_0",
    ),
    "GEMM": (
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "void mul_mat_q<(ggml_type)12, 128, false>(char const*, int const*, int const*, int const*, float*)",
        "void mul_mat_vec_dq_q6_K<32, 1>(void const*, float const*, float*, int, int)",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas",
        "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 128u, 128u, 1u, 6u>",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float>",
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>",
        "void marlin::Marlin<256, 1, 8, 8, 4, 8>",
        # a library of grouped products has plain ones too
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>",
        "triton_tem_fused_addmm_3",
        "triton_mm",
    ),
    "MoE": (
        "fused_moe_kernel",
        "void vllm::moe::topkGatingSoftmax<4, 64, 4, 16>",
        "void moe_align_block_size_kernel<int>",
        "void deep_gemm::m_grouped_gemm_fp8_kernel<128>",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GroupedGemm<float>>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
    ),
    "convolution": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4",
        "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x6_nhwc>",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_f2x3_stride1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4>>",
    ),
    "norm and softmax": (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>",
        "MIOpenBatchNormFwdTrainSpatial",
        "void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16>>",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
        "triton_per_fused_add_native_layer_norm_1",
    ),
    "elementwise": (
        ELEMENTWISE.format("CUDAFunctor_add"),
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>",
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>",
        "triton_poi_fused_add_cos_sin_0",
        "triton_poi_fused_0",
    ),
    "copy and layout": (
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "CopyDeviceToHost",
        ELEMENTWISE.format("FillFunctor"),
        "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(int)>>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
        "batched_transpose_32x32_half",
        "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::CopyFunctor<int, long>>",
        "void at::native::multi_tensor_apply_kernel<UnaryOpFunctor<long, 2, 1, 1>, at::native::Copy<long, long> >",
        "SubTensorOpWithScalar1d",
        "SubTensorOpWithCastTensor1d",
        "void at::native::im2col_kernel<float>(long, float const*)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<int>>",
        "triton_poi_fused__to_copy_clone_transpose_3",
    ),
    "quantisation": (
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>",
        "void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>",
        "void kQuantizeBlockwise<float, 4096, 4, 0, 0>",
    ),
    "KV cache": (
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>",
        "void store_kvcache<2048l, 4, false, long>",
        "create_flashinfer_kv_indices_triton",
    ),
    "sampling": (
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>",
        "void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>",
        "void vllm::apply_repetition_penalties_kernel<float>",
    ),
    "embedding": (
        "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false, long, 1ul, 32ul>",
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_warp_per_row_1<float>",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, long>",
    ),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdam>",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>",
        "at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
    ),
    "reduction and sort": (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
        "triton_red_fused_sum_2",
    ),
    "other": ("triton__0d1d2d3de", "kernel", "", "lambda_of_my_own"),
}


@pytest.mark.parametrize(("category", "name"), [(key, name) for key, names in NAMES.items() for name in names])
def test_the_name_says_what_a_kernel_does(category: str, name: str) -> None:
    assert kernel_category(name) == category
    assert category in CATEGORIES


def test_a_long_name_is_read_to_its_arguments_only() -> None:
    assert kernel_category("void mine<" + "a" * 10_000 + ", softmax>") == "other"
    assert kernel_category("triton_poi_fused_" + "mean_pow_" * 1000) == "elementwise"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::mm", "GEMM"),
        ("aten::copy_", "copy and layout"),
        ("aten::native_layer_norm", "norm and softmax"),
        ("aten::convolution_backward", "convolution"),
        ("triton_red_fused_sum_2", "reduction and sort"),
        ("aten::mmd", "other"),
    ],
)
def test_an_operator_says_it_where_the_kernel_does_not(name: str, category: str) -> None:
    assert operator_category(name) == category


def of_all(trace: Trace) -> list[str]:
    return [CATEGORIES[code] for code in categories(trace.devices[0])]


@pytest.mark.parametrize(
    ("owner", "kernel", "category"),
    [
        ("aten::_scaled_dot_product_attention_math", "ampere_sgemm_128x64_tn", "attention"),
        ("vllm::unified_attention_with_output", "void vllm::reshape_and_cache_flash_kernel<float>", "KV cache"),
        ("vllm::moe_forward", "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2", "MoE"),
        ("aten::cudnn_convolution", "ampere_sgemm_128x64_tn", "convolution"),
        ("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float, float>", "copy and layout"),
        ("aten::embedding", "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>", "embedding"),
        ("aten::rms_norm", ELEMENTWISE.format("MulFunctor"), "norm and softmax"),
        ("aten::multinomial", ELEMENTWISE.format("exponential"), "sampling"),
        ("Optimizer.step#SGD.step", ELEMENTWISE.format("CUDAFunctor_add"), "optimizer"),
        ("my_moe_model", "ampere_sgemm_128x64_tn", "GEMM"),
    ],
)
def test_an_operator_outranks_a_name_that_is_too_general(owner: str, kernel: str, category: str) -> None:
    builder = TraceBuilder()
    mark = builder.annotation if owner.startswith("Optimizer.") else builder.op
    mark(owner, 0, 100)
    builder.op("aten::inner", 10, 50)
    builder.launch(20, 5, 40, 30, kernel)
    assert of_all(builder.build()) == [category]


def test_communication_is_recognised_by_what_it_is_and_stays_itself_in_an_optimizer() -> None:
    builder = TraceBuilder().annotation("Optimizer.step#Adam.step", 0, 100)
    builder.launch(20, 5, 40, 30, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)")
    builder.copy(50, 5, 80, 10)
    assert of_all(builder.build()) == ["communication", "copy and layout"]


def test_what_a_closure_launches_is_not_the_optimizers() -> None:
    builder = TraceBuilder().annotation("Optimizer.step#Adam.step", 0, 100)
    builder.op("aten::relu", 5, 20)
    builder.launch(10, 5, 20, 10, ELEMENTWISE.format("CUDAFunctor_add"))
    builder.op("autograd::engine::evaluate_function: ReluBackward0", 30, 30, tid=2)
    builder.op("aten::add_", 70, 20)
    builder.launch(75, 5, 85, 10, ELEMENTWISE.format("CUDAFunctor_add"))
    assert of_all(builder.build()) == ["elementwise", "optimizer"]


def test_a_kernel_without_a_name_of_its_own_is_what_its_operator_says() -> None:
    builder = TraceBuilder().op("triton_red_fused_sum_2", 0, 50)
    builder.launch(20, 5, 40, 30, "triton__0d1d2d3de")
    builder.kernel("triton__0d1d2d3de", 100, 10, correlation=99)
    assert of_all(builder.build()) == ["reduction and sort", "other"]
