"""A model runs once for each piece of one input.

Looks like: ``for row in batch: model(row.unsqueeze(0))``; tiles that are cut out of one image, each
    run alone.
Slow because: a call costs the same few hundred launches for one item as for sixteen.
Fix: stack the pieces and run them together.
Quiet when: the items come one at a time (a camera, a robot), or differ in size.
Source: PyTorch performance tuning guide.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import (
    Fix,
    Hit,
    Module,
    Rule,
    SourceCall,
    SourceFunction,
    SourceLoop,
    literal,
    names_in,
    text_of,
)

RULE = Rule("LCH102", "one-item-batches", "launch", "A model runs once for each piece of one input", "low")

FIX = Fix(
    text="Stack the pieces and run them together.",
    code="""for group in tiles.split(32):      # instead of model(tile[None]) for each
    out = model(group)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of models on single pieces of something that is there as a whole."""
    for call in module.calls:
        loop = call.context.statement_loop
        if loop is None or call.receiver.kind != "module" or call.value.kind != "tensor" or not call.context.hot:
            continue
        if loop.times or (loop.n_constant is not None and loop.n_constant < 8):
            continue
        names = _sources(module, call, loop)
        if names & loop.targets and _is_whole(module, loop) and _is_single(module, call, loop):
            node = loop.node if isinstance(loop.node, ast.stmt) else call.node
            yield Hit(node, f"one piece at a time goes through the model: {text_of(call.node)}", "forward")


def _sources(module: Module, call: SourceCall, loop: SourceLoop) -> set[str]:
    """Return the names that a call's input is made of, assignments of the same turn followed."""
    names = {
        name for item in (*call.node.args, *(item.value for item in call.node.keywords)) for name in names_in(item)
    }
    for _ in range(3):
        names |= {
            name
            for assign in module.assigns
            if assign.context.statement_loop is loop and assign.how == "=" and assign.target in names
            for name in names_in(assign.expression)
        }
    return names


def _is_single(module: Module, call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether a piece gets a batch dimension of one: ``x.unsqueeze(0)``, ``x[None]``."""
    names = _sources(module, call, loop)
    made = [one for one in module.assigns if one.context.statement_loop is loop and one.target in names]
    pieces = set(loop.targets)
    for one in made:
        if names_in(one.expression) & pieces:
            pieces.add(one.target)
    parts = [call.node, *(one.expression for one in made)]
    return any(_adds_dimension(node) and bool(names_in(node) & pieces) for part in parts for node in ast.walk(part))


def _adds_dimension(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        func, first = node.func, node.args[0] if node.args else None
        return isinstance(func, ast.Attribute) and func.attr == "unsqueeze" and literal(first) == 0
    if not isinstance(node, ast.Subscript):
        return False
    index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return literal(index) is None


def _is_whole(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop goes over the rows of a tensor, or over pieces cut out of one array."""
    if loop.iterates.kind == "tensor" and not loop.iterates.guess:
        return True
    return any(function.is_generator and _cuts(function) for function in loop.iterates.calls)


def _cuts(function: SourceFunction) -> bool:
    """Return whether a generator gives slices of what it is given."""
    given = {arg.arg for arg in function.node.args.args}
    return any(
        isinstance(node, ast.Yield)
        and node.value is not None
        and any(
            isinstance(item, ast.Subscript)
            and names_in(item.value) & given
            and any(isinstance(part, ast.Slice) for part in ast.walk(item.slice))
            for item in ast.walk(node.value)
        )
        for node in ast.walk(function.node)
    )
