"""What a setting is when nobody changes it: defaults of parameters, fields, options and constants.

``if step % self.every == 0`` holds in every step where ``every=1`` is the default and all callers
leave it; a switch whose default is True is on. The answers are for the program as it stands.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import Function, argument, defaults, hides, keyword, literal, option_of, path_of
from torchtriage.diagnose.lint.work_syntax import parameters

_DEPTH = 6
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
_ITSELF = object()  # of ``self.n = n`` where every caller gives ``settings.n``
_LARGE = 1 << 40  # larger numbers are no sizes
_Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr
_Scope = tuple[Function | None, str]  # a function, and the class that it is a method of


class Settings:
    """The settings of one file, by the names they are read with."""

    def __init__(self, tree: ast.Module) -> None:
        self._fields: dict[str, list[tuple[ast.expr, _Scope]]] = defaultdict(list)
        self._names: dict[str, list[ast.expr | None]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._scopes: dict[ast.AST, _Scope] = {}
        self._asked: set[str] = set()  # attributes whose value is being looked up
        self._gather(tree, (None, ""))

    def value(self, node: ast.expr | None, function: ast.AST | None = None, depth: int = 0) -> object:
        """Return the constant that an expression is, ``...`` where it is none or not known."""
        said = self._value(node, function, depth)
        return ... if said is _ITSELF and not depth else said

    def _value(self, node: ast.expr | None, function: ast.AST | None, depth: int) -> object:
        said = literal(node)
        if said is not ... or node is None or depth > _DEPTH:
            return said
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            inner = self.value(node.operand, function, depth + 1)
            if isinstance(node.op, ast.Not):
                return not inner if inner is not ... else ...
            return -inner if isinstance(inner, int | float) else ...
        if isinstance(node, ast.BinOp):
            return _computed(
                node.op, self.value(node.left, function, depth + 1), self.value(node.right, function, depth + 1)
            )
        if isinstance(node, ast.Call) and path_of(node.func) == "int" and len(node.args) == 1:
            inner = self.value(node.args[0], function, depth + 1)
            return int(inner) if isinstance(inner, int | float) and abs(inner) < _LARGE else ...
        if isinstance(node, ast.Attribute):
            if node.attr in self._asked:
                return _ITSELF
            self._asked.add(node.attr)
            found = [self.value(item, scope[0], depth + 1) for item, scope in self._fields.get(node.attr, ())]
            self._asked.remove(node.attr)
            return _agreed(found)
        if isinstance(node, ast.Name):
            scope = self._scopes.get(function, (None, "")) if function is not None else (None, "")
            if scope[0] is not None and node.id in parameters(scope[0]):
                return self._parameter(scope, node.id, depth)
            return _agreed([self.value(item, None, depth + 1) for item in self._names.get(node.id, ())])
        return ...

    def truth(self, test: ast.expr, function: ast.AST | None = None) -> bool | None:
        """Return whether a condition always or never holds, None when that is not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand, function)
            return None if inner is None else not inner
        if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
            return False if self.value(test.right, function) in (1, True) else None
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and literal(test.comparators[0]) == 0:
            if isinstance(test.left, ast.BinOp) and isinstance(test.left.op, ast.Mod):
                rest = self.truth(test.left, function)
                return None if rest is None else isinstance(test.ops[0], ast.Eq)
            return None
        if isinstance(test, ast.Name | ast.Attribute):
            constant = self.value(test, function)
            return constant if isinstance(constant, bool) else None
        return None

    def _parameter(self, scope: _Scope, name: str, depth: int) -> object:
        """Return what a parameter always is: its default, or what all callers give."""
        function, owner = scope
        assert function is not None
        called = owner if function.name == "__init__" else function.name
        default = defaults(function).get(name)
        places = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        at = places.index(name) - (1 if owner else 0) if name in places else -1
        found: list[object] = []
        for call in self._calls.get(called, ()):
            if hides(call):
                return ...
            found.append(self.value(argument(call, name, at) or default, None, depth + 1))
        return _agreed(found) if found else self.value(default, None, depth + 1)

    def _gather(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, Function):
                inner = (child, node.name if isinstance(node, ast.ClassDef) else "")
                self._scopes[child] = inner
            elif isinstance(child, ast.ClassDef):
                inner = (None, "")
            elif isinstance(child, _Assignment):
                self._assigned(child, node, scope)
            elif isinstance(child, ast.Call):
                self._called(child)
            self._gather(child, inner)

    def _assigned(self, node: _Assignment, around: ast.AST, scope: _Scope) -> None:
        for target, value in _pairs(node):
            if isinstance(target, ast.Attribute):
                self._fields[target.attr].append((value or ast.Name("..."), scope))
            elif isinstance(target, ast.Name) and not isinstance(around, ast.ClassDef):
                self._names[target.id].append(value)
            elif isinstance(target, ast.Name) and value is not None:
                self._fields[target.id].append((value, (None, "")))

    def _called(self, node: ast.Call) -> None:
        last = path_of(node.func).rpartition(".")[2]
        if last == "add_argument":
            default = keyword(node, "default") or ast.Name("...")
            if option := option_of(node):
                self._fields[option].append((default, (None, "")))
        elif last == "partial" and node.args:
            self._called(ast.Call(node.args[0], node.args[1:], node.keywords))
        elif last:
            self._calls[last].append(node)
            if last[:1].isupper() or last == "replace":
                for item in node.keywords:  # a record made with other fields
                    if item.arg is not None:
                        self._fields[item.arg].append((item.value, (None, "")))


def _computed(op: ast.operator, left: object, right: object) -> object:
    """Return what arithmetic gives on two whole numbers, ``...`` where it is not known."""
    compute = _ARITHMETIC.get(type(op))
    if (
        compute is None
        or type(left) is not int
        or type(right) is not int
        or (right == 0 and compute is operator.floordiv)
    ):
        return ...
    if isinstance(op, ast.Pow | ast.LShift) and not (0 <= right <= 40 and abs(left) <= 1000):
        return ...
    return compute(left, right)


def _agreed(found: list[object]) -> object:
    found = [item for item in found if item is not _ITSELF] or found
    first = found[0] if found else ...
    return first if all(type(item) is type(first) and item == first for item in found) else ...


def _pairs(node: _Assignment) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target with what it is given; None for what is not one expression."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    value = None if isinstance(node, ast.AugAssign) else node.value
    for target in targets:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        elif isinstance(target, ast.Tuple):
            yield from ((item, None) for item in target.elts)
        else:
            yield target, value
