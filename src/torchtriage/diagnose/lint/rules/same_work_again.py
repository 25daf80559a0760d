"""The same thing is computed again in each turn, from inputs that do not change.

Looks like: ``graph = neighbours(points)`` in a loop that never assigns ``points``; a layer that
    searches neighbours of the same positions that every other layer gets.
Slow because: all turns after the first one compute what is known.
Fix: compute it once, before the loop (or in the first layer), and pass it on.
Quiet when: something random, stored or read from outside is part of it, or the loop measures time.
Source: PyTorch performance tuning guide.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import (
    Fix,
    Hit,
    Module,
    Rule,
    SourceCall,
    SourceFunction,
    SourceLoop,
    arguments,
    names_in,
    text_of,
)

RULE = Rule("LCH105", "same-work-again", "launch", "The same inputs are worked through in every turn", "low")

FIX = Fix(
    text="Compute it once and pass it on.",
    code="""edges = knn_graph(positions)      # before the loop: positions stay the same
for layer in layers:
    x = layer(x, edges)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

_CHANGES = re.compile(
    r"rand|shuffle|sample|multinomial|normal_|uniform_|bernoulli|dropout|next\(|time\.|perf_counter|open\(|\.read|\.get\("
    r"|\.recv|yield|global |nonlocal |\w_\(|input\(|\.pop\(|\.append\(|\.step\("
    r"|\.backward\(|print\(|\.write|\.put|\.send"
)
_SEARCH = re.compile(
    r"(^|_)(knn|neighbou?rs?|ball_query|radius_graph|farthest|cdist|adjacency|graph|laplacian)(_|$)|^cdist$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of functions of the file that get the same arguments in every turn."""
    if not module.is_program:
        return
    for call in module.calls:
        callee, loop = call.callee, call.context.statement_loop
        if callee is None or len(call.callees) != 1 or call.context.rare or not _is_pure(module, callee):
            continue
        if (
            callee.owner is not None
            or not call.node.args
            or not (callee.works or call.value.kind in ("tensor", "numpy"))
        ):
            continue
        if not (call.target or call.user is not None):
            continue  # called for what it does
        if loop is not None and loop.steps and not loop.times and _is_fixed(call, loop):
            yield Hit(call.node, f"the same arguments in every turn: {text_of(call.node)}", call.attr)
    yield from _in_layers(module)


def _is_pure(module: Module, function: SourceFunction) -> bool:
    """Return whether a function only computes with what it is given."""
    if (
        function.is_generator
        or function.steps
        or function.runs_module
        or function.name.startswith(("load", "get", "read"))
    ):
        return False
    if _CHANGES.search(module.text_of(function)):
        return False
    return not any(
        isinstance(node, ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and names_in(node) & _parameters(function)
        for node in ast.walk(function.node)
    )


def _parameters(function: SourceFunction) -> set[str]:
    args = function.node.args
    return {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}


def _is_fixed(call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether no argument changes in the loop: plain names that nothing there assigns."""
    given = arguments(call.node)
    if any(isinstance(node, ast.Call | ast.Subscript | ast.Attribute) for item in given for node in ast.walk(item)):
        return False
    names = {name for item in given for name in names_in(item)}
    around = [loop, *(outer for outer in call.context.loops())]
    return (
        bool(names)
        and not any(name in one.targets or name in one.assigned for one in around[:1] for name in names)
        and not (set(call.target.split()) & names)
    )


def _in_layers(module: Module) -> Iterator[Hit]:
    """Yield searches in a layer's forward whose input every layer of a loop gets unchanged."""
    for call in module.calls:
        function = call.context.function
        if function is None or function.owner is None or not function.owner.is_module or function.name != "forward":
            continue
        if not _SEARCH.search(call.attr) or not call.node.args or call.context.rare:
            continue
        parameters = [arg.arg for arg in function.node.args.args[1:]]
        names = {name for item in call.node.args for name in names_in(item)} - {"self"}
        if not names or not names <= set(parameters) or any(_assigned(function, name) for name in names):
            continue
        for outer in module.calls:
            loop = outer.context.loop
            if function not in outer.callees or loop is None or outer.node is call.node:
                continue
            given = dict(zip(parameters, outer.node.args, strict=False))
            fixed = [given.get(name) for name in names]
            if all(_stays(item, loop) for item in fixed):
                yield Hit(
                    call.node, f"every layer searches the same inputs again: {text_of(call.node)}", call.attr, "medium"
                )
                break


def _stays(node: ast.expr | None, loop: SourceLoop) -> bool:
    """Return whether an argument is a constant, a setting, or a name that the loop leaves alone."""
    if isinstance(node, ast.Name):
        return node.id not in loop.assigned and node.id not in loop.targets
    return isinstance(node, ast.Constant) or (node is not None and text_of(node, 200).startswith("self."))


def _assigned(function: SourceFunction, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function.node)
    )
