"""Three factors multiplied in the order that takes less work: the pair first that has a narrow product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import keyword, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, source

CODES = frozenset({"KRN071"})
SPEC = re.compile(r"([A-Za-z]+),([A-Za-z]+),([A-Za-z]+)->([A-Za-z]*)")
PRODUCTS = words("torch.sparse.mm torch.spmm torch.mm")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the einsum at the line as two, and the layer at the line before the product that it makes narrower."""
    statement = site.statement
    for node in ast.walk(statement) if statement is not None and body_of(site.module, statement) else ():
        if not isinstance(node, ast.Call):
            continue
        if site.module.name_of(node.func) == "torch.einsum":
            for text in _nested(site.module, node):
                yield Proposal((replace_node(node, text),), "multiply the factors in the order that takes less work")
        elif text := _layer_first(site.module, node):
            yield Proposal((replace_node(node, text),), f"make the features narrow before {path_of(node.func)}()")


def _nested(module: Module, node: ast.Call) -> Iterator[str]:
    """Yield ``einsum("ij,jl->il", a, einsum("jk,kl->jl", b, c))`` for ``einsum("ij,jk,kl->il", a, b, c)``.

    Operands from left to right is what it does by itself. A letter twice in one of them takes a diagonal.
    """
    written = literal(node.args[0]) if len(node.args) == 4 and not node.keywords else None
    found = SPEC.fullmatch(written.replace(" ", "")) if isinstance(written, str) else None
    operands = node.args[1:]
    if found is None or any(isinstance(item, ast.Starred) or not flow_of(module).repeats(item) for item in operands):
        return
    *letters, out = found.groups()
    if any(len(set(item)) < len(item) for item in letters):
        return
    name, texts = source(module, node.func), [source(module, item) for item in operands]
    for first, second in combinations(range(3), 2):
        alone = 3 - first - second
        inside = dict.fromkeys(letters[first] + letters[second])
        kept = "".join(letter for letter in inside if letter in letters[alone] + out)
        if (first, second) == (0, 1) or len(kept) == len(inside):
            continue
        inner = f'{name}("{letters[first]},{letters[second]}->{kept}", {texts[first]}, {texts[second]})'
        yield f'{name}("{letters[alone]},{kept}->{out}", {texts[alone]}, {inner})'


def _layer_first(module: Module, node: ast.Call) -> str:
    """Return ``product(a, layer(x))`` for ``layer(product(a, x))``, where the layer has no bias."""
    layer, product = origin_of(module, node.func), node.args[0] if len(node.args) == 1 else None
    if not isinstance(layer, ast.Call) or not isinstance(product, ast.Call) or not _is_product(module, product):
        return ""
    bias = keyword(layer, "bias") or (layer.args[2] if len(layer.args) > 2 else None)
    if module.name_of(layer.func) != "torch.nn.Linear" or literal(bias) is not False or len(product.args) != 2:
        return ""
    left, right = (source(module, item) for item in product.args)
    return f"{source(module, product.func)}({left}, {source(module, node.func)}({right}))"


def _is_product(module: Module, node: ast.Call) -> bool:
    """Return whether a call multiplies its two arguments, itself or in a function that differentiates by hand."""
    name, func = module.name_of(node.func), node.func
    if name in PRODUCTS or node.keywords:
        return name in PRODUCTS and not node.keywords
    kind = module.classes.get(path_of(func.value)) if isinstance(func, ast.Attribute) and func.attr == "apply" else None
    forward = kind.methods.get("forward") if kind is not None else None
    last = forward.node.body[-1] if forward is not None else None
    made = last.value if isinstance(last, ast.Return) else None
    if forward is None or not isinstance(made, ast.Call):
        return False
    given = [item.arg for item in forward.node.args.args[1:]]
    return module.name_of(made.func) in PRODUCTS and [path_of(item) for item in made.args] == given
