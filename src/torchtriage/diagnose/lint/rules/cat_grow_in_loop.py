"""A tensor grows by ``cat`` in a loop.

Looks like: ``x = torch.cat([x, y])``, ``x = np.append(x, y)`` and the like in a loop, with nothing
    else assigned to ``x`` there; the same of an attribute in code that a step runs.
Slow because: each turn copies everything gathered so far: the bytes moved grow with the square of
    the number of turns.
Fix: gather a list and ``cat`` once after the loop, or write into a tensor made before it.
Quiet when: ``x`` gets another value in the same loop (skip connections), or the loop turns at most
    eight times.
Source: PyTorch documentation of ``torch.cat``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Assign, Fix, Hit, Module, Rule, Severity, SourceLoop, names_in, text_of

RULE = Rule("CPY013", "cat-grow-in-loop", "copy", "A tensor grows by concatenation in a loop", "medium")

FIX = Fix(
    text="Gather a list and concatenate once, or write into a tensor of full size.",
    code="""out = torch.empty(n, width, device=x.device)
for i, part in enumerate(parts):
    out[i] = part               # instead of: out = torch.cat([out, part])""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.cat.html",
)

_JOINS = frozenset(
    [
        *(f"torch.{name}" for name in ("cat", "concat", "concatenate", "hstack", "vstack", "dstack")),
        *(f"numpy.{name}" for name in ("concatenate", "append", "hstack", "vstack", "dstack", "column_stack")),
    ]
)
_CACHE = re.compile(r"cache|past|(^|[._])(k|v|key|value|state)s?($|_)", re.IGNORECASE)
MAX_TURNS = 8


def find(module: Module) -> Iterator[Hit]:
    """Yield assignments of a concatenation to one of its own parts."""
    for assign in module.assigns:
        loop = assign.context.loop
        if assign.how != "=" or assign.context.rare or not _grows(module, assign):
            continue
        if loop is None:
            # a cache of keys and values grows by design
            if assign.target.startswith("self.") and assign.context.hot and not _CACHE.search(assign.target):
                yield Hit(assign.expression, f"everything so far is copied again: {text_of(assign.node)}", "cat")
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


def _severity(loop: SourceLoop) -> Severity:
    """Return how far it grows: far in a loop of steps or of unknown length."""
    if loop.steps:
        return "medium"
    counted = isinstance(loop.node, ast.For) and isinstance(loop.node.iter, ast.Call)
    return "low" if isinstance(loop.node, ast.While) or counted else "note"


def _grows(module: Module, one: Assign) -> bool:
    node = one.expression
    if not isinstance(node, ast.Call) or module.name_of(node.func) not in _JOINS or not node.args:
        return False
    parts = node.args[0]
    if module.name_of(node.func) == "numpy.append":
        return text_of(parts, 999) == one.target
    if not isinstance(parts, ast.List | ast.Tuple) or len(parts.elts) < 2:
        return False
    if all(_comes_from(part, one.target) for part in parts.elts):
        return False  # padded with pieces of itself
    return any(text_of(part, 999) == one.target for part in parts.elts)


def _comes_from(node: ast.expr, target: str) -> bool:
    """Return whether an operand is the target, or taken out of it."""
    while text_of(node, 999) != target:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        else:
            return False
    return True


def _joins(module: Module, one: Assign) -> int:
    """Return how many assignments in the loop make the same target grow."""
    return sum(
        other.target == one.target
        and other.context.loop is one.context.loop
        and other.how == "="
        and _grows(module, other)
        for other in module.assigns
    )


def _only_tokens(module: Module, one: Assign) -> bool:
    """Return whether generated tokens are gathered that the model does not see again: a few numbers."""
    loop = one.context.statement_loop
    parts = names_in(one.expression) - {one.target}
    made = [other.expression for other in module.assigns if other.target in parts and other.context.loop is loop]
    drawn = any(
        isinstance(node, ast.Attribute) and node.attr in ("argmax", "multinomial")
        for item in made
        for node in ast.walk(item)
    )
    seen = any(
        call.context.statement_loop is loop and call.receiver.kind == "module" and one.target in names_in(call.node)
        for call in module.calls
    )
    return drawn and not seen
