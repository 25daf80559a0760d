"""What an expression is: names, attributes, operators, displays, selections."""

from __future__ import annotations

import ast
from typing import Any

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import CPU, HOST, NUMPY, UNKNOWN, Value, common, together
from torchtriage.diagnose.lint.facts import Context, Test
from torchtriage.diagnose.lint.syntax import literal
from torchtriage.diagnose.lint.walk.heuristics import named
from torchtriage.diagnose.lint.walk.truth import read_truth
from torchtriage.diagnose.lint.walk.walker import ReadExpression, Walker

__all__ = ["EXPRESSIONS"]


def _name(walker: Walker, node: ast.Name) -> Value:
    value = walker.lookup(node.id)
    if value is not None:
        return value
    if node.id in walker.aliases:
        return UNKNOWN
    return named(node.id) or UNKNOWN


def _attribute(walker: Walker, node: ast.Attribute) -> Value:
    base = node.value
    if isinstance(base, ast.Name):
        if base.id == "self" and walker.owner is not None:
            return walker.owner.attributes.get(node.attr) or named(node.attr) or UNKNOWN
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
    return named(node.attr) or UNKNOWN


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
    if walker.function is not None:
        walker.function.is_generator = True
    if node.value is not None:
        walker.eval(node.value)
    return UNKNOWN


def _lambda(walker: Walker, node: ast.Lambda) -> Value:
    saved = walker.context
    walker.context = Context(function=walker.function, rare=True)  # runs who knows when
    walker.scopes.append({arg.arg: UNKNOWN for arg in node.args.args})
    walker.eval(node.body)
    walker.scopes.pop()
    walker.context = saved
    return Value("callable")


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
        if isinstance(node.ctx, ast.Load):
            _note_mask(walker, node, value)
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


def _note_mask(walker: Walker, node: ast.Subscript, value: Value) -> None:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(walker.module.value(part).mask for part in parts):
        walker.module.masks.append(Test(node, value, walker.context, "mask"))


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
