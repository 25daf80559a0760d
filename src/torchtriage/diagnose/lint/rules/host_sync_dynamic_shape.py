"""The size of a result depends on the values of a tensor.

Looks like: ``x[mask]`` with a comparison for a mask, ``nonzero``, ``torch.where`` with one
    argument, ``unique``, ``masked_select``, ``bincount``, ``argwhere``, or ``repeat_interleave``
    without ``output_size``, in a loop of steps, in ``forward``, or in a function that a library offers for
    tensors.
Slow because: the host must know how large the result is, so it waits for the device.
Fix: keep the shape: ``torch.where(mask, x, 0)``, ``masked_fill``, a weighted sum; give
    ``output_size=``.
Quiet when: the tensors are on the CPU, or the mask is written to (``x[mask] = 0``).
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, text_of

RULE = Rule("SYN002", "host-sync-dynamic-shape", "sync", "Data-dependent shapes make the host wait", "low", device=True)

FIX = Fix(
    text="Keep the shape fixed: mask with torch.where or a product instead of selecting.",
    code="""loss = torch.where(y >= 0, loss_per_item, 0).sum() / (y >= 0).sum()
# instead of: loss = loss_per_item[y >= 0].mean()""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nonzero.html",
)

_METHODS = ("nonzero", "masked_select", "unique", "bincount", "argwhere", "unique_consecutive")


def find(module: Module) -> Iterator[Hit]:
    """Yield selections and calls of hot code whose result has no fixed size."""
    for mask in module.masks:
        if mask.context.often and mask.value.device > 0:
            yield Hit(mask.node, f"the mask's size is read {mask.context.often}: {text_of(mask.node)}", "nonzero")
    for call in module.sent(*_METHODS, "repeat_interleave"):
        tensor = call.receiver.on_device or (call.attr == "repeat_interleave" and call.receiver.kind == "unknown")
        if call.context.often and tensor and _unsized(call):
            yield _hit(call)
    for call in module.called(*(f"torch.{item}" for item in (*_METHODS, "repeat_interleave"))):
        if call.context.often and call.arguments and call.arguments[0].on_device and _unsized(call):
            yield _hit(call)
    for call in module.called("torch.where"):
        if call.context.often and len(call.arguments) == 1 and call.arguments[0].device > 0:
            yield _hit(call)


def _unsized(call: SourceCall) -> bool:
    if call.attr != "repeat_interleave":
        return True
    repeats = call.arguments[1:] if call.name else call.arguments
    return (
        keyword(call.node, "output_size") is None
        and bool(repeats)
        and repeats[0].kind == "tensor"
        and not repeats[0].guess
    )


def _hit(call: SourceCall) -> Hit:
    return Hit(call.node, f"the size of {call.attr}() is read {call.context.often}: {text_of(call.node)}", call.attr)
