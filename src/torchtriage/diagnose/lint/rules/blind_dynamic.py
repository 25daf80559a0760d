"""``dynamic=True`` asks for code that fits every shape.

Looks like: ``torch.compile(..., dynamic=True)``.
Slow because: kernels for unknown sizes cannot use the sizes; some optimisations are left out. By default PyTorch
    compiles for the first shape and makes dynamic only what changes.
Fix: leave it out, and mark what varies with ``torch._dynamo.mark_dynamic(x, 0)``.
Quiet when: ``dynamic`` is absent, None, False, or comes from a setting; or the compiled function is called with tensors
    made from Python lists, whose length may vary.
Source: PyTorch documentation, "Dynamic shapes".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, arguments, keyword, literal

RULE = Rule("CMP101", "blind-dynamic", "compile", "Everything is compiled for unknown shapes", "low")

FIX = Fix(
    text="Leave dynamic out, and mark the dimensions that vary.",
    code="""model = torch.compile(model)
torch._dynamo.mark_dynamic(x, 0)  # this dimension varies""",
    link="https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield compilations with dynamic=True."""
    partial = [
        call
        for call in module.called("functools.partial")
        if call.node.args and module.name_of(call.node.args[0]) == "torch.compile"
    ]
    for call in [*module.called("torch.compile"), *module.sent("compile"), *partial]:
        if literal(keyword(call.node, "dynamic")) is True and not _takes_lists(module, call):
            yield Hit(call.node, "dynamic=True compiles for unknown sizes in every dimension")


def _takes_lists(module: Module, compiled: SourceCall) -> bool:
    """Return whether the compiled function gets tensors whose size the data decide."""
    if not compiled.target:
        return False
    for call in module.calls:
        if module.name_of(call.node.func) != compiled.target:
            continue
        for item in arguments(call.node):
            made = [item]
            if isinstance(item, ast.Name):
                made = [assign.expression for assign in module.assigns_to(item.id)]
            if any(
                isinstance(node, ast.Call)
                and module.name_of(node.func) in ("torch.tensor", "torch.as_tensor", "torch.from_numpy")
                and not isinstance(node.args[0] if node.args else None, ast.List)
                for expression in made
                for node in ast.walk(expression)
            ):
                return True
    return False
