"""Everything is sorted to take a few.

Looks like: ``x.sort().indices[:, :k]``, ``torch.argsort(x)[:k]``, in each step.
Slow because: sorting takes several passes over all elements; the largest few can be picked in one or
    two.
Fix: ``x.topk(k)``; ``torch.kthvalue``, ``torch.quantile`` for one of them.
Quiet when: the order of all is used.
Source: PyTorch documentation of ``torch.topk``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal, text_of

RULE = Rule("KRN101", "full-sort", "kernel", "Everything is sorted to take a few", "low")

FIX = Fix(
    text="Pick the few.",
    code="nearest = distances.topk(k, dim=1, largest=False).indices   # not distances.sort(dim=1).indices[:, :k]",
    link="https://docs.pytorch.org/docs/stable/generated/torch.topk.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield sorts of hot code of which only the beginning is taken."""
    sorts = {
        call.node: call
        for call in [*module.sent("sort", "argsort"), *module.called("torch.sort", "torch.argsort")]
        if call.context.hot and (call.receiver.kind == "tensor" or call.name)
    }
    if not sorts:
        return
    bodies = {call.context.function for call in sorts.values()}
    for body in bodies:
        for node in ast.walk(module.tree if body is None else body.node):
            if isinstance(node, ast.Subscript) and _takes_few(node):
                inner = node.value
                while isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                if inner in sorts:
                    yield Hit(inner, f"all are sorted, a few are taken: {text_of(node)}", sorts[inner].attr)


def _takes_few(node: ast.Subscript) -> bool:
    """Return whether a slice ends somewhere: ``[:k]``, ``[:, 1 : k + 1]``."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    ends = [part.upper for part in parts if isinstance(part, ast.Slice)]
    return any(end is not None and not (isinstance(end, ast.UnaryOp) and literal(end.operand) == 1) for end in ends)
