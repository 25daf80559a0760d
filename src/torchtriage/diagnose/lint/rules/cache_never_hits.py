"""A cache is looked up with keys that never recur.

Looks like: ``lru_cache`` on a function that is called with tensors; ``if x in cache`` with a tensor,
    ``id(x)``, ``data_ptr()`` or the step's number as key.
Slow because: tensors are compared by identity, so that an equal one is not found: everything is
    computed again, and the cache keeps all of it.
Fix: use what makes two inputs equal as the key (a name, an index, the shape), or leave the cache out.
Quiet when: the key is made of names, numbers or shapes.
Source: Python documentation of ``functools.lru_cache``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceFunction, text_of
from torchtriage.diagnose.lint.syntax import walk

RULE = Rule("HST107", "cache-never-hits", "host", "A cache never gets a hit", "low")

FIX = Fix(
    text="Use a key that is equal for equal inputs.",
    code="""key = (name, tuple(x.shape))      # not x, and not id(x)
if key not in cache:
    cache[key] = mask_for(*key)""",
    link="https://docs.python.org/3/library/functools.html#functools.lru_cache",
)

_ASKS = re.compile(r"\bin [\w.]*cache")
_CACHES = ("functools.lru_cache", "functools.cache")


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of cached functions with tensors, and questions with keys of one step alone."""
    if "cache" not in module.text:
        return
    cached: set[SourceFunction] = {
        function for function in module.functions if any(name in _CACHES for name in function.decorators)
    }
    for call in module.calls:
        if call.callee in cached and call.context.hot and any(item.kind == "tensor" for item in call.arguments):
            yield Hit(call.node, f"the cache compares tensors by identity: {text_of(call.node)}", call.attr)
    if not _ASKS.search(module.text):
        return
    for function in [None, *module.functions]:
        if not _ASKS.search(module.text_of(function)):
            continue
        for node in walk(module.body(function)):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                yield from _asked(module, node, function)


def _asked(module: Module, node: ast.Compare, function: SourceFunction | None) -> Iterator[Hit]:
    if "cache" not in text_of(node.comparators[0]):
        return
    key = node.left
    if isinstance(key, ast.Name):
        made = module.made_in(function, key.id)
        if len(made) == 1:
            key = made[0]
    if _is_of_one_step(module, key, function):
        yield Hit(node, f"this key never repeats: {text_of(key)}")


def _is_of_one_step(module: Module, key: ast.expr, function: SourceFunction | None) -> bool:
    counters: set[str] = {
        name
        for loop in module.loops
        if loop.steps and loop.function is function and isinstance(loop.node, ast.For)
        if text_of(loop.node.iter).startswith(("range(", "count("))
        for name in loop.targets
    }
    for node in [key, *(key.elts if isinstance(key, ast.Tuple) else [])]:
        if module.value(node).kind == "tensor" and not isinstance(node, ast.Attribute | ast.Subscript):
            return True
        if isinstance(node, ast.Call) and text_of(node.func).rpartition(".")[2] in ("id", "data_ptr"):
            return True
        if isinstance(node, ast.Name) and node.id in counters:
            return True
    return False
