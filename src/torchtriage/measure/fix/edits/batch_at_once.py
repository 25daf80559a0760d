"""A whole batch at once: tokenizers, gathers of rows, and transforms that a comprehension runs for each element."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import argument, keyword, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_words import TOKENIZER
from torchtriage.measure.fix.edits._settings import origin_of
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import set_keywords, source

CODES = frozenset(
    {"DAT108", "DAT106", "DAT114", "CPY010", "LCH014", "LCH017", "LCH107", "LCH109", "HST020", "HST110", "HST114"}
)
WHAT = "work on the whole batch at once"
WHOLE = re.compile(r"^torchvision\.transforms\.(v2\.)?(Normalize|Resize|CenterCrop|ConvertImageDtype|Grayscale|Pad)$")
"""Transforms that do to a batch what they do to each of its images."""
POINTWISE = frozenset(
    f"torch.{name}" for name in words("abs exp log log1p sqrt clamp sigmoid tanh relu square round floor sign")
)


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the statement at the line with one call for the batch."""
    statement = site.statement
    if statement is None or isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    module = site.module
    inside = set(ast.walk(statement))
    for call in module.calls:
        if call.node not in inside:
            continue
        if call.attr == "map" and site.finding.code == "DAT108":
            yield Proposal(_of_map(module, call), WHAT)
        elif call.name in ("torch.stack", "torch.cat"):
            yield Proposal(_of_stack(module, call.node), WHAT)
    for made in inside:
        if isinstance(made, ast.ListComp) and len(made.generators) == 1 and not made.generators[0].ifs:
            yield Proposal(_of_texts(module, made), "tokenize the texts with one call")


def _of_map(module: Module, call: SourceCall) -> tuple[SourceEdit, ...]:
    """Return ``dataset.map(f, batched=True)`` where ``f`` does nothing but ask a tokenizer."""
    given = call.node.args[0] if call.node.args else None
    body: ast.expr | None = given.body if isinstance(given, ast.Lambda) else None
    if isinstance(given, ast.Name):
        found = next((item.node for item in module.functions if item.name == given.id), None)
        last = found.body[-1] if found is not None and len(found.body) <= 2 else None
        body = last.value if isinstance(last, ast.Return) else None
    if not isinstance(body, ast.Call) or not TOKENIZER.search(path_of(body.func)):
        return ()
    return set_keywords(module, call.node, {"batched": "True"}) if keyword(call.node, "batched") is None else ()


def _of_stack(module: Module, node: ast.Call) -> tuple[SourceEdit, ...]:
    """Return ``f(batch)`` for ``torch.stack([f(x) for x in batch])``, and ``rows[i]`` for a stack of rows."""
    made = node.args[0] if node.args else None
    axis = argument(node, "dim", 1)
    if not isinstance(made, ast.ListComp | ast.GeneratorExp) or (axis is not None and literal(axis) != 0):
        return ()
    over = made.generators[0]
    if len(made.generators) != 1 or over.ifs or not isinstance(over.target, ast.Name):
        return ()
    name, batch, element = over.target.id, source(module, over.iter), made.elt
    stacks = module.name_of(node.func) == "torch.stack"
    method = element.func if isinstance(element, ast.Call) else None
    if isinstance(method, ast.Attribute) and method.attr in ("to", "cuda"):
        inner = method.value
        moved = source(module, element)[len(source(module, inner)) :]
        rest = source(module, made).replace(source(module, element), source(module, inner), 1)
        stacked = f"{source(module, node.func)}({rest}{', dim=0' if axis is not None else ''}){moved}"
        return (replace_node(node, stacked),)
    rows = element.value if isinstance(element, ast.Subscript) and path_of(element.slice) == name else None
    if stacks and rows is not None and path_of(rows) and path_of(over.iter) and module.value(rows).kind == "tensor":
        return (replace_node(node, f"{source(module, rows)}[{batch}]"),)
    if stacks and isinstance(element, ast.Call) and [path_of(item) for item in element.args[:1]] == [name]:
        made_of = origin_of(module, element.func)
        transform = isinstance(made_of, ast.Call) and WHOLE.match(module.name_of(made_of.func)) is not None
        alone = sum(isinstance(item, ast.Name) and item.id == name for item in ast.walk(element)) == 1
        if (transform or module.name_of(element.func) in POINTWISE) and alone and path_of(over.iter):
            others = source(module, element)[len(source(module, element.func)) + 1 + len(name) :]
            return (replace_node(node, f"{source(module, element.func)}({batch}{others}"),)
    return ()


def _of_texts(module: Module, made: ast.ListComp) -> tuple[SourceEdit, ...]:
    """Return ``tokenizer(texts)["input_ids"]`` for ``[tokenizer(text)["input_ids"] for text in texts]``."""
    over, element = made.generators[0], made.elt
    last = element.value if isinstance(element, ast.Subscript | ast.Attribute) else element
    if not isinstance(last, ast.Call) or not isinstance(over.target, ast.Name) or len(last.args) != 1:
        return ()
    given, path = last.args[0], path_of(last.func)
    encodes = path.rpartition(".")[2] == "encode" and TOKENIZER.search(path.rpartition(".")[0]) is not None
    if not (encodes or (TOKENIZER.search(path) and last is not element)) or path_of(given) != over.target.id:
        return ()
    if any(item.arg in ("return_tensors", "padding") for item in last.keywords):
        return ()
    texts = source(module, over.iter)
    if not path_of(over.iter):
        texts = f"list({texts})"
    others = "".join(f", {source(module, item)}" for item in last.keywords)
    if encodes:
        return (replace_node(made, f'{path.rpartition(".")[0]}({texts}{others})["input_ids"]'),)
    tail = source(module, element)[len(source(module, last)) :]
    return (replace_node(made, f"{path}({texts}{others}){tail}"),)
