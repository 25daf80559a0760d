"""Norms along the last axis, and the indices of a maximum, where a reduction goes through its results one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import literal, whole_number
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import operands
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import operand, source

CODES = words("KRN073")
NORMS = words("norm vector_norm")
PLACES = {"argmax": "max", "argmin": "min"}


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the reductions of the line, each in a form that is vectorised."""
    module = site.module
    for call in site.calls:
        node, name = call.node, call.attr
        if name not in PLACES and name not in NORMS and name != "normalize":
            continue
        reduced, given = _arguments(module, node, ("dim",) if name in PLACES else ("p", "dim"))
        axis = whole_number(given.pop("dim", ast.Constant(1) if name == "normalize" else None))
        power = literal(given.get("p", ast.Constant(2)))
        if reduced is None or axis is None or power not in (1, 2):
            continue
        text = operand(module, reduced)
        last = f"{text}.movedim({axis}, -1).contiguous()"
        if name in NORMS and power == 1:
            yield Proposal((replace_node(node, f"{text}.abs().sum({axis})"),), "sum absolute values")
        elif axis == -1 or power == 1:
            continue
        elif name in PLACES:
            edit = replace_node(node, f"{text}.{PLACES[name]}({axis}).indices")
            yield Proposal((edit,), f"take the indices of {PLACES[name]}")
        elif name in NORMS:
            yield Proposal((replace_node(node, f"{last}.norm(dim=-1)"),), "move the axis of the norm to the end")
        else:
            back = f"movedim(-1, {axis}).contiguous()"  # what comes after may want a view of it
            edit = replace_node(node, f"{source(module, node.func)}({last}, dim=-1).{back}")
            yield Proposal((edit,), "move the axis of the norm to the end")


def _arguments(module: Module, node: ast.Call, names: tuple[str, ...]) -> tuple[ast.expr | None, dict[str, ast.expr]]:
    """Return the tensor that a function of torch, or a method, reduces, and the other arguments by name.

    No tensor where there are arguments beside those named.
    """
    if not isinstance(node.func, ast.Attribute) and not module.name_of(node.func).startswith("torch."):
        return None, {}
    tensor, *others = operands(module, node)
    given = dict(zip(names, others, strict=False))
    for item in node.keywords:
        name = {"axis": "dim", "ord": "p"}.get(item.arg or "", item.arg or "")
        if name not in names or name in given:
            return None, {}
        given[name] = item.value
    if len(others) > len(names) or any(isinstance(item, ast.Starred) for item in node.args):
        return None, {}
    array = source(module, tensor).endswith(".numpy()") or module.value(tensor).kind == "numpy"
    return (None if array else tensor), given
