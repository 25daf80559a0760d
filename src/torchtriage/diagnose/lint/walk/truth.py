"""Conditions: comparisons, and expressions whose truth is read."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint.abstract_values import COMPARED, HOST, NUMPY, Value, placed
from torchtriage.diagnose.lint.facts import Test
from torchtriage.diagnose.lint.syntax import literal
from torchtriage.diagnose.lint.walk.walker import ReadExpression, Walker


def _conditional(walker: Walker, node: ast.IfExp) -> Value:
    read_truth(walker, node.test, "if")
    rare = walker.context.rare or walker.rare(node.test)
    saved = walker.context
    if rare and not saved.rare:
        walker.context = walker.context.but(rare=True)
    body = walker.eval(node.body)
    walker.context = saved
    orelse = walker.eval(node.orelse)
    if body.kind == orelse.kind:
        return body if body.device >= orelse.device else orelse
    return body if orelse.kind in ("host", "unknown") else orelse


def _boolean(walker: Walker, node: ast.BoolOp) -> Value:
    values = []
    saved = walker.context
    for index, value in enumerate(node.values):
        if index < len(node.values) - 1:
            values.append(read_truth(walker, value, "and" if isinstance(node.op, ast.And) else "or"))
            if isinstance(node.op, ast.And) and walker.rare(value):
                walker.context = walker.context.but(rare=True)
        else:
            values.append(walker.eval(value))
    walker.context = saved
    return values[-1]


def read_truth(walker: Walker, node: ast.expr, kind: str) -> Value:
    """Read the truth of an expression."""
    if isinstance(node, ast.BoolOp):
        value = _boolean(walker, node)
        last = node.values[-1]
        _note(walker, last, value, kind)
        return HOST
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        read_truth(walker, node.operand, kind)
        return HOST
    value = walker.eval(node)
    _note(walker, node, value, kind)
    return HOST if value.kind != "tensor" else value


def _note(walker: Walker, node: ast.expr, value: Value, kind: str) -> None:
    plain = isinstance(node, ast.Name | ast.Attribute)  # "if mask:" may ask for None
    if value.kind == "tensor" and (value.scalar or not plain):
        walker.module.tests.append(Test(node, value, walker.context, kind))


def _compare(walker: Walker, node: ast.Compare) -> Value:
    values = [walker.eval(node.left), *(walker.eval(comparator) for comparator in node.comparators)]
    if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
        if isinstance(node.ops[-1], ast.In | ast.NotIn):
            walker.module.searches.append(Test(node, values[-1], walker.context, "in"))
        return HOST
    if any(isinstance(literal(comparator), str) for comparator in (node.left, *node.comparators)):
        return HOST
    if any(comparator.value is None for comparator in node.comparators if isinstance(comparator, ast.Constant)):
        return HOST
    tensors = [value for value in values if value.kind == "tensor"]
    if not tensors:
        if any(value.kind == "numpy" for value in values):
            return NUMPY
        return HOST if all(value.kind == "host" for value in values) else COMPARED
    device, _ = placed(tensors)
    return Value(
        "tensor",
        device,
        scalar=all(tensor.scalar for tensor in tensors),
        guess=all(tensor.guess for tensor in tensors),
        data=any(tensor.data for tensor in tensors),
        mask=True,
    )


EXPRESSIONS: dict[type, ReadExpression] = {ast.BoolOp: _boolean, ast.Compare: _compare, ast.IfExp: _conditional}
