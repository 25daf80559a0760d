"""Each new token runs the whole text so far through the model again.

Looks like: a loop in which ``ids = torch.cat([ids, token])`` and ``model(ids)``, or ``model(ids[:, :i])``,
    without a cache of keys and values; ``use_cache=False`` in ``generate`` or a configuration for generation.
Slow because: the work of each token grows with the length of the text; with a cache it stays that of
    one token.
Fix: pass ``past_key_values`` (``use_cache=True``), and only the new token.
Quiet when: a cache or state is passed, only the last tokens go in, or the file trains.
Source: transformers documentation, "Caching".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, is_step, text_of
from torchtriage.diagnose.lint.rules._growth import takes_prefix
from torchtriage.diagnose.lint.syntax import arguments, indices, keyword, literal, names_in, whole_number

RULE = Rule("LCH104", "whole-prefix-again", "launch", "Generation recomputes the whole prefix for each token", "medium")

FIX = Fix(
    text="Keep keys and values, and pass only what is new.",
    code="""out = model(ids, use_cache=True)
for _ in range(n):
    token = out.logits[:, -1:].argmax(-1)
    out = model(token, past_key_values=out.past_key_values, use_cache=True)""",
    link="https://huggingface.co/docs/transformers/cache_explanation",
)

_CACHE = re.compile(r"past|cache|state|hidden|memory|(^|_)kvs?($|_)")
_JOINS = ("torch.cat", "torch.concat", "torch.concatenate", "torch.hstack")


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of a model on a sequence that the same loop makes longer."""
    grown = {
        (assign.target, assign.context.statement_loop)
        for assign in module.assigns
        if assign.how == "="
        and isinstance(assign.expression, ast.Call)
        and module.name_of(assign.expression.func) in _JOINS
        and _begins_with(assign.expression, assign.target)
    }
    for call in module.calls:
        configured = call.attr.endswith("Config") and not module.trains and module.is_program
        if (call.attr == "generate" or configured) and literal(keyword(call.node, "use_cache")) is False:
            yield Hit(call.node, "use_cache=False: each token computes the whole prefix again", "generate")
            continue
        loop = call.context.statement_loop
        if loop is None or not _is_model(module, call) or call.value.kind != "tensor" or call.context.rare:
            continue
        function = call.context.function
        if loop.trains or _has_cache(call) or (function is not None and is_step(function)):
            continue
        given = [made for item in arguments(call.node) for made in _followed(module, item, loop)]
        joined = any(where is loop and _is_whole(item, target) for target, where in grown for item in given)
        # all elements before the turn's own: ids[:, :i]
        before = any(isinstance(item, ast.Subscript) and takes_prefix(item, loop.counter) for item in given)
        if joined or before:
            yield Hit(call.node, f"each iteration runs all of it again: {text_of(call.node)}", "forward")


def _is_model(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs a module, ``self`` among them."""
    known = module.classes.get(call.receiver.of) if call.receiver.kind == "object" else None
    return call.receiver.kind == "module" or (known is not None and known.is_module)


def _followed(module: Module, node: ast.expr, loop: SourceLoop) -> list[ast.expr]:
    """Return what an argument may be: itself, what the turn made it of, the branches of a choice."""
    made = [node]
    if isinstance(node, ast.Name):
        made += [
            assign.expression
            for assign in module.assigns_to(node.id)
            if assign.context.statement_loop is loop and assign.how == "="
        ]
    return [part for item in made for part in ([item.body, item.orelse] if isinstance(item, ast.IfExp) else [item])]


def _begins_with(node: ast.Call, target: str) -> bool:
    """Return whether something is put behind the sequence so far: ``cat([ids, token])``."""
    parts = node.args[0] if node.args else None
    return isinstance(parts, ast.List | ast.Tuple) and bool(parts.elts) and text_of(parts.elts[0], 200) == target


def _has_cache(call: SourceCall) -> bool:
    names = [item.arg or "" for item in call.node.keywords if literal(item.value) not in (None, False)]
    names += [name for item in call.node.args[1:] for name in names_in(item)]
    return any(map(_CACHE.search, names))


def _is_whole(node: ast.expr, target: str) -> bool:
    """Return whether an argument is the whole sequence, not its end."""
    if isinstance(node, ast.Subscript):
        last = [part.lower for part in indices(node) if isinstance(part, ast.Slice) and part.lower is not None]
        short = any(whole_number(item) == -1 for item in last)
        return not short and _is_whole(node.value, target)
    return text_of(node, 200) == target
