"""Activations are computed a second time in the backward pass, to save memory that is there.

Looks like: ``gradient_checkpointing=True``, ``model.gradient_checkpointing_enable()``, ``checkpoint(block, x)``
    or a wrapper for it, in a program whose own sizes say that its model is small: no width above 768, no
    weights that it loads.
Slow because: each checkpointed block runs its forward pass again for its backward pass, a third more work.
Fix: switch it off, and on again where memory runs out; or checkpoint only the blocks that need it.
Quiet when: it depends on a setting that is off, or a comment beside it speaks of memory. A remark where sizes are
    large or not known: a trade that only the memory of the machine decides.
Source: PyTorch documentation of ``torch.utils.checkpoint``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, arguments, keyword, text_of
from torchtriage.diagnose.lint.syntax import holds

RULE = Rule("MEM122", "recompute-in-backward", "alloc", "Activations are computed a second time", "low")

FIX = Fix(
    text="Keep the activations while memory allows it.",
    code="""TrainingArguments(..., gradient_checkpointing=False)   # the default
x = block(x)                                           # not checkpoint(block, x)""",
    link="https://docs.pytorch.org/docs/stable/checkpoint.html",
)

_WIDE = 768  # the width of the smallest models that are commonly short of memory
_SWITCHES = ("gradient_checkpointing", "activation_checkpointing", "use_checkpoint", "grad_checkpointing")
_METHODS = ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "set_grad_checkpointing")
_CALLS = re.compile(r"(^|\.)(checkpoint(_sequential|_wrapper)?|apply_activation_checkpointing)$")
_LOADS = re.compile(r"from_pretrained\(|hub\.load\(|create_model\(|weights=|load_state_dict\(")
_SIZES = re.compile(r"hid|embd?|dim|width|channel|model|d_ff|inner|intermediate|features|size", re.IGNORECASE)
_MEMORY = re.compile(r"\b(memory|OOM|GB|GiB|VRAM)\b", re.IGNORECASE)


def find(module: Module) -> Iterator[Hit]:
    """Yield the places that switch recomputation on."""
    if "checkpoint" not in module.text or not module.is_program:
        return
    if not (module.trains or "Trainer" in module.text or ".fit(" in module.text):
        return
    for call in module.calls:
        switch = _switched_on(module, call)
        if switch is None or call.context.seldom or _for_memory(module, switch):
            continue
        on = _holds(module, call)
        if on is False:
            continue
        yield Hit(
            switch,
            f"activations are computed again in the backward pass: {text_of(call.node)}",
            call.attr,
            severity=None if on and _is_small(module) else "note",
        )


def _switched_on(module: Module, call: SourceCall) -> ast.expr | None:
    """Return what switches recomputation on in a call."""
    for name in _SWITCHES:
        given = keyword(call.node, name)
        if given is not None and module.constant(given, call.context) is True and call.attr != "add_argument":
            return given
    if call.attr in _METHODS:
        off = any(module.constant(item, call.context) is False for item in arguments(call.node))
        return None if off else call.node
    return call.node if "checkpoint" in call.name and _CALLS.search(call.name) and "torch." in call.name else None


def _holds(module: Module, call: SourceCall) -> bool | None:
    """Return whether all conditions around a call in its function hold as settings stand, None when not known."""
    function = call.context.function
    around = [
        module.settings.truth(node.test, function.node if function is not None else None)
        for node in ast.walk(module.body(function))
        if isinstance(node, ast.If | ast.IfExp) and holds(node, call.node)
    ]
    return False if False in around else None if None in around else True


def _for_memory(module: Module, node: ast.expr) -> bool:
    """Return whether a comment beside it says why."""
    rows = module.text.split("\n")[max(node.lineno - 2, 0) : node.lineno]
    return any(_MEMORY.search(row.partition("#")[2]) for row in rows)


def _is_small(module: Module) -> bool:
    """Return whether all widths are known and small, and no weights come from elsewhere."""
    if _LOADS.search(module.text):
        return False
    widths = [width for call in module.calls for width in _widths(module, call)]
    return bool(widths) and max(widths) <= _WIDE


def _widths(module: Module, call: SourceCall) -> Iterator[int]:
    """Yield the numbers that a layer or a configuration is made with."""
    layer = call.name.startswith("torch.nn.") and call.attr[:1].isupper() and "Embedding" not in call.attr
    if not layer and not call.attr.endswith("Config"):
        return
    named = [
        item.value for item in call.node.keywords if item.arg and _SIZES.search(item.arg) and "vocab" not in item.arg
    ]
    given = arguments(call.node) if layer else named
    for node in given:
        known = module.constant(node, call.context)
        if type(known) is int:
            yield known
