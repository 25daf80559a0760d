"""What rules about loops share: whether turns need each other, what counts them, and in which of them a call runs."""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceLoop
from torchtriage.diagnose.lint.syntax import holds, path_called, path_of, stored_names


def carries(loop: SourceLoop) -> bool:
    """Return whether a name is read before it is assigned in the same turn: a recurrence."""
    body = loop.node.body  # type: ignore[union-attr]
    nodes = [node for statement in body for node in ast.walk(statement)]
    assigned = {name for statement in body for name in stored_names(statement)}
    assigned -= {path_of(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    done: set[str] = set(loop.targets)
    for statement in body:
        loads = {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        if loads & (assigned - done):
            return True
        done |= stored_names(statement)
    return False


def counted_by(loop: SourceLoop) -> set[str]:
    """Return the names that a loop counts its turns with: of ``range``, and the first of ``enumerate``."""
    node = loop.node
    if loop.counter:
        return {loop.counter}
    if not isinstance(node, ast.For | ast.comprehension) or not isinstance(node.target, ast.Tuple):
        return set()
    counted = path_called(node.iter) == "enumerate"
    first = node.target.elts[0] if counted and node.target.elts else None
    return {first.id} if isinstance(first, ast.Name) else set()


def runs_every(module: Module, call: SourceCall) -> Iterator[object]:
    """Yield after how many steps the conditions around a call hold again: 5 of ``if step % 5 == 0``."""
    loop = call.context.step_loop
    for node in ast.walk(loop.node) if loop is not None else ():
        if isinstance(node, ast.If) and any(holds(statement, call.node) for statement in node.body):
            for item in ast.walk(node.test):
                if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod):
                    yield module.constant(item.right, call.context)
