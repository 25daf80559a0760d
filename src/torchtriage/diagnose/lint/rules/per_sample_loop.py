"""A Python loop goes over the rows of a tensor.

Looks like: ``for i in range(x.shape[0])`` (or ``len(x)``, ``x.size(0)``) with operations on ``x[i]``, or ``for row in
    x`` with ``row.unsqueeze(0)``, where no turn needs the previous one; ``x[labels == k]`` for each ``k``; overlapping
    windows ``x[i : i + w]`` that are cut and stacked.
Slow because: every row launches its own kernels; a batch takes one launch for all.
Fix: batch it: broadcasting, ``torch.bmm``, ``torch.vmap(f)(x)``; ``index_add_``, ``bincount`` or a product
    with ``one_hot`` over all classes; ``x.unfold(0, w, 1)`` for windows.
Quiet when: each row has a length of its own, a value is carried from turn to turn (a recurrence),
    the loop goes over layers, or, in a file that only others import, the tensor is on the CPU.
Source: PyTorch documentation of ``torch.vmap``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.abstract_values import DEVICE, OUTPUT
from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, names_in, text_of
from torchtriage.diagnose.lint.rules._turns import carries
from torchtriage.diagnose.lint.syntax import indices, path_of

RULE = Rule(
    "LCH017",
    "per-sample-loop",
    "launch",
    "Python loop over the elements of a tensor",
    "medium",
    over=("LCH102", "LCH109"),
)

FIX = Fix(
    text="Run all rows at once.",
    code="out = torch.vmap(f)(x)  # instead of torch.stack([f(x[i]) for i in range(len(x))])",
    link="https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
)

MIN_TURNS = 8


def find(module: Module) -> Iterator[Hit]:
    """Yield loops over rows whose turns are independent and compute with torch."""
    for loop in module.loops:
        if loop.context.seldom or not loop.targets or loop.turns_below(MIN_TURNS):
            continue
        if loop.function is not None and loop.function.name == "__init__":
            continue
        if message := _of_classes(module, loop):
            yield Hit(loop.place, message, severity="low")
            continue
        if (window := _of_windows(module, loop)) is not None:
            yield Hit(window, f"windows are cut out one by one: {text_of(window)}", severity="low")
            continue
        row = _row(module, loop)
        if row is None or not _computes(module, loop, row):
            continue
        if not loop.comprehension and (carries(loop) or _ragged(loop)):
            continue
        yield Hit(loop.place, f"the same operations run once for each row: {text_of(row)}")


def _of_classes(module: Module, loop: SourceLoop) -> str:
    """Return what is done for each class or cluster on its own: ``x[labels == k]`` for each ``k``."""
    if not (module.is_program or module.alone) or isinstance(loop.node, ast.While):
        return ""
    if not module.repeats(loop.context):
        return ""
    targets = _counted(module, loop)
    if not targets or loop.runs_module or any(callee.runs_module for callee in loop.calls):
        return ""
    for node in _turn(module, loop):
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.Eq)
            and path_of(node.comparators[0]) in targets
            and module.value(node.left).kind in ("tensor", "numpy")
            and not names_in(node.left) & (loop.targets | set(loop.assigned))
            and not module.value(node.left).scalar
        ):
            return f"each iteration scans all elements: {text_of(node)}"
    return ""


def _counted(module: Module, loop: SourceLoop) -> set[str]:
    """Return what a loop counts classes with: ``range(k)``, ``labels.unique()``."""
    assert not isinstance(loop.node, ast.While)
    node, target = loop.node.iter, loop.node.target
    while isinstance(node, ast.Call) and module.name_of(node.func) in ("enumerate", "tqdm.tqdm", "tqdm") and node.args:
        node = node.args[0]
    made = [node]
    if isinstance(node, ast.Name):
        made = [item.expression for item in module.assigns_to(node.id) if item.how == "="]
    last = [text_of(item.func).rpartition(".")[2] for item in made if isinstance(item, ast.Call)]
    if not last or any(name not in ("range", "trange", "unique", "tolist") for name in last):
        return set()
    if "tolist" in last and not any("unique(" in text_of(item, 200) for item in made):
        return set()
    if isinstance(target, ast.Tuple):
        target = target.elts[-1]
    return {target.id} if isinstance(target, ast.Name) else set()


def _of_windows(module: Module, loop: SourceLoop) -> ast.expr | None:
    """Return what is cut into windows that overlap, one by one, and put together again: ``x[i : i + w]``."""
    if not loop.counter or not module.repeats(loop.context):
        return None
    windows = [
        node for node in _turn(module, loop) if isinstance(node, ast.Subscript) and _is_window(module, node, loop)
    ]
    if not windows:
        return None
    function = loop.function
    joined = [call for call in module.called(*_JOINS) if call.context.function is function and call.node.args]
    gathered = {
        assign.target
        for assign in module.assigns
        if assign.context.loop is loop and assign.how == "append" and assign.expression in windows
    }
    for call in joined:
        given = call.node.args[0]
        if text_of(given, 200) in gathered or (
            isinstance(given, ast.ListComp) and given.generators[0] is loop.node and given.elt in windows
        ):
            return windows[0]
    return None


_JOINS = ("torch.stack", "torch.tensor", "numpy.stack", "numpy.array", "numpy.asarray", "torch.vstack", "numpy.vstack")


def _is_window(module: Module, node: ast.Subscript, loop: SourceLoop) -> bool:
    """Return whether a slice begins at the loop's counter and has the same length in every turn."""
    if module.value(node.value).kind not in ("tensor", "numpy"):
        return False
    return any(
        isinstance(part, ast.Slice)
        and isinstance(part.lower, ast.Name)
        and part.lower.id in loop.targets
        and isinstance(part.upper, ast.BinOp)
        and isinstance(part.upper.op, ast.Add)
        and text_of(part.upper.left) == part.lower.id
        for part in indices(node)
    )


def _turn(module: Module, loop: SourceLoop) -> list[ast.AST]:
    """Return all that runs in each turn, the conditions of a comprehension too."""
    tests = loop.node.ifs if isinstance(loop.node, ast.comprehension) else []
    return [*module.nodes(loop), *(node for test in tests for node in ast.walk(test))]


def _row(module: Module, loop: SourceLoop) -> ast.expr | None:
    """Return an expression for one row inside the loop; None when it goes over none."""
    node = loop.node
    if isinstance(node, ast.While):
        return None
    if loop.iterates.kind == "tensor":
        value = loop.iterates
        if not loop.context.hot:
            return None
        known = value.device > 0 and not (value.guess or value.data or value.of == OUTPUT)
        if not known or not isinstance(node.target, ast.Name):
            return None
        name = node.target.id
        if _indexes(node, loop, module, name) or not _is_made_a_batch(node, loop, module, name):
            return None
        return node.target
    over = _ranged(module, node.iter, loop) or _entered(module, loop)
    if over is None or not isinstance(node.target, ast.Name):
        return None
    if _indexes(node, loop, module, node.target.id, but=over):
        return None
    for item in _inside(node, loop, module):
        if (
            isinstance(item, ast.Subscript)
            and isinstance(item.ctx, ast.Load)
            and path_of(_first(item.slice)) == node.target.id
            and (text_of(item.value, 999) == over or module.value(item.value).on_device)
            and module.value(item.value).kind in ("tensor", "unknown")
            and (
                module.is_program
                or not (module.value(item.value).kind == "tensor" and module.value(item.value).device == 0)
            )
        ):
            return item
    return None


def _entered(module: Module, loop: SourceLoop) -> str | None:
    """Return ``x`` where each turn enters what it makes of one row into another tensor: ``out[i] = x[i].max()``."""
    if not (module.is_program or module.alone) or not isinstance(loop.node, ast.For) or not loop.counter:
        return None
    if not module.repeats(loop.context):
        return None
    for statement in loop.node.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
            continue
        target = statement.targets[0]
        if loop.counter not in map(text_of, indices(target)) or module.value(target.value).kind != "tensor":
            continue
        rows = {
            text_of(node.value, 999)
            for node in ast.walk(statement.value)
            if isinstance(node, ast.Subscript)
            and text_of(_first(node.slice)) == loop.counter
            and module.value(node.value).kind == "tensor"
            and not module.value(node.value).guess
        }
        if len(rows) == 1 and not names_in(target.value) & names_in(statement.value):
            return rows.pop()
    return None


def _is_made_a_batch(node: ast.AST, loop: SourceLoop, module: Module, name: str) -> bool:
    """Return whether a row gets back the dimension it lost: ``row.unsqueeze(0)``."""
    return any(
        (isinstance(item, ast.Attribute) and item.attr == "unsqueeze" and text_of(item.value) == name)
        or (isinstance(item, ast.Subscript) and text_of(item) == f"{name}[None]")
        for item in _inside(node, loop, module)
    )


def _indexes(node: ast.AST, loop: SourceLoop, module: Module, name: str, but: str = "") -> bool:
    """Return whether a name picks modules or weights of its own in each turn: no batch then."""
    return any(
        isinstance(item, ast.Subscript)
        and isinstance(item.ctx, ast.Load)
        and isinstance(item.slice, ast.Name)
        and item.slice.id == name
        and text_of(item.value, 999) != but
        and (not but or text_of(item.value).startswith("self."))
        for item in _inside(node, loop, module)
    )


def _first(index: ast.expr) -> ast.expr:
    return index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index


def _stands_for(module: Module, node: ast.expr, loop: SourceLoop) -> ast.expr:
    """Return what a name stands for: ``n = x.shape[0]``, ``n, m, _ = x.shape``."""
    if not isinstance(node, ast.Name) or not module.is_program:
        return node
    made: list[ast.expr] = []
    for statement in ast.walk(module.body(loop.function)):
        if not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            if isinstance(target, ast.Name) and target.id == node.id:
                made.append(statement.value)
            elif isinstance(target, ast.Tuple) and node.id in names_in(target):
                made.append(_first_size(statement.value) if text_of(target.elts[0]) == node.id else node)
    return made[0] if len(made) == 1 else node


def _first_size(node: ast.expr) -> ast.expr:
    """Return ``x.shape[0]`` for ``x.shape`` and ``x.size()``, anything else as it is."""
    shape = node.func if isinstance(node, ast.Call) else node
    if isinstance(shape, ast.Attribute) and shape.attr in ("shape", "size"):
        return ast.Subscript(ast.Attribute(shape.value, "shape"), ast.Constant(0))
    return node


def _ranged(module: Module, node: ast.expr, loop: SourceLoop) -> str | None:
    """Return ``x`` of ``range(x.shape[0])``, ``range(x.size(0))`` or ``range(len(x))``."""
    if not isinstance(node, ast.Call) or module.name_of(node.func) != "range" or len(node.args) != 1:
        return None
    bound = _stands_for(module, node.args[0], loop)
    if isinstance(bound, ast.Subscript) and isinstance(bound.value, ast.Attribute):
        first = isinstance(bound.slice, ast.Constant) and bound.slice.value == 0
        return text_of(bound.value.value, 999) if first and bound.value.attr == "shape" else None
    if isinstance(bound, ast.Call) and isinstance(bound.func, ast.Attribute):
        return text_of(bound.func.value, 999) if bound.func.attr == "size" else None
    if isinstance(bound, ast.Call) and module.name_of(bound.func) == "len" and bound.args:
        known = module.value(bound.args[0])
        # what comes out of a loader may be a list; once it was moved it is a tensor
        moved = known.device == DEVICE or ((known.device > 0 or module.is_program) and not known.data)
        sure = module.repeats(loop.context) and known.kind == "tensor" and moved and not known.of
        return text_of(bound.args[0], 999) if sure else None
    return None


def _inside(node: ast.AST, loop: SourceLoop, module: Module) -> Iterator[ast.AST]:
    if not loop.comprehension:
        for statement in node.body:  # type: ignore[attr-defined]
            yield from ast.walk(statement)
        return
    for call in module.calls:
        if call.context.loop is loop:
            yield from ast.walk(call.node)


def _computes(module: Module, loop: SourceLoop, row: ast.expr) -> bool:
    """Return whether the row is computed with: it, or a name made of it, meets an operation."""
    made = {row.id} if isinstance(row, ast.Name) else set()
    wanted = text_of(row, 999)
    for assign in module.assigns:
        if assign.context.loop is loop and wanted in text_of(assign.expression, 999):
            made.add(assign.target)
    stacked = {text_of(item.node.args[0], 999) for item in module.called("torch.stack", "torch.cat") if item.node.args}
    for call in module.calls:
        if call.context.loop is not loop:
            continue
        gives = call.value.items[0] if call.value.kind == "list" and call.value.items else call.value
        if gives.kind != "tensor" and not _is_gathered(call, stacked):
            continue
        if call.attr in ("tensor", "zeros", "ones", "detach", "cpu", "numpy", "clone", "to"):
            continue
        if call.value.kind == "tensor" and call.value.device == 0 and not module.is_program:
            continue
        expressions = {text_of(node, 999) for node in ast.walk(call.node) if isinstance(node, ast.expr)}
        if wanted in expressions or expressions & made:
            return True
    return False


def _is_gathered(call: SourceCall, stacked: set[str]) -> bool:
    """Return whether what a call gives is put into a list that is made one tensor."""
    user = call.user
    return user is not None and user.attr == "append" and user.owner is not None and text_of(user.owner, 999) in stacked


def _ragged(loop: SourceLoop) -> bool:
    """Return whether a turn cuts its row to a length of its own: ``row[: lengths[i]]``."""
    return any(
        isinstance(node, ast.Slice)
        and node.upper is not None
        and any(
            isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Name) and inner.slice.id in loop.targets
            for inner in ast.walk(node.upper)
        )
        for node in ast.walk(loop.node)
    )
