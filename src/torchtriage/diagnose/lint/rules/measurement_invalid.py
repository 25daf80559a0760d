"""A clock measures something other than the work.

Looks like: two readings of ``time.time()`` or ``perf_counter()`` around device work without a
    ``synchronize()`` (or a read of a result) in between; ``torch.compile`` or the first call of a
    compiled function between them.
Slow because: nothing is slow, the number is wrong: work is queued, not done, when the call returns;
    and the first call compiles, for seconds.
Fix: ``torch.cuda.synchronize()`` before each reading, after a warm-up; or
    ``torch.utils.benchmark.Timer``.
Quiet when: the work is on the CPU, or something between the readings waits for the device. Of
    compilation: when the time is that of a whole job over data that changes, and not divided by anything.
Source: PyTorch benchmark recipe, "torch.utils.benchmark".
"""

import ast
from collections.abc import Iterator
from dataclasses import replace

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceEvent, SourceFunction, names_in
from torchtriage.diagnose.lint.torch_names import CLOCKS

RULE = Rule("MSR034", "measurement-invalid", "measure", "A clock measures something other than the work", "medium")

FIX = Fix(
    text="Wait for the device before reading the clock.",
    code="""torch.cuda.synchronize()  # before each reading of the clock
start = time.perf_counter()
step()
torch.cuda.synchronize()
print(time.perf_counter() - start)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/benchmark.html",
)

WARM = Fix(
    text="Compile and warm up before the clock starts.",
    code="""model = torch.compile(model)
for _ in range(3):
    model(x)                 # compiles
torch.cuda.synchronize()
start = time.perf_counter()""",
    link="https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html",
)


_UNITS = (60, 3600, 1000, 1000000, 1e9)
_WORK = ("work", "first", "backward")


def find(module: Module) -> Iterator[Hit]:
    """Yield differences of clock readings that do not measure the device's work."""
    if not any(name in module.named for name in CLOCKS):
        return
    groups = [module.module_events, *(function.events for function in module.functions)]
    bodies = [module.tree, *(function.node for function in module.functions)]
    for events, body in zip(groups, bodies, strict=True):
        if not any(event.kind == "clock" for event in events):
            continue
        yield from _in_body(module, events, body)


def _in_body(module: Module, events: list[SourceEvent], body: ast.AST) -> Iterator[Hit]:
    begun: dict[str, SourceEvent] = {event.name: event for event in events if event.kind == "clock" and event.name}
    for node in _statements(body):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        start = begun.get(module.name_of(node.right))
        if start is None:
            continue
        end = _end(module, node, begun)
        if end is None or end <= _at(start.node):
            continue
        first = max(
            _at(event.node)
            for event in events
            if event.kind == "clock" and event.name == start.name and _at(event.node) < end
        )
        between = [event for event in events if first < _at(event.node) < end and not event.context.rare]
        yield from _judge(module, node, first, between, events)


def _judge(
    module: Module, node: ast.BinOp, first: tuple[int, int], between: list[SourceEvent], events: list[SourceEvent]
) -> Iterator[Hit]:
    # read in each turn of a loop, one reading of many holds the compilation
    looped = any(event.context.loop is not None for event in events if _at(event.node) == first)
    rate = _is_rate(module, node)
    for inside in between:
        if not rate and _takes_new_data(inside):
            continue  # the time of a whole job, which compiling is part of
        if inside.kind == "compile":
            yield Hit(inside.node, "the clock runs while this compiles", fix=WARM)
            return
        if (
            (
                inside.kind == "first"
                or (
                    inside.kind == "call" and not inside.name.startswith("self.") and "first" in _inside(module, inside)
                )
            )
            and not looped
            and not any(
                other.kind in ("first", "work", "call") and other.name == inside.name and _at(other.node) < first
                for other in events
            )
        ):
            yield Hit(inside.node, "the clock runs while the first call compiles", fix=WARM)
            return
    between = [_as_run(module, item) for item in between]
    work = [index for index, item in enumerate(between) if item.kind in _WORK]
    if not work:
        return
    last = between[work[-1]]
    waited = any(item.kind == "wait" for item in between[work[-1] :]) or any(
        item.kind == "wait" and item.context.loop is not None and item.context.loop is last.context.loop
        for item in between
    )
    if last.context.loop is not None and last.context.loop.outer is not None and not rate:
        return  # the time of many epochs: what is still queued is a small part
    if not waited and not module.on_cpu and not _averages(node, first, events):
        yield Hit(node, "the clock is read before the device has done the work")


def _averages(node: ast.BinOp, first: tuple[int, int], events: list[SourceEvent]) -> bool:
    """Return whether a loop reads the time since long before it: what is still queued is a small part."""
    begun = [event for event in events if _at(event.node) == first]
    ended = [event for event in events if event.kind == "clock" and event.node in ast.walk(node)]
    return bool(begun and ended) and begun[0].context.loop is None and ended[0].context.loop is not None


def _as_run(module: Module, event: SourceEvent) -> SourceEvent:
    """Return a call of a function of the file as what it does in the end: waits, or work."""
    if event.kind not in ("call", "first", "work"):
        return event
    kinds = _inside(module, event)
    if "wait" in kinds:
        return replace(event, kind="wait")
    works = event.kind == "call" and event.context.loop is not None and kinds & set(_WORK)
    return replace(event, kind="work") if works else event


def _inside(module: Module, event: SourceEvent) -> set[str]:
    """Return the kinds of events in the functions of the file that a call runs, at any depth."""
    waiting = [callee for call in module.calls if call.node is event.node for callee in call.callees]
    seen: set[SourceFunction] = set()
    while waiting:
        function = waiting.pop()
        if function not in seen:
            seen.add(function)
            waiting += [callee for context, callee in module.edges if context.function is function]
    return {item.kind for function in seen for item in function.events}


def _is_rate(module: Module, node: ast.BinOp) -> bool:
    """Return whether a duration is counted per turn."""
    names = {assign.target for assign in module.assigns if assign.expression is node}
    for body in (module.tree, *(function.node for function in module.functions)):
        for other in _statements(body):
            if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Div | ast.FloorDiv):
                if isinstance(other.right, ast.Constant) and other.right.value in _UNITS:
                    continue
                inside = [*ast.walk(other.left), *ast.walk(other.right)]
                if node in inside or any(isinstance(item, ast.Name) and item.id in names for item in inside):
                    return True
    return False


def _takes_new_data(event: SourceEvent) -> bool:
    """Return whether a call in a loop is given something else in each turn: work, and no benchmark."""
    loop = event.context.statement_loop
    if loop is None or not isinstance(event.node, ast.Call):
        return False
    return any(name in loop.targets or name in loop.assigned for item in event.node.args for name in names_in(item))


def _end(module: Module, node: ast.BinOp, begun: dict[str, SourceEvent]) -> tuple[int, int] | None:
    """Return where the second reading is: in the difference itself, or under a name."""
    if module.name_called(node.left) in CLOCKS:
        return _at(node.left)
    event = begun.get(module.name_of(node.left))
    return _at(event.node) if event is not None else None


def _at(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _statements(body: ast.AST) -> Iterator[ast.AST]:
    """Walk a body without the functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))
