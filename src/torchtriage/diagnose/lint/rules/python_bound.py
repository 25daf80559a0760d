"""Python does arithmetic, element by element, in every step.

Looks like: two nested loops over ``tensor.tolist()``, an array, a tensor or the pixels of an image, with arithmetic or
    comparisons inside, in a loop of steps, in what it calls, or in a data set; one loop or comprehension that takes
    numbers out of a tensor (``float(x[i])``, ``x[i].item()``, ``if x[i] == 3``, ``for v in x: if v > 0``), in steps,
    rounds or folds; one that counts or marks entries of an array one by one (``table[t, p] += 1``).
Slow because: one pair takes Python as long as a kernel takes for thousands; the device waits.
Fix: one operator over all: a mask, broadcasting, ``torchvision.ops.nms``, ``torch.cdist``; ``bincount``,
    ``index_add_`` and ``one_hot`` for counts and marks; ``x.tolist()`` once where Python must see each number.
Quiet when: the loops only look up or collect, or it runs behind ``if step % n``.
Source: PyTorch performance tuning guide; NumPy documentation, "Broadcasting".
"""

import ast
from collections.abc import Callable, Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, literal, names_in, text_of
from torchtriage.diagnose.lint.rules._turns import counted_by
from torchtriage.diagnose.lint.syntax import attributes_in, indices, method_of, path_of

RULE = Rule(
    "HST020", "python-bound", "host", "Python computes element by element in every step", "medium", over=("LCH108",)
)

FIX = Fix(
    text="Compute all pairs with one operator.",
    code="""overlaps = torchvision.ops.box_iou(boxes, boxes)   # float32[n, n]
distances = torch.cdist(points, points)
# any formula: a[:, None] against b[None, :]""",
    link="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
)

_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE
MIN_TURNS = 32


def find(module: Module) -> Iterator[Hit]:
    """Yield inner loops of arithmetic over rows that were taken off the device."""
    rows = {
        assign.target
        for assign in module.assigns
        if (method := method_of(assign.expression)) and (method == "tolist" or assign.value.readback is not None)
    }
    yield from _singles(module, rows)
    inner = [
        loop
        for loop in module.loops
        if loop.outer is not None
        and (_counts(module, loop) or _picks_pixels(loop.outer, loop) or _indexes_array(module, loop.outer, loop))
    ]
    done: set[SourceLoop] = set()
    for loop in inner:
        outer = loop.outer
        assert outer is not None
        context = outer.context
        if outer in done or outer.steps or context.seldom or not (context.often or context.loads):
            continue
        if loop.function is not None and loop.function.compiled:
            continue
        if _over(loop) & (outer.targets - counted_by(outer)):
            continue  # through one row: a few numbers
        if _rows_of(outer, rows) or _indexes_array(module, outer, loop) or _picks_pixels(outer, loop):
            done.add(outer)
            message = f"Python computes here element by element {context.often}"
            yield Hit(loop.place, message, severity=None if context.hot else "low")


def _singles(module: Module, rows: set[str]) -> Iterator[Hit]:
    """Yield single loops that take numbers out of an array one by one, compute with them or count by them."""
    for loop in module.loops:
        context = loop.context
        if isinstance(loop.node, ast.While) or loop.turns_below(MIN_TURNS):
            continue
        in_step = bool(context.often) or (context.loads and not context.rare)
        if not (in_step or module.repeats(context)) or (loop.steps and not loop.outer):
            continue
        own = module.is_program or module.alone
        if (own or context.often == "in each call") and _takes_numbers(module, loop):
            said = "Python takes the numbers out of a tensor one by one"
            yield Hit(loop.place, said, severity=None if in_step and own else "low")
            continue
        if own and _scatters(module, loop, rows):
            said = "elements are counted or stored one by one"
            yield Hit(loop.place, said, severity=None if in_step else "low")
            continue
        counters = counted_by(loop)
        if loop.comprehension or not in_step or loop.steps or not counters:
            continue
        if any(other.outer is loop and not other.comprehension for other in module.loops):
            continue
        if (module.is_program and _fills(module, loop, counters)) or any(
            _takes_number(module, node, counters) for node in ast.walk(loop.node)
        ):
            yield Hit(loop.place, "Python computes here element by element in every step", severity="low")
        elif _writes_numbers(module, loop, counters):
            yield Hit(loop.place, f"numbers are written into a tensor one by one {context.often}", severity="low")


def _scatters(module: Module, loop: SourceLoop, rows: set[str]) -> bool:
    """Return whether each turn changes the one entry of an array that an element of the data names."""
    if not isinstance(loop.node, ast.For):
        return False
    elements = _data(module, loop.node.target, loop.node.iter, rows)
    counters = counted_by(loop)
    if not elements and not counters:
        return False
    for statement in loop.node.body:
        if isinstance(statement, ast.Assign) and names_in(statement.value) & elements:
            bound = [target for target in statement.targets if isinstance(target, ast.Name | ast.Tuple)]
            elements |= {name for target in bound for name in names_in(target)}
    return any(
        _is_entry(module, target, elements, counters, rows)
        for statement in loop.node.body
        for node in ast.walk(statement)
        for target in _changed(node)
    )


def _changed(node: ast.AST) -> list[ast.Subscript]:
    """Return the entry that a statement counts in or marks: ``x[k] += v``, ``x[k] = x[k] + v``, ``x[k] = 1``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return [node.target]
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
        return []
    itself = isinstance(node.value, ast.BinOp) and text_of(node.value.left, 999) == text_of(node.targets[0], 999)
    return [node.targets[0]] if itself or isinstance(node.value, ast.Constant) else []


def _is_entry(module: Module, node: ast.Subscript, elements: set[str], counters: set[str], rows: set[str]) -> bool:
    """Return whether ``x[k]`` or ``x[i][k]`` is an entry of an array whose place the data says."""
    places: list[ast.expr] = []
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        places += indices(base)
        base = base.value
    if module.value(base).kind not in ("tensor", "numpy") or any(isinstance(item, ast.Slice) for item in places):
        return False
    return any(
        (isinstance(part, ast.Name) and part.id in elements)
        or (
            isinstance(part, ast.Subscript)
            and bool(names_in(part.slice) & counters)
            and (module.value(part.value).kind in ("tensor", "numpy") or path_of(part.value) in rows)
        )
        for place in places
        for part in ast.walk(place)
    )


_NO_ELEMENTS = ("unique", "items", "keys", "values")  # the kinds that there are, the entries of a dictionary


def _data(module: Module, target: ast.expr, node: ast.expr, rows: set[str]) -> set[str]:
    """Return the targets of a loop that are elements of arrays, also behind ``zip`` and ``enumerate``."""
    if isinstance(node, ast.Call) and node.args:
        name = module.name_of(node.func).rpartition(".")[2]
        if name == "enumerate" and isinstance(target, ast.Tuple):
            return _data(module, target.elts[-1], node.args[0], rows)
        if name == "zip" and isinstance(target, ast.Tuple):
            pairs = zip(target.elts, node.args, strict=False)
            return {name for item, part in pairs for name in _data(module, item, part, rows)}
        if name in ("tqdm", "list", "reversed"):
            return _data(module, target, node.args[0], rows)
    if method_of(node) in _NO_ELEMENTS:
        return set()
    listed = method_of(node) == "tolist" or path_of(node) in rows
    return names_in(target) if listed or module.value(node).kind in ("tensor", "numpy") else set()


def _takes_numbers(module: Module, loop: SourceLoop) -> bool:
    """Return whether each turn makes a Python number, or a decision, of a single element of a tensor."""
    elements = _elements(loop)
    counters = counted_by(loop)
    if not elements and not counters:
        return False
    sized = _sized(loop)

    def picked(node: ast.expr) -> bool:
        while True:
            if isinstance(node, ast.Name):
                return node.id in elements
            if isinstance(node, ast.Subscript):
                return _is_element(module, node, counters, sized)
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                return False
            if node.args or node.func.attr not in ("detach", "cpu", "numpy", "abs", "float", "long", "int"):
                return False
            node = node.func.value

    return any(_makes_number(node, picked) for part in _body(module, loop) for node in _own(part))


def _sized(loop: SourceLoop) -> str:
    """Return what a loop goes through by the size that only a tensor says so: ``range(x.size(0))``."""
    call = loop.node.iter if isinstance(loop.node, ast.For) else None
    size = call.args[-1] if isinstance(call, ast.Call) and call.args else None
    if isinstance(size, ast.Call) and size.args and isinstance(size.func, ast.Attribute) and size.func.attr == "size":
        return text_of(size.func.value, 99)
    return ""


def _is_element(module: Module, node: ast.Subscript, counters: set[str], sized: str) -> bool:
    """Return whether ``x[i]`` is an element of a tensor: it is one, was made by its own methods, or has a ``size``."""
    names = names_in(node.slice)
    value = module.value(node.value)
    tensor = value.kind == "tensor" and not (value.data or value.guess)
    tensor = tensor or text_of(node.value, 99) == sized
    return tensor and bool(names & counters) and not any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))


def _makes_number(node: ast.AST, picked: Callable[[ast.expr], bool]) -> bool:
    """Return whether an element becomes a number of Python, a condition or text."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            return picked(node.func.value)
        path = path_of(node.func)
        return (path in ("float", "int", "bool") or path.startswith("math.")) and any(map(picked, node.args))
    if isinstance(node, ast.FormattedValue):
        return node.format_spec is not None and picked(node.value)
    tests = node.ifs if isinstance(node, ast.comprehension) else [node.test] if isinstance(node, _CONDITIONS) else []
    return any(_asks(item, picked) for test in tests for item in ast.walk(test))


_CONDITIONS = ast.If | ast.IfExp | ast.While


def _asks(node: ast.AST, picked: Callable[[ast.expr], bool]) -> bool:
    """Return whether an element is compared with one number."""
    if not isinstance(node, ast.Compare) or isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
        return False
    sides = [node.left, *node.comparators]
    return any(map(picked, sides)) and not any(isinstance(literal(side), str | None) for side in sides)


def _elements(loop: SourceLoop) -> set[str]:
    """Return the targets of a loop over the elements of tensors."""
    if isinstance(loop.node, ast.While):
        return set()
    values, targets = [loop.iterates], [loop.node.target]
    if loop.iterates.of in ("zip", "enumerate"):
        values = list(loop.iterates.items)
        targets = loop.node.target.elts if isinstance(loop.node.target, ast.Tuple) else []
    if not any(value.kind == "tensor" and not (value.data or value.guess) for value in values):
        return set()
    return {
        target.id
        for value, target in zip(values, targets, strict=False)
        if value.kind == "tensor" and isinstance(target, ast.Name)
    }


def _body(module: Module, loop: SourceLoop) -> list[ast.AST]:
    """Return what runs in each turn; of a comprehension its element and its conditions."""
    return [*module.turn(loop), *([loop.node] if isinstance(loop.node, ast.comprehension) else [])]


def _own(part: ast.AST) -> Iterator[ast.AST]:
    """Yield a piece of syntax and what is in it, but not what only now and then runs: the way out."""
    yield part
    for child in ast.iter_child_nodes(part):
        if not isinstance(child, ast.Raise | ast.Assert | ast.FunctionDef | ast.Lambda):
            yield from _own(child)


def _fills(module: Module, loop: SourceLoop, counters: set[str]) -> bool:
    """Return whether a loop does nothing but ``out[i] = x[i] * a`` between arrays."""
    assert isinstance(loop.node, ast.For)
    if not loop.counter:
        return False

    def picks(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Subscript)
            and module.value(node.value).kind in ("numpy", "tensor")
            and bool(names_in(node.slice))
            and names_in(node.slice) <= counters
            and not any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))
        )

    lines = [node for node in loop.node.body if isinstance(node, ast.Assign | ast.AugAssign)]
    if len(lines) != len(loop.node.body) or any(
        isinstance(node, ast.Call) for line in lines for node in ast.walk(line)
    ):
        return False
    return any(
        picks(line.targets[0] if isinstance(line, ast.Assign) else line.target)
        and any(isinstance(node, ast.BinOp) and any(map(picks, ast.walk(node))) for node in ast.walk(line.value))
        for line in lines
    )


def _writes_numbers(module: Module, loop: SourceLoop, counters: set[str]) -> bool:
    """Return whether each turn puts one of Python's numbers into a tensor: a launch for each."""
    assert isinstance(loop.node, ast.For)
    return any(
        isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Subscript)
        and module.value(line.targets[0].value).kind == "tensor"
        and isinstance(line.targets[0].slice, ast.Name)
        and line.targets[0].slice.id in counters
        and _is_number(module, loop, line.value)
        for line in loop.node.body
    )


def _is_number(module: Module, loop: SourceLoop, node: ast.expr) -> bool:
    """Return whether an expression is a number that Python counted, itself or by its name."""
    if not isinstance(node, ast.Name):
        return module.value(node).kind == "host"
    made = [item for item in module.assigns_to(node.id) if item.context.function is loop.function]
    return bool(made) and all(item.value.kind == "host" for item in made)


def _takes_number(module: Module, node: ast.AST, counters: set[str]) -> bool:
    """Return whether one number of an array goes through ``float``, ``int``, ``abs`` or ``math``."""
    if not isinstance(node, ast.Call) or len(node.args) < 1:
        return False
    if module.name_of(node.func).partition(".")[0] not in ("float", "int", "abs", "math", "min", "max", "round"):
        return False
    return any(
        isinstance(item, ast.Subscript)
        and module.value(item.value).kind in ("numpy", "tensor")
        and names_in(item.slice) <= counters
        and bool(names_in(item.slice))
        for arg in node.args
        for item in ast.walk(arg)
    )


def _picks_pixels(outer: SourceLoop, inner: SourceLoop) -> bool:
    """Return whether the inner loop reads or writes an image pixel by pixel."""
    return not inner.comprehension and any(
        method_of(node) in ("getpixel", "putpixel") and bool(names_in(node) & outer.targets)
        for node in ast.walk(inner.node)
    )


def _rows_of(loop: SourceLoop, rows: set[str]) -> bool:
    """Return whether a loop goes over host rows themselves, or counts them."""
    if isinstance(loop.node, ast.While):
        return False
    node = loop.node.iter
    while isinstance(node, ast.Call) and node.args and path_of(node.func) in _COUNTED:
        node = node.args[-1] if path_of(node.func) == "range" else node.args[0]
    return method_of(node) == "tolist" or (isinstance(node, ast.Name) and node.id in rows)


_COUNTED = ("enumerate", "range", "len", "zip", "reversed", "sorted")


def _over(loop: SourceLoop) -> set[str]:
    """Return the names in what a loop goes over."""
    if isinstance(loop.node, ast.While):
        return set()
    return names_in(loop.node.iter) | attributes_in(loop.node.iter)


def _counts(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop computes with numbers, itself or in a function of the file."""
    if isinstance(loop.node, ast.While) or loop.turns_below(8):
        return False
    for node in module.nodes(loop) if loop.comprehension else ast.walk(loop.node):
        if _is_arithmetic(node):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = next((function for function in module.functions if function.name == node.func.id), None)
            if known is not None and any(map(_is_arithmetic, ast.walk(known.node))):
                return True
    return False


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Sub | ast.Mult | ast.Div) and not isinstance(node.left, ast.Constant | ast.List)
    return isinstance(node, ast.Compare) and any(isinstance(item, _ORDER) for item in node.ops)


def _indexes_array(module: Module, outer: SourceLoop, inner: SourceLoop) -> bool:
    """Return whether the inner loop picks single elements of an array by both counters."""
    if inner.comprehension:
        return False
    for node in ast.walk(inner.node):
        for item in _operands(node):
            if not isinstance(item, ast.Subscript):
                continue
            kind, used = module.value(item.value).kind, names_in(item.slice)
            # of a tensor a slice is a row, whose length nobody knows
            rows = any(isinstance(part, ast.Slice) for part in ast.walk(item.slice))
            single = kind == "numpy" or (kind == "tensor" and not rows and not isinstance(node, ast.Assign))
            if single and used & outer.targets and used & inner.targets:
                return True
    return False


def _operands(node: ast.AST) -> list[ast.expr]:
    """Return what is computed with, or assigned, in a piece of syntax."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call):
        return node.args if path_of(node.func) in ("float", "int", "abs", "min", "max", "round") else []
    return node.targets if isinstance(node, ast.Assign) else []
