"""A device scalar is read on the host in every step.

Looks like: ``.item()``, ``float(t)``, ``int(t)``, ``bool(t)``, ``.cpu()`` of one number, an
    f-string of a tensor, or ``if``/``while``/``assert`` on a comparison of tensors, in a loop of
    steps, in ``forward``, or in a function called from them.
Slow because: the host waits until the device has computed everything before the value, and only
    then launches more. The device stands idle meanwhile.
Fix: add up ``loss.detach()`` and read it every N steps; use ``torch.where`` instead of ``if``.
Quiet when: the tensor is on the CPU, came out of NumPy, or the read is behind ``if step % n``, a
    debug switch, or on a way out (``raise``, ``break``).
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage import fixes
from torchtriage.lint.base import Hit, Rule
from torchtriage.lint.facts import Module
from torchtriage.lint.rules._reads import compiled, reads, text_of

RULE = Rule(
    code="SYN001",
    name="host-sync-scalar",
    family="sync",
    title="GPU scalars read on the host inside a step",
    severity="medium",
    device=True,
)

FIX = fixes.READ_NOW_AND_THEN

_HOW = {
    "if": "this condition", "while": "this condition", "assert": "this assertion",
    "not": "this condition", "and": "this condition", "or": "this condition",
    "f-string": "formatting it", "%": "formatting it",
}  # fmt: skip


def find(module: Module) -> Iterator[Hit]:
    """Yield every read that runs in each step."""
    for node, context, how in reads(module):
        if not context.hot or compiled(context):
            continue
        said = _HOW.get(how, f"{how}()")
        # in an assertion or a check of a library's forward it is one of many; still it waits
        yield Hit(
            node,
            f"{said} waits for the device in every step: {text_of(node)}",
            called=how,
            severity="low" if context.step_loop is None else None,
        )
