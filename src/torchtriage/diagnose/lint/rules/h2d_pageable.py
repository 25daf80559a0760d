"""Batches go to the device from memory that is not pinned.

Looks like: ``DataLoader(...)`` without ``pin_memory=True`` in a file that moves its batches to a
    device.
Slow because: the driver copies pageable memory through a small pinned buffer of its own: slower,
    and the host waits.
Fix: ``DataLoader(..., pin_memory=True)`` and ``batch.to(device, non_blocking=True)``.
Quiet when: nothing moves to a device in this file, the dataset holds device tensors already, or options come from
    elsewhere (``**options``). For a ``TensorDataset``, which is in memory, it is a remark: it could be on the device.
Source: PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Autofix, Fix, Hit, Module, Rule, add_keyword
from torchtriage.diagnose.lint.rules._loaders import PIN_MEMORY, moves_batch
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("CPY007", "h2d-pageable", "copy", "Large uploads from pageable host memory", "medium", device=True)

FIX = Fix(
    text="Let the loader pin its batches, and copy without waiting.",
    code="""loader = DataLoader(dataset, batch_size=..., num_workers=8, pin_memory=True)
x = x.to(device, non_blocking=True)""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)

SAFE = "the values stay the same; without an accelerator PyTorch warns and goes on"


def find(module: Module) -> Iterator[Hit]:
    """Yield loaders that do not pin, where batches move to a device."""
    moved = any(moves_batch(call) for call in module.sent("to", "cuda"))
    for call in module.called(*LOADERS):
        if call.value.pinned is not False or not moved or call.context.aside:
            continue
        dataset = call.arguments[0] if call.arguments else None
        if dataset is not None and dataset.kind == "dataset" and dataset.device == 2:
            continue
        edit = add_keyword(module.text, call.node, "pin_memory", "True", PIN_MEMORY)
        known = dataset is None or dataset.kind != "dataset" or dataset.device == 0
        yield Hit(
            call.node,
            "batches of this loader go to the device from memory that is not pinned",
            severity="note" if dataset is not None and dataset.kind == "dataset" else None,
            autofix=Autofix((edit,), SAFE) if edit is not None and known else None,
        )
