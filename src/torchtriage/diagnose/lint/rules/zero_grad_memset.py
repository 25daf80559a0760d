"""Gradients are set to zero instead of being released.

Looks like: ``zero_grad(set_to_none=False)``; ``p.grad.zero_()`` in a loop over parameters.
Slow because: memory is written with zeros, and the next backward pass reads and adds where it could
    write.
Fix: ``zero_grad()``: ``set_to_none=True`` is the default since 2.0. A parameter that a step leaves out is then skipped:
    with zeros, momentum, Adam and weight decay move it.
Quiet when: the setting is absent, True, or comes from elsewhere.
Source: PyTorch performance tuning guide, "Optimize gradient zeroing".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal
from torchtriage.diagnose.lint.syntax import argument, attributes_in

RULE = Rule("OPT040", "zero-grad-memset", "optim", "Gradients are filled with zeros instead of dropped", "low")

FIX = Fix(
    text="Drop the gradients: the default since PyTorch 2.0.",
    code="optimizer.zero_grad(set_to_none=True)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield calls and loops that fill gradients with zeros."""
    for call in module.sent("zero_grad"):
        given = argument(call.node, "set_to_none", 0)
        if given is not None and literal(given) is False:
            yield Hit(call.node, "gradients are filled with zeros instead of dropped", "zero_grad")
    for call in module.sent("zero_"):
        loop = call.context.loop
        if loop is None or loop.iterates.kind != "params" or "grad" not in attributes_in(call.node.func):
            continue
        if loop.context.hot or loop.function is not None:
            yield Hit(call.node, "gradients are filled with zeros one by one", "zero_")
