"""Three factors multiplied in the order that takes less work: the pair first that has a narrow product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Class, Module
from torchtriage.diagnose.lint.syntax import argument, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, source

CODES = frozenset({"KRN071"})
SPEC = re.compile(r"([A-Za-z]+),([A-Za-z]+),([A-Za-z]+)->([A-Za-z]*)")
PRODUCTS = words("torch.sparse.mm torch.spmm torch.mm")
SAVES = re.compile(r"ctx\.\w+ = \w+|ctx\.save_for_backward\([\w, ]+\)")
READS = re.compile(r"(?<![\w, ()])[\w, ()]+ = ctx\.\w+|if not ctx\.needs_input_grad\[1\]:\s+return None, None")
MULTIPLIES = re.compile(r"return ([\w.]+)\(\w+, \w+\)")
MULTIPLIES_BACK = re.compile(r"return None, ([\w.]+)\((ctx\.)?\w+(\.t\(\)|\.m?T)?, (\w+)(\.contiguous\(\))?\)")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the einsum at the line as two, and the layer at the line before the product that it makes narrower."""
    statement = site.statement
    for node in ast.walk(statement) if statement is not None and body_of(site.module, statement) else ():
        if not isinstance(node, ast.Call) or "#" in source(site.module, node):
            continue
        if site.module.name_of(node.func) == "torch.einsum":
            for text in _nested(site.module, node):
                yield Proposal((replace_node(node, text),), "multiply the factors in the order that takes less work")
        elif text := _layer_first(site.module, node):
            yield Proposal((replace_node(node, text),), f"narrow the features before {path_of(node.func)}()")


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
    bias = argument(layer, "bias", 2)
    if module.name_of(layer.func) != "torch.nn.Linear" or literal(bias) is not False or len(product.args) != 2:
        return ""
    if not _only_called(module, path_of(node.func).rpartition(".")[2], layer):
        return ""
    left, right = (source(module, item) for item in product.args)
    return f"{source(module, product.func)}({left}, {source(module, node.func)}({right}))"


def _only_called(module: Module, name: str, layer: ast.Call) -> bool:
    """Return whether a layer is made and called, and its weight read: no hooks, no bias later."""
    for node in module.parents:
        if not isinstance(node, ast.Name | ast.Attribute) or path_of(node).rpartition(".")[2] != name:
            continue
        around = module.parents.get(node)
        made = isinstance(around, ast.Assign) and around.value is layer
        called = isinstance(around, ast.Call) and around.func is node
        part = around if isinstance(around, ast.Attribute) and isinstance(around.ctx, ast.Load) else None
        read = part is not None and part.attr in ("weight", "reset_parameters")
        if not (made or called or read):
            return False
    return "_hook(" not in module.text


def _is_product(module: Module, node: ast.Call) -> bool:
    """Return whether a call multiplies its two arguments, itself or in a function that differentiates by hand."""
    name, func = module.name_of(node.func), node.func
    if name in PRODUCTS or node.keywords:
        return name in PRODUCTS and not node.keywords
    kind = module.classes.get(path_of(func.value)) if isinstance(func, ast.Attribute) and func.attr == "apply" else None
    return kind is not None and _multiplies(module, kind)


def _multiplies(module: Module, kind: Class) -> bool:
    """Return whether a function multiplies its arguments, and the gradient on the way back, and does no more."""
    forward, backward = kind.methods.get("forward"), kind.methods.get("backward")
    if forward is None or backward is None:
        return False
    texts = {}
    for method in (forward.node, backward.node):
        if [path_of(item) for item in method.decorator_list] != ["staticmethod"]:
            return False
        texts[method] = [source(module, item) for item in method.body]
    *saves, last = texts[forward.node]
    *reads, back = texts[backward.node]
    given = [item.arg for item in forward.node.args.args[1:]]
    gradient = [item.arg for item in backward.node.args.args[1:]]
    there, again = MULTIPLIES.fullmatch(last), MULTIPLIES_BACK.fullmatch(back)
    if there is None or again is None or not all(map(SAVES.fullmatch, saves)) or not all(map(READS.fullmatch, reads)):
        return False
    plain = f"return {there[1]}({', '.join(given)})" == last and gradient == [again[4]]
    return plain and {_full(module, there[1]), _full(module, again[1])} <= PRODUCTS


def _full(module: Module, path: str) -> str:
    return module.name_of(ast.parse(path, mode="eval").body)
