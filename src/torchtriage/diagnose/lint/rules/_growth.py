"""What grows from turn to turn: ``x = torch.cat([x, y])`` and its kin, ``x[:i]`` in a loop over ``i``."""

import ast

from torchtriage.diagnose.lint.base import Assign, Module, literal, names_in, text_of
from torchtriage.diagnose.lint.syntax import indices, method_of

JOINS = frozenset(
    [
        *(f"torch.{name}" for name in ("cat", "concat", "concatenate", "hstack", "vstack", "dstack")),
        *(f"numpy.{name}" for name in ("concatenate", "append", "hstack", "vstack", "dstack", "column_stack")),
        "pandas.concat",
    ]
)
_LAST = frozenset(name.rpartition(".")[2] for name in JOINS)


def joined(module: Module, assign: Assign) -> ast.Call | None:
    """Return the call that puts something behind an assignment's target, None where there is none."""
    if assign.how != "=":
        return None
    return next((node for node in _choices(assign.expression) if grows(module, node, assign.target)), None)


def grown_by(module: Module, assign: Assign) -> bool:
    """Return whether an assignment makes its target longer: by a join, or as a list."""
    return assign.how in ("append", "extend") or joined(module, assign) is not None


def _choices(node: ast.expr) -> list[ast.Call]:
    """Return the calls that an expression may be: ``y if x is None else cat([x, y])``."""
    if isinstance(node, ast.IfExp):
        return _choices(node.body) + _choices(node.orelse)
    return [node] if isinstance(node, ast.Call) else []


def grows(module: Module, node: ast.Call, target: str) -> bool:
    """Return whether a call joins the target and something else."""
    last = method_of(node)
    if last and last not in _LAST:
        return False  # most calls
    if module.name_of(node.func) not in JOINS or not node.args:
        return False
    parts = node.args[0]
    if module.name_of(node.func) == "numpy.append":
        return text_of(parts, 999) == target
    if not isinstance(parts, ast.List | ast.Tuple) or len(parts.elts) < 2:
        return False
    if all(_comes_from(part, target) for part in parts.elts):
        return False  # padded with pieces of itself
    return any(text_of(part, 999) == target for part in parts.elts)


def _comes_from(node: ast.expr, target: str) -> bool:
    """Return whether an operand is the target, or taken out of it."""
    while text_of(node, 999) != target:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        else:
            return False
    return True


def takes_prefix(node: ast.Subscript, index: str) -> bool:
    """Return whether an index takes all elements before a turn's own: ``x[:i]``, ``x[:, : i + 1]``."""
    return any(
        isinstance(part, ast.Slice)
        and (part.lower is None or literal(part.lower) == 0)
        and part.step is None
        and part.upper is not None
        and names_in(part.upper) == {index}
        and not isinstance(part.upper, ast.UnaryOp)
        for part in indices(node)
    )
