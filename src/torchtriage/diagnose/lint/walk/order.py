"""One pass over a file, in the order it runs.

Module level first, then each function with the names of its surroundings. A function whose text
holds nothing any rule is about is not read at all.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.facts import Context, Module, SourceFunction
from torchtriage.diagnose.lint.walk import calls, definitions, expressions, loops, statements, truth
from torchtriage.diagnose.lint.walk.definitions import bind_parameters
from torchtriage.diagnose.lint.walk.walker import Env, Waiting, Walker

__all__ = ["walk"]

# by type of node
_EXPRESSIONS = {**expressions.EXPRESSIONS, **truth.EXPRESSIONS, **loops.EXPRESSIONS, **calls.EXPRESSIONS}
_STATEMENTS = {**definitions.STATEMENTS, **statements.STATEMENTS, **loops.STATEMENTS}


def walk(tree: ast.Module, text: str, path: str) -> Module:
    """Return what rules need to know about one parsed file."""
    walker = Walker(tree, text, path, _EXPRESSIONS, _STATEMENTS)
    walker.block(tree.body)
    walker.waiting = _in_order(walker.waiting)
    while walker.waiting:
        _read_function(walker, *walker.waiting.popleft())
    _follow_calls(walker.module)
    return walker.module


def _in_order(pending: Iterable[Waiting]) -> deque[Waiting]:
    """Return functions in the order they tell about each other.

    Constructors first: they say what self's attributes are. Then callers before what they call:
    ``main`` is the last function of most files, public methods are the first of most classes.
    """
    pending = list(pending)
    first = [item for item in pending if item[0].name in ("__init__", "setup")]
    methods = [item for item in pending if item[0].owner is not None and item not in first]
    plain = [item for item in reversed(pending) if item[0].owner is None]
    return deque([*first, *plain, *methods])


def _read_function(walker: Walker, function: SourceFunction, scopes: list[Env]) -> None:
    local: Env = {}
    walker.scopes = [*scopes, local]
    walker.function = function
    aside = torch_names.SIDE.search(function.qualname) is not None
    walker.context = Context(function=function, no_grad=function.no_grad, aside=aside)
    bind_parameters(walker, function, local)
    walker.block(function.node.body)


def _follow_calls(module: Module) -> None:
    """Mark functions called from hot places, one level."""
    for function in module.functions:
        for event in function.events:
            function.has_backward = function.has_backward or event.kind == "backward"
    hot: list[SourceFunction] = []
    for call in module.calls:
        callee = call.callee
        if callee is None:
            continue
        if call.context.loop is not None and not call.context.loop.comprehension:
            callee.called_in_loop = True
            call.context.loop.calls.add(callee)
        if call.context.no_grad:
            callee.called_without_grad = True
    for call in module.calls:
        callee = call.callee
        if callee is None or callee.name == "__init__":
            continue
        if call.context.hot and not _loops_itself(module, callee):
            hot.append(callee)
        where = call.context.function
        if where is not None and where.compiled and not call.context.rare:
            callee.compiled_by_caller = True
    for callee in hot:
        callee.called_hot = True


def _loops_itself(module: Module, function: SourceFunction) -> bool:
    """Return whether a function holds the loop of steps: then its own lines run per epoch."""
    return any(loop.function is function and loop.steps for loop in module.loops)
