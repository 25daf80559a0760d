"""Every text is padded to the maximum length.

Looks like: ``tokenizer(texts, padding="max_length", max_length=128)`` in a program that trains or iterates over a
    loader; ``ids + [0] * (MAX_LEN - len(ids))`` or ``F.pad(x, (0, MAX_LEN - len(x)))``.
Slow because: the model computes padding like text: with texts a quarter as long as the maximum, three quarters of the
    work is wasted.
Fix: pad each batch to its own longest text (``DataCollatorWithPadding``, ``pad_sequence``); sort or bucket by
    length.
Quiet when: the length is that of this batch, or below 64, nothing tells padding from data (clips cut to one length), or
    a fixed shape is needed: compiled, exported, on XLA, for the text encoder of a diffusion model.
Source: transformers documentation, "Padding and truncation".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceFunction, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import assigned_pairs, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import parameters

RULE = Rule("DAT102", "padded-to-maximum", "data", "Texts are padded to the maximum length", "low")

FIX = Fix(
    text="Pad each batch to its own longest text.",
    code="""encoded = tokenizer(texts, truncation=True, max_length=128)   # no padding here
collate = DataCollatorWithPadding(tokenizer)                  # pads each batch to its longest
loader = DataLoader(data, batch_size=32, collate_fn=collate)""",
    link="https://huggingface.co/docs/transformers/pad_truncation",
)

_ONE_SHAPE = words("torch.compile( XLA TPU torch_xla torch.export torch.jit. onnx diffusers CLIPTokenizer")


_LENGTH = re.compile(r"\blen\(|\.(size|shape|numel)\b")
_FILLS = frozenset(["pad", "ConstantPad1d", "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "repeat"])
_TOLD_APART = re.compile(r"mask|padding_idx|ignore_index|pack_padded|lengths|-100\b", re.IGNORECASE)


def find(module: Module) -> Iterator[Hit]:
    """Yield texts and lists that are padded to a fixed length."""
    if not module.is_program or any(word in module.text for word in _ONE_SHAPE):
        return
    if not (module.trains or module.takes_steps or "Trainer" in module.text or "DataLoader" in module.text):
        return
    yield from _by_tokenizer(module)
    for function in module.functions:
        text = module.text_of(function)
        if function.in_module or function.runs_module or function.steps or function.holds or not _LENGTH.search(text):
            continue
        yield from _by_hand(module, function)


def _by_tokenizer(module: Module) -> Iterator[Hit]:
    """Yield calls that ask for padding to a maximum."""
    if "max_length" not in module.text and "maxlen" not in module.text and "enable_padding" not in module.text:
        return
    for call in module.calls:
        longest = keyword(call.node, "max_length")
        padded = module.constant(keyword(call.node, "padding"), call.context) == "max_length"
        if padded or literal(keyword(call.node, "pad_to_max_length")) is True:
            if longest is None and keyword(call.node, "truncation") is None:
                continue
            said = f"max_length={text_of(longest)}" if longest is not None else "the longest that the tokenizer allows"
            if "model_max_length" not in said:
                yield Hit(call.node, f"every text is padded to {said}", call.attr)
        elif call.attr == "pad_sequences" and (longest := keyword(call.node, "maxlen")) is not None:
            if _is_setting(module, longest, call.context.function):
                yield Hit(call.node, f"every sample is padded to {text_of(longest)}", call.attr)
        elif call.attr == "enable_padding" and keyword(call.node, "length") is not None:
            yield Hit(call.node, f"every text is padded: {text_of(call.node)}", call.attr)


def _by_hand(module: Module, function: SourceFunction) -> Iterator[Hit]:
    """Yield what is filled up to a setting: lists and tensors."""
    apart = _TOLD_APART.search(module.text) is not None
    for node in ast.walk(function.node):
        filled = _missing(node)
        if isinstance(node, ast.expr) and filled is not None and (apart or isinstance(node, ast.BinOp)):
            whole = filled.left
            if _LENGTH.search(_said(function, filled.right)) and _is_setting(module, whole, function):
                yield Hit(node, f"every sample is padded to {text_of(whole)}: {text_of(node)}")
        elif (
            isinstance(node, ast.While)
            and (limit := _grown_to(node)) is not None
            and _is_setting(module, limit, function)
        ):
            yield Hit(node.test, f"every sample is padded to {text_of(limit)}: {text_of(node.test)}")


def _missing(node: ast.AST) -> ast.BinOp | None:
    """Return ``n - len(x)`` of ``[0] * (n - len(x))`` and ``F.pad(x, (0, n - len(x)))``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        listed = isinstance(node.left, ast.List) and len(node.left.elts) == 1
        parts: list[ast.AST] = [node.right] if listed else []
    elif isinstance(node, ast.Call):
        name = text_of(node.func).rpartition(".")[2]
        parts = [part for item in node.args for part in ast.walk(item)] if name in _FILLS else []
    else:
        return None
    return next((part for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)), None)


def _grown_to(node: ast.While) -> ast.expr | None:
    """Return ``n`` of ``while len(x) < n: x.append(0)``."""
    test = node.test
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Lt) or len(node.body) != 1:
        return None
    grows = "append" in text_of(node.body[0]) or isinstance(node.body[0], ast.AugAssign)
    return test.comparators[0] if grows and text_of(test.left).startswith("len(") else None


def _said(function: SourceFunction, node: ast.expr) -> str:
    """Return the text of an expression, of a name what it was assigned in the function."""
    values = _assigned(function, node.id) if isinstance(node, ast.Name) else [node]
    return " ".join(text_of(value, 200) for value in values)


def _assigned(function: SourceFunction, name: str) -> list[ast.expr]:
    """Return what a function assigns to a name."""
    pairs = (pair for node in ast.walk(function.node) if isinstance(node, ast.Assign) for pair in assigned_pairs(node))
    return [value for target, value in pairs if path_of(target) == name]


def _is_setting(module: Module, node: ast.expr, function: SourceFunction | None) -> bool:
    """Return whether a length is a setting, and not that of these data."""
    known = module.settings.value(node, function.node if function is not None else None)
    if isinstance(known, int):
        return known >= _SHORT
    if isinstance(node, ast.Name) and function is not None:
        made = _assigned(function, node.id)
        if made:
            return all(not isinstance(item, ast.Name) and _is_setting(module, item, function) for item in made)
        return node.id.isupper() or (bool(_LONGEST.search(node.id)) and node.id in parameters(function.node))
    return isinstance(node, ast.Attribute) and not _LENGTH.search(f".{node.attr}")


_SHORT = 64  # boxes of an image, neighbours of a node: their padding is little work
_LONGEST = re.compile(r"max|limit|longest")
