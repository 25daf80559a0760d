"""Where a value comes from: the one expression of the file that a name stands for when nobody changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import Function, argument, defaults, keyword, option_of, path_of

DEPTH = 5


def constant_of(module: Module, node: ast.expr | None) -> ast.Constant | None:
    """Return the constant behind an expression: itself, a default, a field, an option; None where it is not one."""
    origin = origin_of(module, node) if node is not None else None
    return origin if isinstance(origin, ast.Constant) else None


def origin_of(module: Module, node: ast.expr, depth: int = 0) -> ast.expr:
    """Return the expression that a name or attribute stands for; the last name that may stand for several."""
    if isinstance(node, ast.Name):
        behind = _of_name(module, node)
    elif isinstance(node, ast.Attribute):
        behind = list(_given(module, node.attr)) or list(_defaults(module, node.attr))
    else:
        return node
    return origin_of(module, behind[0], depth + 1) if len(behind) == 1 and depth < DEPTH else node


def _of_name(module: Module, node: ast.Name) -> list[ast.expr]:
    """Return what a variable may stand for: what callers give for a parameter, its default, what is assigned."""
    scope = module.scope(node)
    while isinstance(scope, Function):
        args = scope.args
        places = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        if node.id in (*places, *(arg.arg for arg in args.kwonlyargs)):
            default = defaults(scope).get(node.id)
            return list(_passed(module, scope, node.id, places)) or ([default] if default is not None else [])
        if module.stores(node.id, scope):
            break
        scope = module.scope(scope)
    made = [module.parents.get(name) for name in module.stores(node.id, scope)]
    return [item.value for item in made if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None]


def _passed(module: Module, function: Function, name: str, places: list[str]) -> Iterator[ast.expr]:
    """Yield what the calls in the file give for a parameter."""
    owner = module.parents.get(function)
    called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
    at = places.index(name) - isinstance(owner, ast.ClassDef) if name in places else -1
    for call in module.calls:
        given = argument(call.node, name, at)
        if given is not None and path_of(call.node.func).rpartition(".")[2] == called:
            yield given


def _given(module: Module, attr: str) -> Iterator[ast.expr]:
    """Yield what constructors of records are given for a field."""
    for known in module.classes.values():
        if attr in known.fields:
            given = (keyword(call.node, attr) for call in module.calls if call.attr == known.name)
            yield from (item for item in given if item is not None)


def _defaults(module: Module, attr: str) -> Iterator[ast.expr]:
    """Yield the default of an option or a field, and what is assigned to an attribute."""
    for call in module.sent("add_argument"):
        default = keyword(call.node, "default")
        if default is not None and option_of(call.node) == attr:
            yield default
    for node in module.parents:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        in_class = isinstance(module.parents.get(node), ast.ClassDef)
        field = target.id if isinstance(target, ast.Name) and in_class else ""
        if attr == (target.attr if isinstance(target, ast.Attribute) else field):
            yield node.value
