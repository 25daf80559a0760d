"""What a piece of syntax says by itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint import torch_names

Function = ast.FunctionDef | ast.AsyncFunctionDef


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in the order of ``ast.walk`` and in two thirds of its time."""
    pending = [node]
    for item in pending:
        yield item
        for name in item._fields:
            value = getattr(item, name, None)
            if isinstance(value, ast.AST):
                pending.append(value)
            elif isinstance(value, list):
                pending += [part for part in value if isinstance(part, ast.AST)]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the expression of a keyword argument, None when it is absent."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return what a parameter is given, by its name or its place, None when it is absent."""
    return keyword(call, name) or (call.args[place] if 0 <= place < len(call.args) else None)


def arguments(call: ast.Call) -> list[ast.expr]:
    """Return every argument, keyword arguments last."""
    return [*call.args, *(argument.value for argument in call.keywords)]


def option_of(call: ast.Call) -> str:
    """Return the name of the option that a parser is told of: ``batch_size`` of ``"-b", "--batch-size"``."""
    names = [name for item in call.args if isinstance(name := literal(item), str)]
    return names[-1].lstrip("-").replace("-", "_") if names else ""


def unpacks(call: ast.Call) -> bool:
    """Return whether ``**options`` may hold any keyword."""
    return any(argument.arg is None for argument in call.keywords)


def hides(call: ast.Call) -> bool:
    """Return whether ``*items`` or ``**options`` may give any parameter."""
    return unpacks(call) or any(isinstance(item, ast.Starred) for item in call.args)


def holds(outer: ast.AST, node: ast.AST | None) -> bool:
    """Return whether a node is a part of another, or itself."""
    return any(part is node for part in walk(outer))


def defaults(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> dict[str, ast.expr]:
    """Return the default of each parameter that has one."""
    args = node.args
    places = [*args.posonlyargs, *args.args]
    pairs = [*zip(places[len(places) - len(args.defaults) :], args.defaults, strict=True)]
    pairs += [(arg, given) for arg, given in zip(args.kwonlyargs, args.kw_defaults, strict=True) if given is not None]
    return {arg.arg: given for arg, given in pairs}


def names_in(node: ast.AST) -> set[str]:
    """Return the variables in a piece of syntax."""
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def attributes_in(node: ast.AST) -> set[str]:
    """Return the attributes in a piece of syntax, each by its own name."""
    return {part.attr for part in walk(node) if isinstance(part, ast.Attribute)}


def stored_names(node: ast.AST) -> set[str]:
    """Return the variables that a piece of syntax gives values to."""
    return {part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def set_by(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return what a node sets, and to what: None for what a loop gives, ``a + b`` where ``a += b``."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AugAssign):
        return [(node.target, ast.copy_location(ast.BinOp(node.target, node.op, node.value), node))]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        return [(node.target, node.value)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr)]
    return [(node.target, None)] if isinstance(node, ast.For | ast.AsyncFor) else []


def assigned_pairs(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned to what; ``a, b = x, y`` part by part."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            yield from zip(target.elts, statement.value.elts, strict=False)
        else:
            yield target, statement.value


def given_names(call: ast.Call) -> set[str]:
    """Return the variables in what a call is given."""
    return {name for item in arguments(call) for name in names_in(item)}


def indices(node: ast.Subscript) -> list[ast.expr]:
    """Return the index in each dimension: two of ``x[i, :n]``."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def literal(node: ast.expr | None) -> object:
    """Return what a constant expression says; ``...`` for anything that is none."""
    return node.value if isinstance(node, ast.Constant) else ...


def whole_number(node: ast.expr | None) -> int | None:
    """Return the whole number that an expression writes out, with its sign; None for anything else."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = literal(node.operand if isinstance(node, ast.UnaryOp) and negative else node)
    return (-value if negative else value) if type(value) is int else None


def first_line(node: ast.stmt) -> int:
    """Return the line that a statement begins at, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min((int(decorator.lineno) for decorator in decorators), default=node.lineno)


def path_of(node: ast.expr) -> str:
    """Return ``a.b.c`` for names and attributes, empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts))) if parts else node.id


def path_called(node: ast.AST | None) -> str:
    """Return the path of what an expression calls, empty for anything else."""
    return path_of(node.func) if isinstance(node, ast.Call) else ""


def method_of(node: ast.AST | None) -> str:
    """Return the name of the method that an expression calls, empty for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def root_of(node: ast.expr) -> ast.expr:
    """Return what calls, attributes and entries begin with: ``x`` of ``x.f(y)[0].z``."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def is_self(node: ast.expr) -> bool:
    """Return whether an expression is ``self``."""
    return isinstance(node, ast.Name) and node.id == "self"


def goes_over(node: ast.expr) -> str:
    """Return the path of what a loop goes over, wrappers taken away."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return path_of(node)


def flag(node: ast.Call, name: str, position: int) -> bool | None:
    """Return a boolean setting of a call: its value, False when absent, None when not constant."""
    given = argument(node, name, position)
    if given is None:
        return None if unpacks(node) else False
    value = literal(given)
    return bool(value) if value is not ... else None


def destination(node: ast.Call) -> str:
    """Return the device a ``.to(...)`` names in words, empty when none."""
    given = argument(node, "device", 0)
    if isinstance(given, ast.Call) and given.args and path_of(given.func).endswith("device"):
        given = given.args[0]
    name = literal(given)
    return name.partition(":")[0] if isinstance(name, str) else ""


def moves(node: ast.Call) -> bool:
    """Return whether ``x.to(...)`` moves to a device that is not the host."""
    word = destination(node)
    if word:
        return word != "cpu"
    if keyword(node, "device") is not None:
        return True
    for arg in node.args[:1]:
        path = path_of(arg).lower()
        if "dtype" in path or path.startswith(("torch.", "np.")):
            return False
        if re.search(r"(^|[._])(device|dev|cuda|gpu|rank|local_rank|device_id)s?(_?\w*)$", path):
            return True
        if isinstance(arg, ast.Call) and path_of(arg.func).endswith("device"):
            return True
        if isinstance(arg, ast.Constant) and isinstance(arg.value, int):
            return True
    return False


def turns(node: ast.Call) -> int | None:
    """Return how often ``range(...)`` turns, when it says so."""
    numbers = [literal(arg) for arg in node.args]
    if not numbers or any(not isinstance(number, int) for number in numbers):
        return None
    try:
        return len(range(*numbers))  # type: ignore[call-overload,unused-ignore]
    except (TypeError, ValueError, OverflowError):
        return None


def constructs(node: ast.expr | None) -> bool:
    """Return whether an expression is ``Class(...)``."""
    if not isinstance(node, ast.Call):
        return False
    last = path_of(node.func).rpartition(".")[2]
    return last[:1].isupper() and torch_names.RECORDS.search(last) is None
