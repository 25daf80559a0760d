"""What kind of work a row is, from its name: tables that the features are sums over.

A name is looked at once however many rows bear it; whatever no table knows is ``other``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = tuple[tuple[str, str], ...]

# the first that matches from the beginning of the name counts
HOST_FAMILIES: Table = (
    ("step", r"ProfilerStep#"),
    ("loader here", r"enumerate\(DataLoader\)#_Single"),
    ("loader", r"enumerate\(DataLoader\)"),
    ("optimizer", r"Optimizer\.step#"),
    ("zero_grad", r"Optimizer\.zero_grad#"),
    ("engine", r"autograd::|torch::autograd|\w+Backward\d*$"),
    ("compiled", r"Torch-Compiled|## Call Compiled|Compiled|.*(?:inductor|dynamo)"),
    ("launch", r"(?:cuda|hip|cu|xpu|mtia)\w*(?:Launch|Enqueue)"),
    ("sync", r"(?:cuda|hip|cu|xpu|mtia)\w*(?:Synchronize|WaitEvent|EventQuery)"),
    ("device_copy", r"(?:cuda|hip|cu|xpu|mtia)\w*Mem(?:cpy|set)"),
    ("device_memory", r"(?:cuda|hip|cu|xpu|mtia)\w*(?:Malloc|Free|Alloc|Host)"),
    ("runtime", r"(?:cuda|hip|xpu|mtia)[A-Z]|cu[A-Z]"),
    ("reducer search", r"torch\.distributed\.\w+\.reducer::search"),
    ("reducer", r"torch(?:::|\.)distributed(?:::|\.)|DistributedDataParallel"),
    ("communication", r"c10d::|nccl:|gloo:|mpi:|record_param_comms|\w+::all_?(?:reduce|gather)"),
    ("foreach", r"aten::_(?:foreach|fused_(?:adam|sgd|lion|ada))|.*multi_tensor"),
    ("update", r"aten::(?:lerp|addcmul|addcdiv)_?$"),
    ("attention", r"\w+::\w*(?:scaled_dot_product|attention)"),
    ("convolution", r"aten::\w*conv(?:olution|\dd|_)"),
    ("batched matmul", r"aten::(?:ba)?d?d?bmm"),
    ("matmul", r"\w+::\w*?(?:addmm|mm|matmul|linear|einsum|gemm)(?:_|$)"),
    ("norm", r"\w+::\w*(?:batch|layer|group|instance|rms)_?norm"),
    ("softmax", r"aten::_?(?:log_)?softmax"),
    ("loss", r"aten::\w*(?:_loss|cross_entropy)"),
    (
        "activation",
        r"aten::_?(?:gelu|relu|silu|tanh|sigmoid|threshold|clamp_min|hardtanh|hard|elu"
        r"|leaky_relu|prelu|mish|softplus)",
    ),
    ("pool", r"aten::\w*(?:pool\dd|upsample|interpolate|grid_sampl)"),
    ("random", r"aten::(?:native_|feature_)?(?:dropout|bernoulli|rand|normal|uniform)"),
    ("read", r"aten::(?:item|_local_scalar_dense|is_nonzero|equal)$"),
    ("copy", r"aten::(?:copy_|_copy_from)"),
    ("convert", r"aten::(?:to|_to_copy|type_as|_autocast|pin_memory|_pin_memory)$"),
    ("layout", r"aten::(?:contiguous|clone|_nnpack|resolve)"),
    ("fill", r"aten::(?:zero_|fill_|fill)$"),
    (
        "allocate",
        r"aten::(?:new_)?_?(?:empty|zeros|ones|full|resize|set_|scalar_tensor|arange"
        r"|lift)",
    ),
    ("join", r"aten::_?(?:cat|stack|hstack|vstack|concat|pad|constant_pad|repeat|tile)"),
    ("index", r"aten::_?(?:index|gather|scatter|embedding|masked|nonzero|one_hot|take|where)"),
    (
        "check",
        r"aten::(?:isnan|isinf|isfinite|any|all|_is_any_true|_is_all_true|ne|eq|lt|le|gt|ge"
        r"|logical|bitwise|allclose|isclose)",
    ),
    (
        "reduce",
        r"aten::(?:sum|mean|amax|amin|max|min|var|std|norm|linalg_vector_norm|argmax"
        r"|argmin|topk|sort|cumsum|prod)",
    ),
    (
        "view",
        r"aten::_?(?:view|reshape|as_strided|t$|transpose|permute|expand|slice|select"
        r"|unsqueeze|squeeze|flatten|detach|alias|narrow|unbind|split|chunk|unfold|conj|unsafe_view|movedim"
        r"|broadcast|result_type|numpy_T|diagonal)|detach",
    ),
    ("power", r"aten::pow"),
    (
        "pointwise",
        r"(?:aten|prims)::_?(?:r?sub|add|mul|div|sqrt|rsqrt|exp|log|sin|cos|abs|neg"
        r"|clamp|square|reciprocal|erf|floor|round|maximum|minimum|addc|true_divide|sign)",
    ),
    ("annotation", r"(?!)"),
    ("other", r""),
)
"""Ops, annotations and runtime calls. ``annotation`` is given by a row's kind."""

WORK_FAMILIES: Table = (
    ("copy_to_device", r"Memcpy HtoD|CopyHostToDevice"),
    ("copy_to_host", r"Memcpy DtoH|CopyDeviceToHost"),
    ("copy", r"Memcpy|Copy(?:Device|Peer)"),
    ("set", r"Memset|FillBuffer"),
    ("communication", r"(?i:nccl|rccl|mscclpp|.*all_?reduce|.*allgather|.*reduce_scatter)"),
    ("attention", r"(?i:.*(?:flash|fmha|attention|sage_))"),
    ("convert_layout", r"(?i:.*(?:nchwToNhwc|nhwcToNchw|batched_transpose|transpose_))"),
    ("convolution", r"(?i:.*(?:conv|wgrad|dgrad|winograd|cudnn::cnn))"),
    ("matmul", r"(?i:.*(?:gemm|Cijk_|cutlass|matmul|cublas|_mm_|gemv))"),
    ("norm", r"(?i:.*(?:batch_?norm|bn_(?:fw|bw)|layer_?norm|rms_?norm|group_?norm))"),
    ("softmax", r"(?i:.*softmax)"),
    ("random", r"(?i:.*(?:dropout|distribution|philox))"),
    ("foreach", r".*multi_tensor_apply"),
    ("direct_copy", r".*(?:direct_copy|CatArrayBatchedCopy|copy_kernel)"),
    ("fill", r".*FillFunctor"),
    ("compiled", r"triton"),
    ("index", r"(?i:.*(?:index|gather|scatter|embedding|sort|scan|select|cub::))"),
    ("reduce", r"(?i:.*reduce)"),
    ("pointwise", r"(?i:.*(?:elementwise|pointwise))"),
    ("other", r""),
)
"""What runs on a device."""

FRAME_FAMILIES: Table = (
    ("module", r"nn\.Module: "),
    ("collect", r"<built-in (?:function|method) (?:collect|gc)"),
    ("sleep", r"<built-in (?:function|method) sleep"),
    ("wait", r"<built-in (?:function|method) (?:poll|select|acquire|recv|read|wait)|.*queues?\.py"),
    ("show", r".*_tensor_str\.py|<built-in (?:function|method) (?:print|write|format|repr)"),
    ("trace", r"traceback\.py|linecache\.py|.*/traceback\.py|.*/linecache\.py|tokenize\.py"),
    ("loader", r"torch/utils/data/|.*/torch/utils/data/"),
    ("optimizer", r"(?:.*/)?torch/optim/"),
    ("autograd", r"(?:.*/)?torch/(?:autograd|_tensor\.py)"),
    ("compiler", r"(?:.*/)?torch/(?:_dynamo|_inductor|_functorch|fx)/"),
    ("torch", r"(?:.*/)?torch/"),
    ("array", r"(?:.*/)?numpy/|<built-in .* of numpy|<built-in method .*(?:Generator|ndarray)"),
    ("builtin", r"<"),
    ("library", r".*(?:site-packages|dist-packages|lib/python\d)|(?:transformers|diffusers|timm)/"),
    ("other", r""),
)
"""Python frames."""


def family_codes(names: Sequence[str], table: Table) -> NDArray[np.int64]:
    """Return int64[len(names)]: the row of the table that each name belongs to."""
    # one alternation: the first row that matches is the group that is set
    match = re.compile("|".join(f"({pattern})" for _, pattern in table), re.DOTALL).match
    return np.fromiter(
        (found.lastindex - 1 if (found := match(name)) and found.lastindex else len(table) - 1 for name in names),
        np.int64,
        len(names),
    )
