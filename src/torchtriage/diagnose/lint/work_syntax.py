"""Questions about work to a piece of syntax: how often a loop turns, what a function binds and changes."""

import ast
import re

from torchtriage.diagnose.lint.syntax import indices, literal, method_of, names_in, path_of, walk
from torchtriage.diagnose.lint.work_words import MUTATORS

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def appended(node: ast.expr) -> ast.expr | None:
    """Return what an expression puts into a list, None where it puts nothing: ``rows.append(row)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.args[0] if node.func.attr in ("append", "extend", "add") else None
    return None


def is_outer(node: ast.BinOp) -> bool:
    """Return whether each element of one side meets each of the other: ``x[:, None] - y[None]``."""

    def widened(side: ast.expr) -> bool:
        if isinstance(side, ast.Subscript):
            return any(literal(part) is None for part in indices(side))
        return method_of(side) == "unsqueeze"

    return widened(node.left) and widened(node.right)


def is_short(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return whether a loop goes over a few elements that are written down."""
    return not isinstance(node, ast.While) and isinstance(node.iter, ast.Tuple | ast.List) and len(node.iter.elts) <= 8


def by_element(node: ast.AST) -> bool:
    """Return whether a loop takes an array's elements one by one: ``x[i]`` for ``i`` in ``range(len(x))``."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.For | ast.AsyncFor):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, Comprehension):
        pairs = [(generator.target, generator.iter) for generator in node.generators]
    for target, over in pairs:
        if not (isinstance(target, ast.Name) and isinstance(over, ast.Call) and path_of(over.func) == "range"):
            continue
        if all(isinstance(literal(item), int) for item in over.args):
            continue
        if any(isinstance(part, ast.Subscript) and target.id in names_in(part.slice) for part in walk(node)):
            return True
    return False


def is_long(node: ast.AST) -> bool:
    """Return whether a loop's length is not written down as a small number."""
    over = node.iter if isinstance(node, ast.For | ast.AsyncFor) else None
    if isinstance(node, Comprehension):
        over = node.generators[-1].iter
    if isinstance(over, ast.Call) and path_of(over.func) == "range":
        return not all(isinstance(literal(item), int) for item in over.args)
    return not isinstance(over, ast.Tuple | ast.List | ast.Constant)


def looks_up(node: ast.If) -> bool:
    """Return whether a way out gives what has been computed before: ``if key in cache: return cache[key]``."""
    return any(
        isinstance(part, ast.Compare)
        and any(isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in part.ops)
        for part in walk(node.test)
    )


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's parameters."""
    args = node.args
    found = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return found | {arg.arg for arg in (args.vararg, args.kwarg) if arg is not None}


def bound_names(node: ast.AST) -> set[str]:
    """Return the names that a piece of syntax binds, those in comprehensions left out."""
    found: set[str] = set()
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
            found.add(part.id)
        elif isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
            found.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            found.add(part.rest)
        for child in ast.iter_child_nodes(part):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(child.name)
            elif not isinstance(child, Comprehension | ast.Lambda):
                pending.append(child)
    return found


def local_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the names that a function binds itself."""
    return frozenset(bound_names(node) | parameters(node)) - shared_names(node)


def shared_names(node: ast.AST) -> set[str]:
    """Return the names that a piece of syntax says are ``global`` or ``nonlocal``."""
    return {name for part in walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names}


def indexed_paths(node: ast.AST) -> frozenset[str]:
    """Return the paths of what is indexed by a name: ``self.x[i]``, ``x[idx]``."""
    return frozenset(
        re.sub(r"\.(iloc|loc|values)$", "", path_of(part.value))
        for part in walk(node)
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load) and isinstance(part.slice, ast.Name)
    )


def stored_attributes(node: ast.AST) -> frozenset[str]:
    """Return the names of the attributes that a piece of syntax gives values to, or changes."""
    found: set[str] = set()
    for part in walk(node):
        target: ast.AST | None = None
        if isinstance(part, ast.Attribute | ast.Subscript):
            target = part if not isinstance(part.ctx, ast.Load) else None
        elif isinstance(part, ast.Call):
            func = part.func
            last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            if isinstance(func, ast.Attribute) and (last in MUTATORS or (last[-1:] == "_" and last[0] != "_")):
                target = func.value
            elif last in ("register_buffer", "setattr"):
                found |= {name for item in part.args if isinstance(name := literal(item), str)}
        while isinstance(target, ast.Attribute | ast.Subscript):
            if isinstance(target, ast.Attribute):
                found.add(target.attr)
            target = target.value
    return frozenset(found)
