"""Norms along the last axis, and the indices of a maximum, where a reduction goes through its results one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import source

CODES = words("KRN073")
NORMS = words("norm vector_norm")
PLACES = {"argmax": "max", "argmin": "min"}


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the reductions of the line, each in a form that is vectorised."""
    module = site.module
    for call in module.calls:
        node = call.node
        if not node.lineno <= site.line <= (node.end_lineno or node.lineno):
            continue
        reduced = _reduced(module, node)
        given = keyword(node, "dim") or _second(module, node)
        axis = 1 if given is None and call.attr == "normalize" else literal(given)
        if reduced is None or not isinstance(axis, int) or isinstance(axis, bool) or axis == -1:
            continue
        text = source(module, reduced)
        text = text if isinstance(reduced, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"
        if call.attr in PLACES and _names(node) <= {"dim"}:
            edit = replace_node(node, f"{text}.{PLACES[call.attr]}({axis}).indices")
            yield Proposal((edit,), f"take the indices of {PLACES[call.attr]}")
        elif call.attr in NORMS and _names(node) == {"dim"} and _second(module, node) is None:
            edit = replace_node(node, f"{text}.movedim({axis}, -1).contiguous().norm(dim=-1)")
            yield Proposal((edit,), "bring the axis of the norm to the end")
        elif call.attr == "normalize" and _names(node) <= {"dim"} and len(node.args) == 1:
            function = source(module, node.func)
            last = f"{function}({text}.movedim({axis}, -1).contiguous(), dim=-1).movedim(-1, {axis})"
            yield Proposal((replace_node(node, last),), "bring the axis of the norm to the end")


def _reduced(module: Module, node: ast.Call) -> ast.expr | None:
    """Return the tensor that a function of torch, or a method, reduces."""
    if module.name_of(node.func).startswith("torch."):
        return node.args[0] if node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _second(module: Module, node: ast.Call) -> ast.expr | None:
    """Return the second argument of a function, the first of a method."""
    at = int(module.name_of(node.func).startswith("torch."))
    return node.args[at] if len(node.args) > at else None


def _names(node: ast.Call) -> set[str | None]:
    return {item.arg for item in node.keywords}
