"""What rules about loops share: whether turns need each other."""

import ast

from torchtriage.diagnose.lint.facts import SourceLoop


def carries(loop: SourceLoop) -> bool:
    """Return whether a name is read before it is assigned in the same turn: a recurrence."""
    body = loop.node.body  # type: ignore[union-attr]
    assigned = {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    augmented = {
        node.target.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    done: set[str] = set(loop.targets)
    for statement in body:
        loads = {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        if loads & (assigned - done - augmented):
            return True
        done |= {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return False
