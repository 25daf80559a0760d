"""Detach what is added up or put into a list in each step, so that no step's graph is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import end_of, source

CODES = frozenset({"MEM029"})

READS = ("detach", "item", "tolist", "numpy", "cpu")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``.detach()`` on what the statement at the line keeps."""
    module, statement = site.module, site.statement
    if not module.trains or statement is None:
        return
    kept, where = _kept(statement)
    if not kept or _is_differentiated(site, where):
        return
    edits = tuple(edit for node in kept for edit in _detached(module, node))
    yield Proposal(edits, f"keep line {statement.lineno}'s values without their graph")


def _kept(statement: ast.stmt) -> tuple[list[ast.expr], str]:
    """Return the expressions that a statement keeps, and the name that it keeps them under."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return [statement.value], path_of(statement.target)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Subscript):
            return [value], path_of(target.value)
        name = path_of(target)
        if name and isinstance(value, ast.BinOp) and name in _paths(value.left):
            return [value.right], name
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("append", "add", "put") and len(call.args) == 1:
            item = call.args[0]
            return [*item.elts] if isinstance(item, ast.Tuple | ast.List) else [item], path_of(func.value)
    return [], ""


def _is_differentiated(site: Site, name: str) -> bool:
    """Return whether ``backward()`` is called on the name, or on something that is computed from it."""
    scope = site.scope
    if not name:
        return False
    from_it = {name}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and from_it & _paths(node.value):
            from_it |= {path_of(target) for target in node.targets} - {""}
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    return any(getattr(call.func, "attr", "") == "backward" and from_it & _paths(call) for call in calls)


def _paths(node: ast.AST) -> set[str]:
    attributes = {path_of(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return names_in(node) | attributes


def _detached(module: Module, node: ast.expr) -> Iterator[SourceEdit]:
    """Yield the edit for each tensor with a graph: of a product with a number for the tensor alone."""
    value = module.value(node)
    calls_own = isinstance(node, ast.Call) and any(call.node is node and call.callees for call in module.calls)
    if isinstance(node, ast.BinOp):
        inside = [*_detached(module, node.left), *_detached(module, node.right)]
        if inside:
            yield from inside
            return
    if not (value.kind == "tensor" and value.grad) and not calls_own:
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
        return
    if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        yield SourceEdit(*end_of(node), *end_of(node), ".detach()")
    elif source(module, node):
        yield SourceEdit(node.lineno, node.col_offset, node.lineno, node.col_offset, "(")
        yield SourceEdit(*end_of(node), *end_of(node), ").detach()")
