"""Worker processes are restarted in every epoch.

Looks like: ``DataLoader(num_workers=n)`` without ``persistent_workers=True`` that is iterated once
    per epoch, wherever it is handed to, or that Lightning's ``train_dataloader`` gives; a
    ``DataLoader`` built for each epoch, in its loop or in what that calls.
Slow because: each epoch starts processes, imports, and fills the queues again, for a few seconds,
    while the device waits.
Fix: build the loader once, with ``persistent_workers=True``. From the second epoch on, random numbers (the order of a
    shuffling loader) differ from before, and workers do not see a dataset that the program changes.
Quiet when: it is iterated once, or the setting is given.
Source: PyTorch documentation of ``torch.utils.data.DataLoader``.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop
from torchtriage.diagnose.lint.rules._loaders import workers
from torchtriage.diagnose.lint.syntax import arguments, keyword, literal, unpacks
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("DAT019", "dataloader-starved", "data", "Worker processes are restarted in every epoch", "low")

FIX = Fix(
    text="Keep the workers alive between epochs.",
    code="loader = DataLoader(dataset, num_workers=8, persistent_workers=True)",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield loaders whose workers are started again and again."""
    for call in module.called(*LOADERS):
        number = workers(module, call)
        if number == 0 or call.context.aside:
            continue
        if number is None and keyword(call.node, "num_workers") is None:
            continue
        if _made_again(module, call):
            yield Hit(call.node, "this loader and its workers are created again in every epoch")
            continue
        given = keyword(call.node, "persistent_workers")
        if given is not None and literal(given) is not False:
            continue
        if unpacks(call.node) or not (_again(module, call) or _of_lightning(call)):
            continue
        yield Hit(call.node, "the workers of this loader are restarted in every epoch")


def _of_lightning(call: SourceCall) -> bool:
    """Return whether a loader is what Lightning goes over in each epoch of training."""
    function = call.context.function
    if function is None or function.owner is None or function.name not in ("train_dataloader", "val_dataloader"):
        return False
    return function.owner.is_lightning or any(_DATA_MODULE.search(base) for base in function.owner.bases)


_DATA_MODULE = re.compile(r"(^|\.)LightningDataModule$")


def _walks(module: Module, call: SourceCall) -> list[SourceLoop]:
    """Return the loops over the batches of a loader, wherever it was handed to."""
    return [
        loop
        for loop in module.loops
        if not loop.comprehension
        and ((call.target and loop.over == call.target) or (loop.iterates.made_by is call.node))
    ]


def _made_again(module: Module, call: SourceCall) -> bool:
    """Return whether a loader is made for each pass: in a loop around that pass, or by what a loop calls."""
    around, function = call.context.loop, call.context.function
    walks = _walks(module, call)
    if around is not None and not around.comprehension:
        return any(around in loop.around() for loop in walks)
    return function is not None and function.called_again and bool(walks)


def _again(module: Module, call: SourceCall) -> bool:
    """Return whether the loader is iterated in a loop, here or where it was handed to."""
    for loop in _walks(module, call):
        if loop.outer is not None and not loop.outer.comprehension and not loop.outer.short:
            return True
        if loop.function is not None and loop.function.called_in_loop:
            return True
    for other in module.calls:
        if other.context.loop is None or other.context.loop.comprehension or not call.target:
            continue
        if other.attr in ("print", "len", "enumerate", "tqdm", "iter", "next"):
            continue
        given = arguments(other.node)
        same = other.context.function is call.context.function
        if same and any(module.name_of(item) == call.target for item in given):
            return True
    return False
