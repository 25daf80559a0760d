"""A convolution adds a bias that the normalisation after it cancels.

Looks like: ``nn.Conv2d(...)`` with its default bias directly before ``nn.BatchNorm2d`` in a
    ``Sequential``, or ``self.bn(self.conv(x))``.
Slow because: the bias costs a pass over the activations and a gradient, and the normalisation
    subtracts the mean anyway.
Fix: ``nn.Conv2d(..., bias=False)``.
Quiet when: ``bias`` is given, or the two are not certain to follow each other.
Source: PyTorch performance tuning guide, "Disable bias for convolutions directly followed by a
    batch norm".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, unpacks
from torchtriage.diagnose.lint.syntax import is_self

RULE = Rule("KRN026", "conv-bn-unfolded", "kernel", "A bias that the next batch norm cancels", "note")

FIX = Fix(
    text="Build the convolution without a bias; checkpoints with the bias need strict=False.",
    code="conv = torch.nn.Conv2d(in_channels, out_channels, 3, bias=False)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#disable-bias-for-convolutions-directly-followed-by-a-batch-norm",
)

_CONV = re.compile(r"^torch\.nn\.Conv(Transpose)?[123]d$")
_NORM = re.compile(r"^torch\.nn\.(SyncBatchNorm|BatchNorm[123]d)$")
MESSAGE = "the batch norm that follows cancels this bias"


def find(module: Module) -> Iterator[Hit]:
    """Yield convolutions whose bias does nothing."""
    if "BatchNorm" not in module.text:
        return
    for call in module.called("torch.nn.Sequential"):
        for first, second in zip(call.node.args, call.node.args[1:], strict=False):
            if _biased(module, first) and _is(module, second, _NORM):
                yield Hit(first, MESSAGE)
    yield from _attributes(module)


def _attributes(module: Module) -> Iterator[Hit]:
    """Follow ``self.bn(self.conv(x))`` back to where the convolution is built."""
    for call in module.calls:
        inner = call.node.args[0] if len(call.node.args) == 1 else None
        norm, conv = _own(call.node.func), _own(inner.func) if isinstance(inner, ast.Call) else ""
        owner = call.context.owner
        if not norm or not conv or owner is None:
            continue
        built = {
            assign.target: assign.expression
            for assign in module.assigns
            if assign.context.owner is owner and assign.target in (f"self.{norm}", f"self.{conv}")
        }
        uses = sum(_own(other.node.func) == conv for other in module.calls if other.context.owner is owner)
        bn, made = built.get(f"self.{norm}"), built.get(f"self.{conv}")
        if bn is None or made is None or uses != 1:
            continue
        if _is(module, bn, _NORM) and _biased(module, made):
            yield Hit(made, MESSAGE)


def _own(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) and is_self(node.value) else ""


def _is(module: Module, node: ast.expr, pattern: re.Pattern[str]) -> bool:
    return isinstance(node, ast.Call) and pattern.match(module.name_of(node.func)) is not None


def _biased(module: Module, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not _is(module, node, _CONV):
        return False
    if unpacks(node) or keyword(node, "bias") is not None:
        return False
    return len(node.args) <= 7 and not any(isinstance(arg, ast.Starred) for arg in node.args)
