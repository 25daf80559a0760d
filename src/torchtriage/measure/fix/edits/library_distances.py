"""Distances of all pairs by ``torch.cdist``, in place of a tensor of all differences."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, keyword, literal, path_of, whole_number
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import operands, torch_in
from torchtriage.measure.fix.edits._turns import is_whole
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import complete, remove, source

CODES = words("KRN102 HST114 LCH014 LCH015 LCH105")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the distances of the function around the line, one after another."""
    for node in ast.walk(site.scope):
        if isinstance(node, ast.Call) and (edits := _distances(site, node)):
            yield Proposal(edits, "compute the distances of all pairs with torch.cdist")


def _distances(site: Site, call: ast.Call) -> tuple[SourceEdit, ...]:
    """Return the edits of a sum of squares, or norm, over the last dimension of differences of all pairs."""
    module, given = site.module, operands(site.module, call)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method not in ("sum", "norm", "vector_norm") or not given or keyword(call, "keepdim"):
        return ()
    dim = keyword(call, "dim") or (given[1] if len(given) > 1 and method == "sum" else None)
    inner, is_square = given[0], False
    if method == "sum":
        base = _squared(module, inner)
        if base is None:
            return ()
        inner, is_square = base, True
    elif keyword(call, "p") is not None or len(given) > 1:
        return ()
    made = _named(site, inner, call)
    pair = made.value if made is not None else inner
    if not isinstance(pair, ast.BinOp) or not isinstance(pair.op, ast.Sub):
        return ()
    left, right = _expanded(module, pair.left), _expanded(module, pair.right)
    if left is None or right is None or abs(left[1] - right[1]) != 1 or dim is None:
        return ()
    if whole_number(dim) not in (-1, max(left[1], right[1]) + 1):
        return ()
    rows, columns = (left, right) if left[1] > right[1] else (right, left)
    torch, more = torch_in(module)
    text = f"{torch}.cdist({rows[0]}, {columns[0]})"
    edits: list[SourceEdit | None] = [replace_node(call, f"{text}.square()" if is_square else text)]
    out = _rooted(module, call)
    if is_square and out is not None:
        edits = [replace_node(out, text)]
    if made is not None:
        edits.append(remove(module, made))
    return complete((*edits, *more))


def _squared(module: Module, node: ast.expr) -> ast.expr | None:
    """Return what is squared."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and literal(node.right) == 2:
        return node.left
    given = operands(module, node) if isinstance(node, ast.Call) else []
    if not isinstance(node, ast.Call) or not given:
        return None
    last = node.func.attr if isinstance(node.func, ast.Attribute) else module.name_of(node.func).removeprefix("torch.")
    return given[0] if last in ("square", "pow") and all(literal(power) == 2 for power in given[1:]) else None


def _rooted(module: Module, node: ast.Call) -> ast.Call | None:
    """Return the call that takes the square root of an expression and does nothing else."""
    outer = module.parents.get(node)
    if isinstance(outer, ast.Attribute) and outer.attr == "sqrt":
        call = module.parents.get(outer)
        return call if isinstance(call, ast.Call) else None
    if isinstance(outer, ast.Call) and module.name_of(outer.func) == "torch.sqrt" and outer.args == [node]:
        return outer
    return None


def _named(site: Site, node: ast.expr, call: ast.Call) -> ast.Assign | None:
    """Return the assignment of a name that nothing else reads or binds, which stands before a call."""
    module, name = site.module, path_of(node)
    if not isinstance(node, ast.Name):
        return None
    scope = module.scope(call)
    stores = module.stores(name, scope)
    made = module.parents.get(stores[0]) if len(stores) == 1 and len(module.names(name, scope)) == 2 else None
    return made if isinstance(made, ast.Assign) and len(made.targets) == 1 and made.lineno < call.lineno else None


def _expanded(module: Module, node: ast.expr) -> tuple[str, int] | None:
    """Return what a dimension is put into, as text, and where: ``x[:, None]`` is x at 1."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze":
        at = whole_number(node.args[0]) if len(node.args) == 1 else None
        at = {-2: 1, -3: 0}.get(at, at) if at is not None else None
        return (source(module, node.func.value), at) if at is not None and at >= 0 else None
    if not isinstance(node, ast.Subscript) or module.value(node.value).kind == "numpy":
        return None
    parts = indices(node)
    new = [at for at, part in enumerate(parts) if literal(part) is None]
    whole = list(filter(is_whole, parts))
    return (source(module, node.value), new[0]) if len(new) == 1 and len(whole) == len(parts) - 1 else None
