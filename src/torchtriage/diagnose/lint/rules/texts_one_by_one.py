"""Texts are tokenised one by one.

Looks like: ``dataset.map(lambda row: tokenizer(row["text"]))`` without ``batched=True``; ``[tokenizer(t) for t in
    texts]`` and loops that append what a tokenizer returns; ``from_pretrained(..., use_fast=False)``.
Slow because: a fast tokenizer works through a batch in parallel in compiled code; one text at a time, it waits for
    Python in between and takes five to twenty times as long.
Fix: ``dataset.map(encode, batched=True)``, ``tokenizer(texts)``.
Quiet when: the loop is short, or each text needs its own decision.
Source: Hugging Face documentation of ``datasets``, "Batch mapping".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import keyword, literal, names_in, path_of, unpacks
from torchtriage.diagnose.lint.work_words import TOKENIZER

RULE = Rule("DAT108", "texts-one-by-one", "data", "Texts are tokenised one by one", "medium")

FIX = Fix(
    text="Give the tokenizer many texts at once.",
    code="""dataset = dataset.map(lambda rows: tokenizer(rows["text"], truncation=True), batched=True)
batch = tokenizer(texts, truncation=True)""",
    link="https://huggingface.co/docs/datasets/about_map_batch",
)

_METHODS = ("encode", "encode_plus", "tokenize")


def find(module: Module) -> Iterator[Hit]:
    """Yield maps and loops that tokenise one text at a time, and slow tokenizers."""
    if "oken" not in module.text:
        return
    for call in module.sent("map"):
        batched = keyword(call.node, "batched")
        absent = batched is None and not unpacks(call.node) and call.receiver.kind in ("unknown", "object")
        if (absent or literal(batched) is False) and call.node.args and _tokenizes(module, call.node.args[0]):
            yield Hit(call.node, f"each row is tokenised by itself: {text_of(call.node)}", "map")
    for call in module.calls:
        given = keyword(call.node, "use_fast") if call.attr == "from_pretrained" else None
        if given is not None and literal(given) is False and not call.context.aside:
            yield Hit(given, "use_fast=False selects the tokenizer written in Python", severity="low")
    in_sample = set(samples_of(module).functions)
    for call in module.calls:
        if _is_tokenizer(call.node) and _alone(module, call) and call.context.function not in in_sample:
            yield Hit(call.node, f"each text is tokenised by itself: {text_of(call.node)}", call.attr, severity="low")


def _is_tokenizer(node: ast.Call) -> bool:
    """Return whether a call asks a tokenizer for the ids of a text."""
    path = path_of(node.func)
    owner, _, last = path.rpartition(".")
    return bool(TOKENIZER.search(path)) or (last in _METHODS and bool(TOKENIZER.search(owner)))


def _tokenizes(module: Module, node: ast.expr) -> bool:
    """Return whether what a map calls uses a tokenizer."""
    if TOKENIZER.search(path_of(node)):
        return True
    body: ast.AST | None = node if isinstance(node, ast.Lambda) else None
    if isinstance(node, ast.Call) and node.args:  # functools.partial(encode, tokenizer)
        return _tokenizes(module, node.args[0])
    name = path_of(node).rpartition(".")[2]
    if body is None:
        body = next((item.node for item in module.functions if item.name == name), None)
    return body is not None and any(isinstance(item, ast.Call) and _is_tokenizer(item) for item in ast.walk(body))


def _alone(module: Module, call: SourceCall) -> bool:
    """Return whether a tokenizer is given one text of many in each turn of a loop, and its result is collected."""
    loop = call.context.loop
    if loop is None or loop.short or loop.n_constant is not None or isinstance(loop.node, ast.While) or loop.steps:
        return False
    given = call.node.args[0] if call.node.args else None
    if call.callees or not (isinstance(given, ast.Name) or (isinstance(given, ast.Subscript) and _is_text(given))):
        return False
    over = loop.node.iter
    if isinstance(over, ast.List | ast.Tuple) or not names_in(given) & loop.targets:
        return False
    if isinstance(loop.node, ast.comprehension):
        element = module.elements.get(loop.node)
        return element is not None and (element is call.node or _of(element, call.node))
    return call.user is not None and call.user.attr == "append" and call.context.function is loop.function


def _is_text(node: ast.Subscript) -> bool:
    """Return whether an entry of a row is its text, by its name."""
    name = literal(node.slice)
    return (
        isinstance(name, str)
        and re.search(r"text|sentence|prompt|content|document|question|query|title", name) is not None
    )


def _of(element: ast.expr, node: ast.Call) -> bool:
    """Return whether an element of a comprehension is an entry of a call: ``tokenizer(t)["input_ids"]``."""
    while isinstance(element, ast.Subscript | ast.Attribute):
        element = element.value
    return element is node
