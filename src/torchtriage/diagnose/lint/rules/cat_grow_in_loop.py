"""A tensor grows by ``cat`` in a loop.

Looks like: ``x = torch.cat([x, y])``, ``x = np.append(x, y)`` and the like in a loop, with nothing else assigned to
    ``x`` there; the same for an attribute in code that a step runs, or in a method that gathers (``update``,
    ``append``) for others to call.
Slow because: each turn copies everything gathered so far: the bytes moved grow with the square of
    the number of turns.
Fix: gather a list and ``cat`` once after the loop, or write into a tensor made before it.
Quiet when: ``x`` gets another value in the same loop (skip connections), or the loop runs at most eight times.
Source: PyTorch documentation of ``torch.cat``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Assign, Fix, Hit, Module, Rule, Severity, SourceLoop, names_in, text_of
from torchtriage.diagnose.lint.rules._growth import joined
from torchtriage.diagnose.lint.syntax import attributes_in

RULE = Rule("CPY013", "cat-grow-in-loop", "copy", "A tensor grows by concatenation in a loop", "medium")

FIX = Fix(
    text="Collect a list and concatenate once, or write into a preallocated tensor.",
    code="""out = torch.empty(n, width, device=x.device)
for i, part in enumerate(parts):
    out[i] = part               # instead of: out = torch.cat([out, part])""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cat.html",
)

_CACHE = re.compile(r"cache|past|(^|[._])(k|v|key|value|state)s?($|_)", re.IGNORECASE)
MAX_TURNS = 8


def find(module: Module) -> Iterator[Hit]:
    """Yield assignments of a concatenation to one of its own parts."""
    for assign in module.assigns:
        loop = assign.context.loop
        if assign.how != "=" or assign.context.rare or joined(module, assign) is None:
            continue
        if loop is None:
            # a cache of keys and values grows by design, and a window drops what is old
            if assign.target.startswith("self.") and _recurs(module, assign) and not _CACHE.search(assign.target):
                often = _is_repeated(assign)
                said = "everything so far is copied again" if often else "each call copies everything so far"
                severity: Severity = "medium" if often else "low"
                yield Hit(assign.expression, f"{said}: {text_of(assign.node)}", "cat", severity)
            continue
        if loop.n_constant is not None and loop.n_constant <= MAX_TURNS:
            continue
        if loop.assigned.get(assign.target, 1) > _joins(module, assign) or _only_tokens(module, assign):
            continue
        yield Hit(
            assign.expression,
            f"everything so far is copied again: {text_of(assign.node)}",
            "cat",
            severity=_severity(loop),
        )


def _recurs(module: Module, assign: Assign) -> bool:
    """Return whether a function's body runs again and again: in each step, or in any loop of a program."""
    function = assign.context.function
    if any(_shortens(other, assign.target) for other in module.assigns if other.context.function is function):
        return False
    if assign.context.hot or function is None:
        return assign.context.hot
    if module.is_program and _is_repeated(assign):
        return True
    return _GATHERS.match(function.name) is not None and all(callee is not function for _, callee in module.edges)


def _is_repeated(assign: Assign) -> bool:
    """Return whether the file shows that an assignment runs again and again."""
    function = assign.context.function
    return assign.context.hot or (function is not None and function.called_in_loop)


_GATHERS = re.compile(r"_?(update|add|append|push|extend|collect|record|store|observe|remember|enqueue)(_|$)")


def _shortens(assign: Assign, target: str) -> bool:
    """Return whether a few of the elements are taken, and the others dropped: ``x = x[-n:]``."""
    node = assign.expression
    return assign.target == target and isinstance(node, ast.Subscript) and text_of(node.value, 999) == target


def _severity(loop: SourceLoop) -> Severity:
    """Return how far it grows: far in a loop of steps or of unknown length."""
    if loop.steps:
        return "medium"
    counted = isinstance(loop.node, ast.For) and isinstance(loop.node.iter, ast.Call)
    return "low" if isinstance(loop.node, ast.While) or counted else "note"


def _joins(module: Module, assign: Assign) -> int:
    """Return how many assignments in the loop make the same target grow."""
    return sum(
        other.context.loop is assign.context.loop and other.how == "=" and joined(module, other) is not None
        for other in module.assigns_to(assign.target)
    )


def _only_tokens(module: Module, assign: Assign) -> bool:
    """Return whether generated tokens are gathered that the model does not see again: a few numbers."""
    loop = assign.context.statement_loop
    parts = names_in(assign.expression) - {assign.target}
    made = [other.expression for other in module.assigns if other.target in parts and other.context.loop is loop]
    drawn = any(attributes_in(item) & {"argmax", "multinomial"} for item in made)
    seen = any(
        call.context.statement_loop is loop and call.receiver.kind == "module" and assign.target in names_in(call.node)
        for call in module.calls
    )
    return drawn and not seen
