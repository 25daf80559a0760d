"""Pairs are compared one by one in Python, or candidates are suppressed one by one.

Looks like: ``for p in predictions: for g in truths: iou(p, g)``, ``distance(x[i], x[j])`` for each ``i`` and ``j``;
    non-maximum suppression in a ``while`` loop, ``boxes = [b for b in boxes if iou(best, b) < threshold]``.
Slow because: each pair takes a dozen operations of its own, microseconds each, where one call gives the whole matrix;
    suppression waits for the device in each round.
Fix: ``torchvision.ops.box_iou(predictions, truths)``, ``torch.cdist(x, y)``; ``torchvision.ops.nms`` and
    ``batched_nms``.
Quiet when: there are a few pairs by a constant, the pairs are set up once, or no tensor is involved.
Source: torchvision documentation of ``torchvision.ops``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, names_in, text_of

RULE = Rule("LCH108", "python-pairs", "launch", "Pairs are compared one by one in Python", "medium")

FIX = Fix(
    text="Compare all of them in one call.",
    code="""overlaps = torchvision.ops.box_iou(predictions, truths)     # float32[n, m]
kept = torchvision.ops.batched_nms(boxes, scores, labels, 0.5)
distances = torch.cdist(x, y)""",
    link="https://docs.pytorch.org/vision/stable/ops.html",
)

_COMPARES = re.compile(
    r"(^|_)[gdc]?iou(_|$)|jaccard|overlap|(^|_)dist(ance)?s?(_|$)|similarity|cosine|kernel_?fn|(^|_)rbf|wasserstein|dtw"
    r"|hausdorff|(^|_)dice(_|$)|mmd",
    re.IGNORECASE,
)
_SUPPRESSES = re.compile(r"nms|suppress", re.IGNORECASE)
_OVERLAPS = re.compile(r"iou|overlap|inter|(^|_)areas?|maximum|clamp", re.IGNORECASE)
_FEW = 4


def find(module: Module) -> Iterator[Hit]:
    """Yield loops over pairs and loops of suppression."""
    if not {"torch", "numpy"} & {name.partition(".")[0] for name in module.aliases.values()}:
        return
    for loop in module.loops:
        if loop.context.seldom:
            continue
        if isinstance(loop.node, ast.While):
            if _suppresses(module, loop):
                yield Hit(loop.node, "candidates are suppressed one by one", "nms", severity="medium")
            continue
        pair = _pair(module, loop)
        if pair is not None:
            yield Hit(loop.place, f"each pair is compared on its own: {text_of(pair)}", text_of(pair.func))


def _suppresses(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop takes the best candidate and drops what overlaps it, until none is left."""
    assert isinstance(loop.node, ast.While)
    left = names_in(loop.node.test)
    texts = [text_of(item, 400).lower() for item in loop.node.body]
    body = module.nodes(loop)
    function = loop.function
    named = function is not None and _SUPPRESSES.search(function.name) is not None
    shrinks = any(
        isinstance(item, ast.Assign)
        and bool({name for target in item.targets for name in names_in(target)} & left)
        and (isinstance(item.value, ast.Subscript | ast.ListComp) or "[" in text_of(item.value))
        for item in body
    )
    compares = any(
        _OVERLAPS.search(text_of(node.func).rpartition(".")[2]) for node in body if isinstance(node, ast.Call)
    )
    return shrinks and (named or any("iou" in text for text in texts)) and compares


def _pair(module: Module, loop: SourceLoop) -> ast.Call | None:
    """Return a comparison of an element of a loop with one of the loop around it."""
    outer = loop.outer
    if outer is None or isinstance(outer.node, ast.While) or not loop.targets or not outer.targets:
        return None
    if loop.turns_below(_FEW) or outer.turns_below(_FEW):
        return None
    assert not isinstance(loop.node, ast.While)
    if names_in(loop.node.iter) & outer.targets and not _is_rest(loop.node.iter):
        return None  # a loop over the parts of one element
    inner, above = _followed(module, loop), _followed(module, outer)
    for node in module.nodes(loop):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        sides = [names_in(item) for item in node.args[:2]]
        mixed = (sides[0] & inner and sides[1] & above) or (sides[1] & inner and sides[0] & above)
        if mixed and _COMPARES.search(text_of(node.func).rpartition(".")[2]):
            return node
    return None


def _followed(module: Module, loop: SourceLoop) -> set[str]:
    """Return the names of a turn's element and of what is made of it."""
    names = set(loop.targets)
    for assign in module.assigns:
        if assign.context.loop is loop and names_in(assign.expression) & names:
            names.add(assign.target)
    return names


def _is_rest(node: ast.expr) -> bool:
    """Return whether a loop goes over what follows the outer one's counter: ``range(i + 1, n)``."""
    return isinstance(node, ast.Call) and text_of(node.func) == "range" and len(node.args) > 1
