"""Something in a compiled function cannot be compiled and splits it.

Looks like: ``print``, logging, ``.item()``, ``.tolist()``, ``if`` on a tensor's value, Python's ``random``, or NumPy
    functions without a counterpart in torch, in a function under ``torch.compile``, or in what it calls.
Slow because: each break returns to Python, ends fusion, and starts another graph.
Fix: move prints and reads out; ``torch.where`` or ``torch.cond`` instead of ``if``; find all breaks with
    ``fullgraph=True``.
Quiet when: the condition is on shapes, types or Python flags, or behind
    ``torch.compiler.is_compiling()``.
Source: PyTorch documentation, "torch.compile: working with graph breaks".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, compiled, logging_calls, reads, text_of
from torchtriage.diagnose.lint.syntax import method_of
from torchtriage.diagnose.lint.torch_names import REDUCTIONS, words

RULE = Rule(
    "CMP030",
    "compile-graph-break",
    "compile",
    "A compiled function is split into several graphs",
    "medium",
    over=("SYN001", "SYN002", "SYN004", "CPY006"),
)

FIX = Fix(
    text="Move it out of the compiled function, and compile with fullgraph=True to get an error for each break.",
    code="""model = torch.compile(model, fullgraph=True)  # raises at the first break
# TORCH_LOGS=graph_breaks python train.py   # lists them all""",
    link="https://docs.pytorch.org/docs/stable/torch.compiler_faq.html#graph-breaks",
)


# of NumPy's functions these have no counterpart in torch; the others are traced
_UNTRACED = words("""
    apply_along_axis apply_over_axes argpartition block delete digitize ediff1d extract frombuffer fromfunction fromiter
    insert interp intersect1d isin lexsort nanargmax nanargmin nancumsum nanmax nanmean nanmedian nanmin nanpercentile
    nanquantile nanstd nansum nanvar ndenumerate ndindex nditer packbits partition piecewise place poly polyfit polyval
    putmask ravel_multi_index roots select setdiff1d setxor1d spacing trapezoid trapz trim_zeros union1d unpackbits
    unravel_index unwrap vectorize
""")


def find(module: Module) -> Iterator[Hit]:
    """Yield what breaks the graph of compiled functions."""
    if not any(function.compiled for function in module.functions):
        return
    for call in logging_calls(module):
        if _runs(call.context):
            yield Hit(call.node, f"breaks the graph: {text_of(call.node)}", call.attr)
    for node, context, how in reads(module):
        if _runs(context):
            what = "this condition on a tensor" if how in ("if", "while", "not", "and") else how
            if how in ("item", "tolist", "numpy", "float", "int", "bool"):
                what = f"{how}()"
            yield Hit(node, f"{what} breaks the graph: {text_of(node)}", how)
    for call in module.called("int", "float", "bool"):
        inner = call.node.args[0] if len(call.node.args) == 1 else None
        if (
            _runs(call.context)
            and inner is not None
            and method_of(inner) in REDUCTIONS
            and module.value(inner).kind == "unknown"
        ):
            yield Hit(call.node, f"{call.attr}() breaks the graph: {text_of(call.node)}", call.attr)
    for call in module.sent("tolist"):
        if _runs(call.context) and call.receiver.kind == "tensor":
            yield Hit(call.node, f"{call.attr}() breaks the graph", call.attr)
    for call in module.calls:
        random = call.name.startswith(("random.", "numpy.random."))
        foreign = call.name.startswith("numpy.") and call.name[6:] in _UNTRACED
        if _runs(call.context) and (random or foreign or call.name == "torch._dynamo.graph_break"):
            yield Hit(call.node, f"breaks the graph: {text_of(call.node)}", call.attr)


def _runs(context: Context) -> bool:
    return compiled(context) and not context.rare
