"""A model runs once per piece of one input.

Looks like: ``for row in batch: model(row.unsqueeze(0))``, ``model(x[i : i + 1])`` for each index of a
    tensor, an array or a data set, there or in a function that is called with the row; tiles that are cut
    out of one image, each run alone.
Slow because: a call costs the same few hundred launches for one item as for sixteen.
Fix: stack the pieces and run them together.
Quiet when: the items come one at a time (a camera, a robot), differ in size, or each is a step of an optimizer.
Source: PyTorch performance tuning guide.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.abstract_values import Value
from torchtriage.diagnose.lint.base import Assign, Fix, Hit, Module, Rule, SourceCall, SourceFunction, SourceLoop
from torchtriage.diagnose.lint.reads import text_of
from torchtriage.diagnose.lint.syntax import given_names, literal, names_in

RULE = Rule("LCH102", "one-item-batches", "launch", "A model runs once per piece of one input", "low")

FIX = Fix(
    text="Stack the pieces and run them together.",
    code="""for group in tiles.split(32):      # instead of model(tile[None]) for each
    out = model(group)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)


_OPTIONS = frozenset(["range", "enumerate", "zip", "tqdm", "trange", "len"])


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of models on single pieces of something that is there as a whole."""
    for call in module.calls:
        if not call.runs_module:
            continue
        loop = call.context.loop
        if loop is not None and module.repeats(call.context) and (module.is_program or _is_plain(call, loop)):
            names = _sources(module, call, loop)
            if _goes_over_whole(module, loop) and names & loop.targets and _is_single(module, call, loop, loop.targets):
                yield _hit(loop, call)
                continue
        yield from _handed(module, call)


def _is_plain(call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether a statement's loop goes over the rows of a tensor, outside of a module's own code."""
    return loop.iterates.kind == "tensor" and not loop.comprehension and not call.context.in_module


def _hit(loop: SourceLoop, call: SourceCall) -> Hit:
    node = loop.node if isinstance(loop.node, ast.stmt) else call.node
    return Hit(node, f"the model gets one piece at a time: {text_of(call.node)}", "forward")


def _handed(module: Module, call: SourceCall) -> Iterator[Hit]:
    """Yield loops that hand their pieces one by one to a function which makes a batch of each."""
    function = call.context.function
    if function is None or call.context.rare or function.name == "forward" or not module.is_program:
        return
    given = function.places
    loop = call.context.loop
    singles = {name for name in given if _is_single(module, call, loop, frozenset([name]))}
    singles &= _sources(module, call, loop)
    for outer in module.calls if singles else ():
        if function not in outer.callees or outer.context.loop is None or outer.context.rare:
            continue
        passed = dict(zip(given, outer.node.args, strict=False))
        pieces = {name for single in singles if single in passed for name in names_in(passed[single])}
        around = outer.context.loop
        if pieces & around.targets and _goes_over_whole(module, around) and module.repeats(outer.context):
            yield _hit(around, outer)


def _goes_over_whole(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop takes more than a few pieces of something that is there as a whole; not a step for each."""
    return not (loop.times or loop.optimizes or loop.turns_below(8)) and _is_whole(module, loop)


def _sources(module: Module, call: SourceCall, loop: SourceLoop | None) -> set[str]:
    """Return the names that a call's input is made of, assignments of the same turn followed."""
    names = given_names(call.node)
    for _ in range(3):
        names |= {
            name
            for assign in module.assigns
            if _beside(assign, call, loop) and assign.how in ("=", "unpack") and assign.target in names
            for name in names_in(assign.expression)
        }
    return names


def _beside(assign: Assign, call: SourceCall, loop: SourceLoop | None) -> bool:
    """Return whether an assignment stands in the same loop, or the same function, as a call."""
    return assign.context.loop is loop and assign.context.function is call.context.function


def _is_single(module: Module, call: SourceCall, loop: SourceLoop | None, targets: frozenset[str]) -> bool:
    """Return whether a piece gets a batch dimension of one: ``x.unsqueeze(0)``, ``x[None]``, ``x[i : i + 1]``."""
    names = _sources(module, call, loop)
    made = [item for item in module.assigns if _beside(item, call, loop) and item.target in names]
    pieces = set(targets)
    for item in made:
        if names_in(item.expression) & pieces:
            pieces.add(item.target)
    parts = [call.node, *(item.expression for item in made)]
    return any(_adds_dimension(node) and bool(names_in(node) & pieces) for part in parts for node in ast.walk(part))


def _adds_dimension(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        first = literal(node.args[0]) if node.args else ...
        if node.func.attr == "unsqueeze":
            return first == 0
        if node.func.attr in ("view", "reshape"):
            return first == 1 and type(first) is int and len(node.args) > 1
        if node.func.attr == "expand_dims":
            return len(node.args) > 1 and literal(node.args[1]) == 0
        if node.func.attr in ("tensor", "stack", "as_tensor", "FloatTensor") and node.args:
            given = node.args[0]
            return isinstance(given, ast.List) and len(given.elts) == 1 and isinstance(given.elts[0], _PIECES)
        return False
    if not isinstance(node, ast.Subscript):
        return False
    index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return literal(index) is None or _is_one_wide(index)


_PIECES = ast.Name | ast.Subscript


def _is_one_wide(node: ast.expr) -> bool:
    """Return whether a slice is ``i : i + 1``."""
    return (
        isinstance(node, ast.Slice)
        and isinstance(node.lower, ast.Name)
        and isinstance(node.upper, ast.BinOp)
        and isinstance(node.upper.op, ast.Add)
        and text_of(node.upper.left) == node.lower.id
        and literal(node.upper.right) == 1
    )


def _is_whole(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop goes over the rows of a tensor or a data set, or over pieces cut out of one array."""
    values = loop.iterates.items if loop.iterates.of in ("zip", "enumerate") else (loop.iterates,)
    if loop.iterates.kind in ("tensor", "numpy") and not loop.iterates.guess:
        return all(
            value.kind in ("tensor", "numpy") or _is_dataset(module, value)
            for value in map(module.value, _indexed(module, loop))
        )
    if loop.iterates.of in ("zip", "enumerate"):
        return any(value.kind == "tensor" and not value.guess for value in values)
    if _is_dataset(module, loop.iterates) or _counts_whole(module, loop):
        return True
    return any(function.is_generator and _cuts(function) for function in loop.iterates.calls)


def _indexed(module: Module, loop: SourceLoop) -> list[ast.expr]:
    """Return what a loop's values are places in: ``x`` of ``x[i]``."""
    return [
        node.value
        for node in module.nodes(loop)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in loop.targets
    ]


def _is_dataset(module: Module, value: Value) -> bool:
    """Return whether a value is a data set that is indexed: its samples are there before the loop."""
    known = module.classes.get(value.of) if value.kind == "object" else None
    return value.kind == "dataset" or (
        known is not None
        and any(base.rpartition(".")[2] == "Dataset" for base in known.bases)
        and "__getitem__" in known.methods
    )


def _counts_whole(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop counts the rows of a whole: ``range(len(x))``, ``range(x.shape[0])``."""
    if isinstance(loop.node, ast.While) or not isinstance(loop.node.iter, ast.Call):
        return False
    if module.name_of(loop.node.iter.func) not in _OPTIONS:
        return False
    for node in ast.walk(loop.node.iter):
        inner: ast.expr | None = None
        if isinstance(node, ast.Call) and module.name_of(node.func) == "len" and node.args:
            inner = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            inner = node.value
        if inner is not None:
            value = module.value(inner)
            if value.kind in ("tensor", "numpy") and not value.guess:
                return True
            return _is_dataset(module, value)
    return False


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
