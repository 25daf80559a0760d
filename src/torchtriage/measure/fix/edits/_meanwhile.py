"""What else may happen before the end of a loop: to a value that is only made there, or to one taken before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import takewhile

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import Function, arguments, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.measure.fix.edits._flow import FORM, flow_of, meets, mutated
from torchtriage.measure.fix.edits._turns import is_tensor
from torchtriage.measure.fix.proposal import Loop
from torchtriage.measure.fix.statements import source

VIEWS = words("""
    view view_as reshape ravel squeeze unsqueeze flatten unflatten detach contiguous select narrow diagonal expand
    expand_as t permute transpose swapaxes movedim unfold unbind chunk split as_strided float to cpu cuda numpy
    from_numpy as_tensor asarray parameters get_parameter get real data double
""")


def may_wait(module: Module, name: str, loop: Loop) -> bool:
    """Return whether only a loop's own function sees a variable, and sees it only once the loop has ended.

    A ``try`` around the loop may go on without what follows the loop.
    """
    for outer in takewhile(lambda outer: not isinstance(outer, Function), module.outward(loop)):
        held = isinstance(outer, ast.With) and any("suppress" in source(module, item) for item in outer.items)
        if held or isinstance(outer, ast.Try | ast.TryStar):
            return False
    return not is_seen_elsewhere(module, name, module.scope(loop))


def is_seen_elsewhere(module: Module, name: str, scope: ast.AST) -> bool:
    """Return whether functions other than its own may see a variable."""
    return any(
        (isinstance(node, ast.Global | ast.Nonlocal) and name in node.names)
        or (isinstance(node, ast.Name) and node.id == name and _is_of_outside(module, node, scope))
        for node in module.parents
    )


def _is_of_outside(module: Module, node: ast.Name, scope: ast.AST) -> bool:
    """Return whether a function in which a variable is named may have it from the given one."""
    inner = module.around(node, ast.Lambda)
    if isinstance(inner, ast.Lambda):
        return node.id not in {arg.arg for arg in ast.walk(inner.args) if isinstance(arg, ast.arg)}
    own = module.scope(node)
    if own is scope or not isinstance(own, Function):
        return False
    stored = any(not isinstance(item.ctx, ast.Load) for item in module.names(node.id, own))
    return not stored and node.id not in parameters(own)


def changed_in_place(module: Module, node: ast.AST) -> set[str]:
    """Return the objects whose contents code changes: not the variables that it only gives another object."""
    nodes = list(ast.walk(node))
    parts = [part for part in nodes if isinstance(part, ast.Call | ast.Subscript)]
    flow = flow_of(module)
    found = flow.changes(parts) | {path_of(part.target) for part in nodes if isinstance(part, ast.AugAssign)}
    for call in (part for part in nodes if isinstance(part, ast.Call)):
        known = flow.call(call)
        for callee in known.callees if known is not None else ():
            if mutated(callee.node.body) & parameters(callee.node):  # y += 1 of a parameter y
                found |= set(map(path_of, arguments(call)))
    return found - {""}


def takes_steps(node: ast.AST) -> bool:
    """Return whether code calls ``step``: of an optimizer, which changes weights, or of what has a state."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(isinstance(func, ast.Attribute) and func.attr == "step" for func in calls)


def shared(module: Module, scope: ast.AST, paths: Iterable[str]) -> set[str]:
    """Return what may have its numbers where these have theirs: what they are views of, and other views of that."""
    found, ties = set(paths), list(_ties(module, scope))
    while True:
        more = {path for tie in ties if any(meets(path, found) for path in tie) for path in tie} - found
        if not more:
            return found
        found |= more


def _ties(module: Module, scope: ast.AST) -> Iterator[set[str]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _tied(module, target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from _tied(module, node.target, node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            over = [path for path in viewed(module, node.iter) if is_tensor(module, path, scope)]
            yield {item.id for item in ast.walk(node.target) if isinstance(item, ast.Name) and over} | set(over)


def _tied(module: Module, target: ast.expr, value: ast.expr) -> Iterator[set[str]]:
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    if len(targets) != len(values):
        targets, values = [target], [value]
    for item, given in zip(targets, values, strict=True):
        if views := set(viewed(module, given)):
            yield views | set(viewed(module, item))


def viewed(module: Module, node: ast.expr) -> Iterator[str]:
    """Yield the variables and attributes of which an expression may be a view."""
    if path := path_of(node):
        if path.rpartition(".")[2] not in FORM:
            yield path
        return
    parts: list[ast.expr] = []
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        parts = [node.value]
    elif isinstance(node, ast.Tuple | ast.List):
        parts = node.elts
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        parts = node.args if path_of(node.func.value) in module.aliases else [node.func.value]
    elif isinstance(node, ast.Call) and path_of(node.func) in ("enumerate", "zip", "reversed", "iter"):
        parts = node.args
    for part in parts:
        yield from viewed(module, part)
