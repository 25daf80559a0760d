"""Add up on the device what a loop reads in each step, and read it once after the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from torchtriage.diagnose.lint.base import literal
from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import assigned_pairs, path_of
from torchtriage.measure.fix.edits._flow import meets
from torchtriage.measure.fix.edits._meanwhile import VIEWS, changed_in_place, may_wait
from torchtriage.measure.fix.edits._torch import numbers_read, torch_in
from torchtriage.measure.fix.edits._turns import is_tensor
from torchtriage.measure.fix.proposal import Loop, Proposal, Site
from torchtriage.measure.fix.statements import INDENT, body_of, insert_after, operand

CODES = frozenset({"LCH014", "SYN001", "SYN004"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield all sums and lists of the loop read after it."""
    loop = site.step_loop
    if loop is None:
        return
    edits = dict.fromkeys(edit for item in _statements(loop.body) for edit in _later(site, item))
    yield Proposal(tuple(edits), f"read the sums of the loop on line {loop.lineno} after it")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of the blocks and conditions in it, functions and loops left out."""
    for item in body:
        yield item
        if isinstance(item, ast.With | ast.If | ast.Try):
            yield from _statements([*item.body, *getattr(item, "orelse", [])])


def _read(node: ast.AST) -> tuple[ast.Call, ast.expr] | None:
    """Return the one read of a tensor in an expression, and the tensor."""
    found = [(call, tensor) for tensor, call in numbers_read([node]).items()]
    return found[0] if len(found) == 1 else None


def _later(site: Site, statement: ast.stmt) -> list[SourceEdit]:
    """Return the edits for ``total += loss.item()`` and ``losses.append(loss.item())``."""
    name, value, how = _gathered(statement)
    read = _read(value) if value is not None else None
    if not name or read is None or value is None or not _is_taken(site, read, value, how):
        return []
    start, outer = _start(site, name, statement)
    if start is None or outer is None or _is_used(site, name, statement, outer, start):
        return []
    begins = [] if isinstance(start, ast.List) and not start.elts else literal(start)
    if type(begins) not in ((list,) if how == "append" else (int, float)) or not may_wait(site.module, name, outer):
        return []
    call, tensor = read
    text, cast = operand(site.module, tensor), path_of(call.func) if isinstance(call.func, ast.Name) else ""
    torch, imports = torch_in(site.module)
    if how == "append":
        numbers = f"{torch}.stack({name}).flatten().tolist()"
        after = f"if {name}:\n{INDENT}{name} = {f'list(map({cast}, {numbers}))' if cast else numbers}"
    elif type(begins) is float:
        after, imports = f"{name} = float({name})", ()
    else:
        after = f"if {torch}.is_tensor({name}):\n{INDENT}{name} = {f'{cast}({name})' if cast else f'{name}.item()'}"
    edit = insert_after(site.module, outer, after)
    if edit is None:
        return []
    kept = _is_new(site, tensor, outer) and not meets(path_of(tensor), changed_in_place(site.module, outer))
    copy = ".clone()" if how == "append" and not kept else ""
    return [*imports, replace_node(call, f"{text}.detach(){copy}"), edit]


def _is_taken(site: Site, read: tuple[ast.Call, ast.expr], value: ast.expr, how: str) -> bool:
    """Return whether a tensor can stand where its number does: whole in a list, in plain arithmetic in a sum."""
    call, tensor = read
    if isinstance(call.func, ast.Name):
        cast = path_of(call.func)
        if cast == "bool" or (cast == "int" and (not _is_count(tensor) or call is not value)):
            return False
        path, scope = path_of(tensor), site.scope
        if site.module.value(tensor).kind != "tensor" and not (path and is_tensor(site.module, path, scope)):
            return False
    node: ast.AST = call
    while node is not value and how != "append" and isinstance(site.module.parents[node], ast.BinOp | ast.UnaryOp):
        node = site.module.parents[node]
    return node is value


def _is_count(tensor: ast.expr) -> bool:
    """Return whether a tensor is how often something holds, a whole number: ``(x == y).sum()``."""
    func = tensor.func if isinstance(tensor, ast.Call) and not tensor.args else None
    return isinstance(func, ast.Attribute) and func.attr == "sum" and isinstance(func.value, ast.Compare)


def _is_new(site: Site, tensor: ast.expr, loop: Loop) -> bool:
    """Return whether each step makes a tensor of its own, so that nothing changes it when it is kept."""
    if isinstance(tensor, ast.Name):
        inside = set(ast.walk(loop))
        stores = site.module.stores(tensor.id, site.module.scope(tensor))
        made = [site.module.parents.get(item) for item in stores]
        return bool(made) and all(
            isinstance(item, ast.Assign)
            and item in inside
            and not isinstance(item.value, ast.Name)
            and (isinstance(item.targets[0], ast.Name) and _is_new(site, item.value, loop))
            for item in made
        )
    if isinstance(tensor, ast.Call):
        name = tensor.func.attr if isinstance(tensor.func, ast.Attribute) else ""
        return name not in VIEWS and not name.endswith("_")
    return isinstance(tensor, ast.BinOp | ast.UnaryOp | ast.Compare)


def _gathered(statement: ast.stmt) -> tuple[str, ast.expr | None, str]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = statement.target
        return (target.id if isinstance(target, ast.Name) else "", statement.value, "+=")
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call) and len(call.args) == 1:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Name):
            return func.value.id, call.args[0], "append"
    return "", None, ""


def _start(site: Site, name: str, statement: ast.stmt) -> tuple[ast.expr | None, Loop | None]:
    """Return what a name is before the loop, and the outermost loop after that which holds the statement."""
    node: ast.AST = statement
    outer: Loop | None = None
    while node in site.module.parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(node, Loop):
            outer = node
        if outer is not None:
            for before in body_of(site.module, node) or [] if isinstance(node, ast.stmt) else []:
                if before is node:
                    break
                for target, value in assigned_pairs(before) if isinstance(before, ast.Assign) else ():
                    if isinstance(target, ast.Name) and target.id == name:
                        return value, outer
        node = site.module.parents[node]
    return None, None


def _is_used(site: Site, name: str, statement: ast.stmt, loop: Loop, start: ast.expr) -> bool:
    """Return whether more is done with a name, from its start on, than show it as text, which a tensor can be too."""
    own = set(ast.walk(statement))
    begins = site.module.around(start, ast.Assign)
    if not isinstance(begins, ast.Assign) or (len(begins.targets) > 1 and isinstance(start, ast.List)):
        return True
    if any((begins.end_lineno or 0) < part.lineno < loop.lineno for part in _together(site, name, loop)):
        return True
    within = set(ast.walk(loop)) - own
    named = site.module.names(name, site.module.scope(loop))
    return any(not _is_shown(site, part) for part in named if part in within)


def _together(site: Site, name: str, loop: Loop) -> Iterator[ast.Name]:
    """Yield where a name is used in a run that comes to a loop: not in the other branch of a condition around it."""
    others: set[ast.AST] = set()
    for inner, outer in pairwise([loop, *site.module.outward(loop)]):
        if isinstance(outer, ast.If):
            branch = outer.orelse if inner in outer.body else outer.body if inner in outer.orelse else []
            others |= {part for item in branch for part in ast.walk(item)}
    yield from (part for part in site.module.names(name, site.module.scope(loop)) if part not in others)


def _is_shown(site: Site, node: ast.AST) -> bool:
    """Return whether a name is only formatted as a number, after arithmetic or sums."""
    while isinstance(node, ast.Name | ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Call):
        if isinstance(node, ast.Call) and path_of(node.func) not in ("sum", "len"):
            return False
        node = site.module.parents[node]
    return isinstance(node, ast.FormattedValue) and node.format_spec is not None
