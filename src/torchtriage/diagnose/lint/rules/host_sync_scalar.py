"""A device scalar is read on the host in every step.

Looks like: ``.item()``, ``float(t)``, ``int(t)``, ``bool(t)``, ``.cpu()`` of one number, an
    f-string of a tensor, or ``if``/``while``/``assert`` on a comparison of tensors, in a loop of
    steps, in ``forward``, in a function called from them, or in one that a library offers for tensors;
    ``max(1, t)`` of Python with a tensor.
Slow because: the host waits until the device has computed everything before the value, and only
    then launches more. The device stands idle meanwhile.
Fix: add up ``loss.detach()`` and read it every N steps; use ``torch.where`` instead of ``if``.
Quiet when: the tensor is on the CPU, came out of NumPy, or the read is behind ``if step % n``, a debug switch, or on an
    exit path (``raise``, ``break``). What inference passes on (an action for the environment, a result for the caller)
    is a remark.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from collections.abc import Iterator

from torchtriage.core import fixes
from torchtriage.diagnose.lint.base import Hit, Module, Rule, compiled, delivers, reads, text_of

RULE = Rule("SYN001", "host-sync-scalar", "sync", "GPU scalars read on the host inside a step", "medium", device=True)

FIX = fixes.READ_NOW_AND_THEN

_CONDITIONS = dict.fromkeys(("if", "while", "not", "and", "or"), "this condition") | {"assert": "this assertion"}
_HOW = _CONDITIONS | dict.fromkeys(("f-string", "%"), "formatting it")


def find(module: Module) -> Iterator[Hit]:
    """Yield every read that runs in each step."""
    for node, context, how in reads(module):
        if not context.often or compiled(context):
            continue
        if not context.hot and how in _CONDITIONS and not module.value(node).scalar:
            continue  # a condition on what may be an attribute of a tensor
        what = _HOW.get(how, f"{how}()")
        # in an assertion or a check of a library's forward it is one of many; still it waits
        yield Hit(
            node,
            f"{what} waits for the device {context.often}: {text_of(node)}",
            called=how,
            severity="note"
            if how not in ("max", "min") and delivers(module, node, context)
            else "low"
            if context.step_loop is None
            else None,
        )
