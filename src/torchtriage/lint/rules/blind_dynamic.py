"""``dynamic=True`` asks for code that fits every shape.

Looks like: ``torch.compile(..., dynamic=True)``.
Slow because: kernels for unknown sizes cannot use the sizes; some optimisations are left out. By
    default PyTorch compiles for the first shape and turns dynamic only what changes.
Fix: leave it out, and mark what varies with ``torch._dynamo.mark_dynamic(x, 0)``.
Quiet when: ``dynamic`` is absent, None, False, or comes from a setting.
Source: PyTorch documentation, "Dynamic shapes".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.finding import Fix
from torchtriage.lint.base import Hit, Rule
from torchtriage.lint.facts import Module
from torchtriage.lint.syntax import keyword, literal

RULE = Rule(
    code="CMP101",
    name="blind-dynamic",
    family="compile",
    title="Everything is compiled for unknown shapes",
    severity="low",
)

FIX = Fix(
    text="Leave dynamic out, and mark the dimensions that vary.",
    code="""model = torch.compile(model)
torch._dynamo.mark_dynamic(x, 0)  # this dimension varies""",
    link="https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield compilations with dynamic=True."""
    for call in [*module.called("torch.compile"), *module.sent("compile")]:
        if literal(keyword(call.node, "dynamic")) is True:
            yield Hit(call.node, "dynamic=True compiles for unknown sizes in every dimension")
    for function in module.functions:
        for one in function.node.decorator_list:
            if (
                isinstance(one, ast.Call)
                and module.name_of(one.func) == "torch.compile"
                and literal(keyword(one, "dynamic")) is True
            ):
                yield Hit(one, "dynamic=True compiles for unknown sizes in every dimension")
