"""Let one operator compute attention that is written out as product, softmax and product."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtriage.diagnose.lint.base import add_keyword, keyword, literal, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import argument, names_in, path_of
from torchtriage.measure.fix.edits._flow import flow_of, loads, meets
from torchtriage.measure.fix.edits._settings import DEPTH, origin_of
from torchtriage.measure.fix.edits._torch import calls_at, torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import alias_of, body_of, complete, operand, remove, source

CODES = frozenset({"HST114", "KRN025", "LCH014"})

SWAPPED = re.compile(r"\.(transpose\((-2, -1|-1, -2|2, 3|3, 2)\)|mT|permute\((0, 1, 3, 2|0, 2, 1)\))$")
SWAPPED_BATCH = re.compile(r"\.transpose\((1, 2|2, 1)\)$")
FULLY = "fully masked rows give different values"
INFINITE = re.compile(r"\binf\b")
LOW = -1e4
"""Scores at most this high have no weight after softmax."""
NUMBER = re.compile(r"^((\w+_)?(scale|scaling|factor|temperature|dim|size)|dim_(head|k|key)|d_(k|head|model)|dk?|c|C)$")
"""Names of numbers, for those whose value the file doesn't say."""


@dataclass(frozen=True)
class Product:
    """A matrix product: its sides, and in ``torch.einsum`` the letters of both and of what comes out."""

    left: ast.expr
    right: ast.expr
    letters: tuple[str, str, str] | None = None


@dataclass
class Attention:
    """What a chain of statements computes, each part as text.

    ``letters`` : of the scores, where they are a sum by letters: those of the batch, of the queries, of the keys.
    """

    query: str
    key: str
    scale: str = "1.0"
    mask: str = ""
    filled: bool = False
    dropout: str = ""
    scores: str = ""
    letters: tuple[str, str, str] | None = None


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the fused operator for the attention of the function around the line; no weights that nobody uses."""
    module = site.module
    for call in calls_at(site):
        if call.receiver.of == "torch.nn.MultiheadAttention" and keyword(call.node, "need_weights") is None:
            around = module.parents.get(call.node)
            if isinstance(around, ast.Subscript) and literal(around.slice) == 0:
                edit = add_keyword(module.text, call.node, "need_weights", "False")
                yield Proposal(complete((edit,)), "attention without the weights, which nothing uses")
    for node in ast.walk(site.function) if site.function is not None else ():
        product = _product(module, node)
        if product is not None and isinstance(node, ast.expr):
            chain = _Chain(module, node)
            edits = chain.edits(product)
            if edits:
                text = "\n".join(source(module, item) for item in (node, *chain.used))
                chain_changes = FULLY if "masked_fill" in text and not INFINITE.search(text) else ""
                yield Proposal(edits, "one operator for attention", chain_changes)
                return


def _product(module: Module, node: ast.AST) -> Product | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return Product(node.left, node.right)
    if not isinstance(node, ast.Call):
        return None
    name = module.name_of(node.func)
    if name in ("torch.matmul", "torch.bmm") and len(node.args) == 2:
        return Product(node.args[0], node.args[1])
    given = node.args[1:]
    if len(given) == 1 and isinstance(given[0], ast.Tuple | ast.List):
        given = given[0].elts
    if name in ("torch.einsum", "torch.functional.einsum") and len(given) == 2:
        found = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", str(literal(node.args[0])).replace(" ", ""))
        return Product(given[0], given[1], (found[1], found[2], found[3])) if found else None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("matmul", "bmm") and len(node.args) == 1:
        return Product(node.func.value, node.args[0])
    return None


def _by_letters(module: Module, product: Product, axis: int) -> Attention | None:
    """Return the scores of a sum by letters, of which the dimension ``axis`` is that of the keys."""
    assert product.letters is not None
    left, right, out = product.letters
    sides = [(product.left, left), (product.right, right)]
    keys = out[axis] if -len(out) <= axis < len(out) else ""
    batch = "".join(letter for letter in out if letter in left and letter in right)
    summed, queries = set(left) & set(right) - set(out), set(out) - set(batch) - {keys}
    if keys in left:
        sides.reverse()
    if not keys or keys in batch or len(summed) != 1 or len(queries) != 1 or {*left, *right} != {*out, *summed}:
        return None
    (width,), (rows,) = summed, queries
    (query, query_letters), (key, key_letters) = sides
    found = Attention(
        _moved(source(module, query), query_letters, batch + rows + width),
        _moved(source(module, key), key_letters, batch + keys + width),
    )
    found.scores, found.letters = out, (batch, rows, keys)
    return found


def _moved(text: str, old: str, new: str) -> str:
    """Return a tensor with its dimensions in another order, each named by a letter."""
    order = [old.index(letter) for letter in new]
    moved = [place for place, letter in enumerate(order) if place != letter]
    text = text if re.fullmatch(r"[\w.]+(\(.*\))?", text, re.DOTALL) else f"({text})"
    if len(moved) == 2:
        return f"{text}.transpose({moved[0]}, {moved[1]})"
    return f"{text}.permute({', '.join(map(str, order))})" if moved else text


class _Chain:
    """The straight line of statements above a product, followed back from its first side."""

    def __init__(self, module: Module, node: ast.expr) -> None:
        self.module, self.node = module, node
        statement = module.around(node, ast.stmt)
        assert isinstance(statement, ast.stmt)
        body = body_of(module, statement) or [statement]
        self.last, self.around = statement, module.parents.get(statement)
        self.above = body[: body.index(statement)]
        self.used: list[ast.stmt] = []
        self.parts: dict[ast.stmt, ast.stmt] = {}

    def edits(self, product: Product) -> tuple[SourceEdit, ...]:
        found = self._weights(product.left)
        value, order = source(self.module, product.right), ("", "")
        if found is None or self._needed_elsewhere() or self._reads_other_values(found, value):
            return ()
        if found.mask and found.scores != "".join(found.letters or ""):
            return ()
        if product.letters is not None:
            weights, values, joined = product.letters
            batch, rows, keys = found.letters or (weights[:-2], weights[-2], weights[-1])
            renamed = str.maketrans(found.scores or weights, weights)
            batch, rows, keys = (part.translate(renamed) for part in (batch, rows, keys))
            width = "".join(set(values) - set(weights))
            order = (batch + rows + width, joined)
            if len(width) != 1 or sorted(joined) != sorted(order[0]) or sorted(values) != sorted(batch + keys + width):
                return ()
            value = _moved(value, values, batch + keys + width)
        elif found.scores != "".join(found.letters or ""):
            return ()
        torch, imports = torch_in(self.module)
        functional = alias_of(self.module, "torch.nn.functional", f"{torch}.nn.functional")
        imports = imports if functional.startswith(torch) else ()
        given = [found.query, found.key, value]
        given += [f"attn_mask={found.mask}"] if found.mask else []
        given += [f"dropout_p={found.dropout}"] if found.dropout else []
        given += [f"scale={found.scale}"]
        text = _moved(f"{functional}.scaled_dot_product_attention({', '.join(given)})", *order)
        out = [remove(self.module, self.parts.get(statement, statement)) for statement in self.used]
        return complete([*out, replace_node(self.node, text), *imports])

    def _unused(self) -> list[ast.stmt]:
        """Return the statements above those that are used up, the last one first."""
        return self.above[: self.above.index(self.used[-1]) if self.used else None][::-1]

    def _behind(self, node: ast.expr) -> ast.expr:
        """Return what a name was given last, above; the statement is used up then."""
        if isinstance(node, ast.Name):
            for statement in self._unused():
                target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                if isinstance(target, ast.Name) and target.id == node.id and isinstance(statement, ast.Assign):
                    self.used.append(statement)
                    return statement.value
                if node.id in names_in(statement):
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
        made = origin_of(self.module, node.func) if path_of(node.func).startswith("self.") else node
        if isinstance(made, ast.Call) and self.module.name_of(made.func) == "torch.nn.Softmax":
            dim = keyword(made, "dim") or next(iter(made.args), None)
        elif name.rpartition(".")[2] == "softmax":
            dim = keyword(node, "dim") or (given[1] if len(given) > 1 else None)
        else:
            return None
        axis = ast.unparse(dim) if dim is not None else ""
        return self._scores(given[0], int(axis)) if given and re.fullmatch(r"-?\d", axis) else None

    def _scores(self, node: ast.expr, axis: int) -> Attention | None:
        hidden = self._hidden(node, axis)
        if hidden is not None:
            return hidden
        node = self._behind(node)
        product = _product(self.module, node)
        if product is not None and product.letters is not None:
            return _by_letters(self.module, product, axis)
        if product is not None and axis in (-1, 3):
            key = source(self.module, product.right)
            batch = isinstance(node, ast.Call) and "bmm" in ast.unparse(node.func)
            swapped = SWAPPED.search(key) or (SWAPPED_BATCH.search(key) if batch else None)
            query = source(self.module, product.left)
            return Attention(query, key[: swapped.start()]) if swapped else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
            sides = [node.left, node.right]
            if isinstance(node.op, ast.Mult) and _is_number(self.module, node.left):
                sides.reverse()
            elif not _is_number(self.module, node.right):
                return None
            factor = source(self.module, sides[1])
            simple = isinstance(sides[1], ast.Name | ast.Attribute | ast.Call | ast.Constant)
            if isinstance(node.op, ast.Div):
                factor = f"1 / {factor}" if simple else f"1 / ({factor})"
            return self._scaled(self._scores(sides[0], axis), factor)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            inner = self._scores(node.left, axis)
            return self._masked(inner, source(self.module, node.right))
        if isinstance(node, ast.Call):
            name, given = self._call(node)
            fills = name.rpartition(".")[2] in ("masked_fill", "masked_fill_") and len(given) == 3
            if fills and _known(self.module, given[2]) <= LOW:
                return self._masked(self._scores(given[0], axis), _seen(self.module, given[1]), filled=True)
        return None

    def _hidden(self, node: ast.expr, axis: int) -> Attention | None:
        """Return scores that the statement above hides some of in place, or only under a condition."""
        name = path_of(node)
        for statement in self._unused() if isinstance(node, ast.Name) else ():
            if name not in names_in(statement):
                continue
            inner = statement
            if isinstance(statement, ast.If) and not statement.orelse:
                own = [item for item in statement.body if name in names_in(item)]
                if len(own) != 1 or name in names_in(statement.test):
                    return None
                inner = own[0]
            factor = self._scales(inner, name)
            if factor:
                self.used.append(statement)
                if isinstance(statement, ast.If):
                    if len(statement.body) > 1:
                        return None
                    factor = f"({factor} if {source(self.module, statement.test)} else 1.0)"
                return self._scaled(self._scores(node, axis), factor)
            mask = self._hides(inner, name)
            if not mask or (inner is statement and isinstance(inner, ast.Assign)):
                return None
            if inner is not statement:
                assert isinstance(statement, ast.If)
                mask = f"{mask} if {source(self.module, statement.test)} else None"
                self.parts[statement] = inner if len(statement.body) > 1 else statement
            self.used.append(statement)
            return self._masked(self._scores(node, axis), mask, filled="masked_fill" in source(self.module, inner))
        return None

    def _scales(self, statement: ast.stmt, name: str) -> str:
        """Return the factor of ``s = s * scale`` under a condition, of ``s *= scale`` and of ``s.mul_(scale)``."""
        value: ast.expr | None = None
        if isinstance(statement, ast.AugAssign) and path_of(statement.target) == name:
            value = ast.BinOp(statement.target, statement.op, statement.value)
        elif isinstance(statement, ast.Assign) and path_of(statement.targets[0]) == name:
            value = statement.value if self.module.parents.get(statement) not in (None, self.around) else None
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called, given = self._call(statement.value)
            if called in (".mul_", ".div_") and len(given) == 2:
                value = ast.BinOp(given[0], ast.Mult() if called == ".mul_" else ast.Div(), given[1])
        if not isinstance(value, ast.BinOp) or path_of(value.left) != name or not _is_number(self.module, value.right):
            return ""
        factor = source(self.module, value.right)
        factor = factor if re.fullmatch(r"[\w.]+(\(.*\))?", factor) else f"({factor})"
        return f"1 / {factor}" if isinstance(value.op, ast.Div) else factor * isinstance(value.op, ast.Mult)

    def _hides(self, statement: ast.stmt, name: str) -> str:
        """Return the mask of ``s.masked_fill_(hidden, -inf)`` and the like."""
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            return source(self.module, statement.value) if path_of(statement.target) == name else ""
        value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
        if isinstance(statement, ast.Assign) and path_of(statement.targets[0]) != name:
            return ""
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and path_of(value.left) == name:
            return source(self.module, value.right) if isinstance(statement, ast.Assign) else ""
        if not isinstance(value, ast.Call):
            return ""
        called, given = self._call(value)
        fills = called in (".masked_fill", ".masked_fill_")[isinstance(statement, ast.Expr) :]
        if not fills or len(given) != 3 or path_of(given[0]) != name:
            return ""
        return _seen(self.module, given[1]) if _known(self.module, given[2]) <= LOW else ""

    def _scaled(self, inner: Attention | None, scale: str) -> Attention | None:
        if inner is None or inner.scale != "1.0" or (inner.mask and not inner.filled):
            return None
        inner.scale = scale
        return inner

    def _masked(self, inner: Attention | None, mask: str, *, filled: bool = False) -> Attention | None:
        if inner is None or inner.mask:
            return None
        inner.mask, inner.filled = mask, filled
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
        p, training = argument(node, "p", 1), argument(node, "training", 2)
        if p is None or training is None:
            return ""
        return f"{source(self.module, p)} if {source(self.module, training)} else 0.0"

    def _names(self) -> set[str]:
        """Return the names that the chain gives its scores and weights."""
        return {path_of(item.targets[0]) for item in self.used if isinstance(item, ast.Assign)}

    def _needed_elsewhere(self) -> bool:
        """Return whether scores or weights are read by anything but this chain, in a loop also above it."""
        if not self.used:
            return False
        chain = {part for part in (self.node, *self.used) for part in ast.walk(part)}
        looped = self.module.around(self.node, ast.For, ast.While) is not None
        first = 0 if looped else min(item.lineno for item in self.used)
        return any(
            isinstance(item.ctx, ast.Load) and item not in chain and item.lineno >= first
            for name in self._names()
            for item in self.module.names(name, self.module.scope(self.node))
        )

    def _reads_other_values(self, found: Attention, value: str) -> bool:
        """Return whether what the chain reads is gone, or may have changed, where the one operator reads it."""
        parts = [found.query, found.key, value, found.scale, found.mask, found.dropout]
        if self._names() & names_in(ast.parse(f"[{', '.join(filter(None, parts))}]")):
            return True
        flow = flow_of(self.module)
        for statement in self.used:
            below = self.above[self.above.index(statement) :]
            left = [item for other in below for item in self._left_of(other)]
            changed = flow.changes(left) | flow.handed(left)
            if any(meets(path, changed) for path in loads(statement)):
                return True
        return False

    def _left_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return what stays of a statement: all, nothing, or the body of a condition without the part taken out."""
        if statement not in self.used:
            return [statement]
        part = self.parts.get(statement, statement)
        body = statement.body if isinstance(statement, ast.If) and part is not statement else []
        return [item for item in body if item is not part]


def _known(module: Module, node: ast.expr, depth: int = DEPTH) -> float:
    """Return the number that an expression is, infinite for the ends of a type; not a number where none is known."""
    node = origin_of(module, node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        bounds = module.name_of(node.value.func) in ("torch.finfo", "numpy.finfo")
        return {"min": -math.inf, "max": math.inf}.get(node.attr, math.nan) if bounds else math.nan
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_known(module, node.operand, depth - 1) if depth else math.nan
    if isinstance(node, ast.Name | ast.Attribute):
        return math.inf if module.name_of(node) in ("math.inf", "numpy.inf", "torch.inf") else math.nan
    if isinstance(node, ast.Call) and len(node.args) == 1 and module.name_of(node.func) == "float":
        node = node.args[0]
    try:
        return float(ast.literal_eval(node))
    except (OverflowError, TypeError, ValueError):
        return math.nan


def _is_number(module: Module, node: ast.expr, depth: int = DEPTH) -> bool:
    """Return whether a factor is a number, by what it is made of, or else by its name: no tensor can be a scale."""
    made = origin_of(module, node)
    if isinstance(made, ast.BinOp | ast.BoolOp | ast.IfExp | ast.UnaryOp):
        tests = [made.test] if isinstance(made, ast.IfExp) else []
        parts = [part for part in ast.iter_child_nodes(made) if isinstance(part, ast.expr) and part not in tests]
        return depth > 0 and all(_is_number(module, part, depth - 1) for part in parts)
    if isinstance(made, ast.Subscript):
        return isinstance(made.value, ast.Attribute) and made.value.attr == "shape"
    if isinstance(made, ast.Call):
        name = module.name_of(made.func)
        if name in ("torch.sqrt", "torch.tensor", "numpy.sqrt"):
            return len(made.args) == 1 and depth > 0 and _is_number(module, made.args[0], depth - 1)
        method = made.func.attr if isinstance(made.func, ast.Attribute) else ""
        return name.startswith("math.") or name in ("float", "int", "len") or method in ("size", "item")
    names = [path_of(part).rpartition(".")[2] for part in (node, made)]
    return isinstance(made, ast.Constant) or (path_of(made) != "" and any(map(NUMBER.search, names)))


def _seen(module: Module, node: ast.expr) -> str:
    """Return the mask of what is seen for one of what is not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return source(module, node.operand)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) and literal(node.comparators[0]) == 0:
        return f"{source(module, node.left)} != 0"
    return f"~{operand(module, node)}"
