"""Clipping gradients makes the host wait, or runs parameter by parameter.

Looks like: ``clip_grad_norm_(..., error_if_nonfinite=True)`` or ``foreach=False``; ``.item()`` of
    the norm in each step; a loop over parameters that takes each gradient's norm or clamps it.
Slow because: the host waits for the norm; or hundreds of small kernels are launched.
Fix: ``clip_grad_norm_(params, 1.0)``, and leave the norm on the device.
Quiet when: the norm is read every N steps.
Source: PyTorch documentation of ``clip_grad_norm_``.
"""

import ast
from collections.abc import Iterator

from torchtriage.core import fixes
from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, keyword, literal, logging_calls
from torchtriage.diagnose.lint.syntax import method_of

RULE = Rule(
    "OPT041", "clip-grad-cost", "optim", "Gradient clipping loops or waits", "medium", over=("SYN001", "LCH016")
)

FIX = fixes.LEAVE_NORM_ON_DEVICE

BY_VALUE = Fix(
    text="Clip all gradients with one call.",
    code="torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield clipping that waits or loops in each step."""
    for call in module.called("torch.nn.utils.clip_grad_norm_"):
        if not call.context.hot:
            continue
        if literal(keyword(call.node, "error_if_nonfinite")) is True:
            yield Hit(call.node, "error_if_nonfinite=True reads the norm in every step", "clip_grad_norm_")
        elif literal(keyword(call.node, "foreach")) is False:
            yield Hit(
                call.node, "foreach=False clips one parameter at a time", "clip_grad_norm_", fix=fixes.CLIP_AT_ONCE
            )
    for call in [*module.sent("item"), *module.called("float")]:
        value = call.receiver if call.attr == "item" else (call.arguments or (call.receiver,))[0]
        if value.norm and call.context.hot:
            yield Hit(call.node, "the norm of the gradients is read in every step", call.attr)
    for loop in module.loops:
        if loop.iterates.kind != "params" or not isinstance(loop.node, ast.For):
            continue
        if not (loop.context.hot or loop.function is not None) or loop.context.rare:
            continue
        if any(logging_call.context.loop is loop for logging_call in logging_calls(module)):
            continue  # looked at, not clipped: its reads are found where they are
        if (norm := _uses(loop, ("norm", "vector_norm"))) is not None:
            yield Hit(
                norm, "the norm of each gradient is computed one by one", "norm", fix=fixes.CLIP_AT_ONCE, span=loop.node
            )
        elif (clamp := _uses(loop, ("clamp_", "clip_"))) is not None:
            yield Hit(clamp, "gradients are clipped one by one", "clamp_", fix=BY_VALUE, span=loop.node)


def _uses(loop: SourceLoop, methods: tuple[str, ...]) -> ast.Call | None:
    """Return where one of these methods is called on, or given, a gradient."""
    for node in ast.walk(loop.node):
        if isinstance(node, ast.Call) and method_of(node) in methods and ".grad" in ast.unparse(node):
            return node
    return None
