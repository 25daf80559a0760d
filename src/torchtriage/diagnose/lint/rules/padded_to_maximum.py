"""Every text is padded to the longest that is allowed.

Looks like: ``tokenizer(texts, padding="max_length", max_length=128)`` in a program that trains or goes over
    a loader; ``ids + [0] * (MAX_LEN - len(ids))`` in a data set or its ``collate_fn``.
Slow because: the model computes padding like text: with texts a quarter as long as the maximum, three
    quarters of the work are thrown away.
Fix: pad each batch to its own longest text (``DataCollatorWithPadding``, ``pad_sequence``); sort or bucket by
    length.
Quiet when: the maximum is the tokenizer's own (text encoders of diffusion models need it), the length is
    that of this batch, or something is compiled, exported or runs on XLA, which wants one shape.
Source: transformers documentation, "Padding and truncation".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceFunction, keyword, literal, text_of

RULE = Rule("DAT102", "padded-to-maximum", "data", "Texts are padded to the longest that is allowed", "low")

FIX = Fix(
    text="Pad each batch to its own longest text.",
    code="""encoded = tokenizer(texts, truncation=True, max_length=128)   # no padding here
collate = DataCollatorWithPadding(tokenizer)                  # pads each batch to its longest
loader = DataLoader(data, batch_size=32, collate_fn=collate)""",
    link="https://huggingface.co/docs/transformers/pad_truncation",
)

_ONE_SHAPE = (
    "torch.compile(",
    "XLA",
    "TPU",
    "torch_xla",
    "torch.export",
    "torch.jit.",
    "onnx",
    "diffusers",
    "CLIPTokenizer",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield texts and lists that are padded to a fixed length."""
    if not module.is_program or any(word in module.text for word in _ONE_SHAPE):
        return
    works = module.trains or "Trainer" in module.text or "DataLoader" in module.text
    if not works:
        return
    if "max_length" in module.text:
        for call in module.calls:
            if literal(keyword(call.node, "padding")) != "max_length":
                continue
            longest = keyword(call.node, "max_length")
            if longest is None or "model_max_length" in text_of(longest):
                continue
            yield Hit(call.node, f"every text is padded to max_length={text_of(longest)}", call.attr)
    for function in module.functions:
        if function.loads and "*" in module.text_of(function):
            yield from _by_hand(module, function)


def _by_hand(module: Module, function: SourceFunction) -> Iterator[Hit]:
    """Yield lists that are filled up to a constant: ``ids + [0] * (MAX_LEN - len(ids))``."""
    for node in ast.walk(function.node):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            continue
        if not isinstance(node.left, ast.List) or len(node.left.elts) != 1 or not isinstance(node.right, ast.BinOp):
            continue
        missing = node.right
        if not isinstance(missing.op, ast.Sub) or "len(" not in text_of(missing.right):
            continue
        whole = missing.left
        setting = isinstance(whole, ast.Attribute) or (isinstance(whole, ast.Name) and whole.id.isupper())
        if setting or isinstance(literal(whole), int):
            yield Hit(node, f"every sample is filled up to {text_of(whole)}: {text_of(node)}")
