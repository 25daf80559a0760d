"""What edits ask of a file again and again: its name for torch, what runs at a line, whether training calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.proposal import Site
from torchtriage.measure.fix.statements import module_in

CASTS = frozenset({"int", "float", "bool"})
MOVES = frozenset({"detach", "cpu", "numpy", "item"})


def _number_read(node: ast.AST) -> ast.expr | None:
    """Return the tensor that an expression reads the number of: ``x`` of ``float(x)`` and ``x.detach().item()``."""
    if not isinstance(node, ast.Call):
        return None
    value: ast.expr = node
    if path_of(node.func) in CASTS and len(node.args) == 1 and not node.keywords:
        value = node.args[0]
    elif not (isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args):
        return None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVES:
        value = value.func.value
    return value


def numbers_read(parts: Iterable[ast.AST]) -> dict[ast.expr, ast.Call]:
    """Return the tensors whose numbers are read, each with the outermost read of it: ``int(x[i].item())``."""
    found: dict[ast.expr, ast.Call] = {}
    for call in (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)):
        if (tensor := _number_read(call)) is not None:
            found.setdefault(tensor, call)
    return found


def torch_in(module: Module) -> tuple[str, tuple[SourceEdit, ...]]:
    """Return the file's name for torch, and the import that it needs for it."""
    name, imports = module_in(module, "torch")
    return name, tuple(filter(None, imports))


def operands(module: Module, call: ast.Call) -> list[ast.expr]:
    """Return what a function of torch or a method is given by place, the tensor first: of ``x.sum(1)``, x and 1."""
    if isinstance(call.func, ast.Attribute) and not module.name_of(call.func).startswith("torch."):
        return [call.func.value, *call.args]
    return [*call.args]


def calls_at(site: Site) -> list[SourceCall]:
    """Return the calls of the statement at the line; of a loop or another block those of its head."""
    statement = site.statement
    if statement is None:
        return []
    inner = {node for part in getattr(statement, "body", []) for node in ast.walk(part)}
    own = {node for node in ast.walk(statement) if node not in inner}
    return [call for call in site.module.calls if call.node in own]


def called_by_training(module: Module, function: SourceFunction) -> bool:
    """Return whether a function or loop that takes gradients calls a function, at any depth."""
    waiting, seen = [function], {function}
    while waiting:
        now = waiting.pop()
        for context, callee in module.edges:
            if callee is not now:
                continue
            if any(loop.backward for loop in context.loops()):
                return True
            caller = context.function
            if caller is not None and caller.has_backward:
                return True
            if caller is not None and caller not in seen:
                seen.add(caller)
                waiting.append(caller)
    return False
