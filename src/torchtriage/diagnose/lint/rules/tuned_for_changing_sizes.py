"""cuDNN tries its kernels out for each size anew, and the sizes change from step to step.

Looks like: ``torch.backends.cudnn.benchmark = True`` where a loader gives images one by one in sizes of their own
    (``batch_size=1`` and no resizing), or where each step draws a size for ``interpolate``.
Slow because: the first step of each size runs every kernel that fits and waits for it, which takes longer than what
    the best kernel saves.
Fix: leave ``benchmark`` off, or bring images to a few sizes.
Quiet when: images are resized or cropped to one size.
Source: PyTorch performance tuning guide, "Enable cuDNN auto-tuner".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal
from torchtriage.diagnose.lint.syntax import argument, names_in
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule(
    "CFG104",
    "tuned-for-changing-sizes",
    "config",
    "cuDNN autotunes for input sizes that keep changing",
    "low",
    device=True,
)

FIX = Fix(
    text="Leave the tuner off where sizes change.",
    code="torch.backends.cudnn.benchmark = False",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-cudnn-auto-tuner",
)

_ONE_SIZE = re.compile(
    r"Resize\w{0,20}\(|Crop\(|\.resize\(|cv2\.resize|crop_size|pad_to|image_size|img_size|patch_size"
)
_DRAWN = re.compile(r"rand|choice")


def find(module: Module) -> Iterator[Hit]:
    """Yield the tuner that is on where sizes change."""
    for assign in module.assigns:
        if not assign.target.endswith("cudnn.benchmark") or literal(assign.expression) is not True:
            continue
        if assign.context.seldom:
            continue
        if _draws_sizes(module) or (_one_by_one(module) and not _ONE_SIZE.search(module.text)):
            yield Hit(assign.node, "kernels are tuned again for each size, and sizes change from step to step")


def _one_by_one(module: Module) -> bool:
    """Return whether all loaders that train give one image at a time."""
    sizes = []
    for call in module.called(*LOADERS):
        given = keyword(call.node, "batch_size")
        for item in call.node.keywords:
            if given is None and item.arg is None and isinstance(item.value, ast.Name):
                given = _entry(module, item.value.id)
        sizes.append(module.constant(given, call.context))
    return bool(sizes) and all(size == 1 for size in sizes) and "Image" in module.text and "Conv2d" in module.text


def _entry(module: Module, name: str) -> ast.expr | None:
    """Return ``batch_size`` of the options that are collected under a name."""
    made = [assign.expression for assign in module.assigns_to(name)]
    return keyword(made[0], "batch_size") if len(made) == 1 and isinstance(made[0], ast.Call) else None


def _draws_sizes(module: Module) -> bool:
    """Return whether a step resizes its batch to a size that it draws."""
    for call in module.called("torch.nn.functional.interpolate"):
        size = keyword(call.node, "scale_factor") or argument(call.node, "size", 1)
        if size is None or not call.context.hot:
            continue
        names = names_in(size)
        drawn = [ast.unparse(assign.expression) for assign in module.assigns if assign.target in names]
        if any(_DRAWN.search(text) for text in [*drawn, ast.unparse(size)]):
            return True
    return False
