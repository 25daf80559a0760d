"""Let one operator compute attention that is written out as product, softmax and product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtriage.diagnose.lint.base import add_keyword, keyword, literal, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, remove, source

CODES = frozenset({"HST114", "KRN025", "LCH014"})

SWAPPED = re.compile(r"\.(transpose\(-2, -1\)|transpose\(-1, -2\)|transpose\(2, 3\)|mT|permute\(0, 1, 3, 2\))$")
SWAPPED_BATCH = re.compile(r"\.(transpose\(1, 2\)|permute\(0, 2, 1\))$")
FULLY = "rows of which nothing is seen give other values"
INFINITE = re.compile(r"\binf\b")
NEVER = re.compile(r"-?\s*(float\(|math\.inf|torch\.inf|np\.inf|1e\d|\d+e\d)|.*finfo")


@dataclass
class Attention:
    """What a chain of statements computes, each part as text."""

    query: str
    key: str
    scale: str = "1.0"
    mask: str = ""
    dropout: str = ""


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the fused operator for the attention of the function around the line; no weights that nobody uses."""
    module = site.module
    for call in calls_at(site):
        if call.receiver.of == "torch.nn.MultiheadAttention" and keyword(call.node, "need_weights") is None:
            around = module.parents.get(call.node)
            if isinstance(around, ast.Subscript) and literal(around.slice) == 0:
                edit = add_keyword(module.text, call.node, "need_weights", "False")
                if edit is not None:
                    yield Proposal((edit,), "attention without weights that nobody uses")
    for node in ast.walk(site.function) if site.function is not None else ():
        product = _product(module, node)
        if product is not None and isinstance(node, ast.expr):
            chain = _Chain(module, node)
            edits = chain.edits(*product)
            if edits:
                text = "\n".join(source(module, item) for item in (node, *chain.used))
                chain_changes = FULLY if "masked_fill" in text and not INFINITE.search(text) else ""
                yield Proposal(edits, "one operator for attention", chain_changes)
                return


def _product(module: Module, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the two sides of a matrix product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return None
    if module.name_of(node.func) in ("torch.matmul", "torch.bmm") and len(node.args) == 2:
        return node.args[0], node.args[1]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("matmul", "bmm") and len(node.args) == 1:
        return node.func.value, node.args[0]
    return None


class _Chain:
    """The straight line of statements above a product, followed back from its first side."""

    def __init__(self, module: Module, node: ast.expr) -> None:
        self.module, self.node = module, node
        statement: ast.AST = node
        while not isinstance(statement, ast.stmt):
            statement = module.parents[statement]
        body = body_of(module, statement) or [statement]
        self.last = statement
        self.above = body[: body.index(statement)]
        self.used: list[ast.stmt] = []

    def edits(self, weights: ast.expr, value: ast.expr) -> tuple[SourceEdit, ...]:
        found = self._weights(weights)
        if found is None or self._needed_elsewhere():
            return ()
        torch, imports = torch_in(self.module)
        functional = next(
            (name for name, full in self.module.aliases.items() if full == "torch.nn.functional"),
            f"{torch}.nn.functional",
        )
        imports = imports if functional.startswith(torch) else ()
        given = [found.query, found.key, source(self.module, value)]
        given += [f"attn_mask={found.mask}"] if found.mask else []
        given += [f"dropout_p={found.dropout}"] if found.dropout else []
        given += [f"scale={found.scale}"]
        text = f"{functional}.scaled_dot_product_attention({', '.join(given)})"
        out = [remove(self.module, statement) for statement in self.used]
        if None in out:
            return ()
        return (*(edit for edit in out if edit is not None), replace_node(self.node, text), *imports)

    def _behind(self, node: ast.expr) -> ast.expr:
        """Return what a name was given last, above; the statement is used up then."""
        if isinstance(node, ast.Name):
            limit = self.above.index(self.used[-1]) if self.used else len(self.above)
            for statement in reversed(self.above[:limit]):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                if isinstance(target, ast.Name) and target.id == node.id and isinstance(statement, ast.Assign):
                    self.used.append(statement)
                    return statement.value
                if any(isinstance(part, ast.Name) and part.id == node.id for part in ast.walk(statement)):
                    break
        return node

    def _weights(self, node: ast.expr) -> Attention | None:
        node = self._behind(node)
        if not isinstance(node, ast.Call):
            return None
        name, given = self._call(node)
        if "drop" in name and given:
            inner = self._weights(given[0])
            if inner is None or inner.dropout:
                return None
            inner.dropout = self._probability(node)
            return inner if inner.dropout else None
        if name.endswith((".to", ".type_as", ".float")):
            return self._weights(given[0])
        dim = keyword(node, "dim") or (given[1] if len(given) > 1 else None)
        if name.rpartition(".")[2] != "softmax" or not given or ast.unparse(dim or ast.Constant(0)) not in ("-1", "3"):
            return None
        return self._scores(given[0])

    def _scores(self, node: ast.expr, scaled: bool = False) -> Attention | None:
        node = self._behind(node)
        product = _product(self.module, node)
        if product is not None:
            key = source(self.module, product[1])
            batch = isinstance(node, ast.Call) and "bmm" in ast.unparse(node.func)
            swapped = SWAPPED.search(key) or (SWAPPED_BATCH.search(key) if batch else None)
            query = source(self.module, product[0])
            return Attention(query, key[: swapped.start()]) if swapped else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
            inner = self._scores(node.left, scaled=True)
            if inner is None or inner.scale != "1.0" or inner.mask:
                return None
            factor = source(self.module, node.right)
            simple = isinstance(node.right, ast.Name | ast.Attribute | ast.Call | ast.Constant)
            by = factor if simple else f"({factor})"
            inner.scale = f"1 / {by}" if isinstance(node.op, ast.Div) else factor
            return inner
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and not scaled:
            inner = self._scores(node.left)
            return self._masked(inner, source(self.module, node.right))
        if isinstance(node, ast.Call) and not scaled:
            name, given = self._call(node)
            fills = name.rpartition(".")[2] in ("masked_fill", "masked_fill_") and len(given) == 3
            if fills and NEVER.match(source(self.module, given[2])):
                return self._masked(self._scores(given[0]), _seen(self.module, given[1]))
        return None

    def _masked(self, inner: Attention | None, mask: str) -> Attention | None:
        if inner is None or inner.mask:
            return None
        inner.mask = mask
        return inner

    def _call(self, node: ast.Call) -> tuple[str, list[ast.expr]]:
        """Return the name of what is called and what it is called on, first the tensor of a method."""
        name = self.module.name_of(node.func)
        if name.startswith(("torch.", "self.")) or not isinstance(node.func, ast.Attribute):
            return name, list(node.args)
        return f".{node.func.attr}", [node.func.value, *node.args]

    def _probability(self, node: ast.Call) -> str:
        path = path_of(node.func)
        if path.startswith("self.") and len(node.args) == 1:
            return f"{path}.p if self.training else 0.0"
        training = keyword(node, "training") or (node.args[2] if len(node.args) > 2 else None)
        p = keyword(node, "p") or (node.args[1] if len(node.args) > 1 else None)
        if p is None or training is None:
            return ""
        return f"{source(self.module, p)} if {source(self.module, training)} else 0.0"

    def _needed_elsewhere(self) -> bool:
        """Return whether scores or weights are read by anything but this chain."""
        if not self.used:
            return False
        names = {path_of(item.targets[0]) for item in self.used if isinstance(item, ast.Assign)}
        chain = {part for part in (self.node, *self.used) for part in ast.walk(part)}
        first = min(item.lineno for item in self.used)
        return any(
            isinstance(item.ctx, ast.Load) and item not in chain and item.lineno >= first
            for name in names
            for item in self.module.names(name, self.module.scope(self.node))
        )


def _seen(module: Module, node: ast.expr) -> str:
    """Return the mask of what is seen for one of what is not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return source(module, node.operand)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) and literal(node.comparators[0]) == 0:
        return f"{source(module, node.left)} != 0"
    text = source(module, node)
    return f"~{text}" if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call) else f"~({text})"
