"""Scale rows and columns in place of products with a diagonal matrix."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import operands
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import source

CODES = words("LCH105 KRN101 KRN103 LCH014 HST020 HST114")
ELEMENTWISE = words("pow sqrt rsqrt reciprocal clamp clamp_min exp log abs square float double to neg")
REDUCES = words("sum mean norm amax amin prod")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the products of the function around the line with ``torch.diag(v)``, ``v`` : a sum over one dimension."""
    module, around = site.module, site.scope
    nodes = list(ast.walk(around))
    made: dict[str, tuple[ast.Call, ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (value := _diagonal(module, node.value)):
            name = path_of(node.targets[0])
            same = [item for item in nodes if isinstance(item, ast.Name) and item.id == name]
            reads = [item for item in same if isinstance(item.ctx, ast.Load)]
            if name and len(same) == len(reads) + 1 and all(_is_product(module.parents.get(item)) for item in reads):
                made[name] = value
    edits: list[SourceEdit] = []
    used: set[str] = set()
    for node in nodes:
        if _is_product(node) and not _is_product(module.parents.get(node)):
            text = _scaled(module, node, made, used)  # type: ignore[arg-type]
            if text != source(module, node):
                edits.append(replace_node(node, text))  # type: ignore[arg-type]
    edits += [replace_node(call, source(module, vector)) for name, (call, vector) in made.items() if name in used]
    yield Proposal(tuple(edits), "scale rows and columns instead of multiplying by a diagonal matrix")


def _is_product(node: ast.AST | None) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _diagonal(module: Module, node: ast.expr) -> tuple[ast.Call, ast.expr] | None:
    """Return the call of ``torch.diag(v)`` and its vector; ``torch.diag`` of a matrix is another thing."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    name, vector = module.name_of(node.func), node.args[0]
    if name == "torch.diag_embed" or (name == "torch.diag" and _is_vector(module, vector)):
        return node, vector
    return None


def _is_vector(module: Module, node: ast.expr) -> bool:
    """Return whether an expression is made element by element of what one dimension of a matrix sums up to."""
    for _ in range(8):
        if isinstance(node, ast.Name):
            found = module.made_of(node)
            if found is node:
                return False
            node = found
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
            node = node.right if literal(node.left) is not ... else node.left
        elif isinstance(node, ast.Call):
            last = path_of(node.func).rpartition(".")[2] or getattr(node.func, "attr", "")
            given = operands(module, node)
            if last in REDUCES:
                dim = keyword(node, "dim") or (given[1] if len(given) > 1 else None)
                return isinstance(literal(dim) if dim is not None else None, int) and not keyword(node, "keepdim")
            if last not in ELEMENTWISE or not given:
                return False
            node = given[0]
        else:
            return False
    return False


def _scaled(module: Module, node: ast.expr, made: dict[str, tuple[ast.Call, ast.expr]], used: set[str]) -> str:
    """Return the text of a product, with what a diagonal matrix does to it written as a scaling."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.MatMult):
        return source(module, node)

    def vector(side: ast.expr) -> str:
        found = _diagonal(module, side)
        if found is not None:
            return f"({source(module, found[1])})"
        name = path_of(side)
        used.update({name} & made.keys())
        return name if name in made else ""

    left, right = vector(node.left), vector(node.right)
    if left and right:
        used.difference_update({left, right})
        return source(module, node)
    if left:
        return f"({left}[:, None] * {_operand(module, node.right, made, used)})"
    inner = _operand(module, node.left, made, used)
    if right:
        return f"({inner} * {right})" if _is_product(module.parents.get(node)) else f"{inner} * {right}"
    other = _operand(module, node.right, made, used)
    unchanged = _operand(module, node.left, {}, set()), _operand(module, node.right, {}, set())
    return source(module, node) if (inner, other) == unchanged else f"{inner} @ {other}"


def _operand(module: Module, node: ast.expr, made: dict[str, tuple[ast.Call, ast.expr]], used: set[str]) -> str:
    """Return the text of a factor, in parentheses where it is an expression of its own."""
    text = _scaled(module, node, made, used)
    is_one = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    is_wrapped = text != source(module, node) and text.endswith(")") and " @ " not in text
    return text if is_one or is_wrapped else f"({text})"
