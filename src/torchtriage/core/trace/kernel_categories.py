"""What each kernel is for: attention, GEMM, norm and so on, by its name and by the operator that launched it.

Two ordered tables and one pass over the distinct names; the first rule that matches decides. A kernel's name says what
it is. An operator outranks the name where the name is too general: the product inside
``_scaled_dot_product_attention_math`` is attention, the additions inside ``Optimizer.step`` are the optimizer's.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.optimizer_steps import closures, optimizer_marks
from torchtriage.core.trace.schema import Kind

ATTENTION, GEMM, MOE, CONVOLUTION = "attention", "GEMM", "MoE", "convolution"
NORM, ELEMENTWISE, COPY, QUANTISATION = "norm and softmax", "elementwise", "copy and layout", "quantisation"
KV_CACHE, SAMPLING, EMBEDDING, OPTIMIZER = "KV cache", "sampling", "embedding", "optimizer"
COMMUNICATION, REDUCTION, OTHER = "communication", "reduction and sort", "other"

CATEGORIES = (
    *(ATTENTION, GEMM, MOE, CONVOLUTION, NORM, ELEMENTWISE, COPY, QUANTISATION),
    *(KV_CACHE, SAMPLING, EMBEDDING, OPTIMIZER, COMMUNICATION, REDUCTION, OTHER),
)

_MAX_NAME = 256
"""Characters looked at: what a kernel is stands in front of its template arguments' arguments."""

# Names in lower case; a word that also occurs inside others has its borders written out.
_KERNELS = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        # the profilers' own names of copies and sets
        (COPY, r"^mem(?:cpy|set)|^copy(?:host|device|peer)|^__amd_rocclr_|^fillbuffer"),
        # FBGEMM's sparse features; its fused embeddings hold their optimizer
        (
            EMBEDDING,
            r"(?:split|dense)_embedding|pooled_embs|embedding_?bag|embedding_(?:dense_)?(?:backward|forward)|embedding_kernel(?<!rotary_embedding_kernel)"
            r"|fbgemm_gpu::_?\w*(?:permute|jagged|bucketize|lengths|sparse)|bounds_check_ind|linearize_index",
        ),
        # XLA's fusions are named after their last operation; what moves or reduces says so
        (
            ELEMENTWISE,
            r"^(?:loop|wrapped)_(?!.*(?:reduce|transpose|copy|gather|scatter|slice|concat|pad|sort))\w*fusion",
        ),
        # a foreach kernel that copies serves whoever moves many tensors; within a step of the optimizer it is its own
        (COPY, r"multi_tensor_apply.*(?:copyfunctor|::copy<)"),
        # PyTorch's foreach kernels, Apex, bitsandbytes, gradient scaling
        (
            OPTIMIZER,
            r"multi_tensor_apply|adam(?:w|functor|math|_)|adagrad|lamb(?:functor|_stage)|sgdfunctor|koptimizer"
            r"|amp_update_scale|amp_non_finite",
        ),
        # FlashInfer reads the paged cache in its attention: not the cache's own kernels
        (ATTENTION, r"batch(?:decode|prefill|mla)|single(?:decode|prefill)|paged_?attention|merge_?states?"),
        (
            KV_CACHE,
            r"_and_(?:kv_)?cache|kv_?cache_?(?:store|write|append|copy|update|manager)|kv_indices"
            r"|(?:store|write|set|append|copy|gather|update|move)_?(?:mla_|paged_?)?kv_?(?:cache|buffer)"
            r"|(?:copy|swap)_blocks|appendpagedkv",
        ),
        (
            MOE,
            r"moe|topk_?gating|topk_?softmax|experts?(?![a-z])|grouped_?gemm(?!::)|gemm_?grouped|grouped_mm|groupproblemshape"
            r"|m_grouped|matmul_ogs|finalize_matmul_scatter|combined_routing|bitmatrix|topk_sum_and_topk_idx"
            r"|(?<![a-z])ep_(?:gather|scatter)",
        ),
        (
            ATTENTION,
            r"flash(?!infer)|fmha|attention|attn|sdpa|sage_(?:fwd|bwd)|(?<![a-z])mla(?![a-z])|xqa|mmha"
            r"|(?<![a-z0-9])_fwd_(?:grouped_)?kernel",
        ),
        (
            SAMPLING,
            r"(?<!up)(?<!down)(?<!grid)(?<!grid_)(?<!re)sampl|multinomial|top_?k_?top_?p|top_?p_?(?:mask|renorm)"
            r"|renormprob|gumbel|penalt|logits?_processor|rejection|token_bitmask",
        ),
        (
            COPY,
            r"direct_copy|copy_kernel|copy_device|fillfunctor|catarray|nchwto|nhwcto|foldednhwc|batched_transpose"
            r"|converttensor|im2(?:d2)?col|col2im|subtensorop|gpu_index_kernel|index_elementwise|_scatter_gather|indexselect|indexing_backward|index_put",
        ),
        # FlashAttention's layer norm is called ln_fwd, cuDNN's batch norm bn_fw
        (
            NORM,
            r"softmax|(?:batch|layer|group|instance|rms|weight|qk|l2)_?norm|(?<![a-z])bn_(?:fw|bw)|(?<![a-z])ln_(?:fwd|bwd)"
            r"|rowwisemoments|gammabeta|computefusedparams|computeinternalgradients|miopenbn|mixed_prec_bn",
        ),
        (ELEMENTWISE, r"elementwise_(?:kernel|grid)|scalepackedtensor|upsample"),
        (REDUCTION, r"(?:max|avg|average)_?pool|pooling|adaptive_a(?:vg|verage)"),
        (
            CONVOLUTION,
            r"(?<![a-z])conv(?!er)|convol|asmconv|conv\dd|[fdw](?:prop|grad)|winograd|implicit_?gemm|igemm_(?:fwd|bwd|wrw)"
            r"|scudnn|cudnn|cask_|fft[12]d",
        ),
        (
            GEMM,
            r"gemm|gemv|wvspl|cijk_|cutlass|matmul|mul_mat|nvjet|cublas|(?<![a-z])b?mm_|_mm(?![a-z])|wmma|xmma|mfma|splitk|marlin"
            r"|machete|hipblaslt|rocblas|llmm|w8a8",
        ),
        (QUANTISATION, r"quant|(?:cast|convert)_to_fp8|scaled_fp8|fp8_(?:cast|convert)|to_mxfp|cvt_fp"),
        (
            REDUCTION,
            r"reduc|scan|sort|top_?k|unique|cumsum|cumprod|cub::|rocprim|thrust|argm(?:ax|in)|histogram|nonzero"
            r"|searchsorted|nll|entropy|loss|kthvalue|norm_kernel|(?<![a-z])nms",
        ),
        (
            COPY,
            r"copy|transpose|permut|concat|gather|scatter|index|fill|memset|(?<![a-z])(?:pad|roll|flip|repeat|slice)"
            r"|shuffle|(?<!broad)cast|convert",
        ),
        (
            ELEMENTWISE,
            r"element_?wise|pointwise|rotary|(?<![a-z])rope|dropout|[sg][ie]lu|swi?glu|relu|act_and_mul|activation"
            r"|sigmoid|tanh|(?<![a-z])(?:add|mul|sub|div|exp|where|mask|bias|scale|clamp|vector_?add)|bias_|upsample"
            r"|interp|grid_sampler|roi_|arange|linspace|tri[ul]|bernoulli|philox|random|distribution",
        ),
    )
)

# torch.compile names a kernel after the nodes of the graph that it joins, its neighbours among them
_GENERATED = re.compile(r"^triton_(?:(?:(poi|red|per|spl|for|unk|tem|mm|bmm)_)?fused_|(mm|bmm|tem)_)")
_TEMPLATES = ((ATTENTION, r"attention|attn"), (CONVOLUTION, r"conv"), (MOE, r"grouped_mm"), (GEMM, r""))
_JOINED = (
    (NORM, r"norm|softmax|var_mean|^(?=.*mean_)(?=.*pow_)(?=.*rsqrt)"),
    (QUANTISATION, r"quant|fp8"),
    (SAMPLING, r"multinomial"),
    (EMBEDDING, r"embedding"),
)
_MOVES = re.compile(
    r"(?:^|_)(?:_?to_copy|_?unsafe_view|view|reshape|clone|copy_?|cat|stack|t|transpose|permute|expand|squeeze|unsqueeze"
    r"|slice|slice_scatter|select|split|split_with_sizes|unbind|constant_pad_nd|as_strided|full|full_like|zeros"
    r"|zeros_like|ones|ones_like|empty|empty_like|index|index_select|gather|flip|roll|repeat|detach|alias|lift_fresh)(?=_|$)"
)

_ANY = frozenset(CATEGORIES) - {COMMUNICATION}
_GENERAL = frozenset({ELEMENTWISE, REDUCTION, OTHER})

# Operators whose kernels are theirs: which of the categories that a kernel's name gives they replace.
_OWNERS = tuple(
    (category, re.compile(pattern), replaced)
    for category, pattern, replaced in (
        (OPTIMIZER, r"^Optimizer\.", _ANY),
        (ATTENTION, r"scaled_dot_product|flash_attn|(?:flash|efficient|unified|paged)_attention", _ANY - {KV_CACHE}),
        (MOE, r"moe_forward|fused_moe|fused_experts|grouped_mm", _ANY - {KV_CACHE, ATTENTION}),
        (SAMPLING, r"aten::multinomial|top_k_top_p|sampling_from", _GENERAL | {NORM, COPY}),
        (EMBEDDING, r"aten::embedding|EmbeddingBackward|EmbeddingBag|fbgemm::|split_embedding", _GENERAL | {COPY}),
        (KV_CACHE, r"_cache_ops::|reshape_and_cache|kv_cache", _GENERAL | {COPY, QUANTISATION}),
        (CONVOLUTION, r"conv(?:olution|\dd|_transpose|_depthwise)", frozenset({GEMM, OTHER})),
        (NORM, r"(?:batch|layer|group|instance|rms)_norm|softmax", _GENERAL),
        (QUANTISATION, r"quant(?!ile)|scaled_fp8", _GENERAL),
    )
)

# What an operator's own kernels are, where their names say nothing.
_OPERATORS = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        (GEMM, r"::_?(?:mm|addmm|bmm|baddbmm|linear|matmul|dot|mv|addmv|einsum|int_mm|scaled_mm)(?:_out)?$|gemm"),
        (
            REDUCTION,
            r"::_?(?:sum|mean|a?max|a?min|arg\w+|topk|sort|cum\w+|any|all|norm|std|var|nonzero|unique\w*)$|pool|loss",
        ),
        (
            COPY,
            r"::_?(?:copy_|to_copy|clone|contiguous|cat|stack|index\w*|gather|scatter\w*|fill_|zero_|roll|flip|repeat)$",
        ),
    )
)

Codes = NDArray[np.int8]


def categories(device: Device) -> Codes:
    """Return int8[len(device.rows)]: for each of its work rows an index into :data:`CATEGORIES`."""
    trace, rows = device.trace, device.rows
    by_name = _by_name(trace, trace.name[rows])
    code = by_name[trace.name[rows]]
    op = trace.links.op[rows]
    unclear = np.flatnonzero((code == _CODE[OTHER]) & (op >= 0))
    if len(unclear):
        names = trace.name[op[unclear]]
        code[unclear] = _by_name(trace, names, operator=True)[names]
    owner = _owners(trace, trace.links.call[rows])
    owned = np.flatnonzero((owner >= 0) & (trace.kind[rows] == Kind.KERNEL))
    replace = _REPLACES[owner[owned], code[owned]]
    code[owned[replace]] = _OWNER_CODE[owner[owned[replace]]]
    code[device.comm] = _CODE[COMMUNICATION]
    return code


def _by_name(trace: Trace, names: NDArray[np.int32], *, operator: bool = False) -> Codes:
    """Return int8[len(trace.names)]: the category of each name that occurs among ``names``."""
    out = np.full(len(trace.names), _CODE[OTHER], np.int8)
    for name in np.flatnonzero(np.bincount(names, minlength=1)).tolist():
        text = trace.names[name]
        out[name] = _CODE[operator_category(text) if operator else kernel_category(text)]
    return out


def _owners(trace: Trace, calls: NDArray[np.int32]) -> Codes:
    """Return for each call the rule of ``_OWNERS`` that its outermost owner follows, -1 without one."""
    hosts = trace.is_kind(Kind.OP, Kind.ANNOTATION)
    rule = np.full(len(trace.names), -1, np.int8)
    for name in np.flatnonzero(np.bincount(trace.name[hosts], minlength=1)).tolist():
        rule[name] = _owner(trace.names[name])
    mask = hosts & (rule[trace.name] >= 0)
    out = np.full(len(calls), -1, np.int8)
    if mask.any():
        linked = np.flatnonzero(calls >= 0)
        each, which = np.unique(calls[linked], return_inverse=True)
        row = trace.tree.outermost(each, mask)
        called = closures(trace).rows[each]
        row[called] = trace.tree.outermost(each[called], mask & ~optimizer_marks(trace))
        out[linked] = np.where(row >= 0, rule[trace.name[row]], -1)[which]
    return out


@lru_cache(maxsize=1 << 14)
def kernel_category(name: str) -> str:
    """Return what a kernel of this name does, ``other`` where the name does not say.

    Communication is recognised by :func:`~torchtriage.core.trace.collectives.communicates`, not here.
    """
    text = name[:_MAX_NAME].lower()
    generated = _GENERATED.match(text)
    if generated is not None:
        return _generated(generated[1] or generated[2] or "", text[generated.end() :])
    for category, pattern in _KERNELS:
        if pattern.search(text):
            return category
    return OTHER


def _generated(kind: str, nodes: str) -> str:
    if kind in ("tem", "mm", "bmm"):
        return next(category for category, pattern in _TEMPLATES if re.search(pattern, nodes))
    for category, pattern in _JOINED:
        if re.search(pattern, nodes):
            return category
    nodes = nodes.rstrip("_0123456789")
    if nodes and not _MOVES.sub("", nodes):
        return COPY
    return REDUCTION if kind in ("red", "per", "spl") else ELEMENTWISE


@lru_cache(maxsize=1 << 14)
def operator_category(name: str) -> str:
    """Return what an operator's own kernels do; a generated kernel's operator bears its name."""
    if _GENERATED.match(name):
        return kernel_category(name)
    for category, pattern in _OPERATORS:
        if pattern.search(name):
            return category
    owner = _owner(name)
    return _OWNERS[owner][0] if owner >= 0 else OTHER


@lru_cache(maxsize=1 << 14)
def _owner(name: str) -> int:
    text = name[:_MAX_NAME]
    return next((index for index, (_, pattern, _) in enumerate(_OWNERS) if pattern.search(text)), -1)


_CODE = {category: index for index, category in enumerate(CATEGORIES)}
_OWNER_CODE = np.array([_CODE[category] for category, *_ in _OWNERS], np.int8)
_REPLACES = np.array([[category in replaced for category in CATEGORIES] for *_, replaced in _OWNERS])


def words() -> frozenset[str]:
    """Return the words, in lower case, that the rules look for in names."""
    patterns = [pattern for table in (_KERNELS, _OPERATORS) for _, pattern in table]
    patterns += [pattern for _, pattern, _ in _OWNERS]
    texts = [pattern.pattern for pattern in patterns] + [pattern for _, pattern in (*_TEMPLATES, *_JOINED)]
    # what an escape or a class of characters holds is no word
    return frozenset(
        word for text in texts for word in re.findall(r"\\.|\[[^\[\]]*\]|([a-z]{2,})", text.lower()) if word
    )
