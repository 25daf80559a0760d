"""A pinned batch is copied to the device while the host waits.

Looks like: ``x.to(device)`` or ``x.cuda()`` without ``non_blocking=True`` on what a loader with ``pin_memory=True``
    yields.
Slow because: the memory is pinned, so the copy could overlap with the host's work; as it is, the host waits for it.
Fix: ``x.to(device, non_blocking=True)``.
Quiet when: the loader does not pin (that is CPY007), or nothing is known of it.
Source: PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.abstract_values import CPU
from torchtriage.diagnose.lint.base import Autofix, Fix, Hit, Module, Rule, SourceCall, add_keyword, text_of
from torchtriage.diagnose.lint.rules._loaders import COLLATE_FN, moves_batch
from torchtriage.diagnose.lint.syntax import argument, keyword, unpacks
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("CPY008", "h2d-not-overlapped", "copy", "Uploads that nothing overlaps", "low", device=True)

FIX = Fix(
    text="Copy without waiting: the batch is in pinned memory.",
    code="x = x.to(device, non_blocking=True)",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)

SAFE = "work queued on the device after the copy still waits for it, so values stay the same"


def find(module: Module) -> Iterator[Hit]:
    """Yield blocking copies of pinned batches."""
    loaders = module.called(*LOADERS)
    all_pinned = bool(loaders) and all(call.value.pinned is True for call in loaders)
    # a batch of a class of its own has a to() of its own
    plain = not any("to" in known.methods for known in module.classes.values()) and all(
        argument(call.node, "collate_fn", COLLATE_FN) is None and not unpacks(call.node) for call in loaders
    )
    for call in module.sent("to", "cuda"):
        if not moves_batch(call) or keyword(call.node, "non_blocking") is not None:
            continue
        if unpacks(call.node) or len(call.node.args) > 1 or not _goes(call) or not call.context.hot:
            continue
        pinned = call.receiver.pinned
        if pinned is True or (pinned is None and all_pinned):
            edit = add_keyword(module.text, call.node, "non_blocking", "True")
            yield Hit(
                call.node,
                f"the host waits for this copy of a pinned batch: {text_of(call.node)}",
                call.attr,
                autofix=Autofix((edit,), SAFE) if edit is not None and plain else None,
            )


def _goes(call: SourceCall) -> bool:
    """Return whether a call copies: it names a device, and what it is called on is not there already."""
    if call.attr == "to" and call.node.keywords and not call.node.args and keyword(call.node, "device") is None:
        return False
    return call.receiver.device == CPU
