"""Loops and comprehensions: what they go over, and what their targets are then."""

from __future__ import annotations

import ast

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import A_LIST, CPU, HOST, UNKNOWN, Value, common, element
from torchtriage.diagnose.lint.facts import SourceLoop
from torchtriage.diagnose.lint.syntax import goes_over, path_of, turns
from torchtriage.diagnose.lint.walk.following import iterated as makes
from torchtriage.diagnose.lint.walk.following import returned, runs_here
from torchtriage.diagnose.lint.walk.truth import read_truth
from torchtriage.diagnose.lint.walk.walker import ReadExpression, ReadStatement, Walker


def _comprehension(walker: Walker, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    saved = walker.context
    walker.scopes.append({})
    for generator in node.generators:
        iterated = walker.eval(generator.iter)
        loop = SourceLoop(generator, walker.context, iterated, path_of(generator.iter))
        walker.module.loops.append(loop)
        walker.context = walker.context.but(loop=loop)
        _run_iterated(walker, iterated)
        _bind_targets(walker, generator.target, generator.iter, iterated, loop)
        for test in generator.ifs:
            read_truth(walker, test, "if")
    made = node.value if isinstance(node, ast.DictComp) else node.elt
    walker.module.elements[node.generators[-1]] = made
    if isinstance(node, ast.DictComp):
        walker.eval(node.key)
    value = walker.eval(made)
    walker.scopes.pop()
    walker.context = saved
    if value.kind == "tensor":
        # a batch moved piece by piece is still a batch
        return value if isinstance(node, ast.DictComp) else Value("list", CPU, items=(value,))
    return A_LIST if value.kind in ("unknown", "host", "list") else Value("list", CPU, items=(value,))


def _bind_targets(walker: Walker, target: ast.expr, iterated: ast.expr, value: Value, loop: SourceLoop) -> None:
    found = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    loop.targets = frozenset(found)
    loop.rounds = any(torch_names.ROUNDS.search(name) for name in (*found, loop.over))
    if value.of in ("enumerate", "zip") and value.items:
        walker.target(target, value if isinstance(target, ast.Tuple) else UNKNOWN)
    elif isinstance(iterated, ast.Call) and path_of(iterated.func) == "range":
        walker.target(target, HOST)
        loop.n_constant = _turns(walker, iterated)
    elif isinstance(iterated, ast.Tuple):
        loop.n_constant = len(iterated.elts)
        walker.target(target, common(value.items))
    elif value.kind == "object":
        walker.target(target, _made_by(walker, value))
    else:
        loop.n_constant = len(value.items) or None if isinstance(iterated, ast.List) else None
        walker.target(target, element(value))


def _turns(walker: Walker, node: ast.Call) -> int | None:
    """Return how often ``range(...)`` turns, as the settings of a program stand."""
    known = turns(node)
    if known is not None or not walker.is_program or len(node.args) != 1:
        return known
    number = walker.module.constant(node.args[0], walker.context)
    return number if type(number) is int else None


def _run_iterated(walker: Walker, value: Value) -> None:
    """Note the functions that make the elements: each turn of the loop runs them."""
    for function in makes(walker, value):
        runs_here(walker, function)


def _made_by(walker: Walker, value: Value) -> Value:
    """Return what iterating an object gives."""
    made = returned(walker, makes(walker, value)[:1])
    return element(made) if made.kind == "list" else made


def _for(walker: Walker, node: ast.For | ast.AsyncFor) -> None:
    iterated = walker.eval(node.iter)
    loop = SourceLoop(node, walker.context, iterated, goes_over(node.iter))
    _enter(walker, loop, node)


def _enter(walker: Walker, loop: SourceLoop, node: ast.For | ast.AsyncFor | ast.While) -> None:
    walker.module.loops.append(loop)
    saved = walker.context
    walker.context = walker.context.but(
        loop=loop,
        # what happens in a loop that itself runs now and then: its own steps are hot
        rare=False if loop.over_loader else saved.rare,
        modulo=False,
    )
    if isinstance(node, ast.For | ast.AsyncFor):
        _run_iterated(walker, loop.iterates)
        _bind_targets(walker, node.target, node.iter, loop.iterates, loop)
    else:
        read_truth(walker, node.test, "while")
    walker.block(node.body)
    walker.context = saved
    walker.block(node.orelse)


def _while(walker: Walker, node: ast.While) -> None:
    _enter(walker, SourceLoop(node, walker.context), node)


EXPRESSIONS: dict[type, ReadExpression] = {
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
}
STATEMENTS: dict[type, ReadStatement] = {ast.For: _for, ast.AsyncFor: _for, ast.While: _while}
