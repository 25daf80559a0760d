"""Samples are decoded or transformed one by one between the steps.

Looks like: ``torch.stack([augment(image) for image in batch])`` in the loop of steps; ``Image.open(path)``,
    ``cv2.imread``, ``torchaudio.load`` or ``dataset[i]`` in a loop that trains.
Slow because: the process that feeds the device works through images in Python while the device waits; no worker helps.
Fix: do it in the data set, in workers; or transform the batch as a whole on the device.
Quiet when: it runs in a data set, behind ``if step % n``, or the loop does not train.
Source: PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, text_of
from torchtriage.diagnose.lint.rules._loaders import costly_datasets
from torchtriage.diagnose.lint.syntax import names_in, path_of

RULE = Rule("DAT114", "augmented-in-step", "data", "Samples are augmented one by one between steps", "medium")

FIX = Fix(
    text="Let workers make the samples, or transform whole batches on the device.",
    code="""loader = DataLoader(Images(paths, transform), batch_size=64, num_workers=8)
x = transforms.v2.RandomHorizontalFlip()(x)    # the whole batch, on the device""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#enable-asynchronous-data-loading-and-augmentation",
)

_DECODES = re.compile(
    r"^(PIL\.Image\.open|cv2\.(imread|imdecode|VideoCapture)|torchaudio\.load|librosa\.load|soundfile\.read|skimage\.io\.imread"
    r"|imageio\.(v\d\.)?imread|torchvision\.io\.(read_image|read_video|decode_\w+)|decord\.VideoReader|nibabel\.load)$"
)
_TRANSFORMS = re.compile(
    r"(^|_)(aug\w*|tfms?|transforms?|preprocess|to_pil\w*|resize|jitter|random_\w+)$|^ToPILImage$|fromarray$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield what makes samples in the loop of steps itself."""
    sets = costly_datasets(module)
    for call in module.calls:
        decodes = _DECODES.match(call.name) is not None
        if not (decodes or _TRANSFORMS.search(call.attr)) or not call.context.hot or not call.context.trains:
            continue
        loop = call.context.loop
        if decodes:
            yield Hit(call.node, f"every step decodes this itself: {text_of(call.node)}", call.attr)
        elif loop is not None and not loop.steps and _takes_element(call, loop):
            yield Hit(call.node, f"every step works through its batch one by one: {text_of(call.node)}", call.attr)
    for loop in module.loops:
        if not sets or not isinstance(loop.node, ast.For) or not loop.trains or loop.over_loader:
            continue
        for node in ast.walk(loop.node):
            if (
                isinstance(node, ast.Subscript)
                and path_of(node.value) in sets
                and not isinstance(node.slice, ast.Slice)
            ):
                yield Hit(node, f"every step makes its samples itself: {text_of(node)}")
                break


def _takes_element(call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether a call is given one element of a batch: what a loop over a tensor gives."""
    if loop.iterates.kind != "tensor" or not call.node.args:
        return False
    return bool(names_in(call.node.args[0]) & loop.targets)
