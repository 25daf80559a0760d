"""Distances of all pairs are computed from the differences of all pairs.

Looks like: ``((x[:, None] - y[None]) ** 2).sum(-1)``, ``(x.unsqueeze(1) - y.unsqueeze(0)).norm(dim=-1)``, ``(x[:, None]
    * y[None]).sum(-1)``, ``F.cosine_similarity(x[:, None], y[None], dim=-1)``, in one expression or through a variable,
    in steps, rounds or folds.
Slow because: the difference has an element for each pair and each dimension; it is written to memory
    and read again before it is summed, where a matrix product needs neither.
Fix: ``torch.cdist(x, y)``; ``x @ y.T`` for products.
Quiet when: the differences are used otherwise, too; both sides are expanded in the same place.
Source: PyTorch documentation of ``torch.cdist``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import argument, indices, method_of, whole_number

RULE = Rule("KRN102", "pairwise-broadcast", "kernel", "Pairwise distances build a tensor of all differences", "low")

FIX = Fix(
    text="Let one operator compute the distances.",
    code="""distances = torch.cdist(x, centers)        # float32[n, k], without float32[n, k, d]
squared = torch.cdist(x, centers).square()
similar = x @ centers.T                    # instead of (x[:, None] * centers[None]).sum(-1)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cdist.html",
)

_SUMS = ("sum", "norm", "mean")
_NAMED = ("torch.sum", "torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm", "numpy.sum", "numpy.linalg.norm")
_KEEPS = frozenset(
    ["pow", "square", "abs", "sqrt", "torch.abs", "torch.square", "torch.pow", "numpy.square", "numpy.abs"]
)


def find(module: Module) -> Iterator[Hit]:
    """Yield sums over the last dimension of differences or products of all pairs."""
    if not any(item in module.text for item in ("None", "unsqueeze(", "newaxis")):
        return
    for call in module.called("torch.nn.functional.cosine_similarity", "torch.cosine_similarity"):
        if module.repeats(call.context) and len(call.node.args) > 1:
            left, right = map(_new_axes, call.node.args[:2])
            if left and right and left != right:
                message = f"builds an element for each pair and dimension only to sum them: {text_of(call.node)}"
                yield Hit(call.node, message, call.attr)
    for call in [*module.sent(*_SUMS), *module.called(*_NAMED)]:
        if not module.repeats(call.context) or not _over_last(call):
            continue
        given = call.node.args[0] if call.name and call.node.args else call.owner
        pairs = _pairs(module, given, call) if given is not None else None
        if pairs is not None:
            node, lines = pairs
            message = f"builds an element for each pair and dimension only to sum them: {text_of(node)}"
            yield Hit(node, message, call.attr, also=lines)


def _over_last(call: SourceCall) -> bool:
    """Return whether one dimension is summed over, by its number."""
    at = 1 if call.name else 0
    given = keyword(call.node, "dim") or keyword(call.node, "axis")
    if given is None and "norm" not in call.attr and len(call.node.args) > at:
        given = call.node.args[at]
    return whole_number(given) in (-1, 2, 3)


def _pairs(module: Module, node: ast.expr, call: SourceCall) -> tuple[ast.BinOp, tuple[int, ...]] | None:
    """Return the difference or product of all pairs that an expression is, powers taken off, and the lines to it."""
    squared = False
    seat: ast.expr = call.node
    lines = [seat.lineno] if _is_alone(module, seat) else []
    body = module.body(call.context.function)
    for _ in range(6):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            node, squared = node.left, True
        elif isinstance(node, ast.Call) and module.name_of(node.func) in _KEEPS and node.args:
            node, squared = node.args[0], True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
            node, squared = node.func.value, True
        elif (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and text_of(node.left) == text_of(node.right)
        ):
            node, squared = node.left, True
        elif isinstance(node, ast.Name):
            made = [item for item in module.assigns_to(node.id) if item.context.function is call.context.function]
            if len(made) != 1 or made[0].how != "=" or _reads(body, node.id) > _reads(seat, node.id):
                return None
            node = seat = made[0].expression
            lines += [seat.lineno] if _is_alone(module, seat) else []
        else:
            break
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub | ast.Mult):
        return None
    squared = squared or "norm" in call.attr
    if squared != isinstance(node.op, ast.Sub):
        return None
    left, right = _new_axes(node.left), _new_axes(node.right)
    return (node, tuple(lines)) if left and right and left != right else None


def _is_alone(module: Module, node: ast.expr) -> bool:
    """Return whether all calls of a statement are part of an expression, or work on what it gives."""
    statement = next((outer for outer in module.outward(node) if isinstance(outer, ast.stmt)), node)
    near = {*ast.walk(node), *module.outward(node)}
    return all(part in near for part in ast.walk(statement) if isinstance(part, ast.Call))


def _reads(body: ast.AST, name: str) -> int:
    """Return how often a name is read."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(body)
    )


def _new_axes(node: ast.expr) -> tuple[int, ...]:
    """Return where a dimension is put in: ``x[:, None]``, ``x.unsqueeze(1)``; negative numbers stay so."""
    if isinstance(node, ast.Call) and method_of(node) == "unsqueeze":
        number = whole_number(argument(node, "dim", 0))
        return (number,) if number is not None else ()
    if isinstance(node, ast.Subscript):
        parts = indices(node)
        plain = all(isinstance(part, ast.Slice) or _is_new(part) for part in parts)
        return tuple(at for at, part in enumerate(parts) if _is_new(part)) if plain else ()
    return ()


def _is_new(node: ast.expr) -> bool:
    return literal(node) is None or (isinstance(node, ast.Attribute) and node.attr == "newaxis")
