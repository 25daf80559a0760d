"""The same module is run twice on the same input.

Looks like: ``model(x)`` twice in one turn, with nothing assigned to ``model`` or ``x`` and no
    optimizer step in between; two helpers that are called with the same ``x`` and both run it.
Slow because: the second pass computes what the first one already gave.
Fix: keep the first result; take several outputs of one pass.
Quiet when: the two passes differ on purpose (one in evaluation mode, dropout drawn anew for a
    consistency loss), or their arguments do.
Source: PyTorch performance tuning guide.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, names_in, text_of
from torchtriage.diagnose.lint.syntax import stored_names

RULE = Rule("LCH103", "repeated-forward", "launch", "The same forward pass is computed twice", "medium")

FIX = Fix(
    text="Run it once and keep the result.",
    code="""logits = model(x)
loss = criterion(logits, y)
accuracy = (logits.detach().argmax(1) == y).float().mean()   # not model(x) again""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

_ON_PURPOSE = re.compile(r"r_?drop|consist|monte.?carlo|\bmc_|uncertain|simcse|contrastive|two.?views?", re.IGNORECASE)
_CHANGES = frozenset(["step", "eval", "train", "load_state_dict", "zero_", "copy_", "mul_", "add_", "lerp_"])


def find(module: Module) -> Iterator[Hit]:
    """Yield the second of two equal calls of a module in one turn."""
    yield from _across(module)
    groups: dict[tuple[object, object, str], list[SourceCall]] = defaultdict(list)
    for call in module.calls:
        if call.runs_module and call.context.hot and _has_data(call):
            groups[call.context.function, call.context.loop, text_of(call.node, 300)].append(call)
    for calls in groups.values():
        for first, second in pairwise(calls):
            if _is_same(module, first, second):
                yield Hit(second.node, f"the same as on line {first.node.lineno}: {text_of(second.node)}", "forward")


def _across(module: Module) -> Iterator[Hit]:
    """Yield calls in helpers that one function calls with the same input: each term of a loss asks again."""
    seen: dict[tuple[object, object, str], tuple[SourceCall, SourceFunction]] = {}
    for call in module.calls:
        function = call.context.function
        if call.receiver.kind != "module" or not call.context.hot or function is None or function.owner is None:
            continue
        if function.owner.is_module or call.context.loop is not None or not _has_data(call):
            continue
        path = text_of(call.node.func, 200)
        if not path.startswith("self."):
            continue
        for outer in module.calls:
            if outer.callees != (function,) or outer.context.rare:
                continue
            given = _given(function, call, outer)
            if given is None:
                continue
            key = (outer.context.function, outer.context.loop, f"{path}({given})")
            first = seen.setdefault(key, (call, function))
            if first[0] is not call and first[1] is not function and not (first[1].steps or function.steps):
                line = first[0].node.lineno
                message = f"the same as on line {line}, called with the same input: {text_of(call.node)}"
                yield Hit(call.node, message, "forward")


def _given(function: SourceFunction, call: SourceCall, outer: SourceCall) -> str | None:
    """Return a call's arguments as its function's caller names them; None where they are not its parameters."""
    texts = dict(zip(function.places, outer.node.args, strict=False))
    stored = stored_names(function.node)
    found: list[str] = []
    for item in call.node.args:
        if not isinstance(item, ast.Name) or item.id not in texts or item.id in stored:
            return None
        found.append(text_of(texts[item.id], 200))
    return ", ".join(found)


def _has_data(call: SourceCall) -> bool:
    return (
        bool(call.node.args or call.node.keywords)
        and not call.receiver.of.endswith("Loss")
        and not any(isinstance(node, ast.Call) for item in call.node.args for node in ast.walk(item))
    )


def _is_same(module: Module, first: SourceCall, second: SourceCall) -> bool:
    begin, end = first.node.end_lineno or 0, second.node.lineno
    function = first.context.function
    if begin >= end or _ON_PURPOSE.search(module.text_of(function)):
        return False
    names = names_in(first.node)
    for assign in module.assigns:
        if assign.context.function is function and begin <= assign.node.lineno < end:
            if assign.target.partition(".")[0] in names and assign.node.lineno > begin:
                return False
            if assign.target in names:
                return False
    for call in module.calls_by_function[function]:
        if begin < call.node.lineno < end and call.attr in _CHANGES:
            return False
    for test in ast.walk(module.body(function)):
        if isinstance(test, ast.If) and _parts(test, first, second):
            return False
    return True


def _parts(test: ast.If, first: SourceCall, second: SourceCall) -> bool:
    """Return whether the two calls stand in different branches of a condition."""

    def within(body: list[ast.stmt], call: SourceCall) -> bool:
        return bool(body) and body[0].lineno <= call.node.lineno <= (body[-1].end_lineno or 0)

    return within(test.body, first) != within(test.body, second)
