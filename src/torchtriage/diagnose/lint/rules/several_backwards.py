"""The losses of one forward pass are backpropagated one by one.

Looks like: ``a.backward(retain_graph=True)`` and then ``b.backward()`` in one step, with nothing between that needs
    the first gradients; ``for loss in losses: loss.backward(retain_graph=True)``.
Slow because: the part of the graph that the losses share is walked backward once for each of them, and its
    activations stay in memory meanwhile.
Fix: add up the losses and call ``backward`` once: the gradients are the same.
Quiet when: a step, a clip or a read of the gradients stands between them, or they update different networks.
Source: PyTorch documentation of ``torch.Tensor.backward``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import attributes_in, method_of
from torchtriage.diagnose.lint.torch_names import words

RULE = Rule("OPT102", "several-backwards", "optim", "Each loss runs its own backward pass", "medium", over=("MEM029",))

FIX = Fix(
    text="Add the losses, and run backward once.",
    code="(loss_a + 0.5 * loss_b).backward()",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
)

_BETWEEN = words("step zero_grad unscale_ clip_grad_norm_ clip_grad_value_ no_sync requires_grad_ clone")


def find(module: Module) -> Iterator[Hit]:
    """Yield backward passes that keep the graph for the next one."""
    for call in module.sent("backward"):
        if not (call.context.hot or call.context.step_loop is not None):
            continue
        if (
            literal(keyword(call.node, "retain_graph")) is not True
            or literal(keyword(call.node, "create_graph")) is True
        ):
            continue
        following = _next(module, call)
        loop = call.context.loop
        looped = loop is not None and not (loop.optimizes or loop.over_loader) and _in_step(loop)
        if following is not None or (looped and _only(call)):
            yield Hit(call.node, f"the backward pass runs again for the next loss: {text_of(call.node)}", "backward")


def _in_step(loop: SourceLoop) -> bool:
    """Return whether a loop stands in one over the batches of a loader, or one that steps the optimizer."""
    return loop.outer is not None and (loop.outer.over_loader or loop.outer.optimizes)


def _next(module: Module, call: SourceCall) -> SourceCall | None:
    """Return the backward pass that follows in the same block, with nothing between that uses the gradients."""
    block = _block(module, call)
    seen = False
    for statement in block:
        inside = [item for item in ast.walk(statement) if isinstance(item, ast.Call)]
        if any(item is call.node for item in inside):
            seen = True
            continue
        if not seen:
            continue
        attrs = [method_of(item) for item in inside]
        if "backward" in attrs:
            return next(other for other in module.sent("backward") if any(item is other.node for item in inside))
        if any(attr in _BETWEEN for attr in attrs) or attributes_in(statement) & {"grad", "requires_grad"}:
            return None
    return None


def _block(module: Module, call: SourceCall) -> list[ast.stmt]:
    """Return the statements among which a call is one."""
    for node in ast.walk(module.body(call.context.function)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and any(
                isinstance(statement, ast.Expr) and statement.value is call.node for statement in block
            ):
                return block
    return []


def _only(call: SourceCall) -> bool:
    """Return whether a loop does nothing with the gradients of each of its losses."""
    loop = call.context.loop
    assert loop is not None
    return not attributes_in(loop.node) & {*_BETWEEN, "grad"}
