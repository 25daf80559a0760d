"""Each sum of a prefix or a suffix is computed from scratch.

Looks like: ``for t in range(len(rewards)): for r in rewards[t:]: total = total + gamma ** k * r``; ``sum(gamma ** k * r
    for k, r in enumerate(rewards[t:]))`` for each ``t``.
Slow because: the work grows with the square of the length; one pass from the end, or a cumulative sum, is linear.
Fix: ``for r in reversed(rewards): total = r + gamma * total``; ``torch.cumsum``; ``x.flip(0).cumsum(0).flip(0)``.
Quiet when: what is taken has a fixed width, or is not summed.
Source: PyTorch documentation of ``torch.cumsum``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, text_of

RULE = Rule("HST135", "sums-from-scratch", "host", "Running sums are recomputed from scratch", "low")

FIX = Fix(
    text="Go through it once with a running sum.",
    code="""total, returns = 0.0, []
for reward in reversed(rewards):
    total = reward + gamma * total
    returns.append(total)
returns.reverse()""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cumsum.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield loops over the rest of a sequence, for each place in it, that add up."""
    if not {"torch", "numpy"} & {name.partition(".")[0] for name in module.aliases.values()}:
        return
    if ":]" not in module.text and "[:" not in module.text:
        return
    for loop in module.loops:
        outer = loop.outer
        if outer is None or isinstance(loop.node, ast.While) or isinstance(outer.node, ast.While):
            continue
        if not _is_counted(outer) or not any(_is_open(node, outer) for node in ast.walk(loop.node.iter)):
            continue
        if _adds_up(module, loop):
            yield Hit(loop.place, f"summed again for each position: {text_of(loop.node.iter)}", "add")


def _is_counted(loop: SourceLoop) -> bool:
    """Return whether a loop counts places: ``range(n)``, ``enumerate(x)``."""
    return not isinstance(loop.node, ast.While) and text_of(loop.node.iter).startswith(("range(", "enumerate("))


def _is_open(node: ast.AST, outer: SourceLoop) -> bool:
    """Return whether a slice begins or ends at the outer counter and is open on the other side."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice) or node.slice.step is not None:
        return False
    ends = [item for item in (node.slice.lower, node.slice.upper) if item is not None]
    if len(ends) != 1:
        return False
    end = ends[0].left if isinstance(ends[0], ast.BinOp) else ends[0]
    return isinstance(end, ast.Name) and end.id in outer.targets


def _adds_up(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop adds its elements to one number."""
    if isinstance(loop.node, ast.comprehension):
        element = module.elements.get(loop.node)
        made = module.parents.get(element) if element is not None else None
        around = module.parents.get(made) if made is not None else None
        return isinstance(around, ast.Call) and text_of(around.func) == "sum"
    assert isinstance(loop.node, ast.For | ast.AsyncFor)
    for statement in loop.node.body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            if isinstance(statement.target, ast.Name) and not isinstance(statement.value, ast.Constant):
                return True
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
            same = text_of(statement.value.left) == text_of(statement.targets[0])
            if same and isinstance(statement.value.op, ast.Add) and not isinstance(statement.value.right, ast.Constant):
                return True
    return False
