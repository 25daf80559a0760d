"""Images are processed at full size, and resized afterwards.

Looks like: ``Compose([ColorJitter(...), GaussianBlur(...), Resize(96)])``; ``rotate``, ``filter`` or
    ``enhance`` before ``resize`` in a data set's ``__getitem__``, or in what it calls.
Slow because: the cost of a transform grows with the pixels: at 448 pixels a side it is 22 times that at 96.
Fix: resize (or crop) first; let the decoder do it where it can (``Image.draft``).
Quiet when: nothing heavy comes before the resize.
Source: torchvision documentation, "Performance considerations".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, text_of

RULE = Rule("DAT101", "late-resize", "data", "Images are transformed at full size, then resized", "low")

FIX = Fix(
    text="Resize the image first.",
    code="""transform = v2.Compose([
    v2.RandomResizedCrop(96),     # first: all that follows works on 96 x 96
    v2.ColorJitter(0.3, 0.3),
    v2.GaussianBlur(3),
])""",
    link="https://docs.pytorch.org/vision/stable/transforms.html#performance-considerations",
)

_SMALLER = re.compile(
    r"^(Resize|RandomResizedCrop|CenterCrop|RandomCrop|Scale|RandomScale|LongestMaxSize|SmallestMaxSize)$"
)
_HEAVY = re.compile(
    r"^(ColorJitter|GaussianBlur|RandomRotation|RandomAffine|RandomPerspective|ElasticTransform|AutoAugment|RandAugment"
    r"|TrivialAugmentWide|AugMix|RandomAdjustSharpness|RandomEqualize|RandomAutocontrast|Blur|MedianBlur|GaussNoise|CLAHE"
    r"|HueSaturationValue|Rotate|RandomBrightnessContrast)$"
)
_HEAVY_CALLS = frozenset(["rotate", "filter", "enhance", "GaussianBlur", "medianBlur", "bilateralFilter", "warpAffine"])
_DEPTH = 3


def find(module: Module) -> Iterator[Hit]:
    """Yield pipelines whose resize comes last, and methods that do the same by hand."""
    for call in module.calls:
        if call.attr == "Compose" and call.node.args and isinstance(call.node.args[0], ast.List):
            yield from _pipeline(call.node.args[0])
    for function in module.functions:
        if function.loads and function.name in ("__getitem__", "__iter__"):
            yield from _by_hand(module, function)


def _pipeline(steps: ast.List) -> Iterator[Hit]:
    names = [text_of(item.func).rpartition(".")[2] if isinstance(item, ast.Call) else "" for item in steps.elts]
    smaller = [at for at, name in enumerate(names) if _SMALLER.match(name)]
    heavy = [at for at, name in enumerate(names) if _HEAVY.match(name)]
    if smaller and heavy and heavy[0] < smaller[0]:
        yield Hit(steps.elts[heavy[0]], f"{names[heavy[0]]} works at full size: {names[smaller[0]]} comes after it")


def _by_hand(module: Module, function: SourceFunction) -> Iterator[Hit]:
    heavy: SourceCall | None = None
    for call in _in_order(module, function, _DEPTH):
        if call.attr in ("resize", "thumbnail", "draft", "crop", "center_crop", "random_crop"):
            if heavy is not None:
                yield Hit(heavy.node, f"works at full size, before the image is resized: {text_of(heavy.node)}")
            return
        if call.attr in _HEAVY_CALLS and heavy is None:
            heavy = call


def _in_order(module: Module, function: SourceFunction, depth: int) -> Iterator[SourceCall]:
    """Yield the calls of a function in order, those of what it calls in their place."""
    own = module.calls_by_function[function]
    for call in sorted(own, key=lambda call: (call.node.end_lineno or 0, call.node.end_col_offset or 0)):
        if call.callees and depth:
            yield from _in_order(module, call.callees[0], depth - 1)
        else:
            yield call
