"""A long chain of pointwise operators runs one by one.

Looks like: a function of a step with sixteen or more operators on tensors that work element by
    element (``x * a + b``, ``sigmoid``, ``clamp``, ``where``), not compiled, and without a layer.
Slow because: each operator reads and writes whole tensors to do a few operations on them; compiled,
    the chain is one kernel that keeps the values in between in registers.
Fix: ``torch.compile`` the function; it pays once the function has run some hundred times.
Quiet when: the function is compiled, holds matrix products or layers, or the chain is short.
Source: PyTorch performance tuning guide, "Fuse operations".
"""

import ast
from collections import Counter
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, SourceFunction, compiled
from torchtriage.diagnose.lint.torch_names import words

RULE = Rule("LCH015", "unfused-elementwise", "launch", "Chains of pointwise kernels are not fused", "low")

FIX = Fix(
    text="Compile the function that holds the chain.",
    code="grade = torch.compile(grade)   # once; the first call compiles, for seconds",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#fuse-operations",
)

MIN_CHAIN = 16
_POINTWISE = words("""
    abs add addcdiv addcmul ceil clamp clamp_max clamp_min clip cos cosh div exp exp2 expm1 floor hypot lerp log log10
    log1p log2 maximum minimum mul neg pow reciprocal relu round rsqrt sigmoid sign silu sin sinh softplus sqrt square
    sub tan tanh where gelu atan2 atan asin acos erf frac fmod remainder
""")
_HEAVY = words("""
    matmul mm bmm linear conv1d conv2d conv3d einsum baddbmm addmm softmax scaled_dot_product_attention cdist topk sort
    interpolate grid_sample
""")


def find(module: Module) -> Iterator[Hit]:
    """Yield functions of a step that are a long pointwise chain."""
    if not module.is_program:
        return
    chains: Counter[SourceFunction] = Counter()
    heavy: set[SourceFunction] = set()
    contexts: dict[SourceFunction, Context] = {}
    for call in module.calls:
        function = call.context.function
        if function is None or call.context.rare:
            continue
        name = call.attr.removesuffix("_")
        if name in _HEAVY or call.receiver.kind == "module" or call.callees:
            heavy.add(function)
        elif name in _POINTWISE and "tensor" in (call.value.kind, call.receiver.kind):
            chains[function] += 1
            contexts[function] = call.context
    for function, number in chains.items():
        context = contexts[function]
        looped = any(loop.function is function and not loop.comprehension for loop in module.loops)
        if function in heavy or looped or function.has_backward or not context.hot or compiled(context):
            continue
        operators = sum(
            isinstance(node, ast.BinOp) and module.value(node).kind == "tensor" and not module.value(node).scalar
            for node in ast.walk(function.node)
        )
        if number >= 2 and number + operators >= MIN_CHAIN:
            message = f"{number + operators} pointwise operators run one by one in {function.name}()"
            yield Hit(function.node.body[-1], message, span=function.node)
