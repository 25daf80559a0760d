"""What an expression is: names, attributes, operators, displays, selections."""

from __future__ import annotations

import ast
from typing import Any

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import CPU, HOST, NUMPY, UNKNOWN, Value, common, element, together
from torchtriage.diagnose.lint.facts import Class, SourceFunction, Test
from torchtriage.diagnose.lint.syntax import indices, literal
from torchtriage.diagnose.lint.walk.following import iterated, returned, runs_here
from torchtriage.diagnose.lint.walk.heuristics import named
from torchtriage.diagnose.lint.walk.truth import read_truth
from torchtriage.diagnose.lint.walk.walker import ReadExpression, Walker


def _name(walker: Walker, node: ast.Name) -> Value:
    value = walker.lookup(node.id)
    if value is not None:
        # whatever made it: what is called a loader is one
        meant = named(node.id) if value is UNKNOWN else None
        return meant if meant is not None and meant.kind == "loader" else value
    if node.id in walker.aliases:
        return UNKNOWN
    function = walker.by_name.get(node.id)
    if function is not None:
        return Value("callable", of=node.id, calls=(function,))
    return named(node.id) or UNKNOWN


def _attribute(walker: Walker, node: ast.Attribute) -> Value:
    base = node.value
    if isinstance(base, ast.Name):
        if base.id == "self" and walker.owner is not None:
            return _of_object(walker, walker.owner, node.attr)
        known = walker.lookup(f"{base.id}.{node.attr}")
        if known is not None:
            return known
        if base.id in walker.aliases:
            return UNKNOWN
    value = walker.eval(base)
    if value.kind == "tensor":
        if node.attr in torch_names.HOST_ATTRIBUTES:
            return HOST
        if node.attr == "loss":
            return value.but(scalar=True, data=False, guess=False)
        if node.attr in ("data", "grad"):
            return value.but(grad=False)
        return value
    if value.kind == "numpy":
        return NUMPY if node.attr in ("T", "real", "imag", "flat") else HOST
    if value.kind == "host":
        return HOST
    if value.kind == "module" and node.attr == "module":
        return value
    owner = walker.class_of(value)
    return _of_object(walker, owner, node.attr) if owner is not None else named(node.attr) or UNKNOWN


def _of_object(walker: Walker, owner: Class, name: str) -> Value:
    """Return what an attribute is: a value, a property, or a method that is handed on."""
    known = owner.attribute(name)
    if known is not None and (known.kind != "unknown" or known.items):
        return known
    methods = owner.runs(name)
    if methods and any(item in methods[0].decorators for item in ("property", "functools.cached_property")):
        for method in methods:
            runs_here(walker, method)
        return returned(walker, methods)
    if methods:
        return Value("callable", of=name, calls=methods)
    return named(name) or UNKNOWN


def _tuple(walker: Walker, node: ast.Tuple) -> Value:
    return Value("unknown", items=tuple(walker.eval(element) for element in node.elts))


def _list(walker: Walker, node: ast.List) -> Value:
    return Value("list", CPU, items=tuple(walker.eval(element) for element in node.elts))


def _dict(walker: Walker, node: ast.Dict) -> Value:
    for key in node.keys:
        if key is not None:
            walker.eval(key)
    return Value("list", CPU, items=tuple(walker.eval(value) for value in node.values))


def _yield(walker: Walker, node: ast.Yield | ast.YieldFrom) -> Value:
    value = walker.eval(node.value) if node.value is not None else HOST
    function, loop = walker.function, walker.context.statement_loop
    if function is None:
        return UNKNOWN
    function.is_generator = True
    if isinstance(node, ast.YieldFrom):
        for inner in iterated(walker, value):
            runs_here(walker, inner)
        value = element(value)
    if function.yields.kind == "unknown":
        function.yields = value
    if loop is not None and loop not in function.turns:
        function.turns.append(loop)
    return UNKNOWN


def _lambda(walker: Walker, node: ast.Lambda) -> Value:
    body = ast.copy_location(ast.Return(value=node.body), node.body)
    written = ast.FunctionDef(name="<lambda>", args=node.args, body=[body], decorator_list=[])
    function = SourceFunction(
        "<lambda>", "<lambda>", ast.copy_location(written, node), None, walker.function, (), no_grad=False
    )
    walker.module.functions.append(function)
    walker.unread[function] = list(walker.scopes)
    walker.speaking.add(function)
    return Value("callable", of="<lambda>", calls=(function,))


def _walrus(walker: Walker, node: ast.NamedExpr) -> Value:
    value = walker.eval(node.value)
    walker.bind(node.target.id, value)
    return value


def _joined(walker: Walker, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = walker.eval(part.value)
            if value.kind == "tensor":
                walker.module.formats.append(Test(part.value, value, walker.context, "f-string"))
            if part.format_spec is not None:
                walker.eval(part.format_spec)
    return HOST


def _unary(walker: Walker, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        read_truth(walker, node.operand, "not")
        return HOST
    value = walker.eval(node.operand)
    if isinstance(node.op, ast.Invert) and value.kind == "tensor":
        return value.but(mask=True)  # only masks are inverted
    return value


def _binary(walker: Walker, node: ast.BinOp) -> Value:
    left, right = walker.eval(node.left), walker.eval(node.right)
    if isinstance(node.op, ast.Mod) and isinstance(literal(node.left), str):
        for item in (right, *right.items):
            if item.kind == "tensor":
                walker.module.formats.append(Test(node.right, item, walker.context, "%"))
                break
        return HOST
    return together(left, right)


def _subscript(walker: Walker, node: ast.Subscript) -> Value:
    value = walker.eval(node.value)
    index = walker.eval(node.slice)
    if value.kind == "tensor":
        if isinstance(node.ctx, ast.Load) and any(walker.module.value(part).mask for part in indices(node)):
            walker.module.masks.append(Test(node, value, walker.context, "mask"))
        if index.kind == "host" and isinstance(literal(node.slice), str):
            return value  # a batch as a dictionary
        return value.but(made_by=None) if value.made_by else value
    if value.kind == "numpy":
        return NUMPY
    if value.kind in ("list", "unknown") and value.items:
        at = literal(node.slice)
        if type(at) is int and -len(value.items) <= at < len(value.items):
            return value.items[at]
        return common(value.items) if value.kind == "list" else UNKNOWN
    if value.kind == "host":
        return HOST
    return UNKNOWN


def _inner(walker: Walker, node: Any) -> Value:
    return walker.eval(node.value)


EXPRESSIONS: dict[type, ReadExpression] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Tuple: _tuple,
    ast.List: _list,
    ast.Dict: _dict,
    ast.JoinedStr: _joined,
    ast.NamedExpr: _walrus,
    ast.Lambda: _lambda,
    ast.Await: _inner,
    ast.Starred: _inner,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
}
