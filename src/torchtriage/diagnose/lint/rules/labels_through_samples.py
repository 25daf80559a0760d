"""Every sample is loaded only for its label or its length.

Looks like: ``[y for _, y in dataset]``, ``[dataset[i][1] for i in range(len(dataset))]``, a loop over a data set that
    counts classes, to weight or split them.
Slow because: images are read, decoded and augmented, and then thrown away: minutes before the first step.
Fix: use what the data set already knows: ``dataset.targets``, a column of its table.
Quiet when: the sample itself is used, or nothing shows that it is a data set that reads or transforms.
Source: torchvision documentation of ``ImageFolder``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, names_in, text_of
from torchtriage.diagnose.lint.rules._loaders import costly_datasets
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("DAT109", "labels-through-samples", "data", "Whole samples are loaded just for their labels", "medium")

FIX = Fix(
    text="Read the labels that the dataset already stores.",
    code="""labels = torch.tensor(dataset.targets)     # nothing is decoded
counts = labels.bincount()""",
    link="https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.ImageFolder.html",
)

_DATASETS = re.compile(r"^torchvision\.datasets\.[A-Z]\w+$|(^|\.)ImageFolder$")


def find(module: Module) -> Iterator[Hit]:
    """Yield loops over a data set in which only labels are used."""
    torchvision = {call.target for call in module.calls if call.target and _DATASETS.search(call.name)}
    sets = torchvision | costly_datasets(module)
    if not sets:
        return
    for loop in module.loops:
        node = loop.node
        if isinstance(node, ast.While):
            continue
        inside = module.elements.get(node) if isinstance(node, ast.comprehension) else node
        if inside is None:
            continue
        name = _name(module, node.iter)
        if name in sets:
            target = node.target
            if isinstance(node.iter, ast.Call) and module.name_of(node.iter.func) == "enumerate":
                target = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
            if isinstance(target, ast.Tuple) and len(target.elts) == 2 and not _used(target.elts[0], inside):
                yield Hit(node.iter, f"every sample is loaded, and only its label is used: {text_of(node.iter)}")
        elif module.name_called(node.iter) == "range":
            taken = [item for item in ast.walk(inside) if isinstance(item, ast.Subscript) and _takes(item, sets)]
            if taken and isinstance(node.target, ast.Name) and node.target.id in names_in(taken[0]):
                yield Hit(taken[0], f"every sample is loaded, and only its label is used: {text_of(taken[0])}")


def _name(module: Module, node: ast.expr) -> str:
    while isinstance(node, ast.Call) and node.args and module.name_of(node.func).rpartition(".")[2] in _WRAPS:
        node = node.args[0]
    return path_of(node)


_WRAPS = ("enumerate", "tqdm", "list", "iter")


def _takes(node: ast.Subscript, sets: set[str]) -> bool:
    """Return whether ``dataset[i][1]`` takes the label of a sample."""
    return (
        isinstance(node.slice, ast.Constant)
        and node.slice.value in (1, -1)
        and isinstance(node.value, ast.Subscript)
        and path_of(node.value.value) in sets
    )


def _used(target: ast.expr, inside: ast.AST) -> bool:
    names = names_in(target)
    return any(
        isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id in names for item in ast.walk(inside)
    )
