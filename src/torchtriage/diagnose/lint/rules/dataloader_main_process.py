"""Batches are prepared by the training process itself.

Looks like: ``DataLoader(...)`` without ``num_workers``, or with 0.
Slow because: reading, decoding and collating run between two steps, while the device waits.
Fix: ``num_workers`` of a few per device, with ``persistent_workers=True``.
Quiet when: the dataset hands out what is in memory (``TensorDataset``, a ``__getitem__`` that only indexes), or options
    come from elsewhere (``**options``). A remark in a program for the CPU whose dataset neither reads nor decodes nor
    transforms: workers would take the cores of the step.
Source: PyTorch performance tuning guide, "Enable asynchronous data loading".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule
from torchtriage.diagnose.lint.rules._loaders import dataset, in_memory, reads_or_transforms, workers
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("DAT018", "dataloader-main-process", "data", "Batches loaded on the main thread", "medium")

FIX = Fix(
    text="Let worker processes prepare the batches.",
    code="""loader = DataLoader(
    dataset, batch_size=..., num_workers=8, pin_memory=True, persistent_workers=True
)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#enable-asynchronous-data-loading-and-augmentation",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield loaders without workers."""
    for call in module.called(*LOADERS):
        if workers(module, call) != 0 or call.context.seldom or in_memory(module, call):
            continue
        known = dataset(module, call)
        cheap = known is not None and module.on_cpu and not reads_or_transforms(module, known)
        yield Hit(
            call.node, "this loader has no workers: batches are made between steps", severity="note" if cheap else None
        )
