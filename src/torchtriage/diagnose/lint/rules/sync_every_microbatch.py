"""Gradients are exchanged after every micro-batch although they are accumulated.

Looks like: ``backward()`` in each turn, the optimizer's step only every k turns, on a model in
    ``DistributedDataParallel``, and no ``no_sync()`` in the file.
Slow because: the exchange runs k times as often as needed.
Fix: ``with model.no_sync():`` for all micro-batches but the last.
Quiet when: ``no_sync`` or ``set_requires_gradient_sync`` is used, or another library accumulates.
Source: PyTorch documentation of ``DistributedDataParallel.no_sync``.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall
from torchtriage.diagnose.lint.walk import is_optimizer_step

RULE = Rule("COM038", "sync-every-microbatch", "comm", "Gradients are reduced after every micro-batch", "high")

FIX = Fix(
    text="Exchange gradients with the last micro-batch only.",
    code="""from contextlib import nullcontext

last = (i + 1) % k == 0
with nullcontext() if last else model.no_sync():
    (loss / k).backward()""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield backward passes of an accumulating loop in a file that never says no_sync."""
    if "DistributedDataParallel" not in module.text or "no_sync" in module.text:
        return
    if "set_requires_gradient_sync" in module.text or "require_backward_grad_sync" in module.text:
        return
    steps = [call for call in module.sent("step") if is_optimizer_step(call)]
    for call in module.sent("backward"):
        if call.context.rare or call.context.loop is None:
            continue
        if any(_accumulates(call, step) for step in steps):
            yield Hit(call.node, "gradients are reduced in every iteration but used only in some")


def _accumulates(backward: SourceCall, step: SourceCall) -> bool:
    if step.context.loop is backward.context.loop:
        return step.context.modulo or (step.context.rare and not backward.context.rare)
    # an inner loop of micro-batches, the step after it
    inner = backward.context.loop
    return inner is not None and inner.outer is not None and inner.outer is step.context.loop
