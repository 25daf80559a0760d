"""Assignments, and the blocks that say when what is in them runs."""

from __future__ import annotations

import ast
from typing import Any

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import HOST, NO_GRAD, UNKNOWN, together
from torchtriage.diagnose.lint.conditions import ends, takes_remainder
from torchtriage.diagnose.lint.facts import Assign, SourceCall
from torchtriage.diagnose.lint.syntax import literal, path_of
from torchtriage.diagnose.lint.walk.following import runs_here
from torchtriage.diagnose.lint.walk.heuristics import annotated
from torchtriage.diagnose.lint.walk.truth import read_truth
from torchtriage.diagnose.lint.walk.walker import ReadStatement, Walker


def _assign(walker: Walker, node: ast.Assign) -> None:
    value = walker.eval(node.value)
    call = walker.module.calls[-1] if isinstance(node.value, ast.Call) else None
    for target in node.targets:
        _note_environ(walker, node, target, node.value)
        path = path_of(target)
        if call is not None and isinstance(target, ast.Attribute | ast.Subscript):
            call.stored = True
        if call is not None and len(node.targets) == 1:
            call.target = path
            if value.kind == "clock":
                _rename_clock(walker, call)
        if path:
            walker.module.assigns.append(Assign(node, "=", path, value, node.value, walker.context))
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, given in zip(target.elts, node.value.elts, strict=False):
                if path_of(name):
                    inner = walker.module.value(given)
                    walker.module.assigns.append(Assign(node, "=", path_of(name), inner, given, walker.context))
        elif isinstance(target, ast.Tuple):
            for item in target.elts:
                if path_of(item):
                    unpacked = Assign(node, "unpack", path_of(item), UNKNOWN, node.value, walker.context)
                    walker.module.assigns.append(unpacked)
        walker.target(target, value.but(of=path) if value.kind == "clock" else value)


def _rename_clock(walker: Walker, call: SourceCall) -> None:
    for event in reversed(walker.events):
        if event.node is call.node:
            event.name = call.target
            return


def _note_environ(walker: Walker, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        name = walker.module.name_of(target.value)
        if name == "os.environ":
            walker.module.environ.append((node, str(target.slice.value), value, walker.context))


def _annotated(walker: Walker, node: ast.AnnAssign) -> None:
    if node.value is not None:
        value = walker.eval(node.value)
        declared = annotated(node.annotation)
        walker.target(node.target, value if value.kind != "unknown" or declared is None else declared)


def _augmented(walker: Walker, node: ast.AugAssign) -> None:
    value = walker.eval(node.value)
    path = path_of(node.target)
    old = UNKNOWN
    if isinstance(node.target, ast.Name | ast.Attribute):
        load = walker.lookup(path) if isinstance(node.target, ast.Name) else None
        old = load or walker.eval(node.target)
    else:
        walker.target(node.target, UNKNOWN)
    if path:
        walker.module.assigns.append(Assign(node, "+=", path, value, node.value, walker.context))
        result = together(old, value)
        if isinstance(node.target, ast.Name):
            walker.scopes[-1][path] = result
        else:
            walker.set_attribute(path, result)


def _if(walker: Walker, node: ast.If) -> None:
    read_truth(walker, node.test, "if")
    rare = walker.rare(node.test)
    modulo = rare and takes_remainder(node.test)
    side = walker.switch(node.test)
    old = walker.context
    walker.within(
        old.but(rare=old.rare or rare or ends(node.body), aside=old.aside or side, modulo=old.modulo or modulo),
        node.body,
    )
    if node.orelse:
        otherwise = walker.rare(node.test, negated=True)
        walker.within(old.but(rare=old.rare or otherwise or ends(node.orelse)), node.orelse)


def _with(walker: Walker, node: ast.With | ast.AsyncWith) -> None:
    saved = walker.context
    for item in node.items:
        value = walker.eval(item.context_expr)
        expression = item.context_expr
        call = walker.module.calls[-1] if isinstance(expression, ast.Call) else None
        if call is not None and call.node is expression:
            walker.module.withs.append((item, call, saved, node))
            if (
                call.name in torch_names.NO_GRAD
                or (
                    call.name == "torch.set_grad_enabled"
                    and literal(expression.args[0] if expression.args else None) is False
                )
                or walker.switches_grad_off(walker.module.name_of(expression.func))
            ):
                walker.context = walker.context.but(no_grad=True)
            for name in ("__enter__", "__exit__"):
                owner = walker.class_of(value)
                for function in owner.runs(name) if owner is not None else ():
                    runs_here(walker, function)
            if call.attr == "enable_grad":
                walker.context = walker.context.but(no_grad=False)
        elif value.of == NO_GRAD:
            walker.context = walker.context.but(no_grad=True)
        if item.optional_vars is not None:
            walker.target(item.optional_vars, value)
    walker.block(node.body)
    walker.context = saved


def _try(walker: Walker, node: Any) -> None:
    walker.block(node.body)
    for handler in node.handlers:
        walker.within(walker.context.but(rare=True), handler.body)
    walker.block(node.orelse)
    walker.block(node.finalbody)


def _return(walker: Walker, node: ast.Return) -> None:
    value = walker.eval(node.value) if node.value is not None else HOST
    if walker.function is not None:
        walker.function.returns.append((node, value))


def _raise(walker: Walker, node: ast.Raise) -> None:
    _eval_rarely(walker, node.exc)


def _assert(walker: Walker, node: ast.Assert) -> None:
    read_truth(walker, node.test, "assert")
    _eval_rarely(walker, node.msg)


def _eval_rarely(walker: Walker, node: ast.expr | None) -> None:
    saved = walker.context
    walker.context = walker.context.but(rare=True)
    if node is not None:
        walker.eval(node)
    walker.context = saved


def _delete(walker: Walker, node: ast.Delete) -> None:
    for target in node.targets:
        path = path_of(target.value if isinstance(target, ast.Subscript) else target)
        for loop in walker.context.loops():
            loop.cleared.add(path)


def _match(walker: Walker, node: ast.Match) -> None:
    walker.eval(node.subject)
    for case in node.cases:
        walker.block(case.body)


def _expression(walker: Walker, node: ast.Expr) -> None:
    walker.eval(node.value)


STATEMENTS: dict[type, ReadStatement] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.If: _if,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.Match: _match,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Assert: _assert,
    ast.Delete: _delete,
}
if hasattr(ast, "TryStar"):
    STATEMENTS[ast.TryStar] = _try
