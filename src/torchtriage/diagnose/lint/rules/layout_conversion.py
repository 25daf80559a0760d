"""A module changes the memory layout and changes it back.

Looks like: ``contiguous(memory_format=torch.channels_last)`` and ``contiguous()`` in one ``forward``;
    ``permute(0, 2, 3, 1).contiguous()`` and ``permute(0, 3, 1, 2).contiguous()``.
Slow because: each ``contiguous()`` copies the whole tensor to order its bytes for one operator.
Fix: keep model and inputs in ``channels_last`` from end to end; most operators accept the view that ``permute``
    returns.
Quiet when: a layout is changed one way only.
Source: PyTorch tutorial "Channels Last Memory Format in PyTorch".
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from torchtriage.core import fixes
from torchtriage.diagnose.lint.base import Hit, Module, Rule, SourceCall, SourceFunction, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import method_of

RULE = Rule("CPY011", "layout-conversion", "copy", "The memory layout goes back and forth", "low")

FIX = fixes.CHANNELS_LAST

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def find(module: Module) -> Iterator[Hit]:
    """Yield copies of a function that undo each other's layout."""
    found: dict[SourceFunction | None, dict[str, list[SourceCall]]] = defaultdict(lambda: defaultdict(list))
    for call in module.sent("contiguous", "to"):
        way = _way(module, call)
        if way and call.context.hot:
            found[call.context.function][way].append(call)
    for ways in found.values():
        if len(ways) > 1:
            for call in (item for calls in ways.values() for item in calls):
                message = f"this copy changes the layout, and another one undoes it: {text_of(call.node)}"
                yield Hit(call.node, message, call.attr)


def _way(module: Module, call: SourceCall) -> str:
    """Return which layout a copy makes, empty when it makes none for certain."""
    given = keyword(call.node, "memory_format")
    if given is not None:
        return "last" if module.name_of(given).endswith("channels_last") else "first"
    if call.attr == "to" or call.node.args:
        return ""
    inner = call.owner
    if isinstance(inner, ast.Call) and method_of(inner) == "permute":
        order = tuple(literal(arg) for arg in inner.args)
        return "last" if order == _TO_LAST else "first" if order == _TO_FIRST else ""
    if isinstance(inner, ast.Name):
        return "first"  # x.contiguous(): what it was before is for others to say
    return ""
